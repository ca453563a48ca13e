"""Interleaving, what is called cold, and what a sample is."""

import msgspec
import torch

from profiles import CPU
from questprof.ceilings import CpuReader
from questprof.policies import Bound, Outputs, Step
from questprof.timing import Candidate, CpuExecutor, CudaExecutor

MIB = 1 << 20
ENVIRONMENT = msgspec.structs.replace(CPU, last_level_cache_bytes=10 * MIB)


def _bound(log: list[str], name: str, *stages: str) -> Bound:
    steps = tuple(Step(stage, lambda stage=stage: log.append(f"{name}.{stage}")) for stage in stages)  # type: ignore[misc]
    empty = torch.empty(0)
    return Bound(None, empty, True, Outputs(empty, None), steps)  # type: ignore[arg-type]


def _executor(log: list[str], buffer_bytes: int, samples: int = 2) -> CpuExecutor:
    return CpuExecutor(ENVIRONMENT, CpuReader("reader", lambda: log.append("read"), buffer_bytes), samples)


def test_candidates_are_interleaved_and_each_meets_evicted_caches() -> None:
    log: list[str] = []
    dense = Candidate((_bound(log, "dense", "append_kv", "dense"),), {"append_kv": 1, "dense": 2})
    quest = Candidate(
        (_bound(log, "quest", "append", "score", "select", "attend"),),
        {"append": 1, "score": 2, "select": 3, "attend": 4, "quest": 5},
    )
    (timed_dense, timed_quest), (calibration,) = _executor(log, 31 * MIB).time([dense, quest], "loop")
    turn = ["read", "dense.append_kv", "dense.dense", "read", "quest.append"]
    turn += ["quest.score", "quest.select", "quest.attend"]
    assert log == turn * 3  # one round is thrown away
    assert len(calibration.samples_gb_s) == 6
    assert set(timed_dense.times_us) == {"append_kv", "dense"}
    assert set(timed_quest.times_us) == {"append", "score", "select", "attend", "quest"}
    assert all(len(samples) == 2 for samples in timed_quest.times_us.values())
    for total, *parts in zip(
        *(timed_quest.times_us[s] for s in ("quest", "score", "select", "attend")), strict=True
    ):
        assert abs(total - sum(parts)) < 1e-6


def test_cold_means_more_than_three_caches_between_two_uses() -> None:
    for buffer, state in ((31 * MIB, "cold"), (30 * MIB, "warm"), (29 * MIB, "warm")):
        candidate = Candidate(
            (_bound([], "quest", "score", "select", "attend"),),
            dict.fromkeys(("score", "select", "attend", "quest"), MIB),
        )
        ((timed,), _) = _executor([], buffer).time([candidate], "loop")
        assert timed.timing["attend"].cache_state == state
        assert timed.timing["select"].cache_state == "hot"
        assert timed.timing["attend"].touched_bytes == buffer + MIB


def test_rotation_of_a_gpu_exceeds_three_caches_in_touched_bytes() -> None:
    executor = CudaExecutor(replace_cache(60 * MIB), 5)
    for touched in (1 * MIB, 16 * MIB, 59 * MIB, 60 * MIB, 180 * MIB, 181 * MIB, 4096 * MIB):
        size = executor.rotation_size(touched)
        assert size * touched > 180 * MIB
        assert (size - 1) * touched <= 180 * MIB


def replace_cache(cache_bytes: int):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(CPU, device="cuda", last_level_cache_bytes=cache_bytes)


def test_a_reader_turns_seconds_into_gb_s() -> None:
    reader = CpuReader("r", lambda: None, 2_000_000_000, seconds=[1.0, 0.5])
    assert reader.ceiling().samples_gb_s == (2.0, 4.0)
