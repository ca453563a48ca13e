"""A block of points over real caches: filled once, bound to every point, in a rotation that is cold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from questprof import ledger
from questprof.backends import FILLER, Backend
from questprof.checks import Memo
from questprof.counts import ByteCount, Source
from questprof.environment import available_bytes
from questprof.model import Check, Environment, Point
from questprof.policies import Bound, bind, newest_slots
from questprof.scratch import Scratch
from questprof.timing.candidates import Candidate, Executor
from questprof.timing.phases import Phases
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


@dataclass(frozen=True)
class Machine:
    """Where the sweep runs."""

    environment: Environment
    executor: Executor
    phases: Phases = field(default_factory=Phases)


@dataclass
class Running:
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
    memo: Memo = field(default_factory=dict)
    """The reference's answers for the caches of the block, which all its points share."""


def bind_all(points: Sequence[Point], backends: dict[str, Backend], machine: Machine) -> list[Running]:
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
    running, memo = [], Memo()
    for point, size, warm_up in zip(points, sizes, warm_ups, strict=True):
        backend = backends[point.backend]
        scratch = Scratch()
        rotation = [_bind(point, backend, cache, index, scratch) for index, cache in enumerate(caches[:size])]
        running.append(Running(point, backend, {}, {}, rotation, warm_up, pool_bytes, memo=memo))
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
    return [_bind(point, backends[point.backend], cache, 0, Scratch()) for point in few]


def _bind(point: Point, backend: Backend, cache: PagedCache, index: int, scratch: Scratch) -> Bound:
    """`point` bound to `cache`, number `index` of a rotation."""
    q = make_query(point, cache.pool, point.data, index)
    return bind(point.policy, backend, cache, q, point.num_selected, scratch)


def _rotation_size(point: Point, machine: Machine, caches_held: int) -> int:
    """Caches for a cold rotation, as many as memory holds when a baseline needs its own copy of each."""
    counted = ledger.counted_bytes(ledger.entries(point, machine.environment.num_workers))
    stages = ("dense",) if point.policy == "dense" else ("score", "attend")
    wanted = machine.executor.rotation_size(min(counted[stage] for stage in stages))
    usable = available_bytes(machine.environment.device) * USABLE_SHARE
    return max(1, min(wanted, int(usable / (caches_held * cache_bytes(point)))))


def poison(rotation: Iterable[Bound]) -> None:
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
