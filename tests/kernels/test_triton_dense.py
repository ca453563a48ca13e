"""Stage `dense` in Triton against float64 attention over all valid tokens."""

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
    make_q,
    non_contiguous,
)
from questprof_kernels import dense, reference
from triton_launch import densely, eager

NAN = float("nan")


def check(case: Case, q: torch.Tensor, **options: object) -> None:
    out, lse = densely(q, case.cache, **options)
    eager_out, eager_lse = eager(case, q)
    oracle_out, oracle_lse = reference.dense(q, case.cache)
    assert_close(out, eager_out, oracle_out, q.dtype, "out")
    assert_close(lse, eager_lse, oracle_lse, q.dtype, "lse")


@pytest.mark.parametrize(
    ("dtype", "head_dim", "page_size", "group"),
    [
        ("fp16", 128, 16, 1),
        ("bf16", 64, 16, 1),
        ("fp32", 128, 1, 1),
        ("fp32", 64, 12, 3),
        ("fp16", 64, 128, 4),
        ("bf16", 128, 16, 4),
        ("fp16", 64, 1, 8),
        ("fp32", 64, 16, 17),
    ],
)
def test_a_ragged_batch(dtype: str, head_dim: int, page_size: int, group: int, device: str) -> None:
    case = make_cache(HOSTILE_LENGTHS, page_size, 2, head_dim, DTYPES[dtype], 1, device)
    check(case, make_q(case, 2 * group, 2))


@pytest.mark.parametrize(("dtype", "group"), [("fp16", 1), ("fp16", 3), ("fp32", 4)])
def test_many_splits_of_a_long_request(dtype: str, group: int, device: str) -> None:
    case = make_cache((1000, 5, 0), 16, 2, 64, DTYPES[dtype], 3, device, num_workers=48)
    q = make_q(case, 2 * group, 4)
    assert dense.dense_plan(q, case.cache).num_splits > 2
    check(case, q)


@pytest.mark.parametrize(("num_splits", "group"), [(1, 1), (3, 3), (50, 1), (50, 17)])
def test_any_number_of_splits(num_splits: int, group: int, device: str) -> None:
    case = make_cache((230, 60), 16, 1, 64, torch.float32, 5, device)
    q = make_q(case, group, 6)
    plan = dense.dense_plan(q, case.cache, num_splits=num_splits)
    assert group < 17 or plan.merge_step < plan.active_splits(case.cache.max_pages)
    check(case, q, plan=plan)


@pytest.mark.parametrize("overrides", [{"num_warps": 4}, {"num_warps": 16}, {"tile_tokens": 64}])
def test_another_plan_gives_the_same_output(overrides: dict[str, int], device: str) -> None:
    case = make_cache((230, 60), 12, 1, 64, torch.float16, 7, device)
    q = make_q(case, 1, 8)
    check(case, q, plan=dense.dense_plan(q, case.cache, **overrides))


@pytest.mark.parametrize("group", [1, 4])
def test_launches_on_one_scratch_are_identical(group: int, device: str) -> None:
    case = make_cache((300, 40), 16, 2, 64, torch.float16, 9, device, num_workers=32)
    q = make_q(case, 2 * group, 10)
    plan = dense.dense_plan(q, case.cache)
    assert plan.num_splits > 1
    scratch = torch.zeros(plan.scratch_floats, device=device)
    results = []
    for _ in range(3):
        out, lse = make_outputs(q)
        dense.dense(q, case.cache, out, lse, scratch)
        results.append((out, lse))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


def test_output_does_not_depend_on_where_pages_lie(device: str) -> None:
    shuffled = make_cache((33, 100), 16, 2, 64, torch.float16, 11, device)
    in_order = make_cache((33, 100), 16, 2, 64, torch.float16, 11, device, shuffled=False)
    q = make_q(shuffled, 2, 12)
    for one, other in zip(densely(q, shuffled.cache), densely(q, in_order.cache), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("group", [1, 4])
def test_a_nan_key_shows_in_its_own_rows_alone(group: int, device: str) -> None:
    case = make_cache((40, 20), 16, 2, 64, torch.float16, 13, device)
    case.cache.pool.k[case.cache.physical_pages(0)[1], 0, 3, 5] = NAN
    out, lse = densely(make_q(case, 2 * group, 14), case.cache)
    assert out[0, :group].isnan().all()
    assert lse[0, :group].isnan().all()
    assert not out[0, group:].isnan().any()
    assert not out[1].isnan().any()


@pytest.mark.parametrize("group", [1, 4])
def test_an_empty_request_gives_zero_and_minus_infinity(group: int, device: str) -> None:
    case = make_cache((0, 5), 16, 2, 64, torch.float16, 15, device)
    out, lse = densely(make_q(case, 2 * group, 16), case.cache)
    assert (out[0] == 0).all()
    assert (lse[0] == float("-inf")).all()
    assert lse[1].isfinite().all()


@pytest.mark.parametrize("group", [1, 3])
def test_strided_queries_and_outputs(group: int, device: str) -> None:
    case = make_cache((70, 20), 16, 2, 64, torch.float16, 17, device)
    q = make_q(case, 2 * group, 18, contiguous=False)
    out, lse = non_contiguous(torch.full_like(q, NAN), inner_stride=2), make_outputs(q)[1]
    scratch = torch.zeros(dense.dense_plan(q, case.cache).scratch_floats, device=device)
    dense.dense(q, case.cache, out, lse, scratch)
    expected = densely(q.contiguous(), case.cache)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_softmax_scale(device: str) -> None:
    case = make_cache((50,), 16, 1, 64, torch.float32, 19, device)
    q = make_q(case, 4, 20)
    out, lse = densely(q, case.cache, softmax_scale=0.01)
    oracle_out, oracle_lse = reference.dense(q, case.cache, softmax_scale=0.01)
    # Eager code with its scale of 1/8 applied to a smaller q: the same logits.
    eager_out, eager_lse = eager(case, q * 0.08)
    assert_close(out, eager_out, oracle_out, q.dtype, "out")
    assert_close(lse, eager_lse, oracle_lse, q.dtype, "lse")


def test_wrong_arguments_are_refused(device: str) -> None:
    case = make_cache((300,), 16, 2, 64, torch.float16, 21, device, num_workers=32)
    cache, q = case.cache, make_q(case, 4, 22)
    out, lse = make_outputs(q)
    scratch = torch.zeros(dense.dense_plan(q, cache).scratch_floats, device=device)
    good = (q, cache, out, lse, scratch)
    for place, bad, error in [
        (0, q.float(), TypeError),
        (0, q[:, :3], ValueError),
        (2, out[:, :3], ValueError),
        (3, lse.half(), TypeError),
        (4, scratch[:-1], ValueError),
    ]:
        with pytest.raises(error):
            dense.dense(*good[:place], bad, *good[place + 1 :])
