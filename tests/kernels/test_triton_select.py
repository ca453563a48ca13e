"""Stage `select` in Triton: exactly the selection that float64 sorting makes of the same scores."""

from __future__ import annotations

import pytest
import torch
from cases import make_cache, make_q, make_select_indptr
from questprof_kernels import reference, select
from questprof_kernels.paged_cache import PagedCache
from triton_launch import scored, selected

INF, NAN = float("inf"), float("nan")


def cache_of_pages(num_pages: tuple[int, ...], device: str) -> PagedCache:
    return make_cache(num_pages, 1, 1, 64, torch.float16, 0, device).cache


def check(scores: torch.Tensor, cache: PagedCache, wanted: int | list[int], **options: object) -> None:
    """Both tail rules pick what the oracle picks."""
    select_indptr = make_select_indptr(cache, wanted)
    for take_tail in (True, False):
        expected = reference.select(scores.cpu(), cache, select_indptr, take_tail)
        ids = selected(scores, cache, select_indptr, take_tail, **options)
        assert torch.equal(ids.cpu(), expected)


def gaussian_scores(heads: int, pages: int, device: str, seed: int = 1) -> torch.Tensor:
    return torch.randn((heads, pages), generator=torch.Generator().manual_seed(seed)).to(device)


def test_on_scores_of_the_score_stage(device: str) -> None:
    case = make_cache((0, 1, 16, 17, 200), 16, 2, 64, torch.float16, 1, device)
    scores = scored(make_q(case, 6, 2), case.cache)
    check(scores, case.cache, 4)


@pytest.mark.parametrize("wanted", [1, 2, 31, 32, [0, 1, 5, 300]])
def test_a_ragged_batch(wanted: int | list[int], device: str) -> None:
    cache = cache_of_pages((0, 1, 33, 300), device)
    check(gaussian_scores(3, 334, device), cache, wanted)


def test_all_pages_wanted_come_in_order(device: str) -> None:
    cache = cache_of_pages((5, 100), device)
    select_indptr = make_select_indptr(cache, 100)
    ids = selected(gaussian_scores(2, 105, device), cache, select_indptr)
    assert ids.cpu().tolist() == [[*range(5), *range(100)]] * 2


@pytest.mark.parametrize(
    "values",
    [
        [0.0],
        [1.0, 2.0],
        [-1.0, 1.0],
        [0.0, -0.0],
        [0.0, -0.0, -1.0, 1e-45, -1e-45],
        [INF, -INF, 0.0],
        [INF, NAN, 3.0e38],
        [NAN],
        [-INF],
        [1.0, 1.0000001, 1.0000002],
    ],
)
def test_equal_and_special_scores_go_to_the_lower_page(values: list[float], device: str) -> None:
    cache = cache_of_pages((60,), device)
    order = torch.randint(len(values), (4, 60), generator=torch.Generator().manual_seed(3))
    scores = torch.tensor(values)[order].to(device)
    for wanted in (1, 7, 59):
        check(scores, cache, wanted)


def test_a_nan_of_either_sign_ranks_first(device: str) -> None:
    cache = cache_of_pages((40,), device)
    scores = gaussian_scores(1, 40, device)
    scores[0, 30], scores[0, 11], scores[0, 5] = NAN, -NAN, INF
    select_indptr = make_select_indptr(cache, 3)
    assert selected(scores, cache, select_indptr, False).tolist() == [[5, 11, 30]]
    assert selected(scores, cache, make_select_indptr(cache, 1), False).tolist() == [[11]]


@pytest.mark.parametrize("seed", range(3))
def test_any_bit_patterns(seed: int, device: str) -> None:
    cache = cache_of_pages((250,), device)
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(1 << 31), 1 << 31, (8, 250), generator=generator).to(torch.int32)
    check(bits.view(torch.float32).to(device), cache, 20 * seed + 3)


def test_scores_in_a_narrow_band(device: str) -> None:
    # All keys share their upper bits, as real scores of one head do.
    cache = cache_of_pages((200,), device)
    check(60.0 + gaussian_scores(4, 200, device) / 64, cache, 50)


@pytest.mark.parametrize("wanted", [1, 100, 999])
def test_more_pages_than_a_block(wanted: int, device: str) -> None:
    cache = cache_of_pages((1000, 3), device)
    plan = select.select_plan(cache, 4, block=256)
    scores = gaussian_scores(4, 1003, device)
    scores[1] = scores[1].round()  # ties across blocks
    small, large = 4.0 + torch.arange(1003) / 2000, 5000.0 + torch.arange(1003)
    scores[2] = torch.where(torch.arange(1003) < 256, small, large)  # other bits lead outside the first block
    scores[3] = torch.where(torch.arange(1003) < 256, large, small)
    check(scores, cache, wanted, plan=plan)


def test_strided_rows(device: str) -> None:
    cache = cache_of_pages((20, 30), device)
    scores = gaussian_scores(3, 64, device)[:, :50]
    select_indptr = make_select_indptr(cache, 6)
    page_ids = torch.full((3, 40), -1, dtype=torch.int32, device=device)
    select.select(scores, cache, select_indptr, page_ids[:, 8:])
    assert torch.equal(page_ids[:, 8:20].cpu(), reference.select(scores.cpu(), cache, select_indptr))
    assert (page_ids[:, :8] == -1).all()
    assert (page_ids[:, 20:] == -1).all()


def test_wrong_arguments_are_refused(device: str) -> None:
    cache = cache_of_pages((20,), device)
    scores, indptr = gaussian_scores(2, 20, device), make_select_indptr(cache, 3)
    ids = torch.empty((2, 3), dtype=torch.int32, device=device)
    for bad, error in [
        ((scores.double(), indptr, ids), TypeError),
        ((scores[:, :19], indptr, ids), ValueError),
        ((scores, indptr.long(), ids), TypeError),
        ((scores, indptr[:1], ids), ValueError),
        ((scores, indptr, ids.long()), TypeError),
        ((scores, indptr, ids[:1]), ValueError),
    ]:
        with pytest.raises(error):
            select.select(bad[0], cache, bad[1], bad[2])
