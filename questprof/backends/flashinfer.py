"""FlashInfer's paged decode over the cache's own pages: dense baselines, nothing copied.

Its HND layout [num_pages, num_kv_heads, page_size, head_dim] is the pool's K and V. `flashinfer` runs the
decode kernels on CUDA cores, `flashinfer-tc` the prefill kernels on tensor cores. `plan()`, which a serving
engine calls once a step and for all its layers, is not timed with the kernel: `Planned.plan_us` holds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as remember
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend
from questprof.errors import IN_CHECKOUT, install
from questprof.model import Point

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

DTYPES = ("fp16", "bf16")
HEAD_DIMS = (64, 128, 256)
DECODE_GROUP_SIZES = (1, 2, 3, 4, 8)
"""Query heads per KV head that the CUDA-core kernels are compiled for; the tensor-core ones take any."""

WORKSPACE_BYTES = 128 << 20
"""What FlashInfer recommends for the partial results of splits."""

KERNELS = "fa2"
"""FlashInfer's own `backend`, named so that no version chooses another. With tensor cores its `auto` takes
fa3 on a Hopper chip, which does not split the keys of a request: at a decode, one block a head at most."""


@dataclass(frozen=True)
class Planned:
    """A planned wrapper, or the error that planning ended in; `plan_us` is the time of a warm `plan()`."""

    wrapper: Any
    pages: tuple[torch.Tensor, torch.Tensor]
    plan_us: float | None = None
    error: Exception | None = None


def load(device: str) -> Backend:
    """FlashInfer's decode on CUDA cores."""
    return _backend("flashinfer", device)


def load_tensor_cores(device: str) -> Backend:
    """FlashInfer's decode on tensor cores."""
    return _backend("flashinfer-tc", device)


def _backend(name: str, device: str) -> Backend:
    version, missing = _found(device)
    variant = f"flashinfer-{version}" if version else "flashinfer"
    return Backend(
        name=name,
        variant=lambda _: variant,
        stages={"dense": _dense},
        prepare=partial(_prepare, name),
        scratch_floats={},
        why_not=partial(_why_not, name, missing),
    )


def _found(device: str) -> tuple[str, str]:
    """(version, ''), or ('', why FlashInfer cannot run and how to get it)."""
    if device != "cuda":
        return "", "FlashInfer needs a GPU: use --device cuda"
    try:
        return str(import_module("flashinfer").__version__), ""
    except (ImportError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return "", f"FlashInfer is not usable ({reason}): {install('baselines')} {IN_CHECKOUT}"


def _why_not(name: str, missing: str, point: Point) -> str | None:
    shape = point.shape
    if missing:
        return missing
    if shape.kv_dtype not in DTYPES:
        return f"FlashInfer takes no kv_dtype {shape.kv_dtype}: {', '.join(DTYPES)}"
    if shape.head_dim not in HEAD_DIMS:
        return f"FlashInfer takes no head_dim {shape.head_dim}: {', '.join(map(str, HEAD_DIMS))}"
    if name == "flashinfer" and shape.group_size not in DECODE_GROUP_SIZES:
        return (
            f"FlashInfer's CUDA-core decode takes no group of {shape.group_size} query heads per KV head "
            f"({', '.join(map(str, DECODE_GROUP_SIZES))}): use backend flashinfer-tc"
        )
    if 0 in point.lengths:
        return "FlashInfer takes no empty request"
    return None


@remember
def _workspace(device: torch.device) -> torch.Tensor:
    """One a device, shared by every plan: launches follow one another on one stream, as in an engine."""
    import torch

    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _prepare(name: str, cache: PagedCache, q: torch.Tensor) -> Planned:
    """Plan a decode of `q` [batch_size, num_qo_heads, head_dim] over the pages of `cache`, for a CUDA graph.

    The first plan of a dtype and head_dim compiles kernels where no cache of FlashInfer has them (minutes).
    What it refuses is raised at the first launch, as other libraries do.
    """
    pages = (cache.pool.k, cache.pool.v)
    try:
        wrapper, plan = _wrapper(name, cache, q)
        plan()
        return Planned(wrapper, pages, _clock_us(plan, cache.pool.device))
    except (RuntimeError, ValueError, TypeError) as error:
        return Planned(None, pages, error=error)


def _wrapper(name: str, cache: PagedCache, q: torch.Tensor) -> tuple[Any, Callable[[], None]]:
    """FlashInfer's wrapper with fixed buffers for the page table, and its `plan` with all arguments bound."""
    import torch

    pool, indices = cache.pool, cache.dense_table[: cache.total_pages]
    wrapper = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        _workspace(pool.device),
        "HND",
        use_cuda_graph=True,
        use_tensor_cores=name == "flashinfer-tc",
        paged_kv_indptr_buffer=torch.empty_like(cache.kv_indptr),
        paged_kv_indices_buffer=torch.empty_like(indices),
        paged_kv_last_page_len_buffer=torch.empty_like(cache.last_page_len),
        backend=KERNELS,
    )
    plan = partial(
        wrapper.plan,
        cache.kv_indptr.to("cpu", copy=True),
        indices,
        cache.last_page_len.to("cpu", copy=True),
        q.shape[1],
        pool.num_kv_heads,
        pool.head_dim,
        pool.page_size,
        q_data_type=q.dtype,
        kv_data_type=pool.k.dtype,
    )
    return wrapper, plan


def _clock_us(plan: Callable[[], None], device: torch.device) -> float:
    started = _now_us(device)
    plan()
    return _now_us(device) - started


def _now_us(device: torch.device) -> float:
    """The host's clock once `device` has done all it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns() / 1e3


def _dense(q: torch.Tensor, planned: Planned, out: torch.Tensor, *_: Any) -> None:
    """Write the attention of `q` over all tokens into `out`; RuntimeError with what FlashInfer refuses.

    lse is left out: FlashInfer's is base 2, and converting it would be one more launch.
    """
    if planned.error is not None:
        raise planned.error if isinstance(planned.error, RuntimeError) else RuntimeError(str(planned.error))
    planned.wrapper.run(q, planned.pages, out=out)
