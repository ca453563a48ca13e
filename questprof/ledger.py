"""The byte ledger: every tensor that a launch of a stage reads and writes, with its bytes.

Bytes are distinct bytes of one layer's launch: a byte read by two programs counts once. What equation (12)
counts is marked: K and V of `dense` and `attend`, the summary of `score`. Splits and scratch are those of
`kernels/plan.py`, so that what is predicted is what is launched. Pure Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from questprof_kernels.plan import AttentionPlan, ceil_div, equal_shares, plan_attention

from questprof.errors import QuestprofError
from questprof.model import ByteCount, Point, Struct, validate_shape
from questprof.units import dtype_bytes

INDEX_BYTES = 4
"""Block table, indptrs, page ids, counters: int32."""
SCORE_BYTES = 4
"""Scores, lse, split partials: fp32."""


class Entry(Struct, frozen=True):
    """One tensor of one stage. `in_eq12`: its reads are those that equation (12) counts."""

    stage: str
    tensor: str
    read_bytes: int
    write_bytes: int
    in_eq12: bool
    note: str


class ResidentBytes(Struct, frozen=True):
    """What stays in memory over all layers and requests, in whole pages: the K/V cache and the summary."""

    cache_bytes: int
    summary_bytes: int


def entries(
    point: Point, num_workers: int, union_ratio: float | None = None, physical_tile: int | None = None
) -> tuple[Entry, ...]:
    """Every tensor of every stage at `point`; without any token budget the Quest stages are left out.

    `num_workers` plans the splits (streaming multiprocessors or threads). `union_ratio` is |union of a
    group's pages| / K, 1..group_size; the default, group_size, is the most that a page set per query head
    can read; either way at most P. `physical_tile` T: a page of n valid tokens reads ceil(n / T) * T of
    them; the default is the plan's. `append` writes the newest token of each request, counted in its length.
    Raises QuestprofError for a shape, length, budget, ratio or tile that cannot be. Article §2 and §2.1.
    """
    case = _case(point, num_workers, union_ratio, physical_tile)
    stages = [*_append(case), *_dense(case)]
    if any(point.budgets):
        chain = [*_score(case), *_select(case), *_attend(case)]
        stages += [*chain, *(msgspec.structs.replace(entry, stage="quest") for entry in chain)]
    return tuple(stages)


def stage_bytes(ledger: Iterable[Entry]) -> dict[str, ByteCount]:
    """Bytes read and written per stage: the sums of its entries. `quest` is score + select + attend."""
    totals: dict[str, ByteCount] = {}
    for entry in ledger:
        old = totals.get(entry.stage, ByteCount(0, 0))
        totals[entry.stage] = ByteCount(old.read + entry.read_bytes, old.write + entry.write_bytes)
    return totals


def counted_bytes(ledger: Iterable[Entry]) -> dict[str, int]:
    """Bytes that equation (12) counts per stage: `dense` (9), `score` (10), `attend` (11), `quest` both."""
    totals: dict[str, int] = {}
    for entry in ledger:
        if entry.in_eq12:
            totals[entry.stage] = totals.get(entry.stage, 0) + entry.read_bytes
    return totals


def read_ratio(ledger: Iterable[Entry]) -> float:
    """Counted bytes of `quest` over those of `dense`: equation (12) with tiles, tails, unions and dtypes.

    QuestprofError when the ledger holds no `quest` or no dense byte.
    """
    counted = counted_bytes(ledger)
    if not (counted.get("quest") and counted.get("dense")):
        why = "no request has both tokens and a token budget"
        raise QuestprofError("read ratio, eq. (12)", why, "Give lengths and token budgets.")
    return counted["quest"] / counted["dense"]


def planned_tile(point: Point, num_workers: int) -> int:
    """The physical tile of `entries` when none is given: tokens the kernels read at least of a page."""
    return _case(point, num_workers, None, None).tile("attend")


def resident_bytes(point: Point) -> ResidentBytes:
    """Resident cache and summary at `point`; a tail page's empty slots are held too. Article §2 and §3."""
    shape = validate_shape(point.shape)
    _check_lengths(point)
    boxes = sum(point.num_pages) * shape.num_kv_heads * shape.num_layers
    vector_elements = 2 * boxes * shape.head_dim
    return ResidentBytes(
        cache_bytes=vector_elements * point.page_size * dtype_bytes(shape.kv_dtype),
        summary_bytes=vector_elements * dtype_bytes(shape.effective_summary_dtype),
    )


@dataclass(frozen=True)
class _Case:
    """A checked point with the sizes that the entries multiply; sums run over the requests."""

    point: Point
    num_workers: int
    union_ratio: float
    physical_tile: int | None
    batch_size: int
    vector_bytes: int  # M: one key or value vector
    bound_bytes: int  # one min or one max vector
    query_bytes: int  # q or out: the cache's dtype, 16 bits over an 8-bit cache
    total_pages: int
    total_selected: int

    def plan(self, stage: str) -> AttentionPlan:
        """The plan of `attend` (a page set per query head) or `dense`, as their launchers ask for it."""
        shape, attend = self.point.shape, stage == "attend"
        return plan_attention(
            num_qo_heads=shape.num_qo_heads,
            num_kv_heads=shape.num_kv_heads,
            per_query_head=attend,
            head_dim=shape.head_dim,
            page_size=self.point.page_size,
            batch_size=self.batch_size,
            pages_per_request=ceil_div(self.total_selected if attend else self.total_pages, self.batch_size),
            num_workers=self.num_workers,
            element_bytes=dtype_bytes(shape.kv_dtype),
        )

    def cpu_splits(self, stage: str) -> list[int]:
        """Splits of each request on a CPU, where every split has a partial and a join needs no counters."""
        attend = stage == "attend"
        shares = equal_shares(
            num_units=self.point.shape.num_qo_heads if attend else 1,
            num_pages=self.total_selected // self.batch_size if attend else self.total_pages,
            num_workers=self.num_workers,
        )
        return [shares] * self.batch_size

    def tile(self, stage: str) -> int:
        """Tokens that `stage` reads at least of a page it touches."""
        return self.physical_tile or int(self.plan(stage).physical_tile)

    def dense_tokens(self, stage: str) -> list[int]:
        """Tokens that one KV head reads of each request, all pages."""
        size, tile = self.point.page_size, self.tile(stage)
        return [
            (length // size) * _tiled(size, tile) + _tiled(length % size, tile)
            for length in self.point.lengths
        ]

    def union_pages(self) -> list[float]:
        """Pages of the union of a group's page sets in each request, not capped at P."""
        return [self.union_ratio * selected for selected in self.point.num_selected]

    def attend_tokens(self) -> list[float]:
        """Tokens that one KV head reads of each request in `attend`.

        Policy `quest` always holds the tail page. Where others may or may not, its empty slots are
        counted as read unless all pages are: at most S - 1 tokens too many.
        """
        full = _tiled(self.point.page_size, self.tile("attend"))
        tokens: list[float] = []
        for dense, pages, union in zip(
            self.dense_tokens("attend"), self.point.num_pages, self.union_pages(), strict=True
        ):
            missing = pages * full - dense if union and self.point.policy == "quest" else 0
            tokens.append(min(union * full - missing, dense))
        return tokens


def _tiled(num_tokens: int, tile: int) -> int:
    """`num_tokens` rounded up to whole physical tiles."""
    tiles: int = ceil_div(num_tokens, tile)
    return tiles * tile


def _case(point: Point, num_workers: int, union_ratio: float | None, physical_tile: int | None) -> _Case:
    """The checked case; QuestprofError says which part cannot be."""
    shape = validate_shape(point.shape)
    _check_lengths(point)
    _check_reading(point, num_workers, union_ratio, physical_tile)
    query_heads = len(point.lengths) * shape.num_qo_heads
    return _Case(
        point=point,
        num_workers=num_workers,
        union_ratio=shape.group_size if union_ratio is None else union_ratio,
        physical_tile=physical_tile,
        batch_size=len(point.lengths),
        vector_bytes=shape.head_dim * dtype_bytes(shape.kv_dtype),
        bound_bytes=shape.head_dim * dtype_bytes(shape.effective_summary_dtype),
        query_bytes=query_heads * shape.head_dim * max(2, dtype_bytes(shape.kv_dtype)),
        total_pages=sum(point.num_pages),
        total_selected=sum(point.num_selected),
    )


def _check_lengths(point: Point) -> None:
    """QuestprofError unless pages and requests can be."""
    if point.page_size < 1:
        why = "a page holds at least one token"
        raise QuestprofError(f"page size {point.page_size}", why, "Give tokens a page, for example 16.")
    if not point.lengths or min(point.lengths) < 0 or len(point.budgets) != len(point.lengths):
        what = f"lengths {point.lengths} with token budgets {point.budgets}"
        why = "a batch has at least one request, each with a length of at least 0 and one budget"
        raise QuestprofError(what, why, "Give as many budgets as lengths, or one for all.")


def _check_reading(
    point: Point, num_workers: int, union_ratio: float | None, physical_tile: int | None
) -> None:
    """QuestprofError unless budgets, workers, union and tile can be."""
    pairs = zip(point.budgets, point.lengths, strict=True)
    small = [budget for budget, length in pairs if length and budget < point.page_size]
    if small and (any(point.budgets) or point.policy != "dense"):
        why = f"it is below the page size {point.page_size}, so that no page can be selected"
        fix = f"Give at least {point.page_size}; a budget counts tokens, not pages."
        raise QuestprofError(f"token budget {small[0]}", why, fix)
    if num_workers < 1:
        raise QuestprofError(
            f"{num_workers} workers", "at least one works", "Give multiprocessors or threads."
        )
    if physical_tile is not None and physical_tile < 1:
        why = "a kernel reads at least one token at once"
        raise QuestprofError(f"physical tile {physical_tile}", why, "Give 1 when it reads valid tokens only.")
    group_size = point.shape.group_size
    if union_ratio is not None and not 1 <= union_ratio <= group_size:
        why = f"|union| / K lies in 1..{group_size} for {group_size} query heads a KV head"
        fix = "Give 1 when a group shares one page set, otherwise the measured ratio."
        raise QuestprofError(f"union ratio {union_ratio:g}", why, fix)


# The stages.


def _append(case: _Case) -> list[Entry]:
    """`append` and `append_kv` of one token a request: the box is read unless the token opens its page."""
    size, heads = case.point.page_size, case.point.shape.num_kv_heads
    lengths = [length for length in case.point.lengths if length]
    widened = sum((length - 1) % size > 0 for length in lengths)
    vectors, box = len(lengths) * heads * case.vector_bytes, 2 * heads * case.bound_bytes
    listed = [
        Entry("append", "summary", widened * box, len(lengths) * box, False, "tail page's box, eq. (8), (14)")
    ]
    for stage in ("append", "append_kv"):
        listed += [
            Entry(stage, "keys", vectors, 0, False, "one new token a request"),
            Entry(stage, "values", vectors, 0, False, "one new token a request"),
            Entry(stage, "k", 0, vectors, False, "into the tail page"),
            Entry(stage, "v", 0, vectors, False, "into the tail page"),
            Entry(stage, "block_table", INDEX_BYTES * len(lengths), 0, False, "the tail page"),
            *_indices(stage, case, "kv_indptr", "new_indptr", "last_page_len"),
        ]
    return listed


def _score(case: _Case) -> list[Entry]:
    """`score`: the summary once a KV head; of a transposed one the rows that the queries' signs pick."""
    shape, transposed = case.point.shape, case.point.summary_layout == "transposed"
    share = 1 - 0.5**shape.group_size if transposed else 1.0
    note = (
        f"{share:g} of the min and max rows at independent signs" if transposed else "min and max, eq. (10)"
    )
    summary = round(2 * share * case.total_pages * shape.num_kv_heads * case.bound_bytes)
    scores = SCORE_BYTES * shape.num_qo_heads * case.total_pages
    return [
        Entry("score", "summary", summary, 0, True, note),
        Entry("score", "q", case.query_bytes, 0, False, ""),
        Entry("score", "block_table", INDEX_BYTES * case.total_pages, 0, False, "every page"),
        *_indices("score", case, "kv_indptr"),
        Entry("score", "scores", 0, scores, False, "fp32, one a query head and page"),
    ]


def _select(case: _Case) -> list[Entry]:
    """`select`: scores in, page ids out."""
    heads = case.point.shape.num_qo_heads
    scores, ids = SCORE_BYTES * heads * case.total_pages, INDEX_BYTES * heads * case.total_selected
    return [
        Entry("select", "scores", scores, 0, False, "just written by score"),
        *_indices("select", case, "kv_indptr", "select_indptr"),
        Entry("select", "page_ids", 0, ids, False, "int32, K a query head"),
    ]


def _attend(case: _Case) -> list[Entry]:
    """`attend`: K and V of the union of each group's pages, once a KV head."""
    shape, point = case.point.shape, case.point
    kv = round(sum(case.attend_tokens()) * shape.num_kv_heads) * case.vector_bytes
    unions = [
        min(p, shape.num_kv_heads * u) for p, u in zip(point.num_pages, case.union_pages(), strict=True)
    ]
    ids = INDEX_BYTES * shape.num_qo_heads * case.total_selected
    note = f"eq. (11), |union| = {case.union_ratio:g} K, at most P"
    return [
        Entry("attend", "k", kv, 0, True, note),
        Entry("attend", "v", kv, 0, True, note),
        Entry("attend", "page_ids", ids, 0, False, "int32, K a query head"),
        Entry("attend", "block_table", INDEX_BYTES * round(sum(unions)), 0, False, "at most"),
        *_indices("attend", case, "kv_indptr", "select_indptr", "last_page_len"),
        *_attention("attend", case, point.num_selected),
    ]


def _dense(case: _Case) -> list[Entry]:
    """`dense`: K and V of all valid tokens, once a KV head."""
    kv = sum(case.dense_tokens("dense")) * case.point.shape.num_kv_heads * case.vector_bytes
    return [
        Entry("dense", "k", kv, 0, True, "eq. (9)"),
        Entry("dense", "v", kv, 0, True, "eq. (9)"),
        Entry("dense", "block_table", INDEX_BYTES * case.total_pages, 0, False, "every page"),
        *_indices("dense", case, "kv_indptr", "last_page_len"),
        *_attention("dense", case, case.point.num_pages),
    ]


def _attention(stage: str, case: _Case, num_pages: Iterable[int]) -> list[Entry]:
    """What an attention stage over `num_pages` of each request moves beside cache and indices."""
    shape, rows = case.point.shape, case.point.shape.num_qo_heads
    plan = case.plan(stage)
    if case.point.device == "cpu":
        splits, counters = case.cpu_splits(stage), 0
    else:
        splits = [n for n in map(plan.active_splits, num_pages) if n > 1]
        counters = INDEX_BYTES * plan.grid[1] * len(splits)
    partials = SCORE_BYTES * rows * sum(splits) * (shape.head_dim + 2)
    lse = SCORE_BYTES * case.batch_size * rows
    note = f"{max(splits, default=1)} splits a head for {case.num_workers} workers"
    return [
        Entry(stage, "q", case.query_bytes, 0, False, ""),
        Entry(stage, "split_partials", partials, partials, False, note),
        Entry(stage, "counters", counters, counters, False, "arrivals of the splits"),
        Entry(stage, "out", 0, case.query_bytes, False, ""),
        Entry(stage, "lse", 0, lse, False, "fp32"),
    ]


def _indices(stage: str, case: _Case, *names: str) -> list[Entry]:
    """The small int32 tensors of a stage: one number a request, an indptr one more."""
    counts = {name: case.batch_size + name.endswith("_indptr") for name in names}
    return [Entry(stage, name, INDEX_BYTES * count, 0, False, "") for name, count in counts.items()]
