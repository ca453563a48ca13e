"""Launches of the Triton stages with fresh, poisoned outputs: what every test of them starts from."""

from __future__ import annotations

from typing import Any

import torch
from cases import Case, eager_attend, make_outputs
from questprof_kernels import attend, dense, score, select
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import AttentionPlan


def scored(q: torch.Tensor, cache: PagedCache, **options: Any) -> torch.Tensor:
    """Scores fp32 [num_qo_heads, total_pages] of stage `score`; NaN where it wrote nothing."""
    scores = torch.full((q.shape[1], cache.total_pages), float("nan"), device=q.device)
    score.score(q, cache, scores, **options)
    return scores


def selected(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: torch.Tensor,
    take_tail: bool = True,
    **options: Any,
) -> torch.Tensor:
    """Page ids of stage `select`; -1 where it wrote nothing."""
    page_ids = torch.full(
        (scores.shape[0], int(select_indptr[-1])), -1, dtype=torch.int32, device=scores.device
    )
    select.select(scores, cache, select_indptr, page_ids, take_tail, **options)
    return page_ids


def make_scratch(plan: AttentionPlan, device: torch.device) -> torch.Tensor:
    """Counters at zero, and NaN where partials go: none may be read that was not written."""
    scratch = torch.full((plan.scratch_floats,), float("nan"), device=device)
    scratch[: plan.num_counters] = 0.0
    return scratch


def attended(
    q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor, select_indptr: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of stage `attend`; its counters must be zero afterwards."""
    plan = options.get("plan") or attend.attend_plan(q, cache, page_ids)
    scratch = make_scratch(plan, q.device)
    out, lse = make_outputs(q)
    attend.attend(q, cache, page_ids, select_indptr, out, lse, scratch, **options)
    assert not scratch[: plan.num_counters].view(torch.int32).any()
    return out, lse


def densely(q: torch.Tensor, cache: PagedCache, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of stage `dense`; its counters must be zero afterwards."""
    plan = options.get("plan") or dense.dense_plan(q, cache)
    scratch = make_scratch(plan, q.device)
    out, lse = make_outputs(q)
    dense.dense(q, cache, out, lse, scratch, **options)
    assert not scratch[: plan.num_counters].view(torch.int32).any()
    return out, lse


def eager(case: Case, q: torch.Tensor, *picks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of eager code in the dtype of `q`, on the CPU."""
    on_cpu = Case(case.cache, case.keys.cpu(), case.values.cpu(), case.new_indptr.cpu())
    return eager_attend(on_cpu, q.cpu(), *(pick.cpu() for pick in picks))
