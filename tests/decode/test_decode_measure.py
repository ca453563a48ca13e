"""Measuring steps on a CPU: sums, counts, growth, rewinding; memory and lengths checked before allocating."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decode_models import SMALL, make_step, random_tokens, run_steps
from msgspec.structs import replace

from questprof import environment
from questprof.amdahl.record import whole_budget_check
from questprof.decode import session as sessions
from questprof.decode.config import load_config
from questprof.decode.measure import WARM_UP_STEPS, measure, steps_needed
from questprof.decode.records import PARTS, DecodeSetup
from questprof.decode.session import load_weights, needed_bytes, open_session
from questprof.decode.weights import build_weights
from questprof.errors import Exit, QuestprofError
from questprof.model import Environment, Point


@pytest.fixture(scope="module")
def machine() -> Environment:
    return environment.capture("cpu")


def slowed(launch: Callable[[], None], seconds: float) -> Callable[[], None]:
    def run() -> None:
        time.sleep(seconds)
        launch()

    return run


def test_parts_add_up_to_the_step_and_a_slow_part_shows() -> None:
    weights = build_weights(SMALL, "fp32", "cpu", 1)
    grown = steps_needed(6, "cpu")
    step = make_step(weights, "quest", (100,), (100 + grown,), token_budget=64, dense_layers=1)
    step.parts = tuple(
        part
        if part.name != "rope"
        else type(part)(part.name, part.layer, slowed(part.launch, 0.02), part.kind)
        for part in step.parts
    )
    times = measure(step, 6)
    assert len(times.step_us) == 6
    parts = {part.part: part for part in times.result.parts}
    assert list(parts) == [name for name in PARTS if name in parts]  # in the order of the step
    for number, total in enumerate(times.step_us):
        assert sum(part.samples_us[number] for part in parts.values()) == pytest.approx(total)
    assert statistics.median(parts["rope"].samples_us) >= 3 * 20_000
    assert {name: part.launches for name, part in parts.items()} == {
        "embed": 1, "norm": 7, "qkv": 3, "rope": 3, "append": 3, "score": 2, "select": 2, "attend": 2,
        "dense": 1, "out_proj": 3, "ffn": 6, "head": 1, "sampling": 1,
    }  # fmt: skip
    assert times.result.first_lengths == (100 + WARM_UP_STEPS,)
    assert step.caches.lead.seq_lens == (100 + grown,)
    assert (times.result.bookkeeping_us or 0) > 0
    assert times.result.captures == 0
    assert times.result.overlap_us is None


def test_steps_of_a_session_begin_at_the_same_lengths_with_the_same_boxes(machine: Environment) -> None:
    weights = load_weights(SMALL, "fp32", machine, 2)
    session = open_session(weights, (65, 12), 2, machine, summary_layout="transposed")
    assert session.seq_lens == (60, 12)  # five steps: the long request ends at 65, the short one begins at 12
    before = [cache.bounds(0)[0].clone() for cache in session.caches.layers]
    dense = session.step("dense")
    assert len(session.measure(dense, 2).step_us) == 2
    assert session.caches.lead.seq_lens == (65, 17)
    quest = session.step("quest", token_budget=128, dense_layers=0)
    assert session.caches.lead.seq_lens == (60, 12)
    for cache, boxes in zip(session.caches.layers, before, strict=True):
        assert torch.equal(cache.bounds(0)[0], boxes)
    tokens = random_tokens(3, 2)
    found = run_steps(quest, tokens)
    session.rewind()
    dense.refresh()
    wanted = run_steps(dense, tokens)
    assert (found - wanted).abs().max() < 1e-4


def test_the_bytes_that_are_checked_are_those_of_weights_and_caches() -> None:
    llama = load_config("llama-2-7b")
    needed = needed_bytes(llama, "fp16", "cuda", [131072])
    weights, cache = 2 * 6_738_415_616, (64 << 30) * 17 // 16
    assert weights + cache < needed < 1.05 * (weights + cache)
    assert needed_bytes(llama, "int4", "cuda", [131072]) < needed - 9e9


def test_too_little_memory_is_told_before_anything_is_allocated(
    machine: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(*arguments: Any, **options: Any) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(sessions, "available_bytes", lambda device: 1 << 20)
    monkeypatch.setattr(sessions, "build_weights", built)
    with pytest.raises(QuestprofError, match="fp32 weights of small: it takes") as refusal:
        load_weights(SMALL, "fp32", machine, 1)
    assert refusal.value.status == Exit.MACHINE
    monkeypatch.setattr(sessions, "make_caches", built)
    weights = build_weights(SMALL, "fp32", "cpu", 1)
    with pytest.raises(QuestprofError, match="a fp32 cache of 500 tokens") as refusal:
        open_session(weights, (500,), 2, machine)
    assert refusal.value.status == Exit.MACHINE


def test_a_vocabulary_of_one_token_is_measured(machine: Environment) -> None:
    """Its one token has id 0, and with a budget of the whole length both steps give it the same logit."""
    weights = build_weights(replace(SMALL, vocab_size=1), "fp32", "cpu", 1)
    session = open_session(weights, (70,), 2, machine)
    point = Point(SMALL.attention_shape("fp32"), 70, device="cpu", decode=DecodeSetup("small", "fp32"))
    assert whole_budget_check(session, point).holds
    assert len(session.measure(session.step("quest", token_budget=32), 2).step_us) == 2


def test_lengths_past_the_maximum_of_a_model_are_refused(machine: Environment) -> None:
    weights = build_weights(replace(SMALL, max_position_embeddings=64), "fp32", "cpu", 1)
    with pytest.raises(QuestprofError, match="max_position_embeddings is 64") as refusal:
        open_session(weights, (65,), 2, machine)
    assert refusal.value.status == Exit.USAGE
    assert open_session(weights, (64,), 2, machine).caches.most_tokens == (64,)
