"""The CPU stages against the float64 oracle, over hostile caches; `select` exactly, on given scores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numba
import numpy as np
import pytest
import torch
from cases import (
    DTYPES,
    HOSTILE_LENGTHS,
    Case,
    assert_close,
    eager_attend,
    eager_score,
    make_cache,
    make_outputs,
    make_page_ids,
    make_q,
    make_select_indptr,
    non_contiguous,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from questprof_kernels import cpu, cpu_device, reference
from questprof_kernels.paged_cache import PagedCache, PagePool
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, SUMMARY_LAYOUTS

NAN, INF = float("nan"), float("inf")
FP32 = torch.float32
# (kv_dtype, page_size, num_kv_heads, group_size, head_dim); a group of 6 is 4 heads side by side and 2 alone.
SHAPES = [
    ("fp32", 16, 2, 1, 128),
    ("fp32", 1, 1, 3, 64),
    ("fp32", 3, 3, 1, 64),
    ("fp32", 12, 1, 6, 128),
    ("fp32", 128, 2, 4, 64),
    ("fp16", 16, 1, 4, 128),
    ("fp16", 3, 2, 1, 64),
    ("fp16", 128, 2, 3, 64),
    ("bf16", 16, 2, 1, 64),
    ("bf16", 1, 1, 3, 128),
    ("bf16", 12, 2, 4, 64),
]
shapes = pytest.mark.parametrize(("dtype", "page_size", "num_kv_heads", "group_size", "head_dim"), SHAPES)


@pytest.fixture(params=SUMMARY_LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


def hostile(dtype: str, page_size: int, num_kv_heads: int, head_dim: int, **options: object) -> Case:
    """Ragged short lengths and a long one, filled by the kernel."""
    lengths = [*HOSTILE_LENGTHS, 700]
    options = {"append": cpu.append, "num_workers": 3} | options
    return make_cache(lengths, page_size, num_kv_heads, head_dim, DTYPES[dtype], seed=page_size, **options)


def run_score(case: Case, q: torch.Tensor) -> torch.Tensor:
    scores = torch.full((q.shape[1], case.cache.total_pages), NAN)
    cpu.score(q, case.cache, scores)
    return scores


def run_select(
    scores: torch.Tensor, cache: PagedCache, select_indptr: torch.Tensor, take_tail: bool = True
) -> torch.Tensor:
    page_ids = torch.full((scores.shape[0], int(select_indptr[-1])), -7, dtype=torch.int32)
    cpu.select(scores, cache, select_indptr, page_ids, take_tail)
    return page_ids


def run_attend(
    case: Case,
    q: torch.Tensor,
    page_ids: torch.Tensor,
    select_indptr: torch.Tensor,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = make_outputs(q)
    scratch = torch.full((cpu.attend_scratch_floats(q, case.cache, page_ids),), NAN)
    cpu.attend(q, case.cache, page_ids, select_indptr, out, lse, scratch, scale)
    return out, lse


def run_dense(case: Case, q: torch.Tensor, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = make_outputs(q)
    cpu.dense(q, case.cache, out, lse, torch.full((cpu.dense_scratch_floats(q, case.cache),), NAN), scale)
    return out, lse


def check_attention(
    got: tuple[torch.Tensor, torch.Tensor],
    eager: tuple[torch.Tensor, torch.Tensor],
    oracle: tuple[torch.Tensor, torch.Tensor],
    what: str,
) -> None:
    """Eager code runs in fp32, as the kernels accumulate; the floor is the rounding of what is stored."""
    assert_close(got[0], eager[0], oracle[0], got[0].dtype, f"{what}: out")
    assert_close(got[1], eager[1], oracle[1], FP32, f"{what}: lse")


# append


@shapes
def test_append_writes_the_tokens_and_their_boxes_alone(
    dtype: str, page_size: int, num_kv_heads: int, group_size: int, head_dim: int, layout: str
) -> None:
    case = hostile(dtype, page_size, num_kv_heads, head_dim, summary_layout=layout)
    pool, owned, blocks = case.cache.pool, [], []
    for request in range(case.cache.batch_size):
        for logical, page in enumerate(case.cache.physical_pages(request)):
            rows = case.tokens(request, logical)
            count = rows.stop - rows.start
            assert torch.equal(pool.k[page, :, :count], case.keys[rows].transpose(0, 1))
            assert torch.equal(pool.v[page, :, :count], case.values[rows].transpose(0, 1))
            assert pool.k[page, :, count:].isnan().all()
            assert pool.v[page, :, count:].isnan().all()
            owned.append(page)
        for number, block in enumerate(case.cache.summary_blocks(request)):
            slack = pool.summary.data[
                block, ..., case.cache.num_pages[request] - number * SUMMARY_BLOCK_PAGES :
            ]
            assert (slack[:, :, 0] == INF).all()
            assert (slack[:, :, 1] == -INF).all()
            blocks.append(block)
        for head in range(num_kv_heads):
            for stored, true in zip(
                reference.stored_boxes(case.cache, request, head),
                reference.boxes(case.cache, request, head),
                strict=True,
            ):
                assert torch.equal(stored, true.reshape(stored.shape))
    spare = [page for page in range(pool.num_pages) if page not in owned]
    assert len(spare) == 5
    boxes = pool.summary.data
    if layout == "paired":
        untouched = boxes[spare]
    else:
        untouched = boxes[[block for block in range(len(boxes)) if block not in blocks]]
    for storage in (pool.k[spare], pool.v[spare], untouched):
        assert len(storage)
        assert storage.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [3, 16])
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_many_appends_equal_one_prefill(dtype: str, page_size: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))
    layout = data.draw(st.sampled_from(SUMMARY_LAYOUTS))
    whole = make_cache(lengths, page_size, 2, 64, DTYPES[dtype], seed=1, append=cpu.append)
    pool = PagePool(whole.cache.pool.num_pages, 2, page_size, 64, DTYPES[dtype], summary_layout=layout)
    cache, done = PagedCache(pool, len(lengths), pool.num_pages), [0] * len(lengths)
    while done != lengths:
        left = [total - n for total, n in zip(lengths, done, strict=True)]
        step = [data.draw(st.integers(min(1, n), n)) for n in left]
        new_indptr = cache.extend(step)
        starts = [int(whole.new_indptr[r]) + done[r] for r in range(len(lengths))]
        rows = [start + i for start, n in zip(starts, step, strict=True) for i in range(n)]
        cpu.append(cache, whole.keys[rows], whole.values[rows], new_indptr)
        done = [a + b for a, b in zip(done, step, strict=True)]
    for request in range(len(lengths)):
        for head in range(2):
            for gathered in (reference.gather, reference.stored_boxes):
                pairs = zip(gathered(cache, request, head), gathered(whole.cache, request, head), strict=True)
                assert all(torch.equal(a, b) for a, b in pairs)


def test_append_reads_new_keys_and_the_tail_box_only(layout: str) -> None:
    case = make_cache([21], 16, 1, 64, FP32, seed=2, append=cpu.append, summary_layout=layout)
    pool, tail = case.cache.pool, case.cache.physical_pages(0)[1]
    pool.k[tail, :, :5] = NAN  # old keys; their box stays
    new_indptr = case.cache.extend([2])
    more = torch.randn(2, 1, 64)
    cpu.append(case.cache, more, more, new_indptr)
    both = torch.cat([case.keys[16:], more])[:, 0]
    low, high = reference.stored_boxes(case.cache, 0, 0)
    assert torch.equal(low[1], both.amin(0).double())
    assert torch.equal(high[1], both.amax(0).double())


def test_a_page_without_older_tokens_gets_the_box_of_the_new_keys_alone() -> None:
    case = make_cache([16, 3], 16, 1, 64, FP32, seed=40, append=cpu.append)
    new_indptr = case.cache.extend([2, 2])
    pages = [case.cache.physical_pages(0)[1], case.cache.physical_pages(1)[0]]
    summary = case.cache.pool.summary.data
    summary[pages, 0, 0], summary[pages, 0, 1] = -99.0, 99.0
    new = torch.randn(4, 1, 64)
    cpu.append(case.cache, new, new, new_indptr)
    assert torch.equal(summary[pages[0], 0], torch.stack([new[:2, 0].amin(0), new[:2, 0].amax(0)]))
    assert torch.equal(summary[pages[1], 0], torch.tensor([[-99.0], [99.0]]).expand(2, 64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_append_twice_changes_nothing(dtype: str, layout: str) -> None:
    case = make_cache([5, 0, 16], 16, 2, 64, DTYPES[dtype], 3, append=cpu.append, summary_layout=layout)
    new_indptr = case.cache.extend([3, 2, 17])
    new = torch.randn(22, 2, 64).to(DTYPES[dtype])
    cpu.append(case.cache, new, new, new_indptr)
    pool = case.cache.pool
    before = [storage.clone() for storage in (pool.k, pool.v, pool.summary.data)]
    cpu.append(case.cache, new, new, new_indptr)
    for old, storage in zip(before, (pool.k, pool.v, pool.summary.data), strict=True):
        assert torch.equal(old.nan_to_num(7.0), storage.nan_to_num(7.0))


def test_append_kv_leaves_the_summary_alone() -> None:
    case = make_cache([5, 20], 16, 2, 64, FP32, seed=4, append=cpu.append_kv)
    pages = [*case.cache.physical_pages(0), *case.cache.physical_pages(1)]
    assert torch.equal(pool_keys(case, 1, 1), case.keys[21:25].transpose(0, 1))
    assert (case.cache.pool.summary.data[pages, :, 0] == INF).all()
    assert (case.cache.pool.summary.data[pages, :, 1] == -INF).all()


def test_a_branch_writes_its_own_boxes(layout: str) -> None:
    pool = PagePool(30, 2, 4, 64, FP32, summary_layout=layout)
    cache = PagedCache(pool, 2, 40)
    keys, more = torch.randn(27, 2, 64), torch.randn(3, 2, 64)
    cpu.append(cache, keys, keys, cache.extend([27, 0]))
    cache.fork(0, 1)
    cpu.append(cache, more, more, cache.extend([1, 2]))
    for request in range(2):
        for head in range(2):
            stored, true = (f(cache, request, head) for f in (reference.stored_boxes, reference.boxes))
            assert all(torch.equal(a, b) for a, b in zip(stored, true, strict=True))


def pool_keys(case: Case, request: int, logical: int) -> torch.Tensor:
    rows = case.tokens(request, logical)
    page = case.cache.physical_pages(request)[logical]
    return case.cache.pool.k[page, :, : rows.stop - rows.start]


@pytest.mark.parametrize("inner_stride", [1, 2])
def test_append_takes_any_strides(inner_stride: int) -> None:
    def append_strided(
        cache: PagedCache, keys: torch.Tensor, values: torch.Tensor, new_indptr: torch.Tensor
    ) -> None:
        keys, values = (non_contiguous(t, inner_stride=inner_stride) for t in (keys, values))
        cpu.append(cache, keys, values.transpose(0, 1).contiguous().transpose(0, 1), new_indptr)

    plain = hostile("fp16", 16, 2, 64)
    strided = hostile("fp16", 16, 2, 64, append=append_strided)
    for a, b in zip(plain_storage(plain), plain_storage(strided), strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def plain_storage(case: Case) -> tuple[torch.Tensor, ...]:
    return case.cache.pool.k, case.cache.pool.v, case.cache.pool.summary.data


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_key_reaches_box_score_and_selection(dtype: str, layout: str) -> None:
    keys = torch.randn(80, 1, 64).to(DTYPES[dtype])
    keys[37, 0, 9] = NAN
    case = make_cache(
        [80], 16, 1, 64, DTYPES[dtype], seed=5, keys=keys, append=cpu.append, summary_layout=layout
    )
    low, high = reference.stored_boxes(case.cache, 0, 0)
    assert low.isneginf().nonzero().tolist() == high.isposinf().nonzero().tolist() == [[2, 9]]
    q = make_q(case, 1, 6)
    scores = run_score(case, q)
    assert scores.isposinf().tolist() == [[False, False, True, False, False]]
    assert run_select(scores, case.cache, make_select_indptr(case.cache, 2)).tolist() == [[2, 4]]
    assert run_dense(case, q)[0].isnan().all()


def test_a_later_number_bounds_no_earlier_nan(layout: str) -> None:
    keys = torch.zeros(3, 1, 64)
    keys[1, 0, 0] = NAN
    case = make_cache([3], 16, 1, 64, FP32, 7, keys=keys, append=cpu.append, summary_layout=layout)
    cpu.append(case.cache, torch.ones(1, 1, 64), torch.ones(1, 1, 64), case.cache.extend([1]))
    low, high = reference.stored_boxes(case.cache, 0, 0)
    assert (low[0, 0], high[0, 0]) == (-INF, INF)
    assert torch.stack([low, high])[:, 0, 1:].isfinite().all()


# score


@shapes
def test_score(
    dtype: str, page_size: int, num_kv_heads: int, group_size: int, head_dim: int, layout: str
) -> None:
    case = hostile(dtype, page_size, num_kv_heads, head_dim, summary_layout=layout)
    q = make_q(case, num_kv_heads * group_size, 8, contiguous=False)
    scores = run_score(case, q)
    assert_close(scores, eager_score(case, q.float()), reference.score(q, case.cache), FP32, "scores")


def test_score_with_a_wide_summary(layout: str) -> None:
    case = hostile("fp16", 16, 2, 64, summary_dtype=FP32, summary_layout=layout)
    assert case.cache.pool.summary.dtype == FP32
    q = make_q(case, 4, 9)
    assert_close(run_score(case, q), eager_score(case, q.float()), reference.score(q, case.cache), FP32)


def test_the_bound_of_a_one_token_page_is_the_dot_product(layout: str) -> None:
    case = make_cache([9], 1, 1, 64, FP32, seed=10, append=cpu.append, summary_layout=layout)
    q = make_q(case, 1, 11)
    expected = case.keys[:, 0].double() @ q[0, 0].double()
    assert_close(run_score(case, q)[0], case.keys[:, 0] @ q[0, 0], expected, FP32)


@pytest.mark.parametrize(("dtype", "group_size"), [("fp32", 1), ("fp16", 5), ("bf16", 8)])
def test_score_over_many_blocks(dtype: str, group_size: int, layout: str) -> None:
    """Requests of 0, 1, 15, 16, 17, 63, 64, 65 and 300 pages."""
    lengths = [2 * pages for pages in (0, 1, 15, 16, 17, 63, 64, 65, 300)]
    case = make_cache(lengths, 2, 2, 64, DTYPES[dtype], 50, append=cpu.append, summary_layout=layout)
    q = make_q(case, 2 * group_size, 51)
    assert_close(run_score(case, q), eager_score(case, q.float()), reference.score(q, case.cache), FP32)


def test_score_over_a_pool_of_many_pages() -> None:
    """Physical page numbers of more than one digit of the sort."""
    case = make_cache([9, 0, 3000], 1, 1, 64, FP32, seed=52, append=cpu.append, spare_pages=6000)
    assert max(case.cache.physical_pages(2)) > 2 ** (cpu_device.RADIX_BITS + 1)
    q = make_q(case, 2, 53)
    assert_close(run_score(case, q), eager_score(case, q), reference.score(q, case.cache), FP32)


def test_requests_that_share_pages_score_each_with_its_own_query() -> None:
    case = make_cache([40, 0], 4, 1, 64, FP32, seed=54, append=cpu.append, spare_pages=20)
    case.cache.fork(0, 1)
    q = make_q(case, 2, 55)
    oracle = reference.score(q, case.cache)
    assert_close(run_score(case, q), oracle.float(), oracle, FP32)


@pytest.mark.parametrize("group_size", [1, 3, 5])
def test_a_row_that_no_query_asks_for_is_not_used(group_size: int) -> None:
    """Rows that no sign picks are NaN, as are the slots past a request's pages."""
    case = make_cache([1300, 20], 16, 2, 64, FP32, 56, append=cpu.append, summary_layout="transposed")
    q = make_q(case, 2 * group_size, 57)
    q[:, :, 3] = 0.0
    expected = run_score(case, q)
    negative = (q < 0).reshape(2, 2, group_size, 64)
    for request in range(2):
        for number, block in enumerate(case.cache.summary_blocks(request)):
            rows = case.cache.pool.summary.data[block]
            rows[:, :, 0][~negative[request].any(1)] = NAN
            rows[:, :, 1][negative[request].all(1)] = NAN
            rows[..., case.cache.num_pages[request] - number * SUMMARY_BLOCK_PAGES :] = NAN
    assert torch.equal(run_score(case, q), expected)


def test_infinite_and_nan_queries_show_in_their_own_scores(layout: str) -> None:
    keys = torch.full((40, 1, 64), -2.0)
    case = make_cache([40], 16, 1, 64, FP32, 58, keys=keys, append=cpu.append, summary_layout=layout)
    q = torch.ones(1, 5, 64)
    q[0, 1, 5], q[0, 2, 5], q[0, 3, 5], q[0, 4] = NAN, INF, -INF, 0.0
    expected = torch.tensor([-128.0, NAN, -INF, INF, 0.0])[:, None].expand(5, 3)
    torch.testing.assert_close(run_score(case, q), expected, rtol=0, atol=0, equal_nan=True)


def test_infinite_keys_score_as_the_equation_says() -> None:
    keys = torch.zeros(12, 1, 64)
    keys[0, 0, 0] = keys[2, 0, 0] = keys[3, 0, 0] = INF  # pages 0 and 1: up to infinity, all infinite
    keys[4, 0, 0] = keys[6, 0, 0] = keys[7, 0, 0] = -INF  # pages 2 and 3: the same below
    keys[8, 0, 1], keys[10, 0, 1] = INF, -INF  # pages 4 and 5: where q is 0
    case = make_cache([12], 2, 1, 64, FP32, seed=12, keys=keys, append=cpu.append)
    q = torch.zeros(1, 2, 64)
    q[0, 0, 0], q[0, 1, 0] = 1.0, -1.0
    expected = torch.tensor([[INF, INF, 0.0, -INF, NAN, NAN], [0.0, -INF, INF, INF, NAN, NAN]])
    torch.testing.assert_close(run_score(case, q), expected, equal_nan=True)
    torch.testing.assert_close(reference.score(q, case.cache), expected.double(), equal_nan=True)


# select


scores_of_a_row = st.lists(
    st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, NAN, INF, -INF, 1e-45, -1e-45]),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(rows=st.lists(scores_of_a_row, min_size=1, max_size=3), take_tail=st.booleans(), data=st.data())
def test_select_is_exact(rows: list[list[float]], take_tail: bool, data: st.DataObject) -> None:
    cache = make_cache([len(row) for row in rows], 1, 1, 64, FP32, seed=0).cache
    flat = torch.tensor([score for row in rows for score in row])
    scores = torch.stack([flat, flat.flip(0)])
    wanted = [data.draw(st.integers(0, len(row))) for row in rows]
    select_indptr = make_select_indptr(cache, wanted)
    got = run_select(scores, cache, select_indptr, take_tail)
    assert torch.equal(got, reference.select(scores, cache, select_indptr, take_tail))


@pytest.mark.parametrize("take_tail", [True, False])
@pytest.mark.parametrize("num_selected", [1, 2, 128, 2047, 2048])
def test_select_over_many_pages(num_selected: int, take_tail: bool) -> None:
    cache = make_cache([2048], 1, 1, 64, FP32, seed=0).cache
    generator = torch.Generator().manual_seed(num_selected)
    scores = torch.randn(3, 2048, generator=generator)
    scores[1] = scores[1].mul(4).round().div(4)  # many ties
    scores[2] = 5.0
    select_indptr = make_select_indptr(cache, num_selected)
    got = run_select(scores, cache, select_indptr, take_tail)
    assert torch.equal(got, reference.select(scores, cache, select_indptr, take_tail))


def test_select_on_the_kernels_own_scores() -> None:
    case = hostile("fp16", 16, 2, 64)
    scores = run_score(case, make_q(case, 8, 13))
    for take_tail in (True, False):
        select_indptr = make_select_indptr(case.cache, [0, 1, 1, 1, 2, 1, 2, 17])
        got = run_select(scores, case.cache, select_indptr, take_tail)
        assert torch.equal(got, reference.select(scores, case.cache, select_indptr, take_tail))


def test_select_writes_into_wider_rows() -> None:
    cache = make_cache([64], 16, 1, 64, FP32, seed=0).cache
    scores = torch.full((2, 9), NAN)
    scores[:, :4] = torch.tensor([[1.0, 4.0, 3.0, 2.0], [4.0, 1.0, 2.0, 3.0]])
    page_ids = torch.full((2, 5), -7, dtype=torch.int32)
    cpu.select(scores, cache, make_select_indptr(cache, 2), page_ids, False)
    assert page_ids.tolist() == [[1, 2, -7, -7, -7], [0, 3, -7, -7, -7]]


# attend and dense


@shapes
def test_attend(dtype: str, page_size: int, num_kv_heads: int, group_size: int, head_dim: int) -> None:
    case = hostile(dtype, page_size, num_kv_heads, head_dim)
    q = make_q(case, num_kv_heads * group_size, 14)
    select_indptr = make_select_indptr(case.cache, 5)
    page_ids = make_page_ids(case.cache, q.shape[1], select_indptr, 15)
    got = run_attend(case, q, page_ids, select_indptr)
    eager = eager_attend(case, q.float(), page_ids, select_indptr)
    check_attention(got, eager, reference.attend(q, case.cache, page_ids, select_indptr), "ascending")
    mixed = make_page_ids(case.cache, q.shape[1], select_indptr, 15, ascending=False)
    assert torch.equal(mixed.sort().values, page_ids.sort().values)
    got = run_attend(case, q, mixed, select_indptr)
    check_attention(got, eager, reference.attend(q, case.cache, mixed, select_indptr), "any order")


@shapes
def test_dense(dtype: str, page_size: int, num_kv_heads: int, group_size: int, head_dim: int) -> None:
    case = hostile(dtype, page_size, num_kv_heads, head_dim)
    q = make_q(case, num_kv_heads * group_size, 16)
    got = run_dense(case, q)
    check_attention(got, eager_attend(case, q.float()), reference.dense(q, case.cache), "dense")
    assert not got[0][0].any()
    assert (got[1][0] == -INF).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_attend_over_every_page_equals_dense(dtype: str) -> None:
    case = hostile(dtype, 16, 2, 64)
    q = make_q(case, 8, 17)
    select_indptr = make_select_indptr(case.cache, 1000)
    page_ids = run_select(run_score(case, q), case.cache, select_indptr)
    attended, full = run_attend(case, q, page_ids, select_indptr), run_dense(case, q)
    oracle = reference.dense(q, case.cache)
    check_attention(attended, full, oracle, "attend beside dense")
    check_attention(full, attended, oracle, "dense beside attend")


@pytest.mark.parametrize("page_size", [3, 16, 128])
def test_attend_where_its_tiles_end(page_size: int) -> None:
    tile = cpu_device.TILE
    lengths = [tile - 1, tile, tile + 1, tile + cpu_device.LANES, 2 * tile - 1, 2 * tile, 3 * tile + 1]
    case = make_cache(lengths, page_size, 1, 64, FP32, seed=35, append=cpu.append)
    q = make_q(case, 2, 36)
    select_indptr = make_select_indptr(case.cache, 1000)
    page_ids = make_page_ids(case.cache, 2, select_indptr, 37, ascending=False)
    got = run_attend(case, q, page_ids, select_indptr)
    eager = eager_attend(case, q, page_ids, select_indptr)
    check_attention(got, eager, reference.attend(q, case.cache, page_ids, select_indptr), "attend")


@pytest.mark.parametrize("num_workers", [1, 2, 7, 64])
def test_any_number_of_splits(num_workers: int, layout: str) -> None:
    case = hostile("fp32", 3, 2, 64, num_workers=num_workers, summary_layout=layout)
    q = make_q(case, 6, 18)
    select_indptr = make_select_indptr(case.cache, [9, 1, 5, 2, 3, 0, 11, 100])
    page_ids = make_page_ids(case.cache, 6, select_indptr, 19)
    got = run_attend(case, q, page_ids, select_indptr)
    eager = eager_attend(case, q, page_ids, select_indptr)
    check_attention(got, eager, reference.attend(q, case.cache, page_ids, select_indptr), "attend")
    check_attention(run_dense(case, q), eager_attend(case, q), reference.dense(q, case.cache), "dense")
    assert_close(run_score(case, q), eager_score(case, q), reference.score(q, case.cache), FP32)


def test_results_depend_neither_on_placement_nor_on_threads(layout: str) -> None:
    def run_all(shuffled: bool) -> list[torch.Tensor]:
        case = hostile("fp32", 12, 2, 64, shuffled=shuffled, summary_layout=layout)
        q = make_q(case, 4, 20)
        scores = run_score(case, q)
        select_indptr = make_select_indptr(case.cache, 7)
        page_ids = run_select(scores, case.cache, select_indptr)
        return [scores, page_ids, *run_attend(case, q, page_ids, select_indptr), *run_dense(case, q)]

    shuffled, in_order = run_all(True), run_all(False)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = run_all(True)
    finally:
        numba.set_num_threads(threads)
    for a, b, c in zip(shuffled, in_order, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_queries_and_outputs(dtype: str) -> None:
    case = hostile(dtype, 16, 2, 64)
    q = make_q(case, 4, 21)
    select_indptr = make_select_indptr(case.cache, 3)
    page_ids = make_page_ids(case.cache, 4, select_indptr, 22)
    wide = torch.nn.functional.pad(page_ids, (0, 3), value=-7)[:, : page_ids.shape[1]]
    strided_q, out = non_contiguous(q, inner_stride=2), non_contiguous(torch.full_like(q, NAN))
    assert not strided_q.is_contiguous()
    assert torch.equal(run_score(case, strided_q), run_score(case, q))
    for strided, plain in (
        (run_attend(case, strided_q, wide, select_indptr), run_attend(case, q, page_ids, select_indptr)),
        (run_dense(case, strided_q), run_dense(case, q)),
    ):
        assert torch.equal(strided[0], plain[0])
        assert torch.equal(strided[1], plain[1])
    lse = torch.empty(q.shape[:2])
    cpu.dense(q, case.cache, out, lse, torch.empty(cpu.dense_scratch_floats(q, case.cache)))
    assert torch.equal(out, run_dense(case, q)[0])


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.3])
def test_softmax_scale(scale: float) -> None:
    case = hostile("fp32", 16, 1, 64)
    q = make_q(case, 2, 23)
    oracle = reference.dense(q, case.cache, scale)
    eager = eager_attend(case, q * (scale * 64**0.5))
    check_attention(run_dense(case, q, scale), eager, oracle, "dense")
    select_indptr = make_select_indptr(case.cache, 1000)
    page_ids = make_page_ids(case.cache, 2, select_indptr, 24)
    check_attention(run_attend(case, q, page_ids, select_indptr, scale), eager, oracle, "attend")


def test_logits_far_apart() -> None:
    keys = torch.randn(100, 1, 64) * 40
    case = make_cache([100], 16, 1, 64, FP32, seed=25, keys=keys, append=cpu.append)
    q = make_q(case, 256, 26)  # where one logit's rounding decides, few heads compare two lots
    check_attention(run_dense(case, q), eager_attend(case, q), reference.dense(q, case.cache), "dense")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 16])
def test_an_infinite_value_stays_infinite(dtype: str, length: int) -> None:
    values = torch.zeros(length, 1, 64).to(DTYPES[dtype])
    values[-1, 0, 3] = INF
    case = make_cache([length], 16, 1, 64, DTYPES[dtype], seed=27, values=values, append=cpu.append)
    out, _ = run_dense(case, make_q(case, 1, 28))
    assert out[0, 0, 3] == INF
    assert not out[0, 0, :3].any()
    assert not out[0, 0, 4:].any()


def every_pattern(dtype: str) -> torch.Tensor:
    """All 65536 numbers of a 16-bit dtype, subnormals, -0.0, infinities and NaN included."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_16_bit_number_survives_a_lone_token(dtype: str) -> None:
    values = every_pattern(dtype).view(1024, 1, 64)
    case = make_cache([1] * 1024, 3, 1, 64, DTYPES[dtype], 29, values=values, keys=torch.zeros_like(values))
    out, lse = run_dense(case, torch.zeros(1024, 1, 64, dtype=DTYPES[dtype]))
    torch.testing.assert_close(out, values, rtol=0, atol=0, equal_nan=True)
    assert not lse.any()


def test_powers_of_two() -> None:
    one, lanes = cpu_device._exp2, cpu_device._exp2_lanes

    @numba.njit
    def number(x):  # type: ignore[no-untyped-def]
        return one(x)

    @numba.njit
    def vectors(numbers, shift, sums):  # type: ignore[no-untyped-def]
        for i in range(len(sums)):
            sums[i] = lanes(numbers, 16 * i, shift)

    exponents = -150 * np.random.default_rng(31).random(16 * 1000, np.float32)
    exponents[:5] = 0.0, -126.0, np.nextafter(np.float32(-126), np.float32(-127)), -np.inf, np.nan
    powers, sums = exponents + np.float32(2.0), np.empty(1000, np.float32)
    vectors(powers, np.float32(2.0), sums)
    exponents = exponents + np.float32(2.0) - np.float32(2.0)
    np.testing.assert_array_equal(powers, [number(x) for x in exponents])  # bit for bit, NaN where NaN is
    assert powers[:4].tolist() == [1.0, 2.0**-126, 0.0, 0.0]
    assert np.isnan(powers[4])
    assert (powers[exponents < -126] == 0.0).all()
    exact = np.exp2(exponents.astype(np.float64))
    normal = exponents >= -126
    assert (np.abs(powers - exact)[normal] <= 2 * np.spacing(exact[normal].astype(np.float32))).all()
    np.testing.assert_allclose(sums, powers.reshape(1000, 16).sum(axis=1, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("native", sorted({False, cpu_device.CONVERTS_FP16}))
def test_fp16_widens_exactly_with_and_without_an_instruction_for_it(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_device, "CONVERTS_FP16", native)
    load, add_rows, one = cpu_device._load, cpu_device._add_rows, cpu_device.ONE

    @numba.njit
    def widen(bits, numbers, sums, weight, rows):  # type: ignore[no-untyped-def]
        for i in range(len(bits)):
            numbers[i] = load(bits, i)
        for i in range(0, len(bits), 64):
            rows[0] = i
            add_rows(sums, i, weight, 0, bits, rows, (0, 0), (0, 0), 64, one, one)

    patterns = every_pattern("fp16")
    numbers, sums = torch.full((65536,), NAN), torch.full((65536,), -0.0)
    bits = patterns.view(torch.int16).numpy().view("uint16")
    widen(
        bits, numbers.numpy(), sums.numpy(), torch.ones(1).numpy(), torch.zeros(1, dtype=torch.int64).numpy()
    )
    number = ~patterns.isnan()
    for widened in (numbers, sums):
        assert widened[~number].isnan().all()
        expected = patterns.float()[number].view(torch.int32)
        assert torch.equal(widened[number].view(torch.int32), expected)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_outputs_round_to_nearest_even(dtype: str) -> None:
    # q = 0: the output is the mean of two neighbouring numbers, a tie every time; sums stay in range.
    numbers = every_pattern(dtype)
    numbers = numbers[numbers.abs() < 1e38].sort().values
    numbers = numbers[: len(numbers) // 128 * 128]
    pairs = torch.stack([numbers[:-64].view(-1, 64), numbers[1:-63].view(-1, 64)], dim=1)
    count = len(pairs)
    values = pairs.reshape(2 * count, 1, 64)
    case = make_cache([2] * count, 2, 1, 64, DTYPES[dtype], 30, values=values, keys=torch.zeros_like(values))
    out, _ = run_dense(case, torch.zeros(count, 1, 64, dtype=DTYPES[dtype]))
    expected = pairs.double().mean(1).to(DTYPES[dtype])
    assert torch.equal(out[:, 0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal_keys_and_values(dtype: str) -> None:
    tiny = torch.finfo(DTYPES[dtype]).smallest_normal
    generator = torch.Generator().manual_seed(31)
    keys, values = ((torch.rand(40, 1, 64, generator=generator) * tiny).to(DTYPES[dtype]) for _ in range(2))
    keys[::3] *= -0.0
    case = make_cache([40], 16, 1, 64, DTYPES[dtype], 0, keys=keys, values=values, append=cpu.append)
    q = (torch.randn(1, 2, 64, generator=generator) / tiny**0.5).to(DTYPES[dtype])
    out, lse = run_dense(case, q)
    oracle = reference.dense(q, case.cache)
    assert_close(lse, eager_attend(case, q.float())[1], oracle[1], FP32)
    smallest = torch.finfo(DTYPES[dtype]).smallest_normal * torch.finfo(DTYPES[dtype]).eps
    assert (out.double() - oracle[0]).abs().max() <= 2 * smallest
    assert_close(run_score(case, q), eager_score(case, q.float()), reference.score(q, case.cache), FP32)


def test_no_tokens_at_all() -> None:
    case = make_cache([0, 0], 16, 1, 64, FP32, seed=32, append=cpu.append)
    q = make_q(case, 2, 33)
    select_indptr = make_select_indptr(case.cache, 4)
    page_ids = run_select(run_score(case, q), case.cache, select_indptr)
    assert page_ids.shape == (2, 0)
    for out, lse in (run_attend(case, q, page_ids, select_indptr), run_dense(case, q)):
        assert not out.any()
        assert (lse == -INF).all()


# launchers


def arguments(case: Case) -> dict[str, object]:
    q = make_q(case, 4, 34)
    select_indptr = make_select_indptr(case.cache, 2)
    out, lse = make_outputs(q)
    return {
        "q": q,
        "cache": case.cache,
        "page_ids": make_page_ids(case.cache, 4, select_indptr, 35),
        "select_indptr": select_indptr,
        "out": out,
        "lse": lse,
        "scratch": torch.empty(10_000),
    }


BAD_ATTEND: list[tuple[str, Callable[[torch.Tensor], object], type[Exception], str]] = [
    ("q", lambda t: t.double(), TypeError, "q is torch.float64"),
    ("q", lambda t: t[:1], ValueError, "q has shape"),
    ("q", lambda t: t[..., :32], ValueError, "q has shape"),
    ("q", lambda t: t[:, :3], ValueError, "no multiple of 2 KV heads"),
    ("page_ids", lambda t: t.long(), TypeError, "page_ids is torch.int64"),
    ("page_ids", lambda t: t[:, :-1], ValueError, "columns"),
    ("page_ids", lambda t: t.T.contiguous().T, ValueError, "contiguous"),
    ("page_ids", lambda t: t - 1, ValueError, "must lie below"),
    ("page_ids", lambda t: t + 1, ValueError, "must lie below"),
    ("select_indptr", lambda t: t.long(), TypeError, "select_indptr is"),
    ("select_indptr", lambda t: t[:-1], ValueError, "select_indptr has shape"),
    ("select_indptr", lambda t: t + 1, ValueError, "rise from 0"),
    ("select_indptr", lambda t: t.flip(0) - t[-1], ValueError, "rise from 0"),
    ("select_indptr", lambda t: t * 2, ValueError, "by at most"),
    ("out", lambda t: t.double(), TypeError, "out is"),
    ("out", lambda t: t[:, :2], ValueError, "out has shape"),
    ("lse", lambda t: t.half(), TypeError, "lse is"),
    ("lse", lambda t: t.T.contiguous().T, ValueError, "lse must be contiguous"),
    ("scratch", lambda t: t[:100], ValueError, "scratch holds 100"),
    ("scratch", lambda t: t.double(), TypeError, "scratch is"),
]


@pytest.mark.parametrize(("name", "spoil", "error", "message"), BAD_ATTEND)
def test_attend_refuses(
    name: str, spoil: Callable[[torch.Tensor], object], error: type[Exception], message: str
) -> None:
    given_arguments = arguments(make_cache([20, 40], 16, 2, 64, FP32, seed=36))
    cpu.attend(**given_arguments)
    with pytest.raises(error, match=message):
        cpu.attend(**given_arguments | {name: spoil(given_arguments[name])})


@pytest.mark.parametrize(
    ("keys_shape", "new_indptr", "message"),
    [
        ((3, 2, 64), [0, 1, 2], "keys has shape"),
        ((2, 1, 64), [0, 1, 2], "keys has shape"),
        ((2, 2, 64), [0, 2, 2], "by at most"),
        ((2, 2, 64), [1, 1, 2], "rise from 0"),
    ],
)
def test_append_refuses(keys_shape: tuple[int, ...], new_indptr: list[int], message: str) -> None:
    case = make_cache([1, 40], 16, 2, 64, FP32, seed=37)
    keys = torch.zeros(keys_shape)
    with pytest.raises(ValueError, match=message):
        cpu.append(case.cache, keys, keys, torch.tensor(new_indptr, dtype=torch.int32))


def test_score_and_select_refuse() -> None:
    case = make_cache([20, 40], 16, 2, 64, FP32, seed=38)
    q = make_q(case, 4, 39)
    with pytest.raises(ValueError, match="columns"):
        cpu.score(q, case.cache, torch.empty(4, 4))
    with pytest.raises(TypeError, match="scores is"):
        cpu.score(q, case.cache, torch.empty(4, 5).half())
    scores, select_indptr = run_score(case, q), make_select_indptr(case.cache, 2)
    with pytest.raises(ValueError, match="columns"):
        cpu.select(scores, case.cache, select_indptr, torch.empty(4, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match="by at most"):
        cpu.select(scores, case.cache, select_indptr + select_indptr, torch.empty(4, 8, dtype=torch.int32))


def test_the_block_is_the_cache_s() -> None:
    assert cpu_device.BLOCK_PAGES == SUMMARY_BLOCK_PAGES
    assert cpu_device.LANES * len(cpu_device.FOUR) == SUMMARY_BLOCK_PAGES


def test_without_a_writable_folder_code_is_compiled_but_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def njit(**options: object) -> Callable[[Callable], Callable]:
        asked.append(options)
        if "cache" in options:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert cpu_device._jit(parallel=True)(len) is len
    assert asked == [{"cache": True, "parallel": True}, {"parallel": True}]


def test_the_cpu_stages_need_no_triton() -> None:
    modules = "questprof_kernels.cpu, questprof_kernels.streaming_cpu, questprof_kernels.reference"
    code = f"import sys; sys.modules['triton'] = None; import {modules}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
