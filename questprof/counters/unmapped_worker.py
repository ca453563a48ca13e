"""The process that proves: attend over a pool without its unselected pages (`unmapped.py` says why).

`python -m questprof.counters.unmapped_worker TASK.json`; lines of JSON on stdout.
"""

from __future__ import annotations

import os
import sys
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from questprof.backends import FILLER, Backend, load
from questprof.backends.user import over, stage_set
from questprof.checks import rounding_floor
from questprof.counters.unmapped import (
    Finished,
    Placement,
    Prepared,
    Task,
    place,
    selected_pages,
    spare_pages,
)
from questprof.errors import QuestprofError
from questprof.model import Point
from questprof.policies import Bound, bind
from questprof.units import dtype_bytes
from questprof.workload import make_cache, make_pool, make_query

if TYPE_CHECKING:
    import torch

TOUCHED = 3
"""Exit status after a fault, when the CUDA context can no longer be closed in order."""


def main() -> None:
    """Run the task of the first argument."""
    task = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Task)
    try:
        fault = run(task)
    except (RuntimeError, ValueError, QuestprofError, ImportError, MemoryError) as error:
        fault = (str(error).splitlines() or [type(error).__name__])[0]
    _say(Finished(fault))
    os._exit(TOUCHED if fault else 0)


def run(task: Task) -> str:
    """'' when attend gives the same without its unselected pages; otherwise what went wrong."""
    point, backend = task.point, _backend(task)
    ordinary = _bound(point, backend, make_pool(point, 1, 0))
    for step in ordinary.steps:
        step.launch()
    pool = _mapped_pool(point)
    where = placement(ordinary, pool)
    pool.reorder_free(where.order)
    mapped = _bound(point, backend, pool)
    ids, own = ordinary.outputs.page_ids, mapped.outputs.page_ids
    assert ids is not None
    assert own is not None
    own.copy_(ids)
    if difference := _attend(mapped, ordinary):
        return f"not even with all pages mapped: {difference}"
    granules = 2 * where.num_granules
    _say(Prepared(pool.granule_bytes, granules * pool.granule_bytes, where.unselected, sum(point.num_pages)))
    if granules:
        pool.unmap(where.first_granule, where.num_granules)
    return _attend(mapped, ordinary)


def placement(bound: Bound, pool: Any) -> Placement:
    """Where to lay the pages of the cache in `pool`, from the ids that `bound` has selected."""
    outputs = bound.outputs
    assert outputs.page_ids is not None
    assert outputs.select_indptr is not None
    kv_indptr = [0, *accumulate(bound.cache.num_pages)]
    chosen = selected_pages(outputs.page_ids.tolist(), outputs.select_indptr.tolist(), kv_indptr)
    return place(chosen, kv_indptr[-1], pool.num_pages, pool.page_bytes, pool.granule_bytes)


def _mapped_pool(point: Point) -> Any:
    from questprof_kernels.mapped_pool import MappedPool, granule_bytes
    from questprof_kernels.paged_cache import DTYPES
    from questprof_kernels.plan import summary_blocks

    shape = point.shape
    page_bytes = point.page_size * shape.num_kv_heads * shape.head_dim * dtype_bytes(shape.kv_dtype)
    spare = spare_pages(page_bytes, granule_bytes(point.device))
    return MappedPool(
        sum(point.num_pages) + spare,
        shape.num_kv_heads,
        point.page_size,
        shape.head_dim,
        DTYPES[shape.kv_dtype],
        summary_dtype=DTYPES[shape.effective_summary_dtype],
        summary_layout=point.summary_layout,
        num_summary_blocks=summary_blocks(point.num_pages),
        device=point.device,
    )


def _bound(point: Point, backend: Backend, pool: Any) -> Bound:
    """The point's steps over a cache filled with the same data, whatever the pool."""
    cache = make_cache(point, pool, load(FILLER, point.device), 0)
    return bind(point.policy, backend, cache, make_query(point, pool, point.data, 0), point.num_selected)


def _attend(mapped: Bound, ordinary: Bound) -> str:
    """Launch attend over the mapped pool; '' when it leaves what the ordinary one holds."""
    pairs = [(mapped.outputs.out, ordinary.outputs.out)]
    if mapped.outputs.lse is not None and ordinary.outputs.lse is not None:
        pairs.append((mapped.outputs.lse, ordinary.outputs.lse))
    for ours, _ in pairs:
        ours.fill_(float("nan"))
    next(step for step in mapped.steps if step.kind == "attend").launch()
    _synchronize(mapped)
    found = [_differ(ours, theirs) for ours, theirs in pairs]
    return next((difference for difference in found if difference), "")


def _differ(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """How far two results are apart, '' within what rounding may cost."""
    apart = ours != theirs  # an infinity, the lse of an empty request, equals itself
    norm = float(theirs[theirs.isfinite()].double().norm()) or 1.0
    distance = float((ours[apart].double() - theirs[apart].double()).norm()) / norm
    allowed = rounding_floor(ours.dtype)
    return "" if distance <= allowed else f"results differ by {distance:.3g}, {allowed:.3g} is rounding"


def _synchronize(bound: Bound) -> None:
    if bound.q.is_cuda:
        import torch

        torch.cuda.synchronize()


def _backend(task: Task) -> Backend:
    base = load(task.point.backend, task.point.device)
    return over(base, stage_set(task.kernels)) if task.kernels else base


def _say(line: Prepared | Finished) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


if __name__ == "__main__":
    main()
