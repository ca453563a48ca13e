"""The terminal: consoles and tables that nothing cuts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def print_prose(console: Console, text: str, style: str = "") -> None:
    """A sentence: wrapped between words on a terminal, one line where it goes to a file or a pipe."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def folded(console: Console, table: Table, keys: int) -> list[Table]:
    """`table` cut by columns into tables that fit the terminal, each with the first `keys` columns.

    Whole where it goes to a file or a pipe.
    """
    parts: list[list[int]] = [[]]
    for place in range(keys, len(table.columns)):
        wider = _columns_of(table, [*range(keys), *parts[-1], place])
        if parts[-1] and console.is_terminal and _natural_width(console, wider) > console.width:
            parts.append([])
        parts[-1].append(place)
    return [_columns_of(table, [*range(keys), *part]) for part in parts]


def _columns_of(table: Table, places: Sequence[int]) -> Table:
    """A table of the columns at `places`, looking like `table`."""
    found = Table(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    columns = [table.columns[place] for place in places]
    for column in columns:
        found.add_column(column.header, justify=column.justify, no_wrap=True)
    for cells in zip(*(column.cells for column in columns), strict=True):
        found.add_row(*cells)
    return found


def _natural_width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(width=UNLIMITED)).maximum


def print_table(console: Console, table: Table, heading: str = "") -> None:
    """A table at its natural width, below its heading: a terminal may wrap a line, nothing cuts a figure."""
    if heading:
        console.print(f"\n{heading}", style="bold", highlight=False, markup=False)
    width = _natural_width(console, table)
    lines = console.render(table, console.options.update(width=max(console.width, width)))
    console.print(Segments(lines), end="", soft_wrap=True)
