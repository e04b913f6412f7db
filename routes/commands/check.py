"""mailonce check: what mailonce.toml means, and what would happen to an email. Nothing is sent or recorded."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.rules import Busy, Known, Repeat, Take, judge
from deduplication.names import Name
from orchestrator.build import Service, check_start
from orchestrator.config.file import quoted
from orchestrator.config.model import LOG_URL, Condition, Config
from orchestrator.config.settings import Settings
from orchestrator.data_dir import NoService, is_trial_service
from orchestrator.delivery.signing import public_keys
from orchestrator.item import MOST_SHOWN_CHARS, Item, email_item
from orchestrator.operations.times import shown_moment
from orchestrator.pipeline import SKIPPED_AT, Status, repeat_status
from orchestrator.routing import RECIPIENT, Router
from routes.commands.service import build_quietly, read_settings
from routes.mime import parse_mime
from routes.payload import InvalidPayload, parse_json
from routes.providers import gmail
from routes.providers.base import require_email
from routes.providers.registry import checked_config

NOT_LISTED = ("name", "match", "any", "destinations", "drop", "otherwise")  # shown in words
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--email", "email_file", type=_FILE, help="A .eml file.")
@click.option("--json", "json_file", type=_FILE, help="A JSON file, as sent to /api/ingress/gmail.")
def check(email_file: Path | None, json_file: Path | None) -> None:
    """Check the settings and mailonce.toml as a start or a reload would, and explain them.

    With --email or --json, show the route, names and gates of that email, which of its names are taken in the journal
    of the service, and what would happen to it now. Nothing is sent or recorded.
    """
    settings = read_settings()
    config = checked_config(settings)
    click.echo(describe_config(settings, config))
    with tempfile.TemporaryDirectory(prefix="mailonce-check-") as folder:  # a DATA_DIR is not made for that
        elsewhere = settings.model_copy(update={"data_dir": Path(folder)})
        check_start(settings if settings.data_dir.exists() else elsewhere, config)
        click.echo("A start or reload would accept this.")
        try:
            if email_file:
                email = require_email(parse_mime(email_file.read_bytes()))
            elif json_file:
                email = gmail.parse(parse_json(json_file.read_bytes()))
            else:
                return
        except InvalidPayload as error:
            raise click.ClickException(f"{email_file or json_file} would be refused: {error}") from error
        try:
            is_trial = is_trial_service(settings)
        except NoService as error:
            click.echo(f"\nNothing is known yet: {error}")
            settings, is_trial = elsewhere.model_copy(update={"redis_url": ""}), True
        with build_quietly(settings, config, is_trial=is_trial) as service:
            for item in service.pipeline.router.split(email_item(email, settings.ids_kept_ms)):
                click.echo("\n".join(_explain(service, item)))


def describe_config(settings: Settings, config: Config) -> str:
    """The configuration with its defaults, in the words of mailonce.toml, without what may be secret."""
    files = "inline up to 1 MB of each email, metadata beyond: links need FILES_URL=s3://bucket/prefix"
    if settings.links_reach_files:
        address, where = settings.public_url or settings.address, settings.files_url or settings.data_dir / "files"
        files = f"links to {address}, {settings.files_days:g} days, up to {settings.files_mb:g} MB in {where}"
    sections = {
        "Destinations": [f"{name}: {_fields(destination)}" for name, destination in config.destinations.items()],
        "Routes, in order": list(_routes(config)),
        "Subject patterns": [
            _fields((name, getattr(pattern, name)) for name in ("name", "phrases", "regex"))
            for pattern in config.patterns
        ],
        "Media": [_fields(config.media)],
        "Providers": sorted(config.providers),
        "Alarms": [_fields(config.alerts)],
        "Files": [files],
    }
    return "\n".join("\n  ".join([title, *lines]) for title, lines in sections.items() if lines)


def _fields(fields: Iterable[tuple[str, Any]]) -> str:
    """Fields that are set, with their values."""
    return ", ".join(_field(name, value) for name, value in fields if value not in (None, {}))


def _field(name: str, value: Any) -> str:
    if name == "secret":
        keys = "".join(f", public key {key}" for key in public_keys(value))
        return f"signed with {len(value)} secret{'s' * (len(value) > 1)}{keys}" if value else "not signed"
    if name == "url" and value:
        address = urlsplit(value)
        return "printed, sent nowhere" if value == LOG_URL else f"url = {address.scheme}://{address.hostname}"
    return f"{name} = {json.dumps(list(value) if isinstance(value, tuple | dict) else value, ensure_ascii=False)}"


def _routes(config: Config) -> Iterator[str]:
    for number, route in enumerate(config.routes, 1):
        conditions = (" or " if route.any else " and ").join(map(_condition_in_words, route.match))
        every = "every email that no earlier route sends anywhere" if route.otherwise else "every email"
        yield f"{number}. {quoted(route.name)}: {conditions or every}"
        only = tuple(config.destinations) if len(config.destinations) == 1 else ()
        to = "dropped" if route.drop else f"to {', '.join(route.destinations or only) or 'no destination'}"
        yield f"   {to}, {_fields((name, value) for name, value in route if name not in NOT_LISTED)}"


def _condition_in_words(condition: Condition) -> str:
    ((test, value),) = condition.tests.items()
    shown = quoted(value) if isinstance(value, str) else value
    return f"{condition.field} {test} {shown}{' exactly' * condition.exact}"


def _describe_routing(router: Router, item: Item, recipient: str) -> Iterator[str]:
    """A line for each route, and one for each of its conditions."""
    if len(item.recipients) > 1:
        yield f"For {recipient}"
    for trial in router.explain(item, recipient):
        verdict = "matches" if trial.matched else "does not match"
        late = "" if trial.reached else ", but is not evaluated: an earlier route stopped"
        if trial.route.otherwise and not trial.matched:
            late = ": an earlier route sends it somewhere"
        yield f"{quoted(trial.route.name)} {verdict}{late}"
        for condition, held in zip(trial.route.match, trial.held, strict=True):
            values = (recipient,) if condition.field == RECIPIENT else item.values(condition.field)
            found = quoted(", ".join(values)[:MOST_SHOWN_CHARS])
            yield f"  {'yes' if held else 'no'}: {_condition_in_words(condition)} (it is {found})"


def _explain(service: Service, item: Item) -> Iterator[str]:
    """Its route and its names, which of them are taken, and what would happen to it now, by the service's journal."""
    pipeline = service.pipeline
    case = pipeline.prepare(item, pipeline.router.pick(item))
    claim, route = case.claim, case.route
    yield "\nThis email"
    for recipient in case.item.recipients or ("",):
        yield from _describe_routing(pipeline.router, case.item, recipient)
    to = "which drops it; a release would send it to" if route.dropped_by else "to"
    yield f"takes the route {route.name!r}, {to} {', '.join(route.destinations)}"
    if route.realtime_only:
        yield f"counts only if it is newer than the service: {item.moment or 'undated'}"
    yield "is recognised by"
    yield from (f"  {name.gate}: {name.label}" for name in (*claim.own, *claim.gates))
    with service.journal.reading() as step:
        known = step.known((*claim.identity, *claim.gates), claim.fingerprint)
    taken = [f"  {line}" for name in claim.references.values() for line in _taken(name, known)]
    yield from ["has these names taken", *taken] if taken else ["has no name taken"]
    match judge(claim, known):
        case Repeat(of=original, name=name):
            status = repeat_status(original, {wanted.destination for wanted in claim.destinations})
            yield f"would be {status}: it repeats {original.id or 'an email that was imported'} ({name.label})"
        case Busy(name=name):
            yield f"would be {Status.ALREADY_PROCESSING}: {name} is held"
        case Take() if route.dropped_by:
            yield f"would be {Status.SKIPPED_ROUTE}"
        case Take(stop=stop) if stop:
            by = stop.original or "an import or another program"
            yield f"would be {SKIPPED_AT[stop.gate]}: {stop.name.label} is taken, by {by}"
        case _:
            yield "would be new, and delivered"


def _taken(name: Name, known: Known) -> Iterator[str]:
    state = known.of(name)
    known_by = [entry for entry in (*state.entries, *state.ended) if entry.id]
    by = ", ".join(f"{entry.id} since {shown_moment(entry.created_ms)}" for entry in known_by)
    deliveries = [delivery for entry in state.entries for delivery in entry.deliveries]
    if state.is_marked or any(entry.is_delivered_somewhere for entry in state.entries):
        yield f"{name.label}: done, by {by or 'an import or another program'}"
    elif any(delivery.status is DeliveryStatus.WAITING or delivery.is_live(known.now_ms) for delivery in deliveries):
        yield f"{name.label}: held by {by}"
