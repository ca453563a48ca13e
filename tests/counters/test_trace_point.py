"""Points traced in this process: the real kernels move what the ledger says, the wrong ones do not."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from msgspec.structs import replace
from questprof_kernels import select as project_select
from questprof_kernels.paged_cache import PagedCache, PagePool

from questprof.counters import Counted, trace_point
from questprof.counters.trace_point import PointTracer
from questprof.counters.tracer import Tracer
from questprof.counts import StageCount, TensorCount
from questprof.ledger import entries
from questprof.model import Point, Shape
from questprof.policies import Bound
from questprof.units import dtype_bytes

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="traces the interpreter; beside a GPU kernels are compiled"
)

WORKERS = 2


def shape(heads: int, kv_heads: int, dtype: str = "fp16", head_dim: int = 64, summary: str = "") -> Shape:
    return Shape("own", heads, kv_heads, head_dim, dtype, summary)


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[Bound]:
    """The Quest steps of every traced point, with the ids they left."""
    kept: list[Bound] = []
    measure = trace_point.unselected_bytes

    def keeping(bound: Bound, log: Any) -> int:
        kept.append(bound)
        return measure(bound, log)

    monkeypatch.setattr(trace_point, "unselected_bytes", keeping)
    return kept


def traced(point: Point, kernels: str = "", *, prefill: bool = False) -> Counted:
    return PointTracer(kernels, WORKERS, prefill=prefill).count(point)


def stage(counted: Counted, name: str) -> StageCount:
    (found,) = (count for count in counted.counts if count.stage == name)
    return found


def tensor(counted: Counted, name: str, of: str) -> TensorCount:
    return stage(counted, name).tensors.get(of, TensorCount())


def predicted(point: Point, counted: Counted) -> dict[tuple[str, str], tuple[int, int]]:
    """(read, write) of the ledger with the real ids and signs, by stage and tensor."""
    ledger = entries(
        point, WORKERS, counted.union_ratio, sign_share=counted.sign_share, variant=counted.variant
    )
    return {(entry.stage, entry.tensor): (entry.read_bytes, entry.write_bytes) for entry in ledger}


def selected_bytes(point: Point, bound: Bound) -> int:
    """Bytes of K (or V) of the valid tokens in the union of each group's pages, page by page."""
    outputs, kv_heads = bound.outputs, point.shape.num_kv_heads
    assert outputs.page_ids is not None
    assert outputs.select_indptr is not None
    tokens = 0
    for request, (start, stop) in enumerate(pairwise(outputs.select_indptr.tolist())):
        length = point.lengths[request]
        for group in outputs.page_ids[:, start:stop].chunk(kv_heads):
            for page in set(group.flatten().tolist()):
                tokens += min(point.page_size, length - page * point.page_size)
    return tokens * point.shape.head_dim * dtype_bytes(point.shape.kv_dtype)


MHA, GQA = shape(2, 2), shape(4, 2)
EXACT = {
    "one page size after another, 1": Point(MHA, 40, 1, 10),
    "2": Point(MHA, 101, 2, 20),
    "5": Point(MHA, 101, 5, 20),
    "8": Point(MHA, 200, 8, 64),
    "12": Point(MHA, 203, 12, 60),
    "16": Point(MHA, 256, 16, 64),
    "32": Point(MHA, 333, 32, 128),
    "a tail of one token": Point(MHA, 257, 16, 64),
    "one token in all": Point(MHA, 1, 16, 16),
    "a budget that covers all": Point(GQA, 100, 16, 128),
    "groups": Point(shape(8, 2), 333, 16, 96),
    "groups of equal queries": Point(GQA, 333, 12, 96, data="shared"),
    "all pages compete": Point(GQA, 330, 16, 64, policy="quest-open"),
    "a ragged batch": Point(GQA, 300, 16, 64, 4, seq_lens=(300, 0, 17, 160), token_budgets=(64, 0, 16, 64)),
    "bf16": Point(shape(4, 2, "bf16"), 200, 16, 64),
    "fp32": Point(shape(4, 2, "fp32"), 200, 16, 64),
    "a wider summary": Point(shape(4, 2, "fp16", summary="fp32"), 200, 16, 64),
    "128 dimensions": Point(shape(4, 1, head_dim=128), 200, 16, 64),
    "transposed": Point(MHA, 64 * 16, 16, 128, summary_layout="transposed"),
    "transposed, groups, twelve": Point(GQA, 32 * 12, 12, 96, summary_layout="transposed"),
    "transposed, fp32, a batch": Point(
        shape(4, 2, "fp32"), 8 * 72, 8, 64, 2, seq_lens=(8 * 72, 8 * 16), summary_layout="transposed"
    ),
    "sequential pages": Point(MHA, 200, 16, 64, page_order="sequential"),
}


@pytest.mark.parametrize("name", EXACT)
def test_cache_and_summary_are_read_as_the_ledger_says(name: str, bounds: list[Bound]) -> None:
    point = EXACT[name]
    counted = traced(point)
    assert counted.reason == ""
    assert (counted.point_id, counted.source, counted.variant) == (point.point_id, "trace", "triton")
    assert counted.unselected_bytes == 0
    expected = predicted(point, counted)
    for of in ("k", "v"):
        assert tensor(counted, "dense", of).read == expected["dense", of][0]
        assert tensor(counted, "attend", of).read == selected_bytes(point, bounds[0])
        appended = tensor(counted, "append", of)
        assert (appended.read, appended.write) == expected["append", of]
    assert tensor(counted, "score", "summary").read == expected["score", "summary"][0]
    if len(set(point.budgets)) == 1 and point.policy == "quest":  # otherwise the mean ratio tells too little
        assert tensor(counted, "attend", "k").read == expected["attend", "k"][0]
    assert not any("other" in count.tensors for count in counted.counts)


def test_small_tensors_are_the_ledgers_up_to_whole_sectors() -> None:
    point = Point(GQA, 129, 12, 48, 2)
    counted = traced(point)
    for (name, of), (read, write) in predicted(point, counted).items():
        if name in ("dense", "score", "select", "attend", "append"):
            ours = tensor(counted, name, of)
            slack = 32 * 4 * 2  # one more sector a query head and request
            most_pages = (name, of) == ("attend", "block_table")  # the ledger says at most
            assert ours.read <= read + slack, (name, of)
            assert most_pages or ours.read >= read, (name, of)
            assert write <= ours.write <= write + slack, (name, of)


def test_totals_are_the_sums_of_the_tensors_and_kernels_are_named() -> None:
    counted = traced(Point(MHA, 200, 16, 64))
    assert [count.stage for count in counted.counts] == ["dense", "append", "score", "select", "attend"]
    for count in counted.counts:
        assert count.source == "trace"
        assert count.read == sum(one.read for one in count.tensors.values())
        assert count.write == sum(one.write for one in count.tensors.values())
    assert stage(counted, "attend").kernels == ("attend_kernel",)


def test_a_group_reads_its_pages_once_and_repeats_the_rest(bounds: list[Bound]) -> None:
    point = Point(GQA, 333, 16, 96, data="shared")
    counted = traced(point)
    # Two equal query heads a group: one set of pages, read once and once more.
    k = tensor(counted, "attend", "k")
    assert counted.union_ratio == 1.0
    assert k.repeat_read == k.read


def test_every_table_of_a_cache_is_known_by_a_name_of_the_ledger() -> None:
    cache = PagedCache(PagePool(9, 2, 16, 64, torch.float16), 2, 9)
    cache.extend([40, 60])
    named = {"q": torch.empty(2, 2, 64, dtype=torch.float16), "cache": cache}
    tables = {
        "block_table": (cache.block_table, cache.dense_table, cache.last_page),
        "summary_table": (cache.summary_table, cache.last_block),
        "kv_indptr": (cache.kv_indptr,),
        "summary_indptr": (cache.summary_indptr,),
        "last_page_len": (cache.last_page_len,),
    }
    spans = {span.start: span for span in Tracer(frozenset())._spans("dense", named)}
    for name, tensors in tables.items():
        for table in tensors:
            span = spans[table.data_ptr()]
            assert (span.name, span.end - span.start) == (name, table.nbytes)


def test_dense_alone() -> None:
    counted = traced(Point(GQA, 200, 16, policy="dense"))
    assert [count.stage for count in counted.counts] == ["dense"]
    assert counted.unselected_bytes is None
    assert counted.union_ratio is None


@pytest.mark.parametrize("layout", ["paired", "transposed"])
def test_the_append_of_a_prompt(layout: Any) -> None:
    point = Point(GQA, 16 * 16, 16, 64, 2, seq_lens=(16 * 16, 64), summary_layout=layout)
    counted = traced(point, prefill=True)
    assert counted.reason == ""
    vectors = (16 * 16 + 64) * 2 * 64 * 2  # tokens, KV heads, numbers, bytes
    for of in ("k", "v"):
        assert tensor(counted, "append_prefill", of).write == vectors
    for of in ("keys", "values"):
        assert tensor(counted, "append_prefill", of).read == vectors
    boxes = (16 + 4) * 2 * 2 * 64 * 2  # pages, KV heads, bounds, numbers, bytes
    written = tensor(counted, "append_prefill", "summary").write
    assert written == boxes if layout == "paired" else written >= boxes


def test_points_of_one_block_share_what_knows_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Point] = []
    make = trace_point.make_cache
    monkeypatch.setattr(
        trace_point, "make_cache", lambda point, *rest: made.append(point) or make(point, *rest)
    )
    first = Point(GQA, 100, 16, 32)
    points = [first, replace(first, token_budget=48, policy="quest-open"), replace(first, seed=1)]
    tracer = PointTracer("", WORKERS, prefill=False)
    together = [tracer.count(point) for point in points]
    assert len(made) == 2
    assert together == [traced(point) for point in points]


def test_what_no_token_owns_stays_nan(bounds: list[Bound]) -> None:
    traced(Point(GQA, 203, 12, 96))
    pool = bounds[0].cache.pool
    owned = 203 * 2 * 64
    assert int(pool.k.isnan().sum()) == pool.k.numel() - owned
    assert int(pool.v.isnan().sum()) == pool.v.numel() - owned


# Wrong stages.

WRONG = Point(GQA, 333, 12, 96)  # 28 pages, the last of 9 tokens; 8 selected a query head


def of_fault(name: str) -> Counted:
    return traced(WRONG, f"faults.{name}:stages")


def test_the_control_is_right() -> None:
    counted = of_fault("right")
    assert (counted.reason, counted.variant, counted.unselected_bytes) == ("", "faults.right:stages", 0)
    expected = predicted(WRONG, counted)
    assert tensor(counted, "attend", "k").read == expected["attend", "k"][0]
    assert tensor(counted, "attend", "v").read == expected["attend", "v"][0]
    assert tensor(counted, "score", "summary").read == expected["score", "summary"][0]


@pytest.mark.parametrize("layout", ["paired", "transposed"])
def test_the_control_reads_either_summary(layout: Any) -> None:
    point = Point(GQA, 32 * 16, 16, 96, summary_layout=layout)
    counted = traced(point, "faults.right:stages")
    assert counted.reason == ""
    assert tensor(counted, "score", "summary").read == predicted(point, counted)["score", "summary"][0]


def test_keys_without_values() -> None:
    counted = of_fault("keys_only")
    assert counted.reason.startswith("wrong: attend is off by")
    assert counted.status == "wrong"
    assert tensor(counted, "attend", "v").read == 0
    assert tensor(counted, "attend", "k").read == predicted(WRONG, counted)["attend", "k"][0]


def test_scores_without_the_summary() -> None:
    counted = of_fault("no_summary")
    assert counted.reason.startswith("wrong: score is off by")
    # One page's box: 2 KV heads x 2 bounds x 64 numbers x 2 bytes.
    assert tensor(counted, "score", "summary").read == 512


def test_a_gathered_temporary() -> None:
    counted = of_fault("gather")
    assert (counted.reason, counted.unselected_bytes) == ("", 0)
    # Every query head's tokens, K and V, written to the temporaries and read from there.
    tokens = sum(12 if page < 27 else 9 for page in [*range(7), 27]) * 4
    assert tensor(counted, "attend", "other") == TensorCount(
        read=2 * tokens * 64 * 2, write=2 * tokens * 64 * 2
    )


def test_one_page_that_nobody_selected() -> None:
    counted = of_fault("touches_one")
    assert counted.reason == ""
    page = 12 * 64 * 2
    assert counted.unselected_bytes == page
    assert tensor(counted, "attend", "k").read == predicted(WRONG, counted)["attend", "k"][0] + page


def test_a_tile_wider_than_the_page() -> None:
    counted = of_fault("wide_tile")
    assert counted.reason == ""
    assert tensor(counted, "attend", "k").read > predicted(WRONG, counted)["attend", "k"][0]
    assert counted.unselected_bytes


def test_one_id_twice() -> None:
    counted = of_fault("duplicate_id")
    assert counted.reason.startswith("wrong: select is off by")
    assert tensor(counted, "attend", "k").read


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module of stages that a test fills: `own:stages`."""
    module = SimpleNamespace(stages={})
    monkeypatch.setitem(sys.modules, "own", module)  # type: ignore[arg-type]
    return module


def test_a_stage_that_fails_leaves_the_counts_before_it(own: SimpleNamespace) -> None:
    def fails(*_: object) -> None:
        raise OSError("no such thing")

    own.stages["attend"] = fails
    counted = traced(Point(MHA, 100, 16, 32), "own:stages")
    assert [count.stage for count in counted.counts] == ["dense", "append", "score", "select"]
    assert counted.reason.startswith(
        "stage attend failed: it raised OSError: no such thing (test_trace_point.py:"
    )
    assert counted.status == "failed"
    assert counted.unselected_bytes is None
    assert counted.union_ratio == 1.0


def test_ids_that_no_page_has_are_wrong(own: SimpleNamespace) -> None:
    def beyond(scores: Any, cache: Any, select_indptr: Any, page_ids: Any, take_tail: bool = True) -> None:
        project_select.select(scores, cache, select_indptr, page_ids, take_tail)
        page_ids[:, 0] = 99

    own.stages.update(select=beyond, attend=lambda *_: None)
    counted = traced(Point(MHA, 100, 16, 32), "own:stages")
    assert "wrong: select is off by" in counted.reason
    assert "wrong: attend: logical pages" in counted.reason


def test_data_that_torch_moves_is_said_to_be_unseen(own: SimpleNamespace) -> None:
    def in_torch(scores: Any, cache: Any, select_indptr: Any, page_ids: Any, take_tail: bool = True) -> None:
        picked = scores[:, : cache.total_pages - 1].topk(page_ids.shape[1] - 1).indices.sort().values
        page_ids[:, :-1] = picked
        page_ids[:, -1] = cache.total_pages - 1

    own.stages["select"] = in_torch
    counted = traced(Point(MHA, 100, 16, 32), "own:stages")
    assert counted.reason.startswith("stage select moves data in torch, where no trace sees it: topk, sort")
    assert counted.status == "unstable"


def test_a_point_that_cannot_be_is_a_reason() -> None:
    assert "no kernel for head_dim 96" in traced(Point(shape(2, 2, head_dim=96), 100, 16, 32)).reason
    assert "unknown" in traced(Point(MHA, 100, 16, 32, policy="best")).reason
