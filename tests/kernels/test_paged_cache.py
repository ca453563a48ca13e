"""The paged cache's host side: pages, references, copies on write, and the device's mirrors of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from cases import DTYPES, Case, fill, gaussian, make_cache
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from questprof_kernels import reference
from questprof_kernels.paged_cache import PagedCache, PagePool, default_num_workers

INF = float("inf")
FP32 = torch.float32


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
        pool.summary.rescan(page, pool.k[page, :, : slot + 1])


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
    mirrors = [t.tolist() for t in (cache.block_table, cache.kv_indptr, cache.last_page_len)]
    pages = [cache.physical_pages(r) for r in range(cache.batch_size)]
    shared = [pool.is_shared(page) for page in range(pool.num_pages)]
    storage = [t.nan_to_num(7.0).clone() for t in (pool.k, pool.v, pool.summary.data)]
    return cache.seq_lens, pages, mirrors, pool.num_free, shared, [t.tolist() for t in storage]


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
    assert pool.num_free == 6


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


def test_a_copy_on_write_that_finds_no_page_changes_nothing() -> None:
    cache = PagedCache(make_pool(2), 2, 9)
    grow(cache, 0, 6)
    cache.fork(0, 1)
    before = state(cache)
    with pytest.raises(ValueError, match="1 pages wanted, 0 of 2 free"):
        cache.extend([0, 1])
    with pytest.raises(ValueError, match="must be copied and no page is free"):
        cache.roll_back(1, 1)
    assert state(cache) == before


def test_a_roll_back_may_copy_into_a_page_it_drops() -> None:
    cache = PagedCache(make_pool(3), 2, 9)
    keys = grow(cache, 0, 8)
    cache.fork(0, 1)
    grow(cache, 1, 1, seed=1)
    assert cache.pool.num_free == 0
    cache.roll_back(1, 2)
    assert cache.seq_lens == (8, 7)
    assert cache.pool.num_free == 0
    assert torch.equal(held_keys(cache, 1), keys[:7])
    assert torch.equal(held_keys(cache, 0), keys)


# fork and copy on write


def test_fork_shares_pages_until_one_side_writes() -> None:
    cache = PagedCache(make_pool(8), 3, 8)
    old = grow(cache, 0, 6, seed=1)
    cache.fork(0, 2)
    pool = cache.pool
    assert cache.physical_pages(2) == cache.physical_pages(0)
    assert cache.last_page_len.tolist() == [2, 0, 2]
    assert pool.num_free == 6
    assert all(pool.is_shared(page) for page in cache.physical_pages(0))
    box = pool.summary.data[:, cache.physical_pages(0)[1]].clone()
    new = grow(cache, 2, 1, seed=2)
    first, second = cache.physical_pages(0), cache.physical_pages(2)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert pool.is_shared(first[0])
    assert not pool.is_shared(first[1])
    assert not pool.is_shared(second[1])
    assert torch.equal(held_keys(cache, 0), old)
    assert torch.equal(held_keys(cache, 2), torch.cat([old, new]))
    assert torch.equal(pool.summary.data[:, first[1]], box)
    low, high = reference.stored_boxes(cache, 2, 1)
    tail = torch.cat([old[4:], new])[:, 1].double()
    assert torch.equal(low[1], tail.amin(0))
    assert torch.equal(high[1], tail.amax(0))


def test_both_sides_of_a_fork_write_at_once() -> None:
    cache = PagedCache(make_pool(5), 2, 8)
    old = grow(cache, 0, 5, seed=1)
    cache.fork(0, 1)
    cache.extend([1, 1])
    tails = [cache.physical_pages(r)[1] for r in range(2)]
    assert len(set(tails)) == 2
    assert not any(cache.pool.is_shared(page) for page in tails)
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
    assert cache.pool.num_free == 2


def test_extending_by_nothing_copies_nothing() -> None:
    cache = PagedCache(make_pool(4), 2, 8)
    grow(cache, 0, 3)
    cache.fork(0, 1)
    assert cache.extend([0, 0]).tolist() == [0, 0, 0]
    assert cache.physical_pages(0) == cache.physical_pages(1)


def test_fork_refuses() -> None:
    cache = PagedCache(make_pool(8), 3, 3)
    grow(cache, 0, 6)
    grow(cache, 1, 1)
    before = state(cache)
    with pytest.raises(ValueError, match="request 1 is not empty"):
        cache.fork(0, 1)
    with pytest.raises(ValueError, match="exceeds capacity_pages 3"):
        cache.fork(0, 2)
    assert state(cache) == before


# roll back, free, reuse


@pytest.mark.parametrize(
    ("num_tokens", "kept_pages", "last_page_len"), [(1, 3, 1), (2, 2, 4), (5, 2, 1), (10, 0, 0)]
)
def test_roll_back_gives_pages_back_and_rescans_the_tail(
    num_tokens: int, kept_pages: int, last_page_len: int
) -> None:
    cache = PagedCache(make_pool(5), 1, 5)
    keys = grow(cache, 0, 10)
    cache.roll_back(0, num_tokens)
    assert cache.num_pages == (kept_pages,)
    assert cache.last_page_len.tolist() == [last_page_len]
    assert cache.pool.num_free == 5 - kept_pages
    assert torch.equal(held_keys(cache, 0), keys[: 10 - num_tokens])
    for stored, true in zip(reference.stored_boxes(cache, 0, 0), reference.boxes(cache, 0, 0), strict=True):
        assert torch.equal(stored, true.reshape(stored.shape))


def test_roll_back_of_nothing_keeps_the_box() -> None:
    cache = PagedCache(make_pool(5), 1, 5)
    grow(cache, 0, 6)
    before = state(cache)
    cache.roll_back(0, 0)
    assert state(cache) == before


def test_roll_back_in_a_shared_page_leaves_the_other_branch_alone() -> None:
    cache = PagedCache(make_pool(6), 2, 8)
    keys = grow(cache, 0, 7)
    cache.fork(0, 1)
    box = cache.pool.summary.data[:, cache.physical_pages(0)[1]].clone()
    cache.roll_back(1, 2)
    assert cache.physical_pages(1)[1] != cache.physical_pages(0)[1]
    assert torch.equal(cache.pool.summary.data[:, cache.physical_pages(0)[1]], box)
    assert torch.equal(held_keys(cache, 0), keys)
    assert torch.equal(held_keys(cache, 1), keys[:5])
    low, _ = reference.stored_boxes(cache, 1, 0)
    assert torch.equal(low[1], keys[4, 0].double())


@pytest.mark.parametrize("num_tokens", [-1, 7])
def test_roll_back_refuses(num_tokens: int) -> None:
    cache = PagedCache(make_pool(5), 1, 5)
    grow(cache, 0, 6)
    before = state(cache)
    with pytest.raises(ValueError, match=f"cannot drop {num_tokens} of 6 tokens"):
        cache.roll_back(0, num_tokens)
    assert state(cache) == before


def test_free_gives_back_what_nobody_else_holds() -> None:
    cache = PagedCache(make_pool(6), 3, 9)
    grow(cache, 0, 9)
    cache.fork(0, 2)
    grow(cache, 2, 1)
    assert cache.pool.num_free == 2
    cache.free(0)
    assert cache.pool.num_free == 3
    assert cache.num_pages == (0, 0, 3)
    assert cache.kv_indptr.tolist() == [0, 0, 0, 3]
    assert not any(cache.pool.is_shared(page) for page in cache.physical_pages(2))
    cache.free(0)
    cache.free(2)
    assert cache.pool.num_free == 6
    assert cache.last_page_len.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_physical_page_again_has_a_summary_as_if_new(dtype: str) -> None:
    case = make_cache([4], 4, 2, 8, DTYPES[dtype], seed=0, spare_pages=0)
    cache, (page,) = case.cache, case.cache.physical_pages(0)
    assert cache.pool.summary.data[:, page].isfinite().all()
    cache.free(0)
    cache.extend([2])
    assert cache.physical_pages(0) == (page,)
    low, high = cache.pool.summary.bounds(torch.tensor([page]))
    assert (low == INF).all()
    assert (high == -INF).all()
    generator = torch.Generator().manual_seed(1)
    keys = gaussian((2, 2, 8), DTYPES[dtype], generator)
    fill(Case(cache, keys, keys, torch.tensor([0, 2], dtype=torch.int32)))
    low, high = cache.pool.summary.bounds(torch.tensor([page]))
    assert torch.equal(low[0], keys.amin(0))
    assert torch.equal(high[0], keys.amax(0))


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
    taken = pool.take(2)
    order = [page for page in (4, 2, 3, 0, 1) if page not in taken]
    pool.reorder_free(order)
    assert [pool.take(1)[0] for _ in range(3)] == order
    for wrong in ([0], [0, 1, 2, 3, 4]):
        with pytest.raises(ValueError, match="not a permutation"):
            pool.reorder_free(wrong)


def test_the_pool_states_its_shape() -> None:
    pool = PagePool(6, 2, 4, 8, torch.float16, summary_dtype=FP32, num_workers=3)
    assert (pool.num_pages, pool.num_kv_heads, pool.page_size, pool.head_dim) == (6, 2, 4, 8)
    assert pool.k.shape == pool.v.shape == (6, 2, 4, 8)
    assert pool.summary.data.shape == (2, 6, 2, 8)
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


def test_a_nan_key_reaches_the_rescanned_box() -> None:
    pool = make_pool(1)
    keys = torch.randn(2, 3, 8)
    keys[1, 1, 5] = float("nan")
    pool.summary.rescan(0, keys)
    low, high = pool.summary.bounds(torch.tensor([0]))
    assert low.isnan().nonzero().tolist() == high.isnan().nonzero().tolist() == [[0, 1, 5]]


# any sequence of operations against a naive model


class CacheMachine(RuleBasedStateMachine):
    """Requests as plain lists of token numbers; the cache stores each number in every element of its key."""

    PAGES, REQUESTS, PAGE_SIZE = 9, 3, 3

    @initialize(order=st.permutations(range(9)))
    def start(self, order: list[int]) -> None:
        self.pool = PagePool(self.PAGES, 1, self.PAGE_SIZE, 2, FP32)
        self.pool.reorder_free(order)
        self.cache = PagedCache(self.pool, self.REQUESTS, self.PAGES)
        self.tokens: list[list[int]] = [[] for _ in range(self.REQUESTS)]
        self.next_token = 1

    @rule(counts=st.lists(st.integers(0, 5), min_size=3, max_size=3))
    def extend(self, counts: list[int]) -> None:
        before = state(self.cache)
        try:
            self.cache.extend(counts)
        except ValueError:
            assert state(self.cache) == before
            return
        for request, count in enumerate(counts):
            for i in range(count):
                position = len(self.tokens[request])
                page = self.cache.physical_pages(request)[position // self.PAGE_SIZE]
                slot = position % self.PAGE_SIZE
                self.pool.k[page, :, slot] = self.pool.v[page, :, slot] = float(self.next_token)
                self.pool.summary.rescan(page, self.pool.k[page, :, : slot + 1])
                self.tokens[request].append(self.next_token)
                self.next_token += 1 + i % 2

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
            assert self.pool.num_free == 0
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
        starts, owners = [0], []
        for request, tokens in enumerate(self.tokens):
            pages = self.cache.block_table[
                starts[-1] : starts[-1] + -(-len(tokens) // self.PAGE_SIZE)
            ].tolist()
            assert tuple(pages) == self.cache.physical_pages(request)
            starts.append(starts[-1] + len(pages))
            owners += pages
            tail = len(tokens) - self.PAGE_SIZE * (len(pages) - 1) if pages else 0
            assert self.cache.last_page_len[request] == tail
            for logical, page in enumerate(pages):
                own = tokens[logical * self.PAGE_SIZE : (logical + 1) * self.PAGE_SIZE]
                assert self.pool.k[page, 0, : len(own), 0].tolist() == own
                assert self.pool.v[page, 0, : len(own), 1].tolist() == own
                assert self.pool.summary.data[0, page, :, 0].tolist() == [min(own), max(own)]
        assert self.cache.kv_indptr.tolist() == starts
        assert self.cache.seq_lens == tuple(len(tokens) for tokens in self.tokens)
        assert self.pool.num_free == self.PAGES - len(set(owners))
        for page in set(owners):
            assert self.pool.is_shared(page) == (owners.count(page) > 1)


CacheMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)
TestCacheMachine = CacheMachine.TestCase


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(0, 50), max_size=5), page_size=st.integers(1, 128))
def test_pages_follow_from_lengths(lengths: list[int], page_size: int) -> None:
    cache = PagedCache(PagePool(260, 1, page_size, 2, FP32), len(lengths), 260)
    assert cache.extend(lengths).tolist() == [sum(lengths[:r]) for r in range(len(lengths) + 1)]
    assert cache.num_pages == tuple(-(-n // page_size) for n in lengths)
    assert cache.total_pages == int(cache.kv_indptr[-1])
    assert len(set(cache.block_table[: cache.total_pages].tolist())) == cache.total_pages
