"""From a record of counted bytes to its verdict: stage by stage, the read ratio, unselected pages, page ids.

A trace is held to the sector, hardware to 1 % + 128 KiB a launch (`tolerance.py`); what departs is given its
probable cause (`causes.py`). Writes of hardware are judged only when they have a gather's size: dirty
lines may be written back after their kernel has ended. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from questprof.bytecheck.judgement import (
    Cause,
    CounterError,
    Finding,
    GatherCost,
    Judgement,
    Reuse,
    StageFinding,
)
from questprof.bytecheck.ratio import ratio_findings
from questprof.bytecheck.sentences import COUNTER_SHARE, sentences
from questprof.bytecheck.stage import hardware_finding, trace_finding
from questprof.bytecheck.tolerance import is_users
from questprof.counts import Calibration, Source, StageCount
from questprof.errors import Exit
from questprof.model import Point, Profile, Record
from questprof.rows import summarise
from questprof.scan import ALARM_FACTOR, TIMED, best_ceiling, point_key
from questprof.units import format_bytes

DURATION: Final = "gpu__time_duration.sum"
"""A launch's duration in nanoseconds: never shown as a time, but its bytes over it must be possible."""
GATHER: Final = "gather"
"""Stage (and backend, in a sweep) that attends over a copy of the selected pages: shown, never judged."""


def judge(record: Record, ceiling_gb_s: float | None = None) -> Judgement:
    """The verdict over one record of kind `bytes`, from its ledger and counts.

    `ceiling_gb_s` is the largest streaming read of the run (1e9 bytes a second): bytes that arrive faster are
    refused. Without counts, nothing holds and nothing fails (`holds` None), but for status `wrong`.
    """
    counts = tuple(count for count in record.counts if count.source != "formula")
    said = [_impossible(count, ceiling_gb_s) for count in counts]
    possible = [count for count, alarm in zip(counts, said, strict=True) if not alarm]
    alarms = tuple(filter(None, said))
    calibration = tuple(map(_counter_error, record.counter_calibration))
    broken = {error.source for error in calibration if not error.holds}
    stages = tuple(_stage(record, count, broken) for count in possible if count.stage != GATHER)
    findings = tuple(_findings(record, possible, stages, broken))
    sources: tuple[Source, ...] = tuple(dict.fromkeys(count.source for count in counts))
    holds = _all_hold([*(s.holds for s in stages), *(f.holds for f in findings), *(None for _ in alarms)])
    return Judgement(
        point=record.point,
        point_id=record.point_id,
        env_id=record.env_id,
        variant=record.variant or record.point.variant,
        status=record.status,
        reason=record.reason,
        sources=sources,
        holds=holds,
        stages=stages,
        findings=findings,
        calibration=calibration,
        alarms=alarms,
        refused=tuple(dict.fromkeys(count.stage for count, alarm in zip(counts, said, strict=True) if alarm)),
        sentences=sentences(record, stages, findings, calibration, alarms),
        reuse=tuple(_reuse(possible)),
        gather=tuple(_gather(record, possible)),
        proof=record.proof,
    )


def judge_profile(profile: Profile) -> tuple[Judgement, ...]:
    """Every record of kind `bytes`, judged under the largest read ceiling of the profile's header.

    Times of the backend `gather` come from the profile's sweep records at the same point, where it has them.
    """
    ceiling = best_ceiling(profile.header.ceilings)
    found = [judge(record, ceiling) for record in profile.records if record.kind == "bytes"]
    runs = [_attend_times(run) for run in profile.runs] if any(one.gather for one in found) else []
    return tuple(_with_times(one, runs) for one in found)


def _attend_times(profile: Profile) -> dict[tuple[bytes, str], float]:
    """Median us of `attend` by point (without its backend) and backend, from the sweep records."""
    found = {}
    for record in profile.records:
        stat = summarise(record.times_us.get("attend", ()))
        if record.kind == "sweep" and record.status in TIMED and stat:
            found[_point(record.point), record.point.backend] = stat.median
    return found


def _with_times(judgement: Judgement, runs: Sequence[Mapping[tuple[bytes, str], float]]) -> Judgement:
    """`judgement` with the times of attention in place and over the copy, both of one run that has most."""
    point = _point(judgement.point)
    timed = [[times.get((point, name)) for name in ("questprof", GATHER)] for times in runs]
    in_place, gathered = max(timed, key=lambda pair: 2 - pair.count(None), default=(None, None))
    costs = tuple(replace(cost, attend_us=in_place, gather_us=gathered) for cost in judgement.gather)
    return replace(judgement, gather=costs) if costs else judgement


def _point(point: Point) -> bytes:
    return point_key(point, backend="", variant="")


def overall(judgements: Iterable[Judgement]) -> Exit:
    """1 when any check failed, 3 when nothing was counted, 4 when something is inconclusive, else 0.

    Points without counts beside points with some are no failure, and shown with their reason; but a user's
    kernels that a source counted at some points and not at others leave it inconclusive.
    """
    found = list(judgements)
    if any(one.holds is False for one in found):
        return Exit.CHECK_FAILED
    counted = [one for one in found if one.sources]
    if not counted:
        return Exit.MACHINE
    devices = {one.point.device for one in counted}
    lost = any(not one.sources and is_users(one.variant) and one.point.device in devices for one in found)
    return Exit.OK if all(one.holds for one in counted) and not lost else Exit.INCONCLUSIVE


def _all_hold(found: Sequence[bool | None]) -> bool | None:
    """False when one is, None when one is or there is none, else True."""
    if any(one is False for one in found):
        return False
    return True if found and all(found) else None


def _stage(record: Record, count: StageCount, broken: set[Source]) -> StageFinding:
    maker = trace_finding if count.source == "trace" else hardware_finding
    return maker(record, count, trusted=count.source not in broken)


def _findings(
    record: Record, counts: Sequence[StageCount], stages: Sequence[StageFinding], broken: set[Source]
) -> Iterable[Finding]:
    """The checks that no stage's totals answer; a ratio that fails does so for the cause of a stage."""
    if record.status == "wrong":
        reason = f"its output is wrong: {record.reason.removeprefix('wrong: ') or 'a check failed'}"
        yield Finding("record", "formula", False, "", reason)
    elif record.status not in ("ok", "wrong") and counts:
        reason = ": ".join(filter(None, (record.status, record.reason)))
        yield Finding("record", "formula", None, "", reason)
    yield from _lost(record)
    for found in ratio_findings(record, counts, broken):
        causes = (stage.cause for stage in stages if stage.cause and stage.source == found.source)
        yield replace(found, cause=next(causes, "unnamed")) if found.holds is False else found
    if record.unselected_bytes is not None:
        yield _unselected(record.unselected_bytes, stages)
    if record.proof is not None:
        yield _unmapped(record)
    if record.union_ratio is not None and record.union_ratio < 1:
        text = f"|union| / K is {record.union_ratio:.4g}: a head selected a page twice"
        source = counts[0].source if counts else "trace"
        yield Finding("page ids", source, False, "duplicate ids", text, 1.0, record.union_ratio)


def _lost(record: Record) -> Iterable[Finding]:
    """One finding a source that did not count every stage it should have: what nobody saw proves nothing.

    A count that is refused as impossible is not lost: an alarm stands for it.
    """
    chain = () if record.point.policy == "dense" else ("score", "select", "attend")
    wanted = [(stage, "isolated") for stage in (*chain, "dense")]
    counts = [count for count in record.counts if count.source != "formula"]
    for source in dict.fromkeys(count.source for count in counts):
        seen = {(count.stage, count.mode) for count in counts if count.source == source}
        lost = [stage for stage, mode in wanted if (stage, mode) not in seen]
        if chain and source == "ncu" and ("quest", "pipelined") not in seen:
            lost.append("quest in a chain")
        if lost:
            reason = f" ({record.reason})" if record.reason else ""
            yield Finding("stages", source, None, "", f"not counted by {source}: {', '.join(lost)}{reason}")


def _unselected(num_bytes: int, stages: Sequence[StageFinding]) -> Finding:
    """Nothing of an unselected page may be read; where attend's counts tell why it was, that is the cause."""
    causes = [s.cause for s in stages if (s.stage, s.source) == ("attend", "trace") and s.cause != "unnamed"]
    cause: Cause = next(filter(None, causes), "unselected page touched") if num_bytes else ""
    text = f"attend read {format_bytes(num_bytes)} of K and V in unselected pages (counted: trace)"
    return Finding("unselected pages", "trace", not num_bytes, cause, text, 0, num_bytes, 0)


def _unmapped(record: Record) -> Finding:
    """`attend` over a pool without its unselected granules: it completes, or it touched one."""
    proof = record.proof
    assert proof is not None
    gone = f"{format_bytes(proof.unmapped_bytes)} of unselected pages unmapped"
    if not proof.unmapped_bytes:
        why = (
            proof.reason or f"no granule of {format_bytes(proof.granule_bytes)} holds unselected pages alone"
        )
        return Finding("unmapped pages", "proof", None, "", f"no proof by unmapping: {why}")
    if proof.completed:
        return Finding("unmapped pages", "proof", True, "", f"attend completed with {gone}")
    why = f"attend did not complete with {gone}: {proof.reason or 'it touched one of them'}"
    return Finding("unmapped pages", "proof", False, "unselected page touched", why)


def _counter_error(calibration: Calibration) -> CounterError:
    known, counted = calibration.known_bytes, calibration.counted_bytes
    error = counted / known - 1 if known > 0 else None
    holds = error is not None and abs(counted - known) <= COUNTER_SHARE * known
    return CounterError(calibration.source, known, counted, error, holds)


def _impossible(count: StageCount, ceiling_gb_s: float | None) -> str:
    """What no hardware can have counted; '' when all is possible."""
    where = f"{count.stage} ({count.source}, {count.mode})"
    if count.read < 0 or count.write < 0:
        return f"{where}: {min(count.read, count.write)} bytes are below 0."
    for name, value in count.metrics.items():
        if ("hit_rate" in name or name.endswith(".pct")) and not 0 <= value <= 100:
            return f"{where}: {name} is {value:.4g} %, outside 0..100."
    duration_ns = count.metrics.get(DURATION)
    if count.source == "ncu" and count.mode == "isolated" and duration_ns and ceiling_gb_s:
        gb_s = (count.read + count.write) / duration_ns
        if gb_s > ALARM_FACTOR * ceiling_gb_s:
            return (
                f"{where}: {gb_s:.4g} GB/s is above {ALARM_FACTOR} x the measured read ceiling of "
                f"{ceiling_gb_s:.4g} GB/s."
            )
    return ""


def _reuse(counts: Sequence[StageCount]) -> Iterable[Reuse]:
    """Isolated less pipelined reads of the chain, by source."""
    for source in dict.fromkeys(count.source for count in counts):
        own = {(count.stage, count.mode): count.read for count in counts if count.source == source}
        pipelined = own.get(("quest", "pipelined"))
        chain = [own.get((stage, "isolated")) for stage in ("score", "select", "attend")]
        isolated = own.get(("quest", "isolated"), None if None in chain else sum(filter(None, chain)))
        if pipelined is not None and isolated:
            saved = isolated - pipelined
            yield Reuse(source, isolated, pipelined, saved, saved / isolated)


def _gather(record: Record, counts: Sequence[StageCount]) -> Iterable[GatherCost]:
    """Traffic of the stage `gather` beside that of `attend` by the same source, or else by the ledger."""
    predicted = sum(e.read_bytes + e.write_bytes for e in record.ledger if e.stage == "attend")
    alone = {(count.stage, count.source): count for count in counts if count.mode == "isolated"}
    for (stage, source), count in alone.items():
        if stage == GATHER:
            attend = alone.get(("attend", source))
            in_place = attend.read + attend.write if attend else predicted
            moved = count.read + count.write
            yield GatherCost(source, in_place, moved, moved / in_place if in_place else None)
