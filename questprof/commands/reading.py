"""Profiles that a command reads in place of measuring: several files of one run become one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from questprof.errors import QuestprofError

if TYPE_CHECKING:
    from questprof.model import Profile


def read_as_one(paths: list[Path], output: Path | None, why_apart: str) -> Profile:
    """The one profile that `paths` are together; QuestprofError for several, or an `output` to write.

    `why_apart` ends the sentence "they are of different environments, or ..".
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
            f"they are of different environments, or {why_apart}",
            "Name profiles of one device and one version of everything.",
        )
    return merged[0]
