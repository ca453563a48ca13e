"""The terminal: consoles and tables that nothing cuts."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console
from rich.segment import Segments
from rich.table import Table

WIDE = 160
"""Columns of a line that goes to a file or a pipe."""
UNLIMITED = 10_000
"""Columns that no table reaches: what a table is measured in."""


def plain_console(*, stderr: bool = False) -> Console:
    """A console that does not cut tables when its output goes to a file."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDE)


def plain_table(*names: str, left: Collection[str] = ()) -> Table:
    """An empty table without a frame: columns to the right, those in `left` to the left, none wrapped."""
    table = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def print_table(console: Console, table: Table, heading: str = "") -> None:
    """A table at its natural width, below its heading: a terminal may wrap a line, nothing cuts a figure."""
    if heading:
        console.print(f"\n{heading}", style="bold", highlight=False, markup=False)
    width = console.measure(table, options=console.options.update(width=UNLIMITED)).maximum
    lines = console.render(table, console.options.update(width=max(console.width, width)))
    console.print(Segments(lines), end="", soft_wrap=True)
