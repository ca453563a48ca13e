"""Dense, failed and hidden heads: found where they are planted, absent where they are not, at the
thresholds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted_recall import Planted, calm_mass

from questprof.recall.answers.evaluation import Evaluation, evaluations
from questprof.recall.answers.heads import (
    dense_by_layer,
    dense_heads,
    failed_heads,
    hidden_heads,
    passing_budget,
)


def one(planted: Planted) -> Evaluation:
    (found,) = evaluations(planted.profile())
    return found


def test_a_calm_profile_makes_no_claim() -> None:
    calm = one(Planted())
    assert (dense_heads(calm), failed_heads(calm, 16), hidden_heads(calm, 16, 64)) == ((), (), ())


@pytest.mark.parametrize(("pages", "dense"), [(7, False), (8, True), (16, True)])
def test_a_head_is_dense_from_half_of_its_pages_on(pages: int, dense: bool) -> None:
    """16 pages: 8 are a half."""
    planted = replace(
        Planted(), oracle=lambda layer, head, share, query: pages if (layer, head) == (1, 2) else 1
    )
    found = dense_heads(one(planted))
    assert [(h.layer, h.head, h.pages_share) for h in found] == ([(1, 2, pages / 16)] if dense else [])


def test_it_is_the_oracle_that_tells_a_dense_head() -> None:
    """Loose boxes make quest need every page: that is the box, not the head."""
    assert dense_heads(one(replace(Planted(), needed=lambda *_: 16))) == ()


def test_half_of_a_short_context_says_nothing() -> None:
    """15 pages at most: a few sinks and the newest tokens are a half."""
    short = replace(Planted(), positions=tuple(range(224, 240)), oracle=lambda *_: 15)
    assert dense_heads(one(short)) == ()


def test_dense_heads_by_layer() -> None:
    evaluation = one(replace(Planted(), oracle=lambda layer, head, s, q: 12 if layer == 0 and head else 1))
    assert dense_by_layer(evaluation, dense_heads(evaluation)) == ((0, 2, 3),)


def failing(oracle: float, quest: float, compete: float | None = None):
    """Masses of head 1.0 at 64 tokens; calm elsewhere."""
    own = {"oracle": oracle, "quest": quest, "quest-open": quest if compete is None else compete}

    def mass(layer: int, head: int, page_size: int, token_budget: int, policy: str) -> float:
        here = (layer, head, token_budget) == (1, 0, 64)
        return own[policy] if here else calm_mass(layer, head, page_size, token_budget, policy)

    return mass


@pytest.mark.parametrize(
    ("oracle", "quest", "compete", "failed"),
    [
        (0.97, 0.3, None, True),
        (0.90, 0.79, None, True),
        (0.90, 0.81, None, False),
        (0.89, 0.30, None, False),  # the budget is too small for the oracle too: no fault of the box
        (0.97, 0.3, 0.95, False),  # taking the tail page is what costs
        (0.97, 0.95, 0.3, False),  # letting it compete is
    ],
)
def test_a_box_fails_a_head(oracle: float, quest: float, compete: float | None, failed: bool) -> None:
    found = failed_heads(one(replace(Planted(), mass=failing(oracle, quest, compete))), 16)
    if not failed:
        assert found == ()
        return
    (head,) = found
    assert (head.layer, head.head, head.token_budget) == (1, 0, 64)
    assert head.lost == pytest.approx(oracle - quest)


def test_without_the_oracle_no_head_is_called_failed() -> None:
    planted = replace(Planted(), policies=("quest",), mass=failing(0.97, 0.3))
    assert failed_heads(one(planted), 16) == ()


def hiding(mass: float, rest: float):
    def found(layer: int, head: int, page_size: int, token_budget: int, policy: str) -> float:
        return mass if (layer, head) == (0, 1) else rest

    return found


@pytest.mark.parametrize(
    ("mass", "rest", "hidden"),
    [
        (0.5, 0.99, True),  # mean of 6: (0.5 + 5 x 0.99) / 6 = 0.908
        (0.4, 0.97, False),  # 0.875 of all, 0.78 of the layer: no mean passes, so none hides it
        (0.81, 0.99, False),  # above 0.8: it misses less than twice of what passing allows
        (0.79, 0.99, True),
    ],
)
def test_a_mean_hides_a_head(mass: float, rest: float, hidden: bool) -> None:
    found = hidden_heads(one(replace(Planted(), mass=hiding(mass, rest))), 16, 64)
    assert [(h.layer, h.head, h.mass) for h in found] == ([(0, 1, mass)] if hidden else [])
    if hidden:
        assert found[0].mean == pytest.approx((mass + 5 * rest) / 6)
        assert found[0].layer_mean == pytest.approx((mass + 2 * rest) / 3)


def test_a_head_hides_under_its_layer_where_that_passes() -> None:
    """Layer of 12 heads: (0.5 + 11 x 0.99) / 12 = 0.949 passes."""
    planted = replace(Planted(), heads=tuple(range(12)), mass=hiding(0.5, 0.99))
    (head,) = hidden_heads(one(planted), 16, 64)
    assert head.hides_under == ("its layer", pytest.approx((0.5 + 11 * 0.99) / 12))


def test_the_passing_budget_is_the_least_whose_mean_passes() -> None:
    """Calm masses: 0.8 at 32, 0.9 at 64."""
    calm = one(Planted())
    assert passing_budget(calm, 16) == 64
    assert passing_budget(calm, 16, 0.96) == 256
    assert passing_budget(one(replace(Planted(), budgets=(32,))), 16) is None
