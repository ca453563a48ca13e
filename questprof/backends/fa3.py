"""FlashAttention-3 over the cache's own pages: a dense baseline on Hopper chips, nothing copied.

It wants pages as [num_pages, page_size, num_kv_heads, head_dim] of any page size and any strides but the
last: a view of the pool's K and V. It has no wheel on PyPI.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend
from questprof.model import Point

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

DTYPES = ("fp16", "bf16")
MAX_HEAD_DIM = 256
SOURCE = "https://github.com/Dao-AILab/flash-attention, folder hopper"


@dataclass(frozen=True)
class Paged:
    """What `flash_attn_with_kvcache` reads beside q."""

    k: torch.Tensor  # [num_pages, page_size, num_kv_heads, head_dim], a view
    v: torch.Tensor
    page_table: torch.Tensor  # int32 [batch_size, most pages of a request]
    seq_lens: torch.Tensor  # int32 [batch_size]


def load(device: str) -> Backend:
    """FlashAttention-3's decode; only on `cuda`."""
    version, missing = _found(device)
    variant = f"flash-attn-3-{version}" if version else "flash-attn-3"
    return Backend(
        name="fa3",
        variant=lambda _: variant,
        stages={"dense": _dense},
        prepare=_prepare,
        scratch_floats={},
        why_not=partial(_why_not, missing),
    )


def _found(device: str) -> tuple[str, str]:
    """(version, ''), or ('', why it cannot run and how to get it)."""
    if device != "cuda":
        return "", "FlashAttention-3 needs a GPU: use --device cuda"
    try:
        import_module("flash_attn_interface")
    except (ImportError, RuntimeError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return "", f"FlashAttention-3 is not usable ({reason}): no wheel on PyPI, build it from {SOURCE}"
    try:
        return metadata.version("flash_attn_3"), ""
    except metadata.PackageNotFoundError:
        return "unknown", ""


def _why_not(missing: str, point: Point) -> str | None:
    shape = point.shape
    if missing:
        return missing
    if shape.kv_dtype not in DTYPES:
        return f"FlashAttention-3 takes no kv_dtype {shape.kv_dtype}: {', '.join(DTYPES)}"
    if shape.head_dim > MAX_HEAD_DIM:
        return f"FlashAttention-3 takes no head_dim {shape.head_dim}: at most {MAX_HEAD_DIM}"
    if 0 in point.lengths:
        return "FlashAttention-3 is not tried on empty requests"
    return None


def _prepare(cache: PagedCache, _: torch.Tensor) -> Paged:
    import torch

    tables = cache.dense_table[: cache.total_pages].split(cache.num_pages)
    page_table = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
    pool = cache.pool
    seq_lens = torch.tensor(cache.seq_lens, dtype=torch.int32, device=pool.device)
    return Paged(pool.k.transpose(1, 2), pool.v.transpose(1, 2), page_table, seq_lens)


def _dense(q: torch.Tensor, paged: Paged, *_: Any) -> torch.Tensor:
    """Attention output [batch_size, num_qo_heads, head_dim]; the library allocates it."""
    out: torch.Tensor = import_module("flash_attn_interface").flash_attn_with_kvcache(
        q.unsqueeze(1), paged.k, paged.v, cache_seqlens=paged.seq_lens, page_table=paged.page_table
    )
    return out.squeeze(1)
