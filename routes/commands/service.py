"""What commands share: the settings, the service of DATA_DIR, and output for a person or a program."""

import getpass
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from deduplication.errors import StoreUnavailable
from orchestrator.audit import audit, keep_audit
from orchestrator.build import Service
from orchestrator.config.model import Config, load_config
from orchestrator.config.settings import Settings, load_settings, log_where_settings_come_from
from orchestrator.data_dir import is_trial_service
from orchestrator.logs import configure_logging, quiet

json_option = click.option("--json", "as_json", is_flag=True, help="Print all fields, as JSON.")


def read_settings(*, serves: bool = False) -> Settings:
    """A command that does not serve logs warnings alone, so that stderr has its own words."""
    settings = load_settings()
    level = "WARNING" if settings.log_level == "INFO" and not serves else settings.log_level
    configure_logging(level, settings.log_format)
    log_where_settings_come_from()
    return settings


@contextmanager
def open_service() -> Iterator[Service]:
    """The service of DATA_DIR. Raises NoService: no command creates a journal."""
    settings = read_settings()
    with build_quietly(settings, load_config(settings), is_trial=is_trial_service(settings)) as service:
        yield service


@contextmanager
def build_quietly(settings: Settings, config: Config, *, is_trial: bool) -> Iterator[Service]:
    """The service with its audit.log, but without its threads: the running service sends what a command releases, and
    publishes what it records."""
    handler = keep_audit(settings.data_dir, by=f"mailonce, by {user_name()}")
    with quiet():
        service = Service(settings, config, is_trial=is_trial)
    try:
        if registry := service.coordinator.registry:
            try:
                registry.probe()
                service.coordinator.redis.note_answer()
            except StoreUnavailable:
                service.coordinator.redis.give_up()
        yield service
    finally:
        service.close()
        audit.removeHandler(handler)
        handler.close()


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return str(os.getuid())


def show(document: Mapping[str, Any], as_json: bool, *lines: str, indent: int | None = None) -> None:
    """As JSON, or in words."""
    click.echo(json.dumps(document, indent=indent) if as_json else "\n".join(map(one_line, lines)))


def show_page(page: Mapping[str, Any], as_json: bool, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As JSON, or as a table with its count below."""
    if as_json:
        show(page, as_json, indent=2)
        return
    if rows:
        click.echo("\n".join(table(heads, rows)))
    more, what = f"; there are more than --limit {len(rows)}" if page["more"] else "", next(iter(page))
    click.echo(f"{len(rows)} {what if len(rows) != 1 else _SINGULAR[what]}{more}", err=True)


_SINGULAR = {"decisions": "decision", "deliveries": "delivery", "locks": "lock"}


def one_line(text: str) -> str:
    """Without control characters: no email may move the cursor of a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    """Lines with aligned columns; ``numbers`` are those that are aligned right. They fit the width of a terminal."""
    from rich.console import Console  # takes longer to import than a command takes that prints no table
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        is_last = place == len(heads) - 1
        grid.add_column(head, justify="right" if place in numbers else "left", no_wrap=not is_last)
    for row in rows:
        grid.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False, markup=False)
    with console.capture() as printed:
        console.print(grid)
    return [line.rstrip() for line in printed.get().splitlines()]
