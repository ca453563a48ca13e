"""Examples worked by hand, arithmetic shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from recall_traces import Header, Layer, Trace

from questprof.recall import measures, regret
from questprof.recall.cases import Asked, Case, resolve
from questprof.recall.layer import Evaluated, evaluate
from questprof.recall.policies import POLICIES, Policy, parse_policies, ranked
from questprof.recall.setting import Setting, narrowed
from questprof.recall.tables import evidence_hits, evidence_rows, head_rows, layer_row, pair_rows
from questprof.recall.view import PageView


def heads_of(*vectors: tuple[float, ...]) -> np.ndarray:
    """Vectors [n, d] as [n, 1 head, d]."""
    return np.array(vectors, np.float32)[:, None]


def one_query(q: tuple[float, ...], keys: np.ndarray, page_size: int, **changes: object) -> PageView:
    """The last token queries, scale 1, values the unit vector."""
    values = np.ones((len(keys), 1), np.float32)
    position = changes.pop("position", len(keys) - 1)
    return PageView(np.array([[q]], np.float32), keys, values, np.array([position]), page_size, 1.0)


# Four pages of two keys for q = (1, 1). The bound adds the largest of each column, the maximum takes a row.
#   page A (10, 0) (10, 0): bound 10 + 0 = 10, true maximum 10
#   page B (10, -7) (-1, 4): bound 10 + 4 = 14, true maximum max(3, 3) = 3
#   page C (9, -7) (-1, 3): bound 9 + 3 = 12, true maximum max(2, 2) = 2
#   page D (3, -2) (0, 1): bound 3 + 1 = 4, true maximum max(1, 1) = 1
FOUR_PAGES = ((10, 0), (10, 0), (10, -7), (-1, 4), (9, -7), (-1, 3), (3, -2), (0, 1))


def four_pages(budget: int, *policies: Policy) -> Evaluated:
    keys = heads_of(*FOUR_PAGES)
    header = Header(8, (7,), 1, 1, 2, softmax_scale=1.0, evidence=(("answer", 0, 1), ("late", 7, 7)))
    trace = Trace(header, {0: Layer(heads_of((1, 1)), keys, np.ones((8, 1, 1), np.float32))})
    asked = Asked((2,), (budget,), policies, top_tokens=2)
    setting = Setting(asked, resolve(asked, header), header, 2)
    return evaluate(setting, 0, narrowed(setting.scope, trace.layer(0)), None, False)


def test_a_right_bound_and_a_failed_recall() -> None:
    """K = 2 by bound takes B and C and loses A, which has the largest true logit of all; K = 3 recalls it."""
    found = four_pages(4, *parse_policies("quest-open,oracle"))
    assert np.flatnonzero(found.picked[0, 0, 0]).tolist() == [1, 2]
    row = head_rows(found, 0)[0]
    total = 2 * (math.exp(10) + math.exp(3) + math.exp(2) + math.exp(1))
    assert row.mass_recall == pytest.approx(2 * (math.exp(3) + math.exp(2)) / total, rel=1e-4)
    assert row.top_recall == row.top_page_recall == 0
    assert (row.tau_bound, row.tau_true) == (12, 3)
    assert (row.missed_pages, row.missed_slack, row.false_slack) == (1, 0, 10)
    assert row.regret == 4  # (10 of A - 2 of C) / K = 8 / 2
    assert row.swallowed_pages == 1  # A is third by bound
    assert found.board["gap"][0, 0, 0] == 2  # 12 of C - 10 of A
    assert found.board["slack"][0, 0] == 6  # (0 + 11 + 10 + 3) / 4
    assert head_rows(four_pages(6, *parse_policies("quest-open")), 0)[0].top_recall == 1


def test_the_missed_page_stands_beside_the_one_in_its_place() -> None:
    found = four_pages(4, *parse_policies("quest-open,oracle"))
    ((lost, pair),) = pair_rows(found, 0)
    assert lost == 8
    assert (pair.missed_page, pair.missed_true, pair.missed_bound) == (0, 10, 10)
    assert (pair.false_page, pair.false_true, pair.false_bound) == (2, 2, 12)
    assert pair_rows(found, 1) == []


def test_evidence_is_hit_by_a_head_that_reads_all_of_it() -> None:
    """`answer` lies in page A, `late` in page D, which is the tail: quest takes it, quest-open does not."""
    found = four_pages(4, *parse_policies("quest,quest-open,oracle"))
    hits = [[int(count[0]) for count in evidence_hits(found, case)] for case in range(3)]
    assert hits == [[0, 1], [0, 0], [1, 0]]
    rows = evidence_rows(found.setting.header.evidence, (0,), [evidence_hits(found, 2)])
    assert [(row.name, row.first_layer, row.hit_layers, row.hit_heads) for row in rows] == [
        ("answer", 0, 1, 1),
        ("late", -1, 0, 0),
    ]
    assert [head_rows(found, case)[0].evidence_recall for case in range(3)] == [0.5, 0, 0.5]


def test_evidence_counts_from_the_query_that_sees_its_end() -> None:
    spans = (("answer", 1, 3),)
    hits = [[np.array([-1, 0, 2])], [np.array([-1, 1, 1])]]
    rows = evidence_rows(spans, (4, 9), hits)
    assert [(row.query, row.first_layer, row.hit_layers, row.hit_heads) for row in rows] == [
        (1, 9, 1, 1),
        (2, 4, 2, 3),
    ]


def test_jaccard_of_neighbouring_layers() -> None:
    """{0, 1, 2} and {1, 2, 3} share 2 of 4 pages; 3 of 4 pages are candidates."""
    found = four_pages(4, *parse_policies("quest"))
    here, before = np.array([[1, 1, 1, 0]], bool), np.array([[0, 1, 1, 1]], bool)
    assert layer_row(found, here, before).jaccard == 0.5
    assert layer_row(found, here, None) == layer_row(found, here, before).__class__(0, 0.75, None)


@pytest.mark.parametrize(("length", "tail"), [(1, 1), (15, 15), (16, 16), (17, 1)])
def test_the_tail_page_has_its_valid_tokens_only(length: int, tail: int) -> None:
    """Keys 1, 2, 3, ...: the tail's bound for q = 1 is the last valid key, whatever lies behind it."""
    keys = np.arange(1, 41, dtype=np.float32)[:, None]
    view = one_query((1.0,), keys, 16, position=length - 1)
    assert view.bounds[0, 0, -1] == view.maxima[0, 0, -1] == length
    assert view.num_pages.tolist() == [-(-length // 16)]
    below = one_query((-1.0,), keys, 16, position=length - 1)
    assert below.bounds[0, 0, -1] == -(length - tail + 1)
    assert view.weights.sum() == pytest.approx(1)


def test_the_worked_page_of_equation_5() -> None:
    """q = (2, -1) over (1, 4), (3, -2), (-1, 1): 2 x 3 + (-1) x (-2) = 8 = its second dot product."""
    view = one_query((2.0, -1.0), np.array([(1, 4), (3, -2), (-1, 1)], np.float32), 3)
    assert view.bounds.item() == 8
    assert view.dots[0, 0].tolist() == [-2, 8, -3]
    assert measures.slacks(view).item() == 0


def test_a_corner_that_no_key_stands_in() -> None:
    """(3, 4) and (-1, -2): the box is the same, 8, the true dot products are 2 and 0: slack 6."""
    view = one_query((2.0, -1.0), np.array([(3, 4), (-1, -2)], np.float32), 2)
    assert (view.bounds.item(), view.maxima.item(), measures.slacks(view).item()) == (8, 2, 6)


@pytest.mark.parametrize(
    ("num_selected", "expected"), [(1, [0]), (2, [0, 4]), (3, [0, 3, 4]), (5, [0, 1, 2, 3, 4])]
)
def test_fixed_takes_the_first_page_and_the_newest(num_selected: int, expected: list[int]) -> None:
    view = one_query((1.0,), np.ones((9, 1), np.float32), 2)
    picked = POLICIES["fixed"].pick(view, np.array([num_selected]))
    assert np.flatnonzero(picked[0, 0]).tolist() == expected


def test_equal_scores_go_to_the_lower_page() -> None:
    view = one_query((1.0,), np.ones((10, 1), np.float32), 2)
    for name, expected in (("quest-open", [0, 1]), ("oracle", [0, 1]), ("quest", [0, 4])):
        assert np.flatnonzero(POLICIES[name].pick(view, np.array([2]))[0, 0]).tolist() == expected


def test_equal_weights_go_to_the_lower_position() -> None:
    """Logits 2, 5, 2, 2, 1: the top 3 are position 1, then 0 and 2; a query that sees two has two."""
    keys = np.array([2, 5, 2, 2, 1], np.float32)[:, None]
    top = one_query((1.0,), keys, 5).top_tokens(3)
    assert np.flatnonzero(top).tolist() == [0, 1, 2]
    assert np.flatnonzero(one_query((1.0,), keys, 5, position=1).top_tokens(3)).tolist() == [0, 1]


def test_pages_that_a_share_of_the_mass_needs() -> None:
    """Logits log 6, log 3, log 1 of three pages: 0.6, 0.9, 1.0 in their order; 0.95 takes all three."""
    keys = np.log(np.array([1, 6, 3], np.float64))[:, None].astype(np.float32)
    view = one_query((1.0,), keys, 1)
    order = POLICIES["oracle"].order(view)
    assert order is not None
    assert order[0, 0].tolist() == [1, 2, 0]
    assert measures.pages_needed(view, order, (0.5, 0.6 - 1e-6, 0.89, 0.95))[:, 0, 0].tolist() == [1, 1, 2, 3]
    quest = POLICIES["quest"].order(view)
    assert quest is not None
    assert measures.pages_needed(view, quest, (0.89,)).item() == 2  # the tail has 0.3, then 0.6


def test_an_output_far_from_dense_is_still_its_own_softmax() -> None:
    """The picked token has weight exp(-2000) beside the other: the output is its value all the same."""
    view = PageView(
        np.array([[[1.0]]], np.float32),
        np.array([[0.0], [2000.0]], np.float32),
        np.array([[3.0, 0.0], [0.0, 4.0]], np.float32),
        np.array([1]),
        1,
        1.0,
    )
    got = measures.attended(view, np.array([[[[True, False]]]]))
    assert got.out.ravel().tolist() == [3, 0]
    assert (got.mass.item(), got.missed.item()) == (0, 1)
    assert got.rel_err.item() == 5 / 4  # |(0, 4) - (3, 0)| / 4
    assert got.bound_ratio.item() == 5 / 8  # over 2 x 1 x V_max = 4


def test_a_missed_mass_below_what_one_less_mass_can_hold() -> None:
    """epsilon = exp(-50) / (1 + exp(-50)): 1 - mass would be 0 and bound (7) broken by rounding."""
    view = PageView(
        np.array([[[1.0]]], np.float32),
        np.array([[50.0], [0.0]], np.float32),
        np.array([[1.0], [-1.0]], np.float32),
        np.array([1]),
        1,
        1.0,
    )
    got = measures.attended(view, np.array([[[[True, False]]]]))
    assert got.missed.item() == pytest.approx(math.exp(-50), rel=1e-12)
    assert got.bound_ratio.item() == pytest.approx(1)  # opposite values: the bound is reached
    assert got.rel_err.item() == pytest.approx(2 * math.exp(-50), rel=1e-12)


def test_the_gap_where_every_page_is_taken_is_none() -> None:
    ordered = np.array([[[5.0, 3.0, -np.inf]]])
    assert regret.score_gap(ordered, np.array([1]), 2.0).item() == 4
    assert np.isnan(regret.score_gap(ordered, np.array([2]), 2.0).item())
    assert np.isnan(regret.score_gap(ordered[..., :2], np.array([2]), 2.0).item())


def test_a_policy_of_ones_own_is_a_function_and_a_name() -> None:
    reverse = ranked("last", "the newest pages", lambda view: np.where(view.visible, view.maxima * 0 + 1, -1))
    found = four_pages(4, reverse)
    assert np.flatnonzero(found.picked[0, 0, 0]).tolist() == [0, 1]
    assert Case(4, reverse).num_selected(2, np.array([4, 1])).tolist() == [2, 1]
