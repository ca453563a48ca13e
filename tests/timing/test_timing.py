"""Interleaving, what is called cold, and what a sample is."""

from types import SimpleNamespace

import msgspec
import pytest
import torch

from profiles import CPU
from questprof import ceilings
from questprof.ceilings import CpuReader, SizedReader
from questprof.model import Clocks
from questprof.policies import QUEST_STAGES, Bound, Outputs, Step
from questprof.timing import cpu as timing_cpu
from questprof.timing import cuda as timing_cuda
from questprof.timing.candidates import Candidate, Timed, cache_state, merged
from questprof.timing.cpu import CpuExecutor
from questprof.timing.cuda import CudaExecutor, StageGraph
from questprof.timing.phases import Phases
from questprof.timing.stopping import Rule, fixed

MIB = 1 << 20
ENVIRONMENT = msgspec.structs.replace(CPU, last_level_cache_bytes=10 * MIB)


def _bound(log: list[str], name: str, *stages: str) -> Bound:
    steps = tuple(Step(stage, lambda stage=stage: log.append(f"{name}.{stage}")) for stage in stages)  # type: ignore[misc]
    empty = torch.empty(0)
    chain = tuple(step for step in steps if step.stage in QUEST_STAGES)
    return Bound(None, empty, True, Outputs(empty, None), steps, chain)  # type: ignore[arg-type]


def _executor(log: list[str], buffer_bytes: int, samples: int = 2) -> CpuExecutor:
    return CpuExecutor(
        ENVIRONMENT, CpuReader("reader", lambda: log.append("read"), buffer_bytes), fixed(samples)
    )


def test_candidates_are_interleaved_and_each_meets_evicted_caches() -> None:
    log: list[str] = []
    dense = Candidate((_bound(log, "dense", "append_kv", "dense"),), {"append_kv": 1, "dense": 2}, {})
    quest = Candidate(
        (_bound(log, "quest", "append", "score", "select", "attend"),),
        {"append": 1, "score": 2, "select": 3, "attend": 4, "quest": 5},
        {},
    )
    loop = _executor(log, 31 * MIB).time([dense, quest], "loop")
    (timed_dense, timed_quest), (calibration,) = loop.timed, loop.calibration
    turn = ["read", "dense.append_kv", "dense.dense", "read", "quest.append"]
    turn += ["quest.score", "quest.select", "quest.attend"]
    assert log == turn * 3  # one round is thrown away
    assert len(calibration.samples_gb_s) == 6
    assert set(timed_dense.times_us) == {"append_kv", "dense"}
    assert set(timed_quest.times_us) == {"append", "score", "select", "attend", "quest"}
    assert all(len(samples) == 2 for samples in timed_quest.times_us.values())
    every = (*timed_dense.timing.values(), *timed_quest.timing.values())
    assert {timing.launches_per_sample for timing in every} == {1}  # single steps: tails may come from them
    for total, *parts in zip(
        *(timed_quest.times_us[s] for s in ("quest", "score", "select", "attend")), strict=True
    ):
        assert abs(total - sum(parts)) < 1e-6


def test_the_warm_up_runs_between_the_reader_and_every_sample_and_is_never_timed() -> None:
    log: list[str] = []
    warm_up = _bound(log, "warm", "append", "score", "select", "attend")
    warm_up.chain = (warm_up.steps[1], Step("select_attend", lambda: log.append("warm.select_attend")))
    stages = ("append", "score", "select", "attend", "quest")
    quest = Candidate((_fused(log),), dict.fromkeys(stages, MIB), {}, warm_up)
    rotation = (_bound(log, "even", "dense"), _bound(log, "odd", "dense"))
    dense = Candidate(rotation, {"dense": MIB}, {}, _bound(log, "warm", "dense"))
    timed_quest, timed_dense = _executor(log, 31 * MIB).time([quest, dense], "loop").timed
    warm = ["read", *(f"warm.{stage}" for stage in (*stages[:4], "select_attend"))]
    turn = [*warm, *(f"quest.{stage}" for stage in stages[:4]), *warm, "quest.score", "quest.select_attend"]
    turns = [[*turn, "read", "warm.dense", f"{cache}.dense"] for cache in ("even", "odd", "even")]
    assert log == [launch for turn in turns for launch in turn]
    assert {stage: len(samples) for stage, samples in timed_quest.times_us.items()} == dict.fromkeys(
        stages, 2
    )
    assert len(timed_dense.times_us["dense"]) == 2


def test_only_the_cpu_warms_up() -> None:
    assert _executor([], MIB).warms_up
    assert not CudaExecutor(ENVIRONMENT, fixed(2)).warms_up


def test_cold_means_more_than_three_caches_between_two_uses() -> None:
    for buffer, state in ((31 * MIB, "cold"), (30 * MIB, "warm"), (29 * MIB, "warm")):
        candidate = Candidate(
            (_bound([], "quest", "score", "select", "attend"),),
            dict.fromkeys(("score", "select", "attend", "quest"), MIB),
            {},
        )
        (timed,) = _executor([], buffer).time([candidate], "loop").timed
        assert timed.timing["attend"].cache_state == state
        assert timed.timing["select"].cache_state == "hot"
        assert timed.timing["attend"].touched_bytes == buffer + MIB


def test_rotation_of_a_gpu_exceeds_three_caches_in_touched_bytes() -> None:
    executor = CudaExecutor(replace_cache(60 * MIB), fixed(5))
    for touched in (1 * MIB, 16 * MIB, 59 * MIB, 60 * MIB, 180 * MIB, 181 * MIB, 4096 * MIB):
        size = executor.rotation_size(touched)
        assert size * touched > 180 * MIB
        assert (size - 1) * touched <= 180 * MIB


def replace_cache(cache_bytes: int):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(CPU, device="cuda", last_level_cache_bytes=cache_bytes)


def test_a_reader_turns_seconds_into_gb_s() -> None:
    reader = CpuReader("r", lambda: None, 2_000_000_000, seconds=[1.0, 0.5])
    assert reader.ceiling().samples_gb_s == (2.0, 4.0)


def _fused(log: list[str]) -> Bound:
    """Steps append, score, select, attend; the chain is score and a step of its own."""
    bound = _bound(log, "quest", "append", "score", "select", "attend")
    bound.chain = (bound.steps[1], Step("select_attend", lambda: log.append("quest.select_attend")))
    return bound


def test_a_fused_chain_runs_once_more_with_evicted_caches() -> None:
    log: list[str] = []
    touched = dict.fromkeys(("append", "score", "select", "attend", "quest"), MIB)
    loop = _executor(log, 31 * MIB).time([Candidate((_fused(log),), touched, {})], "loop")
    (timed,), (calibration,) = loop.timed, loop.calibration
    turn = ["read", *(f"quest.{stage}" for stage in ("append", "score", "select", "attend"))]
    assert log == [*turn, "read", "quest.score", "quest.select_attend"] * 3
    assert set(timed.times_us) == set(touched)
    assert len(calibration.samples_gb_s) == 6


def test_what_a_timed_round_leaves_last() -> None:
    stages = [step.stage for step in _fused([]).last_written]
    assert stages == ["append", "score", "select_attend"]
    plain = _bound([], "quest", "append", "score", "select", "attend")
    assert plain.last_written == plain.steps
    assert (plain.fused, _fused([]).fused) == (False, True)


class _Replays:
    """CUDA graphs by name: `turn` is the order of their replays, each takes its `us`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, us: dict[str, float]) -> None:
        self.turn: list[str] = []
        self._us = us
        monkeypatch.setattr(
            timing_cuda, "_record", lambda chains, turns: "+".join(s.stage for s in chains[0])
        )
        monkeypatch.setattr(timing_cuda, "replay_us", self._replay)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def _replay(self, graph: str, lead: str = "") -> float:
        self.turn.append(graph)
        return self._us.get(graph, 1e6)


def _readers(*names: str) -> list[SizedReader]:
    return [SizedReader(name, 4000, (lambda: None,) * 2) for name in names]


def test_a_gpu_reads_as_many_bytes_as_dense_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of 16000 us over 2 launches of 4000 bytes: 8000 us each, 0.0005 GB/s."""
    asked = []

    def readers(num_bytes: int, cache_bytes: int) -> list[SizedReader]:
        asked.append((num_bytes, cache_bytes))
        return _readers("one")

    monkeypatch.setattr(timing_cuda, "sized_readers", readers)
    replays = _Replays(monkeypatch, {"read": 16000.0})
    quest = Candidate((_fused([]),), dict.fromkeys(("append", "score", "select", "attend", "quest"), 9), {})
    dense = Candidate((_bound([], "dense", "dense"),), {"dense": 8}, {"dense": 3999})
    loop = CudaExecutor(replace_cache(60 * MIB), fixed(3)).time([dense, quest], "loop")
    timed, (read,) = loop.timed, loop.calibration
    assert loop.clocks is None
    assert asked == [(3999, 60 * MIB)]
    assert (read.name, read.num_bytes) == ("one", 4000)
    assert read.samples_gb_s == (4000 / 8000.0 / 1e3,) * 3
    a_round = ["read", "dense", "append", "score", "select", "attend", "score+select_attend"]
    assert replays.turn[-len(a_round) * 4 :] == a_round * 4  # one of them is thrown away
    assert [set(t.times_us) for t in timed] == [
        {"dense"},
        {"append", "score", "select", "attend", "quest"},
    ]
    assert all(len(samples) == 3 for t in timed for samples in t.times_us.values())


def test_the_fastest_reader_of_the_size_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    us = {"slow": 30.0, "fast": 10.0, "middling": 20.0}
    monkeypatch.setattr(timing_cuda, "sized_readers", lambda *_: _readers(*us))
    names = iter(us)
    monkeypatch.setattr(timing_cuda, "_capture", lambda chains: StageGraph(next(names), "", len(chains), []))  # type: ignore[arg-type]
    monkeypatch.setattr(timing_cuda, "replay_us", lambda graph, lead: us[graph])
    (best,) = timing_cuda._capture_read(4000, 0)
    assert best.name == "fast"


def test_turns_of_the_same_launches_lead_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """4000 us are wanted behind 300: 3 turns of 1500 us behind 1 more, 27 of 150 behind 3.

    The first sample is thrown away. What has been launched last is the rotation's last cache.
    """
    monkeypatch.setattr(timing_cuda, "sized_readers", lambda *_: [])
    monkeypatch.setattr(timing_cuda, "_record", lambda chains, turns: f"{turns} of {chains[0][0].stage}")
    replayed = []

    def replay(graph: str, lead: str = "") -> float:
        replayed.append((lead, graph))
        return 1500.0 if "dense" in graph else 150.0

    monkeypatch.setattr(timing_cuda, "replay_us", replay)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    stages = "append_kv", "dense"
    rotation = (_bound([], "", *stages), _bound([], "", *stages))
    loop = CudaExecutor(replace_cache(MIB), fixed(2)).time(
        [Candidate(rotation, dict.fromkeys(stages, 8), {})], ""
    )
    assert replayed[-6:] == [("3 of append_kv", "27 of append_kv"), ("1 of dense", "3 of dense")] * 3
    assert loop.timed[0].last == 1
    assert [loop.timed[0].timing[stage].launches_per_sample for stage in stages] == [54, 6]


def test_nothing_of_the_lead_lies_between_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: object) -> float:
            assert end is not self
            return 0.25  # ms

    def graph(name: str) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: log.append(name))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert ceilings.replay_us(graph("timed"), graph("lead")) == 250.0
    assert log == ["lead", "event", "timed", "event", "wait"]


def test_without_room_for_a_read_the_rest_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_cuda, "sized_readers", lambda *_: [])
    _Replays(monkeypatch, {})
    dense = Candidate((_bound([], "dense", "dense"),), {"dense": 8}, {"dense": 3999})
    loop = CudaExecutor(replace_cache(MIB), fixed(3)).time([dense], "loop")
    (timed,) = loop.timed
    assert loop.calibration == ()
    assert len(timed.times_us["dense"]) == 3


def test_times_of_a_points_candidates_are_one() -> None:
    one, other = (Timed({stage: (1.0,)}, {}) for stage in ("quest", "select_cold"))
    assert merged([one, other]).times_us == {"quest": (1.0,), "select_cold": (1.0,)}


def test_a_stage_on_the_cpu_is_sampled_until_its_median_is_known() -> None:
    """A clock that says the same every time converges at the least number, all stages alike."""
    log: list[str] = []
    rule = Rule(target=1e9, min_samples=7, max_samples=30, max_seconds=60.0)
    executor = CpuExecutor(ENVIRONMENT, CpuReader("reader", lambda: None, 31 * MIB), rule)
    dense = Candidate((_bound(log, "dense", "dense"), _bound(log, "odd", "dense")), {"dense": 2}, {})
    (timed,) = executor.time([dense], "loop").timed
    assert len(timed.times_us["dense"]) == 8  # 7, and a second look
    assert timed.timing["dense"].stop_reason == "converged"
    assert len(log) == 9
    assert log[-1] == ("dense.dense", "odd.dense")[timed.last]


def test_a_caller_may_end_a_loop_early() -> None:
    executor = _executor([], 31 * MIB, samples=50)
    executor.interrupted = lambda: True
    (timed,) = executor.time([Candidate((_bound([], "dense", "dense"),), {"dense": 2}, {})], "loop").timed
    assert len(timed.times_us["dense"]) == 3
    assert timed.timing["dense"].stop_reason == "interrupted"


@pytest.mark.parametrize(
    ("cache", "touched", "state"), [(0, 1 << 40, "warm"), (9, 27, "warm"), (9, 28, "cold")]
)
def test_nothing_is_cold_on_trust(cache: int, touched: int, state: str) -> None:
    assert cache_state("dense", touched, cache) == state
    assert cache_state("select", touched, cache) == "hot"


class _Gpu:
    """A board at 500 W: a replay of 4000 us takes 2 J, and the counter moves with every one."""

    def __init__(self, replays: _Replays) -> None:
        self._replays = replays

    def clocks(self) -> Clocks:
        return Clocks(("software power cap",), 60)

    def energy_mj(self) -> int:
        return 2000 * len(self._replays.turn)


class _Graph(str):
    """A graph by name that can be launched without being clocked."""

    def replay(self) -> None:
        pass


def test_clocks_are_read_and_energy_counted_after_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_cuda, "sized_readers", lambda *_: [])
    replays = _Replays(monkeypatch, {"dense": 4000.0, "append_kv": 4000.0})
    monkeypatch.setattr(timing_cuda, "_record", lambda chains, turns: _Graph(chains[0][0].stage))
    executor = CudaExecutor(
        replace_cache(MIB),
        fixed(3),
        gpu=_Gpu(replays),
        energy_seconds=1e-9,
        phases=(phases := Phases()),  # type: ignore[arg-type]
    )
    dense = Candidate((_bound([], "dense", "append_kv", "dense"),), {"append_kv": 1, "dense": 8}, {})
    loop = executor.time([dense], "loop")
    assert loop.clocks == Clocks(("software power cap",), 60)
    (timed,) = loop.timed
    assert len(timed.times_us["dense"]) == 3
    assert set(timed.energy) == {"dense"}  # the append is no part of it
    energy = timed.energy["dense"]
    assert energy.joules == 2.0
    assert energy.launches == timed.timing["dense"].launches_per_sample
    assert {"capture", "energy", "single steps", "streaming reads"} == phases.seconds.keys()


@pytest.mark.parametrize(
    ("turn_us", "launches", "recorded"),
    [
        (4500.0, 2, [1]),  # of one turn both the sample and its lead
        (1500.0, 6, [1, 3]),
        (150.0, 54, [1, 3, 27]),  # the sample's last: what its launches return is what is checked
        (1.5, 1000, [1, 201, 500]),  # MAX_LAUNCHES of two caches
        (0.5, 1000, [1, 500]),
    ],
)
def test_a_sample_lasts_4_ms_behind_300_us(
    turn_us: float, launches: int, recorded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole turns over two caches, and captured no oftener than needed."""
    captured: list[int] = []

    def record(chains: list[tuple[Step, ...]], turns: int) -> str:
        captured.append(turns)
        return f"{turns} turns"

    monkeypatch.setattr(timing_cuda, "_record", record)
    monkeypatch.setattr(timing_cuda, "replay_us", lambda graph, lead=None: turn_us)
    stage = timing_cuda._capture([(Step("dense", lambda: None),)] * 2)
    assert captured == recorded
    assert stage.launches == launches
    assert stage.graph == f"{launches // 2} turns"


@pytest.mark.parametrize(
    ("waited", "clocks"),
    [
        ((1.0, 1.0 + 2 * 0.25 * 10), Clocks(waited_share=0.25)),  # two workers, 10 s
        ((1.0, 0.5), Clocks(waited_share=0.0)),  # a thread ended, and its count with it
        ((None, None), None),
    ],
)
def test_time_without_a_core_is_kept(
    waited: tuple[float | None, float | None], clocks: Clocks | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing_cpu, "waited_seconds", lambda: waited[1])
    assert _executor([], MIB)._clocks(waited[0], 10.0) == clocks
