"""Single steps on a GPU: what p50, p95 and p99 are told from, as a mean over many launches has no tail.

A step is one launch of a CUDA graph that holds one chain (or one dense pass), between two events. In every
round each candidate makes one step, all of them queued behind a kernel that only waits: so no step waits for
the host, which is checked. Consecutive steps of a candidate use consecutive caches of its rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Final, Protocol

from questprof.model import CACHE_MULTIPLE, SingleSteps
from questprof.policies import Step
from questprof.timing.candidates import Candidate, cache_state

STEP_STAGES: Final = ("quest", "dense")
"""What a decode step runs, and so has a tail of its own."""
MOST_BUFFERS: Final = 128
"""Graphs captured a candidate at most; where those are too few for cold, the label says warm."""
HOLD_CYCLES: Final = 1 << 20
"""GPU cycles of the first wait, half a millisecond: a launch and two events take the host some 10 us."""
MOST_CYCLES: Final = 1 << 27
"""Beyond this wait, some 70 ms, a host that is still not done queueing never will be in time."""


ROUNDING: Final = 1e-6
"""Of a sample: CUDA gives milliseconds as a 32-bit float, 6e-8 of it apart."""


class Clock(Protocol):
    """What a GPU's stream offers for timing single steps; marks are events on it."""

    def hold(self, cycles: int) -> None:
        """Queue a kernel that waits so many cycles."""

    def mark(self) -> Any:
        """Queue an event."""

    def reached(self, mark: Any) -> bool:
        """Whether the GPU has come to the event."""

    def finish(self) -> None:
        """Wait until all that is queued has run."""

    def us(self, start: Any, end: Any) -> float:
        """Microseconds between two events that were reached."""


class EventClock:
    """CUDA events on torch's current stream."""

    def hold(self, cycles: int) -> None:
        """Queue a kernel that waits so many cycles."""
        import torch

        torch.cuda._sleep(cycles)

    def mark(self) -> Any:
        """Queue an event."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, mark: Any) -> bool:
        """Whether the GPU has come to the event."""
        return bool(mark.query())

    def finish(self) -> None:
        """Wait until all that is queued has run."""
        import torch

        torch.cuda.synchronize()

    def us(self, start: Any, end: Any) -> float:
        """Microseconds between two events that were reached."""
        return float(start.elapsed_time(end)) * 1e3


@dataclass(frozen=True, eq=False)
class Walk:
    """Single launches of a stage over the caches of a rotation, and their samples in us so far."""

    stage: str
    launches: tuple[Callable[[], object], ...]
    touched_bytes: int
    """Of all caches together."""
    samples: list[float] = field(default_factory=list)


def walks(candidate: Candidate, cache_bytes: int, record: Callable[[Sequence[Step]], Any]) -> list[Walk]:
    """The single steps of `candidate`; `record` makes one launch of the steps a graph."""
    found = []
    for stage in STEP_STAGES:
        chains = [_chain(bound, stage) for bound in candidate.rotation]
        if not chains[0]:
            continue
        touched = candidate.touched_bytes[stage]
        number = min(len(chains), MOST_BUFFERS, CACHE_MULTIPLE * cache_bytes // max(1, touched) + 1)
        launches = tuple(record(chain).replay for chain in chains[:number])
        found.append(Walk(stage, launches, touched * number))
    return found


def _chain(bound: Any, stage: str) -> tuple[Step, ...]:
    if stage == "quest":
        return tuple(bound.chain)
    return tuple(step for step in bound.steps if step.stage == stage)


def sample(walks: Sequence[Walk], rounds: int, clock: Clock, interrupted: Callable[[], bool]) -> None:
    """Add `rounds` samples to every walk, in turn; fewer on interrupt, none where the host is too slow."""
    for walk in walks:  # a graph's first launch also uploads it
        for launch in walk.launches:
            launch()
    clock.finish()
    taken, number, cycles = 0, 0, HOLD_CYCLES
    while walks and taken < rounds and cycles <= MOST_CYCLES and not (taken and interrupted()):
        found = _round(walks, number, clock, cycles)
        number += 1
        if found is None:
            cycles *= 2
            continue
        taken += 1
        for walk, us in zip(walks, found, strict=True):
            walk.samples.append(us)


def _round(walks: Sequence[Walk], number: int, clock: Clock, cycles: int) -> list[float] | None:
    """One step of every walk, another one first each time; None where the GPU came to them too early."""
    marks: dict[int, tuple[Any, Any]] = {}
    clock.hold(cycles)
    for turn in range(len(walks)):
        index = (number + turn) % len(walks)
        start = clock.mark()
        walks[index].launches[number % len(walks[index].launches)]()
        marks[index] = (start, clock.mark())
    early = clock.reached(marks[number % len(walks)][0])
    clock.finish()
    return None if early else [clock.us(*marks[index]) for index in range(len(walks))]


def single_steps(walk: Walk, cache_bytes: int, empty_us: Sequence[float]) -> SingleSteps:
    """What is kept of a walk; `empty_us` are samples of an empty kernel in the same rounds."""
    return SingleSteps(
        samples_us=tuple(walk.samples),
        num_buffers=len(walk.launches),
        touched_bytes=walk.touched_bytes,
        cache_state=cache_state(walk.stage, walk.touched_bytes, cache_bytes),
        resolution_us=resolution(walk.samples),
        empty_us=median(empty_us) if empty_us else None,
    )


def resolution(samples: Sequence[float]) -> float | None:
    """The least difference between two unequal samples, in their unit; None where all are equal.

    Two that differ by ROUNDING are one tick, rounded twice.
    """
    ranked = sorted(samples)
    steps = (high - low for low, high in pairwise(ranked) if high - low > ROUNDING * high)
    return min(steps, default=None)


def time_steps(
    candidates: Sequence[Candidate],
    rounds: int,
    cache_bytes: int,
    record: Callable[[Sequence[Step]], Any],
    empty: Callable[[], None],
    interrupted: Callable[[], bool],
    clock: Clock | None = None,
) -> list[dict[str, SingleSteps]]:
    """`rounds` single steps of every quest chain and dense pass, by stage, a dict a candidate.

    `empty` launches a kernel that does nothing, whose step tells what the clock and a launch alone take.
    """
    each = [walks(candidate, cache_bytes, record) for candidate in candidates]
    nothing = Walk("empty", (record((Step("empty", empty),)).replay,), 0)
    in_turn = [walk for found in each for walk in found]
    if in_turn:
        sample([*in_turn, nothing], rounds, clock or EventClock(), interrupted)
    return [
        {walk.stage: single_steps(walk, cache_bytes, nothing.samples) for walk in found if walk.samples}
        for found in each
    ]
