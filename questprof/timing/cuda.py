"""Timing on a GPU: CUDA graphs that walk the rotation, one replay a sample.

Each stage and the whole chain are graphs, replayed one after another on one stream: every kernel waits for
the one before it. Among the graphs is one more, which streams as many bytes as dense reads: what this memory
gives at that size, in the same minutes. Right before a sample a few turns through the rotation run untimed:
the first launches take longer behind another stage, over other memory, and the host hands over the sample's
graph meanwhile. NVML is read during the loop, between samples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from questprof.ceilings import SizedReader, replay_us, sized_readers
from questprof.model import CACHE_MULTIPLE, Ceiling, Clocks, Energy, Environment, SingleSteps, StageTiming
from questprof.policies import Step
from questprof.timing.candidates import Candidate, Loop, Timed, cache_state, never
from questprof.timing.cuda_steps import time_steps
from questprof.timing.nvml import Gpu, Monitor, measure_energy
from questprof.timing.phases import Phases
from questprof.timing.stopping import Rule, Stopper

if TYPE_CHECKING:
    import torch

MIN_REPLAY_US = 4000.0
"""Of a sample: events are two to three microseconds apart where nothing lies between them."""
LEAD_US = 300.0
"""Of what runs untimed before a sample: a multiple of what the host takes to hand over a graph."""
MAX_LAUNCHES = 1000
"""Of one graph, which is captured launch by launch: with so many a replay may last less."""
READ_TRIALS = 5
"""Replays of each reader that choose the one to time."""
ENERGY_STAGES = ("score", "select", "attend", "quest", "dense")


@dataclass
class StageGraph:
    """A captured graph of `launches` launches of a stage or chain, and its samples in us a launch.

    `lead` is some turns of them through the rotation.
    """

    graph: torch.cuda.CUDAGraph
    lead: torch.cuda.CUDAGraph
    launches: int
    samples: list[float]


class CudaExecutor:
    """Times CUDA graphs; `gpu` is what NVML reads, `energy_seconds` how long a stage's energy is counted.

    `single_steps`: how many steps of each chain and dense pass are timed one by one after the loop.
    """

    warms_up = False

    def __init__(
        self,
        environment: Environment,
        rule: Rule,
        *,
        gpu: Gpu | None = None,
        energy_seconds: float = 0.0,
        single_steps: int = 0,
        phases: Phases | None = None,
    ) -> None:
        self.interrupted: Callable[[], bool] = never
        self._rule = rule
        self._gpu = gpu
        self._energy_seconds = energy_seconds
        self._single_steps = single_steps
        self._cache_bytes = environment.last_level_cache_bytes
        self._phases = phases or Phases()

    def rotation_size(self, least_touched_bytes: int) -> int:
        """Caches until the touched bytes exceed CACHE_MULTIPLE times the L2."""
        return CACHE_MULTIPLE * self._cache_bytes // max(1, least_touched_bytes) + 1

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> Loop:
        """Capture every stage and chain and the read of dense's size, then replay all of them round robin."""
        num_bytes = max((c.counted_bytes.get("dense", 0) for c in candidates), default=0)
        with self._phases("capture"):
            graphs = [_capture_all(candidate) for candidate in candidates]
        with self._phases("streaming reads"):
            reads = _capture_read(num_bytes, self._cache_bytes)
        in_turn = [*reads.values(), *(stage for captured in graphs for stage in captured.values())]
        stopper, clocks = self._sample(in_turn)
        with self._phases("single steps"):
            steps = self._steps(candidates)
        with self._phases("energy"):
            energies = [self._energies(captured) for captured in graphs]
        ceilings = tuple(
            Ceiling(reader.name, reader.num_bytes, tuple(reader.num_bytes / us / 1e3 for us in read.samples))
            for reader, read in reads.items()
        )
        timed = (
            replace(self._timed(candidate, captured, loop_id, stopper), energy=energy, single_steps=single)
            for candidate, captured, energy, single in zip(candidates, graphs, energies, steps, strict=True)
        )
        return Loop(tuple(timed), ceilings, clocks)

    def _sample(self, in_turn: Sequence[StageGraph]) -> tuple[Stopper, Clocks | None]:
        """Replay all graphs in turn, a sample each a round, until the rule has enough."""
        stopper, monitor = Stopper(self._rule), Monitor(self._gpu) if self._gpu else None
        for stage in in_turn:
            replay_us(stage.graph, stage.lead)
        started = time.perf_counter()
        while True:
            for stage in in_turn:
                stage.samples.append(replay_us(stage.graph, stage.lead) / stage.launches)
            seconds = time.perf_counter() - started
            if stopper.done((s.samples for s in in_turn), seconds, self.interrupted()):
                break
            if monitor and monitor.due:
                _while_busy(in_turn[-1], monitor.read)
        if monitor:
            _while_busy(in_turn[-1], monitor.read)
        return stopper, monitor.result() if monitor else None

    def _steps(self, candidates: Sequence[Candidate]) -> list[dict[str, SingleSteps]]:
        """Single steps of every candidate; none where they are not asked for."""
        if not self._single_steps or self.interrupted():
            return [{} for _ in candidates]
        from questprof_kernels import working_set

        def record(steps: Sequence[Step]) -> torch.cuda.CUDAGraph:
            return _record([tuple(steps)], 1)

        working_set.launch_empty()  # compiles: nothing may while a graph is captured
        empty = working_set.launch_empty
        return time_steps(candidates, self._single_steps, self._cache_bytes, record, empty, self.interrupted)

    def _energies(self, graphs: dict[str, StageGraph]) -> dict[str, Energy]:
        """Energy of every main stage; those whose counter does not answer are left out."""
        if not (self._energy_seconds and self._gpu):
            return {}
        found = {}
        for stage, captured in graphs.items():
            if stage in ENERGY_STAGES and not self.interrupted():
                found[stage] = measure_energy(
                    lambda graph=captured.graph: replay_us(graph),  # type: ignore[misc]
                    captured.launches,
                    self._gpu.energy_mj,
                    self._energy_seconds,
                )
        return {stage: energy for stage, energy in found.items() if energy}

    def _timed(
        self,
        candidate: Candidate,
        graphs: dict[str, StageGraph],
        loop_id: str,
        stopper: Stopper,
    ) -> Timed:
        timing = {}
        for stage, captured in graphs.items():
            touched = candidate.touched_bytes[stage] * len(candidate.rotation)
            timing[stage] = StageTiming(
                launches_per_sample=captured.launches,
                num_buffers=len(candidate.rotation),
                touched_bytes=touched,
                cache_state=cache_state(stage, touched, self._cache_bytes),
                loop_id=loop_id,
                stop_reason=stopper.reason(captured.samples),
            )
        times_us = {stage: tuple(g.samples) for stage, g in graphs.items()}
        return Timed(times_us, timing, last=len(candidate.rotation) - 1)


def _while_busy(stage: StageGraph, read: Callable[[], None]) -> None:
    """Call `read` during one more replay of `stage`, whose time nobody takes."""
    import torch

    stage.graph.replay()
    read()
    torch.cuda.synchronize()


def _capture_all(candidate: Candidate) -> dict[str, StageGraph]:
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


def _capture_read(num_bytes: int, cache_bytes: int) -> dict[SizedReader, StageGraph]:
    """The fastest reader of `num_bytes` with its graph; empty where nothing is to read or no buffer fits."""
    trials: dict[SizedReader, StageGraph] = {}
    for reader in sized_readers(num_bytes, cache_bytes):
        for launch in reader.launches:  # compiles
            launch()
        trials[reader] = _capture([(Step("read", launch),) for launch in reader.launches])

    def trial_us(reader: SizedReader) -> float:
        graph = trials[reader]
        return (
            statistics.median(replay_us(graph.graph, graph.lead) for _ in range(READ_TRIALS)) / graph.launches
        )

    best = sorted(trials, key=trial_us)[:1]
    return {reader: trials[reader] for reader in best}


def _of_stage(steps: Sequence[Step], stage: str) -> tuple[Step, ...]:
    return tuple(step for step in steps if step.stage == stage)


def _capture(chains: Sequence[tuple[Step, ...]]) -> StageGraph:
    """A graph of whole turns through `chains`, long enough to be clocked, short enough to be captured."""
    once = _record(chains, 1)
    replay_us(once)
    turn_us = replay_us(once, once)  # behind itself: an idle device would wait for the host in between
    most = max(1, MAX_LAUNCHES // len(chains))
    few, turns = (min(int(wanted / turn_us) + 1, most) for wanted in (LEAD_US, MIN_REPLAY_US))
    lead = once if few == 1 else _record(chains, few)
    # Captured last, as what a launch returns is known by where its last capture put it.
    graph = lead if turns == few else _record(chains, turns)
    return StageGraph(graph, lead, turns * len(chains), [])


def _record(chains: Sequence[tuple[Step, ...]], turns: int) -> torch.cuda.CUDAGraph:
    import torch

    launches: list[Callable[[], None]] = [step.launch for chain in chains for step in chain]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            for launch in launches:
                launch()
    return graph
