"""What the length scan says: a Row per Quest record with its dense baselines, and series of rows.

`scan.py` builds them; the terminal table, the crossover and the page read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from statistics import median
from typing import Literal

from questprof.model import Check, Point, SingleSteps, StageTiming, Status
from questprof.samples import quantile, tail
from questprof.units import count

FEWEST_SAMPLES = 3
"""Fewer say nothing of how far apart they lie."""
STEADY_SPREAD = 3.0
"""90th over 10th percentile up to which samples are evidence: beyond it something else ran on the machine."""


@dataclass(frozen=True)
class Stat:
    """Raw samples in brief, in the samples' own unit (us for times, GB/s for ceilings).

    `p95` and `p99` are of single steps: of those timed one by one where there are some, whose median is
    `p50`, otherwise of the samples where each is a single step. They exist where there are enough for the
    rank to lie among them (20 and 100); `no_tail` says why one of them does not. The samples are at hand for
    resampling and no field, so that no document of rows repeats the profile.
    """

    median: float
    p10: float
    p90: float
    num_samples: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    no_tail: str = ""
    raw: InitVar[tuple[float, ...]] = ()
    loop: InitVar[str] = ""

    def __post_init__(self, raw: tuple[float, ...], loop: str) -> None:
        """Keep the samples beside the fields, so that they are neither compared nor written."""
        vars(self).update(_samples=raw, _loop_id=loop)

    @property
    def samples(self) -> tuple[float, ...]:
        """The raw samples in the order in which they were taken."""
        found: tuple[float, ...] = vars(self)["_samples"]
        return found

    @property
    def loop_id(self) -> str:
        """The timing loop of the samples: those of one loop with one index were taken side by side."""
        return str(vars(self)["_loop_id"])

    @property
    def steady(self) -> bool:
        """Whether there are enough samples, close enough together, for their median to mean something."""
        return not self.doubt

    @property
    def doubt(self) -> str:
        """Why the median means nothing, as in "samples too few"; '' where it does."""
        if self.num_samples < FEWEST_SAMPLES:
            return "too few"
        return "" if self.p90 <= STEADY_SPREAD * self.p10 else "too far apart"


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
    cache_state: str = ""
    """How its samples are labelled: cold or warm."""


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
    cache_states: Mapping[str, str]
    """Cold or warm, of `dense` (the fastest) and `quest`, as their samples are labelled."""

    @property
    def trivial(self) -> bool:
        """Whether every budget covers its request, so that Quest reads all pages and the summary too."""
        return all(b >= n for b, n in zip(self.point.budgets, self.point.lengths, strict=True))

    @property
    def overhead_us(self) -> float | None:
        """Quest - dense where the budget covers the length, so that Quest saves nothing: its cost in us.

        None elsewhere, and where the two figures are no evidence.
        """
        if not (self.trivial and self.usable and self.quest_us and self.dense_us):
            return None
        return self.quest_us - self.dense_us

    @property
    def warm(self) -> tuple[str, ...]:
        """Which of `dense` and `quest` are times of a cache, where those of memory were wanted."""
        return tuple(stage for stage, state in self.cache_states.items() if state != "cold")

    @property
    def usable(self) -> bool:
        """Whether `speed_up` is evidence: both sides checked, stable and physically possible."""
        stable = self.status == "ok" and self.fastest is not None and self.fastest.status == "ok"
        return stable and self.speed_up is not None and not self.unsteady

    @property
    def unsteady(self) -> str:
        """Whose samples allow no verdict and why, as in "Quest samples too far apart"; '' for neither's."""
        sides = {"dense": self.fastest.stat if self.fastest else None, "Quest": self.stats.get("quest")}
        doubts = (f"{side} samples {stat.doubt}" for side, stat in sides.items() if stat and stat.doubt)
        return next(doubts, "")

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
    def check(self) -> Literal["ok", "approximate", "wrong", "-"]:
        """Whether every check against the reference held; `-` when there was none.

        `approximate`: they held, and what a fused decode attended to is known by its error alone.
        """
        if not self.checks:
            return "-"
        if not all(check.holds for check in self.checks):
            return "wrong"
        return "approximate" if any(check.approximate for check in self.checks) else "ok"

    @property
    def check_ratio(self) -> float | None:
        """Worst error over its tolerance; inf for a NaN. An approximation's error has no tolerance."""
        judged = (check for check in self.checks if not (check.approximate and check.holds))
        return max(map(over_tolerance, judged), default=None)

    @property
    def check_detail(self) -> str:
        """The worst check in words."""
        return describe_check(max(self.checks, key=over_tolerance)) if self.checks else ""


ALL = 1 << 62
"""Token budget of the series in which every budget is its length."""


@dataclass(frozen=True)
class Series:
    """Rows that differ in seq_len alone, shortest first; with budget ALL in their budget too."""

    shape: str
    batch_size: int
    page_size: int
    policy: str
    token_budget: int
    data: str
    summary_layout: str
    rows: tuple[Row, ...]

    @property
    def budget_text(self) -> str:
        """The token budget as people read it: `2048`, or `all` where it is the length itself."""
        return "all" if self.token_budget == ALL else str(self.token_budget)


def summarise(
    samples: Sequence[float], timing: StageTiming | None = None, single: SingleSteps | None = None
) -> Stat | None:
    """Median and percentiles (linear between ranks) of `samples`; None when there are none.

    One sample that is zero, negative or not finite makes it None: no clock reads that. The tail is that of
    `single`; without it of the samples, where `timing` says that each is a single step.
    """
    if not _clocked(samples):
        return None
    apart = single.samples_us if single and _clocked(single.samples_us) else ()
    hidden = "" if apart else _hides_steps(timing)
    steps = () if hidden else apart or samples
    p95, p99 = (tail(steps, share) if steps else None for share in (0.95, 0.99))
    few = f"{count(len(steps), 'sample')}: p95 needs 20 and p99 100" if p95 is None or p99 is None else ""
    return Stat(
        median(samples),
        quantile(samples, 0.1),
        quantile(samples, 0.9),
        len(samples),
        median(apart) if apart else None,
        p95,
        p99,
        hidden or few,
        raw=tuple(samples),
        loop=timing.loop_id if timing else "",
    )


def _clocked(samples: Sequence[float]) -> bool:
    return bool(samples) and all(math.isfinite(s) and s > 0 for s in samples)


def _hides_steps(timing: StageTiming | None) -> str:
    """Why no tail can be told whatever the number of samples: a mean of many steps hides the slow ones."""
    if timing is None:
        return "how many steps a sample holds is not recorded"
    return "a sample is the mean of many steps" if timing.launches_per_sample != 1 else ""


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
    if check.approximate:
        return f"{check.stage} is approximate: {check.max_rel_err:.3g} off dense attention in the worst row"
    ratio = over_tolerance(check)
    return f"{check.stage} {check.when} timing: error {ratio:.3g} x its tolerance of {check.tolerance:.3g}"


def _spread(stat: Stat | None) -> tuple[float, float] | None:
    return (stat.p10, stat.p90) if stat else None
