"""What is timed and what timing gives: candidates of one loop, samples of their stages.

A `Candidate` is one point with its bound caches. All candidates of a block are timed round robin, so that
dense and Quest meet the same drift; `timing_cpu.py` and `timing_cuda.py` hold how, `stopping.py` how long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from questprof.model import CACHE_MULTIPLE, Ceiling, Clocks, Energy, SingleSteps, StageTiming
from questprof.policies import Bound

HOT_STAGES = ("select",)
"""Stages whose input the stage before leaves in the cache: timed hot, as they run."""


@dataclass(frozen=True)
class Candidate:
    """One point to time: its bound caches in rotation, and the bytes each stage touches in one launch.

    `counted_bytes` are those of them that equation (12) counts, per stage. `warm_up` is the same policy and
    backend bound to a cache of a few pages, for an executor that warms up.
    """

    rotation: tuple[Bound, ...]
    touched_bytes: dict[str, int]
    counted_bytes: dict[str, int]
    warm_up: Bound | None = None


@dataclass(frozen=True)
class Timed:
    """What timing one candidate gave; `last` is the rotation's cache that was launched last."""

    times_us: dict[str, tuple[float, ...]]
    timing: dict[str, StageTiming]
    last: int = 0
    energy: dict[str, Energy] = field(default_factory=dict)
    single_steps: dict[str, SingleSteps] = field(default_factory=dict)


@dataclass(frozen=True)
class Loop:
    """What one timing loop gave: a Timed a candidate, streaming reads among the samples, the clocks."""

    timed: tuple[Timed, ...]
    calibration: tuple[Ceiling, ...] = ()
    clocks: Clocks | None = None


class Executor(Protocol):
    """Times candidates on one device."""

    warms_up: bool
    """Whether it launches `Candidate.warm_up` before every sample, untimed."""
    interrupted: Callable[[], bool]
    """Whether to end the loop as soon as its samples are of use."""

    def rotation_size(self, least_touched_bytes: int) -> int:
        """Caches needed so that a stage touching that many bytes is cold."""

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> Loop:
        """Times of each candidate, and streaming reads taken in the same loop."""


def never() -> bool:
    """No interrupt."""
    return False


def cache_state(
    stage: str, touched_bytes: int, last_level_cache_bytes: int
) -> Literal["cold", "warm", "hot"]:
    """How a stage is labelled that touches so many bytes between two uses of the same: never cold on trust.

    With a last-level cache of unknown size (0) nothing is called cold.
    """
    if stage in HOT_STAGES:
        return "hot"
    cold = last_level_cache_bytes > 0 and touched_bytes > CACHE_MULTIPLE * last_level_cache_bytes
    return "cold" if cold else "warm"


def merged(parts: Sequence[Timed]) -> Timed:
    """Times of several candidates of one point as one; no stage is in two of them."""
    return Timed(
        {stage: samples for part in parts for stage, samples in part.times_us.items()},
        {stage: timing for part in parts for stage, timing in part.timing.items()},
        energy={stage: energy for part in parts for stage, energy in part.energy.items()},
        single_steps={stage: steps for part in parts for stage, steps in part.single_steps.items()},
    )
