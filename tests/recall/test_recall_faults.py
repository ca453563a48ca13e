"""Planted faults in the product's stages: each must fail the comparison that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from recall_traces import Header, random_trace

from questprof.backends import Backend, load
from questprof.recall import engine
from questprof.recall.cases import Asked
from questprof.recall.policies import parse_policies
from questprof.recall.rows import TraceInfo

HEADER = Header(num_tokens=130, query_positions=(3, 64, 100, 127, 129))
ASKED = Asked((16,), (32, 64), parse_policies("quest,quest-open,fixed"))
INFO = TraceInfo("id", "test", False, "test", 130, HEADER.query_positions, 10, 0.125)
Stage = Callable[..., Any]


def failing(backend: Backend | None, header: Header = HEADER, **changes: Any) -> dict[str, set[str]]:
    """The comparisons that fail, by policy, when the stages are those of `backend`."""
    asked = replace(ASKED, **changes)
    path = engine.Path(backend, "cpu")
    records = list(engine.run(random_trace(header, 1), INFO, asked, path, "env"))
    found: dict[str, set[str]] = {}
    for record in records:
        wrong = {check.stage for check in record.checks if not check.holds}
        assert (record.status == "wrong") == bool(wrong)
        assert bool(record.reason) == bool(wrong)
        if wrong:
            found.setdefault(record.point.policy, set()).update(wrong)
    return found


def spoiled(stage: str, make: Callable[[Stage], Stage]) -> Backend:
    backend = load("questprof", "cpu")
    return replace(backend, stages={**backend.stages, stage: make(backend.stages[stage])})


def test_sound_stages_fail_nothing() -> None:
    assert failing(load("questprof", "cpu")) == {}
    assert failing(None) == {}


def test_a_box_that_misses_a_key_is_caught() -> None:
    def tighter(append: Stage) -> Stage:
        def stage(cache: Any, keys: Any, values: Any, new_indptr: Any) -> None:
            append(cache, keys, values, new_indptr)
            cache.pool.summary.data[:, :, 1].clamp_(max=1.0)

        return stage

    wrong = failing(spoiled("append", tighter))
    assert {"score", "select"} <= wrong["quest"]
    assert wrong["fixed"] == {"score"}


def test_a_box_over_keys_that_are_not_seen_is_caught() -> None:
    def shared_tail(append: Stage) -> Stage:
        """The last page's box is that of the whole page, later tokens included."""

        def stage(cache: Any, keys: Any, values: Any, new_indptr: Any) -> None:
            append(cache, keys, values, new_indptr)
            for request, pages in enumerate(cache.num_pages):
                if pages:
                    last = cache.physical_pages(request)[-1]
                    cache.pool.summary.data[last, :, 1] += 0.5

        return stage

    assert "score" in failing(spoiled("append", shared_tail))["quest-open"]


@pytest.mark.parametrize("stages", [("attend",), ("dense",)])
def test_a_dropped_tail_token_is_caught(stages: tuple[str, ...]) -> None:
    def shorter(attention: Stage) -> Stage:
        def stage(q: Any, cache: Any, *rest: Any) -> None:
            cache.last_page_len.sub_(1)
            try:
                attention(q, cache, *rest)
            finally:
                cache.last_page_len.add_(1)

        return stage

    wrong = failing(spoiled(stages[0], shorter))
    assert "mass" in wrong["quest"]
    assert "mass" in wrong["fixed"]


@pytest.mark.parametrize("step", [1, -1])
def test_shifted_page_ids_are_caught(step: int) -> None:
    def shifted(select: Stage) -> Stage:
        def stage(scores: Any, cache: Any, select_indptr: Any, page_ids: Any, take_tail: bool) -> None:
            select(scores, cache, select_indptr, page_ids, take_tail)
            page_ids.add_(step)

        return stage

    wrong = failing(spoiled("select", shifted))
    assert wrong["quest"] == wrong["quest-open"] == {"select"}
    assert "fixed" not in wrong


def test_a_select_that_forgets_the_tail_is_caught() -> None:
    def open_select(select: Stage) -> Stage:
        return lambda *arguments: select(*arguments[:-1], False)

    wrong = failing(spoiled("select", open_select))
    assert wrong == {"quest": {"select"}}


def test_repeated_pages_are_caught() -> None:
    def twice(select: Stage) -> Stage:
        def stage(scores: Any, cache: Any, select_indptr: Any, page_ids: Any, take_tail: bool) -> None:
            page_ids.zero_()

        return stage

    assert failing(spoiled("select", twice))["quest"] == {"select"}


def test_wrong_values_are_caught_by_the_output_alone() -> None:
    def swapped(append: Stage) -> Stage:
        def stage(cache: Any, keys: Any, values: Any, new_indptr: Any) -> None:
            append(cache, keys, values.flip(-1).contiguous(), new_indptr)

        return stage

    wrong = failing(spoiled("append", swapped))
    assert wrong["quest"] == wrong["fixed"] == {"output"}
    assert failing(spoiled("append", swapped), compare="none") == {}


def test_a_fault_in_one_layer_is_caught_in_the_sample_or_said_to_be_sampled() -> None:
    header = Header(num_tokens=40, query_positions=(20, 39), num_layers=6)

    def nothing(attend: Stage) -> Stage:
        return lambda *arguments: None

    backend = spoiled("attend", nothing)
    assert "mass" in failing(backend, header, compare="sample")["quest"]
    records = list(
        engine.run(
            random_trace(header, 1),
            INFO,
            replace(ASKED, compare="sample"),
            engine.Path(load("questprof", "cpu"), "cpu"),
            "env",
        )
    )
    sampled = {check.stage for record in records for check in record.checks if check.sampled}
    assert sampled == {"mass", "output"}


def test_nothing_written_is_no_number() -> None:
    def nothing(stage: Stage) -> Stage:
        return lambda *arguments: None

    path = engine.Path(spoiled("attend", nothing), "cpu")
    records = list(engine.run(random_trace(HEADER, 1), INFO, ASKED, path, "env"))
    reasons = {record.reason for record in records if record.status == "wrong"}
    assert reasons == {
        "mass: no number, at most 0.0001 allowed; output: no number, at most 0.0001 allowed",
    }


def test_an_ordinary_softmax_scale_of_another_model_is_kept() -> None:
    """Half the usual scale: the kernels get the queries halved, float64 the scale."""
    assert failing(load("questprof", "cpu"), replace(HEADER, softmax_scale=0.0625)) == {}


def test_selection_is_exact_where_scores_tie() -> None:
    """Keys that repeat page by page: all bounds are equal, and both paths take the lower pages."""
    trace = random_trace(HEADER, 1)
    for layer in trace.held.values():
        layer.k[:] = np.resize(layer.k[:16], layer.k.shape)
    records = list(engine.run(trace, INFO, ASKED, engine.Path(load("questprof", "cpu"), "cpu"), "env"))
    assert {record.status for record in records} == {"ok"}
