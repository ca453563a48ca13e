"""From a block of points to records: predict, fill, check, time, check again.

Nothing is timed before its check has passed, and nothing is kept as `ok` unless the outputs that the
timed launches left pass it again.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from questprof import ledger
from questprof.backends import Backend, load
from questprof.checks import check, union_ratio
from questprof.environment import available_bytes
from questprof.grid import Block
from questprof.model import ByteCount, Check, Environment, Point, Record, Source, Status
from questprof.policies import Bound, bind
from questprof.timing import Candidate, Executor, Timed
from questprof.units import format_bytes
from questprof.workload import cache_bytes, make_cache, make_pool, make_query

FILLER = "questprof"
"""The backend whose append fills the caches."""

USABLE_SHARE = 0.8
"""Share of the available memory a block may plan for; the rest is for scratch, checks and others."""


@dataclass(frozen=True)
class Machine:
    """Where the sweep runs."""

    environment: Environment
    executor: Executor


@dataclass
class _Running:
    """A point on its way to a record."""

    point: Point
    backend: Backend
    floor_bytes: dict[str, int]
    bytes: dict[str, dict[Source, ByteCount]]
    rotation: list[Bound]
    checks: tuple[Check, ...] = ()
    union_ratio: float | None = None


def refusals(block: Block, device: str) -> dict[str, str]:
    """Point id -> why the point can run on no machine with its backend (nothing is allocated)."""
    names = {FILLER, *(point.backend for point in block.points)}
    backends = {name: load(name, device) for name in names}
    found = {p.point_id: backends[p.backend].why_not(p) or backends[FILLER].why_not(p) for p in block.points}
    return {point_id: reason for point_id, reason in found.items() if reason}


def run_block(block: Block, machine: Machine, done: frozenset[str] = frozenset()) -> Iterator[Record]:
    """Records of the block's points that are not in `done` (point ids), baselines first."""
    points = [point for point in block.points if point.point_id not in done]
    device = machine.environment.device
    backends = {name: load(name, device) for name in {FILLER, *(point.backend for point in points)}}
    refused = refusals(block, device)
    fitting = []
    for point in points:
        if point.point_id in refused:
            yield _record(point, machine, "unavailable", refused[point.point_id])
        elif shortage := memory_shortage(point, backends[point.backend], device):
            yield _record(point, machine, "oom", shortage)
        else:
            fitting.append(point)
    if fitting:
        yield from _run_fitting(fitting, backends, machine)


def memory_shortage(point: Point, backend: Backend, device: str) -> str:
    """Why the point does not fit, with the predicted and the available bytes; '' when it fits."""
    needed = backend.caches_held * cache_bytes(point)
    available = int(available_bytes(device) * USABLE_SHARE)
    if needed <= available:
        return ""
    return f"needs {format_bytes(needed)}, {format_bytes(available)} are usable"


def _run_fitting(points: Sequence[Point], backends: dict[str, Backend], machine: Machine) -> Iterator[Record]:
    import torch

    try:
        records = list(_measure(points, backends, machine))
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        free = format_bytes(available_bytes(machine.environment.device))
        predicted = format_bytes(cache_bytes(points[0]))
        reason = f"predicted to fit ({predicted} a cache), but {_first_line(error)}; {free} are free"
        records = [_record(point, machine, "oom", reason) for point in points]
    gc.collect()
    if machine.environment.device == "cuda":
        torch.cuda.empty_cache()
    yield from records


def _is_out_of_memory(error: Exception) -> bool:
    """Whether `error` is a refused allocation (torch says so on the CPU with a plain RuntimeError)."""
    import torch

    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _measure(points: Sequence[Point], backends: dict[str, Backend], machine: Machine) -> Iterator[Record]:
    running = _bind_all(points, backends, machine)
    good = []
    for run in running:
        refusal = _check_before(run)
        if refusal:
            yield _record(run.point, machine, "unavailable", refusal)
        elif all(c.holds for c in run.checks):
            good.append(run)
        else:
            yield _finish(run, machine, None, ())
    if not good:
        return
    for run in good:
        _poison(run.rotation)
    loop_id = hashlib.sha256("".join(r.point.point_id for r in good).encode()).hexdigest()[:12]
    timed, calibration = machine.executor.time([_candidate(r) for r in good], loop_id)
    for run, times in zip(good, timed, strict=True):
        run.checks += check(run.rotation[-1], "after", run.point.seed)
        yield _finish(run, machine, times, calibration)


def _bind_all(points: Sequence[Point], backends: dict[str, Backend], machine: Machine) -> list[_Running]:
    """Fill the rotation's caches once and bind every point to as many of them as it needs."""
    caches_held = max(backends[point.backend].caches_held for point in points)
    sizes = [_rotation_size(point, machine, caches_held) for point in points]
    pool = make_pool(points[0], max(sizes), machine.environment.num_workers)
    caches = [make_cache(points[0], pool, backends[FILLER], index) for index in range(max(sizes))]
    running = []
    for point, size in zip(points, sizes, strict=True):
        rotation = [
            bind(
                point.policy,
                backends[point.backend],
                cache,
                make_query(point, pool, point.data, index),
                point.num_selected,
            )
            for index, cache in enumerate(caches[:size])
        ]
        running.append(_Running(point, backends[point.backend], {}, {}, rotation))
    return running


def _rotation_size(point: Point, machine: Machine, caches_held: int) -> int:
    """Caches for a cold rotation, as many as memory holds when a baseline needs its own copy of each."""
    counted = ledger.counted_bytes(ledger.entries(point, machine.environment.num_workers))
    stages = ("dense",) if point.policy == "dense" else ("score", "attend")
    wanted = machine.executor.rotation_size(min(counted[stage] for stage in stages))
    usable = available_bytes(machine.environment.device) * USABLE_SHARE
    return max(1, min(wanted, int(usable / (caches_held * cache_bytes(point)))))


def _check_before(run: _Running) -> str:
    """Launch every step once on the first cache and check; the ids then tell the union the ledger needs.

    Returns why a baseline's library refuses the point, or ''.
    """
    bound = run.rotation[0]
    try:
        for step in bound.steps:
            step.launch()
    except RuntimeError as error:
        if run.point.backend == FILLER or _is_out_of_memory(error):
            raise
        return _first_line(error)
    _synchronize(bound)
    run.union_ratio = union_ratio(bound)
    run.checks = check(bound, "before", run.point.seed)
    return ""


def _candidate(run: _Running) -> Candidate:
    entries = ledger.entries(run.point, run.rotation[0].cache.pool.num_workers, union_ratio=run.union_ratio)
    counts = ledger.stage_bytes(entries)
    run.bytes = {stage: {"formula": count} for stage, count in counts.items() if _has(run, stage)}
    run.floor_bytes = {s: n for s, n in ledger.counted_bytes(entries).items() if _has(run, s)}
    touched = {stage: count.read + count.write for stage, count in counts.items()}
    return Candidate(tuple(run.rotation), touched)


def _has(run: _Running, stage: str) -> bool:
    steps = {step.stage for step in run.rotation[0].steps}
    return stage in steps or (stage == "quest" and bool(run.rotation[0].chain))


def _poison(rotation: Iterable[Bound]) -> None:
    """Spoil the outputs, so that the check after timing sees only what the timed launches wrote."""
    for bound in rotation:
        for output in (bound.outputs.out, bound.outputs.lse, bound.outputs.scores):
            if output is not None:
                output.fill_(float("nan"))
        if bound.outputs.page_ids is not None:
            bound.outputs.page_ids.zero_()


def _synchronize(bound: Bound) -> None:
    if bound.q.is_cuda:
        import torch

        torch.cuda.synchronize()


def _finish(run: _Running, machine: Machine, timed: Timed | None, calibration: tuple[Any, ...]) -> Record:
    failed = [c for c in run.checks if not c.holds]
    reason = "; ".join(
        f"{c.stage} {c.when} timing: error {c.max_rel_err if c.max_rel_err is not None else 'not finite'} "
        f"above {c.tolerance:.3g}"
        for c in failed
    )
    return _record(
        run.point,
        machine,
        "wrong" if failed else "ok",
        reason,
        checks=run.checks,
        union_ratio=run.union_ratio,
        bytes=run.bytes,
        floor_bytes=run.floor_bytes,
        times_us={} if timed is None or failed else timed.times_us,
        timing={} if timed is None or failed else timed.timing,
        calibration=calibration,
        variant=run.backend.variant,
    )


def _record(point: Point, machine: Machine, status: Status, reason: str, **fields: Any) -> Record:
    return Record(
        kind="sweep",
        point=point,
        point_id=point.point_id,
        env_id=machine.environment.env_id,
        status=status,
        reason=reason,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **fields,
    )
