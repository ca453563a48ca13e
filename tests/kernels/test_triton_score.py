"""Stage `score` in Triton against the float64 bound of equation (3) on the stored boxes."""

from __future__ import annotations

import pytest
import torch
from cases import DTYPES, HOSTILE_LENGTHS, Case, assert_close, make_cache, make_q
from questprof_kernels import reference, score
from questprof_kernels.plan import SUMMARY_LAYOUTS
from triton_launch import scored


@pytest.fixture(params=SUMMARY_LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


def eager(case: Case, q: torch.Tensor) -> torch.Tensor:
    """Equation (3) in fp32 from the stored boxes, [num_qo_heads, total_pages]."""
    group = q.shape[1] // case.cache.pool.num_kv_heads
    q = q.cpu().float()

    def row(request: int, head: int) -> torch.Tensor:
        m, M = (bound.float() for bound in reference.stored_boxes(case.cache, request, head // group))
        return torch.maximum(q[request, head] * m, q[request, head] * M).sum(-1)

    heads = range(q.shape[1])
    return torch.cat([torch.stack([row(r, h) for h in heads]) for r in range(case.cache.batch_size)], 1)


def check(case: Case, q: torch.Tensor, scores: torch.Tensor) -> None:
    assert_close(scores, eager(case, q), reference.score(q, case.cache), torch.float32, "score")


@pytest.mark.parametrize(
    ("dtype", "head_dim", "page_size", "group"),
    [
        ("fp16", 128, 16, 1),
        ("bf16", 64, 16, 4),
        ("fp32", 64, 12, 3),
        ("fp16", 64, 1, 3),
        ("fp32", 128, 128, 4),
        ("fp16", 128, 16, 8),
    ],
)
def test_bounds_of_a_ragged_batch(
    dtype: str, head_dim: int, page_size: int, group: int, layout: str, device: str
) -> None:
    case = make_cache(
        HOSTILE_LENGTHS, page_size, 2, head_dim, DTYPES[dtype], 1, device, summary_layout=layout
    )
    q = make_q(case, 2 * group, 2)
    check(case, q, scored(q, case.cache))


def test_a_long_request(layout: str, device: str) -> None:
    case = make_cache((1000, 3), 16, 2, 64, torch.float16, 3, device, summary_layout=layout)
    q = make_q(case, 2, 4)
    check(case, q, scored(q, case.cache))


def test_summary_in_fp32_over_fp16_keys(layout: str, device: str) -> None:
    case = make_cache(
        (33, 17), 16, 2, 64, torch.float16, 5, device, summary_dtype=torch.float32, summary_layout=layout
    )
    q = make_q(case, 4, 6)
    check(case, q, scored(q, case.cache))


def test_non_contiguous_queries(layout: str, device: str) -> None:
    case = make_cache((33, 17, 1), 16, 2, 64, torch.float16, 7, device, summary_layout=layout)
    q = make_q(case, 4, 8, contiguous=False)
    assert not q.is_contiguous()
    assert torch.equal(scored(q, case.cache), scored(q.contiguous(), case.cache))


def test_scores_do_not_depend_on_where_pages_lie(layout: str, device: str) -> None:
    shuffled = make_cache((33, 100), 16, 2, 64, torch.float16, 9, device, summary_layout=layout)
    in_order = make_cache(
        (33, 100), 16, 2, 64, torch.float16, 9, device, shuffled=False, summary_layout=layout
    )
    assert shuffled.cache.physical_pages(1) != in_order.cache.physical_pages(1)
    q = make_q(shuffled, 2, 10)
    assert torch.equal(scored(q, shuffled.cache), scored(q, in_order.cache))


def test_the_bound_is_not_below_any_dot_product(layout: str, device: str) -> None:
    case = make_cache((100,), 16, 2, 64, torch.float32, 11, device, summary_layout=layout)
    q = make_q(case, 2, 12)
    scores = scored(q, case.cache).double().cpu()
    for head in range(2):
        keys, _ = reference.gather(case.cache, 0, head)
        dots = keys @ q[0, head].double().cpu()
        slack = 64 * torch.finfo(torch.float32).eps * (keys.abs() @ q[0, head].double().cpu().abs())
        largest = torch.stack([page.max() for page in (dots - slack).split(16)])
        assert (scores[head] >= largest).all()


def test_a_nan_key_shows_in_its_own_score_alone(layout: str, device: str) -> None:
    case = make_cache((70, 20), 16, 2, 64, torch.float16, 13, device, summary_layout=layout)
    case.cache.pool.k[case.cache.physical_pages(0)[2], 1, 0, 7] = float("nan")
    case.cache.rescan(0, 2)
    scores = scored(make_q(case, 4, 14), case.cache)
    assert scores.isposinf().nonzero().tolist() == [[2, 2], [3, 2]]


def test_a_nan_in_one_bound_shows_where_a_paired_summary_is_read(device: str) -> None:
    case = make_cache((70, 20), 16, 2, 64, torch.float16, 13, device)
    case.cache.pool.summary.data[case.cache.physical_pages(0)[2], 1, 0, 7] = float("nan")
    assert scored(make_q(case, 4, 14), case.cache).isnan().nonzero().tolist() == [[2, 2], [3, 2]]


@pytest.mark.parametrize("group", [1, 2, 3])
def test_a_row_that_no_query_head_asks_for_is_not_read(group: int, device: str) -> None:
    """Rows that no sign picks are NaN, as are the pages of other requests and free blocks."""
    case = make_cache(
        (70, 20), 16, 2, 64, torch.float16, 23, device, summary_layout="transposed", num_workers=1
    )
    q = make_q(case, 2 * group, 24)
    expected = reference.score(q, case.cache)
    negative = (q < 0).reshape(2, 2, group, 64)
    for request in range(2):
        (block,) = case.cache.summary_blocks(request)
        rows = case.cache.pool.summary.data[block]
        rows[:, :, 0][~negative[request].any(1)] = float("nan")
        rows[:, :, 1][negative[request].all(1)] = float("nan")
        rows[..., case.cache.num_pages[request] :] = float("nan")
    assert_close(scored(q, case.cache), expected, expected, torch.float32, "score")


def test_a_nan_in_one_row_shows_for_the_heads_that_ask_for_it(device: str) -> None:
    case = make_cache((70,), 16, 1, 64, torch.float16, 25, device, summary_layout="transposed")
    q = make_q(case, 2, 26)
    q[0, :, 7] = torch.tensor([-1.0, 1.0])
    (block,) = case.cache.summary_blocks(0)
    case.cache.pool.summary.data[block, 0, 7, 0, 2] = float("nan")
    assert scored(q, case.cache).isnan().nonzero().tolist() == [[0, 2]]


interpreted_nan = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
"""numpy warns of 0 x inf, here in the slots of pages that are not there: no score is written for them."""


@interpreted_nan
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_query_scores_zero(zero: float, layout: str, device: str) -> None:
    case = make_cache((70,), 16, 2, 64, torch.float16, 27, device, summary_layout=layout)
    q = torch.full((1, 4, 64), zero, dtype=torch.float16, device=device)
    assert (scored(q, case.cache) == 0).all()


@interpreted_nan
def test_a_nan_or_infinite_query_shows_in_its_own_scores(layout: str, device: str) -> None:
    """inf x a bound of one sign is infinite; NaN times anything is NaN."""
    case = make_cache(
        (40,),
        16,
        1,
        64,
        torch.float16,
        29,
        device,
        summary_layout=layout,
        keys=torch.full((40, 1, 64), -2.0, dtype=torch.float16),
    )
    q = torch.ones((1, 4, 64), dtype=torch.float16, device=device)
    q[0, 1, 5], q[0, 2, 5], q[0, 3, 5] = float("nan"), float("inf"), float("-inf")
    scores = scored(q, case.cache)
    assert (scores[0] == -128.0).all()
    assert scores[1].isnan().all()
    assert (scores[2] == float("-inf")).all()
    assert (scores[3] == float("inf")).all()


@pytest.mark.parametrize(("dtype", "group"), [("fp16", 1), ("bf16", 4), ("fp32", 3)])
def test_both_layouts_give_the_same_scores(dtype: str, group: int, device: str) -> None:
    """Requests of several blocks: 1, 64 and 65 pages and more."""
    lengths = (4 * 64 * 2 + 9, 4 * 64, 0, 4 * 65, 3)
    paired, transposed = (
        make_cache(lengths, 4, 2, 64, DTYPES[dtype], 31, device, summary_layout=layout, num_workers=2)
        for layout in SUMMARY_LAYOUTS
    )
    q = make_q(paired, 2 * group, 32)
    check(transposed, q, scored(q, transposed.cache))
    assert_close(
        scored(q, transposed.cache),
        scored(q, paired.cache),
        reference.score(q, paired.cache),
        torch.float32,
        "score",
    )


def test_columns_past_the_pages_are_left_alone(layout: str, device: str) -> None:
    case = make_cache((33, 17), 16, 2, 64, torch.float16, 15, device, summary_layout=layout)
    q = make_q(case, 2, 16)
    wide = torch.full((2, case.cache.total_pages + 9), -7.0, device=device)
    score.score(q, case.cache, wide)
    assert (wide[:, case.cache.total_pages :] == -7.0).all()
    check(case, q, wide[:, : case.cache.total_pages])


@pytest.mark.parametrize("overrides", [{"tile_pages": 16, "programs_per_worker": 1}, {"tile_pages": 32}])
def test_another_plan_gives_the_same_bounds(overrides: dict[str, int], layout: str, device: str) -> None:
    case = make_cache((400, 50), 16, 2, 64, torch.float32, 17, device, num_workers=4, summary_layout=layout)
    q = make_q(case, 2, 18)
    plan = score.score_plan(case.cache, **overrides)
    check(case, q, scored(q, case.cache, plan=plan))


def test_a_plan_for_shorter_requests_covers_longer_ones(layout: str, device: str) -> None:
    case = make_cache((300,), 16, 2, 64, torch.float32, 19, device, summary_layout=layout)
    q = make_q(case, 2, 20)
    short = make_cache((5,), 16, 2, 64, torch.float32, 19, device, summary_layout=layout)
    check(case, q, scored(q, case.cache, plan=score.score_plan(short.cache)))


def test_wrong_arguments_are_refused(layout: str, device: str) -> None:
    case = make_cache((33,), 16, 2, 64, torch.float16, 21, device, summary_layout=layout)
    cache, q = case.cache, make_q(case, 4, 22)
    scores = torch.empty((4, cache.total_pages), device=device)
    for bad, error in [
        ((q.float(), scores), TypeError),
        ((q[:, :3], scores[:3]), ValueError),
        ((q, scores[:3]), ValueError),
        ((q, scores[:, 1:]), ValueError),
        ((q, scores.half()), TypeError),
        ((q, scores.t().contiguous().t()), ValueError),
        ((q[..., :32], scores), ValueError),
    ]:
        with pytest.raises(error):
            score.score(bad[0], cache, bad[1])
    for_two = score.score_plan(
        make_cache((33, 33), 16, 2, 64, torch.float16, 21, device, summary_layout=layout).cache
    )
    with pytest.raises(ValueError, match="grid"):
        score.score(q, cache, scores, plan=for_two)
