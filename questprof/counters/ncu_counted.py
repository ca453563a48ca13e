"""From the rows of profiler runs to what is counted of a point. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from questprof.counters import Counted
from questprof.counters.ncu_csv import Row
from questprof.counters.ncu_plan import CALIBRATION, CALIBRATION_BYTES, NOT_COUNTED, Measured, Mode, Plan
from questprof.counters.statuses import CountStatus
from questprof.counts import Calibration, StageCount
from questprof.model import Point

READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"


@dataclass
class Run:
    """What one run of the profiler gave: the rows of each range, or why there are none."""

    mode: Mode
    plan: Plan = field(default_factory=Plan)
    rows: list[tuple[Row, ...]] = field(default_factory=list)
    failure: str = ""
    timed_out: bool = False


def counted(point: Point, runs: Sequence[Run]) -> Counted:
    """One point's counts from its runs, and what they could not do."""
    counts: list[StageCount] = []
    notes: list[str] = []
    wrong: list[str] = []
    statuses: list[CountStatus] = []
    told = Measured(point.point_id)
    for run in runs:
        mine = next((m for m in run.plan.points if m.point_id == point.point_id), None)
        told = mine if mine and told.union_ratio is None else told
        found, without = _stage_counts(run, mine)
        counts += found
        label = "" if run.mode == "isolated" else "pipelined: "
        notes += [label + note for note in without]
        if mine and mine.status == "wrong":
            wrong.append(mine.reason)
        elif mine and mine.reason:
            notes.append(label + mine.reason)
        statuses += [mine.status] if mine else []
        if run.failure and (not found or run.mode == "pipelined"):
            notes.append(label + run.failure)
    return Counted(
        point.point_id,
        "ncu",
        variant=told.variant,
        counts=tuple(counts),
        union_ratio=told.union_ratio,
        sign_share=told.sign_share,
        calibration=tuple(_calibration(runs)),
        status=_status(statuses, bool(counts)),
        reason="; ".join(dict.fromkeys(wrong + notes)),
    )


def _status(statuses: Sequence[CountStatus], has_counts: bool) -> CountStatus:
    """`wrong` where a check failed; what a run could not do is no more than that where another counted."""
    if "wrong" in statuses:
        return "wrong"
    if has_counts:
        return "ok"
    return next((status for status in statuses if status != "ok"), "unavailable")


def _stage_counts(run: Run, measured: Measured | None) -> tuple[list[StageCount], list[str]]:
    """The counts of a point's ranges, and the stages that have none although they ran."""
    counts, without = [], []
    for number in measured.ranges if measured else ():
        if number >= len(run.rows):
            continue
        rows = run.rows[number]
        if rows and all(READ in row.metrics and WRITE in row.metrics for row in rows):
            counts.append(_stage_count(run, number))
        else:
            why = "its rows lack DRAM counters" if rows else "it launches no kernel"
            without.append(f"{run.plan.ranges[number].stage} is not counted, {why}")
    return counts, without


def _stage_count(run: Run, number: int) -> StageCount:
    rows, planned = run.rows[number], run.plan.ranges[number]
    common = set.intersection(*(set(row.metrics) for row in rows))
    sums = {name: sum(row.metrics[name] for row in rows) for name in sorted(common)}
    kernels = tuple(row.kernel for row in rows)
    if run.mode == "pipelined":
        kernels = planned.kernels or kernels
    elif NOT_COUNTED in (planned.kernels or ()):
        kernels += (NOT_COUNTED,)
    return StageCount(
        planned.stage,
        "ncu",
        read=round(sums.pop(READ)),
        write=round(sums.pop(WRITE)),
        mode=run.mode,
        kernels=kernels,
        metrics=sums,
    )


def _calibration(runs: Sequence[Run]) -> Iterator[Calibration]:
    """The known and the counted bytes of each run's streaming read."""
    for run in runs:
        for planned, rows in zip(run.plan.ranges, run.rows, strict=False):
            if planned.stage == CALIBRATION and all(READ in row.metrics for row in rows):
                counted = sum(row.metrics[READ] for row in rows)
                yield Calibration("ncu", CALIBRATION_BYTES, round(counted))
