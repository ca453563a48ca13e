"""Needs from query to query, by type and between traces, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted_recall import Planted

from questprof.recall.answers.evaluation import evaluations
from questprof.recall.answers.finding import between_traces
from questprof.recall.answers.segments import query_types
from questprof.recall.answers.slack import slacks
from questprof.recall.answers.step_sentences import step_sentences, trace_sentence
from questprof.recall.answers.steps import Steps, steps
from questprof.recall.rows import Span

SPANS = (Span("question", 240, 243), Span("answer", 244, 253))


def found(planted: Planted) -> Steps:
    (evaluation,) = evaluations(planted.profile())
    return steps(evaluation, 16)


def test_needs_of_each_query_by_hand() -> None:
    """Heads of both layers need 1, 2 and 3 + query pages: the median of 6 is 2, nine tenths (5.4) take all
    6."""
    one = found(replace(Planted(), needed=lambda layer, head, share, query: (1, 2, 3 + query)[head]))
    assert [step.median_tokens for step in one.steps] == [32] * 16
    assert [step.most_tokens for step in one.steps] == [(3 + query) * 16 for query in range(16)]
    assert one.steps[0].position == 240
    assert one.spread == pytest.approx((16 * 4.5, 16 * 16.5))  # p10 and p90 of 3..18: 3 + 1.5, 3 + 13.5


def test_what_lies_between_heads_and_what_between_queries() -> None:
    """Needs 1 and 4 by head alone: all variance between heads. 1 and 4 in turn for every head: none of it."""
    by_head = found(replace(Planted(), needed=lambda layer, head, share, query: 4 if head else 1))
    assert by_head.between_heads == pytest.approx(1)
    assert by_head.change == 0
    by_query = found(replace(Planted(), needed=lambda layer, head, share, query: 4 if query % 2 else 1))
    assert by_query.between_heads == pytest.approx(0)
    assert by_query.change == pytest.approx(3 / 2.5)  # |4 - 1| over the mean of 1 and 4


def test_both_halves_of_the_variance_by_hand() -> None:
    """log2 of 1, 4 (head 0) and 4, 16 (others): means 1 and 3; within, +-1 everywhere.

    Of 6 heads 2 have mean 1 and 4 mean 3: variance 4 x (1/3) x (2/3) = 8/9 between, 1 within.
    """

    def needed(layer: int, head: int, share: int, query: int) -> int:
        return (1, 4)[query % 2] * (4 if head else 1)

    assert found(replace(Planted(), needed=needed)).between_heads == pytest.approx((8 / 9) / (8 / 9 + 1))


def test_nothing_varies_and_a_single_query() -> None:
    assert found(replace(Planted(), needed=lambda *_: 3)).between_heads is None
    one = found(replace(Planted(), positions=(255,)))
    assert one.change is None
    assert list(step_sentences(one)) == []


def test_types_are_segments_else_what_was_generated() -> None:
    trace = evaluations(replace(Planted(), segments=SPANS).profile())[0].trace
    assert query_types(trace) == {
        "question": (0, 1, 2, 3),
        "answer": tuple(range(4, 14)),
        "the rest": (14, 15),
    }
    from msgspec.structs import replace as changed

    assert query_types(changed(trace, segments=(), num_generated=6)) == {
        "the text": tuple(range(10)),
        "generated": tuple(range(10, 16)),
    }
    assert list(query_types(changed(trace, segments=()))) == ["the text"]


def test_needs_and_slack_by_type() -> None:
    planted = replace(
        Planted(),
        segments=SPANS,
        needed=lambda layer, head, share, query: 2 if query < 4 else 6 if query < 14 else 1,
        query_slack=lambda query: 5.0 if query < 4 else 9.0 if query < 14 else 7.0,
    )
    one = found(planted)
    assert [(t.name, t.num_queries, t.middle_tokens) for t in one.types] == [
        ("question", 4, 32),
        ("answer", 10, 96),
        ("the rest", 2, 16),
    ]
    (said, _) = step_sentences(one)
    assert "question 32, answer 96, the rest 16" in said
    (slack,) = slacks(evaluations(planted.profile())[0])
    assert slack.by_type == (
        ("question", pytest.approx(5)),
        ("answer", pytest.approx(9)),
        ("the rest", pytest.approx(7)),
    )


def test_traces_beside_each_other() -> None:
    """Another document and seed: 2 pages against 5, in one profile."""
    other = replace(
        Planted(),
        trace_id="b",
        source="b.safetensors",
        generation="seed 1",
        needed=lambda *_: 5,
        positions=(250, 255),
    )
    profile = replace(Planted(), needed=lambda *_: 2).profile(other)
    both = between_traces(profile)
    assert [(t.source, t.most_tokens, t.num_queries) for t in both] == [
        ("a.safetensors", 32, 16),
        ("b.safetensors", 80, 2),
    ]
    said = trace_sentence(both)
    assert "32 in a.safetensors" in said
    assert "80 in b.safetensors (seed 1)" in said
    assert between_traces(Planted().profile()) == ()
    assert trace_sentence(()) == ""


def test_slack_before_and_after_rope() -> None:
    planted = replace(Planted(), page_sizes=(8, 16), slack=lambda layer, head, size: size / 2, pre_rope=4.0)
    first, second = slacks(evaluations(planted.profile())[0])
    assert (first.rope_ratio, second.rope_ratio) == (1.0, 2.0)
    assert slacks(evaluations(Planted().profile())[0])[0].rope_ratio is None
