"""Policies turn (backend, cache, query, budget) into the list of steps everything else walks.

`quest` always takes the tail page, as the official kernels do (it counts in K); `quest-open` lets all
pages compete, as the article's equations read; `dense` reads every page. A new policy is one function
and one line in `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend, guarded
from questprof.errors import QuestprofError
from questprof.scratch import Scratch

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

QUEST_STAGES = ("score", "select", "attend")
"""The stages of a Quest policy, each timed alone."""
FUSED = "select_attend"
"""Select repeated in the prologue of attend: in the chain where a backend has it, never timed alone."""
DECODE = "decode"
"""A user's score, select and attend in one launch: all of `quest`, and timed as that alone."""
QUEST = "quest"


@dataclass(frozen=True)
class Step:
    """One launch of one stage, all its tensors bound; `like` is the stage that it is another state of."""

    stage: str
    launch: Callable[[], None]
    like: str = ""

    @property
    def kind(self) -> str:
        """The stage whose results it leaves."""
        return self.like or self.stage


@dataclass
class Outputs:
    """The tensors the steps write."""

    out: torch.Tensor  # [batch_size, num_qo_heads, head_dim]
    lse: torch.Tensor | None  # fp32 [batch_size, num_qo_heads]; None where the backend gives none
    scores: torch.Tensor | None = None  # fp32 [num_qo_heads, total_pages]
    page_ids: torch.Tensor | None = None  # int32 [num_qo_heads, select_indptr[-1]]; of a decode: -1 is none
    select_indptr: torch.Tensor | None = None  # int32 [batch_size + 1]
    appended: tuple[torch.Tensor, torch.Tensor] | None = None
    """K and V [num_new_tokens, num_kv_heads, head_dim] that an append must have left as the newest tokens."""
    new_tokens: tuple[int, ...] = ()
    """How many of them each request received."""


@dataclass
class Bound:
    """One cache and query with the steps of one policy bound to them.

    `steps` are timed one by one; `chain` together as `quest`, what a user gets (empty for a dense policy).
    Both write the same outputs; a fused chain holds a step that `steps` lacks.
    """

    cache: PagedCache
    q: torch.Tensor
    take_tail: bool
    outputs: Outputs
    steps: tuple[Step, ...] = ()
    chain: tuple[Step, ...] = ()

    @property
    def fused(self) -> bool:
        """Whether the chain launches what no step does, so that it needs a check of its own."""
        return any(step not in self.steps for step in self.chain)

    @property
    def last_written(self) -> tuple[Step, ...]:
        """The steps whose results a timed round leaves: a fused chain runs after the steps."""
        alone = (step for step in self.steps if not self.fused or step.kind not in QUEST_STAGES)
        return (*alone, *self.chain) if self.fused else self.steps


def bind(
    policy: str,
    backend: Backend,
    cache: PagedCache,
    q: torch.Tensor,
    num_selected: Sequence[int],
    scratch: Scratch | None = None,
) -> Bound:
    """The steps of `policy` over `cache` for `q` [batch_size, num_qo_heads, head_dim].

    `num_selected` is K of each request (at most its pages). Caches of the same lengths may be bound with one
    `scratch`, which they share. QuestprofError for an unknown policy.
    """
    if policy not in POLICIES:
        raise QuestprofError(f"policy {policy!r}", "it is unknown", f"Choose one of {', '.join(POLICIES)}.")
    return POLICIES[policy](backend, cache, q, tuple(num_selected), scratch or Scratch())


def _dense(
    backend: Backend, cache: PagedCache, q: torch.Tensor, num_selected: tuple[int, ...], scratch: Scratch
) -> Bound:
    bound = Bound(cache, q, take_tail=True, outputs=_outputs(backend, q))
    context = backend.prepare(cache, q)
    floats = scratch.of(backend, "dense", q, cache)

    def launch() -> None:
        returned = guarded(backend, "dense", q, context, bound.outputs.out, bound.outputs.lse, floats)
        if returned is not None:
            bound.outputs.out = returned

    bound.steps = (*_append_step(backend, "append_kv", cache), Step("dense", launch))
    return bound


def _quest(
    backend: Backend,
    cache: PagedCache,
    q: torch.Tensor,
    num_selected: tuple[int, ...],
    scratch: Scratch,
    *,
    take_tail: bool,
) -> Bound:
    import torch

    if DECODE in backend.stages:
        return _decode(backend, cache, q, num_selected, scratch, take_tail=take_tail)
    outputs = _outputs(backend, q)
    page_ids, select_indptr = _selection(outputs, q, num_selected)
    scores = torch.empty((q.shape[1], cache.total_pages), dtype=torch.float32, device=q.device)
    outputs.scores = scores
    own = backend.contexts(cache) if backend.contexts else {}
    read = {stage: own.get(stage, cache) for stage in QUEST_STAGES}
    select = (select_indptr, page_ids, take_tail)
    floats = scratch.of(backend, "attend", q, cache, page_ids)
    launches: dict[str, tuple[Any, ...]] = {
        "score": (q, read["score"], scores),
        "select": (scores, read["select"], *select),
        "attend": (q, read["attend"], page_ids, select_indptr, outputs.out, outputs.lse, floats),
    }
    steps = tuple(Step(stage, launcher(backend, stage, *launches[stage])) for stage in QUEST_STAGES)
    chain, most = steps, max(num_selected)
    if FUSED in backend.stages and backend.fuses(q, cache, page_ids, most):
        floats = scratch.of(backend, "attend", q, cache, page_ids, owner=FUSED)
        both = (scores, own.get(FUSED, cache), *select, q, outputs.out, outputs.lse, floats)
        chain = (steps[0], Step(FUSED, launcher(backend, FUSED, *both, most_selected=most)))
    return Bound(cache, q, take_tail, outputs, (*_append_step(backend, "append", cache), *steps), chain)


def _selection(
    outputs: Outputs, q: torch.Tensor, num_selected: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty page_ids and the select_indptr of `num_selected` pages a request, put into `outputs`."""
    import torch

    select_indptr = torch.tensor([0, *num_selected]).cumsum(0).to(torch.int32).to(q.device)
    page_ids = torch.zeros((q.shape[1], sum(num_selected)), dtype=torch.int32, device=q.device)
    outputs.page_ids, outputs.select_indptr = page_ids, select_indptr
    return page_ids, select_indptr


def _decode(
    backend: Backend,
    cache: PagedCache,
    q: torch.Tensor,
    num_selected: tuple[int, ...],
    scratch: Scratch,
    *,
    take_tail: bool,
) -> Bound:
    """The chain of a backend whose `decode` is all of it; ids and lse where it gives them."""
    outputs = _outputs(backend, q)
    page_ids, select_indptr = _selection(outputs, q, num_selected)
    outputs.page_ids = page_ids if "page_ids" in backend.asks else None
    outputs.lse = outputs.lse if "lse" in backend.asks else None
    offered = {
        "page_ids": page_ids,
        "select_indptr": select_indptr,
        "num_selected": num_selected,
        "take_tail": take_tail,
        "lse": outputs.lse,
        "scratch": scratch.of(backend, DECODE, q, cache),
    }
    options = {name: offered[name] for name in backend.asks}
    context = backend.contexts(cache)[DECODE] if backend.contexts else cache
    step = Step(QUEST, launcher(backend, DECODE, q, context, outputs.out, **options))
    return Bound(cache, q, take_tail, outputs, (*_append_step(backend, "append", cache), step), (step,))


POLICIES: dict[str, Callable[[Backend, PagedCache, torch.Tensor, tuple[int, ...], Scratch], Bound]] = {
    "dense": _dense,
    "quest": partial(_quest, take_tail=True),
    "quest-open": partial(_quest, take_tail=False),
}


def launcher(backend: Backend, stage: str, *arguments: Any, **options: Any) -> Callable[[], None]:
    """A launch of `stage` with its tensors bound, which returns nothing."""

    def launch() -> None:
        guarded(backend, stage, *arguments, **options)

    return launch


def _append_step(backend: Backend, stage: str, cache: PagedCache) -> tuple[Step, ...]:
    """The decode append of each request's newest token, written again with the values it holds."""
    if stage not in backend.stages:
        return ()
    import torch

    counts = [min(1, length) for length in cache.seq_lens]
    keys, values = newest_tokens(cache, counts)
    new_indptr = torch.tensor([0, *counts]).cumsum(0).to(torch.int32).to(cache.pool.device)
    return (Step(stage, launcher(backend, stage, cache, keys, values, new_indptr)),)


def newest_tokens(cache: PagedCache, counts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [sum(counts), num_kv_heads, head_dim] of the newest `counts[r]` tokens of each request r."""
    pages, slots = newest_slots(cache, counts)
    return cache.pool.k[pages, :, slots].contiguous(), cache.pool.v[pages, :, slots].contiguous()


def newest_slots(cache: PagedCache, counts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Physical pages and slots (int64 [sum(counts)]) of the newest `counts[r]` tokens of each request r."""
    import torch

    size = cache.pool.page_size
    where = []
    for request, (length, count) in enumerate(zip(cache.seq_lens, counts, strict=True)):
        positions = torch.arange(length - count, length)
        held = torch.tensor(cache.physical_pages(request), dtype=torch.long)
        where.append(torch.stack([held[positions // size], positions % size]))
    pages, slots = torch.cat(where, dim=1).to(cache.pool.device)
    return pages, slots


def _outputs(backend: Backend, q: torch.Tensor) -> Outputs:
    import torch

    lse = torch.full(q.shape[:2], torch.nan, dtype=torch.float32, device=q.device)
    return Outputs(torch.full_like(q, torch.nan), lse if "attend" in backend.stages else None)
