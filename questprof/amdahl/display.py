"""What `amdahl` shows in a terminal: every table, then sentences; nothing wider than the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable

from questprof.amdahl.finding import SOURCES, Amdahl
from questprof.amdahl.pairs import title
from questprof.amdahl.sentences import check_sentence, is_told
from questprof.amdahl.tables import Table, tables
from questprof.terminal import print_table

NAMES_SHARE = 3
"""Of a terminal's columns one in so many names the rows of a table that does not fit."""


def print_amdahl(console: Console, found: Amdahl) -> None:
    """Print everything; alarms and notes are the command's, on stderr."""
    for table in tables(found):
        _print(console, table)
    say(console, SOURCES)
    for pair in filter(is_told, found.pairs):
        if pair.check:
            say(console, f"{title(pair.point)}: {check_sentence(pair.check)}")
    for _, sentences in found.headlines:
        for sentence in sentences:
            say(console, sentence)


def say(console: Console, text: str) -> None:
    """A sentence: wrapped between words on a terminal, one line in a file or a pipe."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _print(console: Console, table: Table) -> None:
    """At its natural width in a file or a pipe; on a narrower terminal as blocks of columns."""
    heading = f"{table.title} ({table.source})"
    natural = [_width(table, number, table.heads[number]) for number in range(len(table.heads))]
    if not console.is_terminal or sum(natural) + len(natural) <= console.width:
        print_table(console, _drawn(table, range(len(table.heads))), heading)
        return
    console.print()
    console.print(heading, style="bold", highlight=False, markup=False)
    for columns, widths in blocks(table, console.width):
        console.print(_drawn(table, columns, widths), highlight=False)


def blocks(table: Table, width: int) -> Iterator[tuple[list[int], list[int]]]:
    """Columns of the blocks that a table falls into, with their widths: each fits, and names its rows.

    Names of rows wrap in their share of `width`; heads wrap between words; a figure wraps nowhere, and text
    that is longer than a whole line does.
    """
    names = min(_width(table, 0, table.heads[0]), width // NAMES_SHARE)
    room = width - names - 1
    columns, widths = [0], [names]
    for number in range(1, len(table.heads)):
        longest_word = max(table.heads[number].split(), key=cell_len, default="")
        needed = min(_width(table, number, longest_word), room - 1)
        if len(columns) > 1 and sum(widths[1:]) + len(widths) - 1 + needed + 1 > room:
            yield columns, widths
            columns, widths = [0], [names]
        columns.append(number)
        widths.append(needed)
    yield columns, widths


def _width(table: Table, number: int, head: str) -> int:
    return max(cell_len(head), *(cell_len(row[number]) for row in table.rows))


def _drawn(table: Table, columns: Sequence[int], widths: Sequence[int] = ()) -> RichTable:
    """Some columns without a frame; unwrapped without `widths`."""
    drawn = RichTable(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    for place, number in enumerate(columns):
        drawn.add_column(
            table.heads[number],
            justify="right" if number else "left",
            no_wrap=not widths,
            overflow="fold",
            width=widths[place] if widths else None,
        )
    for row in table.rows:
        drawn.add_row(*(row[number] for number in columns))
    return drawn
