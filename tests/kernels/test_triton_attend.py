"""Stage `attend` in Triton against float64 attention over the same page ids."""

from __future__ import annotations

import pytest
import torch
from cases import (
    DTYPES,
    HOSTILE_LENGTHS,
    Case,
    assert_close,
    make_cache,
    make_outputs,
    make_page_ids,
    make_q,
    make_select_indptr,
    non_contiguous,
)
from questprof_kernels import attend, reference
from triton_launch import attended, densely, eager, scored, selected

NAN = float("nan")


def check(
    case: Case, q: torch.Tensor, ids: torch.Tensor, select_indptr: torch.Tensor, **options: object
) -> None:
    out, lse = attended(q, case.cache, ids, select_indptr, **options)
    eager_out, eager_lse = eager(case, q, ids, select_indptr)
    oracle_out, oracle_lse = reference.attend(q, case.cache, ids, select_indptr)
    assert_close(out, eager_out, oracle_out, q.dtype, "out")
    assert_close(lse, eager_lse, oracle_lse, q.dtype, "lse")


@pytest.mark.parametrize(
    ("dtype", "head_dim", "page_size", "group"),
    [
        ("fp16", 128, 16, 1),
        ("bf16", 64, 16, 4),
        ("fp32", 64, 12, 3),
        ("fp32", 128, 1, 1),
        ("bf16", 128, 3, 1),
        ("fp16", 64, 128, 1),
    ],
)
def test_a_ragged_batch(dtype: str, head_dim: int, page_size: int, group: int, device: str) -> None:
    case = make_cache(HOSTILE_LENGTHS, page_size, 2, head_dim, DTYPES[dtype], 1, device)
    q = make_q(case, 2 * group, 2)
    select_indptr = make_select_indptr(case.cache, 2)
    check(case, q, make_page_ids(case.cache, 2 * group, select_indptr, 3), select_indptr)


def test_on_ids_of_the_own_stages(device: str) -> None:
    case = make_cache((0, 1, 17, 200), 16, 2, 64, torch.float16, 4, device)
    q = make_q(case, 4, 5)
    select_indptr = make_select_indptr(case.cache, 4)
    ids = selected(scored(q, case.cache), case.cache, select_indptr)
    check(case, q, ids, select_indptr)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_many_splits_of_a_long_request(dtype: str, device: str) -> None:
    case = make_cache((1000, 5, 0), 16, 2, 64, DTYPES[dtype], 6, device, num_workers=48)
    q = make_q(case, 2, 7)
    select_indptr = make_select_indptr(case.cache, [40, 1, 0])
    ids = make_page_ids(case.cache, 2, select_indptr, 8)
    assert attend.attend_plan(q, case.cache, ids).num_splits > 2
    check(case, q, ids, select_indptr)


@pytest.mark.parametrize("num_splits", [1, 2, 7, 64])
def test_any_number_of_splits(num_splits: int, device: str) -> None:
    case = make_cache((230, 60), 16, 1, 64, torch.float32, 9, device)
    q = make_q(case, 1, 10)
    select_indptr = make_select_indptr(case.cache, [9, 3])
    ids = make_page_ids(case.cache, 1, select_indptr, 11)
    plan = attend.attend_plan(q, case.cache, ids, num_splits=num_splits)
    check(case, q, ids, select_indptr, plan=plan)


def test_launches_on_one_scratch_are_identical(device: str) -> None:
    case = make_cache((300, 40), 16, 2, 64, torch.float16, 12, device, num_workers=32)
    q = make_q(case, 2, 13)
    select_indptr = make_select_indptr(case.cache, [16, 2])
    ids = make_page_ids(case.cache, 2, select_indptr, 14)
    plan = attend.attend_plan(q, case.cache, ids)
    assert plan.num_splits > 1
    scratch = torch.zeros(plan.scratch_floats, device=device)
    results = []
    for _ in range(3):
        out, lse = make_outputs(q)
        attend.attend(q, case.cache, ids, select_indptr, out, lse, scratch)
        results.append((out, lse))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


def test_the_order_of_page_ids_does_not_matter(device: str) -> None:
    case = make_cache((250, 33), 16, 2, 64, torch.float16, 15, device, num_workers=16)
    q = make_q(case, 2, 16)
    select_indptr = make_select_indptr(case.cache, [9, 3])
    check(case, q, make_page_ids(case.cache, 2, select_indptr, 17, ascending=False), select_indptr)


def test_nan_in_unselected_pages_stays_out(device: str) -> None:
    case = make_cache((200, 40), 16, 2, 64, torch.float16, 18, device)
    q = make_q(case, 2, 19)
    select_indptr = make_select_indptr(case.cache, [4, 1])
    ids = make_page_ids(case.cache, 2, select_indptr, 20)
    bounds = select_indptr.tolist()
    for request in range(2):
        for head in range(2):
            taken = ids[head, bounds[request] : bounds[request + 1]].tolist()
            others = set(range(case.cache.num_pages[request])) - set(taken)
            pages = [case.cache.physical_pages(request)[page] for page in others]
            case.cache.pool.k[pages, head] = NAN
            case.cache.pool.v[pages, head] = NAN
    check(case, q, ids, select_indptr)


def test_a_nan_key_in_a_selected_page_shows(device: str) -> None:
    case = make_cache((64,), 16, 2, 64, torch.float16, 21, device)
    case.cache.pool.k[case.cache.physical_pages(0)[1], 0, 3, 5] = NAN
    select_indptr = make_select_indptr(case.cache, 1)
    ids = torch.tensor([[1], [1]], dtype=torch.int32, device=device)
    out, lse = attended(make_q(case, 2, 22), case.cache, ids, select_indptr)
    assert out[0, 0].isnan().all()
    assert lse[0, 0].isnan()
    assert not out[0, 1].isnan().any()


def test_a_budget_that_covers_everything_is_dense(device: str) -> None:
    case = make_cache((0, 33, 130), 16, 2, 64, torch.float32, 23, device)
    q = make_q(case, 2, 24)
    select_indptr = make_select_indptr(case.cache, 100)
    ids = selected(scored(q, case.cache), case.cache, select_indptr)
    dense_out, dense_lse = densely(q, case.cache)
    check(case, q, ids, select_indptr)
    out, lse = attended(q, case.cache, ids, select_indptr)
    eager_out, eager_lse = eager(case, q)
    assert_close(out, eager_out, dense_out.double(), q.dtype, "out")
    assert_close(lse, eager_lse, dense_lse.double(), q.dtype, "lse")


def test_an_empty_request_gives_zero_and_minus_infinity(device: str) -> None:
    case = make_cache((0, 5), 16, 2, 64, torch.float16, 25, device)
    q = make_q(case, 2, 26)
    select_indptr = make_select_indptr(case.cache, 1)
    out, lse = attended(q, case.cache, make_page_ids(case.cache, 2, select_indptr, 27), select_indptr)
    assert (out[0] == 0).all()
    assert (lse[0] == float("-inf")).all()
    assert lse[1].isfinite().all()


def test_strided_queries_outputs_and_ids(device: str) -> None:
    case = make_cache((70, 20), 16, 2, 64, torch.float16, 28, device)
    q = make_q(case, 4, 29, contiguous=False)
    select_indptr = make_select_indptr(case.cache, 2)
    ids = make_page_ids(case.cache, 4, select_indptr, 30)
    wide = torch.full((4, 9), 99, dtype=torch.int32, device=device)
    wide[:, 3 : 3 + ids.shape[1]] = ids
    out, lse = non_contiguous(torch.full_like(q, NAN), inner_stride=2), make_outputs(q)[1]
    plan = attend.attend_plan(q, case.cache, ids)
    scratch = torch.zeros(plan.scratch_floats, device=device)
    attend.attend(q, case.cache, wide[:, 3:], select_indptr, out, lse, scratch, plan=plan)
    expected = attended(q.contiguous(), case.cache, ids, select_indptr, plan=plan)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_softmax_scale(device: str) -> None:
    case = make_cache((50,), 16, 1, 64, torch.float32, 31, device)
    q = make_q(case, 1, 32)
    select_indptr = make_select_indptr(case.cache, 3)
    ids = make_page_ids(case.cache, 1, select_indptr, 33)
    out, lse = attended(q, case.cache, ids, select_indptr, softmax_scale=0.01)
    oracle_out, oracle_lse = reference.attend(q, case.cache, ids, select_indptr, softmax_scale=0.01)
    # Eager code with its scale of 1/8 applied to a smaller q: the same logits.
    eager_out, eager_lse = eager(case, q * 0.08, ids, select_indptr)
    assert_close(out, eager_out, oracle_out, q.dtype, "out")
    assert_close(lse, eager_lse, oracle_lse, q.dtype, "lse")


def test_wrong_arguments_are_refused(device: str) -> None:
    case = make_cache((300,), 16, 2, 64, torch.float16, 34, device, num_workers=32)
    cache, q = case.cache, make_q(case, 4, 35)
    indptr = make_select_indptr(cache, 12)
    ids = make_page_ids(cache, 4, indptr, 36)
    out, lse = make_outputs(q)
    scratch = torch.zeros(attend.attend_plan(q, cache, ids).scratch_floats, device=device)
    good = (q, cache, ids, indptr, out, lse, scratch)
    for place, bad, error in [
        (0, q.float(), TypeError),
        (0, q[:, :3], ValueError),
        (2, ids.long(), TypeError),
        (2, ids[:3], ValueError),
        (3, indptr.long(), TypeError),
        (4, out[:, :3], ValueError),
        (4, out.float(), TypeError),
        (5, lse.half(), TypeError),
        (6, scratch[:-1], ValueError),
        (6, scratch.double(), TypeError),
    ]:
        with pytest.raises(error):
            attend.attend(*good[:place], bad, *good[place + 1 :])
