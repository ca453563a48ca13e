"""How far two runs of one code lie apart: stated for a device, or measured from several baselines.

Pure. A process has its own memory layout, clocks and neighbours, which all its samples share: samples within
a run cannot show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from questprof.compare.evidence import apart
from questprof.compare.pairs import judged_us
from questprof.compare.student import student_t
from questprof.model import Profile
from questprof.rows import STEADY_SPREAD
from questprof.samples import LEVEL, between_run_sd

STATED: Final[Mapping[Literal["cpu", "cuda"], float]] = {"cpu": 0.3, "cuda": 0.03}
"""Relative difference of two runs of one code. A GPU: the same card read 1 to 3 % faster on one machine than
on another (profiles/NOTES.md). A CPU: in tests/data/cpu_repeats.json, of pairs of runs that nothing speaks
against and whose samples lie within 30 % of each other, 95 % of the medians agree to 24 %; rounded up."""
STATED_US: Final[Mapping[Literal["cpu", "cuda"], float]] = {"cpu": 0.0, "cuda": 0.5}
"""What comes on top at any length. A GPU: launches and where a cache happens to lie; in two runs of a grid
(profiles/h200/grid.jsonl, grid-again.jsonl) stages from 10 us on agree to 1.3 %, one of 3.6 us to 10 %."""
LEAST_RUNS: Final = 3
"""Baselines from which their own spread is used in place of the stated one: of two, Student's t at 97.5 % is
12.7 for one stage alone, which calls nothing a difference."""


class Spread(msgspec.Struct, frozen=True):
    """Relative difference up to which two runs of one code are expected to lie apart."""

    stated: float
    by_stage: Mapping[str, float] = {}
    """Measured, by stage; empty with too few baselines."""
    num_runs: int = 1
    floor_us: float = 0.0
    """Beside the stated one."""

    def margin(self, stage: str, us: float) -> float:
        """The relative difference for `stage`, which takes `us`: e.g. 0.03 for 3 %."""
        return self.by_stage.get(stage, self.stated + self.floor_us / us)

    def describe(self, stage: str, us: float) -> str:
        """The margin in words: `3% + 0.5 us (28%)`, `6.3% as the baselines measure it`."""
        margin = format_share(self.margin(stage, us))
        if stage in self.by_stage:
            return f"{margin} as the baselines measure it"
        return f"{format_share(self.stated)} + {self.floor_us:g} us ({margin})" if self.floor_us else margin


def format_share(value: float) -> str:
    """A relative difference in two digits: 0.02 -> `2%`, 0.3 -> `30%`."""
    return f"{100 * value:.2g}%" if value < 1 else f"{100 * value:.0f}%"


def spread_of(baselines: Sequence[Profile], stated: float | None = None) -> Spread:
    """From LEAST_RUNS baselines on measured, otherwise stated: `stated`, or what STATED has for the device.

    Measured: between two runs a stage's log medians differ with standard deviation sqrt(2) sd, of which
    95 % lie within Student's t at one degree of freedom less than runs (a run moves all its points together).
    No stage may leave its margin in 95 % of comparisons: of m stages each gets 5 % / m (Bonferroni).
    """
    device = baselines[0].header.environment.device
    default, floor_us = (STATED[device], STATED_US[device]) if stated is None else (stated, 0.0)
    if len(baselines) < LEAST_RUNS:
        return Spread(default, num_runs=len(baselines), floor_us=floor_us)
    sds = {stage: between_run_sd(items) for stage, items in _medians(baselines).items()}
    measured = {stage: sd for stage, sd in sds.items() if sd is not None}
    share = 1 - (1 - LEVEL) / 2 / max(1, len(measured))
    factor = math.sqrt(2) * student_t(share, len(baselines) - 1)
    found = {stage: math.expm1(factor * sd) for stage, sd in measured.items()}
    return Spread(default, found, len(baselines), floor_us)


def _medians(profiles: Sequence[Profile]) -> dict[str, list[list[float]]]:
    """By stage: for every point its median in each run that has it, in steady samples."""
    found: dict[str, dict[str, list[float]]] = {}
    for profile in profiles:
        for record in profile.records:
            if record.status == "ok":
                for stage, samples in judged_us(record).items():
                    if samples and min(samples) > 0 and 1 + apart(samples) <= STEADY_SPREAD:
                        points = found.setdefault(stage, {})
                        points.setdefault(record.kind + record.point_id, []).append(median(samples))
    return {stage: list(points.values()) for stage, points in found.items()}
