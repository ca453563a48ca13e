"""What the CUDA `append` writes: exact, because it copies and compares numbers only; planted faults.

On a GPU natively; without one the same source runs on the CPU (cuda_host.py). Its two kernels, for few
new tokens and for many, must each write whatever comes.
"""

from __future__ import annotations

from pathlib import Path

import cuda_host
import pytest
import torch
from appended import HEADS, assert_holds, of_requests, tokens
from cases import DTYPES, make_cache, non_contiguous
from cuda_appended import DEVICE, FEW, MANY, ON_GPU, filled, grow, grow_in_steps
from questprof_kernels import append_cuda, reference
from questprof_kernels.paged_cache import PagedCache
from questprof_kernels.plan import SUMMARY_LAYOUTS

NAN = float("nan")
KINDS = (("fp16", 128, 16), ("bf16", 128, 8), ("fp16", 64, 64), ("bf16", 64, 16))

pytestmark = [] if ON_GPU else [cuda_host.needs_compiler]
each_kind = pytest.mark.parametrize(("dtype", "head_dim", "page_size"), KINDS)


@pytest.fixture(autouse=True, params=[FEW, MANY], ids=["few", "many"])
def kernel(monkeypatch: pytest.MonkeyPatch, libraries: Path, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(append_cuda, "MOST_NEW", request.param)
    if not ON_GPU:
        cuda_host.install(monkeypatch, libraries)


@pytest.fixture(params=SUMMARY_LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@each_kind
def test_decode_steps_widen_the_tail_and_cross_pages(
    dtype: str, head_dim: int, page_size: int, layout: str
) -> None:
    case = filled((0, page_size - 1, 2 * page_size, 3), layout, dtype, head_dim, page_size)
    grow_in_steps(case, [(1, 1, 1, 1)] * 3, 10)


@pytest.mark.parametrize("length", [1, 16, 1023, 1024, 1025])
def test_one_token_to_one_request(length: int, layout: str) -> None:
    """At the ends of pages and of a block of 64 pages."""
    case = filled((length,), layout)
    keys, values = grow(case, (1,), 50)
    assert_holds(case.cache, [torch.cat([case.keys, keys])], [torch.cat([case.values, values])])


@each_kind
def test_ragged_chunks_of_new_tokens(dtype: str, head_dim: int, page_size: int, layout: str) -> None:
    """Few in the mean, or many: whatever comes is written right."""
    case = filled((3, 16, 0, 31), layout, dtype, head_dim, page_size)
    grow_in_steps(case, [(0, 1, 17, 2), (150, 0, 0, 1), (1, 15, 31, 0)], 20)


@pytest.mark.parametrize("page_size", [1, 12, 17, 32, 128])
def test_page_sizes_of_several_tiles_and_of_parts_of_one(page_size: int, layout: str) -> None:
    case = filled((0, page_size - 1, 2 * page_size + 1), layout, page_size=page_size, spare_pages=90)
    grow_in_steps(case, [(3 * page_size + 1, 2, 0), (1, 40, page_size)], 30)


def test_a_run_of_pages_begins_and_ends_anywhere(layout: str) -> None:
    """Inside of a run of 16 boxes in a transposed row, at its ends, and at those of a block of 64."""
    case = filled((0, 13, 16, 61, 127), layout, page_size=1, spare_pages=240)
    grow_in_steps(case, [(70, 20, 16, 9, 3), (2, 0, 33, 1, 63)], 40)


def test_a_request_of_far_more_new_tokens_than_the_mean(layout: str) -> None:
    """It takes more runs of pages than the grid has."""
    case = filled((5, 0, 70, 0), layout, page_size=1, spare_pages=310)
    grow_in_steps(case, [(300, 0, 1, 0)], 50)


def test_nothing_but_the_new_slots_is_written(layout: str) -> None:
    case = filled((5, 0, 33), layout)
    pool = case.cache.pool
    new_indptr = case.cache.extend([2, 0, 1])
    before = [t.clone() for t in (pool.k, pool.v, pool.summary.data)]
    new = tokens(3, 64, torch.float16, 90, DEVICE)
    append_cuda.append(case.cache, new, new, new_indptr)
    first, last = case.cache.physical_pages(0)[0], case.cache.physical_pages(2)[2]
    for old, storage in zip(before, (pool.k, pool.v), strict=False):
        changed = (old.view(torch.int16) != storage.view(torch.int16)).any(3)
        for of_heads in (changed.any(1), changed.all(1)):
            assert sorted(of_heads.nonzero().tolist()) == sorted([[first, 5], [first, 6], [last, 1]])
    after = pool.summary.data.clone()
    pool.summary.data.copy_(before[2])
    # What plain torch makes of the keys that are there, and no other box.
    case.cache.rescan(0, 0)
    case.cache.rescan(2, 2)
    assert torch.equal(after.view(torch.int16), pool.summary.data.view(torch.int16))


@pytest.mark.parametrize(("head_dim", "num_heads"), [(64, 9), (128, 5)])
def test_many_requests_and_more_heads_than_one_block_writes(
    head_dim: int, num_heads: int, layout: str
) -> None:
    """More than eight requests: what is told of their last pages takes more than one sector a row."""
    lengths = [0, 5, 16, 31, 1, 64, 47, 0, 90, 15, 33]
    case = make_cache(
        lengths, 16, num_heads, head_dim, torch.float16, 4, DEVICE, spare_pages=30, summary_layout=layout
    )
    counts = [1] * len(lengths)
    new = [torch.randn(len(lengths), num_heads, head_dim).half().to(DEVICE) for _ in range(2)]
    append_cuda.append(case.cache, *new, case.cache.extend(counts))
    old = of_requests(case)
    keys, values = (
        [torch.cat(pair) for pair in zip(*of, strict=True)]
        for of in zip(old, (t.split(counts) for t in new), strict=True)
    )
    assert_holds(case.cache, keys, values)


def test_a_fresh_page_ignores_what_the_summary_held(layout: str) -> None:
    case = filled((16,), layout)
    cache = case.cache
    new_indptr = cache.extend([1])
    if layout == "paired":
        cache.pool.summary.data[cache.physical_pages(0)[-1]] = NAN
    else:
        cache.pool.summary.data[cache.summary_blocks(0)[0], ..., 1] = NAN
    new = tokens(1, 64, torch.float16, 91, DEVICE)
    append_cuda.append(cache, new, new, new_indptr)
    assert_holds(cache, [torch.cat([case.keys, new])], [torch.cat([case.values, new])])


def test_older_keys_of_the_tail_are_not_read(layout: str) -> None:
    case = filled((5,), layout)
    cache = case.cache
    cache.pool.k[cache.physical_pages(0)[0], :, :5] = NAN  # the stored box is all that is left of them
    keys, _ = grow(case, (1,), 60)
    everything = torch.cat([case.keys, keys]).double().cpu()[:, 0]
    m, M = (bound[0].cpu() for bound in reference.stored_boxes(cache, 0, 0))
    assert torch.equal(m, everything.amin(0))
    assert torch.equal(M, everything.amax(0))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_nan_key_has_no_bounds(dtype: str, layout: str) -> None:
    case = filled((4,), layout, dtype)
    cache = case.cache
    new = tokens(1, 64, DTYPES[dtype], 92, DEVICE)
    new[0, 0, 5] = NAN
    for keys in (new, tokens(1, 64, DTYPES[dtype], 93, DEVICE)):
        append_cuda.append(cache, keys, keys, cache.extend([1]))
        low, high = (bound[0] for bound in reference.stored_boxes(cache, 0, 0))
        assert (low[5], high[5]) == (float("-inf"), float("inf"))
        assert torch.stack([low, high]).isfinite().sum() == 2 * 63
        assert torch.stack(reference.stored_boxes(cache, 0, 1)).isfinite().all()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_nan_and_infinite_keys_among_many(dtype: str, layout: str) -> None:
    case = filled((4,), layout, dtype)
    new = tokens(40, 64, DTYPES[dtype], 98, DEVICE)
    new[3, 0, 1], new[3, 1, 2] = float("inf"), float("-inf")
    new[7, 0, 5] = new[30, 1, 6] = NAN
    append_cuda.append(case.cache, new, new, case.cache.extend([40]))
    every = torch.cat([case.keys, new]).double().cpu().split(16)
    for head in range(HEADS):
        m, M = (bound.cpu() for bound in reference.stored_boxes(case.cache, 0, head))
        for page, keys in enumerate(every):
            least, most = reference.page_box(keys[:, head])
            assert torch.equal(m[page], least)
            assert torch.equal(M[page], most)


def test_launching_again_changes_nothing(layout: str) -> None:
    case = filled((20, 0), layout)
    pool = case.cache.pool
    new = tokens(43, 64, torch.float16, 94, DEVICE)
    new_indptr = case.cache.extend([3, 40])
    kept = []
    for _ in range(2):
        append_cuda.append(case.cache, new, new, new_indptr)
        kept.append([t.view(torch.int16).clone() for t in (pool.k, pool.v, pool.summary.data)])
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))


def test_append_kv_leaves_the_summary_alone(layout: str) -> None:
    case = filled((17,), layout)
    cache = case.cache
    new_indptr = cache.extend([3])
    before = cache.pool.summary.data.clone().view(torch.int16)
    new = tokens(3, 64, torch.float16, 95, DEVICE)
    append_cuda.append_kv(cache, new, new, new_indptr)
    assert torch.equal(cache.pool.summary.data.view(torch.int16), before)
    for head in range(HEADS):
        for ours, old in zip(reference.gather(cache, 0, head), (case.keys, case.values), strict=True):
            assert torch.equal(ours, torch.cat([old, new])[:, head].double().cpu())


def test_keys_and_values_may_be_parts_of_wider_rows(layout: str) -> None:
    """Keys as a fused projection leaves them, beside queries and values; values with heads outermost."""
    case = filled((1, 7), layout)
    rows = tokens(4 * 5, 64, torch.float16, 96, DEVICE).reshape(4, 5 * HEADS, 64)
    keys, values = rows[:, HEADS : 2 * HEADS], non_contiguous(rows[:, 4 * HEADS :])
    assert not keys.is_contiguous()
    assert values.stride(1) > values.stride(0)
    append_cuda.append(case.cache, keys, values, case.cache.extend([1, 3]))
    old_keys, old_values = of_requests(case)
    assert_holds(
        case.cache,
        [torch.cat(pair) for pair in zip(old_keys, keys.split([1, 3]), strict=True)],
        [torch.cat(pair) for pair in zip(old_values, values.split([1, 3]), strict=True)],
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda new: new.transpose(1, 2).contiguous().transpose(1, 2),
        lambda new: torch.cat([new, new], 2)[:, :, 1:65],
        lambda new: new.flatten(1),
    ],
    ids=["dims apart", "rows that begin inside of a word", "heads and dims in one"],
)
def test_what_it_does_not_take_is_refused_and_said(spoil) -> None:  # type: ignore[no-untyped-def]
    cache = filled((4,), "paired").cache
    new = spoil(tokens(1, 64, torch.float16, 97, DEVICE))
    assert not append_cuda.takes(new, new)
    with pytest.raises(ValueError, match=r"new tokens|keys has shape"):
        append_cuda.append(cache, new, new, torch.zeros(2, dtype=torch.int32, device=DEVICE))


def test_no_token_at_all_launches_nothing(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_cuda, "stage_kernel", None)
    cache = filled((4,), layout).cache
    new = tokens(0, 64, torch.float16, 99, DEVICE)
    append_cuda.append(cache, new, new, cache.extend([0]))


def test_a_wrong_dtype_is_refused() -> None:
    cache = filled((4,), "paired").cache
    new = tokens(1, 64, torch.bfloat16, 98, DEVICE)
    with pytest.raises(TypeError, match="keys"):
        append_cuda.append(cache, new, new, torch.zeros(2, dtype=torch.int32, device=DEVICE))


PAGES = "append_pages.cu"
FAULTS = {
    "min and max exchanged": (
        FEW,
        "append.cuh",
        "return of_max ? larger_pairs(a",
        "return !of_max ? larger_pairs(a",
    ),
    "min and max of pages exchanged": (
        MANY,
        "append.cuh",
        "return of_max ? larger_pairs(a",
        "return !of_max ? larger_pairs(a",
    ),
    "the page beside the last one bounded": (
        FEW,
        "append.cu",
        "is_upper ? pick_upper",
        "!is_upper ? pick_upper",
    ),
    "an old box forgotten": (FEW, "append.cu", "in_use = slot > 0;", "in_use = false;"),
    "every page taken for the last": (
        FEW,
        "append.cu",
        "is_last ? lengths.last_page",
        "true ? lengths.last_page",
    ),
    "every block taken for the last": (
        FEW,
        "append.cu",
        "is_last ? lengths.last_block",
        "true ? lengths.last_block",
    ),
    "every request's first token taken for row 0": (
        FEW,
        "append.cu",
        "if (request || token) {",
        "if (token) {",
    ),
    "new tokens that open a page put in front of it": (
        FEW,
        "append.cu",
        "for (; slot < 0; slot += arg.page_size) page--;",
        "",
    ),
    "a tail's pair not widened": (MANY, PAGES, "first > 0 ? joined", "false ? joined"),
    "a tail's numbers not widened": (MANY, PAGES, "+ (oldest % arg.page_size > 0)", ""),
    "older numbers of a row overwritten": (MANY, PAGES, "older > 0 ? *where", "false ? *where"),
    "dims of a row exchanged": (MANY, PAGES, "dim ? 0x7632", "!dim ? 0x7632"),
    "every block taken for the first": (MANY, PAGES, "blocks[origin / BLOCK_PAGES]", "blocks[0]"),
    "what is beyond the mean left out": (MANY, PAGES, "run += gridDim.z", "run += 1 << 20"),
    "slots past a page's end written": (MANY, PAGES, "own.row < end)", "own.row < end + 16)"),
    "rows left out of a box": (MANY, PAGES, "stride >= LANES", "stride > LANES"),
}


@pytest.mark.skipif(ON_GPU, reason="this GPU's kernels have the reductions")
@pytest.mark.parametrize("kernel", [FEW], indirect=True)
def test_without_reductions_the_old_box_is_read(
    layout: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As before sm_90."""
    cuda_host.install(monkeypatch, tmp_path, edit=("ptx.cuh", "#define REDUCES 1", "#define REDUCES 0"))
    grow_in_steps(filled((16 * 64 - 1, 9, 15), layout), [(2, 1, 3), (1, 0, 20)], 71)


@pytest.mark.skipif(ON_GPU, reason="plants faults in the source as it runs on a CPU")
@pytest.mark.parametrize(
    ("kernel", "file", "right", "wrong"), FAULTS.values(), ids=FAULTS.keys(), indirect=["kernel"]
)
def test_a_fault_in_the_source_is_caught(
    file: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run() -> None:
        for layout in SUMMARY_LAYOUTS:
            grow_in_steps(filled((16 * 64 - 1, 9, 15), layout), [(2, 1, 400)], 70)

    run()
    cuda_host.install(monkeypatch, tmp_path, edit=(file, right, wrong))
    with pytest.raises(AssertionError):
        run()


def test_the_cache_tells_its_last_pages(layout: str) -> None:
    """By hand: what the tables say of each request's last page, after growing, rolling back and freeing."""
    case = filled((17, 0, 16 * 64 + 1), layout, spare_pages=90)
    cache: PagedCache = case.cache

    def told() -> list[list[int]]:
        return [t.tolist() for t in (cache.last_page_len, cache.last_page, cache.last_block)]

    def expected() -> list[list[int]]:
        pages = [(cache.physical_pages(r) or (0,))[-1] for r in range(3)]
        blocks = [(cache.summary_blocks(r) or (0,))[-1] for r in range(3)]
        return [[(length - 1) % 16 + 1 if length else 0 for length in cache.seq_lens], pages, blocks]

    assert told() == expected()
    assert told()[0] == [1, 0, 1]
    cache.extend([16, 3, 0])
    assert told() == expected()
    cache.roll_back(2, 1)
    assert told()[0] == [1, 3, 16]
    assert told() == expected()
    cache.free(0)
    assert told()[1][0] == 0
    assert told() == expected()
