"""torch's scaled_dot_product_attention over contiguous K and V: a dense baseline, never its math path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend
from questprof.model import Point
from questprof.units import KERNEL_DTYPES

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache


@dataclass(frozen=True)
class Contiguous:
    """K and V as SDPA wants them: [batch_size, num_kv_heads, seq_len, head_dim] each."""

    k: torch.Tensor
    v: torch.Tensor


def load(device: str) -> Backend:
    """SDPA with the fused kernels of `device`."""
    import torch

    return Backend(
        name="sdpa",
        variant=f"torch-{torch.__version__}",
        stages={"dense": _dense_cuda if device == "cuda" else _dense},
        prepare=_prepare,
        scratch_floats={},
        why_not=_why_not,
        caches_held=2,
    )


def _prepare(cache: PagedCache) -> Contiguous:
    return Contiguous(_contiguous(cache, cache.pool.k), _contiguous(cache, cache.pool.v))


def _contiguous(cache: PagedCache, storage: torch.Tensor) -> torch.Tensor:
    """Equal-length requests copied out of their pages, one request at a time."""
    import torch

    _, heads, _, dim = storage.shape
    length = cache.seq_lens[0]
    target = torch.empty((cache.batch_size, heads, length, dim), dtype=storage.dtype, device=storage.device)
    for request in range(cache.batch_size):
        pages = torch.tensor(cache.physical_pages(request), device=storage.device)
        for head in range(heads):
            target[request, head] = storage[pages, head].reshape(-1, dim)[:length]
    return target


def _dense(q: torch.Tensor, cache: Contiguous, *_: Any) -> torch.Tensor:
    """Attention output [batch_size, num_qo_heads, head_dim]; SDPA allocates it."""
    import torch.nn.functional as functional

    grouped = q.shape[1] != cache.k.shape[1]
    out = functional.scaled_dot_product_attention(q.unsqueeze(2), cache.k, cache.v, enable_gqa=grouped)
    return out.squeeze(2)


def _dense_cuda(q: torch.Tensor, cache: Contiguous, *arguments: Any) -> torch.Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    with sdpa_kernel(fused):
        return _dense(q, cache, *arguments)


def _why_not(point: Point) -> str | None:
    if len(set(point.lengths)) > 1 or 0 in point.lengths:
        return "SDPA takes requests of one length only"
    if point.shape.kv_dtype not in KERNEL_DTYPES:
        return f"SDPA takes no kv_dtype {point.shape.kv_dtype}"
    return None
