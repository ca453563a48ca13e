"""Times of whole decode steps: the total unprofiled, its parts apart, while the cache grows.

On a GPU a sample is one replay of the step's graph between two events, over consecutive real steps, queued
while the device is still kept busy: the host's launch is not in it, and is told by steps that an idle device
waits for. Parts come from traced replays, or from graphs that lack one part. On a CPU a sample is one run,
and the clock that is read before and after it is read between its parts too. Growing the caches lies outside
of what is timed, and is told.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from questprof.decode import trace
from questprof.decode.config import step_weight_bytes
from questprof.decode.records import PARTS, DecodeResult, PartName, PartTime
from questprof.decode.step import DecodeStep
from questprof.structs import Struct
from questprof.timing.cuda_steps import HOLD_CYCLES, MOST_CYCLES, EventClock

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS = 3
TRACED_STEPS = 5
EAGER_STEPS = 5
LEFT_OUT_ROUNDS = 5

How = Literal["activity trace", "leave-one-out"]


class StepTimes(Struct, frozen=True):
    """Raw samples of single steps in us, as launched for use (`step_us`) and launch by launch (`eager_us`).

    On a GPU `step_us` are replays of a CUDA graph queued behind other work, `idle_us` such replays on a
    device that has nothing queued and waits for the host; on a CPU there is no graph, and only `step_us`.
    """

    step_us: tuple[float, ...]
    eager_us: tuple[float, ...]
    result: DecodeResult
    idle_us: tuple[float, ...] = ()


def steps_needed(num_steps: int, device: str, how: How = "activity trace") -> int:
    """Steps that `measure` takes in all, which the caches must have room for."""
    if device == "cpu":
        return WARM_UP_STEPS + num_steps
    parts = TRACED_STEPS if how == "activity trace" else 0
    return WARM_UP_STEPS + num_steps + 1 + EAGER_STEPS + parts + 1


def measure(step: DecodeStep, num_steps: int, *, how: How = "activity trace") -> StepTimes:
    """Samples of `num_steps` consecutive steps, and where their time goes; the caches grow by `steps_needed`.

    `how` says how a GPU's parts are told apart; without CUPTI they are left out of graphs all the same.
    """
    on_cpu = step.weights.device == "cpu"
    return _measure_cpu(step, num_steps) if on_cpu else _measure_cuda(step, num_steps, how)


@dataclass
class _Growth:
    """Advances a step and keeps how long that took on the host."""

    step: DecodeStep
    samples_us: list[float] = field(default_factory=list)

    def advance(self) -> None:
        started = time.perf_counter_ns()
        self.step.advance()
        self.samples_us.append((time.perf_counter_ns() - started) / 1e3)


def _measure_cpu(step: DecodeStep, num_steps: int) -> StepTimes:
    growth = _Growth(step)
    for _ in range(WARM_UP_STEPS):
        growth.advance()
        step.run_eager()
    first_lengths = step.caches.lead.seq_lens
    totals: list[float] = []
    parts: dict[PartName, list[float]] = {}
    for _ in range(num_steps):
        growth.advance()
        clocked = _clocked(step)
        totals.append(sum(clocked.values()))
        for name, us in clocked.items():
            parts.setdefault(name, []).append(us)
    counts = _launch_counts(step)
    times = tuple(
        PartTime(name, "clock", tuple(parts[name]), counts[name]) for name in PARTS if name in parts
    )
    result = _result(step, growth, times, num_steps, first_lengths, note="")
    return StepTimes(tuple(totals), (), result)


def _clocked(step: DecodeStep) -> dict[PartName, float]:
    """Microseconds of each part in one run: what lies between the readings is counted somewhere."""
    found: dict[PartName, float] = {}
    before = time.perf_counter_ns()
    for part in step.parts:
        part.launch()
        now = time.perf_counter_ns()
        found[part.name] = found.get(part.name, 0.0) + (now - before) / 1e3
        before = now
    return found


def _launch_counts(step: DecodeStep) -> dict[PartName, int]:
    counts: dict[PartName, int] = {}
    for part in step.parts:
        counts[part.name] = counts.get(part.name, 0) + 1
    return counts


def _measure_cuda(step: DecodeStep, num_steps: int, how: How) -> StepTimes:
    growth = _Growth(step)
    eager = _eager(step, growth)
    plan, note = _planned(step) if how == "activity trace" else ((), "")
    graph = step.capture()  # after the profiler's first session, which must know of graphs it will trace
    idle = []
    for _ in range(WARM_UP_STEPS):
        growth.advance()
        idle.append(_between_events(graph.replay))
    first_lengths = step.caches.lead.seq_lens
    totals = []
    for _ in range(num_steps):
        growth.advance()
        totals.append(_queued_us(graph.replay))
    traced: list[trace.TracedStep] = []
    try:
        traced = _traced(graph, growth, plan) if plan else []
    except (RuntimeError, ValueError) as refusal:
        note = str(refusal)
    if note:
        note = f"no activity trace: {note}; parts are left out of graphs instead"
    times = _from_trace(traced) if traced else _left_out(step, graph, growth)
    captures = 1 if traced else 1 + len(times)
    result = _result(step, growth, times, num_steps, first_lengths, captures, traced, note)
    # The first replay of a graph also uploads it.
    return StepTimes(tuple(totals), tuple(eager), result, tuple(idle[1:]))


def _planned(step: DecodeStep) -> tuple[tuple[tuple[str, int], ...], str]:
    """((part, activities it launches) in order, why there are none): each kind of part is traced alone."""
    kinds = {part.kind: part for part in step.parts}
    try:
        counts = {kind: len(trace.record(part.launch)) for kind, part in kinds.items()}
    except RuntimeError as refusal:
        return (), str(refusal)
    return tuple((part.name, counts[part.kind]) for part in step.parts), ""


def _eager(step: DecodeStep, growth: _Growth) -> list[float]:
    """Microseconds of steps launched one kernel at a time; the first compiles and is dropped."""
    import torch

    growth.advance()
    step.run_eager()
    torch.cuda.synchronize()
    samples = []
    for _ in range(EAGER_STEPS):
        growth.advance()
        samples.append(_between_events(step.run_eager))
    return samples


def _queued_us(run: Callable[[], None]) -> float:
    """Microseconds of `run` on the device, which is kept busy until the host has queued all of it."""
    clock, cycles = EventClock(), HOLD_CYCLES
    while True:
        clock.finish()
        clock.hold(cycles)
        start = clock.mark()
        run()
        end = clock.mark()
        early = clock.reached(start)
        clock.finish()
        if not early or cycles >= MOST_CYCLES:
            return clock.us(start, end)
        cycles *= 4


def _between_events(run: Callable[[], None]) -> float:
    """Microseconds of `run` on the device's stream, which is idle when it begins."""
    import torch

    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _traced(
    graph: torch.cuda.CUDAGraph, growth: _Growth, plan: Sequence[tuple[str, int]]
) -> list[trace.TracedStep]:
    """Replays under the profiler, cut into parts."""
    found = []
    for _ in range(TRACED_STEPS):
        growth.advance()
        found.append(trace.cut(trace.record(graph.replay), plan))
    return found


def _from_trace(traced: Sequence[trace.TracedStep]) -> tuple[PartTime, ...]:
    parts = [name for name in PARTS if name in traced[0].parts_us]
    return tuple(
        PartTime(
            name,
            "activity trace",
            tuple(step.parts_us[name] for step in traced),
            traced[0].launches[name],
        )
        for name in parts
    )


def _left_out(step: DecodeStep, graph: torch.cuda.CUDAGraph, growth: _Growth) -> tuple[PartTime, ...]:
    """Of each part, the time that a graph without it is shorter by, the two replayed in turn."""
    counts = _launch_counts(step)
    growth.advance()
    found = []
    for name in (name for name in PARTS if name in counts):
        lacking = step.capture(frozenset([name]))
        _queued_us(lacking.replay)
        saved = [_queued_us(graph.replay) - _queued_us(lacking.replay) for _ in range(LEFT_OUT_ROUNDS)]
        found.append(PartTime(name, "leave-one-out", tuple(saved), counts[name]))
    return tuple(found)


def _result(
    step: DecodeStep,
    growth: _Growth,
    parts: Iterable[PartTime],
    num_steps: int,
    first_lengths: tuple[int, ...],
    captures: int = 0,
    traced: Sequence[trace.TracedStep] = (),
    note: str = "",
) -> DecodeResult:
    weights = step.weights
    overlapped: dict[str, int] = {}
    for name in traced[0].overlapped if traced else ():
        overlapped[name] = int(statistics.median(one.overlapped.get(name, 0) for one in traced))
    fused = "select is fused into attend" if step.is_fused else ""
    return DecodeResult(
        parts=tuple(parts),
        linears=weights.choices,
        num_steps=num_steps,
        first_lengths=first_lengths,
        weight_bytes=step_weight_bytes(weights.config, weights.weight_format, weights.device),
        overlap_us=statistics.median(one.overlap_us for one in traced) if traced else None,
        overlapped=overlapped,
        traced_us=tuple(one.total_us for one in traced),
        captures=captures,
        bookkeeping_us=statistics.median(growth.samples_us),
        note="; ".join(filter(None, (fused, note))),
    )
