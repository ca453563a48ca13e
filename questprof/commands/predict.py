"""`questprof predict PROFILE`: from which length Quest pays, measured and modelled, and for what traffic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import options
from questprof.streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from questprof.crossover.outlook import Outlook
    from questprof.crossover.tables import Table
    from questprof.crossover.traffic import Traffic
    from questprof.model import Profile


def predict(
    profile: Annotated[Path, typer.Argument(help="A profile written by questprof sweep.")],
    traffic: Annotated[
        list[str] | None,
        typer.Option(
            "--traffic",
            help="Lengths to weigh by: a CSV (seq_len[,weight] or input_tokens,output_tokens), the same as "
            "JSON lines, a stored example, or `stored` for all of those. May be repeated.",
        ),
    ] = None,
    skip_corrupt: options.SKIP_CORRUPT = False,
    json: options.JSON = False,
) -> None:
    """From which length Quest is faster, measured and modelled; what share of traffic gains, and how much.

    Exit status 4 where no point has a valid pair of figures.
    """
    import questprof
    from questprof.crossover.outlook import outlooks
    from questprof.crossover.traffic import read_traffic, stored
    from questprof.errors import Exit, QuestprofError
    from questprof.scan import scan_rows

    read = questprof.load(profile, skip_corrupt=skip_corrupt)
    names = [name for given in traffic or () for name in (stored() if given == "stored" else [given])]
    weighed = [read_traffic(name) for name in dict.fromkeys(names)]
    found = outlooks(scan_rows(read), weighed)
    for warning in read.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if not found:
        kinds = ", ".join(sorted({record.kind for record in read.records})) or "none"
        raise QuestprofError(
            f"{profile} has no Quest point of a sweep",
            f"there is nothing to cross (kinds of its records: {kinds})",
            "Name a profile of questprof sweep.",
        )
    if json:
        _print_json(read, found, weighed)
    else:
        _print(read, found, weighed)
    if all(answer.measured.kind == "no valid point" for outlook in found for answer in outlook.answers):
        raise typer.Exit(Exit.INCONCLUSIVE)


def _print(profile: Profile, found: Sequence[Outlook], weighed: Sequence[Traffic]) -> None:
    from questprof.crossover.tables import NOTES, overview, tables
    from questprof.crossover.traffic import stored
    from questprof.terminal import plain_console

    environment = profile.header.environment
    print(f"{environment.device_name}{' (CPU figures)' if environment.device == 'cpu' else ''}")
    console = plain_console()
    if len(found) > 1:
        _print_table(console, overview(found))
    for outlook in found:
        console.print(f"\n{outlook.setting}", style="bold", highlight=False, markup=False)
        for table in tables(outlook):
            _print_table(console, table)
    print()
    for note in NOTES:
        console.print(note, style="dim", highlight=False, markup=False)
    for one in weighed:
        print(f"{one.name}: {one.about}. Source: {one.source}.")
    if not weighed:
        print(f"Traffic: --traffic FILE, or a stored example: {', '.join(stored())}.")


def _print_table(console: Console, table: Table) -> None:
    """A table at its natural width: a terminal may wrap a line, nothing cuts a figure."""
    from rich.table import Table as RichTable
    from rich.text import Text

    from questprof.terminal import print_table

    drawn = RichTable(pad_edge=False, padding=(0, 2, 0, 0), box=None, header_style="bold")
    for i, head in enumerate(table.heads):
        drawn.add_column(Text(head), justify="left" if i == 0 else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    print_table(console, drawn, table.title)
    if table.note:
        console.print(table.note, style="dim", highlight=False, markup=False)


def _print_json(profile: Profile, found: Sequence[Outlook], weighed: Sequence[Traffic]) -> None:
    from questprof.crossover.outlook import plain

    document = {
        "profile": profile.name,
        "environment": profile.header.environment,
        "sources": {"measured": "measured: clock", "modelled": "modelled: formula"},
        "settings": [plain(outlook) for outlook in found],
        "traffic": [{"name": one.name, "about": one.about, "source": one.source} for one in weighed],
    }
    print_json(document)
