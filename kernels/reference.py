"""The oracle of every stage: float64, obvious and slow, sharing no code with the kernels.

Two levels. Per row (one query head of one request) stand the equations themselves; per cache, loops
over rows that read a `PagedCache` the plain way: keys and values of the valid tokens, moved to the CPU
as float64. Numbering is that of DESIGN.md: (1) the box, (2) (3) the bound, (6) attention over a set.

`rows` asks for some (request, query head) pairs only; the other rows stay NaN (ids: -1), so that large
caches can be checked by a sample. Page ids are logical everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from questprof_kernels.paged_cache import PagedCache

Rows = Sequence[tuple[int, int]]


# One row: the equations.


def page_box(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Box of one page, equation (1): (m [d], M [d]) of `keys` [n, d], n >= 1; a NaN has no bounds."""
    keys = _double(keys)
    nothing_bounds = keys.isnan().any(dim=0)
    m, M = keys.amin(dim=0), keys.amax(dim=0)
    return m.masked_fill(nothing_bounds, -math.inf), M.masked_fill(nothing_bounds, math.inf)


def page_bound(q: torch.Tensor, m: torch.Tensor, M: torch.Tensor) -> torch.Tensor:
    """U_p [P] of equations (2) and (3), unscaled, for `q` [d] over boxes `m`, `M` [P, d]."""
    q, m, M = _double(q), _double(m), _double(M)
    u = torch.maximum(q * m, q * M)
    return u.sum(dim=-1)


def select_row(scores: Iterable[float] | torch.Tensor, num_selected: int, take_tail: bool) -> list[int]:
    """The `num_selected` best of `scores` [P] as ascending page ids.

    NaN ranks above every number; equal scores (-0.0 equals 0.0) go to the lower page. With `take_tail`
    the last page is taken first and counts. ValueError when more pages are asked for than there are.
    """
    row = [float(score) for score in scores]
    if not 0 <= num_selected <= len(row):
        raise ValueError(f"{num_selected} pages asked for, {len(row)} there")
    ranked = sorted(range(len(row)), key=lambda page: _rank(row[page], page))
    if take_tail:
        tail = len(row) - 1
        ranked = [tail, *(page for page in ranked if page != tail)]
    return sorted(ranked[:num_selected])


def _rank(score: float, page: int) -> tuple[int, float, int]:
    """Sort key of a page, best first: NaN, then by falling score, then by rising page."""
    return (0, 0.0, page) if math.isnan(score) else (1, -score, page)


def attend_row(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softmax_scale: float
) -> tuple[torch.Tensor, float]:
    """Exact attention of equation (6): (out [d], lse) of `q` [d] over `keys`, `values` [T, d].

    lse is the natural logarithm of the sum of exp(softmax_scale * q.k). No token: zeros and -inf.
    """
    q, keys, values = _double(q), _double(keys), _double(values)
    if len(keys) == 0:
        return torch.zeros_like(q), -math.inf
    logits = keys @ q * softmax_scale
    top = logits.max()
    weights = torch.exp(logits - top)
    total = weights.sum()
    return weights @ values / total, float(top + torch.log(total))


# One cache: what lies where.


def gather(
    cache: PagedCache, request: int, kv_head: int, pages: Iterable[int] | torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(keys, values), float64 [T, d]: the valid tokens of the logical `pages` in that order (None: all)."""
    num_pages = cache.num_pages[request]
    logical = torch.arange(num_pages) if pages is None else _index(pages)
    if len(logical) and not 0 <= int(logical.min()) <= int(logical.max()) < num_pages:
        raise ValueError(f"logical pages {logical.tolist()} of request {request}, which has {num_pages}")
    slots = torch.arange(cache.pool.page_size)
    positions = logical[:, None] * cache.pool.page_size + slots[None, :]
    valid = positions < cache.seq_lens[request]
    physical = _index(cache.physical_pages(request))[logical].to(cache.pool.device)
    keys = _double(cache.pool.k[physical, kv_head])
    values = _double(cache.pool.v[physical, kv_head])
    return keys[valid], values[valid]


def boxes(cache: PagedCache, request: int, kv_head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(m, M), each float64 [P, d]: the boxes of a request's pages, recomputed from the cached keys."""
    keys, _ = gather(cache, request, kv_head)
    if len(keys) == 0:
        return keys, keys.clone()
    lows, highs = zip(*(page_box(page) for page in keys.split(cache.pool.page_size)), strict=True)
    return torch.stack(lows), torch.stack(highs)


def stored_boxes(cache: PagedCache, request: int, kv_head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(m, M), each float64 [P, d]: a request's boxes as the summary stores them, in whichever layout."""
    m, M = cache.bounds(request)
    return _double(m[:, kv_head]), _double(M[:, kv_head])


# One cache: the stages.


def append(
    old_keys: Sequence[torch.Tensor],
    old_values: Sequence[torch.Tensor],
    keys: torch.Tensor,
    values: torch.Tensor,
    new_indptr: Sequence[int] | torch.Tensor,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What each request must hold after stage `append`: two lists of float64 [L_r, num_kv_heads, d].

    `old_keys`, `old_values`: what each request held, [L_r, num_kv_heads, d]. `keys`, `values`
    [num_new_tokens, num_kv_heads, d], request r's at new_indptr[r]:new_indptr[r+1].
    """
    spans = _spans(new_indptr)
    return (
        [torch.cat([_double(old), _double(keys[a:b])]) for old, (a, b) in zip(old_keys, spans, strict=True)],
        [
            torch.cat([_double(old), _double(values[a:b])])
            for old, (a, b) in zip(old_values, spans, strict=True)
        ],
    )


def score(q: torch.Tensor, cache: PagedCache, rows: Rows | None = None) -> torch.Tensor:
    """U_p, float64 [num_qo_heads, total_pages], from the stored boxes; `q` [batch_size, num_qo_heads, d]."""
    spans = _page_spans(cache)
    scores = torch.full((q.shape[1], cache.total_pages), math.nan, dtype=torch.float64)
    for request, kv_head, head in _walk(cache, q.shape[1], rows):
        start, end = spans[request]
        scores[head, start:end] = page_bound(q[request, head], *stored_boxes(cache, request, kv_head))
    return scores


def select(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: Sequence[int] | torch.Tensor,
    take_tail: bool = True,
    rows: Rows | None = None,
) -> torch.Tensor:
    """Page ids int32 [num_qo_heads, select_indptr[-1]], ascending within a request.

    `scores` [num_qo_heads, total_pages], flat logical pages; request r takes as many pages as
    select_indptr[r + 1] - select_indptr[r].
    """
    page_spans, chosen_spans = _page_spans(cache), _spans(select_indptr)
    page_ids = torch.full((scores.shape[0], chosen_spans[-1][1]), -1, dtype=torch.int32)
    for request, _, head in _walk(cache, scores.shape[0], rows):
        start, end = page_spans[request]
        first, last = chosen_spans[request]
        chosen = select_row(scores[head, start:end].tolist(), last - first, take_tail)
        page_ids[head, first:last] = torch.tensor(chosen, dtype=torch.int32)
    return page_ids


def attend(
    q: torch.Tensor,
    cache: PagedCache,
    page_ids: torch.Tensor,
    select_indptr: Sequence[int] | torch.Tensor,
    softmax_scale: float | None = None,
    rows: Rows | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [batch_size, num_qo_heads, d], lse [batch_size, num_qo_heads]), float64, over the given pages.

    `page_ids` [num_qo_heads, select_indptr[-1]] in any order; a repeated page is a ValueError.
    """
    spans = _spans(select_indptr)
    out, lse = _blank(q)
    for request, kv_head, head in _walk(cache, q.shape[1], rows):
        first, last = spans[request]
        pages = page_ids[head, first:last].tolist()
        if len(set(pages)) != len(pages):
            raise ValueError(f"request {request}, query head {head}: repeated page in {pages}")
        keys, values = gather(cache, request, kv_head, pages)
        out[request, head], lse[request, head] = attend_row(
            q[request, head], keys, values, _scale(q, softmax_scale)
        )
    return out, lse


def dense(
    q: torch.Tensor, cache: PagedCache, softmax_scale: float | None = None, rows: Rows | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) as `attend` gives them, over every page."""
    out, lse = _blank(q)
    held: tuple[int, int] | None = None
    for request, kv_head, head in _walk(cache, q.shape[1], rows):
        if held != (request, kv_head):
            keys, values = gather(cache, request, kv_head)
            held = (request, kv_head)
        out[request, head], lse[request, head] = attend_row(
            q[request, head], keys, values, _scale(q, softmax_scale)
        )
    return out, lse


# Plumbing.


def _double(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as float64 on the CPU."""
    return tensor.detach().to("cpu").to(torch.float64)


def _index(pages: Iterable[int] | torch.Tensor) -> torch.Tensor:
    """Pages as int64 [n] on the CPU."""
    return torch.tensor([int(page) for page in pages], dtype=torch.long)


def _spans(indptr: Sequence[int] | torch.Tensor) -> list[tuple[int, int]]:
    """(start, end) of each request of an indptr [batch_size + 1]."""
    bounds = [int(bound) for bound in indptr]
    return list(pairwise(bounds))


def _page_spans(cache: PagedCache) -> list[tuple[int, int]]:
    """(start, end) of each request's flat logical pages, from the host's page lists."""
    bounds = [0]
    for num_pages in cache.num_pages:
        bounds.append(bounds[-1] + num_pages)
    return _spans(bounds)


def _walk(cache: PagedCache, num_qo_heads: int, rows: Rows | None) -> Iterable[tuple[int, int, int]]:
    """(request, kv_head, query head) of every row asked for, in rising order."""
    num_kv_heads = cache.pool.num_kv_heads
    if num_qo_heads % num_kv_heads:
        raise ValueError(f"{num_qo_heads} query heads do not divide into {num_kv_heads} KV heads")
    group_size = num_qo_heads // num_kv_heads
    every = [(request, head) for request in range(cache.batch_size) for head in range(num_qo_heads)]
    for request, head in every if rows is None else sorted(set(rows)):
        yield request, head // group_size, head


def _blank(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of the shapes `attend` returns, all NaN."""
    out = torch.full(q.shape, math.nan, dtype=torch.float64)
    return out, torch.full(q.shape[:2], math.nan, dtype=torch.float64)


def _scale(q: torch.Tensor, softmax_scale: float | None) -> float:
    """The factor on the dot products: head_dim ** -0.5 unless given."""
    return q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
