"""Timing: interleaved candidates, cold by rotation or eviction, every raw sample kept.

A `Candidate` is one point with its bound caches. All candidates of a block are timed round robin, so
that dense and Quest meet the same drift. On the CPU the fastest streaming reader runs before every
candidate, which makes caches cold whatever the point's size; the stages of one chain are clocked in
the same pass. The reader evicts code as well, which a decode loop would not: before the clock starts, the
candidate's steps run once over a few pages of another pool, so that the code is warm and the data cold.
On a GPU each stage and the whole chain are CUDA graphs that walk the rotation, one after another on one
stream: every kernel waits for the one before it. Among them is one more graph, which streams as many bytes
as dense reads: what this memory gives at that size, in the same minutes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from questprof.ceilings import CACHE_MULTIPLE, CpuReader, SizedReader, replay_us, sized_readers
from questprof.model import Ceiling, Environment, StageTiming
from questprof.policies import Bound, Step

if TYPE_CHECKING:
    import torch

MIN_REPLAY_US = 2000.0
MAX_LAUNCHES = 400
READ_TRIALS = 5
"""Replays of each reader that choose the one to time."""
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
    """What timing one candidate gave."""

    times_us: dict[str, tuple[float, ...]]
    timing: dict[str, StageTiming]


def merged(parts: Sequence[Timed]) -> Timed:
    """Times of several candidates of one point as one; no stage is in two of them."""
    times = {stage: samples for part in parts for stage, samples in part.times_us.items()}
    return Timed(times, {stage: timing for part in parts for stage, timing in part.timing.items()})


class Executor(Protocol):
    """Times candidates on one device."""

    num_samples: int
    warms_up: bool
    """Whether it launches `Candidate.warm_up` before every sample, untimed."""

    def rotation_size(self, least_touched_bytes: int) -> int:
        """Caches needed so that a stage touching that many bytes is cold."""

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> tuple[list[Timed], tuple[Ceiling, ...]]:
        """Times of each candidate, and streaming reads taken in the same loop."""


class CpuExecutor:
    """Clocks compiled CPU stages; `reader` runs before every candidate and evicts the caches."""

    warms_up = True

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
                bound = candidate.rotation[number % len(candidate.rotation)]
                _clock(bound, partial(_cool, reader, candidate.warm_up), kept)
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


def _cool(reader: CpuReader, warm_up: Bound | None) -> None:
    """Evict the caches; then launch every step of `warm_up`, which brings the code back."""
    reader.run()
    if warm_up:
        for step in dict.fromkeys((*warm_up.steps, *warm_up.chain)):
            step.launch()


def _clock(bound: Bound, cool: Callable[[], None], kept: dict[str, list[float]]) -> None:
    """Launch every step of `bound` once; keep microseconds a stage, and of the chain as `quest`.

    `cool` makes the caches cold, once before the steps and once more before a fused chain; any other chain
    is the sum of its steps.
    """
    cool()
    us = {step.stage: _launch_us(step) for step in bound.steps}
    if bound.fused:
        cool()
        us["quest"] = sum(_launch_us(step) for step in bound.chain)
    elif bound.chain:
        us["quest"] = sum(us[step.stage] for step in bound.chain)
    for stage, value in us.items():
        kept.setdefault(stage, []).append(value)


def _launch_us(step: Step) -> float:
    started = time.perf_counter_ns()
    step.launch()
    return (time.perf_counter_ns() - started) / 1e3


class CudaExecutor:
    """Times CUDA graphs that walk the rotation; one sample is one replay over its launches."""

    warms_up = False

    def __init__(self, environment: Environment, num_samples: int) -> None:
        self.num_samples = num_samples
        self._cache_bytes = environment.last_level_cache_bytes

    def rotation_size(self, least_touched_bytes: int) -> int:
        """Caches until the touched bytes exceed CACHE_MULTIPLE times the L2."""
        return CACHE_MULTIPLE * self._cache_bytes // max(1, least_touched_bytes) + 1

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> tuple[list[Timed], tuple[Ceiling, ...]]:
        """Capture every stage and chain and the read of dense's size, then replay all of them round robin."""
        num_bytes = max((c.counted_bytes.get("dense", 0) for c in candidates), default=0)
        graphs = [_capture_all(candidate) for candidate in candidates]
        reads = _capture_read(num_bytes, self._cache_bytes)
        in_turn = [*reads.values(), *(stage for captured in graphs for stage in captured.values())]
        for stage in in_turn:
            replay_us(stage.graph)
        for _ in range(self.num_samples):
            for stage in in_turn:
                stage.samples.append(replay_us(stage.graph) / stage.launches)
        ceilings = tuple(
            Ceiling(reader.name, reader.num_bytes, tuple(reader.num_bytes / us / 1e3 for us in read.samples))
            for reader, read in reads.items()
        )
        return [self._timed(c, g, loop_id) for c, g in zip(candidates, graphs, strict=True)], ceilings

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
        for step in (*bound.steps, *bound.chain):
            step.launch()
    torch.cuda.synchronize()
    stages = [step.stage for step in candidate.rotation[0].steps]
    graphs = {
        stage: _capture([_of_stage(bound.steps, stage) for bound in candidate.rotation]) for stage in stages
    }
    if candidate.rotation[0].chain:
        graphs["quest"] = _capture([bound.chain for bound in candidate.rotation])
    return graphs


def _capture_read(num_bytes: int, cache_bytes: int) -> dict[SizedReader, _StageGraph]:
    """The fastest reader of `num_bytes` with its graph; empty where nothing is to read or no buffer fits."""
    trials: dict[SizedReader, _StageGraph] = {}
    for reader in sized_readers(num_bytes, cache_bytes):
        for launch in reader.launches:  # compiles
            launch()
        trials[reader] = _capture([(Step("read", launch),) for launch in reader.launches])

    def trial_us(reader: SizedReader) -> float:
        graph = trials[reader]
        return statistics.median(replay_us(graph.graph) for _ in range(READ_TRIALS)) / graph.launches

    best = sorted(trials, key=trial_us)[:1]
    return {reader: trials[reader] for reader in best}


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
