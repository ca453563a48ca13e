"""Each timed stage of a profile under the roofs: intensity, rates, the roof that bounds it, alarms. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from questprof.counts import StageCount
from questprof.grid import NORMAL_DATA
from questprof.model import Point, Profile, Record
from questprof.roofline.flops import stage_flops
from questprof.roofs import FlopRate
from questprof.rows import Stat, summarise
from questprof.scan import ALARM_FACTOR, TIMED, point_key
from questprof.units import format_count

STAGES: Final = ("dense", "score", "select", "attend", "quest", "append", "append_kv")
"""In the order of a table."""
BOUND_SHARE: Final = 0.5
"""Of the measured time: what a roof alone must need to be called its bound. Below that something else takes
most of it, and a stage that did nothing else would be more than twice as fast."""


@dataclass(frozen=True)
class Placed:
    """A stage at one memory level: arithmetic intensity in operations a byte, rates in GB/s and GFLOP/s."""

    level: Literal["memory", "cache"]
    source: str
    num_bytes: int
    intensity: float
    gb_s: float
    gflop_s: float


@dataclass(frozen=True)
class Line:
    """One timed stage of one point against every roof."""

    stage: str
    where: str
    """The point in words: length, budget, and what is not usual or varies."""
    kernels: str
    point: Point
    cache_state: str
    us: Stat
    flops: int
    placed: tuple[Placed, ...]
    """Empty where `alarm` says that the time cannot be."""
    roof_us: Mapping[str, float]
    """Least time by roof (memory, cache, compute, launch); a roof that was not measured is absent."""
    alarm: str = ""

    @property
    def nearest_roof(self) -> str | None:
        """The roof that takes longest; None without any, and where the time cannot be."""
        return None if self.alarm else max(self.roof_us, key=lambda roof: self.roof_us[roof], default=None)

    @property
    def roof_share(self) -> float | None:
        """Of the nearest roof, what the stage reaches: the time that roof needs over the measured one."""
        return self.roof_us[self.nearest_roof] / self.us.median if self.nearest_roof else None

    @property
    def bound(self) -> str | None:
        """The nearest roof where it alone needs BOUND_SHARE of the time; None where nothing does."""
        return self.nearest_roof if (self.roof_share or 0.0) >= BOUND_SHARE else None

    @property
    def memory_share(self) -> float | None:
        """Of the memory roof, what the stage's cold bytes reach; None where it has none or cannot be."""
        return None if self.alarm or "memory" not in self.roof_us else self.roof_us["memory"] / self.us.median

    def roof_text(self, names: Mapping[str, str]) -> str:
        """`bound by DRAM (82%)`, or `under DRAM (27%)` where that does not explain most of the time."""
        if self.nearest_roof is None or self.roof_share is None:
            return ""
        return f"{'bound by' if self.bound else 'under'} {names[self.nearest_roof]} ({self.roof_share:.0%})"

    def at(self, level: str, source: str = "ledger") -> Placed | None:
        """Its place at a memory level, by bytes of the ledger or of counters (`ncu`)."""
        return next((p for p in self.placed if (p.level, p.source) == (level, source)), None)


@dataclass(frozen=True)
class Limits:
    """The roofs that a stage is held against."""

    memory_gb_s: float | None
    cache_gb_s: float | None
    flop_rates: Sequence[FlopRate]
    launch_us: float | None

    def gflop_s(self, dtype: str) -> float | None:
        """The highest rate measured for `dtype` or for fp32, in which the stages accumulate.

        None where none was measured for `dtype` itself: its roof may be higher than that of fp32.
        """
        medians = [
            (rate.dtype, 1e3 * stat.median)
            for rate in self.flop_rates
            if rate.dtype in (dtype, "fp32") and (stat := summarise(rate.samples_tflop_s))
        ]
        known = any(measured == dtype for measured, _ in medians)
        return max((gflop_s for _, gflop_s in medians), default=None) if known else None


def place_lines(profile: Profile, limits_of: Callable[[Profile], Limits], device: str) -> Iterable[Line]:
    """Every timed stage of every checked sweep record, in profile order, under the limits of its run."""
    counted = _counted(profile.records)
    several = len({record.point.shape for record in profile.records if record.kind == "sweep"}) > 1
    limited = [
        (record, limits) for run in profile.runs for limits in [limits_of(run)] for record in run.records
    ]
    for record, limits in limited:
        failed = [check for check in record.checks if not check.holds]
        if record.kind != "sweep" or record.status not in TIMED or failed:
            continue
        for stage in STAGES:
            stat = summarise(record.times_us.get(stage, ()))
            if stat:
                count = counted.get(_key(record.point, stage))
                where = place_text(record.point, with_shape=several)
                yield _line(record, stage, where, stat, limits, count, device)


def _line(
    record: Record,
    stage: str,
    where: str,
    us: Stat,
    limits: Limits,
    count: StageCount | None,
    device: str,
) -> Line:
    point, timing = record.point, record.timing.get(stage)
    state = timing.cache_state if timing else "warm"
    flops = stage_flops(point)[stage]
    ledger = record.bytes.get(stage, {}).get("formula")
    num_bytes: dict[tuple[Literal["memory", "cache"], str], int] = {}
    if state == "cold" and record.floor_bytes.get(stage):
        num_bytes["memory", "ledger"] = record.floor_bytes[stage]
        if count and count.read:
            num_bytes["memory", "ncu"] = count.read + count.write
    if ledger:
        num_bytes["cache", "ledger"] = ledger.read + ledger.write
    placed = tuple(
        Placed(level, source, n, flops / n, n / us.median / 1e3, flops / us.median / 1e3)
        for (level, source), n in num_bytes.items()
        if n
    )
    roof_us = _roof_us(num_bytes, flops, limits, point.shape.kv_dtype)
    alarm = _alarm(record, stage, placed, limits, device)
    kernels = f"{point.backend} {record.variant}".strip()
    return Line(stage, where, kernels, point, state, us, flops, () if alarm else placed, roof_us, alarm)


def _roof_us(
    num_bytes: Mapping[tuple[Literal["memory", "cache"], str], int], flops: int, limits: Limits, dtype: str
) -> dict[str, float]:
    """Least time by roof, us; the memory roof by the ledger's bytes."""
    found = {}
    cold, all_bytes = num_bytes.get(("memory", "ledger")), num_bytes.get(("cache", "ledger"))
    if cold and limits.memory_gb_s:
        found["memory"] = cold / limits.memory_gb_s / 1e3
    if all_bytes and limits.cache_gb_s:
        found["cache"] = all_bytes / limits.cache_gb_s / 1e3
    gflop_s = limits.gflop_s(dtype)
    if flops and gflop_s:
        found["compute"] = flops / gflop_s / 1e3
    if limits.launch_us:
        found["launch"] = limits.launch_us
    return found


def _alarm(record: Record, stage: str, placed: Iterable[Placed], limits: Limits, device: str) -> str:
    """Why the stage's time cannot be, by the first roof that it breaks; '' when it can."""
    roofs = {"memory": limits.memory_gb_s, "cache": limits.cache_gb_s}
    for place in placed:
        roof = roofs[place.level]
        if not roof or place.gb_s <= ALARM_FACTOR * roof:
            continue
        point = record.point
        budget = f", budget {format_count(point.token_budget)}" if point.token_budget else ""
        cause = "cache hits, a missing synchronize or a ceiling measured too low"
        if device == "cpu" and stage == "dense" and place.level == "memory":
            cause = "on a CPU that is a fault of the ceiling: repeat on an idle machine"
        return (
            f"{stage} ({point.backend}) at {format_count(point.seq_len)}{budget}: {place.gb_s:.4g} GB/s "
            f"({place.source}) is above {ALARM_FACTOR} x the {place.level} roof of {roof:.4g} GB/s "
            f"({cause}); it is not drawn."
        )
    return ""


def _counted(records: Iterable[Record]) -> dict[tuple[str, bytes], StageCount]:
    """What the hardware counted, by stage and point: alone for a stage, as it runs for the chain."""
    found = {}
    for record in records:
        for count in record.counts if record.kind == "bytes" and record.status == "ok" else ():
            mode = "pipelined" if count.stage == "quest" else "isolated"
            if count.source == "ncu" and count.mode == mode:
                found[_key(record.point, count.stage)] = count
    return found


def _key(point: Point, stage: str) -> tuple[str, bytes]:
    """What the bytes of a stage depend on; a dense pass knows no budget, no policy and no query."""
    neutral: dict[str, object] = {"variant": ""}
    if stage in ("dense", "append_kv"):
        neutral |= {"policy": "dense", "policy_params": {}, "token_budget": 0, "token_budgets": ()}
        neutral["data"] = "independent" if point.data in NORMAL_DATA else point.data
    return stage, point_key(point, **neutral)


def place_text(point: Point, *, with_shape: bool = False) -> str:
    """A point in words: length and budget in tokens, then what is not usual, and the shape if asked for."""
    said = f"{point.shape.name} ({point.shape.kv_dtype}) " * with_shape + format_count(point.seq_len)
    said += f" budget {format_count(point.token_budget)}" * bool(point.token_budget)
    said += f" batch {point.batch_size}" * (point.batch_size != 1)
    said += f" page {point.page_size}" * (point.page_size != 16)
    usual = {"policy": ("quest", "dense"), "summary_layout": ("paired",), "page_order": ("shuffled",)}
    usual["data"] = ("independent",)
    return " ".join(
        [said, *(value for name, fine in usual.items() if (value := getattr(point, name)) not in fine)]
    )
