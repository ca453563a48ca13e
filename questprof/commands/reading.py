"""Profiles that a command reads in place of measuring: several files of one run become one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from questprof.errors import QuestprofError

if TYPE_CHECKING:
    from questprof.model import Profile


def read_as_one(paths: list[Path], output: Path | None, why_apart: str) -> Profile:
    """The one profile that `paths` are together; QuestprofError for several, or an `output` to write.

    `why_apart` ends the sentence "a.jsonl and b.jsonl .." where their environment is one.
    """
    from questprof.store import read_profile
    from questprof.sweep.merge import merge_profiles

    if output is not None:
        raise QuestprofError(
            f"-o {output} with profiles to read",
            "nothing is measured, so there is no new profile",
            "Leave -o out; --html writes the page.",
        )
    merged = merge_profiles([read_profile(path) for path in paths])
    if len(merged) > 1:
        raise QuestprofError(
            f"{len(merged)} separate runs in {', '.join(map(str, paths))}",
            "; ".join(_why_apart(merged[0], other, why_apart) for other in merged[1:]),
            "Name profiles of one run, or one at a time; report shows several runs beside each other.",
        )
    return merged[0]


def _why_apart(one: Profile, other: Profile, same_place: str) -> str:
    """What keeps two runs from being one: where their environments differ, else `same_place`."""
    from questprof.compare.pairs import differences

    theirs, ours = one.header.environment, other.header.environment
    names = f"{one.name} and {other.name}"
    if theirs.env_id == ours.env_id:
        return f"{names} {same_place}"
    fields = [name for name in theirs.__struct_fields__ if name != "memory_bytes"]
    return f"{names} are of different environments ({differences(theirs, ours, fields)})"
