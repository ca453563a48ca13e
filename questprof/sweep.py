"""From a block of points to records: predict, fill, check, time, check again.

Nothing is timed before its check has passed, and nothing is kept as `ok` unless the outputs that the
timed launches left pass it again.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from questprof import ledger
from questprof.backends import Backend, load
from questprof.checks import check, sign_share, union_ratio
from questprof.counts import ByteCount, Source
from questprof.environment import available_bytes
from questprof.extras import extra_candidates
from questprof.grid import QUEST_BACKENDS, Block
from questprof.model import Check, Environment, Point, Record, Status
from questprof.policies import Bound, Step, bind, newest_slots
from questprof.timing import Candidate, Executor, Timed, merged
from questprof.units import format_bytes
from questprof.workload import (
    USABLE_SHARE,
    cache_bytes,
    few_pages,
    make_cache,
    make_pool,
    make_query,
    scatter_bytes,
)

if TYPE_CHECKING:
    from questprof_kernels.paged_cache import PagedCache

FILLER = "questprof"
"""The backend whose append fills the caches."""


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
    warm_up: Bound | None = None
    pool_bytes: int = 0
    extras: list[Candidate] = field(default_factory=list)
    checks: tuple[Check, ...] = ()
    union_ratio: float | None = None
    sign_share: float | None = None


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
        yield from _run_fitting(Block(tuple(fitting), block.extras), backends, machine)


def memory_shortage(point: Point, backend: Backend, device: str) -> str:
    """Why the point does not fit, with the predicted and the available bytes; '' when it fits."""
    needed = backend.caches_held * cache_bytes(point)
    available = int(available_bytes(device) * USABLE_SHARE)
    if needed <= available:
        return ""
    return f"needs {format_bytes(needed)}, {format_bytes(available)} are usable"


def _run_fitting(block: Block, backends: dict[str, Backend], machine: Machine) -> Iterator[Record]:
    import torch

    try:
        records = list(_measure(block, backends, machine))
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        free = format_bytes(available_bytes(machine.environment.device))
        predicted = format_bytes(cache_bytes(block.points[0]))
        reason = f"predicted to fit ({predicted} a cache), but {_first_line(error)}; {free} are free"
        records = [_record(point, machine, "oom", reason) for point in block.points]
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


def _measure(block: Block, backends: dict[str, Backend], machine: Machine) -> Iterator[Record]:
    running = _bind_all(block.points, backends, machine)
    good = []
    appended: set[tuple[str, bool]] = set()
    for run in running:
        refusal = _check_before(run)
        # An append knows no budget: its extra states are timed with the first point of a backend.
        stage = (run.point.backend, run.point.policy == "dense")
        names = [name for name in block.extras if name != "append" or stage not in appended]
        if names and not refusal:
            appended.add(stage)
            _add_extras(run, names, backends[FILLER], machine)
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
    candidates = [[_candidate(run), *run.extras] for run in good]
    timed, calibration = machine.executor.time([c for each in candidates for c in each], loop_id)
    results = iter(timed)
    for run, each in zip(good, candidates, strict=True):
        times = merged([next(results) for _ in each])
        for candidate in each:
            # The one that the last round launched: few samples do not reach every turn of a long rotation.
            bound = candidate.rotation[machine.executor.num_samples % len(candidate.rotation)]
            run.checks += check(bound, bound.last_written, "after", run.point.seed)
        yield _finish(run, machine, times, calibration)


def _bind_all(points: Sequence[Point], backends: dict[str, Backend], machine: Machine) -> list[_Running]:
    """Fill the rotation's caches once and bind every point to as many of them as it needs."""
    caches_held = max(backends[point.backend].caches_held for point in points)
    sizes = [_rotation_size(point, machine, caches_held) for point in points]
    available = available_bytes(machine.environment.device)
    copies = (caches_held - 1) * max(sizes) * cache_bytes(points[0])
    scattered = scatter_bytes(points[0], available, copies)
    pool = make_pool(points[0], max(sizes), machine.environment.num_workers, scattered)
    pool_bytes = max(scattered, max(sizes) * cache_bytes(points[0])) if points[0].pool_bytes else 0
    caches = [make_cache(points[0], pool, backends[FILLER], index) for index in range(max(sizes))]
    warm_ups = _bind_warm_ups(points, backends, machine)
    running = []
    for point, size, warm_up in zip(points, sizes, warm_ups, strict=True):
        backend = backends[point.backend]
        rotation = [_bind(point, backend, cache, index) for index, cache in enumerate(caches[:size])]
        running.append(_Running(point, backend, {}, {}, rotation, warm_up, pool_bytes))
    return running


def _bind_warm_ups(
    points: Sequence[Point], backends: dict[str, Backend], machine: Machine
) -> list[Bound | None]:
    """Every point bound to one cache of a few pages, in a pool of its own, if the executor warms up."""
    if not machine.executor.warms_up:
        return [None] * len(points)
    few = [few_pages(point) for point in points]
    pool = make_pool(few[0], 1, machine.environment.num_workers)
    cache = make_cache(few[0], pool, backends[FILLER], 0)
    return [_bind(point, backends[point.backend], cache, 0) for point in few]


def _bind(point: Point, backend: Backend, cache: PagedCache, index: int) -> Bound:
    """`point` bound to `cache`, number `index` of a rotation."""
    q = make_query(point, cache.pool, point.data, index)
    return bind(point.policy, backend, cache, q, point.num_selected)


def _rotation_size(point: Point, machine: Machine, caches_held: int) -> int:
    """Caches for a cold rotation, as many as memory holds when a baseline needs its own copy of each."""
    counted = ledger.counted_bytes(ledger.entries(point, machine.environment.num_workers))
    stages = ("dense",) if point.policy == "dense" else ("score", "attend")
    wanted = machine.executor.rotation_size(min(counted[stage] for stage in stages))
    usable = available_bytes(machine.environment.device) * USABLE_SHARE
    return max(1, min(wanted, int(usable / (caches_held * cache_bytes(point)))))


def _check_before(run: _Running) -> str:
    """Launch every step once on the first cache and check, then a chain that launches something else.

    The ids of the steps tell the union that the ledger needs, the queries the share of the rows of bounds.
    Returns why a baseline's library refuses the point, or ''.
    """
    bound = run.rotation[0]
    try:
        _launch(bound, bound.steps)
    except RuntimeError as error:
        if run.point.backend in QUEST_BACKENDS or _is_out_of_memory(error):
            raise
        return _first_line(error)
    run.union_ratio, run.sign_share = union_ratio(bound), sign_share(bound)
    run.checks = check(bound, bound.steps, "before", run.point.seed)
    if bound.fused:
        _poison([bound])
        _launch(bound, bound.chain)
        run.checks += check(bound, bound.chain, "before", run.point.seed)
    return ""


def _add_extras(run: _Running, names: Sequence[str], filler: Backend, machine: Machine) -> None:
    """Bind and check the extra states of the point's stages."""
    bound = run.rotation[0]
    extras = extra_candidates(names, bound, run.point, run.backend, filler, machine.executor)
    run.extras = [replace(candidate, warm_up=run.warm_up) for candidate in extras]
    for candidate in run.extras:
        first = candidate.rotation[0]
        _poison(candidate.rotation)
        _launch(first, first.steps)
        run.checks += check(first, first.steps, "before", run.point.seed)
        _poison(candidate.rotation)


def _launch(bound: Bound, steps: Iterable[Step]) -> None:
    """Launch `steps` and wait for them."""
    for step in steps:
        step.launch()
    _synchronize(bound)


def _candidate(run: _Running) -> Candidate:
    entries = ledger.entries(
        run.point,
        run.rotation[0].cache.pool.num_workers,
        union_ratio=run.union_ratio,
        sign_share=run.sign_share,
        variant=run.backend.variant(run.point),
    )
    counts, counted = ledger.stage_bytes(entries), ledger.counted_bytes(entries)
    run.bytes = {stage: {"formula": count} for stage, count in counts.items() if _has(run, stage)}
    run.floor_bytes = {stage: n for stage, n in counted.items() if _has(run, stage)}
    touched = {stage: count.read + count.write for stage, count in counts.items()}
    return Candidate(tuple(run.rotation), touched, counted, run.warm_up)


def _has(run: _Running, stage: str) -> bool:
    steps = {step.stage for step in run.rotation[0].steps}
    return stage in steps or (stage == "quest" and bool(run.rotation[0].chain))


def _poison(rotation: Iterable[Bound]) -> None:
    """Spoil the outputs, so that the check after timing sees only what the timed launches wrote."""
    for bound in rotation:
        outputs = bound.outputs
        read = (outputs.scores,) if any(step.kind == "score" for step in bound.steps) else ()
        for output in (outputs.out, outputs.lse, *read):
            if output is not None:
                output.fill_(float("nan"))
        if outputs.page_ids is not None:
            outputs.page_ids.zero_()
        if outputs.appended is not None:
            pages, slots = newest_slots(bound.cache, outputs.new_tokens)
            for storage in (bound.cache.pool.k, bound.cache.pool.v):
                storage[pages, :, slots] = float("nan")


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
        sign_share=run.sign_share,
        bytes=run.bytes,
        floor_bytes=run.floor_bytes,
        times_us={} if timed is None or failed else timed.times_us,
        timing={} if timed is None or failed else timed.timing,
        calibration=calibration,
        pool_bytes=run.pool_bytes,
        variant=run.backend.variant(run.point),
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
