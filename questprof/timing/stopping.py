"""When a timing loop has enough samples, and whether the samples it took drifted. Pure.

All candidates of a loop stay interleaved to its end, so the loop stops as a whole: once every stage has
converged, or at a bound in samples or seconds. A stage that converged early is sampled on with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from questprof.samples import drift, relative_half_width

Reason = Literal["converged", "max samples", "max seconds", "fixed", "interrupted"]

LOOKS = 2
"""Rounds in a row in which an interval must be narrow enough: looking after every round finds chance ones."""
DRIFT_P = 1e-4
"""Chance of calling steady samples drifting, a stage: a sweep tests hundreds of stages."""
DRIFT_CHANGE = {"cuda": 0.03, "cpu": 0.25}
"""Last third over first third, less 1, from which on a drift spoils a figure of that device."""
DRIFT_US = {"cuda": 0.3, "cpu": 0.0}
"""And by how much: launches of 2 us move by 0.2 us while a GPU settles, and no longer stage does."""


@dataclass(frozen=True)
class Rule:
    """Bounds of a timing loop; `target`: half-width wanted of a median's 95 % interval, over the median."""

    target: float
    min_samples: int
    max_samples: int
    max_seconds: float

    @property
    def fixed(self) -> bool:
        """Whether the number of samples is given, whatever they say."""
        return self.min_samples == self.max_samples

    def describe(self) -> str:
        """The rule in words."""
        if self.fixed:
            return f"{self.max_samples} samples a stage"
        return (
            f"{self.min_samples} to {self.max_samples} samples a stage, until every median is known to "
            f"{100 * self.target:g} % or {self.max_seconds:g} s a block have passed"
        )


def fixed(num_samples: int) -> Rule:
    """Exactly `num_samples` of every stage."""
    return Rule(0.0, num_samples, num_samples, float("inf"))


class Stopper:
    """Decides after every round of one loop; ask `done` once a round."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._narrow = 0
        self._ended_by: Reason = "fixed"

    def done(self, series: Iterable[Sequence[float]], seconds: float, interrupted: bool = False) -> bool:
        """Whether to stop. `series` are the samples of every stage, all of one length; `seconds` so far."""
        rule, series = self._rule, list(series)
        taken = min(map(len, series), default=0)
        if taken >= rule.max_samples or not series:
            self._ended_by = "fixed" if rule.fixed else "max samples"
            return True
        if taken < (min(rule.min_samples, 3) if interrupted else rule.min_samples):
            return False
        if interrupted or seconds >= rule.max_seconds:
            self._ended_by = "interrupted" if interrupted else "max seconds"
            return True
        if rule.fixed:
            return False
        narrow = all(relative_half_width(samples) <= rule.target for samples in series)
        self._narrow = self._narrow + 1 if narrow else 0
        self._ended_by = "converged"
        return self._narrow >= LOOKS

    def reason(self, samples: Sequence[float]) -> Reason:
        """Why a stage has no more samples: its own median converged, or what ended the loop."""
        if self._ended_by in ("max samples", "max seconds") and (
            relative_half_width(samples) <= self._rule.target
        ):
            return "converged"
        return self._ended_by


def drifting(times_us: Mapping[str, Sequence[float]], device: str) -> str:
    """What is unstable in the ordered samples of a record's stages, '' when nothing is.

    A drift counts when it is beyond chance (Mann-Kendall, DRIFT_P) and large: DRIFT_CHANGE and
    DRIFT_US of the device.
    """
    found = []
    for stage, samples in times_us.items():
        trend = drift(samples) if len(samples) > 1 else None
        if not trend or trend.p > DRIFT_P:
            continue
        if abs(trend.change) >= max(DRIFT_CHANGE[device], DRIFT_US[device] / median(samples)):
            found.append(f"{stage} {100 * trend.change:+.0f} %")
    return f"its samples drift: {', '.join(found)} from the first to the last third of them" if found else ""
