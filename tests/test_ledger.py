"""The byte ledger against plain counting, equations (9)-(12), and mistakes it must tell apart."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from questprof_kernels import reference
from questprof_kernels.paged_cache import PagedCache, PagePool
from questprof_kernels.plan import SUMMARY_LAYOUTS, plan_attention, plan_blocks

from questprof.counts import ByteCount
from questprof.equations import eq09_dense_bytes, eq10_index_bytes, eq11_selected_bytes, eq12_read_ratio
from questprof.errors import Exit, QuestprofError
from questprof.ledger import (
    Entry,
    counted_bytes,
    entries,
    planned_tile,
    read_ratio,
    resident_bytes,
    stage_bytes,
)
from questprof.model import Point, Shape

WORKERS = 132
CHAIN = ("score", "select", "attend")
MHA = Shape("mha", 4, 4, 64, "fp16")
GQA = Shape("gqa", 8, 2, 64, "fp16")


def of(ledger: tuple[Entry, ...], stage: str, tensor: str) -> Entry:
    """The one entry of `tensor` in `stage`."""
    (entry,) = [e for e in ledger if (e.stage, e.tensor) == (stage, tensor)]
    return entry


@st.composite
def points(draw: st.DrawFn, full_pages: bool = False) -> Point:
    """Ragged points of all policies, dtypes and group sizes; budgets of at least one page."""
    kv_heads, group_size = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))
    dtype = draw(st.sampled_from(["fp16", "bf16", "fp32", "int8", "fp8_e4m3"]))
    summary = draw(st.sampled_from(["", "fp32", "fp16"]))
    shape = Shape("drawn", kv_heads * group_size, kv_heads, draw(st.sampled_from([64, 128])), dtype, summary)
    page_size, batch_size = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    pages = [draw(st.integers(1, 60)) for _ in range(batch_size)]
    cut = [0 if full_pages else draw(st.integers(0, page_size - 1)) for _ in range(batch_size)]
    lengths = tuple(p * page_size - c for p, c in zip(pages, cut, strict=True))
    budgets = tuple(page_size * draw(st.integers(1, 70)) for _ in range(batch_size))
    return Point(
        shape,
        max(lengths),
        page_size,
        max(budgets),
        batch_size,
        lengths,
        budgets,
        policy=draw(st.sampled_from(["quest", "quest-open"])),
        summary_layout=draw(st.sampled_from(SUMMARY_LAYOUTS)),
    )


# Sums.


@settings(deadline=None)
@given(points(), st.integers(1, 200), st.data())
def test_totals_are_the_sums_of_their_entries(point: Point, num_workers: int, data: st.DataObject) -> None:
    union_ratio = data.draw(st.floats(1, point.shape.group_size))
    ledger = entries(point, num_workers, union_ratio, data.draw(st.integers(1, 64)))
    totals, counted = stage_bytes(ledger), counted_bytes(ledger)
    assert set(totals) == {"append", "append_kv", "dense", "quest", *CHAIN}
    assert set(counted) == {"dense", "score", "attend", "quest"}
    for stage, total in totals.items():
        own = [entry for entry in ledger if entry.stage == stage]
        assert total == ByteCount(sum(e.read_bytes for e in own), sum(e.write_bytes for e in own))
        assert counted.get(stage, 0) == sum(e.read_bytes for e in own if e.in_eq12)
        assert counted.get(stage, 0) <= total.read
    assert totals["quest"].read == sum(totals[stage].read for stage in CHAIN)
    assert totals["quest"].write == sum(totals[stage].write for stage in CHAIN)
    assert counted["quest"] == counted["score"] + counted["attend"]
    assert all(entry.read_bytes >= 0 and entry.write_bytes >= 0 for entry in ledger)
    assert read_ratio(ledger) == counted["quest"] / counted["dense"]


@settings(deadline=None)
@given(points())
def test_equation_12_counts_k_v_and_summary_alone(point: Point) -> None:
    counted = {(e.stage, e.tensor) for e in entries(point, WORKERS) if e.in_eq12}
    chain = {("score", "summary"), ("attend", "k"), ("attend", "v")}
    assert counted == chain | {("quest", tensor) for _, tensor in chain} | {("dense", "k"), ("dense", "v")}


# Against the equations.


@settings(deadline=None)
@given(points(full_pages=True))
def test_full_pages_without_groups_obey_equations_9_to_12(point: Point) -> None:
    shape = Shape("mha", point.shape.num_kv_heads, point.shape.num_kv_heads, 64, point.shape.kv_dtype)
    point = Point(shape, point.seq_len, point.page_size, point.token_budget, point.batch_size)
    (pages, *_), (selected, *_) = point.num_pages, point.num_selected
    vector_bytes = 64 * {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8_e4m3": 1}[shape.kv_dtype]
    ledger, times = entries(point, WORKERS), shape.num_kv_heads * point.batch_size
    assert counted_bytes(ledger) == {
        "dense": times * eq09_dense_bytes(vector_bytes, point.seq_len),
        "score": times * eq10_index_bytes(vector_bytes, pages),
        "attend": times * eq11_selected_bytes(vector_bytes, selected, point.page_size),
        "quest": times
        * (
            eq10_index_bytes(vector_bytes, pages)
            + eq11_selected_bytes(vector_bytes, selected, point.page_size)
        ),
    }
    assert read_ratio(ledger) == pytest.approx(eq12_read_ratio(point.page_size, selected, pages), rel=1e-12)


@settings(deadline=None)
@given(points())
def test_a_budget_over_everything_reads_dense_and_the_summary(point: Point) -> None:
    covering = point.page_size * max(point.num_pages)
    point = Point(
        point.shape,
        point.seq_len,
        point.page_size,
        covering,
        point.batch_size,
        point.lengths,
        policy=point.policy,
    )
    counted = counted_bytes(entries(point, WORKERS))
    assert counted["attend"] == counted["dense"]
    assert counted["quest"] == counted["dense"] + counted["score"]


def test_a_16_bit_summary_over_an_8_bit_cache_costs_two_over_s() -> None:
    shape = Shape("kv8", 4, 4, 128, "fp8_e4m3", "fp16")
    counted = counted_bytes(entries(Point(shape, 16384, 16, 1024), WORKERS))
    assert counted["score"] / counted["dense"] == 2 / 16
    assert counted["quest"] / counted["dense"] == eq12_read_ratio(16, 64, 1024, summary_element_ratio=2.0)
    fp32 = Shape("wide", 4, 4, 128, "bf16", "fp32")
    assert read_ratio(entries(Point(fp32, 16384, 16, 1024), WORKERS)) == 2 / 16 + 1 / 16


def test_a_transposed_summary_is_read_by_sign() -> None:
    for shape, share in ((MHA, 0.5), (GQA, 1 - 0.5**4)):
        paired, transposed = (
            counted_bytes(entries(Point(shape, 4096, 16, 512, summary_layout=layout), WORKERS))
            for layout in ("paired", "transposed")
        )
        assert transposed["score"] == share * paired["score"]
        assert transposed["attend"] == paired["attend"]


def test_known_signs_replace_the_expected_share() -> None:
    point = Point(GQA, 4096, 16, 512, summary_layout="transposed")
    rows = 2 * 256 * 2 * 64 * 2  # min and max of 256 pages, 2 KV heads
    assert counted_bytes(entries(point, WORKERS, sign_share=0.75))["score"] == 0.75 * rows
    equal = msgspec.structs.replace(point, data="shared")  # one query a group: half, however many heads
    assert counted_bytes(entries(equal, WORKERS))["score"] == 0.5 * rows


@pytest.mark.parametrize(
    ("shape", "layout", "share", "words"),
    [
        (MHA, "paired", 0.5, "a paired summary is read whole"),
        (MHA, "transposed", 0.75, "picks a share of the min and max rows in 0.5..0.5"),
        (GQA, "transposed", 0.4, "in 0.5..1"),
        (GQA, "transposed", 1.1, "in 0.5..1"),
        (GQA, "transposed", math.nan, "in 0.5..1"),
    ],
)
def test_a_share_that_no_signs_pick_is_refused(shape: Shape, layout: str, share: float, words: str) -> None:
    with pytest.raises(QuestprofError) as caught:
        entries(Point(shape, 4096, 16, 512, summary_layout=layout), WORKERS, sign_share=share)
    assert words in caught.value.why


def test_the_picked_rows_are_those_that_real_signs_pick() -> None:
    """Counting rows by hand for random queries: the share that the ledger is given, times all rows."""
    point = Point(GQA, 320, 16, 96, summary_layout="transposed")
    q = torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(1))  # [KV heads, group, d]
    rows = int((q < 0).any(1).sum() + (q >= 0).any(1).sum())
    share = rows / (2 * 2 * 64)
    assert counted_bytes(entries(point, WORKERS, sign_share=share))["score"] == rows * 20 * 2
    assert share == pytest.approx(1 - 2**-4, abs=0.05)


# Against counting: every (request, KV head, position) that the picked pages hold, once.


def counted_by_hand(
    point: Point, cache: PagedCache, page_ids: torch.Tensor, select_indptr: list[int]
) -> tuple[int, float]:
    """(distinct K and V bytes of the ids, the sum of unions over that of K)."""
    group_size, tokens, pages = point.shape.group_size, set(), 0
    for request in range(len(point.lengths)):
        for kv_head in range(point.shape.num_kv_heads):
            union: set[int] = set()
            for head in range(kv_head * group_size, (kv_head + 1) * group_size):
                union |= set(page_ids[head, select_indptr[request] : select_indptr[request + 1]].tolist())
            pages += len(union)
            for page in union:
                for position in range(page * point.page_size, (page + 1) * point.page_size):
                    if position < cache.seq_lens[request]:
                        tokens.add((request, kv_head, position))
    selected = point.shape.num_kv_heads * select_indptr[-1]
    return 2 * len(tokens) * point.shape.head_dim * 2, pages / selected


@pytest.mark.parametrize("shape", [MHA, GQA])
@pytest.mark.parametrize("seq_len", [320, 325, 336])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_attend_reads_the_distinct_tokens_of_real_ids(shape: Shape, seq_len: int, batch_size: int) -> None:
    point = Point(shape, seq_len, 16, 96, batch_size)
    pool = PagePool(sum(point.num_pages), shape.num_kv_heads, 16, shape.head_dim, torch.float16)
    cache = PagedCache(pool, batch_size, pool.num_pages)
    cache.extend(list(point.lengths))
    draw = torch.Generator().manual_seed(seq_len)
    scores = torch.randn(shape.num_qo_heads, cache.total_pages, generator=draw)
    indptr = [6 * request for request in range(batch_size + 1)]
    by_hand, ratio = counted_by_hand(point, cache, reference.select(scores, cache, indptr), indptr)
    assert counted_bytes(entries(point, WORKERS, union_ratio=ratio))["attend"] == by_hand
    assert ratio == 1 if shape is MHA else 1 < ratio < 4


@settings(deadline=None)
@given(points(), st.data())
def test_a_larger_union_never_reads_less_and_never_more_than_dense(point: Point, data: st.DataObject) -> None:
    ratios = sorted(data.draw(st.floats(1, point.shape.group_size)) for _ in range(2))
    low, high = (counted_bytes(entries(point, WORKERS, union_ratio=ratio)) for ratio in ratios)
    assert low["attend"] <= high["attend"] <= high["dense"] == low["dense"]
    assert high["attend"] <= counted_bytes(entries(point, WORKERS))["attend"]


def test_a_ragged_batch_reads_the_tokens_of_its_real_ids() -> None:
    """K of 8 and 2 of 28 and 8 pages: the requests' unions differ, their sum over the sum of K is exact."""
    point = Point(GQA, 333, 12, 96, 2, seq_lens=(333, 90), token_budgets=(96, 24))
    pool = PagePool(sum(point.num_pages), GQA.num_kv_heads, 12, GQA.head_dim, torch.float16)
    cache = PagedCache(pool, 2, pool.num_pages)
    cache.extend(list(point.lengths))
    scores = torch.randn(GQA.num_qo_heads, cache.total_pages, generator=torch.Generator().manual_seed(1))
    indptr = [0, 8, 10]
    by_hand, ratio = counted_by_hand(point, cache, reference.select(scores, cache, indptr), indptr)
    assert counted_bytes(entries(point, WORKERS, union_ratio=ratio))["attend"] == by_hand


def test_the_default_union_is_the_whole_group_capped_at_all_pages() -> None:
    vector = 64 * 2
    few, many = Point(GQA, 16 * 100, 16, 16 * 20), Point(GQA, 16 * 100, 16, 16 * 30)
    assert counted_bytes(entries(few, WORKERS))["attend"] == 2 * 2 * 80 * 16 * vector  # 4 x 20 of 100 pages
    assert counted_bytes(entries(many, WORKERS))["attend"] == 2 * 2 * 100 * 16 * vector  # 4 x 30 > 100


# Tails and tiles.


def test_policy_quest_holds_the_partial_tail() -> None:
    # 100 tokens in 7 pages of 16, the last with 4; K = 3: 2 x 16 + 4 = 36 tokens, else 48 at most.
    vector = 64 * 2
    for policy, tokens in (("quest", 36), ("quest-open", 48)):
        point = Point(MHA, 100, 16, 48, policy=policy)
        assert counted_bytes(entries(point, WORKERS))["attend"] == 2 * 4 * tokens * vector
        assert counted_bytes(entries(point, WORKERS))["dense"] == 2 * 4 * 100 * vector
    all_pages = Point(MHA, 100, 16, 112, policy="quest-open")
    assert counted_bytes(entries(all_pages, WORKERS))["attend"] == 2 * 4 * 100 * vector


@pytest.mark.parametrize(
    ("page_size", "seq_len", "tile", "dense_tokens", "attend_tokens"),
    [
        (12, 120, 16, 10 * 16, 3 * 16),  # a page of 12 under a tile of 16 reads 16
        (12, 120, 8, 10 * 16, 3 * 16),  # two tiles of 8
        (12, 120, 1, 10 * 12, 3 * 12),
        (16, 101, 16, 7 * 16, 3 * 16),  # the last page holds 5, its tile 16
        (16, 101, 4, 6 * 16 + 8, 2 * 16 + 8),  # 5 tokens in tiles of 4: 8
        (16, 101, 1, 101, 2 * 16 + 5),
        (16, 101, 32, 7 * 32, 3 * 32),  # a tile over two pages' worth of slots
        (16, 97, 16, 7 * 16, 3 * 16),
    ],
)
def test_a_page_is_read_in_whole_tiles(
    page_size: int, seq_len: int, tile: int, dense_tokens: int, attend_tokens: int
) -> None:
    point = Point(MHA, seq_len, page_size, 3 * page_size)
    counted = counted_bytes(entries(point, WORKERS, physical_tile=tile))
    assert counted["dense"] == 2 * 4 * dense_tokens * 128
    assert counted["attend"] == 2 * 4 * attend_tokens * 128
    assert counted["score"] == 2 * 4 * math.ceil(seq_len / page_size) * 128


def test_the_default_tile_is_the_plans() -> None:
    point = Point(MHA, 101, 16, 48)
    assert planned_tile(point, WORKERS) == 1
    assert entries(point, WORKERS) == entries(point, WORKERS, physical_tile=planned_tile(point, WORKERS))


# The other tensors, by hand: 2 requests of 40 and 17 tokens in pages of 16 (3 + 2 pages), K = 2 and 1.


RAGGED = Point(GQA, 40, 16, 32, 2, seq_lens=(40, 17), token_budgets=(32, 16))
IN_BLOCKS = Point(
    GQA, 1040, 16, 32, 2, seq_lens=(1040, 17), token_budgets=(32, 16), summary_layout="transposed"
)
"""65 pages hold two blocks, 2 pages one."""


@pytest.mark.parametrize(
    ("stage", "tensor", "read", "write"),
    [
        ("score", "q", 2 * 8 * 64 * 2, 0),
        ("score", "block_table", 4 * 5, 0),
        ("score", "kv_indptr", 4 * 3, 0),
        ("score", "scores", 0, 4 * 8 * 5),
        ("select", "scores", 4 * 8 * 5, 0),
        ("select", "kv_indptr", 4 * 3, 0),
        ("select", "select_indptr", 4 * 3, 0),
        ("select", "page_ids", 0, 4 * 8 * 3),
        ("attend", "page_ids", 4 * 8 * 3, 0),
        ("attend", "block_table", 4 * 5, 0),
        ("attend", "last_page_len", 4 * 2, 0),
        ("attend", "q", 2 * 8 * 64 * 2, 0),
        ("attend", "out", 0, 2 * 8 * 64 * 2),
        ("attend", "lse", 0, 4 * 2 * 8),
        ("dense", "block_table", 4 * 5, 0),
        ("dense", "out", 0, 2 * 8 * 64 * 2),
        ("dense", "lse", 0, 4 * 2 * 8),
        ("append", "keys", 2 * 2 * 64 * 2, 0),
        ("append", "k", 0, 2 * 2 * 64 * 2),
        ("append", "v", 0, 2 * 2 * 64 * 2),
        ("append", "new_indptr", 4 * 3, 0),
        # Token 40 is the 8th of its page and widens its box; token 17 opens its page: written, not read.
        ("append", "summary", 1 * 2 * 2 * 64 * 2, 2 * 2 * 2 * 64 * 2),
    ],
)
def test_small_tensors_by_hand(stage: str, tensor: str, read: int, write: int) -> None:
    entry = of(entries(RAGGED, WORKERS), stage, tensor)
    assert (entry.read_bytes, entry.write_bytes) == (read, write)


@pytest.mark.parametrize(
    ("stage", "tensor", "read", "write"),
    [
        ("score", "summary", 2 * 15 * 67 * 2 * 64 * 2 // 16, 0),
        ("score", "summary_table", 4 * 3, 0),
        ("score", "summary_indptr", 4 * 3, 0),
        ("score", "scores", 0, 4 * 8 * 67),
        ("append", "summary_table", 4 * 2, 0),
        # Token 1040 is the last of its page; token 17 opens its page. As many bytes as with a paired summary.
        ("append", "summary", 1 * 2 * 2 * 64 * 2, 2 * 2 * 2 * 64 * 2),
    ],
)
def test_tensors_of_a_transposed_summary_by_hand(stage: str, tensor: str, read: int, write: int) -> None:
    ledger = entries(IN_BLOCKS, WORKERS)
    entry = of(ledger, stage, tensor)
    assert (entry.read_bytes, entry.write_bytes) == (read, write)
    assert not [e for e in ledger if (e.stage, e.tensor) == ("score", "block_table")]
    assert not [e for e in entries(RAGGED, WORKERS) if e.tensor.startswith("summary_")]


@pytest.mark.parametrize(("point", "own"), [(RAGGED, 1), (IN_BLOCKS, 3)])
def test_append_is_append_kv_and_the_summary(point: Point, own: int) -> None:
    ledger = entries(point, WORKERS)
    with_summary, without = ([e for e in ledger if e.stage == stage] for stage in ("append", "append_kv"))
    extra = [e for e in with_summary if e.tensor.startswith("summary")]
    plain = [(e.tensor, e.read_bytes, e.write_bytes) for e in with_summary if e not in extra]
    assert plain == [(e.tensor, e.read_bytes, e.write_bytes) for e in without]
    assert len(extra) == own


def test_the_note_says_in_what_pieces_a_box_is_written() -> None:
    note = of(entries(IN_BLOCKS, WORKERS), "append", "summary").note
    assert note == "tail page's box, eq. (8), (14), 2 B at a time, a row apart"


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_token_that_opens_its_page_reads_no_box(page_size: int) -> None:
    point = Point(MHA, 2 * page_size + 1, page_size, page_size)
    assert of(entries(point, WORKERS), "append", "summary").read_bytes == 0


def test_an_8_bit_cache_keeps_16_bit_queries() -> None:
    point = Point(Shape("kv8", 4, 4, 64, "int8"), 64, 16, 16)
    assert of(entries(point, WORKERS), "dense", "q").read_bytes == 4 * 64 * 2


@pytest.mark.parametrize("num_workers", [1, 132])
def test_split_partials_are_those_of_the_plan(num_workers: int) -> None:
    point = Point(GQA, 4096, 16, 1024, 2, seq_lens=(4096, 64), token_budgets=(1024, 16))
    ledger = entries(point, num_workers)
    for stage, pages, mean in (("attend", (64, 1), 33), ("dense", (256, 4), 130)):
        plan = plan_attention(
            num_qo_heads=8,
            num_kv_heads=2,
            per_query_head=stage == "attend",
            head_dim=64,
            page_size=16,
            batch_size=2,
            pages_per_request=mean,
            num_workers=num_workers,
        )
        splits = [plan.active_splits(n) for n in pages]
        written = sum(4 * 8 * n * (64 + 2) for n in splits if n > 1)
        entry = of(ledger, stage, "split_partials")
        assert entry.read_bytes == entry.write_bytes == written <= 4 * plan.partial_floats
        head_programs = 8 if stage == "attend" else 2
        assert of(ledger, stage, "counters").read_bytes == 4 * head_programs * sum(n > 1 for n in splits)
    assert (of(ledger, "dense", "split_partials").read_bytes > 0) == (num_workers == 132)


@pytest.mark.parametrize("num_workers", [1, 132])
def test_cuda_partials_are_words_of_8_bytes_by_its_own_plan(num_workers: int) -> None:
    """Every active split of a head, or of a group, posts (64 + 2) words for each of its query heads."""
    point = Point(GQA, 4096, 16, 1024, 2, seq_lens=(4096, 64), token_budgets=(1024, 16))
    ledger = entries(point, num_workers, variant="cuda")
    for stage, pages, mean in (("attend", (64, 1), 33), ("dense", (256, 4), 130)):
        plan = plan_blocks(
            num_qo_heads=8,
            num_kv_heads=2,
            per_query_head=stage == "attend",
            head_dim=64,
            batch_size=2,
            pages_per_request=mean,
            num_workers=num_workers,
        )
        splits = [n for n in map(plan.active_splits, pages) if n > 1]
        entry = of(ledger, stage, "split_partials")
        assert entry.read_bytes == entry.write_bytes == 8 * 8 * sum(splits) * (64 + 2)
        assert entry.write_bytes <= 4 * plan.scratch_floats
        programs = 8 if stage == "attend" else 2
        assert of(ledger, stage, "counters").read_bytes == 4 * programs * len(splits)
        assert bool(splits) == (num_workers == 132)


def test_a_variant_changes_partials_and_counters_alone() -> None:
    point = Point(GQA, 4096, 16, 1024)
    by_variant = [entries(point, WORKERS, variant=variant) for variant in ("triton", "cuda")]
    for ours, theirs in zip(*by_variant, strict=True):
        assert ours == theirs or ours.tensor in ("split_partials", "counters")
    assert counted_bytes(by_variant[0]) == counted_bytes(by_variant[1])


def test_a_library_is_counted_as_the_stages_of_its_device() -> None:
    point = Point(GQA, 4096, 16, 1024)
    assert entries(point, WORKERS, variant="flashinfer-0.6.3") == entries(point, WORKERS, variant="triton")
    on_cpu = msgspec.structs.replace(point, device="cpu")
    plain = entries(on_cpu, 2)
    assert entries(on_cpu, 2, variant="torch-2.13.0") == plain == entries(on_cpu, 2, variant="cpu")


# Batches and absences.


@settings(deadline=None)
@given(points())
def test_counted_bytes_of_a_batch_are_those_of_its_requests(point: Point) -> None:
    alone = [
        counted_bytes(
            entries(
                msgspec.structs.replace(
                    point,
                    seq_len=length,
                    token_budget=budget,
                    batch_size=1,
                    seq_lens=(),
                    token_budgets=(),
                ),
                WORKERS,
            )
        )
        for length, budget in zip(point.lengths, point.budgets, strict=True)
    ]
    together = counted_bytes(entries(point, WORKERS))
    assert together == {stage: sum(one[stage] for one in alone) for stage in together}


def test_an_empty_request_adds_only_its_indices_and_outputs() -> None:
    one, two = Point(MHA, 40, 16, 32), Point(MHA, 40, 16, 32, 2, (40, 0), (32, 0))
    assert counted_bytes(entries(one, WORKERS)) == counted_bytes(entries(two, WORKERS))
    assert of(entries(two, WORKERS), "append", "k") == of(entries(one, WORKERS), "append", "k")
    assert of(entries(two, WORKERS), "attend", "lse").write_bytes == 4 * 2 * 4


def test_a_dense_point_has_no_quest_stages() -> None:
    ledger = entries(Point(MHA, 4096, policy="dense"), WORKERS)
    assert set(stage_bytes(ledger)) == {"append", "append_kv", "dense"}
    with pytest.raises(QuestprofError, match="no request has both tokens and a token budget"):
        read_ratio(ledger)


def test_resident_bytes_are_whole_pages_of_all_layers() -> None:
    shape = Shape("small", 4, 2, 64, "bf16", "fp32", num_layers=3)
    resident = resident_bytes(Point(shape, 33, 16, batch_size=2, seq_lens=(33, 16)))
    assert resident.cache_bytes == 2 * (3 + 1) * 16 * 2 * 64 * 2 * 3
    assert resident.summary_bytes == 2 * (3 + 1) * 2 * 64 * 4 * 3
    in_blocks = Point(shape, 33, 16, batch_size=2, seq_lens=(33, 16), summary_layout="transposed")
    assert resident_bytes(in_blocks).cache_bytes == resident.cache_bytes
    assert resident_bytes(in_blocks).summary_bytes == 2 * (64 + 64) * 2 * 64 * 4 * 3


# Mistakes a counter must show: by how many bytes each departs from the ledger.


@pytest.fixture
def planted() -> tuple[dict[str, int], Point, int]:
    """Counted bytes at 64K over 4 KV heads, the point, and M times the KV heads."""
    point = Point(Shape("mha", 4, 4, 128, "fp16"), 65536, 16, 4096)
    return counted_bytes(entries(point, WORKERS)), point, 4 * 256


def test_k_without_v_is_half_of_attend(planted: tuple[dict[str, int], Point, int]) -> None:
    counted, point, vectors = planted
    k_alone = of(entries(point, WORKERS), "attend", "k").read_bytes
    assert counted["attend"] - k_alone == eq11_selected_bytes(vectors, 256, 16) // 2
    assert k_alone / counted["attend"] == 0.5


def test_no_summary_is_short_by_equation_10(planted: tuple[dict[str, int], Point, int]) -> None:
    counted, _, vectors = planted
    assert counted["quest"] - eq11_selected_bytes(vectors, 256, 16) == eq10_index_bytes(vectors, 4096) > 0


def test_min_without_max_is_half_of_score(planted: tuple[dict[str, int], Point, int]) -> None:
    counted, _, vectors = planted
    assert counted["score"] - vectors * 4096 == eq10_index_bytes(vectors, 4096) // 2


def test_reading_every_page_is_dense_again(planted: tuple[dict[str, int], Point, int]) -> None:
    counted, _, vectors = planted
    surplus = eq09_dense_bytes(vectors, 65536) - counted["attend"]
    assert surplus == eq11_selected_bytes(vectors, 4096 - 256, 16) > 10 * counted["attend"]


def test_a_gather_first_moves_the_selection_three_times(planted: tuple[dict[str, int], Point, int]) -> None:
    counted, point, vectors = planted
    gathered = 3 * eq11_selected_bytes(vectors, 256, 16)  # read, written to the copy, read again
    total = stage_bytes(entries(point, WORKERS))["attend"]
    assert gathered - counted["attend"] == 2 * counted["attend"] > 0.9 * (total.read + total.write)


def test_padding_a_ragged_batch_reads_the_longest_for_all() -> None:
    shape = Shape("mha", 4, 4, 128, "fp16")
    ragged = counted_bytes(entries(Point(shape, 4096, 16, 512, 2, seq_lens=(4096, 1024)), WORKERS))
    padded = counted_bytes(entries(Point(shape, 4096, 16, 512, 2), WORKERS))
    assert padded["dense"] - ragged["dense"] == eq09_dense_bytes(4 * 256, 4096 - 1024)
    assert padded["score"] - ragged["score"] == eq10_index_bytes(4 * 256, 256 - 64)


# What is refused.


@pytest.mark.parametrize(
    ("point", "options", "words"),
    [
        (Point(MHA, 64, 16, 8), {}, "token budget 8"),
        (Point(MHA, 64, 16, 0), {}, "token budget 0"),
        (Point(MHA, 64, 16, 32, 2, token_budgets=(32, 15)), {}, "token budget 15"),
        (Point(MHA, 64, 0, 8), {}, "page size 0"),
        (Point(MHA, -1, 16, 16), {}, "lengths (-1,)"),
        (Point(MHA, 64, 16, 16, 0), {}, "lengths ()"),
        (Point(MHA, 64, 16, 16, 2, token_budgets=(16,)), {}, "token budgets (16,)"),
        (Point(MHA, 64, 16, 16), {"num_workers": 0}, "0 workers"),
        (Point(MHA, 64, 16, 16), {"physical_tile": 0}, "physical tile 0"),
        (Point(MHA, 64, 16, 16), {"union_ratio": 1.5}, "union ratio 1.5"),
        (Point(GQA, 64, 16, 16), {"union_ratio": 0.5}, "union ratio 0.5"),
        (Point(GQA, 64, 16, 16), {"union_ratio": 4.5}, "union ratio 4.5"),
        (Point(GQA, 64, 16, 16), {"union_ratio": math.nan}, "union ratio nan"),
        (Point(Shape("odd", 3, 2, 64), 64, 16, 16), {}, "shape 'odd'"),
        (Point(Shape("odd", 2, 2, 64, "fp64"), 64, 16, 16), {}, "shape 'odd'"),
    ],
)
def test_what_cannot_be_is_refused(point: Point, options: dict[str, float], words: str) -> None:
    with pytest.raises(QuestprofError) as caught:
        entries(point, **{"num_workers": WORKERS, **options})  # type: ignore[arg-type]
    assert words in caught.value.what
    assert caught.value.why
    assert caught.value.fix.endswith(".")
    assert caught.value.status == Exit.USAGE


def test_resident_bytes_need_no_budget_but_a_length() -> None:
    assert resident_bytes(Point(MHA, 64)).cache_bytes == 2 * 64 * 4 * 64 * 2 * 32
    with pytest.raises(QuestprofError, match="lengths"):
        resident_bytes(Point(MHA, -1))


def test_a_cpu_has_one_partial_a_worker_and_no_counters():
    """Dense cuts the pages in two for two workers: 2 splits x 32 heads x (128 + 2) x 4 B = 33280 B."""
    shape = Shape("llama", 32, 32, 128, kv_dtype="fp32")
    point = Point(shape=shape, seq_len=4096, token_budget=1024, device="cpu")
    moved = {(e.stage, e.tensor): (e.read_bytes, e.write_bytes) for e in entries(point, 2)}
    assert moved["dense", "split_partials"] == (33280, 33280)
    assert moved["attend", "split_partials"] == (16640, 16640)  # 32 heads already share out evenly
    assert moved["dense", "counters"] == (0, 0)


# The ablation and the append of whole prompts, by hand, of the same two requests.


@pytest.mark.parametrize(
    ("tensor", "num_bytes"),
    [
        # Both heads' tail pages are among the picks: 24 of 2 x 16 slots hold tokens, and 1 of 16.
        ("gathered_k", 8 * (24 + 1) * 64 * 2),
        ("gathered_v", 8 * (24 + 1) * 64 * 2),
        ("gathered_table", 4 * (8 * 3 + (16 + 1) + 16)),  # page numbers, indptr, lengths of 16 rows
    ],
)
def test_a_gathered_copy_is_written_and_read_again(tensor: str, num_bytes: int) -> None:
    entry = of(entries(msgspec.structs.replace(RAGGED, backend="gather"), WORKERS), "attend", tensor)
    assert (entry.read_bytes, entry.write_bytes) == (num_bytes, num_bytes)
    assert not entry.in_eq12


@settings(deadline=None)
@given(points())
def test_a_gathered_copy_changes_nothing_else(point: Point) -> None:
    copied = entries(msgspec.structs.replace(point, backend="gather"), WORKERS)
    assert tuple(e for e in copied if not e.tensor.startswith("gathered_")) == entries(point, WORKERS)


@pytest.mark.parametrize(
    ("tensor", "read", "write"),
    [
        ("keys", 57 * 2 * 64 * 2, 0),
        ("values", 57 * 2 * 64 * 2, 0),
        ("k", 0, 57 * 2 * 64 * 2),
        ("v", 0, 57 * 2 * 64 * 2),
        ("summary", 0, 2 * 5 * 2 * 64 * 2),
        ("block_table", 4 * 5, 0),
        ("kv_indptr", 4 * 3, 0),
        ("new_indptr", 4 * 3, 0),
        ("last_page_len", 4 * 2, 0),
    ],
)
def test_a_whole_prompt_by_hand(tensor: str, read: int, write: int) -> None:
    entry = of(entries(RAGGED, WORKERS, prefill=True), "append_prefill", tensor)
    assert (entry.read_bytes, entry.write_bytes) == (read, write)


def test_a_whole_prompt_is_listed_when_asked_for_alone() -> None:
    asked = entries(RAGGED, WORKERS, prefill=True)
    assert tuple(e for e in asked if e.stage != "append_prefill") == entries(RAGGED, WORKERS)
    assert of(entries(IN_BLOCKS, WORKERS, prefill=True), "append_prefill", "summary_table").read_bytes == 12
