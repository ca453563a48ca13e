"""Timing on the CPU: the clock around compiled stages, cold by eviction.

The fastest streaming reader runs before every candidate, which makes caches cold whatever the point's size;
the stages of one chain are clocked in the same pass. The reader evicts code as well, which a decode loop
would not: before the clock starts, the candidate's steps run once over a few pages of another pool, so that
the code is warm and the data cold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from questprof.ceilings import CpuReader
from questprof.environment import waited_seconds
from questprof.model import Clocks, Environment, StageTiming
from questprof.policies import Bound, Step
from questprof.timing.candidates import Candidate, Loop, Timed, cache_state, never
from questprof.timing.stopping import Rule, Stopper


class CpuExecutor:
    """Clocks compiled CPU stages; `reader` runs before every candidate and evicts the caches."""

    warms_up = True

    def __init__(self, environment: Environment, reader: CpuReader, rule: Rule) -> None:
        self.interrupted: Callable[[], bool] = never
        self._rule = rule
        self._cache_bytes = environment.last_level_cache_bytes
        self._num_workers = environment.num_workers
        self._reader = reader

    def rotation_size(self, least_touched_bytes: int) -> int:
        """One: eviction, not rotation, makes the caches cold."""
        return 1

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> Loop:
        """Round robin over the candidates until the rule has enough, after one round that is thrown away."""
        reader = CpuReader(self._reader.name, self._reader.read, self._reader.num_bytes)
        samples: list[dict[str, list[float]]] = [{} for _ in candidates]
        self._round(candidates, reader, [{} for _ in candidates], 0)
        number, started, stopper = 0, time.perf_counter(), Stopper(self._rule)
        waited = waited_seconds()
        while True:
            number += 1
            self._round(candidates, reader, samples, number)
            series = [values for kept in samples for values in kept.values()]
            if stopper.done(series, time.perf_counter() - started, self.interrupted()):
                break
        timed = (
            self._timed(candidate, kept, loop_id, stopper, number)
            for candidate, kept in zip(candidates, samples, strict=True)
        )
        return Loop(tuple(timed), (reader.ceiling(),), self._clocks(waited, time.perf_counter() - started))

    def _clocks(self, waited_before: float | None, seconds: float) -> Clocks | None:
        """What share of `seconds` the threads waited for a core; None where the kernel does not say."""
        waited = waited_seconds()
        if waited is None or waited_before is None or seconds <= 0:
            return None
        share = (waited - waited_before) / seconds / self._num_workers
        return Clocks(waited_share=round(min(1.0, max(0.0, share)), 4))

    @staticmethod
    def _round(
        candidates: Sequence[Candidate],
        reader: CpuReader,
        samples: Sequence[dict[str, list[float]]],
        number: int,
    ) -> None:
        """One sample of every stage of every candidate, with cache `number` of its rotation."""
        for candidate, kept in zip(candidates, samples, strict=True):
            bound = candidate.rotation[number % len(candidate.rotation)]
            _clock(bound, partial(_cool, reader, candidate.warm_up), kept)

    def _timed(
        self, candidate: Candidate, kept: dict[str, list[float]], loop_id: str, stopper: Stopper, rounds: int
    ) -> Timed:
        timing = {}
        for stage, values in kept.items():
            # What lies between two uses of the stage's bytes; those of a rotation's other caches come on top.
            touched = self._reader.num_bytes + candidate.touched_bytes[stage]
            timing[stage] = StageTiming(
                launches_per_sample=1,
                num_buffers=len(candidate.rotation),
                touched_bytes=touched,
                cache_state=cache_state(stage, self._reader.num_bytes, self._cache_bytes),
                loop_id=loop_id,
                stop_reason=stopper.reason(values),
            )
        samples = {stage: tuple(values) for stage, values in kept.items()}
        return Timed(samples, timing, rounds % len(candidate.rotation))


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
