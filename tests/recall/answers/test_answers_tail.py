"""The starved tail page: both rules, each alone, and the arithmetic of the cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from planted_recall import Planted

from questprof.recall.answers.evaluation import evaluations
from questprof.recall.answers.head_sentences import tail_sentences
from questprof.recall.answers.tail import Tail, tails


def seldom(tokens: int, policy: str) -> float:
    """quest-open picks a tail page by its tokens: 0.02 with 1, 0.32 with 16."""
    return 1.0 if policy == "quest" else 0.02 * tokens


def costly(tokens: int, policy: str) -> float:
    """Mass lost: 0.24 with few tokens where the page competes, 0.06 where it is taken; 0.04 with more."""
    return (0.24 if policy == "quest-open" else 0.06) if tokens <= 4 else 0.04


def masses(compete: float, forced: float) -> Callable[[int, int, int, int, str], float]:
    """Mass of head 0 of both layers, a third of all; the others keep 0.7 either way."""

    def mass(layer: int, head: int, page_size: int, token_budget: int, policy: str) -> float:
        return {"quest-open": compete, "quest": forced}.get(policy, 1.0) if head == 0 else 0.7

    return mass


HARM = masses(0.8, 0.96)
"""Lost: 0.2 and 0.04, a cut of 5."""


def found(taken: Callable[[int, str], float], mass=HARM, lost=costly) -> Tail:
    (evaluation,) = evaluations(replace(Planted(), taken=taken, query_missed=lost, mass=mass).profile())
    (one,) = tails(evaluation)
    return one


def test_a_starved_tail_page_worked_by_hand() -> None:
    """Few tokens are 1 to 4 of 16: picked by (0.02 + 0.04 + 0.06 + 0.08) / 4 = 0.05. The cut is 0.24 / 0.06.

    Of six heads two cut 0.2 / 0.04 = 5-fold and four 1-fold: the tenth from above begins at 5. In the mean
    (2 x 0.2 + 4 x 0.3) / (2 x 0.04 + 4 x 0.3) = 1.25: the other heads, which lose much either way, hide it.
    """
    one = found(seldom)
    assert one.taken_few == pytest.approx(0.05)
    assert one.taken[0] == (1, pytest.approx(0.02))
    assert one.taken[-1] == (16, pytest.approx(0.32))
    assert one.cuts == pytest.approx((4.0, 4.0, 4.0))
    assert one.all_cuts == pytest.approx((1.25, 1.25, 1.25))
    assert one.heads_cut == pytest.approx(5)
    assert one.budgets == (32, 64, 128)  # 256 is every page
    assert one.starved
    (said,) = tail_sentences([one], 16)
    assert said.startswith(
        "quest-open starves the tail page. In pages of 16, 2% of (layer, head) pick it with 1"
    )
    assert "has few tokens 4.0-fold" in said
    assert "over all queries 1.2-fold, in a tenth of the heads 5.0-fold or more" in said


@pytest.mark.parametrize(
    ("taken", "mass"),
    [
        (seldom, masses(0.8, 0.8)),  # seldom picked, and rightly so
        (seldom, masses(0.8, 0.85)),  # 0.2 / 0.15: below twice
        (lambda tokens, policy: 0.9, HARM),  # picked: whatever is lost, it is not starved
        (lambda tokens, policy: 0.5, HARM),  # at the threshold
        (seldom, masses(0.995, 0.9999)),  # fifty times less of next to nothing
        (seldom, masses(0.9, 0.8)),  # taking it costs
    ],
)
def test_one_rule_alone_claims_nothing(taken, mass) -> None:
    one = found(taken, mass)
    assert not one.starved
    (said,) = tail_sentences([one], 16)
    assert said.startswith("The tail page is not starved in pages of 16")


def test_without_single_queries_the_loss_shown_is_of_all_of_them() -> None:
    one = found(seldom, lost=None)
    assert one.cuts == one.all_cuts == pytest.approx((1.25, 1.25, 1.25))
    assert one.starved


@pytest.mark.parametrize("policies", [("quest",), ("quest-open", "oracle")])
def test_one_policy_alone_answers_nothing(policies: tuple[str, ...]) -> None:
    (evaluation,) = evaluations(replace(Planted(), policies=policies).profile())
    assert tails(evaluation) == ()
