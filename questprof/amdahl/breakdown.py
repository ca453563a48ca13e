"""One measured decode step as its parts: microseconds, shares, and whether they add up to the step. Pure.

The step's time is the unprofiled one. Its parts are timed apart (a trace, graphs that lack a part, a clock
around each), so that they need not add up: what is left is kept as a line of its own, and is an alarm
beyond TOLERANCE. In a trace a kernel counts from the end of all before it: what overlaps counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from questprof.decode.records import (
    ATTENTION_PARTS,
    PARTS,
    PROJECTION_PARTS,
    SMALL_PARTS,
    DecodeResult,
    PartName,
)
from questprof.model import Clocks, Point, Record
from questprof.rows import Stat, summarise
from questprof.samples import median_interval

TOLERANCE: Final = 0.03
"""Of the step: as far as the sum of its parts may lie from it."""
UNEXPLAINED: Final = "not in the parts"
"""What the unprofiled step takes beyond its parts (below 0: less than they)."""
GAPS: Final[PartName] = "gaps"
QUEST_PARTS: Final = ("score", "select", "attend")


@dataclass(frozen=True)
class Part:
    """One part of a step: all its launches together, in a typical run, and its share of the step."""

    part: str
    us: float
    share: float
    launches: int = 0
    method: str = ""
    overlapped: int | None = None
    """Launches that began before the kernel before them had ended; None where nobody looked."""


@dataclass(frozen=True)
class Breakdown:
    """A decode step of one point. `parts` as recorded, in the order in which a step runs them."""

    point: Point
    step: Stat
    """The unprofiled step, us."""
    eager: Stat | None
    """The same step launched part by part from the host, us; None where it was not timed."""
    parts: tuple[Part, ...]
    overlap_us: float | None
    """Time in which a kernel ran before those before it had ended; no part holds it twice."""
    weight_bytes: int = 0
    clocks: Clocks | None = None
    linears: tuple[str, ...] = ()
    """Which implementation multiplies by each matrix, and the bytes a second it reads alone."""
    note: str = ""
    cold: bool = False
    """Whether a step touches more than any cache holds, so that its weights come from memory."""
    warm: bool = False
    """Whether its samples are labelled as of a cache: neither this nor `cold` where they have no label."""
    parts_half_width_us: float = 0.0
    """Half the 95 % interval of the sum of the parts, from their own samples."""
    ceiling_gb_s: float | None = None
    """The largest streaming read of the run that timed it, 1e9 bytes a second."""

    @property
    def us(self) -> float:
        """Median of the unprofiled step."""
        return self.step.median

    @property
    def sum_us(self) -> float:
        """All parts, gaps among them."""
        return sum(part.us for part in self.parts)

    @property
    def unexplained_us(self) -> float:
        """The unprofiled step less the sum of its parts."""
        return self.us - self.sum_us

    @property
    def alarm(self) -> str:
        """Why the parts do not explain the step; '' where they add up to it within TOLERANCE."""
        off = self.unexplained_us / self.us
        if not self.parts or abs(off) <= TOLERANCE:
            return ""
        return (
            f"the parts add up to {self.sum_us:.0f} us and the unprofiled step takes {self.us:.0f} us: "
            f"{abs(off):.1%} {'too little' if off > 0 else 'too much'}, more than {TOLERANCE:.0%}"
        )

    @property
    def launch_overhead_us(self) -> float | None:
        """What launching part by part from the host costs beyond the step as it is used."""
        return self.eager.median - self.us if self.eager else None

    @property
    def projection_gb_s(self) -> float | None:
        """Bytes of the weights that a step reads over the time of the parts that stream them."""
        us = self.sum_of(PROJECTION_PARTS)
        return self.weight_bytes / us / 1e3 if us and self.weight_bytes else None

    def sum_of(self, names: tuple[str, ...]) -> float:
        """Microseconds of several parts together; a part that the step lacks takes none."""
        return sum(part.us for part in self.parts if part.part in names)

    def of(self, name: str) -> float:
        """Microseconds of one part, 0 where the step lacks it."""
        return self.sum_of((name,))

    @property
    def attention_share(self) -> float:
        """f: score, select, attend and dense over the step."""
        return self.sum_of(ATTENTION_PARTS) / self.us

    @property
    def small_us(self) -> float:
        """Parts that stream neither weights nor the cache, together."""
        return self.sum_of(SMALL_PARTS)

    def lines(self) -> Iterator[tuple[str, float, float]]:
        """(name, us, share of the step) of every part, and of what no part explains.

        The microseconds add up to the step's and the shares to 1.
        """
        for part in self.parts:
            yield part.part, part.us, part.share
        yield UNEXPLAINED, self.unexplained_us, self.unexplained_us / self.us


def breakdown(record: Record) -> Breakdown | None:
    """The step of a record of kind `amdahl`; None for another kind, or without times."""
    step = summarise(record.times_us.get("step", ()), record.timing.get("step"))
    if record.kind != "amdahl" or record.point.decode is None or step is None:
        return None
    result = record.decode or DecodeResult()
    return Breakdown(
        point=record.point,
        step=step,
        eager=summarise(record.times_us.get("eager", ()), record.timing.get("eager")),
        parts=tuple(_parts(result, step.median)),
        overlap_us=result.overlap_us,
        weight_bytes=result.weight_bytes,
        clocks=record.clocks,
        linears=tuple(
            f"{one.matrix}: {one.variant}" + (f", {one.gb_s:.4g} GB/s" if one.gb_s else "")
            for one in result.linears
            if one.chosen
        ),
        note=result.note,
        cold="step" in record.timing and record.timing["step"].cache_state == "cold",
        warm="step" in record.timing and record.timing["step"].cache_state != "cold",
        parts_half_width_us=_half_width_us(
            [one.samples_us for one in result.parts if one.samples_us], result.traced_us
        ),
    )


def _half_width_us(parts_us: Sequence[Sequence[float]], runs_us: Sequence[float]) -> float:
    """Half the 95 % interval of the sum of all parts: of whole runs where the parts are of the same ones.

    `runs_us` are the lengths of traced runs, gaps included. Parts of other runs add up as independent errors.
    """
    if len({len(samples) for samples in parts_us}) == 1:
        sums = [sum(run) for run in zip(*parts_us, strict=True)]
        return median_interval(runs_us if len(runs_us) == len(sums) else sums).half_width
    return math.hypot(*(median_interval(samples).half_width for samples in parts_us))


def _parts(result: DecodeResult, step_us: float) -> Iterator[Part]:
    """The parts in the order of PARTS, gaps among them where the traced steps' lengths tell them."""
    looked = result.overlap_us is not None
    recorded = {one.part: one for one in result.parts if one.samples_us}
    times = typical({name: one.samples_us for name, one in recorded.items()}, result.traced_us)
    for name in PARTS:
        if name not in times:
            continue
        us, one = times[name], recorded.get(name)
        method = one.method if one else next(iter(recorded.values())).method
        seen = result.overlapped.get(name, 0) if looked and one else None
        yield Part(name, us, us / step_us, one.launches if one else 0, method, seen)


def typical(
    samples_us: Mapping[PartName, Sequence[float]], runs_us: Sequence[float] = ()
) -> dict[PartName, float]:
    """Microseconds of each part in a typical run, so that they add up to one.

    Where the n-th samples of all parts are of one run, runs are ranked by their sums, and each part is its
    mean over the middle half of them: medians of parts do not add up to the median of their sums, as noise
    hits a part at a time. `runs_us` are the lengths of those runs, of which gaps are what no part took.
    Other samples (graphs that lack a part) give medians.
    """
    counts = {len(samples) for samples in samples_us.values()}
    if len(counts) != 1:
        return {name: median(samples) for name, samples in samples_us.items()}
    runs = [dict(zip(samples_us, run, strict=True)) for run in zip(*samples_us.values(), strict=True)]
    if len(runs_us) == len(runs) and GAPS not in samples_us:
        runs = [run | {GAPS: max(0.0, us - sum(run.values()))} for run, us in zip(runs, runs_us, strict=True)]
    ranked = sorted(runs, key=lambda run: sum(run.values()))
    out = len(ranked) // 4
    middle = ranked[out : len(ranked) - out]
    return {name: sum(run[name] for run in middle) / len(middle) for name in middle[0]}


def quest_layers(point: Point) -> int:
    """Layers of a Quest step whose attention is Quest's: not the dense first ones, nor those of budget 0."""
    setup, layers = point.decode, point.shape.num_layers
    if setup is None or point.policy == "dense":
        return 0
    budgets = setup.layer_budgets or (1,) * layers
    return sum(budget > 0 for budget in budgets[setup.dense_layers : layers])
