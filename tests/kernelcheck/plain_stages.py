"""Every stage in plain torch, right, and wrong in one named way each: stage sets as a user writes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch

Fault = str


def score(q: torch.Tensor, cache: Any, scores: torch.Tensor) -> None:
    group = q.shape[1] // cache.pool.num_kv_heads
    for request in range(cache.batch_size):
        low, high = (b.float().repeat_interleave(group, 1) for b in cache.bounds(request))
        start, end = cache.kv_indptr[request : request + 2].tolist()
        one = q[request].float()
        scores[:, start:end] = torch.maximum(one * low, one * high).sum(-1).T


def select(
    scores: torch.Tensor,
    cache: Any,
    select_indptr: torch.Tensor,
    page_ids: torch.Tensor,
    take_tail: bool,
) -> None:
    for request in range(cache.batch_size):
        start, end = cache.kv_indptr[request : request + 2].tolist()
        first, last = select_indptr[request : request + 2].tolist()
        row = scores[:, start:end].clone()
        if take_tail:
            row[:, -1] = torch.inf
        best = row.argsort(dim=1, descending=True, stable=True)[:, : last - first]
        page_ids[:, first:last] = best.sort(dim=1).values


def _one(q: torch.Tensor, cache: Any, request: int, head: int, pages: torch.Tensor) -> tuple[Any, Any]:
    """(out, lse) of one row over logical `pages`."""
    size, group = cache.pool.page_size, q.shape[1] // cache.pool.num_kv_heads
    start = int(cache.kv_indptr[request])
    length = (int(cache.kv_indptr[request + 1]) - start - 1) * size + int(cache.last_page_len[request])
    physical = cache.block_table[start + pages.long()].long()
    keep = pages.long()[:, None] * size + torch.arange(size) < length
    k = cache.pool.k[physical, head // group][keep].float()
    v = cache.pool.v[physical, head // group][keep].float()
    logits = k @ q[request, head].float() * q.shape[-1] ** -0.5
    return logits.softmax(0) @ v, logits.logsumexp(0)


def attend(
    q: torch.Tensor,
    cache: Any,
    page_ids: torch.Tensor,
    select_indptr: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    for request in range(cache.batch_size):
        first, last = select_indptr[request : request + 2].tolist()
        for head in range(q.shape[1]):
            out[request, head], lse[request, head] = _one(q, cache, request, head, page_ids[head, first:last])


def dense(q: torch.Tensor, cache: Any, out: torch.Tensor, lse: torch.Tensor, scratch: torch.Tensor) -> None:
    for request, pages in enumerate(cache.num_pages):
        for head in range(q.shape[1]):
            out[request, head], lse[request, head] = _one(q, cache, request, head, torch.arange(pages))


def decode(
    q: torch.Tensor,
    cache: Any,
    out: torch.Tensor,
    page_ids: torch.Tensor,
    select_indptr: torch.Tensor,
    take_tail: bool,
    lse: torch.Tensor,
) -> None:
    scores = torch.empty((q.shape[1], int(cache.kv_indptr[-1])))
    score(q, cache, scores)
    select(scores, cache, select_indptr, page_ids, take_tail)
    attend(q, cache, page_ids, select_indptr, out, lse, out)


def append(cache: Any, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    append_kv(cache, keys, values, new_indptr)
    for request, pages in enumerate(cache.num_pages):
        for page in range(pages):
            cache.rescan(request, page)


def append_kv(cache: Any, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor) -> None:
    for request in range(cache.batch_size):
        first, last = new_indptr[request : request + 2].tolist()
        for token in range(first, last):
            position = cache.seq_lens[request] - (last - token)
            page = cache.block_table[int(cache.kv_indptr[request]) + position // cache.pool.page_size]
            cache.pool.k[page, :, position % cache.pool.page_size] = keys[token]
            cache.pool.v[page, :, position % cache.pool.page_size] = values[token]


def blind(q: torch.Tensor, cache: Any, out: torch.Tensor) -> None:
    """A decode that says no ids: attention over the first half of the pages."""
    for request, pages in enumerate(cache.num_pages):
        for head in range(q.shape[1]):
            out[request, head], _ = _one(q, cache, request, head, torch.arange((pages + 1) // 2))


class Copied:
    """A decode over a layout of its own: K and V with the heads last."""

    def prepare(self, cache: Any) -> Any:
        k = cache.pool.k.transpose(1, 2).contiguous()
        v = cache.pool.v.transpose(1, 2).contiguous()
        return SimpleNamespace(cache=cache, k=k, v=v)

    def decode(self, q: Any, prepared: Any, out: Any, page_ids: Any, select_indptr: Any) -> None:
        pool = SimpleNamespace(
            k=prepared.k.transpose(1, 2),
            v=prepared.v.transpose(1, 2),
            page_size=prepared.cache.pool.page_size,
            num_kv_heads=prepared.cache.pool.num_kv_heads,
        )
        cache = prepared.cache
        seen = SimpleNamespace(
            pool=pool,
            batch_size=cache.batch_size,
            bounds=cache.bounds,
            kv_indptr=cache.kv_indptr,
            last_page_len=cache.last_page_len,
            block_table=cache.block_table,
        )
        decode(q, seen, out, page_ids, select_indptr, True, torch.empty(q.shape[:2]))


right = {
    "append": append,
    "append_kv": append_kv,
    "score": score,
    "select": select,
    "attend": attend,
    "dense": dense,
}
fused = {"decode": decode}
copied = Copied()
scoring = {"score": score}


class Prepared:
    """Score and attend over what prepare made of the cache: the cache in a box."""

    def prepare(self, cache: Any) -> tuple[Any]:
        return (cache,)

    def score(self, q: Any, prepared: tuple[Any], scores: Any) -> None:
        score(q, prepared[0], scores)

    def attend(self, q: Any, prepared: tuple[Any], ids: Any, indptr: Any, out: Any, lse: Any, _: Any) -> None:
        attend(q, prepared[0], ids, indptr, out, lse, _)


prepared = Prepared()
unprepared = {"prepare": lambda cache: cache.no_such_thing, "score": score}


def _after(stage: Callable[..., None], spoil: Callable[..., None]) -> Callable[..., None]:
    """`stage`, after which `spoil` gets the same arguments."""

    @wraps(stage)
    def wrong(*arguments: Any, **options: Any) -> None:
        stage(*arguments, **options)
        spoil(*arguments, *options.values())

    return wrong


def _swap_heads(q: Any, cache: Any, ids: Any, indptr: Any, out: torch.Tensor, *_: Any) -> None:
    out[:, [1, 2]] = out[:, [2, 1]]


def _without_tail(
    q: Any, cache: Any, page_ids: torch.Tensor, indptr: torch.Tensor, out: Any, lse: Any, _: Any
) -> None:
    """Attention over all but the last of several pages, whatever was asked for."""
    for request in range(cache.batch_size):
        first, last = indptr[request : request + 2].tolist()
        for head in range(q.shape[1]):
            kept = page_ids[head, first : max(first + 1, last - 1)]
            out[request, head], lse[request, head] = _one(q, cache, request, head, kept)


def _leaking(
    q: Any, cache: Any, page_ids: torch.Tensor, indptr: torch.Tensor, out: Any, lse: Any, _: Any
) -> None:
    """Attention that adds zero times V of every page, selected or not."""
    attend(q, cache, page_ids, indptr, out, lse, _)
    group = q.shape[1] // cache.pool.num_kv_heads
    for request in range(cache.batch_size):
        for page in cache.physical_pages(request):
            out[request] += 0 * cache.pool.v[page, :, 0].repeat_interleave(group, 0)


def _past_the_tail(
    q: Any, cache: Any, page_ids: torch.Tensor, indptr: torch.Tensor, out: Any, lse: Any, _: Any
) -> None:
    """Attention that adds zero times the last slot of the last page."""
    attend(q, cache, page_ids, indptr, out, lse, _)
    group = q.shape[1] // cache.pool.num_kv_heads
    for request in range(cache.batch_size):
        last = int(cache.block_table[int(cache.kv_indptr[request + 1]) - 1])
        out[request] += 0 * cache.pool.v[last, :, -1].repeat_interleave(group, 0)


def _first_request(
    q: Any, cache: Any, page_ids: torch.Tensor, indptr: torch.Tensor, out: Any, lse: Any, _: Any
) -> None:
    """Attention over pages of the first request for all: kv_indptr forgotten."""
    seen, table = _seen(cache), cache.block_table
    for request in range(cache.batch_size):
        first, last = indptr[request : request + 2].tolist()
        seen.block_table = table.roll(int(cache.kv_indptr[request]))
        for head in range(q.shape[1]):
            out[request, head], lse[request, head] = _one(q, seen, request, head, page_ids[head, first:last])


def _seen(cache: Any, **changed: Any) -> SimpleNamespace:
    """`cache` as a kernel sees it that takes some of its tensors for others."""
    names = "pool", "batch_size", "num_pages", "kv_indptr", "last_page_len", "block_table"
    return SimpleNamespace(**{name: getattr(cache, name) for name in names} | changed)


def _tables_mixed(q: Any, cache: Any, out: torch.Tensor, lse: torch.Tensor, scratch: Any) -> None:
    """Attention over all pages with K in the order of block_table and V in that of dense_table."""
    pool, held = cache.pool, slice(sum(cache.num_pages))
    v = pool.v.clone()
    v[cache.block_table[held].long()] = pool.v[cache.dense_table[held].long()]
    mixed = SimpleNamespace(k=pool.k, v=v, page_size=pool.page_size, num_kv_heads=pool.num_kv_heads)
    dense(q, _seen(cache, pool=mixed), out, lse, scratch)


def _first_table(q: Any, cache: Any, ids: Any, indptr: Any, out: Any, lse: Any, scratch: Any) -> None:
    """Attention over the block table that its scratch met first."""
    if not scratch.any():
        scratch.copy_(cache.block_table[: len(scratch)] + 1)
    attend(q, _seen(cache, block_table=scratch - 1), ids, indptr, out, lse, scratch)


class _Stale:
    """Attention that gives what its first launch over as many requests gave."""

    def __init__(self) -> None:
        self.first: dict[int, torch.Tensor] = {}

    def attend(self, q: Any, cache: Any, ids: Any, indptr: Any, out: Any, lse: Any, scratch: Any) -> None:
        attend(q, cache, ids, indptr, out, lse, scratch)
        self.first.setdefault(cache.batch_size, out.clone())
        out.copy_(self.first[cache.batch_size])


class _Planned:
    """Attention over the page ids of the first launch since `prepare`, with the query of each."""

    def prepare(self, cache: Any) -> Any:
        return SimpleNamespace(cache=cache, ids=None)

    def attend(self, q: Any, plan: Any, ids: Any, indptr: Any, out: Any, lse: Any, scratch: Any) -> None:
        plan.ids = ids.clone() if plan.ids is None else plan.ids
        attend(q, plan.cache, plan.ids, indptr, out, lse, scratch)


class _Appended:
    """An append of the tokens that its first launch over as many requests was given."""

    def __init__(self) -> None:
        self.first: dict[int, torch.Tensor] = {}

    def append_kv(self, cache: Any, keys: Any, values: Any, new_indptr: Any) -> None:
        append_kv(cache, self.first.setdefault(cache.batch_size, keys.clone()), values, new_indptr)


def _higher(scores: Any, cache: Any, indptr: Any, ids: torch.Tensor, tail: bool) -> None:
    """The pages that `select` picks, but of equal scores the higher ones."""
    for request in range(cache.batch_size):
        start, end = cache.kv_indptr[request : request + 2].tolist()
        first, last = indptr[request : request + 2].tolist()
        row = scores[:, start:end].flip(1).clone()
        if tail:
            row[:, 0] = torch.inf
        best = row.argsort(dim=1, descending=True, stable=True)[:, : last - first]
        ids[:, first:last] = (end - start - 1 - best).sort(dim=1).values


def _twice(
    q: Any, cache: Any, page_ids: torch.Tensor, indptr: torch.Tensor, out: Any, lse: Any, _: Any
) -> None:
    """Attention over the pages, the second of several once more."""
    for request in range(cache.batch_size):
        first, last = indptr[request : request + 2].tolist()
        for head in range(q.shape[1]):
            pages = torch.cat([page_ids[head, first:last], page_ids[head, first + 1 : last][:1]])
            out[request, head], lse[request, head] = _one(q, cache, request, head, pages)


def _raise(text: str) -> None:
    raise ValueError(text)


def _free_box(cache: Any) -> torch.Tensor:
    """The boxes of a page that no request owns."""
    owned = {page for request in range(cache.batch_size) for page in cache.physical_pages(request)}
    return cache.pool.summary.data[next(p for p in range(cache.pool.num_pages) if p not in owned)]


def _outside(q: Any, cache: Any, ids: Any, indptr: Any, out: torch.Tensor, *_: Any) -> None:
    """One element behind the output."""
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)


def _reads_no_mask(scores: Any, cache: Any, indptr: Any, ids: torch.Tensor, tail: bool) -> None:
    ids += 1


def _unread(ids: torch.Tensor) -> int:
    return next(page for page in range(len(ids) + 1) if page not in ids)


wrong: dict[Fault, Any] = {
    "transposed heads": {"attend": _after(attend, _swap_heads)},
    "dropped tail page": {"attend": _without_tail},
    "ids one too high": {"select": _after(select, _reads_no_mask)},
    "no ids": {"select": lambda s, c, i, ids, t: ids.fill_(-1)},
    "one id left out": {"select": _after(select, lambda s, c, i, ids, t: ids[:, -2:].fill_(-1))},
    "allocates absurdly": {"score": lambda q, c, s: torch.zeros(1 << 60)},
    "absurd scratch": {"attend": attend, "scratch_floats": {"attend": lambda *_: 10**15}},
    "negative scratch": {"attend": attend, "scratch_floats": {"attend": lambda *_: -3}},
    "unsorted ids": {"select": _after(select, lambda s, c, i, ids, t: ids.copy_(ids.flip(1)))},
    "duplicate ids": {"select": _after(select, lambda s, c, i, ids, t: ids[:, -1].copy_(ids[:, -2]))},
    "no tail": {"select": lambda s, c, i, ids, t: select(s, c, i, ids, False)},
    "pages of the first request": {"attend": _first_request},
    "ids that count in dense_table": {
        "attend": lambda q, c, *others: attend(q, _seen(c, block_table=c.dense_table), *others)
    },
    "tables mixed": {"dense": _tables_mixed},
    "pages of another cache": {
        "attend": _first_table,
        "scratch_floats": {"attend": lambda q, cache, ids: sum(cache.num_pages)},
    },
    "NaN of an unselected page": {"attend": _leaking},
    "NaN behind the last token": {"attend": _past_the_tail},
    "result of the launch before": _Stale(),
    "output not written": {"attend": lambda *_: None},
    "scores not written": {"score": lambda *_: None},
    "ids not written": {"select": lambda *_: None},
    "outside its output": {"attend": _after(attend, _outside)},
    "into its input": {"attend": _after(attend, lambda q, *_: q.mul_(2))},
    "one page scored high": {"score": _after(score, lambda q, c, s: s[1, 5].mul_(1.01))},
    "base-2 lse": {"attend": _after(attend, lambda q, c, i, n, o, lse, _: lse.div_(0.6931472))},
    "not normalised": {"dense": _after(dense, lambda q, c, out, *_: out.mul_(1.01))},
    "raises": {"attend": lambda *_: 1 / 0},
    "returns": {"score": lambda q, c, s: s + 1},
    "boxes as they were": {"append": append_kv},
    "K for V": {"append_kv": lambda c, k, v, n: append_kv(c, v, k, n)},
    "a box that append_kv changed": {
        "append_kv": _after(append_kv, lambda c, *_: c.pool.summary.data.add_(1))
    },
    "a box of no request": {"append": _after(append, lambda c, *_: _free_box(c).fill_(0))},
    "tokens of the launch before": _Appended(),
    "ids of the launch before": _Planned(),
    "the higher of equal pages": {"select": _higher},
    "the higher of equal pages, fused": {
        "select_attend": lambda s, c, n, ids, t, q, out, lse, x, *, most_selected: (
            _higher(s, c, n, ids, t),
            attend(q, c, ids, n, out, lse, x),
        )[0]
    },
    "unscaled logits": {"attend": lambda q, c, i, n, o, lse, x: attend(q * 8, c, i, n, o, lse, x)},
    "a page twice": {"attend": _twice},
    "steers the terminal": {"attend": lambda *_: _raise("boom \x1b[31mred\u202e")},
    "leaves its process": {"attend": lambda *_: sys.exit(0)},
    "another shape returned": {"dense": lambda *_: torch.zeros(3)},
    "a decode's ids twice": {"decode": _after(decode, lambda q, c, o, ids, *_: ids[:, -1].copy_(ids[:, -2]))},
    "ids that a decode did not read": {
        "decode": _after(decode, lambda q, c, o, ids, *_: ids[2, 0].fill_(_unread(ids[2])))
    },
}


def __getattr__(name: str) -> Any:
    """`plain_stages:fault_12` is the 12th wrong set: names with blanks are none for `MODULE:OBJECT`."""
    prefix, _, number = name.rpartition("_")
    if prefix == "fault":
        return wrong[list(wrong)[int(number)]]
    raise AttributeError(name)
