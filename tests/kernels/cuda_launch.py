"""The CUDA launchers without a GPU: caches that take no memory, and what would have been launched on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from questprof_kernels import append_cuda, cuda_stages
from questprof_kernels.paged_cache import PagedCache, PagePool
from questprof_kernels.plan import summary_blocks

WORKERS = 132  # of an H200
SHARED_BYTES = {80: 166912, 90: 232448, 100: 232448}
"""What one block may have at most, by compute capability."""


@dataclass(frozen=True)
class Launch:
    """One launch: the specialised kernel, its grid and the argument structure."""

    source: str
    name: str
    definitions: tuple[tuple[str, int], ...]
    num_threads: int
    shared_bytes: int
    grid: tuple[int, int, int]
    arguments: Any
    dependent: bool


@dataclass
class Recorder:
    """Stands in for `load_kernel`; `blocks_per_sm` is what every kernel then claims to fit."""

    blocks_per_sm: int = 1
    launches: list[Launch] = field(default_factory=list)

    def load(
        self, source: str, name: str, definitions: tuple[tuple[str, int], ...], num_threads: int, *rest: int
    ) -> Any:
        *shared_bytes, _ = rest  # dynamic shared memory, where kernels may have some, then the device

        def launch(grid: tuple[int, int, int], arguments: Any, *, dependent: bool = False) -> None:
            kernel = source, name, definitions, num_threads, sum(shared_bytes)
            self.launches.append(Launch(*kernel, grid, arguments, dependent))

        return SimpleNamespace(blocks_per_sm=self.blocks_per_sm, launch=launch)


def record(monkeypatch: pytest.MonkeyPatch, architecture: int = 90) -> Recorder:
    """Let the launchers record from now on, on a device of this compute capability."""
    recorder = Recorder()
    properties = SimpleNamespace(shared_memory_per_block_optin=SHARED_BYTES[architecture])
    monkeypatch.setattr(cuda_stages, "load_kernel", recorder.load)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return recorder


def bare_cache(
    seq_lens: Sequence[int],
    page_size: int = 16,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    dtype: torch.dtype = torch.float16,
    summary_layout: str = "paired",
) -> PagedCache:
    """A cache of `seq_lens` tokens whose tensors have shapes and no storage."""
    pages = [-(-length // page_size) for length in seq_lens]
    pool = PagePool(
        sum(pages),
        num_kv_heads,
        page_size,
        head_dim,
        dtype,
        summary_layout=summary_layout,
        num_summary_blocks=summary_blocks(pages),
        device="meta",
        num_workers=WORKERS,
    )
    cache = PagedCache(pool, len(seq_lens), sum(pages))
    cache.extend(list(seq_lens))
    return cache


@dataclass(frozen=True)
class Tensors:
    """What the launchers take beside a cache, for K pages a request at most."""

    q: torch.Tensor
    scores: torch.Tensor
    select_indptr: torch.Tensor
    page_ids: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


def bare_tensors(cache: PagedCache, num_qo_heads: int, num_selected: int) -> Tensors:
    """Tensors of the shapes and dtypes that fit `cache`, without storage."""
    ids = sum(min(num_selected, pages) for pages in cache.num_pages)
    q = torch.empty(
        cache.batch_size, num_qo_heads, cache.pool.head_dim, dtype=cache.pool.k.dtype, device="meta"
    )
    return Tensors(
        q=q,
        scores=torch.empty(num_qo_heads, cache.total_pages, device="meta"),
        select_indptr=torch.empty(cache.batch_size + 1, dtype=torch.int32, device="meta"),
        page_ids=torch.empty(num_qo_heads, ids, dtype=torch.int32, device="meta"),
        out=torch.empty_like(q),
        lse=torch.empty(q.shape[:2], device="meta"),
    )


def scratch_of(num_floats: int) -> torch.Tensor:
    return torch.empty(num_floats, device="meta")


def launch_all(cache: PagedCache, num_qo_heads: int, num_selected: int) -> None:
    """Every stage once; the fused one where it takes as many pages."""
    t = bare_tensors(cache, num_qo_heads, num_selected)
    plan = cuda_stages.attend_plan(t.q, cache, t.page_ids)
    cuda_stages.score(t.q, cache, t.scores)
    cuda_stages.select(t.scores, cache, t.select_indptr, t.page_ids)
    sparse = scratch_of(plan.scratch_floats)
    full = scratch_of(cuda_stages.dense_plan(t.q, cache).scratch_floats)
    cuda_stages.attend(t.q, cache, t.page_ids, t.select_indptr, t.out, t.lse, sparse)
    cuda_stages.dense(t.q, cache, t.out, t.lse, full)
    row = cache.pool.num_kv_heads, cache.pool.head_dim
    new_indptr = torch.empty(cache.batch_size + 1, dtype=torch.int32, device="meta")
    for new_tokens in (cache.batch_size, sum(cache.seq_lens)):  # the newest alone, and all of them
        new = torch.empty(new_tokens, *row, dtype=t.q.dtype, device="meta")
        for append in (append_cuda.append, append_cuda.append_kv):
            append(cache, new, new, new_indptr)
    chosen = (t.scores, cache, t.select_indptr, t.page_ids, True)
    with suppress(ValueError):  # too many pages a split
        cuda_stages.select_attend(*chosen, t.q, t.out, t.lse, sparse)
