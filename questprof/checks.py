"""Every figure needs a passed check: each stage's output against the float64 reference.

`select` is checked exactly on the kernel's own scores, `attend` on the kernel's own ids. The tolerance
comes from data: twice the error of plain eager code in the same dtype, plus `rounding_floor`. Above
SAMPLE_ABOVE cached elements, 2 requests x 2 KV heads are checked over their whole length.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from questprof.model import Check
from questprof.policies import DECODE, FUSED, QUEST, Bound, Step, newest_tokens

if TYPE_CHECKING:
    import torch

SAMPLE_ABOVE = 1 << 24
SAMPLED_REQUESTS = 2
SAMPLED_KV_HEADS = 2

Row = tuple[int, int]  # (request, query head)


def sample_rows(bound: Bound, seed: int) -> tuple[tuple[Row, ...], bool]:
    """The rows to check, and whether they are a sample."""
    cache, heads = bound.cache, bound.q.shape[1]
    kv_heads, requests = cache.pool.num_kv_heads, cache.batch_size
    elements = 2 * sum(cache.seq_lens) * kv_heads * cache.pool.head_dim
    chosen_requests: Sequence[int] = range(requests)
    chosen_heads: Sequence[int] = range(kv_heads)
    sampled = elements > SAMPLE_ABOVE
    if sampled:
        picker = random.Random(seed)
        chosen_requests = sorted(picker.sample(range(requests), min(SAMPLED_REQUESTS, requests)))
        chosen_heads = sorted(picker.sample(range(kv_heads), min(SAMPLED_KV_HEADS, kv_heads)))
    group = heads // kv_heads
    rows = [(r, h * group + g) for r in chosen_requests for h in chosen_heads for g in range(group)]
    return tuple(rows), sampled


Memo = dict[Any, Any]
"""What the reference said of caches that did not change since: boxes, and dense attention by query.

The caches are part of its keys and stay alive with it. Keep one for points over the same caches, and throw
it away with them.
"""


def check(
    bound: Bound,
    steps: Sequence[Step],
    when: Literal["before", "after"],
    seed: int,
    memo: Memo | None = None,
) -> tuple[Check, ...]:
    """Compare what the launches of `steps`, the last of `bound`, left in its outputs with the reference.

    With a `memo` a cache that was altered since its first check fails its second, even consistently.
    """
    rows, sampled = sample_rows(bound, seed)
    results = []
    memo = {} if memo is None else memo
    for step in steps:
        for compared, error, tolerance in _COMPARE[step.kind](bound, rows, memo):
            stage = compared.replace(step.like, step.stage, 1) if step.like else compared
            finite = error if math.isfinite(error) else None
            approximate = step.kind == QUEST and bound.outputs.page_ids is None
            results.append(Check(stage, when, finite, tolerance, sampled, approximate))
    return tuple(results)


Comparison = Iterator[tuple[str, float, float]]


def _append(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    """The stored boxes are the boxes of the cached keys, exactly; and new tokens are where they belong."""
    from questprof_kernels import reference

    group = bound.q.shape[1] // bound.cache.pool.num_kv_heads
    wrong = _unwritten(bound)
    for request, kv_head in sorted({(r, h // group) for r, h in rows}):
        key = ("boxes", bound.cache, request, kv_head, bound.cache.seq_lens[request])
        expected = memo[key] = memo.get(key) or reference.boxes(bound.cache, request, kv_head)
        stored = reference.stored_boxes(bound.cache, request, kv_head)
        for ours, theirs in zip(stored, expected, strict=True):
            wrong = max(wrong, float((ours != theirs).double().mean()))
    yield "append", wrong, 0.0


def _append_kv(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    """New tokens are where they belong; one written again is what attention reads, whose check covers it."""
    if bound.outputs.appended is not None:
        yield "append_kv", _unwritten(bound), 0.0


def _unwritten(bound: Bound) -> float:
    """Share of the numbers of new tokens that the cache does not hold; 0 where none were new."""
    if bound.outputs.appended is None:
        return 0.0
    held = newest_tokens(bound.cache, bound.outputs.new_tokens)
    pairs = zip(held, bound.outputs.appended, strict=True)
    return max(float((ours != given).double().mean()) for ours, given in pairs)


def _score(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    import torch
    from questprof_kernels import reference

    assert bound.outputs.scores is not None
    cache, scores = bound.cache, bound.outputs.scores.cpu()
    starts = _starts(cache.num_pages)
    group = bound.q.shape[1] // cache.pool.num_kv_heads
    error = eager_error = 0.0
    for request, head in rows:
        q = bound.q[request, head].cpu()
        m, M = reference.stored_boxes(cache, request, head // group)
        expected = reference.page_bound(q, m, M)
        q32, m32, M32 = q.float(), m.float(), M.float()
        eager = torch.maximum(q32 * m32, q32 * M32).sum(-1)
        error = max(error, distance(scores[head, starts[request] : starts[request + 1]], expected))
        eager_error = max(eager_error, distance(eager, expected))
    yield "score", error, 2 * eager_error + rounding_floor(torch.float32)


def _select(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    from questprof_kernels import reference

    outputs = bound.outputs
    assert outputs.scores is not None
    assert outputs.page_ids is not None
    assert outputs.select_indptr is not None
    bounds = outputs.select_indptr.tolist()
    expected = reference.select(
        outputs.scores.cpu(), bound.cache, bounds, take_tail=bound.take_tail, rows=list(rows)
    )
    ids = outputs.page_ids.cpu()
    wrong = 0.0
    for request, head in rows:
        span = slice(bounds[request], bounds[request + 1])
        if span.stop > span.start:
            wrong = max(wrong, float((ids[head, span] != expected[head, span]).double().mean()))
    yield "select", wrong, 0.0


def _attend(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    outputs = bound.outputs
    assert outputs.page_ids is not None
    assert outputs.select_indptr is not None
    ids, bounds = outputs.page_ids.cpu(), outputs.select_indptr.tolist()

    def pages(request: int, head: int) -> list[int]:
        picked: list[int] = ids[head, bounds[request] : bounds[request + 1]].tolist()
        return picked

    yield from _attention("attend", bound, rows, pages, memo)


def _select_attend(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    """Both halves of the fused stage: the ids it wrote, and the attention over them."""
    for half in (_select, _attend):
        for stage, error, tolerance in half(bound, rows, memo):
            yield f"{FUSED}.{stage}", error, tolerance


def _decode(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    """Attention over the ids that a fused decode says it read; over all pages where it says none."""
    outputs = bound.outputs
    if outputs.page_ids is None:
        yield from _attention(DECODE, bound, rows, lambda request, head: None, memo)
        return
    assert outputs.select_indptr is not None
    ids, bounds = outputs.page_ids.cpu(), outputs.select_indptr.tolist()
    pages = {
        (request, head): reported_pages(
            ids[head, bounds[request] : bounds[request + 1]].tolist(), bound.cache.num_pages[request]
        )
        for request, head in rows
    }
    wrong = sum(picked is None for picked in pages.values())
    yield f"{DECODE}.page_ids", wrong / max(1, len(pages)), 0.0
    valid = [row for row in rows if pages[row] is not None]
    yield from _attention(DECODE, bound, valid, lambda request, head: pages[request, head], memo)


def reported_pages(ids: Sequence[int], num_pages: int) -> list[int] | None:
    """The pages among a decode's `ids` of one row (-1: none), in any order; None when they cannot be.

    One page at least, each once, all of them pages of the request.
    """
    picked = [page for page in ids if page != -1]
    fits = len(set(picked)) == len(picked) and all(0 <= page < num_pages for page in picked)
    return picked if fits and bool(picked) == bool(ids) else None


def _dense(bound: Bound, rows: Sequence[Row], memo: Memo) -> Comparison:
    yield from _attention("dense", bound, rows, lambda request, head: None, memo)


@dataclass(frozen=True)
class ExpectedRow:
    """One row of attention: the reference's output and lse, and how far plain eager code is from them."""

    out: torch.Tensor
    lse: float
    eager_error: float
    eager_lse_error: float


def _attention(
    stage: str,
    bound: Bound,
    rows: Sequence[Row],
    pages: Callable[[int, int], list[int] | None],
    memo: Memo,
) -> Comparison:
    """Output and lse of an attention stage over the pages each row was given (None: all)."""
    import torch

    out = bound.outputs.out.cpu()
    lse = None if bound.outputs.lse is None else bound.outputs.lse.cpu()
    errors, eager_errors = [0.0, 0.0], [0.0, 0.0]
    for request, head in rows:
        expected = _expected_row(bound, request, head, pages(request, head), memo)
        if expected is None:
            continue
        errors[0] = max(errors[0], distance(out[request, head], expected.out))
        eager_errors[0] = max(eager_errors[0], expected.eager_error)
        if lse is not None:
            size = max(1.0, abs(expected.lse))
            errors[1] = max(errors[1], abs(float(lse[request, head]) - expected.lse) / size)
            eager_errors[1] = max(eager_errors[1], expected.eager_lse_error)
    yield stage, errors[0], 2 * eager_errors[0] + rounding_floor(bound.q.dtype)
    if lse is not None:
        yield f"{stage}.lse", errors[1], 2 * eager_errors[1] + rounding_floor(torch.float32)


def _expected_row(
    bound: Bound, request: int, head: int, pages: list[int] | None, memo: Memo
) -> ExpectedRow | None:
    """The reference over `pages` (None: all, remembered in `memo`); None for a row without tokens."""
    cache, q = bound.cache, bound.q[request, head].cpu()
    key = ("dense", cache, request, head, cache.seq_lens[request], tuple(q.tolist()))
    if pages is None and key in memo:
        remembered: ExpectedRow | None = memo[key]
        return remembered
    expected = expected_attention(bound, request, head, pages, q)
    if pages is None:
        memo[key] = expected
    return expected


def expected_attention(
    bound: Bound, request: int, head: int, pages: list[int] | None, q: torch.Tensor
) -> ExpectedRow | None:
    """The reference over logical `pages` (None: all) of one row with query `q` [head_dim], on the CPU.

    None for a row without tokens.
    """
    from questprof_kernels import reference

    cache, dtype, scale = bound.cache, bound.q.dtype, bound.q.shape[-1] ** -0.5
    group = bound.q.shape[1] // cache.pool.num_kv_heads
    keys, values = reference.gather(cache, request, head // group, pages)
    if not len(keys):
        return None
    expected, expected_lse = reference.attend_row(q, keys, values, scale)
    logits = keys.to(dtype) @ q * scale
    eager = logits.softmax(0) @ values.to(dtype)
    lse_error = abs(float(logits.logsumexp(0)) - expected_lse) / max(1.0, abs(expected_lse))
    return ExpectedRow(expected, expected_lse, distance(eager, expected), lse_error)


_COMPARE: dict[str, Callable[[Bound, Sequence[Row], Memo], Comparison]] = {
    "append": _append,
    "append_kv": _append_kv,
    "score": _score,
    "select": _select,
    "attend": _attend,
    FUSED: _select_attend,
    QUEST: _decode,
    "dense": _dense,
}


def union_ratio(bound: Bound) -> float | None:
    """|union of a group's pages| / K from the ids, the sums over requests and KV heads; None without ids."""
    outputs = bound.outputs
    if outputs.page_ids is None or outputs.select_indptr is None:
        return None
    bounds = outputs.select_indptr.tolist()
    kv_heads = bound.cache.pool.num_kv_heads
    by_group = outputs.page_ids.cpu().reshape(kv_heads, -1, bounds[-1])
    pages = sum(
        int((by_group[head, :, start:stop].unique() >= 0).sum())
        for start, stop in pairwise(bounds)
        for head in range(kv_heads)
    )
    return pages / (kv_heads * bounds[-1]) if bounds[-1] else None


def sign_share(bound: Bound) -> float | None:
    """Share of the rows of bounds that the signs of each group's queries pick, mean over all boxes.

    None without scores or with a paired summary, which is read whole.
    """
    import torch

    cache = bound.cache
    if bound.outputs.scores is None or cache.pool.summary.layout != "transposed" or not cache.total_pages:
        return None
    negative = (bound.q < 0).unflatten(1, (cache.pool.num_kv_heads, -1))
    rows = (negative.any(2).int() + (~negative).any(2).int()).sum((1, 2)).cpu()
    read = int((rows * torch.tensor(cache.num_pages)).sum())
    held: int = 2 * cache.pool.num_kv_heads * cache.pool.head_dim * cache.total_pages
    return read / held


def rounding_floor(dtype: torch.dtype) -> float:
    """What rounding alone may cost a right kernel, relative.

    Four units of fp32, in which all of them accumulate (base-2 exponents, their polynomial, the merge of
    splits), and half a unit of a narrower output's dtype for storing it.
    """
    import torch

    floor = 4 * float(torch.finfo(torch.float32).eps)
    return floor if dtype == torch.float32 else floor + float(torch.finfo(dtype).eps) / 2


def distance(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """|ours - reference| / |reference| (Euclidean norms); inf where one is not finite and the other is."""
    difference = (ours.double() - reference).norm()
    norm = reference.norm()
    value = float(difference / norm) if norm else float(difference)
    return value if math.isfinite(value) else math.inf


def _starts(counts: Sequence[int]) -> list[int]:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts
