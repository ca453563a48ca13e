"""Ablation on the CPU: the selected pages copied into a contiguous temporary, as in `gather.py`."""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from questprof_kernels.arguments import check_cache, check_rows, check_tensor
from questprof_kernels.cpu_device import _jit
from questprof_kernels.gathered import Gathered
from questprof_kernels.paged_cache import PagedCache


@_jit(parallel=True)
def _gather(k, v, block_table, kv_indptr, last_page_len, ids, indptr, group, shape, new):
    """K and V are 32-bit words; `shape` (num_qo_heads, num_kv_heads, page_size, words of a vector)."""
    heads, kv_heads, page_size, words = shape
    new_k, new_v, new_table, new_indptr, new_lengths = new
    for row in prange(heads * (len(indptr) - 1)):
        request, head = row // heads, row % heads
        start, count = indptr[request], indptr[request + 1] - indptr[request]
        num_pages = kv_indptr[request + 1] - kv_indptr[request]
        first = heads * start + head * count
        new_indptr[row + 1] = first + count
        new_lengths[row] = 0
        for entry in range(count):
            logical = ids[head, start + entry]
            physical = block_table[kv_indptr[request] + logical]
            valid = last_page_len[request] if logical == num_pages - 1 else page_size
            source = (physical * kv_heads + head // group) * page_size * words
            target = (first + entry) * page_size * words
            for word in range(valid * words):
                new_k[target + word] = k[source + word]
                new_v[target + word] = v[source + word]
            new_table[first + entry] = first + entry
            new_lengths[row] = valid


def gather(
    cache: PagedCache, page_ids: torch.Tensor, select_indptr: torch.Tensor, gathered: Gathered
) -> None:
    """Copy the valid tokens of the selected pages into `gathered`, and write its tables.

    Arguments as the Triton launcher takes them.
    """
    check_cache(cache)
    pool, heads = cache.pool, page_ids.shape[0]
    check_rows("page_ids", page_ids, heads, 0, torch.int32, pool.k.device)
    check_tensor("select_indptr", select_indptr, (cache.batch_size + 1,), torch.int32, pool.k.device)
    gathered.kv_indptr[0] = 0
    _gather(
        _words(pool.k),
        _words(pool.v),
        cache.block_table.numpy(),
        cache.kv_indptr.numpy(),
        cache.last_page_len.numpy(),
        page_ids.numpy(),
        select_indptr.numpy(),
        heads // pool.num_kv_heads,
        (heads, pool.num_kv_heads, pool.page_size, pool.head_dim * pool.k.element_size() // 4),
        (
            _words(gathered.pool.k),
            _words(gathered.pool.v),
            gathered.block_table.numpy(),
            gathered.kv_indptr.numpy(),
            gathered.last_page_len.numpy(),
        ),
    )


def _words(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor as 32-bit words."""
    return tensor.view(torch.int32).view(-1).numpy()
