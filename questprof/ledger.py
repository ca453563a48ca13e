"""The byte ledger: every tensor that a launch of a stage reads and writes, with its bytes.

Bytes are distinct bytes of one layer's launch: a byte read by two programs counts once. What equation (12)
counts is marked: K and V of `dense` and `attend`, the summary of `score`. Splits and scratch are those of
`kernels/plan.py`, so that what is predicted is what is launched. Pure Python.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, summary_blocks

from questprof.counts import ByteCount, Entry
from questprof.errors import QuestprofError
from questprof.ledger_case import Case, check_lengths, checked_case
from questprof.model import Point, validate_shape
from questprof.structs import Struct
from questprof.units import dtype_bytes

INDEX_BYTES = 4
"""Block table, indptrs, page ids, counters: int32."""
SCORE_BYTES = 4
"""Scores, lse: fp32."""
PARTIAL_BYTES = {"triton": 4, "cuda": 8, "cpu": 4}
"""A number that a split leaves, fp32; the CUDA variant's carries the number of its launch."""
COUNTED = {"triton": "arrivals of the splits", "cuda": "launches", "cpu": ""}
"""What the counters of an attention stage count."""


class ResidentBytes(Struct, frozen=True):
    """What stays in memory over all layers and requests: the K/V cache in whole pages, and the summary.

    A transposed summary holds whole blocks of 64 pages' boxes, up to 63 of them slack a request.
    """

    cache_bytes: int
    summary_bytes: int


def entries(
    point: Point,
    num_workers: int,
    union_ratio: float | None = None,
    physical_tile: int | None = None,
    sign_share: float | None = None,
    variant: str = "",
    prefill: bool = False,
) -> tuple[Entry, ...]:
    """Every tensor of every stage at `point`; without any token budget the Quest stages are left out.

    `num_workers` plans the splits (streaming multiprocessors or threads). `union_ratio` is |union of a
    group's pages| / K over all requests, 1..group_size; the default, group_size, is the most that a page set
    per query head can read; either way at most P. `physical_tile` T: a page of n valid tokens reads
    ceil(n / T) * T of them; the default is the plan's. `sign_share` is the share of a transposed summary's
    rows that the signs of each group's queries pick, 1/2..1; the default is what independent signs give, and
    1/2 for equal queries. `variant` (`triton`, `cuda` or `cpu`) is the implementation whose splits are
    planned; any other name stands for `cpu` on the CPU and for `triton` on a GPU. `append` writes the newest
    token of each request, counted in its length; `prefill` adds `append_prefill`, of all tokens to empty
    requests. Raises QuestprofError for a shape, length, budget, ratio, tile or share that cannot be. Article
    §2 and §2.1.
    """
    case = checked_case(point, num_workers, union_ratio, physical_tile, sign_share, variant)
    stages = [*_append(case), *(_prefill(case) if prefill else ()), *_dense(case)]
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
    return checked_case(point, num_workers).tile("attend")


def resident_bytes(point: Point) -> ResidentBytes:
    """Resident cache and summary at `point`; a tail page's empty slots are held too. Article §2 and §3."""
    shape = validate_shape(point.shape)
    check_lengths(point)
    pages = boxes = sum(point.num_pages)
    if point.summary_layout == "transposed":
        boxes = SUMMARY_BLOCK_PAGES * summary_blocks(point.num_pages)
    page_elements = 2 * shape.num_kv_heads * shape.num_layers * shape.head_dim
    return ResidentBytes(
        cache_bytes=page_elements * pages * point.page_size * dtype_bytes(shape.kv_dtype),
        summary_bytes=page_elements * boxes * dtype_bytes(shape.effective_summary_dtype),
    )


# The stages.


def _append(case: Case) -> list[Entry]:
    """`append` and `append_kv` of one token a request: the box is read unless the token opens its page."""
    size, heads = case.point.page_size, case.point.shape.num_kv_heads
    lengths = [length for length in case.point.lengths if length]
    widened = sum((length - 1) % size > 0 for length in lengths)
    vectors, box = len(lengths) * heads * case.vector_bytes, 2 * heads * case.bound_bytes
    note = "tail page's box, eq. (8), (14)"
    if case.num_blocks:
        note += f", {case.bound_bytes // case.point.shape.head_dim} B at a time, a row apart"
    listed = [
        Entry("append", "summary", widened * box, len(lengths) * box, False, note),
        *_blocks("append", case, len(lengths), "the tail page's"),
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


def _prefill(case: Case) -> list[Entry]:
    """`append_prefill` of every token of a request at once: no old box to read, every page's written."""
    stage, heads = "append_prefill", case.point.shape.num_kv_heads
    vectors = sum(case.point.lengths) * heads * case.vector_bytes
    boxes = 2 * case.total_pages * heads * case.bound_bytes
    note = "every page's box, eq. (1)"
    if case.num_blocks:
        note += "; and the empty ones of a run's last pages"
    return [
        Entry(stage, "keys", vectors, 0, False, "every token"),
        Entry(stage, "values", vectors, 0, False, "every token"),
        Entry(stage, "k", 0, vectors, False, ""),
        Entry(stage, "v", 0, vectors, False, ""),
        Entry(stage, "summary", 0, boxes, False, note),
        *_blocks(stage, case, case.num_blocks, "every block"),
        Entry(stage, "block_table", INDEX_BYTES * case.total_pages, 0, False, "every page"),
        *_indices(stage, case, "kv_indptr", "new_indptr", "last_page_len"),
    ]


def _score(case: Case) -> list[Entry]:
    """`score`: the summary once a KV head; of a transposed one the rows that the queries' signs pick."""
    shape, share = case.point.shape, case.row_share
    summary = round(2 * share * case.total_pages * shape.num_kv_heads * case.bound_bytes)
    scores = SCORE_BYTES * shape.num_qo_heads * case.total_pages
    if case.num_blocks:
        note = f"{share:g} of the min and max rows, which the signs of q pick"
        table = _blocks("score", case, case.num_blocks, "every block")
    else:
        note = "min and max, eq. (10)"
        table = [Entry("score", "block_table", INDEX_BYTES * case.total_pages, 0, False, "every page")]
    return [
        Entry("score", "summary", summary, 0, True, note),
        Entry("score", "q", case.query_bytes, 0, False, ""),
        *table,
        *_indices("score", case, "kv_indptr"),
        Entry("score", "scores", 0, scores, False, "fp32, one a query head and page"),
    ]


def _select(case: Case) -> list[Entry]:
    """`select`: scores in, page ids out. Of a request whose only page is its tail `quest` reads no score."""
    heads, least = case.point.shape.num_qo_heads, 2 if case.point.policy == "quest" else 1
    pages = sum(pages for pages in case.point.num_pages if pages >= least)
    scores, ids = SCORE_BYTES * heads * pages, INDEX_BYTES * heads * case.total_selected
    return [
        Entry("select", "scores", scores, 0, False, "just written by score"),
        *_indices("select", case, "kv_indptr", "select_indptr"),
        Entry("select", "page_ids", 0, ids, False, "int32, K a query head"),
    ]


def _attend(case: Case) -> list[Entry]:
    """`attend`: K and V of the union of each group's pages, once a KV head."""
    shape, point = case.point.shape, case.point
    kv = round(case.attend_tokens() * shape.num_kv_heads) * case.vector_bytes
    union = min(case.union_ratio * case.total_selected, sum(case.most_union_pages()))
    looked_up = min(case.total_pages, shape.num_kv_heads * union)
    ids = INDEX_BYTES * shape.num_qo_heads * case.total_selected
    note = f"eq. (11), |union| = {case.union_ratio:g} K, at most P"
    return [
        Entry("attend", "k", kv, 0, True, note),
        Entry("attend", "v", kv, 0, True, note),
        Entry("attend", "page_ids", ids, 0, False, "int32, K a query head"),
        Entry("attend", "block_table", INDEX_BYTES * round(looked_up), 0, False, "at most"),
        *_indices("attend", case, "kv_indptr", "select_indptr", "last_page_len"),
        *(_gathered(case) if point.backend == "gather" else ()),
        *_attention("attend", case, point.num_selected),
    ]


def _gathered(case: Case) -> list[Entry]:
    """The temporary of the ablation `gather`: every query head's pages written once more and read again.

    Its tables are a page number each, and an indptr and a length of each query head and request. Where a
    policy may leave the tail page out, its empty slots are counted as copied.
    """
    point, rows = case.point, case.point.shape.num_qo_heads * case.batch_size
    sizes = zip(point.lengths, point.num_pages, point.num_selected, strict=True)
    tokens = [
        k * point.page_size - (p * point.page_size - length if k and point.policy == "quest" else 0)
        for length, p, k in sizes
    ]
    copied = point.shape.num_qo_heads * sum(tokens) * case.vector_bytes
    table = INDEX_BYTES * (point.shape.num_qo_heads * case.total_selected + 2 * rows + 1)
    return [
        Entry("attend", "gathered_k", copied, copied, False, "the temporary, once a query head"),
        Entry("attend", "gathered_v", copied, copied, False, "the temporary, once a query head"),
        Entry("attend", "gathered_table", table, table, False, "page numbers, indptr and lengths of it"),
    ]


def _dense(case: Case) -> list[Entry]:
    """`dense`: K and V of all valid tokens, once a KV head."""
    kv = sum(case.dense_tokens("dense")) * case.point.shape.num_kv_heads * case.vector_bytes
    return [
        Entry("dense", "k", kv, 0, True, "eq. (9)"),
        Entry("dense", "v", kv, 0, True, "eq. (9)"),
        Entry("dense", "block_table", INDEX_BYTES * case.total_pages, 0, False, "every page"),
        *_indices("dense", case, "kv_indptr", "last_page_len"),
        *_attention("dense", case, case.point.num_pages),
    ]


def _attention(stage: str, case: Case, num_pages: Iterable[int]) -> list[Entry]:
    """What an attention stage over `num_pages` of each request moves beside cache and indices."""
    shape, rows = case.point.shape, case.point.shape.num_qo_heads
    splits = case.splits(stage, num_pages)
    partials = PARTIAL_BYTES[case.variant] * rows * sum(splits) * (shape.head_dim + 2)
    head_programs = rows if stage == "attend" else shape.num_kv_heads
    counters = 0 if case.variant == "cpu" else INDEX_BYTES * head_programs * len(splits)
    lse = SCORE_BYTES * case.batch_size * rows
    note = f"{max(splits, default=1)} splits a head for {case.num_workers} workers"
    return [
        Entry(stage, "q", case.query_bytes, 0, False, ""),
        Entry(stage, "split_partials", partials, partials, False, note),
        Entry(stage, "counters", counters, counters, False, COUNTED[case.variant]),
        Entry(stage, "out", 0, case.query_bytes, False, ""),
        Entry(stage, "lse", 0, lse, False, "fp32"),
    ]


def _blocks(stage: str, case: Case, count: int, note: str) -> list[Entry]:
    """The block numbers that a stage reads of a transposed summary; nothing for a paired one."""
    if not case.num_blocks:
        return []
    table = Entry(stage, "summary_table", INDEX_BYTES * count, 0, False, note)
    return [table, *_indices(stage, case, "summary_indptr")]


def _indices(stage: str, case: Case, *names: str) -> list[Entry]:
    """The small int32 tensors of a stage: one number a request, an indptr one more."""
    counts = {name: case.batch_size + name.endswith("_indptr") for name in names}
    return [Entry(stage, name, INDEX_BYTES * count, 0, False, "") for name, count in counts.items()]
