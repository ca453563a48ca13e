"""From points to records: nothing wrong is timed, nothing that does not fit is lost."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch

from questprof import backends, sweep
from questprof.backends import Backend, load
from questprof.ceilings import CpuReader
from questprof.environment import capture
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import Point, Record, Shape
from questprof.policies import bind
from questprof.timing import CpuExecutor
from questprof.workload import cache_bytes, make_cache, make_pool, make_query

SHAPE = Shape("toy", num_qo_heads=4, num_kv_heads=2, head_dim=64, kv_dtype="fp32")
DENSE = Point(shape=SHAPE, seq_len=200, policy="dense", device="cpu")
SDPA = msgspec.structs.replace(DENSE, backend="sdpa")
QUEST = Point(shape=SHAPE, seq_len=200, token_budget=64, device="cpu")


def _machine() -> sweep.Machine:
    environment = capture("cpu")
    reader = CpuReader("reader", lambda: None, 1 << 40)
    return sweep.Machine(environment, CpuExecutor(environment, reader, 3))


def _run(*points: Point) -> list[Record]:
    return list(sweep.run_block(Block(points), _machine()))


def test_a_block_gives_one_checked_and_timed_record_a_point() -> None:
    records = _run(DENSE, SDPA, QUEST)
    assert [r.status for r in records] == ["ok", "ok", "ok"]
    assert [sorted(r.times_us) for r in records] == [
        ["append_kv", "dense"],
        ["dense"],
        ["append", "attend", "quest", "score", "select"],
    ]
    # One loop timed them all; 200 tokens are 12 pages of 16 and one of 8.
    assert len({t.loop_id for r in records for t in r.timing.values()}) == 1
    assert records[0].floor_bytes == {"dense": 2 * 200 * 2 * 64 * 4}
    assert records[2].floor_bytes["score"] == 2 * 13 * 2 * 64 * 4
    assert records[2].point_id == QUEST.point_id
    assert records[0].variant == "cpu"
    assert records[1].variant.startswith("torch-")


def test_points_already_done_are_not_run_again() -> None:
    records = list(sweep.run_block(Block((DENSE, QUEST)), _machine(), frozenset({DENSE.point_id})))
    assert [r.point.policy for r in records] == ["quest"]


def _broken(backend: Backend, stage: str, spoil: Callable[[torch.Tensor], None], argument: int) -> Backend:
    """`backend` with a stage that spoils the tensor at position `argument` after the real launch."""
    launch = backend.stages[stage]

    def broken(*arguments: torch.Tensor) -> None:
        launch(*arguments)
        spoil(arguments[argument])

    return replace(backend, stages={**backend.stages, stage: broken})


def _spoil(tensor: torch.Tensor) -> None:
    tensor.view(-1)[0] += 1


@pytest.mark.parametrize(("stage", "argument"), [("score", 2), ("select", 3), ("attend", 4), ("attend", 5)])
def test_a_wrong_stage_is_recorded_and_never_timed(
    monkeypatch: pytest.MonkeyPatch, stage: str, argument: int
) -> None:
    real = backends.load
    monkeypatch.setattr(
        sweep,
        "load",
        lambda name, device: (
            _broken(real(name, device), stage, _spoil, argument)
            if name == "questprof"
            else real(name, device)
        ),
    )
    quest, dense = sorted(_run(SDPA, QUEST), key=lambda record: record.point.backend)
    assert dense.status == "ok"
    assert quest.status == "wrong"
    assert quest.times_us == {}
    assert stage in quest.reason


def test_a_result_that_turns_wrong_while_timing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that is right at first and silent later: the poisoned output stays."""
    calls = 0
    backend = load("questprof", "cpu")
    real = backend.stages["attend"]

    def tired(*arguments: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            real(*arguments)

    tired_backend = replace(backend, stages={**backend.stages, "attend": tired})
    monkeypatch.setattr(sweep, "load", lambda name, device: tired_backend)
    (record,) = _run(QUEST)
    assert calls > 1
    assert record.status == "wrong"
    assert record.times_us == {}
    assert "after" in record.reason


def test_what_does_not_fit_is_recorded_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "available_bytes", lambda device: 1 << 19)
    records = _run(DENSE, SDPA, msgspec.structs.replace(QUEST, seq_len=4096))
    # K and V of 200 tokens (13 pages): 13 x 16 x 2 x 64 x 4 x 2 B = 208 KiB and the summary 13 KiB, of which
    # 0.8 x 512 KiB hold one (dense) but not two (SDPA's copy); 4096 tokens need 20 times as much.
    assert [r.status for r in records] == ["oom", "oom", "ok"]
    by_backend = {(r.point.backend, r.point.policy): r for r in records}
    assert by_backend["questprof", "dense"].status == "ok"
    assert by_backend["sdpa", "dense"].reason == "needs 442 KiB, 409.6 KiB are usable"
    assert by_backend["questprof", "quest"].status == "oom"


def test_memory_that_runs_out_all_the_same_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sweep, "make_pool", no_memory)
    records = _run(DENSE, QUEST)
    assert [r.status for r in records] == ["oom", "oom"]
    assert "predicted" in records[0].reason
    assert "out of memory" in records[0].reason


@pytest.mark.parametrize(
    "error", [MemoryError("no memory"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate")]
)
def test_memory_that_runs_out_late_loses_no_point_and_doubles_none(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real, calls = sweep.check, 0

    def check(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 5:  # the second check after timing
            raise error
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "check", check)
    records = _run(DENSE, SDPA, QUEST)
    assert calls == 5
    assert sorted(r.point_id for r in records) == sorted(p.point_id for p in (DENSE, SDPA, QUEST))
    assert {r.status for r in records} == {"oom"}


def test_a_library_that_refuses_a_point_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("No available kernel. Aborting execution.\nmore")

    real = backends.load
    monkeypatch.setattr(
        sweep,
        "load",
        lambda name, device: (
            replace(real(name, device), stages={"dense": refuse}) if name == "sdpa" else real(name, device)
        ),
    )
    by_backend = {record.point.backend: record for record in _run(SDPA, QUEST)}
    assert by_backend["sdpa"].status == "unavailable"
    assert by_backend["sdpa"].reason == "No available kernel. Aborting execution."
    assert by_backend["questprof"].status == "ok"


def test_what_a_backend_cannot_do_is_unavailable() -> None:
    ragged = msgspec.structs.replace(SDPA, batch_size=2, seq_lens=(200, 100))
    odd = msgspec.structs.replace(QUEST, shape=msgspec.structs.replace(SHAPE, head_dim=96))
    narrow = msgspec.structs.replace(QUEST, shape=msgspec.structs.replace(SHAPE, summary_dtype="fp16"))
    records = _run(ragged, odd, narrow, msgspec.structs.replace(odd, backend="sdpa", policy="dense"))
    assert [r.status for r in records] == ["unavailable"] * 4
    assert ["one length" in records[0].reason, "96" in records[1].reason, "exactly" in records[2].reason] == [
        True
    ] * 3


def test_ragged_batches_with_an_empty_request_run() -> None:
    point = msgspec.structs.replace(QUEST, batch_size=3, seq_lens=(200, 0, 33), token_budgets=(64, 64, 32))
    (record,) = _run(point)
    assert record.status == "ok", record.reason


@pytest.mark.parametrize("policy", ["quest", "quest-open"])
def test_a_budget_of_the_whole_length_equals_dense(policy: str) -> None:
    point = msgspec.structs.replace(QUEST, token_budget=4096)
    backend = load("questprof", "cpu")
    pool = make_pool(point, 1, 2)
    cache = make_cache(point, pool, backend, 0)
    q = make_query(point, pool, "independent", 0)
    outputs = []
    for name in ("dense", policy):
        bound = bind(name, backend, cache, q, point.num_selected)
        for step in bound.steps:
            step.launch()
        outputs.append(bound.outputs)
    torch.testing.assert_close(outputs[0].out, outputs[1].out)
    torch.testing.assert_close(outputs[0].lse, outputs[1].lse)
    assert outputs[1].page_ids is not None
    assert outputs[1].page_ids.tolist() == [list(range(13))] * 4


def test_unknown_policies_and_backends() -> None:
    with pytest.raises(QuestprofError):
        load("magic", "cpu")
    with pytest.raises(QuestprofError):
        bind("magic", load("questprof", "cpu"), None, torch.empty(0), ())  # type: ignore[arg-type]


def test_cache_bytes_are_what_is_allocated() -> None:
    point = msgspec.structs.replace(QUEST, batch_size=2)
    pool = make_pool(point, 1, 2)
    tensors = (pool.k, pool.v, pool.summary.data)
    assert cache_bytes(point) == sum(t.numel() * t.element_size() for t in tensors)


def test_data_are_seeded_and_differ_between_caches() -> None:
    backend = load("questprof", "cpu")

    def data(seed: int) -> torch.Tensor:
        point = msgspec.structs.replace(QUEST, seed=seed)
        pool = make_pool(point, 2, 2)
        caches = [make_cache(point, pool, backend, index) for index in range(2)]
        pages = [list(cache.physical_pages(0)) for cache in caches]
        return torch.stack([pool.k[p][:12] for p in pages])

    assert torch.equal(data(0), data(0))
    assert not torch.equal(data(0), data(1))
    assert not torch.equal(data(0)[0], data(0)[1])


def test_shared_queries_are_one_a_group() -> None:
    pool = make_pool(QUEST, 1, 2)
    shared = make_query(QUEST, pool, "shared", 0)
    assert torch.equal(shared[:, 0], shared[:, 1])
    assert not torch.equal(shared[:, 0], shared[:, 2])
