"""Files beside a recall run: the timing profiles that it is joined with, and the table of layer budgets."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from questprof.errors import QuestprofError
from questprof.files import check_writable, output_exists
from questprof.model import Profile
from questprof.recall.answers.evaluation import evaluations
from questprof.recall.answers.layer_table import LayerTable, write_layer_table
from questprof.recall.answers.suggestion import layer_table
from questprof.scan import scan_rows
from questprof.store import read_profile


def read_timings(paths: Iterable[Path]) -> tuple[Profile, ...]:
    """Profiles with timed Quest points; QuestprofError for one without any."""
    found = tuple(map(read_profile, paths))
    for profile in found:
        if not scan_rows(profile):
            raise QuestprofError(
                f"--with {profile.name}", "it has no timed points", "Name a profile of `questprof sweep`."
            )
    return found


def check_suggest(path: Path | None, heads: tuple[int, ...], force: bool) -> None:
    """QuestprofError, before anything is evaluated, for a table that could not be made or written."""
    if path is None:
        return
    if heads:
        raise QuestprofError(
            "--suggest with --heads",
            "a layer's budget is one for all of its heads",
            "Leave --heads out.",
        )
    if path.exists() and not force:
        raise output_exists(path)
    check_writable(path)


def write_suggestion(profile: Profile, path: Path, force: bool) -> LayerTable:
    """Write one table for all traces of `profile`, at the page size that sentences are about."""
    found = evaluations(profile)
    table = layer_table(found, found[0].page_size)
    write_layer_table(table, path, force)
    if table.source and table.source.note:
        print(f"warning: {path}: {table.source.note}", file=sys.stderr)
    return table
