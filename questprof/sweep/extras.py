"""Stages in states that a sweep times only when asked to: other rotations, timed as any other.

    append_cold       the append of one new token a request, at every slot of a page in turn, over so many
                      small caches that none is still in the last-level cache when its turn comes again
    append_prefill    the append of a whole prompt to empty caches
    append_kv_cold, append_kv_prefill      the same without the summary, with the dense policy
    select_cold       select over copies of the scores that `score` left, so many that none is cached

Each is a Candidate of its own, whose times join those of its point. A decode step's real append lies
between `append`, which writes the same few pages again, and `append_cold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from questprof import ledger
from questprof.backends import Backend
from questprof.environment import available_bytes
from questprof.model import Point
from questprof.policies import Bound, Outputs, Step, launcher
from questprof.timing.candidates import Candidate, Executor
from questprof.units import dtype_bytes
from questprof.workload import USABLE_SHARE, cache_bytes, make_pool, new_tokens

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache, PagePool

MAX_ROTATION: Final = 4096
"""Launches that one graph takes at most; where that is too few for cold, the label says warm."""
STAGES: Final = ("append_cold", "append_prefill", "append_kv_cold", "append_kv_prefill", "select_cold")


def extra_candidates(
    names: Sequence[str], bound: Bound, point: Point, backend: Backend, filler: Backend, executor: Executor
) -> list[Candidate]:
    """Candidates of `point` for the extras `names` (`append`, `select`); `bound` has run once.

    `filler` is the backend whose append fills caches. Stages that the backend lacks are left out.
    """
    found = []
    stage = "append_kv" if point.policy == "dense" else "append"
    if "append" in names and stage in backend.stages:
        makers = (_append_cold, _append_prefill) if _fits(point) else (_append_cold,)
        found += [maker(stage, point, backend, filler, executor, bound) for maker in makers]
    if "select" in names and bound.outputs.scores is not None:
        found.append(_select_cold(point, backend, executor, bound))
    return found


def _append_cold(
    stage: str, point: Point, backend: Backend, filler: Backend, executor: Executor, bound: Bound
) -> Candidate:
    """Small caches of one page a request, one new token each; cache i holds i % S tokens before it."""
    one = replace(point, policy="dense", seq_len=point.page_size, token_budget=0, page_order="scattered")
    one = replace(one, seq_lens=(), token_budgets=(), pool_bytes=0)
    counts = ledger.stage_bytes(ledger.entries(one, bound.cache.pool.num_workers))[stage]
    touched = counts.read + counts.write
    number = max(point.page_size, min(MAX_ROTATION, executor.rotation_size(touched)))
    pool = make_pool(one, number, bound.cache.pool.num_workers)
    name, rotation = f"{stage}_cold", []
    for i in range(number):
        cache = _empty_cache(one, pool)
        if held := i % one.page_size:
            filler.stages["append"](cache, *_grow(cache, (held,) * cache.batch_size, i))
        rotation.append(_appending(name, stage, backend, cache, bound, (1,) * cache.batch_size, number + i))
    return Candidate(tuple(rotation), {name: touched}, {})


def _append_prefill(
    stage: str, point: Point, backend: Backend, filler: Backend, executor: Executor, bound: Bound
) -> Candidate:
    """Empty caches, each given all its tokens in one launch."""
    shape = point.shape
    boxes = 2 * sum(point.num_pages) * shape.num_kv_heads * shape.head_dim
    boxes *= dtype_bytes(shape.effective_summary_dtype) * (stage == "append")
    vectors = 2 * sum(point.lengths) * shape.num_kv_heads * shape.head_dim * dtype_bytes(shape.kv_dtype)
    touched = 2 * vectors + boxes
    number = min(MAX_ROTATION, executor.rotation_size(touched))
    pool = make_pool(point, number, bound.cache.pool.num_workers)
    name = f"{stage}_prefill"
    rotation = [
        _appending(name, stage, backend, _empty_cache(point, pool), bound, point.lengths, i)
        for i in range(number)
    ]
    return Candidate(tuple(rotation), {name: touched}, {})


def _fits(point: Point) -> bool:
    """Whether one more cache of `point` fits, and as many new keys and values beside it."""
    return 2 * cache_bytes(point) <= USABLE_SHARE * available_bytes(point.device)


def _empty_cache(point: Point, pool: PagePool) -> PagedCache:
    from questprof_kernels.paged_cache import PagedCache

    return PagedCache(pool, len(point.lengths), sum(point.num_pages))


def _grow(
    cache: PagedCache, counts: Sequence[int], seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Room for `counts[r]` new tokens of each request r; their keys, values and new_indptr."""
    import torch

    new_indptr = cache.extend(counts)
    generator = torch.Generator(device=cache.pool.device).manual_seed(seed)
    return *new_tokens(cache.pool, sum(counts), generator), new_indptr


def _appending(
    name: str,
    stage: str,
    backend: Backend,
    cache: PagedCache,
    bound: Bound,
    counts: Sequence[int],
    seed: int,
) -> Bound:
    """`cache` grown by `counts` tokens, with the step that writes them; `bound` lends query and output."""
    keys, values, new_indptr = _grow(cache, counts, seed)
    launch = launcher(backend, stage, cache, keys, values, new_indptr)
    outputs = Outputs(bound.outputs.out, None, appended=(keys, values), new_tokens=tuple(counts))
    return Bound(cache, bound.q, bound.take_tail, outputs, (Step(name, launch, like=stage),))


def _select_cold(point: Point, backend: Backend, executor: Executor, bound: Bound) -> Candidate:
    """Copies of the scores of `bound`, each selected from into ids of its own."""
    import torch

    scores, ids, indptr = bound.outputs.scores, bound.outputs.page_ids, bound.outputs.select_indptr
    assert scores is not None
    assert ids is not None
    assert indptr is not None
    touched = scores.nbytes + ids.nbytes
    rotation = []
    for _ in range(min(MAX_ROTATION, executor.rotation_size(touched))):
        outputs = Outputs(bound.outputs.out, None, scores.clone(), torch.zeros_like(ids), indptr)
        assert outputs.scores is not None
        arguments = (outputs.scores, bound.cache, indptr, outputs.page_ids, bound.take_tail)
        step = Step("select_cold", launcher(backend, "select", *arguments), like="select")
        rotation.append(Bound(bound.cache, bound.q, bound.take_tail, outputs, (step,)))
    return Candidate(tuple(rotation), {"select_cold": touched}, {})
