"""Output for a terminal: tables, and text that cannot control it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def one_line(text: str) -> str:
    """Without control characters: no email may move the cursor of a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def open_console() -> Console:
    from rich.console import Console  # takes longer to import than a command takes that prints no table

    width = None if sys.stdout.isatty() else 10_000  # a pipe gets whole lines
    return Console(width=width, highlight=False, markup=False)


def make_table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> Table:
    """``numbers``: the columns that are aligned right. The last column wraps at the width of the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index in numbers else "left", no_wrap=index < len(heads) - 1)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table
