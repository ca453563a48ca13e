"""Measuring on a GPU with the device's calls replaced: graphs run their parts, kernels take known times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from decode_models import SMALL, make_step, random_tokens, run_steps

from questprof.decode import measure as measuring
from questprof.decode import trace
from questprof.decode.config import Device as Placement
from questprof.decode.operations import load_operations
from questprof.decode.step import DecodeStep
from questprof.decode.trace import Activity
from questprof.decode.weights import build_weights

KERNEL_US = {"qkv": 3.0, "ffn": 5.0}
HOST_US = 100.0
"""How long an idle device waits for the host."""
KERNELS = {"sampling": 2}
"""Activities of one launch of a part, where it is not one; a kernel takes 1 us unless it is told above."""


class Device:
    """Counts launches and tells how long they take: a kernel follows the one before after 0.25 us."""

    def __init__(self, step: DecodeStep) -> None:
        self.log: list[str] = []
        self.step = step
        step.parts = tuple(replace(part, launch=self._logged(part.name, part.launch)) for part in step.parts)

    def _logged(self, name: str, launch: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            self.log += [name] * KERNELS.get(name, 1)
            launch()

        return run

    def capture(self, step: DecodeStep, without: frozenset[str] = frozenset()) -> Any:
        graph = type("Graph", (), {})()
        graph.replay = lambda: step.run_eager(without)
        return graph

    def ran(self, run: Callable[[], None]) -> list[str]:
        self.log.clear()
        run()
        return list(self.log)

    def between_events(self, run: Callable[[], None]) -> float:
        return sum(KERNEL_US.get(name, 1.0) + 0.25 for name in self.ran(run))

    def between_idle_events(self, run: Callable[[], None]) -> float:
        return HOST_US + self.between_events(run)

    def record(self, run: Callable[[], None]) -> list[Activity]:
        now, found = 0, []
        for name in self.ran(run):
            found.append(Activity(name, now, now + round(1e3 * KERNEL_US.get(name, 1.0))))
            now = found[-1].end_ns + 250
        return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Device:
    weights = build_weights(SMALL, "fp32", "cpu", 1)
    grown = measuring.steps_needed(4, "cuda")
    step = make_step(weights, "quest", (30,), (30 + grown,), token_budget=32, dense_layers=1)
    step.weights = replace(weights, device="cuda")
    found = Device(step)
    monkeypatch.setattr(DecodeStep, "capture", lambda own, without=frozenset(): found.capture(own, without))
    monkeypatch.setattr(measuring, "_between_events", found.between_idle_events)
    monkeypatch.setattr(measuring, "_queued_us", found.between_events)
    monkeypatch.setattr(trace, "record", found.record)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return found


LAUNCHES = {
    "embed": 1, "norm": 7, "qkv": 3, "rope": 3, "append": 3, "score": 2, "select": 2, "attend": 2, "dense": 1,
    "out_proj": 3, "ffn": 6, "head": 1, "sampling": 1,
}  # fmt: skip


def test_traced_replays_tell_the_parts(fake: Device) -> None:
    times = measuring.measure(fake.step, 4)
    kernels = {name: count * KERNELS.get(name, 1) for name, count in LAUNCHES.items()}
    parts = {part.part: part for part in times.result.parts}
    assert {name: part.launches for name, part in parts.items()} == kernels
    for name, part in parts.items():
        assert part.method == "activity trace"
        assert part.samples_us == pytest.approx([kernels[name] * KERNEL_US.get(name, 1.0)] * 5)
    whole = sum(count * (KERNEL_US.get(name, 1.0) + 0.25) for name, count in kernels.items())
    assert times.step_us == pytest.approx([whole] * 4)
    assert times.idle_us == pytest.approx([whole + HOST_US] * 2)
    assert times.eager_us == pytest.approx([whole + HOST_US] * measuring.EAGER_STEPS)
    assert times.result.traced_us == pytest.approx([whole - 0.25] * 5)
    assert times.result.overlap_us == 0
    assert times.result.captures == 1
    assert times.result.note == ""
    assert fake.step.caches.lead.seq_lens[0] <= fake.step.caches.most_tokens[0]


def test_without_a_trace_parts_are_left_out_of_graphs(fake: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(run: Callable[[], None]) -> list[Activity]:
        raise RuntimeError("no CUPTI here")

    monkeypatch.setattr(trace, "record", record)
    times = measuring.measure(fake.step, 4)
    assert "no activity trace: no CUPTI here" in times.result.note
    for part in times.result.parts:
        kernels = LAUNCHES[part.part] * KERNELS.get(part.part, 1)
        assert part.method == "leave-one-out"
        assert part.samples_us == pytest.approx([kernels * (KERNEL_US.get(part.part, 1.0) + 0.25)] * 5)
        assert part.launches == LAUNCHES[part.part]
    assert times.result.captures == 1 + len(LAUNCHES)


def test_the_step_is_the_same_through_the_kernels_of_a_gpu(device: Placement) -> None:
    weights = build_weights(SMALL, "bf16", device, 1)
    tokens = random_tokens(3, 1)
    found = []
    for operations in (load_operations("cpu"), load_operations("cuda", dependent=False)):
        own = replace(weights, operations=operations)
        found.append(run_steps(make_step(own, "dense", (20,), (30,)), tokens))
    error = (found[0].float() - found[1].float()).abs().max()
    # The interpreter cuts bf16 numbers off where the CPU rounds them: twice the error a rounding makes.
    assert error <= 16 * torch.finfo(torch.bfloat16).eps * found[0].abs().max()
