"""A check that cannot fail is no check: every planted fault must be caught, by its own stage."""

from collections.abc import Callable

import pytest
import torch

from questprof.backends import load
from questprof.checks import SAMPLE_ABOVE, check, sample_rows, sign_share, union_ratio
from questprof.model import Point, Shape, SummaryLayout
from questprof.policies import Bound, bind
from questprof.workload import make_cache, make_pool, make_query

MHA = Shape("toy", num_qo_heads=2, num_kv_heads=2, head_dim=64, kv_dtype="fp32")
GQA = Shape("toy-gqa", num_qo_heads=8, num_kv_heads=2, head_dim=64, kv_dtype="fp32")


def _bound(
    policy: str = "quest",
    shape: Shape = MHA,
    data: str = "independent",
    budget: int = 128,
    layout: SummaryLayout = "paired",
) -> Bound:
    """Two requests of 500 tokens (32 pages of 16, the last of 4), every step launched once."""
    point = Point(
        shape=shape,
        seq_len=500,
        batch_size=2,
        token_budget=budget,
        device="cpu",
        data=data,  # type: ignore[arg-type]
        summary_layout=layout,
    )
    backend = load("questprof", "cpu")
    pool = make_pool(point, 1, 2)
    cache = make_cache(point, pool, backend, 0)
    bound = bind(policy, backend, cache, make_query(point, pool, point.data, 0), point.num_selected)
    for step in bound.steps:
        step.launch()
    return bound


def _failed(bound: Bound) -> set[str]:
    return {c.stage for c in check(bound, bound.steps, "after", seed=0) if not c.holds}


@pytest.mark.parametrize("policy", ["quest", "quest-open", "dense"])
def test_right_results_pass(policy: str) -> None:
    bound = _bound(policy)
    checks = check(bound, bound.steps, "before", seed=0)
    assert all(c.holds for c in checks)
    wanted = (
        {"dense", "dense.lse"} if policy == "dense" else {"append", "score", "select", "attend", "attend.lse"}
    )
    assert {c.stage for c in checks} == wanted
    assert not any(c.sampled for c in checks)


def _wrong_box(bound: Bound) -> None:
    bound.cache.pool.summary.data[bound.cache.physical_pages(1)[3], 1, 1, 5] += 1e-3


def _wrong_score(bound: Bound) -> None:
    assert bound.outputs.scores is not None
    bound.outputs.scores[0, 7] *= 1.01


def _swapped_id(bound: Bound) -> None:
    """One id replaced by a page that was not selected."""
    assert bound.outputs.page_ids is not None
    chosen = set(bound.outputs.page_ids[1, :8].tolist())
    bound.outputs.page_ids[1, 0] = next(page for page in range(32) if page not in chosen)


def _unsorted_ids(bound: Bound) -> None:
    assert bound.outputs.page_ids is not None
    bound.outputs.page_ids[:, :8] = bound.outputs.page_ids[:, :8].flip(1)


def _values_of_another_page(bound: Bound) -> None:
    """What attend left is from before V of one selected page changed: as if it had read elsewhere."""
    assert bound.outputs.page_ids is not None
    page = int(bound.outputs.page_ids[0, 0])
    bound.cache.pool.v[bound.cache.physical_pages(0)[page], 0] += 1.0


def _unnormalised(bound: Bound) -> None:
    bound.outputs.out *= 1.001


def _nan(bound: Bound) -> None:
    bound.outputs.out[1, 1, 3] = torch.nan


def _wrong_lse(bound: Bound) -> None:
    assert bound.outputs.lse is not None
    bound.outputs.lse[0, 1] += 1e-3


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        (_wrong_box, {"append", "score"}),
        (_wrong_score, {"score"}),
        (_swapped_id, {"select", "attend"}),
        (_unsorted_ids, {"select"}),
        (_values_of_another_page, {"attend"}),
        (_unnormalised, {"attend"}),
        (_nan, {"attend"}),
        (_wrong_lse, {"attend.lse"}),
    ],
)
def test_planted_faults_are_caught(fault: Callable[[Bound], None], caught_by: set[str]) -> None:
    bound = _bound()
    fault(bound)
    failed = _failed(bound)
    assert failed >= {next(iter(caught_by))} if len(caught_by) == 1 else failed & caught_by
    assert failed <= caught_by | {"attend.lse"}


def test_open_selection_is_not_taken_for_one_with_the_tail() -> None:
    """On random data the short tail page loses: the two policies differ, and each passes as itself only."""
    bound = _bound("quest-open")
    bound.take_tail = True
    assert "select" in _failed(bound)


def test_large_caches_are_sampled() -> None:
    shape = Shape("wide", num_qo_heads=32, num_kv_heads=8, head_dim=128)
    point = Point(shape=shape, seq_len=16, batch_size=4, device="cpu")
    backend = load("questprof", "cpu")
    pool = make_pool(point, 1, 1)
    bound = bind(
        "dense", backend, make_cache(point, pool, backend, 0), make_query(point, pool, "independent", 0), ()
    )
    rows, sampled = sample_rows(bound, seed=3)
    assert not sampled
    assert len(rows) == 4 * 32
    for request in bound.cache._requests:
        request.seq_len = SAMPLE_ABOVE // (2 * 4 * 8 * 128) + 1
    rows, sampled = sample_rows(bound, seed=3)
    assert sampled
    assert len({request for request, _ in rows}) == 2
    assert len({head // 4 for _, head in rows}) == 2
    assert len(rows) == 2 * 2 * 4
    assert rows == sample_rows(bound, seed=3)[0] != sample_rows(bound, seed=4)[0]


def test_union_ratio() -> None:
    assert union_ratio(_bound(shape=MHA)) == 1.0
    assert union_ratio(_bound(shape=GQA, data="shared")) == 1.0
    independent = union_ratio(_bound(shape=GQA))
    assert independent is not None
    assert 1.0 < independent <= 4.0
    assert union_ratio(_bound("dense")) is None


def test_union_ratio_by_hand() -> None:
    """Heads 0-3 share KV head 0: {0,1}, {1,2}, {2,3}, {0,3} unite to 4, over K = 2; heads 4-7 to {0,1}: 2."""
    bound = _bound(shape=GQA, budget=32)
    picks = [[0, 1], [1, 2], [2, 3], [0, 3], [0, 1], [0, 1], [0, 1], [0, 1]]
    bound.outputs.page_ids = torch.tensor([row + row for row in picks], dtype=torch.int32)
    assert union_ratio(bound) == (4 / 2 + 2 / 2) / 2


def test_sign_share() -> None:
    assert sign_share(_bound(shape=MHA, layout="transposed")) == 0.5  # one sign a dimension
    assert sign_share(_bound(shape=GQA, layout="transposed", data="shared")) == 0.5
    assert sign_share(_bound(shape=GQA, layout="transposed")) == pytest.approx(1 - 2**-4, abs=0.03)
    assert sign_share(_bound(shape=GQA)) is None
    assert sign_share(_bound("dense", shape=GQA, layout="transposed")) is None


def test_sign_share_by_hand() -> None:
    """Of 64 dims KV head 0 asks both rows of 16 (one negative head there), KV head 1 one row of each.

    Request 0: (64 + 16) + 64 = 144 of 256 rows; request 1, all signs alike: 128 of 256. Both have 32 pages.
    """
    bound = _bound(shape=GQA, layout="transposed")
    bound.q = torch.ones_like(bound.q)
    bound.q[0, 2, :16] = -1.0
    bound.q[0, 4:] = -1.0
    bound.q[1, :, 5] = -0.0  # no negative number
    assert sign_share(bound) == (144 + 128) / (2 * 256)
