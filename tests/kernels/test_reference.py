"""The oracle against torch's own double-precision operators and against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from questprof_kernels import reference
from questprof_kernels.paged_cache import PagedCache, PagePool

NAN = math.nan


def make_cache(
    seq_lens: tuple[int, ...],
    *,
    num_kv_heads: int = 2,
    page_size: int = 4,
    head_dim: int = 8,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    summary_layout: str = "paired",
) -> tuple[PagedCache, list[torch.Tensor], list[torch.Tensor]]:
    """A cache over shuffled pages, NaN in every slot no token owns, and the (keys, values) put into it."""
    num_pages = sum(-(-n // page_size) for n in seq_lens) + 3
    pool = PagePool(num_pages, num_kv_heads, page_size, head_dim, dtype, summary_layout=summary_layout)
    generator = torch.Generator().manual_seed(seed)
    pool.reorder_free(torch.randperm(num_pages, generator=generator).tolist())
    pool.k.fill_(NAN)
    pool.v.fill_(NAN)
    cache = PagedCache(pool, len(seq_lens), num_pages)
    cache.extend(list(seq_lens))
    keys = [torch.randn(n, num_kv_heads, head_dim, generator=generator).to(dtype) for n in seq_lens]
    values = [torch.randn(n, num_kv_heads, head_dim, generator=generator).to(dtype) for n in seq_lens]
    for request, pages in enumerate(map(cache.physical_pages, range(len(seq_lens)))):
        for position in range(seq_lens[request]):
            page, slot = pages[position // page_size], position % page_size
            pool.k[page, :, slot] = keys[request][position]
            pool.v[page, :, slot] = values[request][position]
        for logical in range(len(pages)):
            cache.rescan(request, logical)
    return cache, keys, values


def queries(cache: PagedCache, group_size: int, seed: int = 1) -> torch.Tensor:
    heads = cache.pool.num_kv_heads * group_size
    shape = (cache.batch_size, heads, cache.pool.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# One row.


def test_page_box_by_hand() -> None:
    m, M = reference.page_box(torch.tensor([[1.0, 4.0], [3.0, -2.0], [-1.0, 1.0]]))
    assert m.tolist() == [-1.0, -2.0]
    assert M.tolist() == [3.0, 4.0]
    assert m.dtype == M.dtype == torch.float64


def test_a_nan_key_has_no_bounds() -> None:
    m, M = reference.page_box(torch.tensor([[1.0, NAN], [2.0, 5.0]]))
    assert (m[0], M[0]) == (1.0, 2.0)
    assert (m[1], M[1]) == (-math.inf, math.inf)


def test_page_bound_by_hand() -> None:
    # q = (2, -1): box (-1, -2)..(3, 4) gives max(-2, 6) + max(2, -4) = 8; the box {(5, 7)} gives 10 - 7 = 3.
    m = torch.tensor([[-1.0, -2.0], [5.0, 7.0]])
    M = torch.tensor([[3.0, 4.0], [5.0, 7.0]])
    assert reference.page_bound(torch.tensor([2.0, -1.0]), m, M).tolist() == [8.0, 3.0]


def test_page_bound_of_single_key_boxes_is_the_dot_product() -> None:
    keys = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    q = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(reference.page_bound(q, keys, keys), keys @ q)


@pytest.mark.parametrize(
    ("scores", "num_selected", "take_tail", "expected"),
    [
        ([10.0, 14.0, 12.0, 4.0], 2, False, [1, 2]),
        ([10.0, 14.0, 12.0, 4.0], 3, False, [0, 1, 2]),
        ([10.0, 14.0, 12.0, 4.0], 2, True, [1, 3]),  # the tail counts in K
        ([10.0, 14.0, 12.0, 4.0], 1, True, [3]),
        ([1.0, 2.0, 9.0], 2, True, [1, 2]),  # a tail that wins anyway costs nothing
        ([5.0, 5.0, 5.0, 5.0], 2, False, [0, 1]),
        ([5.0, 5.0, 5.0, 5.0], 2, True, [0, 3]),
        ([-0.0, 0.0, -0.0], 1, False, [0]),
        ([0.0, -0.0, 0.0], 2, False, [0, 1]),
        ([1.0, NAN, math.inf, NAN], 2, False, [1, 3]),
        ([1.0, NAN, math.inf, NAN], 1, False, [1]),
        ([1.0, NAN, math.inf, 0.0], 2, False, [1, 2]),
        ([-math.inf, -1.0, -math.inf], 2, False, [0, 1]),
        ([3.0, 1.0], 2, True, [0, 1]),
        ([3.0, 1.0], 0, True, []),
        ([], 0, True, []),
    ],
)
def test_select_row(scores: list[float], num_selected: int, take_tail: bool, expected: list[int]) -> None:
    assert reference.select_row(scores, num_selected, take_tail) == expected
    assert reference.select_row(torch.tensor(scores), num_selected, take_tail) == expected


def test_select_row_refuses_more_pages_than_there_are() -> None:
    with pytest.raises(ValueError, match="3 pages asked for, 2 there"):
        reference.select_row([1.0, 2.0], 3, False)


@settings(deadline=None)
@given(
    scores=st.lists(st.floats(allow_nan=True, width=16) | st.sampled_from([0.0, -0.0, 1.0]), max_size=20),
    data=st.data(),
)
def test_select_row_beats_every_page_it_leaves(scores: list[float], data: st.DataObject) -> None:
    num_selected = data.draw(st.integers(0, len(scores)))
    chosen = reference.select_row(scores, num_selected, take_tail=False)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == num_selected
    for left in set(range(len(scores))) - set(chosen):
        for taken in chosen:
            a, b = scores[taken], scores[left]
            same = a == b or (math.isnan(a) and math.isnan(b))
            assert (same and taken < left) or (not same and (math.isnan(a) or a > b))


def test_attend_row_by_hand() -> None:
    # Logits 0 and ln 3: weights 1/4 and 3/4, lse = ln 4.
    q = torch.tensor([1.0, 0.0])
    keys = torch.tensor([[0.0, 9.0], [2 * math.log(3.0), -9.0]], dtype=torch.float64)
    values = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    out, lse = reference.attend_row(q, keys, values, 0.5)
    torch.testing.assert_close(out, torch.tensor([1.0, 6.0], dtype=torch.float64))
    assert lse == pytest.approx(math.log(4.0), rel=1e-15)


def test_attend_row_of_nothing() -> None:
    out, lse = reference.attend_row(torch.ones(3), torch.empty(0, 3), torch.empty(0, 3), 1.0)
    assert out.tolist() == [0.0, 0.0, 0.0]
    assert lse == -math.inf


def test_attend_row_survives_logits_that_overflow_exp() -> None:
    q, keys = torch.tensor([1000.0]), torch.tensor([[1.0], [2.0]])
    out, lse = reference.attend_row(q, keys, torch.tensor([[7.0], [5.0]]), 1.0)
    assert out.tolist() == [5.0]
    assert lse == 2000.0


@settings(deadline=None)
@given(
    num_tokens=st.integers(1, 40),
    head_dim=st.sampled_from([1, 2, 8]),
    softmax_scale=st.sampled_from([0.1, 1.0, 3.0]),
    seed=st.integers(0, 2**32),
)
def test_attend_row_against_torch(num_tokens: int, head_dim: int, softmax_scale: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    q, keys, values = (
        torch.randn(n, head_dim, dtype=torch.float64, generator=draw) for n in (1, num_tokens, num_tokens)
    )
    out, lse = reference.attend_row(q[0], keys, values, softmax_scale)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q[None, None], keys[None, None], values[None, None], scale=softmax_scale
    )[0, 0, 0]
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-13)
    logits = keys @ q[0] * softmax_scale
    assert lse == pytest.approx(float(torch.logsumexp(logits, 0)), rel=1e-12, abs=1e-12)


# One cache.

HOSTILE_LENGTHS = (1, 3, 4, 5, 0, 17)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gather_returns_the_valid_tokens_alone(dtype: torch.dtype) -> None:
    cache, keys, values = make_cache(HOSTILE_LENGTHS, dtype=dtype)
    for request in range(cache.batch_size):
        for kv_head in range(cache.pool.num_kv_heads):
            got = reference.gather(cache, request, kv_head)
            assert torch.equal(got[0], keys[request][:, kv_head].double())
            assert torch.equal(got[1], values[request][:, kv_head].double())


def test_gather_takes_pages_in_the_order_given() -> None:
    cache, keys, _ = make_cache((10,))
    got, _ = reference.gather(cache, 0, 1, [2, 0])  # page 2 holds tokens 8 and 9 alone
    assert torch.equal(got, keys[0][[8, 9, 0, 1, 2, 3], 1].double())
    assert torch.equal(got, reference.gather(cache, 0, 1, torch.tensor([2, 0]))[0])
    assert reference.gather(cache, 0, 1, [])[0].shape == (0, 8)


@pytest.mark.parametrize("page", [-1, 3])
def test_gather_refuses_a_page_the_request_has_not(page: int) -> None:
    cache, _, _ = make_cache((10, 40))
    with pytest.raises(ValueError, match="request 0, which has 3"):
        reference.gather(cache, 0, 0, [page])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_boxes_are_the_extremes_of_each_page(dtype: torch.dtype) -> None:
    cache, keys, _ = make_cache(HOSTILE_LENGTHS, dtype=dtype)
    for request, seq_len in enumerate(HOSTILE_LENGTHS):
        m, M = reference.boxes(cache, request, 1)
        assert m.shape == M.shape == (-(-seq_len // 4), 8)
        for page in range(len(m)):
            own = keys[request][page * 4 : page * 4 + 4, 1].double()
            for dim in range(8):
                assert m[page, dim] == min(own[:, dim].tolist())
                assert M[page, dim] == max(own[:, dim].tolist())
        stored = reference.stored_boxes(cache, request, 1)
        assert torch.equal(m, stored[0])
        assert torch.equal(M, stored[1])


def test_stored_boxes_come_from_the_summary_not_from_the_keys() -> None:
    cache, _, _ = make_cache((9,))
    cache.pool.summary.data[cache.physical_pages(0)[2], 1, 0] = -99.0
    assert reference.stored_boxes(cache, 0, 1)[0][2].tolist() == [-99.0] * 8
    assert reference.stored_boxes(cache, 0, 0)[0].min() > -99.0
    assert reference.boxes(cache, 0, 1)[0].min() > -99.0
    assert reference.score(torch.full((1, 2, 8), -1.0), cache)[1, 2] == 8 * 99.0


def test_stored_boxes_of_a_transposed_summary_come_from_its_blocks() -> None:
    cache, keys, _ = make_cache((9, 0, 70), page_size=1, summary_layout="transposed")
    paired, _, _ = make_cache((9, 0, 70), page_size=1)
    for request in (0, 2):
        for bound, other in zip(
            reference.stored_boxes(cache, request, 1), reference.boxes(cache, request, 1), strict=True
        ):
            assert torch.equal(bound, other)
            assert torch.equal(bound, keys[request][:, 1].double())
    q = queries(cache, 2)
    assert torch.equal(reference.score(q, cache), reference.score(q, paired))
    cache.pool.summary.data[cache.summary_blocks(2)[1], 1, :, 0, 5] = -99.0
    assert reference.stored_boxes(cache, 2, 1)[0][69].tolist() == [-99.0] * 8
    assert reference.boxes(cache, 2, 1)[0].min() > -99.0


@pytest.mark.parametrize("group_size", [1, 3])
def test_score_puts_each_row_at_its_place(group_size: int) -> None:
    cache, keys, _ = make_cache(HOSTILE_LENGTHS)
    q = queries(cache, group_size)
    scores = reference.score(q, cache)
    assert scores.shape == (2 * group_size, cache.total_pages)
    assert scores.dtype == torch.float64
    flat = 0
    for request, seq_len in enumerate(HOSTILE_LENGTHS):
        for start in range(0, seq_len, 4):
            for head in range(2 * group_size):
                own = keys[request][start : start + 4, head // group_size].double()
                row = q[request, head].double()
                best = torch.where(row > 0, own.amax(0), own.amin(0)) @ row
                assert scores[head, flat].item() == pytest.approx(best.item(), rel=1e-12)
                assert scores[head, flat] >= (own @ row).max() - 1e-12
            flat += 1


def test_select_is_ragged_and_keeps_tails() -> None:
    cache, _, _ = make_cache((12, 0, 5))
    scores = torch.tensor([[9.0, 8.0, 1.0, 2.0, 7.0], [1.0, NAN, 3.0, 4.0, 4.0]])
    with_tail = reference.select(scores, cache, [0, 2, 2, 3])
    assert with_tail.tolist() == [[0, 2, 1], [1, 2, 1]]
    assert with_tail.dtype == torch.int32
    open_to_all = reference.select(scores, cache, torch.tensor([0, 2, 2, 3]), take_tail=False)
    assert open_to_all.tolist() == [[0, 1, 1], [1, 2, 0]]


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("softmax_scale", [None, 0.7])
def test_dense_against_torch(group_size: int, softmax_scale: float | None) -> None:
    cache, keys, values = make_cache(HOSTILE_LENGTHS, dtype=torch.float16)
    q = queries(cache, group_size)
    out, lse = reference.dense(q, cache, softmax_scale)
    for request in range(cache.batch_size):
        k, v = (t[request].double().repeat_interleave(group_size, 1).transpose(0, 1) for t in (keys, values))
        row = q[request].double()[:, None]
        if HOSTILE_LENGTHS[request] == 0:
            assert torch.equal(out[request], torch.zeros_like(out[request]))
            assert (lse[request] == -math.inf).all()
            continue
        expected = torch.nn.functional.scaled_dot_product_attention(row, k, v, scale=softmax_scale)
        torch.testing.assert_close(out[request], expected[:, 0], rtol=1e-12, atol=1e-13)
        logits = (row @ k.transpose(1, 2))[:, 0] * (8**-0.5 if softmax_scale is None else softmax_scale)
        torch.testing.assert_close(lse[request], torch.logsumexp(logits, -1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("group_size", [1, 2])
def test_attend_is_dense_attention_under_a_page_mask(group_size: int) -> None:
    cache, keys, values = make_cache((10, 0, 17))
    q = queries(cache, group_size)
    indptr = [0, 2, 2, 5]
    picks = {0: [2, 0], 2: [4, 1, 3]}
    page_ids = torch.tensor([picks[0] + picks[2]] * (2 * group_size), dtype=torch.int32)
    page_ids[-1] = torch.tensor([0, 1, 0, 2, 4])  # the last head picks its own
    out, lse = reference.attend(q, cache, page_ids, indptr)
    for request in (0, 2):
        for head in range(2 * group_size):
            mine = page_ids[head, indptr[request] : indptr[request + 1]].tolist()
            k = keys[request][:, head // group_size].double()
            v = values[request][:, head // group_size].double()
            kept = torch.tensor([position // 4 in mine for position in range(len(k))])
            logits = (k @ q[request, head].double() * 8**-0.5).masked_fill(~kept, -math.inf)
            torch.testing.assert_close(out[request, head], logits.softmax(0) @ v, rtol=1e-12, atol=1e-13)
            assert lse[request, head].item() == pytest.approx(logits.logsumexp(0).item(), rel=1e-12)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert (lse[1] == -math.inf).all()


def test_attend_over_all_pages_in_any_order_is_dense() -> None:
    cache, _, _ = make_cache((17,))
    q = queries(cache, 2)
    expected = reference.dense(q, cache)
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        got = reference.attend(q, cache, torch.tensor([order] * 4), [0, 5])
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_attend_refuses_a_repeated_page() -> None:
    cache, _, _ = make_cache((17,))
    with pytest.raises(ValueError, match="query head 0: repeated page in"):
        reference.attend(queries(cache, 1), cache, torch.tensor([[1, 1], [0, 1]]), [0, 2])


def test_a_nan_in_a_valid_key_reaches_box_and_output() -> None:
    cache, _, _ = make_cache((9,))
    page = cache.physical_pages(0)[1]
    cache.pool.k[page, 0, 2, 3] = NAN
    m, M = reference.boxes(cache, 0, 0)
    assert m.isneginf().nonzero().tolist() == M.isposinf().nonzero().tolist() == [[1, 3]]
    out, _ = reference.dense(queries(cache, 1), cache)
    assert torch.isnan(out[0, 0]).all()
    assert torch.isfinite(out[0, 1]).all()


def test_rows_compute_a_sample_and_leave_the_rest_nan() -> None:
    cache, _, _ = make_cache((10, 17))
    q = queries(cache, 2)
    rows = [(1, 3), (0, 1)]
    indptr = [0, 2, 4]
    full_scores, scores = reference.score(q, cache), reference.score(q, cache, rows=rows)
    full_ids = reference.select(full_scores, cache, indptr)
    ids = reference.select(scores, cache, indptr, rows=rows)
    full, some = reference.dense(q, cache), reference.dense(q, cache, rows=rows)
    full_attend = reference.attend(q, cache, full_ids, indptr)
    attend = reference.attend(q, cache, ids, indptr, rows=rows)
    for request in range(2):
        for head in range(4):
            flat = slice(0, 3) if request == 0 else slice(3, 8)
            mine = slice(indptr[request], indptr[request + 1])
            if (request, head) in rows:
                assert torch.equal(scores[head, flat], full_scores[head, flat])
                assert torch.equal(ids[head, mine], full_ids[head, mine])
                assert all(
                    torch.equal(a[request, head], b[request, head]) for a, b in zip(some, full, strict=True)
                )
                assert all(
                    torch.equal(a[request, head], b[request, head])
                    for a, b in zip(attend, full_attend, strict=True)
                )
            else:
                assert torch.isnan(scores[head, flat]).all()
                assert (ids[head, mine] == -1).all()
                assert all(torch.isnan(t[request, head]).all() for t in (*some, *attend))


def test_append_joins_old_and_new_per_request() -> None:
    old = [torch.full((2, 1, 2), 1.0), torch.empty(0, 1, 2), torch.full((1, 1, 2), 2.0)]
    keys = torch.arange(8.0).reshape(4, 1, 2)
    held_keys, held_values = reference.append(old, old, keys, -keys, [0, 1, 4, 4])
    assert [k[:, 0, 0].tolist() for k in held_keys] == [[1.0, 1.0, 0.0], [2.0, 4.0, 6.0], [2.0]]
    assert [v[:, 0, 1].tolist() for v in held_values] == [[1.0, 1.0, -1.0], [-3.0, -5.0, -7.0], [2.0]]


def test_query_heads_must_be_a_multiple_of_kv_heads() -> None:
    cache, _, _ = make_cache((4,))
    with pytest.raises(ValueError, match="3 query heads do not divide into 2 KV heads"):
        reference.score(torch.zeros(1, 3, 8), cache)
