"""What `amdahl` shows in a terminal: every table, then sentences."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable

from questprof.amdahl.finding import SOURCES, Amdahl
from questprof.amdahl.pairs import title
from questprof.amdahl.sentences import check_sentence, is_told
from questprof.amdahl.tables import Table, tables
from questprof.terminal import print_table


def print_amdahl(console: Console, found: Amdahl) -> None:
    """Print everything; alarms and notes are the command's, on stderr."""
    for table in tables(found):
        _print(console, table)
    console.print(SOURCES, highlight=False, soft_wrap=True)
    for pair in filter(is_told, found.pairs):
        if pair.check:
            console.print(
                f"{title(pair.point)}: {check_sentence(pair.check)}", highlight=False, soft_wrap=True
            )
    for _, sentences in found.headlines:
        for sentence in sentences:
            console.print(sentence, highlight=False, soft_wrap=True)


def _print(console: Console, table: Table) -> None:
    drawn = RichTable(pad_edge=False, padding=(0, 1, 0, 0), box=None, header_style="bold")
    for number, head in enumerate(table.heads):
        drawn.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*row)
    print_table(console, drawn, f"{table.title} ({table.source})")
