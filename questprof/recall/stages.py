"""The product's own stages over one layer of a trace: every query a request, all sharing one prefix.

The keys go through `append` into a PagedCache whose requests fork from each other, so that the request of a
query at position t holds the tokens 0..t: its tail page is a copy with its valid tokens and their box alone.
Its pages lie shuffled in the pool. `score` and `select` pick, `attend` and `dense` give outputs and log-sums,
on the CPU or the GPU. fp32 throughout, as the trace.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from questprof.backends import Backend, guarded
from questprof.recall.view import Bools, Ints
from questprof.scratch import Scratch

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

Floats32 = NDArray[np.float32]
USUAL_SCALE = 1e-6
"""Relative difference from head_dim ** -0.5 up to which a softmax scale is that number, rounded."""


class Product:
    """One layer's cache and queries on `device`: `q` [queries, heads, d], `k`, `v` [tokens, kv_heads, d].

    `positions` [queries] rise. QuestprofError for what the stages refuse.
    """

    def __init__(
        self,
        backend: Backend,
        device: str,
        q: Floats32,
        k: Floats32,
        v: Floats32,
        positions: Sequence[int],
        page_size: int,
        softmax_scale: float,
    ) -> None:
        self.backend, self.device = backend, device
        self.num_pages: Ints = np.asarray(positions, np.int64) // page_size + 1
        self.max_pages = int(self.num_pages.max())
        factor = softmax_scale * q.shape[-1] ** 0.5
        self.q = self._tensor(q)
        self.scaled_q = self.q if abs(factor - 1) < USUAL_SCALE else self.q * factor
        self.cache = self._fill(self._tensor(k), self._tensor(v), positions, page_size)
        self.owners: Ints = np.repeat(np.arange(len(positions)), self.num_pages)
        self.columns: Ints = np.concatenate([np.arange(pages) for pages in self.num_pages])

    def _tensor(self, array: Floats32) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.array(array, np.float32, order="C")).to(self.device)

    def _fill(self, k: torch.Tensor, v: torch.Tensor, positions: Sequence[int], page_size: int) -> PagedCache:
        """Request r with the tokens 0..positions[r], forked from request r - 1 and appended to."""
        from questprof_kernels.paged_cache import PagedCache, PagePool

        batch_size, (_, num_kv_heads, head_dim) = len(positions), k.shape
        pool = PagePool(
            self.max_pages + batch_size, num_kv_heads, page_size, head_dim, k.dtype, device=self.device
        )
        order = list(range(pool.num_pages))
        random.Random(0).shuffle(order)
        pool.reorder_free(order)
        cache = PagedCache(pool, batch_size, int(self.num_pages.sum()))
        held = 0
        for request, position in enumerate(positions):
            if request:
                cache.fork(request - 1, request)
            wanted = position + 1
            counts = [0] * batch_size
            counts[request] = wanted - held
            new_indptr = cache.extend(counts)
            guarded(self.backend, "append", cache, k[held:wanted], v[held:wanted], new_indptr)
            held = wanted
        return cache

    def scores(self) -> Floats32:
        """Bounds of every page by stage `score`, [head, query, page], unscaled; -inf where unseen."""
        flat = self._scores().cpu().numpy()
        found = np.full((flat.shape[0], len(self.num_pages), self.max_pages), -np.inf, np.float32)
        found[:, self.owners, self.columns] = flat
        return found

    def _scores(self) -> torch.Tensor:
        import torch

        if not hasattr(self, "_scored"):
            size = self.q.shape[1], self.cache.total_pages
            self._scored = torch.full(size, torch.nan, dtype=torch.float32, device=self.device)
            guarded(self.backend, "score", self.q, self.cache, self._scored)
        return self._scored

    def select(self, num_selected: Ints, take_tail: bool) -> Bools | None:
        """Pages picked by stage `select`, [head, query, page]; None when its ids are not K pages a query."""
        import torch

        select_indptr = self._indptr(num_selected)
        size = self.q.shape[1], int(num_selected.sum())
        page_ids = torch.full(size, -1, dtype=torch.int32, device=self.device)
        guarded(self.backend, "select", self._scores(), self.cache, select_indptr, page_ids, take_tail)
        ids = page_ids.cpu().numpy()
        owners = np.repeat(np.arange(len(num_selected)), num_selected)
        if ((ids < 0) | (ids >= self.num_pages[owners])).any():
            return None
        picked = np.zeros((size[0], len(num_selected), self.max_pages), np.bool_)
        picked[np.arange(size[0])[:, None], owners, ids] = True
        return picked if (picked.sum(axis=-1) == num_selected).all() else None

    def attend(self, picked: Bools, backend: Backend | None = None) -> tuple[Floats32, Floats32]:
        """(out [head, query, d], lse [head, query]) of stage `attend` over `picked` [head, query, page]."""
        import torch

        backend = backend or self.backend
        ids = np.nonzero(picked)[2].reshape(len(picked), -1).astype(np.int32)
        page_ids = torch.from_numpy(ids).to(self.device)
        select_indptr = self._indptr(picked[0].sum(axis=-1))
        return self._attention(backend, "attend", page_ids, select_indptr)

    def dense(self) -> tuple[Floats32, Floats32]:
        """(out, lse) of stage `dense`, shapes as of `attend`."""
        return self._attention(self.backend, "dense")

    def _attention(self, backend: Backend, stage: str, *pages: torch.Tensor) -> tuple[Floats32, Floats32]:
        import torch

        out = torch.full_like(self.q, torch.nan)
        lse = torch.full(self.q.shape[:2], torch.nan, dtype=torch.float32, device=self.device)
        scratch = Scratch().of(backend, stage, self.scaled_q, self.cache, *pages[:1])
        guarded(backend, stage, self.scaled_q, self.cache, *pages, out, lse, scratch)
        return out.cpu().numpy().transpose(1, 0, 2), lse.cpu().numpy().T

    def _indptr(self, num_selected: Ints) -> torch.Tensor:
        import torch

        bounds = np.concatenate([[0], np.cumsum(num_selected)]).astype(np.int32)
        return torch.from_numpy(bounds).to(self.device)
