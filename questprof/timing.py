"""Timing: interleaved candidates, cold by rotation or eviction, every raw sample kept.

A `Candidate` is one point with its bound caches. All candidates of a block are timed round robin, so
that dense and Quest meet the same drift. On the CPU the fastest streaming reader runs before every
candidate, which makes caches cold whatever the point's size; the stages of one chain are clocked in
the same pass. On a GPU each stage and the whole chain are CUDA graphs that walk the rotation, one
after another on one stream: every kernel waits for the one before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from questprof.ceilings import CACHE_MULTIPLE, CpuReader, replay_us
from questprof.model import Ceiling, Environment, StageTiming
from questprof.policies import Bound, Step

if TYPE_CHECKING:
    import torch

MIN_REPLAY_US = 2000.0
MAX_LAUNCHES = 400
HOT_STAGES = ("select",)
"""Stages whose input the stage before leaves in the cache: timed hot, as they run."""


@dataclass(frozen=True)
class Candidate:
    """One point to time: its bound caches in rotation, and the bytes each stage touches in one launch."""

    rotation: tuple[Bound, ...]
    touched_bytes: dict[str, int]


@dataclass(frozen=True)
class Timed:
    """What timing one candidate gave."""

    times_us: dict[str, tuple[float, ...]]
    timing: dict[str, StageTiming]


class Executor(Protocol):
    """Times candidates on one device."""

    num_samples: int

    def rotation_size(self, least_touched_bytes: int) -> int:
        """Caches needed so that a stage touching that many bytes is cold."""

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> tuple[list[Timed], tuple[Ceiling, ...]]:
        """Times of each candidate, and streaming reads taken in the same loop."""


class CpuExecutor:
    """Clocks compiled CPU stages; `reader` runs before every candidate and evicts the caches."""

    def __init__(self, environment: Environment, reader: CpuReader, num_samples: int) -> None:
        self.num_samples = num_samples
        self._cache_bytes = environment.last_level_cache_bytes
        self._reader = reader

    def rotation_size(self, least_touched_bytes: int) -> int:
        """One: eviction, not rotation, makes the caches cold."""
        return 1

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> tuple[list[Timed], tuple[Ceiling, ...]]:
        """Round robin over the candidates, `num_samples` rounds after one that is thrown away."""
        reader = CpuReader(self._reader.name, self._reader.read, self._reader.num_bytes)
        samples: list[dict[str, list[float]]] = [{} for _ in candidates]
        for number in range(self.num_samples + 1):
            for candidate, kept in zip(candidates, samples, strict=True):
                reader.run()
                _clock(candidate.rotation[number % len(candidate.rotation)], kept)
        timed = [
            self._timed(candidate, kept, loop_id) for candidate, kept in zip(candidates, samples, strict=True)
        ]
        return timed, (reader.ceiling(),)

    def _timed(self, candidate: Candidate, kept: dict[str, list[float]], loop_id: str) -> Timed:
        cold = self._reader.num_bytes > CACHE_MULTIPLE * self._cache_bytes
        timing = {
            stage: StageTiming(
                launches_per_sample=1,
                num_buffers=len(candidate.rotation),
                touched_bytes=self._reader.num_bytes + candidate.touched_bytes[stage],
                cache_state="hot" if stage in HOT_STAGES else "cold" if cold else "warm",
                loop_id=loop_id,
                stop_reason="fixed",
            )
            for stage in kept
        }
        return Timed({stage: tuple(values[1:]) for stage, values in kept.items()}, timing)


def _clock(bound: Bound, kept: dict[str, list[float]]) -> None:
    """Launch every step of `bound` once; keep microseconds a stage, and of the chain as `quest`."""
    chain_us = 0.0
    for step in bound.steps:
        started = time.perf_counter_ns()
        step.launch()
        elapsed = (time.perf_counter_ns() - started) / 1e3
        kept.setdefault(step.stage, []).append(elapsed)
        if step in bound.chain:
            chain_us += elapsed
    if bound.chain:
        kept.setdefault("quest", []).append(chain_us)


class CudaExecutor:
    """Times CUDA graphs that walk the rotation; one sample is one replay over its launches."""

    def __init__(self, environment: Environment, num_samples: int) -> None:
        self.num_samples = num_samples
        self._cache_bytes = environment.last_level_cache_bytes

    def rotation_size(self, least_touched_bytes: int) -> int:
        """Caches until the touched bytes exceed CACHE_MULTIPLE times the L2."""
        return CACHE_MULTIPLE * self._cache_bytes // max(1, least_touched_bytes) + 1

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> tuple[list[Timed], tuple[Ceiling, ...]]:
        """Capture every stage and chain, then replay all of them round robin."""
        graphs = [_capture_all(candidate) for candidate in candidates]
        for captured in graphs:
            for stage in captured.values():
                replay_us(stage.graph)
        for _ in range(self.num_samples):
            for captured in graphs:
                for stage in captured.values():
                    stage.samples.append(replay_us(stage.graph) / stage.launches)
        return [self._timed(c, g, loop_id) for c, g in zip(candidates, graphs, strict=True)], ()

    def _timed(self, candidate: Candidate, graphs: dict[str, _StageGraph], loop_id: str) -> Timed:
        timing = {}
        for stage, captured in graphs.items():
            touched = candidate.touched_bytes[stage] * len(candidate.rotation)
            cold = touched > CACHE_MULTIPLE * self._cache_bytes
            timing[stage] = StageTiming(
                launches_per_sample=captured.launches,
                num_buffers=len(candidate.rotation),
                touched_bytes=touched,
                cache_state="hot" if stage in HOT_STAGES else "cold" if cold else "warm",
                loop_id=loop_id,
                stop_reason="fixed",
            )
        return Timed({stage: tuple(g.samples) for stage, g in graphs.items()}, timing)


@dataclass
class _StageGraph:
    """A captured graph of `launches` launches of a stage or chain, and its samples in us a launch."""

    graph: torch.cuda.CUDAGraph
    launches: int
    samples: list[float]


def _capture_all(candidate: Candidate) -> dict[str, _StageGraph]:
    """One graph a stage, and one of the whole chain as `quest`."""
    import torch

    for bound in candidate.rotation:  # compiles, and leaves valid inputs for every stage
        for step in bound.steps:
            step.launch()
    torch.cuda.synchronize()
    stages = [step.stage for step in candidate.rotation[0].steps]
    graphs = {
        stage: _capture([_of_stage(bound.steps, stage) for bound in candidate.rotation]) for stage in stages
    }
    if candidate.rotation[0].chain:
        graphs["quest"] = _capture([bound.chain for bound in candidate.rotation])
    return graphs


def _of_stage(steps: Sequence[Step], stage: str) -> tuple[Step, ...]:
    return tuple(step for step in steps if step.stage == stage)


def _capture(chains: Sequence[tuple[Step, ...]]) -> _StageGraph:
    """A graph of whole turns through `chains`, long enough to be clocked, short enough to be captured."""
    once = _record(chains, 1)
    replay_us(once)
    turn_us = replay_us(once)
    turns = min(int(MIN_REPLAY_US / turn_us) + 1, max(1, MAX_LAUNCHES // len(chains)))
    return _StageGraph(_record(chains, turns), turns * len(chains), [])


def _record(chains: Sequence[tuple[Step, ...]], turns: int) -> torch.cuda.CUDAGraph:
    import torch

    launches: list[Callable[[], None]] = [step.launch for chain in chains for step in chain]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            for launch in launches:
                launch()
    return graph
