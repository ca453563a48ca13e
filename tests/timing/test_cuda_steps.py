"""Single steps: one launch each, cold by rotation, queued in time, their clock's fineness told."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiles import dense, quest
from questprof.model import SingleSteps
from questprof.policies import QUEST_STAGES, Bound, Outputs, Step
from questprof.timing import cuda as timing_cuda
from questprof.timing.candidates import Candidate, Timed, merged, never
from questprof.timing.cuda import CudaExecutor
from questprof.timing.cuda_steps import HOLD_CYCLES, MOST_BUFFERS, resolution, time_steps
from questprof.timing.steps_source import EVERY_SAMPLE, steps_source
from questprof.timing.stopping import fixed

MIB = 1 << 20


class Stream:
    """A stream whose clock says what each launch takes; `log` is what ran. Queueing takes `host_cycles`."""

    def __init__(self, us: dict[str, float], host_cycles: int = 0) -> None:
        self.log: list[str] = []
        self.held: list[int] = []
        self._us, self._host_cycles = us, host_cycles
        self._now = 0.0

    def record(self, steps: list[Step]) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: [step.launch() for step in steps])

    def launch(self, name: str) -> None:
        self.log.append(name)
        self._now += self._us[name.partition(" ")[0]]

    def hold(self, cycles: int) -> None:
        self.held.append(cycles)

    def mark(self) -> float:
        return self._now

    def reached(self, mark: float) -> bool:
        return self.held[-1] < self._host_cycles

    def finish(self) -> None:
        self.log.append("|")

    def us(self, start: float, end: float) -> float:
        return end - start


def bound(stream: Stream, index: int, *stages: str) -> Bound:
    steps = tuple(Step(s, lambda s=s: stream.launch(f"{s} {index}")) for s in stages)  # type: ignore[misc]
    chain = tuple(step for step in steps if step.stage in QUEST_STAGES)
    empty = torch.empty(0)
    return Bound(None, empty, True, Outputs(empty, None), steps, chain)  # type: ignore[arg-type]


def candidate(stream: Stream, buffers: int, touched: int, *stages: str) -> Candidate:
    rotation = tuple(bound(stream, index, *stages) for index in range(buffers))
    return Candidate(rotation, dict.fromkeys((*stages, "quest"), touched), {})


def timed(stream: Stream, candidates: list[Candidate], rounds: int, cache: int, interrupted=never):  # type: ignore[no-untyped-def]
    return time_steps(
        candidates, rounds, cache, stream.record, lambda: stream.launch("empty"), interrupted, stream
    )


US = {"append": 9.0, "score": 1.0, "select": 2.0, "attend": 4.0, "dense": 20.0, "empty": 1.5}


def test_every_round_makes_one_step_of_each_another_first() -> None:
    """A chain is 1 + 2 + 4 us, a dense pass 20; the append is no part of either. Two caches take turns."""
    stream = Stream(US)
    chain = candidate(stream, 2, 2 * MIB, "append", "score", "select", "attend")
    found = timed(stream, [candidate(stream, 2, 2 * MIB, "append_kv", "dense"), chain], 2, MIB)
    (passes,), (steps,) = (each.values() for each in found)
    assert [list(each) for each in found] == [["dense"], ["quest"]]
    assert (passes.samples_us, steps.samples_us) == ((20.0, 20.0), (7.0, 7.0))
    assert steps.empty_us == 1.5
    begun = stream.log.index("|") + 1  # every graph ran once before: its first launch uploads it
    assert stream.log[:begun].count("dense 1") == 1
    first = ["dense 0", "score 0", "select 0", "attend 0", "empty", "|"]
    assert stream.log[begun:] == [*first, "score 1", "select 1", "attend 1", "empty", "dense 1", "|"]


@pytest.mark.parametrize(
    ("touched", "caches", "wanted", "state"),
    [
        (MIB, 50, 4, "cold"),
        (MIB, 3, 3, "warm"),
        (1 << 10, 500, MOST_BUFFERS, "warm"),
        (4 * MIB, 9, 1, "cold"),
    ],
)
def test_as_many_caches_take_turns_as_make_it_cold(
    touched: int, caches: int, wanted: int, state: str
) -> None:
    """A cache of 1 MiB: more than 3 MiB between two uses of the same bytes."""
    stream = Stream(US)
    (found,) = timed(stream, [candidate(stream, caches, touched, "dense")], 3, MIB)
    steps = found["dense"]
    assert (steps.num_buffers, steps.touched_bytes, steps.cache_state) == (wanted, wanted * touched, state)


def test_a_round_that_the_host_queued_too_late_is_no_sample() -> None:
    """Queueing takes five of the first waits: three are thrown away, of 1, 2 and 4 of them."""
    stream = Stream(US, host_cycles=5 * HOLD_CYCLES)
    (found,) = timed(stream, [candidate(stream, 1, 4 * MIB, "dense")], 3, MIB)
    assert len(found["dense"].samples_us) == 3
    assert [cycles // HOLD_CYCLES for cycles in stream.held] == [1, 2, 4, 8, 8, 8]


def test_a_host_that_is_never_in_time_gives_no_steps() -> None:
    stream = Stream(US, host_cycles=1 << 60)
    assert timed(stream, [candidate(stream, 1, 4 * MIB, "dense")], 3, MIB) == [{}]


def test_an_interrupt_keeps_what_was_taken() -> None:
    stream = Stream(US)
    (found,) = timed(stream, [candidate(stream, 1, 4 * MIB, "dense")], 30, MIB, interrupted=lambda: True)
    assert len(found["dense"].samples_us) == 1


def test_stages_of_other_names_have_no_steps() -> None:
    stream = Stream(US)
    assert timed(stream, [candidate(stream, 1, MIB, "append")], 3, MIB) == [{}]
    assert stream.log == []


@given(st.lists(st.integers(1, 10**5), max_size=20), st.floats(0.01, 1.0))
def test_the_resolution_is_the_least_difference(ticks: list[int], tick_us: float) -> None:
    samples = [n * tick_us for n in ticks]
    distinct = sorted(set(ticks))
    gaps = [b - a for a, b in pairwise(distinct)]
    found = resolution(samples)
    if not gaps:
        assert found is None
        return
    assert found == pytest.approx(min(gaps) * tick_us, rel=1e-3)


def test_one_tick_rounded_twice_is_no_difference() -> None:
    assert resolution([10.0, 10.0 + 1e-7, 10.5]) == pytest.approx(0.5)


def test_the_executor_keeps_steps_apart_from_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's samples are means of many launches; the steps are one each."""
    stream = Stream(US)
    monkeypatch.setattr(timing_cuda, "sized_readers", lambda *_: [])
    monkeypatch.setattr(
        timing_cuda, "_record", lambda chains, turns: stream.record([s for c in chains for s in c])
    )
    monkeypatch.setattr(timing_cuda, "replay_us", lambda graph, lead=None: 4000.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("questprof_kernels.working_set.launch_empty", lambda: stream.launch("empty"))
    monkeypatch.setattr("questprof.timing.cuda_steps.EventClock", lambda: stream)
    environment = SimpleNamespace(last_level_cache_bytes=MIB)
    one = candidate(stream, 2, 2 * MIB, "dense")
    (found,) = CudaExecutor(environment, fixed(3), single_steps=5).time([one], "loop").timed  # type: ignore[arg-type]
    assert found.single_steps["dense"].samples_us == (20.0,) * 5
    assert len(found.times_us["dense"]) == 3
    assert merged([found, Timed({}, {})]).single_steps == found.single_steps
    (none,) = CudaExecutor(environment, fixed(3)).time([one], "loop").timed  # type: ignore[arg-type]
    assert none.single_steps == {}


def test_the_source_tells_what_a_step_holds_and_how_fine_its_clock_is() -> None:
    steps = SingleSteps((20.0, 21.0), 3, 4 * MIB, "cold", resolution_us=0.032, empty_us=2.5)
    record = quest(8192, (1.0, 2.0, 4.0), single_steps={"quest": steps})
    text = steps_source([dense(8192, 20.0), record])
    assert "0.5 us as CUDA tells, 0.032 us apart at the least" in text
    assert "an empty kernel alone takes 2.5 us" in text
    assert "warm" not in text
    warm = quest(8192, (1.0, 2.0, 4.0), single_steps={"quest": SingleSteps((20.0,), 3, 1, "warm")})
    assert "1 of 2 are warm" in steps_source([record, warm])
    assert steps_source([dense(8192, 20.0)]) == EVERY_SAMPLE
