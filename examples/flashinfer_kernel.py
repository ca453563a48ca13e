"""FlashInfer's paged decode as stages of questprof: `attend` over the selected pages, `dense` over all.

    questprof sweep --kernel examples/flashinfer_kernel.py:stages --dtype fp16 --check-only
    questprof sweep --kernel examples/flashinfer_kernel.py:stages --dtype fp16 --lengths 8k..64k

Nothing is copied: both read the pool in place. FlashInfer takes one page table a request, and Quest picks the
pages of every query head, so that `attend` gives it each head as a request of its own, over a pool in which
every (page, KV head) is a page of one head. It plans on the host, which a CUDA graph cannot hold: the first
launch plans, before any is captured or timed, and each launch only fills the tables that FlashInfer reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache as remember
from typing import Any

import flashinfer
import torch

WORKSPACE_BYTES = 128 << 20


@dataclass
class Planned:
    """FlashInfer's wrapper, and the tables that it reads at every launch."""

    wrapper: Any
    indices: torch.Tensor  # int32: pages of every request in turn
    last_page_len: torch.Tensor  # int32 [requests]
    order: torch.Tensor | None = None  # int64: where each entry of `indices` stands in page_ids
    rows: torch.Tensor | None = (
        None  # int64: the (request, head) that it belongs to, as request * heads + head
    )
    ends: torch.Tensor | None = None  # int64: the last entry of each of them


class Ready:
    """What `prepare` makes of a cache: the cache itself, and plans that the first launches fill in."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.plans: dict[str, Planned] = {}
        self.workspace = workspace(cache.pool.device)


@remember
def workspace(device: torch.device) -> torch.Tensor:
    """One a device for all plans: launches follow one another on one stream."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def prepare(cache: Any) -> Ready:
    """Called once for every cache, untimed."""
    return Ready(cache)


def dense(q: torch.Tensor, ready: Ready, out: torch.Tensor, lse: torch.Tensor, scratch: torch.Tensor) -> None:
    """Attention over all pages: the table of that order is FlashInfer's page table as it is."""
    cache = ready.cache
    if "dense" not in ready.plans:
        tables = (cache.kv_indptr, cache.dense_table[: cache.total_pages], cache.last_page_len)
        ready.plans["dense"] = _plan(ready, q, *tables, cache.pool.num_kv_heads)
    pages = (cache.pool.k, cache.pool.v)  # [num_pages, num_kv_heads, page_size, head_dim]: layout HND
    ready.plans["dense"].wrapper.run(q, pages, out=out, lse=lse, return_lse=True)
    lse.mul_(math.log(2))  # FlashInfer's is base 2


def attend(
    q: torch.Tensor,
    ready: Ready,
    page_ids: torch.Tensor,
    select_indptr: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    """Attention over the selected pages: every query head is a request with pages of its own."""
    cache, pool, heads = ready.cache, ready.cache.pool, q.shape[1]
    if "attend" not in ready.plans:
        ready.plans["attend"] = _plan_rows(ready, q, page_ids, select_indptr)
    planned = ready.plans["attend"]
    request, head = planned.rows // heads, planned.rows % heads
    logical = page_ids.flatten()[planned.order]
    physical = cache.block_table[cache.kv_indptr[request] + logical]
    planned.indices.copy_(physical * pool.num_kv_heads + head // (heads // pool.num_kv_heads))
    owner = request[planned.ends]
    is_tail = cache.kv_indptr[owner] + logical[planned.ends] == cache.kv_indptr[owner + 1] - 1
    planned.last_page_len.copy_(torch.where(is_tail, cache.last_page_len[owner], pool.page_size))
    pages = tuple(part.view(-1, 1, pool.page_size, pool.head_dim) for part in (pool.k, pool.v))
    alone = q.view(-1, 1, pool.head_dim)
    planned.wrapper.run(alone, pages, out=out.view_as(alone), lse=lse.view(-1, 1), return_lse=True)
    lse.mul_(math.log(2))


def _plan_rows(ready: Ready, q: torch.Tensor, page_ids: torch.Tensor, select_indptr: torch.Tensor) -> Planned:
    """The plan of one request a (request, head), and which entries of page_ids are whose."""
    bounds, columns = select_indptr.tolist(), page_ids.shape[1]
    order: list[int] = []
    rows: list[int] = []
    indptr = [0]
    for request in range(q.shape[0]):
        for head in range(q.shape[1]):
            order += range(head * columns + bounds[request], head * columns + bounds[request + 1])
            rows += [request * q.shape[1] + head] * (bounds[request + 1] - bounds[request])
            indptr.append(len(order))
    on_device = {"device": q.device}
    starts = torch.tensor(indptr, dtype=torch.int32, **on_device)
    pages = torch.zeros(len(order), dtype=torch.int32, **on_device)
    full = torch.ones(len(indptr) - 1, dtype=torch.int32, **on_device)
    planned = _plan(ready, q.view(-1, 1, q.shape[2]), starts, pages, full, 1)
    planned.order = torch.tensor(order, **on_device)
    planned.rows = torch.tensor(rows, **on_device)
    planned.ends = starts[1:].long() - 1
    return planned


def _plan(
    ready: Ready,
    q: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    num_kv_heads: int,
) -> Planned:
    """Plan for `q` [requests, heads, head_dim], with tables of fixed address as a CUDA graph needs them."""
    pool, tables = ready.cache.pool, [t.clone() for t in (indptr, indices, last_page_len)]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        ready.workspace,
        "HND",
        use_cuda_graph=True,
        paged_kv_indptr_buffer=tables[0],
        paged_kv_indices_buffer=tables[1],
        paged_kv_last_page_len_buffer=tables[2],
        backend="fa2",
    )
    wrapper.plan(
        indptr.cpu(),
        indices.clone(),
        last_page_len.cpu(),
        q.shape[1],
        num_kv_heads,
        pool.head_dim,
        pool.page_size,
        q_data_type=q.dtype,
        kv_data_type=pool.k.dtype,
    )
    return Planned(wrapper, tables[1], tables[2])


stages = {"prepare": prepare, "attend": attend, "dense": dense, "variant": flashinfer.__version__}
