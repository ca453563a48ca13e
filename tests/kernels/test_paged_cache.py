"""The paged cache's host side: pages, references, copies on write, and the device's mirrors of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from cases import DTYPES, Case, fill, gaussian, make_cache
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from questprof_kernels import paged_cache, reference
from questprof_kernels.paged_cache import SPARE_BLOCKS, PagedCache, PagePool, default_num_workers
from questprof_kernels.pieces import Pieces
from questprof_kernels.plan import SUMMARY_BLOCK_PAGES, SUMMARY_LAYOUTS

INF = float("inf")
FP32 = torch.float32

both_layouts = pytest.mark.parametrize("layout", SUMMARY_LAYOUTS)


def make_pool(num_pages: int, page_size: int = 4, **options: object) -> PagePool:
    return PagePool(num_pages, 2, page_size, 8, FP32, **options)


def write_tail(cache: PagedCache, request: int, tokens: torch.Tensor) -> None:
    """Write `tokens` [n, num_kv_heads, head_dim] as the newest keys and values of `request`, box by box."""
    pool, seq_len = cache.pool, cache.seq_lens[request]
    pages = cache.physical_pages(request)
    for i, token in enumerate(tokens):
        position = seq_len - len(tokens) + i
        page, slot = pages[position // pool.page_size], position % pool.page_size
        pool.k[page, :, slot] = token
        pool.v[page, :, slot] = token
    for page in range((seq_len - len(tokens)) // pool.page_size, cache.num_pages[request]):
        cache.rescan(request, page)


def assert_boxes(cache: PagedCache, request: int, keys: torch.Tensor) -> None:
    """The stored boxes of `request` are those of `keys` [seq_len, num_kv_heads, head_dim]."""
    low, high = cache.bounds(request)
    pages = keys.split(cache.pool.page_size) if len(keys) else []
    assert torch.equal(low, torch.stack([page.amin(0) for page in pages]))
    assert torch.equal(high, torch.stack([page.amax(0) for page in pages]))


def held_keys(cache: PagedCache, request: int) -> torch.Tensor:
    """[seq_len, num_kv_heads, head_dim], read page by page."""
    pool = cache.pool
    pages = list(cache.physical_pages(request))
    return pool.k[pages].transpose(1, 2).flatten(0, 1)[: cache.seq_lens[request]]


def grow(cache: PagedCache, request: int, count: int, seed: int = 0) -> torch.Tensor:
    """Extend one request by `count` random tokens; returns them."""
    tokens = torch.randn(count, cache.pool.num_kv_heads, 8, generator=torch.Generator().manual_seed(seed))
    cache.extend([count if r == request else 0 for r in range(cache.batch_size)])
    write_tail(cache, request, tokens)
    return tokens


def state(cache: PagedCache) -> tuple[object, ...]:
    """Everything an operation that fails must leave as it was."""
    pool = cache.pool
    tables = cache.block_table, cache.kv_indptr, cache.summary_table, cache.summary_indptr
    mirrors = [t.tolist() for t in (*tables, cache.last_page_len)]
    pages = [(cache.physical_pages(r), cache.summary_blocks(r)) for r in range(cache.batch_size)]
    owners = [(pieces.num_free, pieces.owners) for pieces in (pool.pages, pool.summary.blocks)]
    storage = [t.nan_to_num(7.0).clone() for t in (pool.k, pool.v, pool.summary.data)]
    return cache.seq_lens, pages, mirrors, owners, [t.tolist() for t in storage]


# extend


def test_extend_by_hand() -> None:
    pool = make_pool(10)
    pool.reorder_free([7, 3, 9, 0, 1, 2, 4, 5, 6, 8])
    cache = PagedCache(pool, 3, 10)
    new_indptr = cache.extend([5, 0, 4])
    assert new_indptr.tolist() == [0, 5, 5, 9]
    assert new_indptr.dtype == cache.block_table.dtype == cache.kv_indptr.dtype == cache.last_page_len.dtype
    assert new_indptr.dtype == torch.int32
    assert [cache.physical_pages(r) for r in range(3)] == [(7, 3), (), (9,)]
    assert cache.block_table[:3].tolist() == [7, 3, 9]
    assert cache.kv_indptr.tolist() == [0, 2, 2, 3]
    assert cache.last_page_len.tolist() == [1, 0, 4]
    assert (cache.seq_lens, cache.num_pages, cache.max_pages, cache.total_pages) == (
        (5, 0, 4),
        (2, 0, 1),
        2,
        3,
    )
    # 3 more fill request 0's second page; request 2's page is full, so one more token opens page 0.
    assert cache.extend([3, 0, 1]).tolist() == [0, 3, 3, 4]
    assert [cache.physical_pages(r) for r in range(3)] == [(7, 3), (), (9, 0)]
    assert cache.last_page_len.tolist() == [4, 0, 1]
    assert pool.pages.num_free == 6


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_a_multiple_of_the_page_size_fills_the_last_page(length: int) -> None:
    cache = PagedCache(make_pool(3), 1, 3)
    cache.extend([length])
    assert cache.num_pages == (-(-length // 4),)
    assert cache.last_page_len.tolist() == [length - 4 * (cache.num_pages[0] - 1)]


@pytest.mark.parametrize("new_tokens", [[1], [1, 1, 1], [1, -1]])
def test_extend_refuses_counts_that_do_not_fit(new_tokens: Sequence[int]) -> None:
    cache = PagedCache(make_pool(4), 2, 4)
    before = state(cache)
    with pytest.raises(ValueError, match="does not fit 2 requests"):
        cache.extend(new_tokens)
    assert state(cache) == before


@pytest.mark.parametrize(
    ("num_pages", "capacity_pages", "message"),
    [(3, 9, "3 pages wanted, 1 of 3 free"), (9, 3, "5 logical pages exceed capacity_pages 3")],
)
def test_extend_without_room_changes_nothing(num_pages: int, capacity_pages: int, message: str) -> None:
    cache = PagedCache(make_pool(num_pages), 2, capacity_pages)
    grow(cache, 0, 6)
    before = state(cache)
    with pytest.raises(ValueError, match=message):
        cache.extend([3, 8])
    assert state(cache) == before


@both_layouts
def test_a_copy_on_write_that_finds_no_page_changes_nothing(layout: str) -> None:
    cache = PagedCache(make_pool(2, summary_layout=layout), 2, 9)
    grow(cache, 0, 6)
    cache.fork(0, 1)
    before = state(cache)
    with pytest.raises(ValueError, match="1 pages wanted, 0 of 2 free"):
        cache.extend([0, 1])
    with pytest.raises(ValueError, match="must be copied and no page is free"):
        cache.roll_back(1, 1)
    assert state(cache) == before


@both_layouts
def test_a_roll_back_may_copy_into_a_page_it_drops(layout: str) -> None:
    cache = PagedCache(make_pool(3, summary_layout=layout), 2, 9)
    keys = grow(cache, 0, 8)
    cache.fork(0, 1)
    grow(cache, 1, 1, seed=1)
    assert cache.pool.pages.num_free == 0
    cache.roll_back(1, 2)
    assert cache.seq_lens == (8, 7)
    assert cache.pool.pages.num_free == 0
    assert torch.equal(held_keys(cache, 1), keys[:7])
    assert torch.equal(held_keys(cache, 0), keys)


# fork and copy on write


@both_layouts
def test_fork_shares_pages_until_one_side_writes(layout: str) -> None:
    cache = PagedCache(make_pool(8, summary_layout=layout), 3, 8)
    old = grow(cache, 0, 6, seed=1)
    cache.fork(0, 2)
    pages, blocks = cache.pool.pages, cache.pool.summary.blocks
    assert cache.physical_pages(2) == cache.physical_pages(0)
    assert cache.summary_blocks(2) == cache.summary_blocks(0)
    assert cache.last_page_len.tolist() == [2, 0, 2]
    assert pages.num_free == 6
    assert all(pages.is_shared(page) for page in cache.physical_pages(0))
    assert all(blocks.is_shared(block) for block in cache.summary_blocks(0))
    new = grow(cache, 2, 1, seed=2)
    first, second = cache.physical_pages(0), cache.physical_pages(2)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert pages.is_shared(first[0])
    assert not pages.is_shared(first[1])
    assert not pages.is_shared(second[1])
    assert not set(cache.summary_blocks(0)) & set(cache.summary_blocks(2))
    assert torch.equal(held_keys(cache, 0), old)
    assert torch.equal(held_keys(cache, 2), torch.cat([old, new]))
    assert_boxes(cache, 0, old)
    assert_boxes(cache, 2, torch.cat([old, new]))


@both_layouts
def test_both_sides_of_a_fork_write_at_once(layout: str) -> None:
    cache = PagedCache(make_pool(5, summary_layout=layout), 2, 8)
    old = grow(cache, 0, 5, seed=1)
    cache.fork(0, 1)
    cache.extend([1, 1])
    tails = [cache.physical_pages(r)[1] for r in range(2)]
    assert len(set(tails)) == 2
    assert not any(cache.pool.pages.is_shared(page) for page in tails)
    for request, tail in enumerate(tails):
        write_tail(cache, request, torch.full((1, 2, 8), float(request)))
        assert torch.equal(held_keys(cache, request)[:5], old)
        assert (cache.pool.k[tail, :, 1] == request).all()


def test_a_full_shared_tail_needs_no_copy() -> None:
    cache = PagedCache(make_pool(4), 2, 8)
    grow(cache, 0, 4)
    cache.fork(0, 1)
    cache.extend([0, 1])
    assert cache.physical_pages(1)[0] == cache.physical_pages(0)[0]
    assert cache.pool.pages.num_free == 2


@both_layouts
def test_extending_by_nothing_copies_nothing(layout: str) -> None:
    cache = PagedCache(make_pool(4, summary_layout=layout), 2, 8)
    grow(cache, 0, 3)
    cache.fork(0, 1)
    assert cache.extend([0, 0]).tolist() == [0, 0, 0]
    assert cache.physical_pages(0) == cache.physical_pages(1)


@both_layouts
def test_fork_refuses(layout: str) -> None:
    cache = PagedCache(make_pool(8, summary_layout=layout), 3, 3)
    grow(cache, 0, 6)
    grow(cache, 1, 1)
    before = state(cache)
    with pytest.raises(ValueError, match="request 1 is not empty"):
        cache.fork(0, 1)
    with pytest.raises(ValueError, match="exceeds capacity_pages 3"):
        cache.fork(0, 2)
    assert state(cache) == before


# roll back, free, reuse


@both_layouts
@pytest.mark.parametrize(
    ("num_tokens", "kept_pages", "last_page_len"), [(1, 3, 1), (2, 2, 4), (5, 2, 1), (10, 0, 0)]
)
def test_roll_back_gives_pages_back_and_rescans_the_tail(
    num_tokens: int, kept_pages: int, last_page_len: int, layout: str
) -> None:
    cache = PagedCache(make_pool(5, summary_layout=layout), 1, 5)
    keys = grow(cache, 0, 10)
    cache.roll_back(0, num_tokens)
    assert cache.num_pages == (kept_pages,)
    assert cache.last_page_len.tolist() == [last_page_len]
    assert cache.pool.pages.num_free == 5 - kept_pages
    assert torch.equal(held_keys(cache, 0), keys[: 10 - num_tokens])
    for stored, true in zip(reference.stored_boxes(cache, 0, 0), reference.boxes(cache, 0, 0), strict=True):
        assert torch.equal(stored, true.reshape(stored.shape))


@both_layouts
def test_roll_back_of_nothing_keeps_the_box(layout: str) -> None:
    cache = PagedCache(make_pool(5, summary_layout=layout), 1, 5)
    grow(cache, 0, 6)
    before = state(cache)
    cache.roll_back(0, 0)
    assert state(cache) == before


@both_layouts
def test_roll_back_in_a_shared_page_leaves_the_other_branch_alone(layout: str) -> None:
    cache = PagedCache(make_pool(6, summary_layout=layout), 2, 8)
    keys = grow(cache, 0, 7)
    cache.fork(0, 1)
    cache.roll_back(1, 2)
    assert cache.physical_pages(1)[1] != cache.physical_pages(0)[1]
    assert torch.equal(held_keys(cache, 0), keys)
    assert torch.equal(held_keys(cache, 1), keys[:5])
    assert_boxes(cache, 0, keys)
    assert_boxes(cache, 1, keys[:5])


@pytest.mark.parametrize("num_tokens", [-1, 7])
def test_roll_back_refuses(num_tokens: int) -> None:
    cache = PagedCache(make_pool(5), 1, 5)
    grow(cache, 0, 6)
    before = state(cache)
    with pytest.raises(ValueError, match=f"cannot drop {num_tokens} of 6 tokens"):
        cache.roll_back(0, num_tokens)
    assert state(cache) == before


@both_layouts
def test_free_gives_back_what_nobody_else_holds(layout: str) -> None:
    cache = PagedCache(make_pool(6, summary_layout=layout), 3, 9)
    grow(cache, 0, 9)
    cache.fork(0, 2)
    grow(cache, 2, 1)
    assert cache.pool.pages.num_free == 2
    cache.free(0)
    assert cache.pool.pages.num_free == 3
    assert cache.num_pages == (0, 0, 3)
    assert cache.kv_indptr.tolist() == [0, 0, 0, 3]
    assert not any(cache.pool.pages.is_shared(page) for page in cache.physical_pages(2))
    cache.free(0)
    cache.free(2)
    assert cache.pool.pages.num_free == 6
    assert cache.last_page_len.tolist() == [0, 0, 0]


@both_layouts
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_physical_page_again_has_a_summary_as_if_new(dtype: str, layout: str) -> None:
    case = make_cache([4], 4, 2, 8, DTYPES[dtype], seed=0, spare_pages=0, summary_layout=layout)
    cache, (page,) = case.cache, case.cache.physical_pages(0)
    held = cache.summary_blocks(0)
    assert all(bound.isfinite().all() for bound in cache.bounds(0))
    cache.free(0)
    cache.extend([2])
    assert cache.physical_pages(0) == (page,)
    assert cache.summary_blocks(0) == held
    low, high = cache.bounds(0)
    assert (low == INF).all()
    assert (high == -INF).all()
    generator = torch.Generator().manual_seed(1)
    keys = gaussian((2, 2, 8), DTYPES[dtype], generator)
    fill(Case(cache, keys, keys, torch.tensor([0, 2], dtype=torch.int32)))
    assert_boxes(cache, 0, keys)


# the transposed summary's blocks


def test_blocks_by_hand() -> None:
    """Pages of one token: 65 pages hold two blocks, 64 one; a full table row starts where the last ends."""
    pool = PagePool(200, 2, 1, 8, FP32, summary_layout="transposed", num_summary_blocks=5)
    pool.summary.blocks.reorder_free([3, 0, 4, 1, 2])
    cache = PagedCache(pool, 3, 200)
    cache.extend([65, 0, 64])
    assert [cache.summary_blocks(r) for r in range(3)] == [(3, 0), (), (4,)]
    assert cache.summary_table.tolist() == [3, 0, 4, 0, 0, 0]
    assert cache.summary_indptr.tolist() == [0, 2, 2, 3]
    assert cache.summary_table.dtype == cache.summary_indptr.dtype == torch.int32
    cache.extend([1, 1, 1])
    assert cache.summary_table[:5].tolist() == [3, 0, 1, 4, 2]
    assert cache.summary_indptr.tolist() == [0, 2, 3, 5]
    cache.roll_back(0, 2)
    assert cache.summary_table[:4].tolist() == [3, 1, 4, 2]
    with pytest.raises(ValueError, match="2 summary blocks wanted, 1 of 5 free"):
        cache.extend([1, 64, 0])


def test_a_box_lies_in_its_pages_slot() -> None:
    pool = PagePool(70, 2, 1, 8, FP32, summary_layout="transposed")
    cache = PagedCache(pool, 1, 70)
    keys = grow(cache, 0, 70)
    for page in (0, 1, 63, 64, 69):
        block = cache.summary_table[cache.summary_indptr[0] + page // 64]
        for bound in (0, 1):
            assert torch.equal(pool.summary.data[block, :, :, bound, page % 64], keys[page])
    assert (pool.summary.data[cache.summary_table[1], :, :, 0, 6:] == INF).all()


def test_a_reopened_slot_is_empty_though_its_page_lay_elsewhere() -> None:
    cache = PagedCache(make_pool(9, summary_layout="transposed"), 1, 9)
    keys = grow(cache, 0, 10)
    cache.roll_back(0, 6)
    cache.extend([5])
    low, high = cache.bounds(0)
    assert torch.equal(low[0], keys[:4].amin(0))
    assert (low[1:] == INF).all()
    assert (high[1:] == -INF).all()


def test_a_full_shared_page_in_a_partial_block_copies_the_block_alone() -> None:
    cache = PagedCache(make_pool(9, summary_layout="transposed"), 2, 9)
    keys = grow(cache, 0, 8)
    cache.fork(0, 1)
    new = grow(cache, 1, 1, seed=3)
    assert cache.physical_pages(1)[:2] == cache.physical_pages(0)
    assert cache.summary_blocks(1) != cache.summary_blocks(0)
    assert_boxes(cache, 0, keys)
    assert_boxes(cache, 1, torch.cat([keys, new]))


def test_full_blocks_stay_shared() -> None:
    pool = PagePool(200, 2, 1, 8, FP32, summary_layout="transposed")
    cache = PagedCache(pool, 2, 200)
    keys = grow(cache, 0, 64 + 3)
    cache.fork(0, 1)
    new = grow(cache, 1, 1, seed=4)
    assert cache.summary_blocks(1)[0] == cache.summary_blocks(0)[0]
    assert cache.summary_blocks(1)[1] != cache.summary_blocks(0)[1]
    cache.roll_back(0, 3)
    grown = grow(cache, 0, 1, seed=5)
    assert_boxes(cache, 0, torch.cat([keys[:64], grown]))
    assert_boxes(cache, 1, torch.cat([keys, new]))


def test_a_block_copy_that_finds_none_changes_nothing() -> None:
    cache = PagedCache(make_pool(9, summary_layout="transposed", num_summary_blocks=1), 2, 9)
    grow(cache, 0, 6)
    cache.fork(0, 1)
    before = state(cache)
    with pytest.raises(ValueError, match="1 summary blocks wanted, 0 of 1 free"):
        cache.extend([0, 1])
    with pytest.raises(ValueError, match="shared summary block must be copied and no summary block"):
        cache.roll_back(1, 1)
    assert state(cache) == before
    cache.roll_back(1, 2)  # cut at a page's edge: nothing is written
    assert cache.summary_blocks(0) == cache.summary_blocks(1)


def test_the_default_number_of_blocks() -> None:
    pool = make_pool(65, summary_layout="transposed")
    assert pool.summary.data.shape == (2 + SPARE_BLOCKS, 2, 8, 2, SUMMARY_BLOCK_PAGES)
    assert make_pool(65).summary.blocks.num_free == 0


# the device's tensors


def dense_rows(cache: PagedCache) -> list[list[int]]:
    """The rows of dense_table."""
    starts = cache.kv_indptr.tolist()
    return [cache.dense_table[a:b].tolist() for a, b in pairwise(starts)]


def three_pages_a_region(
    monkeypatch: pytest.MonkeyPatch, pages: Sequence[int], batch_size: int
) -> PagedCache:
    """Nine pages of 2 * 4 * 8 * 4 = 256 bytes, handed out as `pages`; regions of 3 * 256 bytes."""
    monkeypatch.setattr(paged_cache, "REGION_BYTES", 768)
    pool = make_pool(9)
    pool.reorder_free(pages)
    return PagedCache(pool, batch_size, 9)


def test_a_walk_goes_region_by_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are pages 0 to 2, 3 to 5, 6 to 8; within one the logical order stays, the last page is last."""
    cache = three_pages_a_region(monkeypatch, [7, 1, 4, 0, 6, 3, 2, 8, 5], 2)
    cache.extend([25, 5])  # pages 7 1 4 0 6 3 2 and 8 5
    assert cache.physical_pages(0) == (7, 1, 4, 0, 6, 3, 2)
    assert dense_rows(cache) == [[1, 0, 4, 3, 7, 6, 2], [8, 5]]


def test_one_more_page_follows_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = three_pages_a_region(monkeypatch, [7, 1, 8, 0, 6, 3, 2, 4, 5], 1)
    cache.extend([10])
    assert dense_rows(cache) == [[1, 7, 8]]
    cache.dense_table[:3] = -1  # what a write from the start would mend
    cache.extend([1])
    cache.extend([3])
    assert dense_rows(cache) == [[-1, -1, -1, 0]]
    cache.extend([4])
    assert dense_rows(cache) == [[-1, -1, -1, 0, 6]]


def test_a_prompt_in_chunks_is_walked_region_by_region(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = three_pages_a_region(monkeypatch, [7, 1, 8, 0, 6, 3, 2, 4, 5], 1)
    cache.extend([16])
    assert dense_rows(cache) == [[1, 7, 8, 0]]
    cache.extend([16])  # 6 3 2 and, last, 4
    assert dense_rows(cache) == [[1, 0, 2, 3, 7, 8, 6, 4]]


def test_a_shrinking_walk_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = three_pages_a_region(monkeypatch, [7, 1, 4, 0, 6, 3, 2, 8, 5], 1)
    cache.extend([25])
    cache.roll_back(0, 5)  # 7 1 4 0 6: the last page is another
    assert dense_rows(cache) == [[1, 0, 4, 7, 6]]
    cache.roll_back(0, 1)  # within the last page
    assert dense_rows(cache) == [[1, 0, 4, 7, 6]]
    cache.free(0)
    assert dense_rows(cache) == [[]]


def test_a_copied_tail_takes_its_place_in_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = three_pages_a_region(monkeypatch, [7, 1, 4, 0, 6, 3, 2, 8, 5], 2)
    cache.extend([14, 0])
    cache.fork(0, 1)
    assert dense_rows(cache) == [[1, 4, 7, 0]] * 2
    cache.extend([1, 0])
    assert dense_rows(cache) == [[1, 4, 7, 6], [1, 4, 7, 0]]


@pytest.mark.parametrize(
    ("page_bytes", "regions"),
    [
        (512 << 10, {0: 0, 3: 0, 4: 1, 7: 1, 8: 2}),
        (6144, {341: 0, 342: 1, 682: 1, 683: 2}),  # 342 pages are 2 MiB + 4096, 683 are 4 MiB + 2048
        (3 << 20, {0: 0, 1: 1, 2: 3}),
    ],
)
def test_a_region_begins_at_a_multiple_of_its_bytes(page_bytes: int, regions: dict[int, int]) -> None:
    """Of 2 MiB, whatever a page takes; a page belongs where it begins."""
    pool = make_pool(1)
    pool.page_bytes, pool.region_bytes = page_bytes, 2 << 20
    assert {page: pool.region(page) for page in regions} == regions


def test_the_bytes_of_a_page() -> None:
    pool = make_pool(3)
    assert pool.page_bytes == pool.k[1].nbytes == 2 * 4 * 8 * 4


def test_extend_writes_new_entries_only() -> None:
    cache = PagedCache(make_pool(30), 3, 30)
    cache.extend([4, 7, 3])
    cache.block_table[:4] = -1  # what a write from the start would mend
    cache.extend([0, 1, 1])  # both fill their pages: no entry is new
    assert cache.block_table[:4].tolist() == [-1] * 4
    assert cache.last_page_len.tolist() == [4, 4, 4]
    cache.extend([0, 0, 1])
    assert cache.block_table[:5].tolist() == [-1] * 4 + [cache.physical_pages(2)[1]]
    cache.extend([0, 1, 0])  # request 2 moves up
    assert cache.block_table[:3].tolist() == [-1] * 3
    assert cache.block_table[3:6].tolist() == [cache.physical_pages(1)[2], *cache.physical_pages(2)]
    assert cache.kv_indptr.tolist() == [0, 1, 4, 6]


# the pool


def test_two_caches_draw_on_one_pool() -> None:
    pool = make_pool(4)
    first, second = PagedCache(pool, 1, 4), PagedCache(pool, 1, 4)
    first.extend([8])
    second.extend([5])
    assert not set(first.physical_pages(0)) & set(second.physical_pages(0))
    with pytest.raises(ValueError, match="1 pages wanted, 0 of 4 free"):
        first.extend([1])


def test_reorder_free() -> None:
    pool = make_pool(5)
    taken = pool.pages.take(2)
    order = [page for page in (4, 2, 3, 0, 1) if page not in taken]
    pool.reorder_free(order)
    assert [pool.pages.take(1)[0] for _ in range(3)] == order
    for wrong in ([0], [0, 1, 2, 3, 4]):
        with pytest.raises(ValueError, match="not a permutation"):
            pool.reorder_free(wrong)


def test_the_pool_states_its_shape() -> None:
    pool = PagePool(6, 2, 4, 8, torch.float16, summary_dtype=FP32, num_workers=3)
    assert (pool.num_pages, pool.num_kv_heads, pool.page_size, pool.head_dim) == (6, 2, 4, 8)
    assert pool.k.shape == pool.v.shape == (6, 2, 4, 8)
    assert pool.summary.data.shape == (6, 2, 2, 8)
    assert (pool.k.dtype, pool.summary.dtype, pool.num_workers) == (torch.float16, FP32, 3)
    assert make_pool(1).num_workers == default_num_workers(torch.device("cpu")) == torch.get_num_threads()


@pytest.mark.parametrize(
    ("page_size", "kv_dtype", "summary_dtype", "message"),
    [
        (0, FP32, None, "page_size 0 is outside 1..128"),
        (129, FP32, None, "page_size 129 is outside 1..128"),
        (16, FP32, torch.float16, "cannot hold every"),
        (16, torch.float16, torch.bfloat16, "cannot hold every"),
    ],
)
def test_the_pool_refuses(
    page_size: int, kv_dtype: torch.dtype, summary_dtype: torch.dtype | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PagePool(2, 1, page_size, 8, kv_dtype, summary_dtype=summary_dtype)


@both_layouts
def test_a_nan_key_reaches_the_rescanned_box(layout: str) -> None:
    cache = PagedCache(make_pool(1, summary_layout=layout), 1, 1)
    grow(cache, 0, 3)
    cache.pool.k[0, 1, 1, 5] = float("nan")
    cache.rescan(0, 0)
    low, high = cache.bounds(0)
    assert low.isneginf().nonzero().tolist() == high.isposinf().nonzero().tolist() == [[0, 1, 5]]


def test_the_pool_refuses_an_unknown_layout() -> None:
    with pytest.raises(ValueError, match="summary_layout 'rowwise' is none of paired, transposed"):
        make_pool(2, summary_layout="rowwise")


def test_pieces_by_hand() -> None:
    copied: list[tuple[int, int]] = []
    pieces = Pieces("page", 5, lambda src, dst: copied.append((src, dst)))
    held: list[int] = []
    assert pieces.hold(held, 2, 0) == 0
    assert held == [0, 1]
    pieces.share([1])
    assert pieces.most_needed(held, 3, 1) == 2
    assert pieces.hold(held, 3, 1) == 1
    assert (held, copied, pieces.owners) == ([0, 2, 3], [(1, 2)], (1, 1, 1, 1, 0))
    assert pieces.hold(held, 3, 2) == 3  # nothing shared, nothing new
    pieces.trim(held, 1)
    assert (held, pieces.num_free) == ([0], 3)
    with pytest.raises(ValueError, match="4 pages wanted, 3 of 5 free"):
        pieces.take(4)


# any sequence of operations against a naive model


class CacheMachine(RuleBasedStateMachine):
    """Requests as plain lists of token numbers; the cache stores each number in every element of its key."""

    PAGES, REQUESTS, PAGE_SIZE, LAYOUT, BLOCKS, UNIT = 9, 3, 3, "paired", 0, 1

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.pool = PagePool(
            self.PAGES,
            1,
            self.PAGE_SIZE,
            2,
            FP32,
            summary_layout=self.LAYOUT,
            num_summary_blocks=self.BLOCKS,
        )
        generator = torch.Generator().manual_seed(seed)
        for pieces in (self.pool.pages, self.pool.summary.blocks):
            pieces.reorder_free(torch.randperm(pieces.num_free, generator=generator).tolist())
        self.cache = PagedCache(self.pool, self.REQUESTS, self.PAGES)
        self.tokens: list[list[int]] = [[] for _ in range(self.REQUESTS)]
        self.next_token = 1

    @rule(counts=st.lists(st.integers(0, 5), min_size=3, max_size=3))
    def extend(self, counts: list[int]) -> None:
        counts = [self.UNIT * count for count in counts]
        before = state(self.cache)
        try:
            self.cache.extend(counts)
        except ValueError:
            assert state(self.cache) == before
            return
        for request, count in enumerate(counts):
            new = torch.arange(self.next_token, self.next_token + count).float()
            write_tail(self.cache, request, new[:, None, None].expand(-1, 1, 2))
            self.tokens[request] += new.int().tolist()
            self.next_token += count

    @rule(source=st.integers(0, 2), branch=st.integers(0, 2))
    def fork(self, source: int, branch: int) -> None:
        before = state(self.cache)
        try:
            self.cache.fork(source, branch)
        except ValueError:
            assert state(self.cache) == before
            assert self.tokens[branch] or self.cache.total_pages + self.cache.num_pages[source] > self.PAGES
            return
        assert not self.tokens[branch]
        self.tokens[branch] = list(self.tokens[source])

    @precondition(lambda self: any(self.tokens))
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([r for r, tokens in enumerate(self.tokens) if tokens]))
        count = data.draw(st.integers(0, len(self.tokens[request])))
        before = state(self.cache)
        try:
            self.cache.roll_back(request, count)
        except ValueError:
            assert 0 in (self.pool.pages.num_free, self.pool.summary.blocks.num_free)
            assert state(self.cache) == before
            return
        del self.tokens[request][len(self.tokens[request]) - count :]

    @rule(request=st.integers(0, 2))
    def free(self, request: int) -> None:
        self.cache.free(request)
        self.tokens[request] = []

    @invariant()
    def mirrors_agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        starts, owners, block_starts, block_owners = [0], [], [0], []
        for request, tokens in enumerate(self.tokens):
            pages = self.cache.block_table[
                starts[-1] : starts[-1] + -(-len(tokens) // self.PAGE_SIZE)
            ].tolist()
            assert tuple(pages) == self.cache.physical_pages(request)
            walk = self.cache.dense_table[starts[-1] : starts[-1] + len(pages)].tolist()
            assert sorted(walk) == sorted(pages)
            assert walk[-1:] == pages[-1:]
            starts.append(starts[-1] + len(pages))
            owners += pages
            tail = len(tokens) - self.PAGE_SIZE * (len(pages) - 1) if pages else 0
            assert self.cache.last_page_len[request] == tail
            if tokens:
                expected = torch.tensor(tokens).float()[:, None, None].expand(-1, 1, 2)
                assert torch.equal(held_keys(self.cache, request), expected)
                assert torch.equal(self.pool.v[pages].transpose(1, 2).flatten(0, 1)[: len(tokens)], expected)
                assert_boxes(self.cache, request, expected)
            blocks = self.cache.summary_blocks(request)
            block_starts.append(block_starts[-1] + len(blocks))
            assert tuple(self.cache.summary_table[block_starts[-2] : block_starts[-1]].tolist()) == blocks
            block_owners += blocks
        assert self.cache.summary_indptr.tolist() == block_starts
        assert self.cache.kv_indptr.tolist() == starts
        assert self.cache.seq_lens == tuple(len(tokens) for tokens in self.tokens)
        assert self.pool.pages.owners == tuple(owners.count(page) for page in range(self.PAGES))
        blocks = self.pool.summary.blocks
        assert blocks.owners == tuple(map(block_owners.count, range(len(blocks.owners))))
        for pieces in (self.pool.pages, blocks):
            assert pieces.num_free == pieces.owners.count(0)


class TransposedMachine(CacheMachine):
    """Short requests: each holds one block, which every fork shares."""

    LAYOUT, BLOCKS = "transposed", 3


class BlocksMachine(CacheMachine):
    """Pages of one token and steps of 16: requests cross blocks of 64 pages, and blocks run out."""

    PAGES, PAGE_SIZE, LAYOUT, BLOCKS, UNIT = 230, 1, "transposed", 6, 16


for machine in (CacheMachine, TransposedMachine, BlocksMachine):
    machine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=25)
TestCacheMachine = CacheMachine.TestCase
TestTransposedMachine = TransposedMachine.TestCase
TestBlocksMachine = BlocksMachine.TestCase


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(0, 50), max_size=5), page_size=st.integers(1, 128))
def test_pages_follow_from_lengths(lengths: list[int], page_size: int) -> None:
    cache = PagedCache(PagePool(260, 1, page_size, 2, FP32), len(lengths), 260)
    assert cache.extend(lengths).tolist() == [sum(lengths[:r]) for r in range(len(lengths) + 1)]
    assert cache.num_pages == tuple(-(-n // page_size) for n in lengths)
    assert cache.total_pages == int(cache.kv_indptr[-1])
    assert len(set(cache.block_table[: cache.total_pages].tolist())) == cache.total_pages
