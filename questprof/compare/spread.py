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
from questprof.model import Profile
from questprof.rows import STEADY_SPREAD
from questprof.samples import LEVEL, between_run_sd

STATED: Final[Mapping[Literal["cpu", "cuda"], float]] = {"cpu": 0.3, "cuda": 0.03}
"""Relative difference of two runs of one code. A GPU: the same card read 1 to 3 % faster on one machine than
on another (profiles/NOTES.md). A CPU: up to 26 % between processes where one shows 0.3 %, rounded up."""
STATED_US: Final[Mapping[Literal["cpu", "cuda"], float]] = {"cpu": 0.0, "cuda": 0.5}
"""What comes on top at any length. A GPU: launches and where a cache happens to lie; in two runs of one grid
(profiles/h200/grid.jsonl, grid-again.jsonl) stages from 10 us on agree to 2 %, appends of 3.6 us to 9 %."""
LEAST_RUNS: Final = 3
"""Baselines from which their own spread is used in place of the stated one."""


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


def spread_of(baselines: Sequence[Profile], stated: float | None = None) -> Spread:
    """From LEAST_RUNS baselines on measured, otherwise stated: `stated`, or what STATED has for the device.

    Measured: between two runs a stage's log medians differ with standard deviation sqrt(2) sd, of which
    95 % lie within Student's t at one degree of freedom less than runs (a run moves all its points together).
    """
    device = baselines[0].header.environment.device
    default, floor_us = (STATED[device], STATED_US[device]) if stated is None else (stated, 0.0)
    if len(baselines) < LEAST_RUNS:
        return Spread(default, num_runs=len(baselines), floor_us=floor_us)
    factor = math.sqrt(2) * student_t((1 + LEVEL) / 2, len(baselines) - 1)
    found = {
        stage: math.expm1(factor * sd)
        for stage, items in _medians(baselines).items()
        if (sd := between_run_sd(items)) is not None
    }
    return Spread(default, found, len(baselines), floor_us)


def _medians(profiles: Sequence[Profile]) -> dict[str, list[list[float]]]:
    """By stage: for every point its median in each run that has it, in steady samples."""
    found: dict[str, dict[str, list[float]]] = {}
    for profile in profiles:
        for record in profile.records:
            if record.status == "ok":
                for stage, samples in record.times_us.items():
                    if samples and min(samples) > 0 and 1 + apart(sorted(samples)) <= STEADY_SPREAD:
                        points = found.setdefault(stage, {})
                        points.setdefault(record.kind + record.point_id, []).append(median(samples))
    return {stage: list(points.values()) for stage, points in found.items()}


def student_t(share: float, degrees: int) -> float:
    """The quantile of Student's t at `share` > 0.5, by bisection of its distribution function.

    Abramowitz and Stegun (1964), 26.7.3 and 26.7.4: finite sums for whole degrees of freedom.
    """
    low, high = 0.0, 1e6
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_central(middle, degrees) < 2 * share - 1 else (low, middle)
    return high


def _t_central(t: float, degrees: int) -> float:
    """P(|T| <= t) for whole `degrees` of freedom."""
    theta = math.atan(t / math.sqrt(degrees))
    cosine, total = math.cos(theta), 0.0
    term = cosine if degrees % 2 else 1.0
    for k in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    if degrees % 2:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total
