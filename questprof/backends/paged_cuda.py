"""The CUDA stages over another backend: they run what they can, it runs the rest.

Which of the two is decided launch by launch from the cache and the number of query heads, and for a record
from its point, by one rule. Only what CUDA runs is fused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend
from questprof.model import Point

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache


def over(other: Backend) -> Backend:
    """`other` with CUDA stages where they can run; itself on a machine that cannot run any."""
    from questprof_kernels import append_cuda, cuda_module, cuda_stages

    if not cuda_module.is_available():
        return other
    stages = dict(other.stages)
    for name in ("score", "select", "attend", "dense"):
        stages[name] = _either(getattr(cuda_stages, name), other.stages[name])
    for name in ("append", "append_kv"):
        stages[name] = _append(getattr(append_cuda, name), other.stages[name])
    return replace(
        other,
        variant=lambda point: "cuda" if _runs_point(point) else other.variant(point),
        stages={**stages, "select_attend": cuda_stages.select_attend},
        scratch_floats={
            "attend": _either(_attend_scratch_floats, other.scratch_floats["attend"]),
            "dense": _either(_dense_scratch_floats, other.scratch_floats["dense"]),
        },
        fuses=_fuses,
    )


def _either(cuda: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """A call of `cuda` where CUDA stages run, otherwise of `other`.

    Its first argument is q [.., num_qo_heads, head_dim] or scores [num_qo_heads, ..], its second the cache.
    """

    def call(rows: torch.Tensor, cache: PagedCache, *arguments: Any) -> Any:
        chosen = cuda if _runs_cache(cache, rows.shape[-2]) else other
        return chosen(rows, cache, *arguments)

    return call


def _append(cuda: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """A call of `cuda` where CUDA stages run, of however many query heads, and can read the new tokens."""

    def call(cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, *arguments: Any) -> Any:
        from questprof_kernels.append_cuda import takes

        runs = _runs_cache(cache, cache.pool.num_kv_heads) and takes(keys, values)
        return (cuda if runs else other)(cache, keys, values, *arguments)

    return call


def _runs_cache(cache: PagedCache, num_qo_heads: int) -> bool:
    pool = cache.pool
    group_size = num_qo_heads // pool.num_kv_heads
    return _runs(pool.k.dtype, pool.summary.dtype, pool.head_dim, pool.page_size, group_size)


def _runs_point(point: Point) -> bool:
    from questprof_kernels.paged_cache import DTYPES

    shape = point.shape
    kv_dtype, summary_dtype = DTYPES.get(shape.kv_dtype), DTYPES.get(shape.effective_summary_dtype)
    return _runs(kv_dtype, summary_dtype, shape.head_dim, point.page_size, shape.group_size)


def _runs(kv_dtype: Any, summary_dtype: Any, head_dim: int, page_size: int, group_size: int) -> bool:
    """The rule; dtypes are torch's, None for one that torch's kernels do not know."""
    from questprof_kernels import cuda_stages

    refusal: str | None = cuda_stages.why_not(kv_dtype, summary_dtype, head_dim, page_size, group_size)
    return refusal is None


def _fuses(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor, most_selected: int) -> bool:
    """Whether CUDA runs here, and a split of `select_attend` has room for its pages."""
    from questprof_kernels import cuda_stages

    return _runs_cache(cache, q.shape[1]) and cuda_stages.fuses(q, cache, page_ids, most_selected)


def _attend_scratch_floats(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> int:
    from questprof_kernels import cuda_stages

    return int(cuda_stages.attend_plan(q, cache, page_ids).scratch_floats)


def _dense_scratch_floats(q: torch.Tensor, cache: PagedCache) -> int:
    from questprof_kernels import cuda_stages

    return int(cuda_stages.dense_plan(q, cache).scratch_floats)
