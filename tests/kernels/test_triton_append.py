"""Stages `append` and `append_kv` in Triton: exact, because they copy and compare numbers only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from appended import HEADS, assert_holds, of_requests, tokens
from cases import DTYPES, HOSTILE_LENGTHS, gaussian, make_cache, non_contiguous
from questprof_kernels import append as stage
from questprof_kernels import reference
from questprof_kernels.paged_cache import PagedCache, PagePool
from questprof_kernels.plan import SUMMARY_LAYOUTS

NAN = float("nan")


@pytest.fixture(params=SUMMARY_LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize(
    ("dtype", "head_dim", "page_size"),
    [("fp16", 128, 16), ("bf16", 64, 16), ("fp32", 64, 1), ("fp32", 128, 12), ("fp16", 64, 128)],
)
def test_prefill_writes_tokens_and_boxes(
    dtype: str, head_dim: int, page_size: int, layout: str, device: str
) -> None:
    case = make_cache(
        HOSTILE_LENGTHS,
        page_size,
        HEADS,
        head_dim,
        DTYPES[dtype],
        1,
        device,
        append=stage.append,
        summary_layout=layout,
    )
    assert_holds(case.cache, *of_requests(case))


def test_summary_in_fp32_over_fp16_keys(layout: str, device: str) -> None:
    case = make_cache(
        (17, 33),
        16,
        HEADS,
        64,
        torch.float16,
        2,
        device,
        append=stage.append,
        summary_dtype=torch.float32,
        summary_layout=layout,
    )
    assert case.cache.pool.summary.dtype == torch.float32
    assert_holds(case.cache, *of_requests(case))


def test_nothing_but_the_valid_slots_is_written(layout: str, device: str) -> None:
    case = make_cache(
        (5, 0, 33), 16, HEADS, 64, torch.float16, 3, device, append=stage.append, summary_layout=layout
    )
    pool = case.cache.pool
    owned = torch.zeros((pool.num_pages, pool.page_size), dtype=torch.bool)
    for request, seq_len in enumerate(case.cache.seq_lens):
        for position in range(seq_len):
            page = case.cache.physical_pages(request)[position // pool.page_size]
            owned[page, position % pool.page_size] = True
    for storage in (pool.k, pool.v):
        written = ~storage.isnan().cpu()
        assert torch.equal(written.all(3).all(1), owned)
        assert torch.equal(written.any(3).any(1), owned)
    boxes_written = ~pool.summary.data.isnan().cpu()
    if layout == "paired":
        assert torch.equal(boxes_written.flatten(1).any(1), owned.any(1))
    else:
        blocks = [block for request in range(3) for block in case.cache.summary_blocks(request)]
        assert sorted(blocks) == boxes_written.flatten(1).any(1).nonzero().flatten().tolist()
        for request, pages in enumerate(case.cache.num_pages):
            for block in case.cache.summary_blocks(request):
                assert (pool.summary.data[block, :, :, 0, pages:] == float("inf")).all()
                assert (pool.summary.data[block, :, :, 1, pages:] == float("-inf")).all()


@pytest.mark.parametrize("page_size", [1, 12, 16])
def test_decode_steps_widen_the_tail_and_cross_pages(page_size: int, layout: str, device: str) -> None:
    lengths = (0, page_size - 1, 2 * page_size)
    case = make_cache(
        lengths, page_size, HEADS, 64, torch.float16, 4, device, spare_pages=9, summary_layout=layout
    )
    cache = case.cache
    keys, values = of_requests(case)
    for step in range(3):
        new_keys, new_values = (tokens(3, 64, torch.float16, 10 * step + i, device) for i in range(2))
        stage.append(cache, new_keys, new_values, cache.extend([1, 1, 1]))
        keys = [torch.cat([old, new_keys[r : r + 1]]) for r, old in enumerate(keys)]
        values = [torch.cat([old, new_values[r : r + 1]]) for r, old in enumerate(values)]
        assert_holds(cache, keys, values)


def test_ragged_chunks_of_new_tokens(layout: str, device: str) -> None:
    case = make_cache(
        (3, 16, 0, 31), 16, HEADS, 64, torch.bfloat16, 5, device, spare_pages=12, summary_layout=layout
    )
    keys, values = of_requests(case)
    for seed, counts in enumerate([(0, 1, 17, 2), (30, 0, 0, 1), (1, 15, 31, 0)]):
        new_keys, new_values = (
            tokens(sum(counts), 64, torch.bfloat16, 20 + 2 * seed + i, device) for i in range(2)
        )
        stage.append(case.cache, new_keys, new_values, case.cache.extend(counts))
        keys = [torch.cat(pair) for pair in zip(keys, new_keys.split(counts), strict=True)]
        values = [torch.cat(pair) for pair in zip(values, new_values.split(counts), strict=True)]
        assert_holds(case.cache, keys, values)


def test_a_fresh_page_ignores_what_the_summary_held(layout: str, device: str) -> None:
    case = make_cache((0, 16), 16, HEADS, 64, torch.float16, 6, device, summary_layout=layout)
    cache = case.cache
    new_indptr = cache.extend([3, 2])
    for request in range(2):
        stored = cache.pool.summary.data
        if layout == "paired":
            stored[cache.physical_pages(request)[-1]] = NAN
        else:
            stored[cache.summary_blocks(request)[0], ..., cache.num_pages[request] - 1] = NAN
    keys, values = (tokens(5, 64, torch.float16, 30 + i, device) for i in range(2))
    stage.append(cache, keys, values, new_indptr)
    old_keys, old_values = of_requests(case)
    assert_holds(
        cache,
        [keys[:3], torch.cat([old_keys[1], keys[3:]])],
        [values[:3], torch.cat([old_values[1], values[3:]])],
    )


def test_older_keys_of_the_tail_are_not_read(layout: str, device: str) -> None:
    case = make_cache((5,), 16, 1, 64, torch.float32, 7, device, summary_layout=layout)
    cache = case.cache
    (tail,) = cache.physical_pages(0)
    cache.pool.k[tail, :, :5] = NAN  # the stored box is all that is left of them
    new = gaussian((1, 1, 64), torch.float32, torch.Generator().manual_seed(8)).to(device)
    stage.append(cache, new, new, cache.extend([1]))
    m, M = (bound[0].cpu() for bound in reference.stored_boxes(cache, 0, 0))
    everything = torch.cat([case.keys, new]).double().cpu()[:, 0]
    assert torch.equal(m, everything.amin(0))
    assert torch.equal(M, everything.amax(0))


def test_a_nan_key_has_no_bounds(layout: str, device: str) -> None:
    keys, values = (tokens(4, 64, torch.float16, 40 + i, device) for i in range(2))
    keys[1, 0, 5] = NAN
    case = make_cache(
        (4,),
        16,
        HEADS,
        64,
        torch.float16,
        9,
        device,
        keys=keys,
        values=values,
        append=stage.append,
        summary_layout=layout,
    )
    cache = case.cache

    def assert_only_that_dim_is_unbounded() -> None:
        low, high = (bound[0] for bound in reference.stored_boxes(cache, 0, 0))
        assert (low[5], high[5]) == (float("-inf"), float("inf"))
        assert torch.stack([low, high]).isfinite().sum() == 2 * 63
        assert torch.stack(reference.stored_boxes(cache, 0, 1)).isfinite().all()

    assert_only_that_dim_is_unbounded()
    more = tokens(1, 64, torch.float16, 42, device)
    stage.append(cache, more, more, cache.extend([1]))
    assert_only_that_dim_is_unbounded()


def test_infinite_keys_bound_the_box(layout: str, device: str) -> None:
    keys = tokens(3, 64, torch.float32, 50, device)
    keys[0, 0, 1], keys[2, 0, 2] = float("inf"), float("-inf")
    case = make_cache(
        (3,), 4, HEADS, 64, torch.float32, 10, device, keys=keys, append=stage.append, summary_layout=layout
    )
    assert_holds(case.cache, [keys], [case.values])


def test_launching_again_changes_nothing(layout: str, device: str) -> None:
    case = make_cache((20, 0), 16, HEADS, 64, torch.float16, 11, device, summary_layout=layout)
    cache = case.cache
    keys, values = (tokens(4, 64, torch.float16, 60 + i, device) for i in range(2))
    new_indptr = cache.extend([3, 1])
    stage.append(cache, keys, values, new_indptr)
    bits = [t.view(torch.int16).clone() for t in (cache.pool.k, cache.pool.v, cache.pool.summary.data)]
    stage.append(cache, keys, values, new_indptr)
    again = [t.view(torch.int16) for t in (cache.pool.k, cache.pool.v, cache.pool.summary.data)]
    assert all(torch.equal(*pair) for pair in zip(bits, again, strict=True))


def test_append_kv_leaves_the_summary_alone(layout: str, device: str) -> None:
    case = make_cache((17,), 16, HEADS, 64, torch.float16, 12, device, summary_layout=layout)
    cache = case.cache
    keys, values = (tokens(20, 64, torch.float16, 70 + i, device) for i in range(2))
    new_indptr = cache.extend([20])
    before = cache.pool.summary.data.clone().view(torch.int16)
    stage.append_kv(cache, keys, values, new_indptr)
    assert torch.equal(cache.pool.summary.data.view(torch.int16), before)
    for head in range(HEADS):
        held = reference.gather(cache, 0, head)
        for ours, old, new in zip(held, (case.keys, case.values), (keys, values), strict=True):
            assert torch.equal(ours, torch.cat([old, new])[:, head].double().cpu())


def test_non_contiguous_keys_and_values(layout: str, device: str) -> None:
    case = make_cache((1, 7), 16, HEADS, 64, torch.float16, 13, device, summary_layout=layout)
    keys, values = (tokens(12, 64, torch.float16, 80 + i, device) for i in range(2))
    strided = non_contiguous(keys), non_contiguous(values, inner_stride=2)
    assert not any(t.is_contiguous() for t in strided)
    stage.append(case.cache, *strided, case.cache.extend([2, 10]))
    old_keys, old_values = of_requests(case)
    assert_holds(
        case.cache,
        [torch.cat(pair) for pair in zip(old_keys, keys.split([2, 10]), strict=True)],
        [torch.cat(pair) for pair in zip(old_values, values.split([2, 10]), strict=True)],
    )


def test_a_grid_smaller_than_the_touched_pages_still_writes_them_all(layout: str, device: str) -> None:
    pool = PagePool(6, HEADS, 4, 64, torch.float32, device=device, summary_layout=layout)
    cache = PagedCache(pool, 1, 6)
    keys, values = (tokens(23, 64, torch.float32, 90 + i, device) for i in range(2))
    new_indptr = cache.extend([23])
    plan = stage.append_plan(keys[:1], cache)
    assert plan.grid[0] < cache.max_pages
    stage.append(cache, keys, values, new_indptr, plan=plan)
    assert_holds(cache, [keys], [values])


@pytest.mark.parametrize(
    ("page_size", "dtype", "summary_dtype"), [(16, "bf16", "fp32"), (12, "fp16", "fp16")]
)
def test_a_prefill_in_runs_goes_on_where_the_last_one_stopped(
    page_size: int, dtype: str, summary_dtype: str, layout: str, device: str
) -> None:
    """Chunks end inside pages, runs and blocks; each request gets another share of them."""
    case = make_cache(
        (3, 0, 77),
        page_size,
        HEADS,
        64,
        DTYPES[dtype],
        15,
        device,
        spare_pages=1400 // page_size,
        summary_dtype=DTYPES[summary_dtype],
        summary_layout=layout,
    )
    cache = case.cache
    keys, values = of_requests(case)
    for seed, counts in enumerate([(290, 100, 1), (0, 7, 400)]):
        new_keys, new_values = (
            tokens(sum(counts), 64, DTYPES[dtype], 200 + 2 * seed + i, device) for i in (0, 1)
        )
        assert stage.append_plan(new_keys, cache).run_pages > 1
        stage.append(cache, new_keys, new_values, cache.extend(counts))
        keys = [torch.cat(pair) for pair in zip(keys, new_keys.split(counts), strict=True)]
        values = [torch.cat(pair) for pair in zip(values, new_values.split(counts), strict=True)]
        assert_holds(cache, keys, values)


@pytest.mark.parametrize(
    "overrides", [{"tile_slots": 2}, {"run_pages": 4}, {"tile_slots": 64, "run_pages": 2}]
)
def test_another_plan_writes_the_same(overrides: dict[str, int], layout: str, device: str) -> None:
    case = make_cache((5, 70), 16, HEADS, 64, torch.float16, 16, device, summary_layout=layout, spare_pages=9)
    new_keys, new_values = (tokens(60, 64, torch.float16, 300 + i, device) for i in (0, 1))
    plan = stage.append_plan(new_keys, case.cache, **overrides)
    stage.append(case.cache, new_keys, new_values, case.cache.extend([20, 40]), plan=plan)
    old_keys, old_values = of_requests(case)
    assert_holds(
        case.cache,
        [torch.cat(pair) for pair in zip(old_keys, new_keys.split([20, 40]), strict=True)],
        [torch.cat(pair) for pair in zip(old_values, new_values.split([20, 40]), strict=True)],
    )


def test_a_branch_writes_its_own_boxes(layout: str, device: str) -> None:
    pool = PagePool(30, HEADS, 4, 64, torch.float32, device=device, summary_layout=layout)
    cache = PagedCache(pool, 2, 40)
    keys, values = (tokens(27, 64, torch.float32, 310 + i, device) for i in range(2))
    stage.append(cache, keys, values, cache.extend([27, 0]))
    cache.fork(0, 1)
    more = tokens(3, 64, torch.float32, 312, device)
    stage.append(cache, more, more, cache.extend([1, 2]))
    branches = [torch.cat([keys, more[:1]]), torch.cat([keys, more[1:]])]
    assert_holds(cache, branches, [torch.cat([values, more[:1]]), torch.cat([values, more[1:]])])


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda k, v, p: (k.double(), v, p), TypeError),
        (lambda k, v, p: (k, v[:1], p), ValueError),
        (lambda k, v, p: (k[:, :1], v[:, :1], p), ValueError),
        (lambda k, v, p: (k, v, p.long()), TypeError),
        (lambda k, v, p: (k, v, p[:1]), ValueError),
    ],
)
def test_wrong_arguments_are_refused(
    spoil: Callable[..., tuple[torch.Tensor, ...]], error: type[Exception], layout: str, device: str
) -> None:
    case = make_cache((4,), 16, HEADS, 64, torch.float16, 14, device, summary_layout=layout)
    new = tokens(2, 64, torch.float16, 100, device)
    arguments = spoil(new, new, case.cache.extend([2]))
    with pytest.raises(error):
        stage.append(case.cache, *arguments)
