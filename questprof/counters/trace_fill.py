"""Filling the caches of a trace: an `append` in plain torch, as the interpreted one would take minutes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from questprof.policies import newest_slots

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache, PagePool


def fill(cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    """What stage `append` does, arguments alike: tokens into their pages, equation (1) for the boxes."""
    bounds = new_indptr.tolist()
    counts = [stop - start for start, stop in pairwise(bounds)]
    pages, slots = newest_slots(cache, counts)
    cache.pool.k[pages, :, slots] = keys
    cache.pool.v[pages, :, slots] = values
    for request, count in enumerate(counts):
        if count:
            _write_boxes(cache, request, (cache.seq_lens[request] - count) // cache.pool.page_size)


def poison(pool: PagePool) -> None:
    """NaN into every slot of K and V: what no token owns stays so, and shows in a result that reads it."""
    pool.k.fill_(float("nan"))
    pool.v.fill_(float("nan"))


def _write_boxes(cache: PagedCache, request: int, first: int) -> None:
    """The boxes of the pages of `request` from logical page `first` on, from their cached keys."""
    import torch

    size, length = cache.pool.page_size, cache.seq_lens[request]
    logical = torch.arange(first, cache.num_pages[request])
    physical = torch.tensor(cache.physical_pages(request))[logical]
    valid = logical[:, None] * size + torch.arange(size) < length
    keys, unused = cache.pool.k[physical], ~valid[:, None, :, None]
    # No key is NaN here, which append would give no bounds.
    lower = keys.masked_fill(unused, torch.inf).amin(dim=2)  # [pages, num_kv_heads, head_dim]
    upper = keys.masked_fill(unused, -torch.inf).amax(dim=2)
    _store_boxes(cache, cache.summary_blocks(request), logical, physical, (lower, upper))


def _store_boxes(
    cache: PagedCache,
    blocks: Sequence[int],
    logical: torch.Tensor,
    physical: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor],
) -> None:
    import torch

    data = cache.pool.summary.data
    for which, bound in enumerate(bounds):
        if cache.pool.summary.layout == "paired":
            data[physical, :, which] = bound.to(data.dtype)
        else:
            block_pages = data.shape[-1]
            block = torch.tensor(blocks)[logical // block_pages]
            data[block, :, :, which, logical % block_pages] = bound.to(data.dtype)
