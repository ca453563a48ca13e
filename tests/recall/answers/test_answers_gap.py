"""The score gap as a predictor: planted ones are found, chance is called nothing, areas agree with
counting."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_recall import Planted

from questprof.recall.answers import gap
from questprof.recall.answers.evaluation import Evaluation, evaluations
from questprof.recall.answers.finding import answers
from questprof.recall.answers.step_sentences import gap_sentences

POSITIONS = tuple(range(216, 256))


def one(planted: Planted) -> Evaluation:
    (found,) = evaluations(planted.profile())
    return found


def drawn(seed: int = 0):
    """Whether (layer, head, query) fails: every third or so, at random."""
    rng = random.Random(seed)
    fails = {(a, b, q): rng.random() < 0.35 for a in (0, 1) for b in (0, 1, 2) for q in range(40)}
    return lambda layer, head, query: fails[layer, head, query]


def planted(gap_of, fails=None) -> Planted:
    fails = fails or drawn()
    return replace(
        Planted(),
        positions=POSITIONS,
        missed=lambda *of: 0.2 if fails(*of) else 0.01,
        gap=lambda *of: gap_of(fails(*of), *of),
    )


@pytest.mark.parametrize("low", [True, False])
def test_a_gap_that_tells_is_found_with_its_direction_and_threshold(low: bool) -> None:
    """Failures have gaps of 0.1, the others of 0.9, or the other way: an AUC of 1, no false alarm, none
    missed."""
    found = gap.gaps(one(planted(lambda fails, *of: 0.1 if fails == low else 0.9)))
    assert len(found) == 4
    for each in found:
        assert each.small_gap_fails == low
        assert each.threshold == pytest.approx(0.1 if low else 0.9)
        assert (each.precision, each.recall) == (1, 1)
        assert (each.auc.value, each.auc.low, each.auc.says) == (1, 1, "predicts")
        assert each.auc_within
        assert each.auc_within.value == 1
        assert each.calibrated_on == (216, 235)
        assert each.tested_on == (236, 255)


def test_a_gap_by_chance_predicts_nothing_and_that_is_said() -> None:
    rng = random.Random(1)
    profile = planted(lambda fails, *of: rng.random()).profile()
    (found,) = answers(profile)
    assert {each.auc.says for each in found.gaps} == {"nothing"}
    said = " ".join(gap_sentences(found))
    assert "predicts nothing" in said
    assert "calibrated on the queries at 216 to 235, tested on those at 236 to 255" in said
    assert "it reaches 0.7 at 0 of them" in said
    alone = " ".join(gap_sentences(replace(found, gaps=found.gaps[:1])))
    assert "At the one page size and budget that can be tested the AUC does not reach 0.7, 0.5 being" in alone
    assert "Over all" not in alone


def test_a_gap_that_only_knows_the_head_tells_no_step() -> None:
    """Head 0 always fails and has small gaps, head 1 never and has large ones; within a head all is
    chance."""
    chance = drawn(2)

    def fails(layer: int, head: int, query: int) -> bool:
        return (True, False, chance(layer, head, query))[head]

    rng = random.Random(3)
    (each, *_) = gap.gaps(
        one(planted(lambda failed, layer, head, query: (0, 2, 1)[head] + rng.random(), fails))
    )
    assert each.auc.low > 0.7
    assert each.auc_within
    assert each.auc_within.says == "nothing"
    assert each.auc_head
    assert each.auc_head.value > 0.8


def test_what_the_first_half_shows_alone_does_not_carry_over() -> None:
    """The gap tells everything in the first half and nothing in the second: the test half judges."""
    rng = random.Random(4)

    def told(fails: bool, layer: int, head: int, query: int) -> float:
        return (0.1 if fails else 0.9) if query < 20 else rng.random()

    (each, *_) = gap.gaps(one(planted(told)))
    assert each.auc.says == "nothing"
    assert each.small_gap_fails


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"positions": tuple(range(250, 256))}, "6 queries do not make two halves"),
        ({}, "no budget fails some (layer, head, query) and suffices for others in both halves"),
    ],
)
def test_too_few_or_no_failures_are_said_not_guessed(changes: dict[str, object], why: str) -> None:
    (found,) = answers(replace(Planted(), **changes).profile())
    assert found.gaps == ()
    (said,) = gap_sentences(found)
    assert why in said


def test_a_query_whose_pages_all_fit_has_no_gap_and_does_not_count() -> None:
    profile = planted(lambda fails, layer, head, query: -1e-4 if query < 2 else (0.1 if fails else 0.9))
    (each, *_) = gap.gaps(one(profile))
    assert each.calibrated_on == (218, 236)
    assert each.auc.value == 1


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30), heads=st.integers(1, 4), queries=st.integers(2, 6))
def test_areas_are_those_of_counting_every_pair(seed: int, heads: int, queries: int) -> None:
    """Pairs of a failure and a success, one by one: won, or half of a tie."""
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 4, (heads, queries)).astype(float)
    fails = rng.random((heads, queries)) < 0.5
    places = [(h, q) for h in range(heads) for q in range(queries)]
    won = pairs = own_won = own_pairs = 0.0
    for a in places:
        for b in places:
            if fails[a] and not fails[b]:
                wins = 1.0 if score[a] > score[b] else 0.5 if score[a] == score[b] else 0.0
                won, pairs = won + wins, pairs + 1
                own_won, own_pairs = own_won + wins * (a[0] == b[0]), own_pairs + (a[0] == b[0])
    found = gap._wins(score, fails)
    assert (found[0].sum(), found[1].sum()) == (won, pairs)
    within = gap._tested_within(score, fails)
    assert (within.value if within else None) == (pytest.approx(own_won / own_pairs) if own_pairs else None)


def test_the_threshold_is_where_hits_less_false_alarms_are_most() -> None:
    """Scores 4..1, failures at 4 and 3: J is 1/2, 1, 1/2, 0 from the top; the least score taken is 3."""
    assert gap._youden(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[False, False, True, True]])) == 3.0
    # Of equal scores a threshold takes all: at 2, one hit of one and one false alarm of two.
    assert gap._youden(np.array([[2.0, 2.0, 1.0]]), np.array([[True, False, False]])) == 2.0
