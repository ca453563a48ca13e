"""What the length scan says: a Row per Quest record with its dense baselines, and series of rows.

`scan.py` builds them; the terminal table, the crossover and the page read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from questprof.model import Check, Point, Status

STEADY_SPREAD = 3.0
"""90th over 10th percentile up to which samples are evidence: beyond it something else ran on the machine."""


@dataclass(frozen=True)
class Stat:
    """Raw samples in brief, in the samples' own unit (us for times, GB/s for ceilings)."""

    median: float
    p10: float
    p90: float
    num_samples: int

    @property
    def steady(self) -> bool:
        """Whether the samples lie close enough together for their median to mean something."""
        return self.p90 <= STEADY_SPREAD * self.p10


@dataclass(frozen=True)
class Baseline:
    """One dense record at the point of a row; `name` is its backend, `stat` its times in us if it has any.

    `variant` is the implementation that ran. `x_read` is its time over that of a streaming read of the same
    bytes, at the rate measured in its own loop.
    """

    name: str
    status: Status
    reason: str
    stat: Stat | None
    alarm: str = ""
    variant: str = ""
    x_read: float | None = None


@dataclass(frozen=True)
class Row:
    """One Quest record beside its dense baselines. Lengths and budgets in tokens; None is missing."""

    point: Point
    shape: str
    batch_size: int
    page_size: int
    policy: str
    data: str
    seq_len: int
    token_budget: int
    status: Status
    """The record's own, except that a failed check makes it `wrong`, which shows no times."""
    reason: str
    checks: tuple[Check, ...]
    baselines: tuple[Baseline, ...]
    fastest: Baseline | None
    dense_us: float | None
    """Median of the fastest dense baseline."""
    score_us: float | None
    select_us: float | None
    attend_us: float | None
    append_us: float | None
    append_kv_us: float | None
    quest_us: float | None
    dense_x_floor: float | None
    dense_x_read: float | None
    """dense_us over the time of a streaming read of the same bytes, at the rate measured in the same loop."""
    quest_x_floor: float | None
    speed_up: float | None
    """dense_us / quest_us."""
    bytes_ratio: float | None
    """rho: Quest bytes over dense bytes, equation (12), as predicted before the run."""
    most_speed_up: float | None
    """1 / rho: the speed-up of a Quest that reads as fast as dense does."""
    union_ratio: float | None
    pool_bytes: int
    """Bytes of the pool that scattered pages lay in; 0 with the other page orders."""
    stats: Mapping[str, Stat]
    """Every timed stage of the Quest record, us, and `append_kv` of the dense record of the same kernels."""
    ceiling_gb_s: float | None
    floor_bytes: Mapping[str, int]
    floor_us: Mapping[str, float]
    """floor_bytes / ceiling_gb_s per stage; empty without a ceiling."""
    alarms: tuple[str, ...]
    impossible: tuple[str, ...]
    """Quest stages faster than memory; each has its text in alarms."""
    missing: Mapping[str, str]
    """Field name -> why it is None."""

    @property
    def trivial(self) -> bool:
        """Whether every budget covers its request, so that Quest reads all pages and the summary too."""
        return all(b >= n for b, n in zip(self.point.budgets, self.point.lengths, strict=True))

    @property
    def usable(self) -> bool:
        """Whether `speed_up` is evidence: both sides checked, stable and physically possible."""
        stable = self.status == "ok" and self.fastest is not None and self.fastest.status == "ok"
        return stable and self.speed_up is not None and not self.unsteady

    @property
    def unsteady(self) -> str:
        """Which side's samples spread too widely for a verdict, `dense` or `Quest`; '' when neither does."""
        sides = {"dense": self.fastest.stat if self.fastest else None, "Quest": self.stats.get("quest")}
        return next((side for side, stat in sides.items() if stat and not stat.steady), "")

    @property
    def dense_backend(self) -> str | None:
        """Name of the fastest dense baseline."""
        return self.fastest.name if self.fastest else None

    @property
    def dense_spread_us(self) -> tuple[float, float] | None:
        """10th and 90th percentile of the fastest dense baseline's samples."""
        return _spread(self.fastest.stat if self.fastest else None)

    @property
    def quest_spread_us(self) -> tuple[float, float] | None:
        """10th and 90th percentile of Quest's samples."""
        return _spread(self.stats.get("quest"))

    @property
    def check(self) -> Literal["ok", "wrong", "-"]:
        """Whether every check against the reference held; `-` when there was none."""
        return "-" if not self.checks else "ok" if all(check.holds for check in self.checks) else "wrong"

    @property
    def check_ratio(self) -> float | None:
        """Worst error over its tolerance; inf for a NaN."""
        return max(map(over_tolerance, self.checks), default=None)

    @property
    def check_detail(self) -> str:
        """The worst check in words."""
        return describe_check(max(self.checks, key=over_tolerance)) if self.checks else ""


@dataclass(frozen=True)
class Series:
    """Rows that differ in seq_len alone, shortest first."""

    shape: str
    batch_size: int
    page_size: int
    policy: str
    token_budget: int
    data: str
    summary_layout: str
    rows: tuple[Row, ...]


def summarise(samples: Sequence[float]) -> Stat | None:
    """Median, 10th and 90th percentile (linear between ranks) of `samples`; None when there are none.

    One sample that is zero, negative or not finite makes it None: no clock reads that.
    """
    if not samples or not all(math.isfinite(s) and s > 0 for s in samples):
        return None
    ranked = sorted(samples)
    return Stat(median(ranked), _percentile(ranked, 0.1), _percentile(ranked, 0.9), len(ranked))


def _percentile(ranked: Sequence[float], share: float) -> float:
    at = share * (len(ranked) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (at - low) * (ranked[high] - ranked[low])


def over_tolerance(check: Check) -> float:
    """The check's error over its tolerance; inf for a NaN, and for any error where none is allowed."""
    error = math.inf if check.max_rel_err is None else check.max_rel_err
    if check.tolerance > 0:
        return error / check.tolerance
    return 0.0 if check.holds else math.inf


def describe_check(check: Check) -> str:
    """One check in words: stage, before or after timing, error over tolerance."""
    if check.max_rel_err is None:
        return f"{check.stage} {check.when} timing: NaN or infinity where the reference has a number"
    ratio = over_tolerance(check)
    return f"{check.stage} {check.when} timing: error {ratio:.3g} x its tolerance of {check.tolerance:.3g}"


def _spread(stat: Stat | None) -> tuple[float, float] | None:
    return (stat.p10, stat.p90) if stat else None
