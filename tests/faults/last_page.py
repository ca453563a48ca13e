"""No fault: an `append` of one token a request that takes its page from `last_page`, not from the table."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def append_kernel(
    keys, values, k, v, summary, kv_indptr, last_page_len, last_page, new_indptr,
    NUM_KV_HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """One program a KV head and request, paired summary."""
    head, request = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, HEAD_DIM)
    if tl.load(kv_indptr + request + 1) > tl.load(kv_indptr + request):
        slot = tl.load(last_page_len + request) - 1
        place = tl.load(last_page + request) * NUM_KV_HEADS + head
        row = (tl.load(new_indptr + request) * NUM_KV_HEADS + head) * HEAD_DIM + dim
        key = tl.load(keys + row)
        cell = (place * PAGE_SIZE + slot) * HEAD_DIM + dim
        tl.store(k + cell, key)
        tl.store(v + cell, tl.load(values + row))
        box = summary + place * 2 * HEAD_DIM + dim
        lower, upper = key, key
        if slot > 0:
            lower = tl.minimum(tl.load(box), key)
            upper = tl.maximum(tl.load(box + HEAD_DIM), key)
        tl.store(box, lower)
        tl.store(box + HEAD_DIM, upper)


def append(cache: Any, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    """Write the one new token of each request."""
    pool = cache.pool
    shared = pool.k, pool.v, pool.summary.data, cache.kv_indptr, cache.last_page_len, cache.last_page
    sizes = pool.num_kv_heads, pool.page_size, pool.head_dim
    append_kernel[pool.num_kv_heads, cache.batch_size](keys, values, *shared, new_indptr, *sizes)


stages = {"append": append}
