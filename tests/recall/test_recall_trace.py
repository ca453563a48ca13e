"""Traces that cannot be: other shapes, positions past the end, numbers that are none; choices they lack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from recall_traces import Header, Layer, Trace, random_trace

from questprof.errors import QuestprofError
from questprof.recall.cases import Asked, parse_compare, parse_numbers, resolve, sampled_layers
from questprof.recall.policies import parse_policies
from questprof.recall.source import check_header, checked_layer
from questprof.recall.synthetic import KINDS, synthetic

HEADER = Header(num_tokens=20, query_positions=(4, 19), num_layers=2)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"query_positions": (4, 20)}, "a query stands at position 20, outside its 20 tokens"),
        ({"query_positions": ()}, "do not rise, or there are none"),
        ({"query_positions": (4, 4)}, "do not rise"),
        ({"query_positions": (-1, 4)}, "a query stands at position -1, outside"),
        ({"num_qo_heads": 5}, "5 query heads do not divide into 2 KV heads"),
        ({"num_qo_heads": 1}, "1 query head does not divide into 2 KV heads"),
        ({"evidence": (("answer", 3, 20),)}, "the span 'answer' is 3..20, outside its 20 tokens"),
        ({"segments": (("question", 9, 8),)}, "the span 'question' is 9..8"),
    ],
)
def test_headers_that_no_trace_has(changes: dict, why: str) -> None:
    with pytest.raises(QuestprofError, match=why.replace(".", r"\.")):
        check_header(replace(HEADER, **changes))
    check_header(HEADER)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_layers_of_another_model_are_refused(name: str) -> None:
    layer = random_trace(HEADER).layer(1)
    shapes = {"q": (2, 9, 64), "k": (20, 3, 64), "v": (21, 2, 64)}
    other = replace(layer, **{name: np.zeros(shapes[name], np.float32)})
    with pytest.raises(QuestprofError, match=rf"layer 1 of the trace: {name} is \[{shapes[name][0]}, "):
        checked_layer(Trace(HEADER, {1: other}), 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_keys_that_are_no_numbers_are_refused(value: float) -> None:
    layer: Layer = random_trace(HEADER).layer(0)
    layer.k[3, 1, 7] = value
    with pytest.raises(QuestprofError, match="k holds a NaN or infinity"):
        checked_layer(Trace(HEADER, {0: layer}), 0)


def test_scope_takes_whole_groups_and_shows_what_was_asked() -> None:
    scope = resolve(Asked(layers=(1,), heads=(4, 5)), HEADER)
    assert (scope.layers, scope.heads, scope.kv_heads) == ((1,), (4, 5), (1,))
    assert scope.read_heads == (3, 4, 5)
    assert scope.shown == [1, 2]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked(layers=(2,)), "layer 2: the trace has layers 0-1"),
        (Asked(heads=(6,)), "head 6: the trace has heads 0-5"),
        (Asked(page_sizes=(8, 16), budgets=(8, 64)), "budget 8 with page size 16"),
        (Asked(page_sizes=(256,), budgets=(256,)), "page size 256"),
    ],
)
def test_choices_that_the_trace_or_the_budget_lacks(asked: Asked, why: str) -> None:
    with pytest.raises(QuestprofError, match=why):
        resolve(asked, HEADER)


def test_layers_that_are_not_stored_are_named_by_ranges() -> None:
    with pytest.raises(QuestprofError, match="the trace has layers 0,2-4"):
        resolve(Asked(layers=(1,)), replace(HEADER, num_layers=6, stored=(0, 2, 3, 4)))


def test_spelling() -> None:
    assert parse_numbers("0,5-7, 2", "layer") == (0, 2, 5, 6, 7)
    assert parse_numbers(None, "layer") == ()
    assert [policy.name for policy in parse_policies("oracle, quest,oracle")] == ["oracle", "quest"]
    for wrong in ("", "a", "3-1", "1-", "-1", "1,,2"):
        with pytest.raises(QuestprofError, match="neither a number nor a rising range"):
            parse_numbers(wrong, "layer")
    with pytest.raises(QuestprofError, match="policy 'best': it is unknown"):
        parse_policies("quest,best")
    with pytest.raises(QuestprofError, match="all, sample or none"):
        parse_compare("some")


def test_the_sample_spreads_over_the_trace() -> None:
    layers = tuple(range(30))
    assert sampled_layers("sample", layers) == (0, 10, 19, 29)
    assert sampled_layers("all", layers) == layers
    assert sampled_layers("sample", (3, 4)) == (3, 4)
    assert sampled_layers("none", layers) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_traces_are_traces_and_say_what_they_are(kind: str) -> None:
    trace = synthetic(kind, num_tokens=300, num_queries=3)
    check_header(trace.header)
    first, again = checked_layer(trace, 0), checked_layer(trace, 0)
    assert np.array_equal(first.k, again.k)
    assert not np.array_equal(first.k, checked_layer(trace, 1).k)
    assert not np.array_equal(first.k, checked_layer(synthetic(kind, num_tokens=300, seed=1), 0).k)
    assert trace.synthetic
    assert trace.header.model == f"synthetic {kind}"


def test_a_planted_token_holds_most_of_the_weight() -> None:
    trace = synthetic("planted", num_tokens=300, num_queries=3)
    layer, (_, needle, _) = trace.layer(0), trace.header.evidence[0]
    for head in range(6):
        logits = layer.k[:298, head // 3].astype(np.float64) @ layer.q[0, head] / 8
        weights = np.exp(logits - logits.max())
        assert weights[needle] / weights.sum() > 0.9


def test_an_unknown_synthetic_is_refused() -> None:
    with pytest.raises(QuestprofError, match="planted, clustered, gaussian"):
        synthetic("spiral")
