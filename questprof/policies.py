"""Policies turn (backend, cache, query, budget) into the list of steps everything else walks.

`quest` always takes the tail page, as the official kernels do (it counts in K); `quest-open` lets all
pages compete, as the article's equations read; `dense` reads every page. A new policy is one function
and one line in `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend, guarded
from questprof.errors import QuestprofError

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

QUEST_CHAIN = ("score", "select", "attend")
"""The stages of `quest`: what a user gets, and what is timed as one."""


@dataclass(frozen=True)
class Step:
    """One launch of one stage, all its tensors bound."""

    stage: str
    launch: Callable[[], None]


@dataclass
class Outputs:
    """The tensors the steps write."""

    out: torch.Tensor  # [batch_size, num_qo_heads, head_dim]
    lse: torch.Tensor | None  # fp32 [batch_size, num_qo_heads]; None where the backend gives none
    scores: torch.Tensor | None = None  # fp32 [num_qo_heads, total_pages]
    page_ids: torch.Tensor | None = None  # int32 [num_qo_heads, select_indptr[-1]]
    select_indptr: torch.Tensor | None = None  # int32 [batch_size + 1]


@dataclass
class Bound:
    """One cache and query with the steps of one policy bound to them."""

    cache: PagedCache
    q: torch.Tensor
    take_tail: bool
    outputs: Outputs
    steps: tuple[Step, ...] = field(default=())

    @property
    def chain(self) -> tuple[Step, ...]:
        """The steps timed together as `quest`; empty for a dense policy."""
        return tuple(step for step in self.steps if step.stage in QUEST_CHAIN)


def bind(
    policy: str, backend: Backend, cache: PagedCache, q: torch.Tensor, num_selected: Sequence[int]
) -> Bound:
    """The steps of `policy` over `cache` for `q` [batch_size, num_qo_heads, head_dim].

    `num_selected` is K of each request (at most its pages). QuestprofError for an unknown policy.
    """
    if policy not in POLICIES:
        raise QuestprofError(f"policy {policy!r}", "it is unknown", f"Choose one of {', '.join(POLICIES)}.")
    return POLICIES[policy](backend, cache, q, tuple(num_selected))


def _dense(backend: Backend, cache: PagedCache, q: torch.Tensor, num_selected: tuple[int, ...]) -> Bound:
    bound = Bound(cache, q, take_tail=True, outputs=_outputs(backend, q))
    context = backend.prepare(cache)
    scratch = _scratch(backend, "dense", q, cache)

    def launch() -> None:
        returned = guarded(backend, "dense", q, context, bound.outputs.out, bound.outputs.lse, scratch)
        if returned is not None:
            bound.outputs.out = returned

    bound.steps = (*_append_step(backend, "append_kv", cache), Step("dense", launch))
    return bound


def _quest(
    backend: Backend,
    cache: PagedCache,
    q: torch.Tensor,
    num_selected: tuple[int, ...],
    *,
    take_tail: bool,
) -> Bound:
    import torch

    heads, device = q.shape[1], q.device
    select_indptr = torch.tensor([0, *num_selected]).cumsum(0).to(torch.int32).to(device)
    scores = torch.empty((heads, cache.total_pages), dtype=torch.float32, device=device)
    page_ids = torch.zeros((heads, sum(num_selected)), dtype=torch.int32, device=device)
    outputs = _outputs(backend, q)
    outputs.scores, outputs.page_ids, outputs.select_indptr = scores, page_ids, select_indptr
    scratch = _scratch(backend, "attend", q, cache, page_ids)
    launches: dict[str, tuple[Any, ...]] = {
        "score": (q, cache, scores),
        "select": (scores, cache, select_indptr, page_ids, take_tail),
        "attend": (q, cache, page_ids, select_indptr, outputs.out, outputs.lse, scratch),
    }
    steps = tuple(Step(stage, partial(_launch, backend, stage, launches[stage])) for stage in QUEST_CHAIN)
    return Bound(cache, q, take_tail, outputs, (*_append_step(backend, "append", cache), *steps))


POLICIES: dict[str, Callable[[Backend, PagedCache, torch.Tensor, tuple[int, ...]], Bound]] = {
    "dense": _dense,
    "quest": partial(_quest, take_tail=True),
    "quest-open": partial(_quest, take_tail=False),
}


def _launch(backend: Backend, stage: str, arguments: tuple[Any, ...]) -> None:
    guarded(backend, stage, *arguments)


def _append_step(backend: Backend, stage: str, cache: PagedCache) -> tuple[Step, ...]:
    """The decode append of each request's newest token, written again with the values it holds."""
    if stage not in backend.stages:
        return ()
    import torch

    counts = [min(1, length) for length in cache.seq_lens]
    keys, values = newest_tokens(cache)
    new_indptr = torch.tensor([0, *counts]).cumsum(0).to(torch.int32).to(cache.pool.device)
    return (Step(stage, partial(_launch, backend, stage, (cache, keys, values, new_indptr))),)


def newest_tokens(cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V, each [num_nonempty_requests, num_kv_heads, head_dim], of the newest token of each request."""
    import torch

    where = [
        (cache.physical_pages(request)[-1], (length - 1) % cache.pool.page_size)
        for request, length in enumerate(cache.seq_lens)
        if length
    ]
    pages, slots = (torch.tensor(index, dtype=torch.long) for index in zip(*where, strict=True))
    return cache.pool.k[pages, :, slots].contiguous(), cache.pool.v[pages, :, slots].contiguous()


def _outputs(backend: Backend, q: torch.Tensor) -> Outputs:
    import torch

    lse = torch.full(q.shape[:2], torch.nan, dtype=torch.float32, device=q.device)
    return Outputs(torch.full_like(q, torch.nan), lse if "attend" in backend.stages else None)


def _scratch(
    backend: Backend, stage: str, q: torch.Tensor, cache: PagedCache, *page_ids: torch.Tensor
) -> torch.Tensor:
    import torch

    sizes = backend.scratch_floats
    size = sizes[stage](q, cache, *page_ids) if stage in sizes else 0
    return torch.zeros(max(1, size), dtype=torch.float32, device=q.device)
