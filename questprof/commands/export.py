"""`questprof export PROFILE`: a profile as CSV, or one point of it as a Chrome trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from questprof.commands import options


def export(
    profile: Annotated[Path, typer.Argument(help="A profile written by questprof.")],
    format_: Annotated[
        Literal["csv", "trace"],
        typer.Option("--format", help="csv: a row per record and stage; trace: one point, for Perfetto."),
    ] = "csv",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file; default: stdout.")] = None,
    point: Annotated[
        str | None, typer.Option("--point", help="For trace: a point_id or its start, or LENGTH:BUDGET.")
    ] = None,
    skip_corrupt: options.SKIP_CORRUPT = False,
    force: options.FORCE = False,
) -> None:
    """Write a profile for other programs: CSV, or a Chrome trace of one point's stages."""
    import questprof
    from questprof.errors import QuestprofError
    from questprof.exports import find_row, to_csv, to_trace, write_text

    if point is not None and format_ == "csv":
        raise QuestprofError(
            f"--point {point} with --format csv",
            "the CSV holds every point, and names each in its column point_id",
            "Add --format trace, which shows one point, or leave --point out.",
        )
    read = questprof.load(profile, skip_corrupt=skip_corrupt)
    for warning in read.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    text = to_csv(read) if format_ == "csv" else to_trace(find_row(read, point)) + "\n"
    if output is None:
        print(text, end="")
        return
    if output.resolve() == profile.resolve():
        raise QuestprofError(f"{output}", "it is the profile itself", "Name another file with -o.")
    write_text(output, text, force=force)
    print(output)
