"""`questprof report PROFILE...`: profiles to one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from questprof.commands import options


def report(
    profiles: Annotated[list[Path], typer.Argument(help="Profiles written by questprof.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", "--html", help="The page; default: beside the profile.")
    ] = None,
    plotlyjs: Annotated[
        str, typer.Option("--plotlyjs", help="inline, cdn, or directory (one copy beside the pages).")
    ] = "inline",
    skip_corrupt: options.SKIP_CORRUPT = False,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="A folder for each figure as an SVG file of its own.")
    ] = None,
    force: options.FORCE = False,
) -> None:
    """Render profiles to one self-contained HTML file: one verdict of all, then each with its sections.

    Shards of one grid are joined, and two runs of one grid are compared, the first being the base.
    """
    from questprof.errors import QuestprofError
    from questprof.report import write_report
    from questprof.report.picture_files import check_folder, write_pictures
    from questprof.store import read_profile
    from questprof.sweep.merge import without_copies

    modes: dict[str, Literal["inline", "cdn", "directory"]] = {
        "inline": "inline",
        "cdn": "cdn",
        "directory": "directory",
    }
    if plotlyjs not in modes:
        raise QuestprofError(
            f"--plotlyjs {plotlyjs!r}", "it is unknown", f"Choose one of {', '.join(modes)}."
        )
    read = [read_profile(path, skip_corrupt=skip_corrupt) for path in profiles]
    for profile in read:
        for warning in profile.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    for copy in without_copies(read)[1]:
        print(f"warning: {copy}", file=sys.stderr)
    target = output or profiles[0].with_suffix(".html")
    if target.resolve() in {path.resolve() for path in profiles}:
        raise QuestprofError(f"{target}", "it is the profile itself", "Name another page with -o.")
    if pictures is not None:
        check_folder(pictures, force)
    write_report(read, target, modes[plotlyjs], force)
    print(target)
    if pictures is not None:
        written = write_pictures(target, pictures, force)
        for picture in written:
            print(picture)
        if not written:
            print("warning: --pictures wrote none, as the page has no figure", file=sys.stderr)
