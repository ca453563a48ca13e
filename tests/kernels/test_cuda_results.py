"""What the CUDA stages write: against float64, both merges of splits, planted faults.

On a GPU natively, against Triton too and in graphs; without one the same sources run on the CPU
(cuda_host.py), over fewer kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cuda_host
import pytest
import torch
from cases import (
    DTYPES,
    Case,
    assert_close,
    eager_score,
    make_cache,
    make_outputs,
    make_page_ids,
    make_q,
    make_select_indptr,
)
from questprof_kernels import append, cuda_module, cuda_stages, reference
from questprof_kernels.cuda_arguments import AttentionArguments
from questprof_kernels.paged_cache import PagedCache, PagePool
from questprof_kernels.plan import SUMMARY_LAYOUTS, BlockPlan
from triton_launch import attended, densely, eager, selected

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
NUM_SELECTED = 12
SPLITS = (1, 2, 3, 5, 33) if ON_GPU else (1, 3, 33)
MANY = 1000
"""Blocks a multiprocessor, where all of them are to be taken for resident."""

pytestmark = [] if ON_GPU else [cuda_host.needs_compiler]


@pytest.fixture(autouse=True)
def _where_they_run(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> None:
    if not ON_GPU:
        cuda_host.install(monkeypatch, libraries, blocks_per_sm=MANY)


@dataclass(frozen=True)
class Kind:
    """One specialisation of the stages."""

    dtype: str
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int

    def __str__(self) -> str:
        heads = f"{self.num_qo_heads}:{self.num_kv_heads}"
        return f"{self.dtype}-{heads}-{self.head_dim}-page{self.page_size}"

    def case(self, lengths: Sequence[int] = (), summary_layout: str = "paired", seed: int = 1) -> Case:
        """A shuffled cache, NaN in every slot without a token; by default ragged with an empty request."""
        size = self.page_size
        return make_cache(
            lengths or (0, 1, size - 1, size, size + 1, 300, 777),
            size,
            self.num_kv_heads,
            self.head_dim,
            DTYPES[self.dtype],
            seed,
            DEVICE,
            summary_layout=summary_layout,
            append=append.append if ON_GPU else None,
        )


KINDS = (
    Kind("fp16", 8, 8, 128, 16),
    Kind("bf16", 8, 8, 128, 8),
    Kind("fp16", 4, 4, 64, 64),
    Kind("bf16", 8, 4, 128, 16),
    Kind("bf16", 9, 3, 64, 8),
    Kind("fp16", 8, 2, 128, 64),
    Kind("bf16", 16, 2, 64, 16),
    Kind("fp16", 8, 1, 128, 8),
)
"""Every dtype, head_dim and page size with groups of 1, 2, 3, 4 and 8."""
ONE, GROUP = KINDS[0], KINDS[5]
TRIED = KINDS if ON_GPU else (KINDS[0], KINDS[1], KINDS[4], KINDS[5])
each_kind = pytest.mark.parametrize("kind", TRIED, ids=str)


def score(q: torch.Tensor, cache: PagedCache) -> torch.Tensor:
    """Scores [num_qo_heads, total_pages]; NaN where nothing was written."""
    scores = torch.full((q.shape[1], cache.total_pages), float("nan"), device=DEVICE)
    cuda_stages.score(q, cache, scores)
    return scores


def select(
    scores: torch.Tensor, cache: PagedCache, select_indptr: torch.Tensor, take_tail: bool = True
) -> torch.Tensor:
    """Page ids; -1 where nothing was written."""
    ids = torch.full((scores.shape[0], int(select_indptr[-1])), -1, dtype=torch.int32, device=DEVICE)
    cuda_stages.select(scores, cache, select_indptr, ids, take_tail)
    return ids


def attend(
    q: torch.Tensor,
    cache: PagedCache,
    ids: torch.Tensor,
    select_indptr: torch.Tensor,
    plan: BlockPlan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) with a scratch of its own."""
    plan = plan or cuda_stages.attend_plan(q, cache, ids)
    out, lse = make_outputs(q)
    scratch = torch.zeros(plan.scratch_floats, device=DEVICE)
    cuda_stages.attend(q, cache, ids, select_indptr, out, lse, scratch, plan=plan)
    return out, lse


def dense(
    q: torch.Tensor, cache: PagedCache, plan: BlockPlan | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) with a scratch of its own."""
    plan = plan or cuda_stages.dense_plan(q, cache)
    out, lse = make_outputs(q)
    scratch = torch.zeros(plan.scratch_floats, device=DEVICE)
    cuda_stages.dense(q, cache, out, lse, scratch, plan=plan)
    return out, lse


def select_attend(
    scores: torch.Tensor,
    cache: PagedCache,
    select_indptr: torch.Tensor,
    q: torch.Tensor,
    take_tail: bool = True,
    plan: BlockPlan | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(page ids, out, lse) of the fused launch."""
    ids = torch.full((q.shape[1], int(select_indptr[-1])), -1, dtype=torch.int32, device=DEVICE)
    plan = plan or cuda_stages.attend_plan(q, cache, ids)
    out, lse = make_outputs(q)
    scratch = torch.zeros(plan.scratch_floats, device=DEVICE)
    cuda_stages.select_attend(
        scores, cache, select_indptr, ids, take_tail, q, out, lse, scratch, plan=plan, dependent=False
    )
    return ids, out, lse


def check(
    case: Case,
    q: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    *picks: torch.Tensor,
    others: Sequence[torch.Tensor] = (),
) -> None:
    """(out, lse) of every row over its picks, or all pages, against float64 and what `others` gave.

    The error of eager code in the same dtype is the measure.
    """
    exact = reference.attend(q, case.cache, *picks) if picks else reference.dense(q, case.cache)
    plain = eager(case, q, *picks)
    for name, wanted in (("float64", exact), ("others", others)):
        for ours, measure, theirs, what in zip(outputs, plain, wanted, ("out", "lse"), strict=False):
            assert_close(ours, measure, theirs.double(), q.dtype, f"{what} against {name}")


def spoil_unselected(case: Case, ids: torch.Tensor, select_indptr: torch.Tensor) -> None:
    """NaN into K and V of every page that no query head of a KV head's group selected."""
    pool, bounds = case.cache.pool, select_indptr.tolist()
    by_head = ids.reshape(pool.num_kv_heads, -1, bounds[-1])
    for request, num_pages in enumerate(case.cache.num_pages):
        physical = torch.tensor(case.cache.physical_pages(request), dtype=torch.long)
        for kv_head in range(pool.num_kv_heads):
            chosen = by_head[kv_head, :, bounds[request] : bounds[request + 1]].unique().tolist()
            left = [page for page in range(num_pages) if page not in set(chosen)]
            for storage in (pool.k, pool.v):
                storage[physical[left].to(DEVICE), kv_head] = float("nan")


# Every stage, against float64 and against Triton.


@each_kind
@pytest.mark.parametrize("layout", SUMMARY_LAYOUTS)
def test_scores(kind: Kind, layout: str) -> None:
    case = kind.case(summary_layout=layout)
    q = make_q(case, kind.num_qo_heads, 2)
    scores = score(q, case.cache)
    assert_close(scores, eager_score(case, q), reference.score(q, case.cache), torch.float32, layout)


@each_kind
def test_attention_over_selected_pages_and_over_all(kind: Kind) -> None:
    case = kind.case()
    q = make_q(case, kind.num_qo_heads, 3)
    select_indptr = make_select_indptr(case.cache, NUM_SELECTED)
    ids = make_page_ids(case.cache, kind.num_qo_heads, select_indptr, 4)
    full = dense(q, case.cache)
    table = case.cache.block_table.clone()
    assert not torch.equal(case.cache.dense_table, table)
    case.cache.block_table.zero_()  # pages are walked as the dense table has them
    assert torch.equal(dense(q, case.cache)[0], full[0])
    case.cache.block_table.copy_(table)
    check(case, q, full, others=densely(q, case.cache) if ON_GPU else ())
    spoil_unselected(case, ids, select_indptr)
    case.cache.dense_table.zero_()  # selected pages are looked up in logical order
    sparse = attend(q, case.cache, ids, select_indptr)
    by_triton = attended(q, case.cache, ids, select_indptr) if ON_GPU else ()
    check(case, q, sparse, ids, select_indptr, others=by_triton)


@each_kind
@pytest.mark.parametrize("take_tail", [True, False])
def test_the_fused_launch_is_select_then_attend(kind: Kind, take_tail: bool) -> None:
    case = kind.case()
    q = make_q(case, kind.num_qo_heads, 5)
    select_indptr = make_select_indptr(case.cache, NUM_SELECTED)
    scores = score(q, case.cache)
    ids = select(scores, case.cache, select_indptr, take_tail)
    if ON_GPU:
        assert torch.equal(ids, selected(scores, case.cache, select_indptr, take_tail))
    assert torch.equal(ids.cpu(), reference.select(scores.cpu(), case.cache, select_indptr, take_tail))
    spoil_unselected(case, ids, select_indptr)
    fused_ids, *fused = select_attend(scores, case.cache, select_indptr, q, take_tail)
    assert torch.equal(fused_ids, ids)
    apart = attend(q, case.cache, ids, select_indptr)
    check(case, q, fused, ids, select_indptr, others=apart)


def _in_front(scores: torch.Tensor) -> torch.Tensor:
    """The best pages in a row, where one warp holds them."""
    scores[:, :100] += 100.0
    return scores


def _every_fifth(scores: torch.Tensor) -> torch.Tensor:
    """As many of the best in every stretch of pages."""
    scores[:, ::5] += 100.0
    return scores


@pytest.mark.parametrize("kind", [kind for kind in TRIED if kind.page_size <= 16], ids=str)
@pytest.mark.parametrize("where", [torch.clone, _in_front, _every_fifth, torch.zeros_like])
@pytest.mark.parametrize("num_selected", [20, 90] if ON_GPU else [90])
def test_what_the_fused_launch_asks_for_early_is_of_the_selection(
    kind: Kind, where: Callable[[torch.Tensor], torch.Tensor], num_selected: int
) -> None:
    """Wherever the best pages lie, each is attended to once and no other is read."""
    size = kind.page_size
    case = kind.case((530 * size - 3, 33 * size) if ON_GPU else (130 * size - 3, 33 * size))
    q = make_q(case, kind.num_qo_heads, 7)
    select_indptr = make_select_indptr(case.cache, num_selected)
    scores = where(torch.randn((kind.num_qo_heads, case.cache.total_pages), device=DEVICE))
    ids = select(scores, case.cache, select_indptr)
    spoil_unselected(case, ids, select_indptr)
    for num_splits in (0, 3):
        page_ids = torch.empty_like(ids)
        plan = cuda_stages.attend_plan(q, case.cache, page_ids, num_splits=num_splits)
        fused_ids, *fused = select_attend(scores, case.cache, select_indptr, q, plan=plan)
        assert torch.equal(fused_ids, ids)
        check(case, q, fused, ids, select_indptr)


def _early(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """Let the host take the first request for one of `pages` pages, as a graph does that has grown old."""
    make = cuda_stages._attention_arguments

    def told(*arguments: object) -> AttentionArguments:
        made = make(*arguments)  # type: ignore[arg-type]
        made.early_pages = pages
        return made

    monkeypatch.setattr(cuda_stages, "_attention_arguments", told)


@pytest.mark.parametrize("kind", [ONE, KINDS[1], KINDS[4], GROUP], ids=str)
@pytest.mark.parametrize("length", [1, 40, 48, 777])
@pytest.mark.parametrize("beyond", [-3, -1, 0, 1, 4])
def test_what_dense_asks_for_before_lengths_are_known(
    kind: Kind, length: int, beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the host believes, what counts is the length on the device."""
    case = kind.case((length, 50))
    q = make_q(case, kind.num_qo_heads, 31)
    _early(monkeypatch, max(0, case.cache.num_pages[0] + beyond))
    check(case, q, dense(q, case.cache, cuda_stages.dense_plan(q, case.cache, num_splits=3)))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("where", [torch.clone, _in_front])
def test_pages_beyond_the_registers_are_read_again(
    slots: int, where: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 threads that keep one key, or two, are given 1,100 pages, and 40 that they could keep."""
    monkeypatch.setattr(cuda_stages, "MOST_SLOTS", slots)
    kind = next(kind for kind in KINDS if kind.page_size == 8)
    case = kind.case((1100 * 8 - 3, 40 * 8))
    q = make_q(case, kind.num_qo_heads, 7)
    select_indptr = make_select_indptr(case.cache, 30)
    scores = where(torch.randn((kind.num_qo_heads, case.cache.total_pages), device=DEVICE))
    ids = reference.select(scores.cpu(), case.cache, select_indptr)
    assert torch.equal(select(scores, case.cache, select_indptr).cpu(), ids)
    fused_ids, *fused = select_attend(scores, case.cache, select_indptr, q)
    assert torch.equal(fused_ids.cpu(), ids)
    check(case, q, fused, fused_ids, select_indptr)


@pytest.mark.parametrize("kind", [ONE, KINDS[1], GROUP], ids=str)
def test_a_block_table_without_room_in_shared_memory(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 8192 pages it is read where it lies; here there is room for none."""
    monkeypatch.setattr(cuda_stages, "MOST_INDICES", 0)
    case = kind.case()
    q = make_q(case, kind.num_qo_heads, 8)
    select_indptr = make_select_indptr(case.cache, NUM_SELECTED)
    scores = score(q, case.cache)
    ids, *fused = select_attend(scores, case.cache, select_indptr, q)
    assert torch.equal(ids.cpu(), reference.select(scores.cpu(), case.cache, select_indptr))
    spoil_unselected(case, ids, select_indptr)
    check(case, q, fused, ids, select_indptr)


def test_rows_of_q_and_out_may_lie_apart() -> None:
    case = ONE.case()
    wide = torch.full((7, ONE.num_qo_heads, 2, 128), float("nan"), dtype=torch.float16, device=DEVICE)
    q, out = wide[:, :, 0], torch.full_like(wide, float("nan"))[:, :, 1]
    q.copy_(make_q(case, ONE.num_qo_heads, 6))
    _, lse = make_outputs(q)
    scratch = torch.zeros(cuda_stages.dense_plan(q, case.cache).scratch_floats, device=DEVICE)
    cuda_stages.dense(q, case.cache, out, lse, scratch)
    check(case, q, (out, lse))


# Splits: whether blocks may wait for one another or not, the result is the same.


@pytest.fixture(params=["waiting", "arriving"])
def merging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, libraries: Path) -> str:
    """How splits are merged: by blocks that wait for one another, or by the last block to arrive."""
    if request.param == "arriving" and not ON_GPU:
        cuda_host.install(monkeypatch, libraries, blocks_per_sm=0)
    elif request.param == "arriving":
        # A property, so that what a kernel has remembered does not count.
        monkeypatch.setattr(cuda_module.Kernel, "blocks_per_sm", property(lambda _: 0))
    return str(request.param)


@pytest.mark.usefixtures("merging")
@pytest.mark.parametrize(
    ("kind", "lengths", "num_splits"),
    [
        *((kind, (777, 0, 40), num_splits) for kind in (ONE, GROUP) for num_splits in SPLITS),
        *(((KINDS[2], (4000,), 32),) if ON_GPU else ()),  # as many splits as may wait, on 128 multiprocessors
    ],
    ids=str,
)
def test_any_number_of_splits(kind: Kind, lengths: tuple[int, ...], num_splits: int) -> None:
    """33 are more than may wait, and more than some requests have pages."""
    case = kind.case(lengths)
    cache, q = case.cache, make_q(case, kind.num_qo_heads, 7)
    select_indptr = make_select_indptr(cache, NUM_SELECTED)
    scores = score(q, cache)
    ids = select(scores, cache, select_indptr)
    full = dense(q, cache, cuda_stages.dense_plan(q, cache, num_splits=num_splits))
    check(case, q, full)
    plan = cuda_stages.attend_plan(q, cache, ids, num_splits=num_splits)
    check(case, q, attend(q, cache, ids, select_indptr, plan), ids, select_indptr)
    fused_ids, *fused = select_attend(scores, cache, select_indptr, q, plan=plan)
    assert torch.equal(fused_ids, ids)
    check(case, q, fused, ids, select_indptr)


@pytest.mark.usefixtures("merging")
@pytest.mark.parametrize("kind", [ONE, GROUP], ids=str)
def test_one_scratch_serves_many_launches_alike(kind: Kind) -> None:
    """Words of the launch before must never be taken for this one's: the queries change in between."""
    case = kind.case((4000, 100, 0, 1) if ON_GPU else (4000, 0))
    cache = case.cache
    cache.pool.num_workers = max(cache.pool.num_workers, 32)
    queries = [make_q(case, kind.num_qo_heads, seed) for seed in (8, 9, 10)]
    select_indptr = make_select_indptr(cache, 40)
    ids = make_page_ids(cache, kind.num_qo_heads, select_indptr, 11)
    plans = cuda_stages.attend_plan(queries[0], cache, ids), cuda_stages.dense_plan(queries[0], cache)
    sparse, full = (torch.zeros(plan.scratch_floats, device=DEVICE) for plan in plans)
    assert all(plan.num_splits > 1 for plan in plans)

    def launch(q: torch.Tensor) -> list[torch.Tensor]:
        (sparse_out, sparse_lse), (full_out, full_lse) = make_outputs(q), make_outputs(q)
        cuda_stages.attend(q, cache, ids, select_indptr, sparse_out, sparse_lse, sparse)
        cuda_stages.dense(q, cache, full_out, full_lse, full)
        return [sparse_out, sparse_lse, full_out, full_lse]

    first = [launch(q) for q in queries]
    check(case, queries[0], first[0][:2], ids, select_indptr)
    check(case, queries[0], first[0][2:])
    for _ in range(100 if ON_GPU else 2):
        for q, expected in zip(queries, first, strict=True):
            assert all(torch.equal(*pair) for pair in zip(expected, launch(q), strict=True))


# Selection.


def _sorted(scores: torch.Tensor) -> torch.Tensor:
    return scores.sort(dim=1).values


def _one_hot(scores: torch.Tensor) -> torch.Tensor:
    scores = torch.full_like(scores, -2.0)
    scores[:, scores.shape[1] // 2] = 9.0
    return scores


def _with_nan(scores: torch.Tensor) -> torch.Tensor:
    scores[:, ::7] = float("nan")
    return scores


PATTERNS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda scores: scores,
    "all equal": lambda scores: torch.full_like(scores, 1.5),
    "ascending": _sorted,
    "descending": lambda scores: -_sorted(scores),
    "one-hot": _one_hot,
    "NaN": _with_nan,
    "two values": lambda scores: (scores > 0).float(),
    "zeros of both signs": lambda scores: torch.where(scores > 0, 0.0, -0.0),
    "infinite": lambda scores: torch.where(scores > 0, float("inf"), float("-inf")),
}


def unfilled_cache(num_pages: Sequence[int]) -> PagedCache:
    """Requests of so many pages of 8 tokens, of one KV head, for `select`, which reads none of them."""
    pool = PagePool(sum(num_pages), 1, 8, 64, torch.float16, device=DEVICE)
    cache = PagedCache(pool, len(num_pages), sum(num_pages))
    cache.extend([8 * pages for pages in num_pages])
    return cache


@pytest.mark.parametrize("num_pages", [1, 2, 33, 512, 2048, 8192, 20000, 65536] if ON_GPU else [1, 33, 700])
def test_selection_of_any_scores(num_pages: int) -> None:
    cache = unfilled_cache([num_pages])
    normal = torch.randn(2, num_pages, generator=torch.Generator().manual_seed(num_pages))
    counts = sorted({k for k in (1, 2, 16, 128, 700, num_pages - 1, num_pages) if 1 <= k <= num_pages})
    for name, pattern in PATTERNS.items():
        scores = pattern(normal.clone())
        for take_tail in (True, False):
            order = _order(scores, take_tail)
            for count in counts:
                select_indptr = torch.tensor([0, count], dtype=torch.int32, device=DEVICE)
                ids = select(scores.to(DEVICE), cache, select_indptr, take_tail).cpu()
                expected = order[:, :count].sort(dim=1).values.int()
                assert torch.equal(ids, expected), f"{name}, {count} of {num_pages} pages, tail {take_tail}"
                if num_pages <= 512:
                    assert torch.equal(expected, reference.select(scores, cache, select_indptr, take_tail))


def _order(scores: torch.Tensor, take_tail: bool) -> torch.Tensor:
    """Pages of each row in the order in which they are taken: the tail, NaN, then by falling score."""
    competing = scores[:, :-1] if take_tail else scores
    order = competing.sort(dim=1, descending=True, stable=True).indices  # torch sorts NaN as the largest
    tail = torch.full((len(scores), 1), scores.shape[1] - 1)
    return torch.cat([tail, order], dim=1) if take_tail else order


@pytest.mark.parametrize("num_warps", [4, 8, 16, 32] if ON_GPU else [4])
def test_selection_with_any_number_of_warps(num_warps: int) -> None:
    """Rows of unlike length that begin at any address, one of them empty."""
    cache = unfilled_cache([301, 0, 1000, 1, 5])
    scores = torch.randn(3, cache.total_pages, generator=torch.Generator().manual_seed(12)).to(DEVICE)
    select_indptr = make_select_indptr(cache, 64)
    ids = torch.full((3, int(select_indptr[-1])), -1, dtype=torch.int32, device=DEVICE)
    cuda_stages.select(scores, cache, select_indptr, ids, num_warps=num_warps)
    assert torch.equal(ids.cpu(), reference.select(scores.cpu(), cache, select_indptr))


# Graphs.


@pytest.mark.parametrize("layout", SUMMARY_LAYOUTS)
@pytest.mark.parametrize("kind", [ONE, GROUP], ids=str)
def test_a_page_with_a_nan_key_is_selected_first(kind: Kind, layout: str) -> None:
    case = kind.case((300,), layout)
    cache, q = case.cache, make_q(case, kind.num_qo_heads, 14)
    cache.pool.k[cache.physical_pages(0)[2], 0, 0, 5] = float("nan")
    cache.rescan(0, 2)
    scores = score(q, cache)
    group = kind.num_qo_heads // kind.num_kv_heads
    assert (~scores.isfinite()).nonzero().tolist() == [[head, 2] for head in range(group)]
    tail = cache.num_pages[0] - 1
    assert select(scores, cache, make_select_indptr(cache, 2))[:group].tolist() == [[2, tail]] * group


@pytest.mark.gpu
@pytest.mark.parametrize("layout", SUMMARY_LAYOUTS)
def test_a_graph_of_the_fused_chain_follows_its_inputs(layout: str) -> None:
    """Captured once, with the dependent launch; then queries change and requests grow by a token."""
    case = Kind("fp16", 8, 4, 128, 16).case((2000, 15), layout)
    cache, q = case.cache, make_q(case, 8, 13)
    select_indptr = make_select_indptr(cache, [32, 1])
    scores = torch.full((8, cache.total_pages), float("nan"), device=DEVICE)
    ids = torch.zeros((8, 33), dtype=torch.int32, device=DEVICE)
    out, lse = make_outputs(q)
    full = make_outputs(q)
    plans = cuda_stages.attend_plan(q, cache, ids), cuda_stages.dense_plan(q, cache)
    sparse_scratch, full_scratch = (torch.zeros(plan.scratch_floats, device=DEVICE) for plan in plans)

    def chain() -> None:
        cuda_stages.score(q, cache, scores)
        cuda_stages.select_attend(scores, cache, select_indptr, ids, True, q, out, lse, sparse_scratch)
        cuda_stages.dense(q, cache, *full, full_scratch)

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            chain()
    keys, values = case.keys, case.values
    for seed in (14, 15):
        new = torch.randn((1, 4, 128), generator=torch.Generator().manual_seed(seed)).half().to(DEVICE)
        if cache.seq_lens[1] < 16:  # no new page: the shapes stay
            append.append(cache, new, new, cache.extend([0, 1]))
            keys, values = (torch.cat([old, new]) for old in (keys, values))
        q.copy_(make_q(case, 8, seed))
        for output in (out, lse, *full):
            output.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        grown = Case(cache, keys, values, torch.tensor([0, 2000, len(keys)], device=DEVICE))
        assert torch.equal(ids.cpu(), reference.select(scores.cpu(), cache, select_indptr))
        check(grown, q, (out, lse), ids, select_indptr)
        check(grown, q, full)


# A check that cannot fail is no check.


@pytest.mark.parametrize("kind", [ONE, GROUP], ids=str)
def test_a_wrong_id_is_caught(kind: Kind) -> None:
    case = kind.case()
    q = make_q(case, kind.num_qo_heads, 16)
    select_indptr = make_select_indptr(case.cache, 4)
    ids = make_page_ids(case.cache, kind.num_qo_heads, select_indptr, 17)
    outputs = attend(q, case.cache, ids, select_indptr)
    check(case, q, outputs, ids, select_indptr)
    span = slice(*select_indptr[-2:].tolist())
    others = set(range(case.cache.max_pages)) - set(ids[1, span].tolist())
    ids[1, span.start] = min(others)
    with pytest.raises(AssertionError):
        check(case, q, outputs, ids, select_indptr)


@pytest.mark.parametrize("kind", [ONE, GROUP], ids=str)
def test_two_pages_taken_for_each_other_are_caught(kind: Kind) -> None:
    """Their entries of the block table are exchanged, on the device alone."""
    case = kind.case((777,))
    cache, q = case.cache, make_q(case, kind.num_qo_heads, 18)
    select_indptr = make_select_indptr(cache, 3)
    ids = torch.tensor([[0, 1, 2]], dtype=torch.int32, device=DEVICE).repeat(kind.num_qo_heads, 1)
    check(case, q, attend(q, cache, ids, select_indptr), ids, select_indptr)
    cache.block_table[[2, 5]] = cache.block_table[[5, 2]]
    with pytest.raises(AssertionError):
        check(case, q, attend(q, cache, ids, select_indptr), ids, select_indptr)
    with pytest.raises(AssertionError):
        assert_close(score(q, cache), eager_score(case, q), reference.score(q, cache), torch.float32)


@pytest.mark.skipif(ON_GPU, reason="plants faults in the sources as they run on a CPU")
@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        (ONE, ("score.cu", "bool of_min = piece < LANES / 2;", "bool of_min = piece >= LANES / 2;")),
        (GROUP, ("score.cu", ".w[i], c < PIECES);", ".w[i], c >= PIECES);")),
        (ONE, ("select.cuh", "int need = wanted - range.above,", "int need = wanted - range.above - 1,")),
        (ONE, ("attention.cuh", "factor = exp2_fast(top[i] - base);", "factor = 1.0f;")),
        (
            ONE,
            ("attention.cuh", "return logical == num_pages - 1 ? tail_len : PAGE_SIZE;", "return PAGE_SIZE;"),
        ),
        (ONE, ("attention.cuh", "sums.first, sums.second);", "sums.second, sums.first);")),
        (ONE, ("attend.cu", "    wait_for_copies();\n", "")),
        (
            ONE,
            (
                "attend.cu",
                "[task.wanted - 1] = task.line.num_pages - 1;",
                "[task.wanted - 1] = task.line.num_pages - 2;",
            ),
        ),
        (ONE, ("attend.cu", "0xffffffffu / active + 1u;", "0xffffffffu / active;")),
        (
            ONE,
            (
                "dense.cu",
                "if (held.there) held.place = line.place(turn.first, 0, line.num_pages, entry_itself);",
                "",
            ),
        ),
    ],
    ids=[
        "a box's halves exchanged",
        "a box's halves exchanged, of a group",
        "one page too few",
        "splits merged unscaled",
        "slots behind the end read",
        "two outputs exchanged",
        "copies not waited for",
        "another page told for the last",
        "a division rounded down",
        "the tail taken for whole once asked for early",
    ],
)
def test_a_fault_in_the_source_is_caught(
    kind: Kind, edit: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run() -> None:
        short = kind.case((15,))
        q = make_q(short, kind.num_qo_heads, 20)
        with pytest.MonkeyPatch.context() as patch:
            _early(patch, 1)  # a page that was full when the host looked
            check(short, q, dense(q, short.cache, cuda_stages.dense_plan(q, short.cache, num_splits=2)))
        case = kind.case((300, 77))
        q = make_q(case, kind.num_qo_heads, 19)
        select_indptr = make_select_indptr(case.cache, 8)
        scores = score(q, case.cache)
        assert_close(scores, eager_score(case, q), reference.score(q, case.cache), torch.float32)
        ids = reference.select(scores, case.cache, select_indptr)
        plan = cuda_stages.attend_plan(q, case.cache, ids, num_splits=2)
        fused_ids, *fused = select_attend(scores, case.cache, select_indptr, q, plan=plan)
        assert torch.equal(fused_ids, ids)
        check(case, q, fused, ids, select_indptr)

    run()
    cuda_host.install(monkeypatch, tmp_path, blocks_per_sm=MANY, edit=edit)
    with pytest.raises(AssertionError):
        run()
