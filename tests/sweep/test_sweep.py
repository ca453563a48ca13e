"""From points to records: nothing wrong is timed, nothing that does not fit is lost."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import msgspec
import pytest
import torch
from questprof_kernels import reference

from profiles import CPU
from questprof import backends
from questprof.backends import Backend, load
from questprof.ceilings import CpuReader
from questprof.environment import capture
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import Clocks, Data, Header, Point, Profile, Record, Shape, SummaryLayout
from questprof.policies import bind
from questprof.scan import scan_rows
from questprof.sweep import binding
from questprof.sweep import block as sweep
from questprof.timing.candidates import Candidate, Loop
from questprof.timing.cpu import CpuExecutor
from questprof.timing.stopping import fixed
from questprof.workload import cache_bytes, make_cache, make_pool, make_query

SHAPE = Shape("toy", num_qo_heads=4, num_kv_heads=2, head_dim=64, kv_dtype="fp32")
DENSE = Point(shape=SHAPE, seq_len=200, policy="dense", device="cpu")
SDPA = msgspec.structs.replace(DENSE, backend="sdpa")
HEADER = Header(1, CPU, "questprof sweep", "2026-01-01T00:00:00+00:00")
QUEST = Point(shape=SHAPE, seq_len=200, token_budget=64, device="cpu")


def _machine() -> sweep.Machine:
    environment = capture("cpu")
    reader = CpuReader("reader", lambda: None, 1 << 40)
    return sweep.Machine(environment, CpuExecutor(environment, reader, fixed(3)))


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


class _Executor(CpuExecutor):
    """Keeps the candidates that it was given."""

    candidates: Sequence[Candidate] = ()

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> Loop:
        self.candidates = candidates
        return super().time(candidates, loop_id)


@pytest.mark.parametrize("layout", get_args(SummaryLayout))
@pytest.mark.parametrize("warms_up", [True, False])
def test_a_warm_up_is_the_same_point_on_a_few_pages_of_another_pool(
    layout: SummaryLayout, warms_up: bool
) -> None:
    environment = capture("cpu")
    executor = _Executor(environment, CpuReader("reader", lambda: None, 1 << 40), fixed(3))
    executor.warms_up = warms_up
    ragged = {"seq_lens": (200, 10), "token_budgets": (96, 96), "summary_layout": layout}
    points = [msgspec.structs.replace(point, **ragged) for point in (DENSE, QUEST)]
    records = list(sweep.run_block(Block(tuple(points), ("append",)), sweep.Machine(environment, executor)))
    assert [r.status for r in records] == ["ok", "ok"]
    assert len(executor.candidates) == 6  # dense and quest, each with its cold append and its prefill
    for candidate in executor.candidates:
        if not warms_up:
            assert candidate.warm_up is None
            continue
        warm, timed = candidate.warm_up, candidate.rotation[0]
        assert warm is not None
        assert warm.cache.num_pages == (4, 1)
        assert warm.cache.pool is not timed.cache.pool
        assert warm.cache.pool.summary.layout == layout
        assert warm.cache.pool.k.dtype == timed.cache.pool.k.dtype
        assert warm.cache.pool.k.shape[1:] == timed.cache.pool.k.shape[1:]
        if warm.outputs.select_indptr is not None:
            assert warm.outputs.select_indptr.tolist() == [0, 4, 5]
        assert torch.isfinite(warm.outputs.out).all()  # it ran


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

    monkeypatch.setattr(binding, "make_pool", no_memory)
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


def _fusing(backend: Backend, spoil: str = "") -> Backend:
    """`backend` with select repeated in attend's launch; `spoil`: the half of it that goes wrong."""

    def select_attend(scores, cache, indptr, page_ids, take_tail, q, out, lse, scratch, **_):  # type: ignore[no-untyped-def]
        backend.stages["select"](scores, cache, indptr, page_ids, take_tail)
        if spoil == "select":
            page_ids[:, 0] = cache.max_pages - 2
        backend.stages["attend"](q, cache, page_ids, indptr, out, lse, scratch)
        if spoil == "attend":
            _spoil(out)

    return replace(backend, stages={**backend.stages, "select_attend": select_attend})


def _with_backend(monkeypatch: pytest.MonkeyPatch, change: Callable[[Backend], Backend]) -> None:
    real = backends.load
    monkeypatch.setattr(
        sweep,
        "load",
        lambda name, device: change(real(name, device)) if name == "questprof" else real(name, device),
    )


def test_a_fused_chain_is_checked_after_the_steps_and_timed_as_quest(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_backend(monkeypatch, _fusing)
    (record,) = _run(QUEST)
    assert record.status == "ok", record.reason
    assert sorted(record.times_us) == ["append", "attend", "quest", "score", "select"]
    fused = ["score", "select_attend.select", "select_attend.attend", "select_attend.attend.lse"]
    steps = ["append", "score", "select", "attend", "attend.lse"]
    assert [c.stage for c in record.checks if c.when == "before"] == steps + fused
    assert [c.stage for c in record.checks if c.when == "after"] == ["append", *fused]


@pytest.mark.parametrize("half", ["select", "attend"])
def test_a_wrong_fused_stage_is_recorded_and_never_timed(monkeypatch: pytest.MonkeyPatch, half: str) -> None:
    _with_backend(monkeypatch, lambda backend: _fusing(backend, half))
    (record,) = _run(QUEST)
    assert (record.status, record.times_us) == ("wrong", {})
    assert f"select_attend.{half} before" in record.reason
    assert all(c.holds for c in record.checks[:5])


def test_a_fused_stage_that_writes_nothing_is_not_taken_for_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outputs are the steps' own, poisoned in between."""
    _with_backend(
        monkeypatch, lambda b: replace(b, stages={**b.stages, "select_attend": lambda *_, **__: None})
    )
    (record,) = _run(QUEST)
    assert record.status == "wrong"


def test_extras_are_timed_where_asked_for_and_an_append_once_a_backend() -> None:
    other = msgspec.structs.replace(QUEST, token_budget=128)
    block = Block((DENSE, SDPA, QUEST, other), ("append", "select"))
    dense, sdpa, quest, second = sweep.run_block(block, _machine())
    assert {r.status for r in (dense, sdpa, quest, second)} == {"ok"}
    assert sorted(dense.times_us) == ["append_kv", "append_kv_cold", "append_kv_prefill", "dense"]
    assert sorted(sdpa.times_us) == ["dense"]
    main = {"append", "attend", "quest", "score", "select"}
    assert set(quest.times_us) - main == {"append_cold", "append_prefill", "select_cold"}
    assert set(second.times_us) - main == {"select_cold"}
    for record in (dense, quest, second):
        assert record.timing.keys() == record.times_us.keys()
        assert all(len(samples) == 3 for samples in record.times_us.values())
    whens = dict.fromkeys((c.stage, c.when) for c in quest.checks if "_" in c.stage)
    assert list(whens) == [
        (stage, when)
        for when in ("before", "after")
        for stage in ("append_cold", "append_prefill", "select_cold")
    ]
    assert quest.timing["select_cold"].cache_state == "cold"
    assert quest.timing["select"].cache_state == "hot"


@pytest.mark.parametrize("data", ["constant", "ramp", "needle"])
def test_adversarial_keys_are_measured_and_checked_as_any_other(data: Data) -> None:
    for policy in ("quest", "quest-open"):
        records = _run(
            *(
                msgspec.structs.replace(p, data=data, policy=p.policy if p.policy == "dense" else policy)
                for p in (DENSE, QUEST)
            )
        )
        assert [r.status for r in records] == ["ok", "ok"], [r.reason for r in records]
    assert records[1].union_ratio == 1.0 or data == "ramp"


def test_scattered_pages_say_how_large_their_pool_was() -> None:
    point = msgspec.structs.replace(QUEST, page_order="scattered", pool_bytes=2 << 20)
    dense = msgspec.structs.replace(point, policy="dense", token_budget=0, backend="sdpa")
    quest, baseline, plain = _run(point, dense)[0], _run(point, dense)[1], _run(QUEST)[0]
    assert (quest.status, baseline.status) == ("ok", "ok")
    assert quest.pool_bytes == baseline.pool_bytes == 2 << 20
    (small,) = _run(msgspec.structs.replace(point, pool_bytes=1 << 10))
    assert small.pool_bytes == cache_bytes(QUEST)  # the pages there must be
    assert plain.pool_bytes == 0


def _obvious(backend: Backend) -> Backend:
    """`backend` with the stages that touch the summary written plainly, for either layout."""

    def append(cache, keys, values, new_indptr):  # type: ignore[no-untyped-def]
        backend.stages["append_kv"](cache, keys, values, new_indptr)
        for request, count in enumerate(new_indptr.diff().tolist()):
            first = (cache.seq_lens[request] - count) // cache.pool.page_size
            for page in range(first, cache.num_pages[request] if count else first):
                cache.rescan(request, page)

    def score(q, cache, scores):  # type: ignore[no-untyped-def]
        scores.copy_(reference.score(q, cache))

    stages = {**backend.stages, "append": append, "score": score}
    return replace(backend, stages=stages, why_not=lambda point: None)


def test_both_summary_layouts_run_in_blocks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_backend(monkeypatch, _obvious)
    by_layout = {}
    for layout in get_args(SummaryLayout):
        points = (msgspec.structs.replace(p, summary_layout=layout, seq_len=1100) for p in (DENSE, QUEST))
        records = list(sweep.run_block(Block(tuple(points), ("append", "select")), _machine()))
        assert [r.status for r in records] == ["ok", "ok"], [r.reason for r in records]
        assert "append_cold" in records[1].times_us
        by_layout[layout] = records
    assert by_layout["paired"][0].floor_bytes == by_layout["transposed"][0].floor_bytes
    rows = scan_rows(Profile(HEADER, tuple(r for records in by_layout.values() for r in records)))
    # Two heads a KV head: with independent signs 3/4 of the index, and what these signs pick is counted.
    share = by_layout["transposed"][1].sign_share
    assert share == pytest.approx(3 / 4, abs=0.1)
    assert by_layout["paired"][1].sign_share is None
    assert [row.floor_bytes["score"] for row in rows] == [69 * 2 * 2 * 64 * 4, 69 * 2 * 2 * 64 * 4 * share]


class _Climbing(CpuExecutor):
    """Every stage takes 2 % more with each of 30 samples."""

    def time(self, candidates: Sequence[Candidate], loop_id: str) -> Loop:
        loop = super().time(candidates, loop_id)
        times = tuple(100.0 * 1.02**i for i in range(30))
        climbing = (replace(t, times_us=dict.fromkeys(t.times_us, times)) for t in loop.timed)
        return replace(loop, timed=tuple(climbing), clocks=Clocks(("sync boost",), 60))


def test_samples_that_drift_make_a_point_unstable_and_are_kept() -> None:
    environment = capture("cpu")
    executor = _Climbing(environment, CpuReader("reader", lambda: None, 1 << 40), fixed(3))
    records = list(sweep.run_block(Block((DENSE, QUEST)), sweep.Machine(environment, executor)))
    assert [record.status for record in records] == ["unstable", "unstable"]
    assert "dense +49 %" in records[0].reason  # 1.02 ** 20
    assert len(records[1].times_us["quest"]) == 30
    assert records[0].clocks == records[1].clocks == Clocks(("sync boost",), 60)


def test_a_wrong_point_is_wrong_however_its_samples_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_backend(monkeypatch, lambda backend: _broken(backend, "score", _spoil, 2))
    environment = capture("cpu")
    executor = _Climbing(environment, CpuReader("reader", lambda: None, 1 << 40), fixed(3))
    records = list(sweep.run_block(Block((SDPA, QUEST)), sweep.Machine(environment, executor)))
    assert sorted(record.status for record in records) == ["unstable", "wrong"]


def test_the_reference_of_a_cache_is_worked_out_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of 2 KV heads, dense attention of 4 query heads: for both baselines, before and after."""
    counted = {"boxes": 0, "attend_row": 0}

    def counting(name: str) -> Callable[..., object]:
        real = getattr(reference, name)

        def call(*arguments: object) -> object:
            counted[name] += 1
            return real(*arguments)

        return call

    for name in counted:
        monkeypatch.setattr(reference, name, counting(name))
    assert {record.status for record in _run(DENSE, SDPA)} == {"ok"}
    assert counted["attend_row"] == 4
    assert {record.status for record in _run(QUEST, msgspec.structs.replace(QUEST, token_budget=128))} == {
        "ok"
    }
    assert counted["boxes"] == 2


@pytest.mark.parametrize("caches", [1, 2])
def test_a_cache_that_a_stage_alters_is_caught_after_timing(
    caches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads what it has written, so that only the reference from before can tell."""
    monkeypatch.setattr(CpuExecutor, "rotation_size", lambda executor, touched: caches)
    calls = 0
    backend = load("questprof", "cpu")

    def altering(q, cache, out, lse, scratch):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 3:
            cache.pool.v += 1
        backend.stages["dense"](q, cache, out, lse, scratch)

    changed = replace(backend, stages={**backend.stages, "dense": altering})
    monkeypatch.setattr(sweep, "load", lambda name, device: changed)
    (record,) = _run(DENSE)
    assert record.status == "wrong"
    assert "dense after timing" in record.reason


@pytest.mark.parametrize(("point", "stage"), [(DENSE, "dense"), (QUEST, "attend")])
def test_what_a_stage_keeps_of_one_cache_and_uses_for_another_is_caught(
    point: Point, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches share a scratch, and what a stage leaves there; the first cache alone shows nothing."""
    monkeypatch.setattr(CpuExecutor, "rotation_size", lambda executor, touched: 2)
    first: dict[int, object] = {}

    def keeping(backend: Backend) -> Backend:
        def launch(q, cache, *others):  # type: ignore[no-untyped-def]
            backend.stages[stage](q, first.setdefault(others[-1].data_ptr(), cache), *others)

        return replace(backend, stages={**backend.stages, stage: launch})

    _with_backend(monkeypatch, keeping)
    (record,) = _run(point)
    assert record.status == "wrong"
    assert f"{stage} after timing" in record.reason
    assert all(check.holds for check in record.checks if check.when == "before")


def test_seconds_are_counted_by_phase() -> None:
    machine = _machine()
    list(sweep.run_block(Block((DENSE,)), machine))
    assert {"filling", "checks", "timing"} == machine.phases.seconds.keys()
