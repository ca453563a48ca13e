"""Attention of every layer of a step over growing caches: a backend's stages on tensors that layers share.

Layers run one after another, so that scores, ids and scratch of one layer serve the next. Lengths, tables and
K lie in device tensors, written in place between steps; what the launchers fix at capture is chosen for the
longest a request may grow to: grids (`PagedCache.planned_pages`), columns of scores and ids, `most_selected`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend, guarded
from questprof.decode.caches import StepCaches
from questprof.decode.records import PartName
from questprof.errors import QuestprofError
from questprof.policies import FUSED
from questprof.scratch import Scratch

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

Launch = Callable[[], None]
TAKES_TAIL = {"quest": True, "quest-open": False}
"""Whether the last page is always taken, by policy that selects."""


class Selection:
    """What layers of one token budget select: K of each request, and the ids of the layer that ran last."""

    def __init__(self, caches: StepCaches, token_budget: int, num_qo_heads: int) -> None:
        import torch

        pool = caches.lead.pool
        if token_budget < pool.page_size:
            raise QuestprofError(
                f"token budget {token_budget}",
                f"a page has {pool.page_size} tokens",
                "Ask for a page at least, or for 0 where a layer is to be dense.",
            )
        self.token_budget = token_budget
        # A request within its budget attends all its pages, the last partly filled one among them.
        budget_pages = -(-token_budget // pool.page_size)
        most = [min(pages, budget_pages) for pages in caches.most_pages]
        self.most_selected = max(most)
        self.page_ids = torch.zeros((num_qo_heads, sum(most)), dtype=torch.int32, device=pool.device)
        self.select_indptr = torch.zeros(len(most) + 1, dtype=torch.int32, device=pool.device)
        self._starts: list[int] = []

    def num_selected(self, cache: PagedCache) -> list[int]:
        """K of each request at its length of now: all pages where the budget covers it."""
        size = cache.pool.page_size
        return [
            pages if length <= self.token_budget else min(self.token_budget // size, pages)
            for length, pages in zip(cache.seq_lens, cache.num_pages, strict=True)
        ]

    def update(self, cache: PagedCache) -> None:
        """Write K of now where it changed."""
        import torch

        starts = [0]
        for count in self.num_selected(cache):
            starts.append(starts[-1] + count)
        if starts != self._starts:
            self.select_indptr.copy_(torch.tensor(starts, dtype=torch.int32))
            self._starts = starts


@dataclass
class AttentionBuffers:
    """What all layers share: queries in, outputs out, scores and scratch."""

    q: torch.Tensor  # [batch_size, num_qo_heads, head_dim]
    out: torch.Tensor
    lse: torch.Tensor
    scores: torch.Tensor  # fp32 [num_qo_heads, most pages]
    scratch: Scratch = field(default_factory=Scratch)


def make_buffers(caches: StepCaches, q: torch.Tensor) -> AttentionBuffers:
    """Buffers for `q` [batch_size, num_qo_heads, head_dim], a view of where the projection writes."""
    import torch

    columns = sum(caches.most_pages)
    return AttentionBuffers(
        q=q,
        out=torch.zeros(q.shape, dtype=q.dtype, device=q.device),
        lse=torch.zeros(q.shape[:2], dtype=torch.float32, device=q.device),
        scores=torch.zeros((q.shape[1], columns), dtype=torch.float32, device=q.device),
    )


def dense_launches(
    backend: Backend, cache: PagedCache, buffers: AttentionBuffers
) -> list[tuple[PartName, Launch]]:
    """(part, launch) of a layer whose attention reads every page.

    QuestprofError where the backend reads a copy, or plans for one length: a step grows.
    """
    if backend.prepare(cache, buffers.q) is not cache:
        raise QuestprofError(
            f"backend {backend.name!r} in a decode step",
            "it prepares for one length, and a step grows",
            "Choose questprof or triton.",
        )

    def launch() -> None:
        scratch = buffers.scratch.of(backend, "dense", buffers.q, cache)
        guarded(backend, "dense", buffers.q, cache, buffers.out, buffers.lse, scratch)

    return [("dense", launch)]


def quest_launches(
    backend: Backend,
    cache: PagedCache,
    buffers: AttentionBuffers,
    selection: Selection,
    *,
    take_tail: bool,
) -> list[tuple[PartName, Launch]]:
    """(part, launch) of a layer that scores, selects and attends; a fused select is part of `attend`."""
    q, ids, indptr = buffers.q, selection.page_ids, selection.select_indptr
    select = (buffers.scores, cache, indptr, ids, take_tail)

    def score() -> None:
        guarded(backend, "score", q, cache, buffers.scores)

    def attend() -> None:
        scratch = buffers.scratch.of(backend, "attend", q, cache, ids)
        guarded(backend, "attend", q, cache, ids, indptr, buffers.out, buffers.lse, scratch)

    def select_attend() -> None:
        scratch = buffers.scratch.of(backend, "attend", q, cache, ids, owner=FUSED)
        options = {"most_selected": selection.most_selected}
        guarded(backend, FUSED, *select, q, buffers.out, buffers.lse, scratch, **options)

    if FUSED in backend.stages and backend.fuses(q, cache, ids, selection.most_selected):
        return [("score", score), ("attend", select_attend)]
    return [("score", score), ("select", partial(_launch, backend, "select", select)), ("attend", attend)]


def _launch(backend: Backend, stage: str, arguments: tuple[Any, ...]) -> None:
    guarded(backend, stage, *arguments)


def check_backend(backend: Backend, stages: Sequence[str]) -> None:
    """QuestprofError where the backend lacks a stage."""
    missing = [stage for stage in stages if stage not in backend.stages]
    if missing:
        raise QuestprofError(
            f"backend {backend.name!r} in a decode step",
            f"it has no stage {missing[0]}",
            "Choose questprof or triton.",
        )
