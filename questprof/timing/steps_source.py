"""How single steps were timed and how finely, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from questprof.model import Record, SingleSteps

EVERY_SAMPLE: Final = "Single steps: measured, clock; on a CPU every sample is one."
TOLD_US: Final = 0.5
"""Resolution that the CUDA Runtime API tells of cudaEventElapsedTime."""


def steps_source(records: Sequence[Record]) -> str:
    """What a step's time holds, and what its clock can tell: as documented, and as seen in the samples."""
    steps = [one for record in records for one in record.single_steps.values()]
    if not steps:
        return EVERY_SAMPLE
    text = (
        "Single steps: measured, clock, each one launch of a graph between two CUDA events, launch included "
        f"(resolution {TOLD_US:g} us as CUDA tells{_seen(steps)}){_empty(steps)}; their p50 is above the "
        "median of launches in a row."
    )
    warm = sum(one.cache_state != "cold" for one in steps)
    return text + (f" {warm} of {len(steps)} are warm: too few caches fit." if warm else "")


def _seen(steps: Sequence[SingleSteps]) -> str:
    least = min((one.resolution_us for one in steps if one.resolution_us), default=None)
    return f", {least:.2g} us apart at the least" if least else ""


def _empty(steps: Sequence[SingleSteps]) -> str:
    empty = [one.empty_us for one in steps if one.empty_us]
    return f"; an empty kernel alone takes {median(empty):.3g} us so" if empty else ""
