"""From counters to a profile, with counters that only say what they are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from profiles import CPU, GPU
from questprof.bytecheck import run as bytes_run
from questprof.bytecheck import tasks as bytes_tasks
from questprof.bytecheck import times as bytes_times
from questprof.bytecheck.grid import Asked, plan_points
from questprof.bytecheck.record import record_of, status_of
from questprof.bytecheck.run import Outcome, exit_status, proof_points, run_bytes
from questprof.bytecheck.tasks import How, Plan, Task, plan_tasks
from questprof.counters import Counted, ncu, trace, unmapped
from questprof.counts import StageCount, UnmappedProof
from questprof.errors import Exit, QuestprofError
from questprof.ledger import entries
from questprof.model import Header, Point, Profile, Record, shape_presets
from questprof.store import read_profile
from questprof.sweep.outputs import Outputs

ASKED = Asked((shape_presets()["llama-2-7b"],), lengths=(1024,), page_sizes=(16,), budgets=(128, 256))
POINTS = plan_points(ASKED, "cpu")
ATTEND = StageCount("attend", "trace", 5, 7)
REFUSED = QuestprofError("hardware counters", "not allowed", "Ask for them.", Exit.MACHINE)
QUIET = Console(stderr=True, quiet=True)


def counted_of(point: Point, source: str = "trace", **fields: Any) -> Counted:
    variant = "triton" if source == "trace" else "cuda"
    given = {"counts": (replace(ATTEND, source=source),), "union_ratio": 1.0, **fields}
    share = 0.5 if point.summary_layout == "transposed" else None
    return Counted(point.point_id, source, variant, sign_share=share, **given)  # type: ignore[arg-type]


class Told:
    """Stands for both counters; `asked` is what they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, tuple[Point, ...], dict[str, Any]]] = []
        self.fields: dict[str, Any] = {}
        self.fail_after: tuple[int, BaseException] | None = None
        monkeypatch.setattr(trace, "stream", self._counter("trace"))
        monkeypatch.setattr(ncu, "count", self._counter("ncu"))
        monkeypatch.setattr(bytes_run, "capture", lambda device: CPU if device == "cpu" else GPU)

    def _counter(self, source: str) -> Any:
        def count(points: Sequence[Point], **options: Any) -> Iterator[Counted]:
            self.asked.append((source, tuple(points), options))
            for number, point in enumerate(reversed(points)):
                if source == "ncu" and self.fail_after and number == self.fail_after[0]:
                    raise self.fail_after[1]
                yield counted_of(point, source, **self.fields)

        return count


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def outputs(path: Path, **changes: bool) -> Outputs:
    return Outputs(path / "p.jsonl", None, **{"force": False, "resume": False, **changes})


def plan(*sources: str, how: How = How(), place: str = "") -> Plan:
    tasks = [
        Task(source, POINTS if source == "trace" else tuple(replace(p, device="cuda") for p in POINTS), how,
             place if number else "")  # type: ignore[arg-type]
        for number, source in enumerate(sources)
    ]  # fmt: skip
    return Plan(tuple(tasks), "cuda" if "ncu" in sources else "cpu")


def test_records_are_on_disk_with_variant_ledger_and_counts(told: Told, tmp_path: Path) -> None:
    outcome = run_bytes(plan("trace"), outputs(tmp_path), QUIET)
    assert [replace(r.point, variant="") for r in outcome.profile.records] == list(POINTS)
    stored = read_profile(tmp_path / "p.jsonl")
    assert sorted(r.point_id for r in stored.records) == sorted(r.point_id for r in outcome.profile.records)
    for record in stored.records:
        assert (record.kind, record.status, record.point.variant, record.variant) == (
            "bytes",
            "ok",
            "triton",
            "triton",
        )
        assert record.counts == (ATTEND,)
        assert record.env_id == CPU.env_id
        share = 0.5 if record.point.summary_layout == "transposed" else None
        expected = entries(
            record.point, trace.NUM_WORKERS, union_ratio=1.0, sign_share=share, variant="triton"
        )
        assert record.ledger == expected
        assert record.bytes["dense"].keys() == {"formula"}


def test_both_sources_keep_their_own_environment_and_workers(told: Told, tmp_path: Path) -> None:
    outcome = run_bytes(plan("ncu", "trace"), outputs(tmp_path), QUIET)
    by_source = {r.counts[0].source: r for r in outcome.profile.records}
    assert by_source["ncu"].env_id == GPU.env_id == outcome.profile.header.environment.env_id
    assert by_source["trace"].env_id == CPU.env_id
    point = by_source["ncu"].point
    share = 0.5 if point.summary_layout == "transposed" else None
    wanted = entries(point, GPU.num_workers, union_ratio=1.0, sign_share=share, variant="cuda")
    assert by_source["ncu"].ledger == wanted
    assert len({r.point_id for r in outcome.profile.records}) == 2 * len(POINTS)


def test_a_source_that_fails_leaves_what_it_said_and_the_trace_comes_instead(
    told: Told, tmp_path: Path
) -> None:
    told.fail_after = (1, REFUSED)
    outcome = run_bytes(plan("ncu", "trace", place="instead"), outputs(tmp_path), QUIET)
    sources = [r.counts[0].source for r in outcome.profile.records]
    assert sources.count("ncu") == 1
    assert sources.count("trace") == len(POINTS)
    assert outcome.failures == [REFUSED]
    assert exit_status(outcome, Exit.OK) is Exit.MACHINE


def test_a_trace_that_stands_by_does_not_run(told: Told, tmp_path: Path) -> None:
    outcome = run_bytes(plan("ncu", "trace", place="instead"), outputs(tmp_path), QUIET)
    assert {r.counts[0].source for r in outcome.profile.records} == {"ncu"}


def test_an_interruption_keeps_what_was_counted_and_resuming_counts_the_rest(
    told: Told, tmp_path: Path
) -> None:
    told.fail_after = (1, KeyboardInterrupt())
    first = run_bytes(plan("ncu"), outputs(tmp_path), QUIET)
    assert first.interrupted
    assert exit_status(first, None) is Exit.INTERRUPTED
    assert len(first.profile.records) == 1
    told.fail_after = None
    second = run_bytes(plan("ncu"), outputs(tmp_path, resume=True), QUIET)
    assert [replace(r.point, variant="", device="cpu") for r in second.profile.records] == list(POINTS)
    assert len(told.asked[-1][1]) == len(POINTS) - 1


@pytest.mark.parametrize("option", ["--kernels=my:stages", "--append", "--gather"])
def test_resuming_with_other_options_is_refused(
    option: str, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept counts are of other kernels, or lack a stage; the file stays as it was."""
    monkeypatch.setattr(sys, "argv", ["questprof", "bytes"])
    run_bytes(plan("trace"), outputs(tmp_path), QUIET)
    before = (tmp_path / "p.jsonl").read_bytes()
    monkeypatch.setattr(sys, "argv", ["questprof", "bytes", option, "--resume"])
    with pytest.raises(QuestprofError, match=f"{option.split('=')[0]} would differ"):
        run_bytes(plan("trace"), outputs(tmp_path, resume=True), QUIET)
    assert (tmp_path / "p.jsonl").read_bytes() == before
    assert len(told.asked) == 1


def test_resuming_with_other_points_is_refused(told: Told, tmp_path: Path) -> None:
    run_bytes(plan("trace"), outputs(tmp_path), QUIET)
    fewer = Plan((Task("trace", POINTS[:1], How()),), "cpu")
    with pytest.raises(QuestprofError, match="points that these options do not ask for"):
        run_bytes(fewer, outputs(tmp_path, resume=True), QUIET)


def test_options_reach_the_counters(told: Told, tmp_path: Path) -> None:
    how = How("my:stages", prefill=True, ncu="/opt/ncu", timeout_s=9)
    run_bytes(plan("trace", how=how), outputs(tmp_path), QUIET)
    assert told.asked[0][2] == {"kernels": "my:stages", "timeout_s": 9, "prefill": True}


def test_hardware_is_asked_for_the_l2_as_well(told: Told, tmp_path: Path) -> None:
    run_bytes(plan("ncu", how=How(ncu="/opt/ncu")), outputs(tmp_path), QUIET)
    assert told.asked[0][2] == {
        "ncu": "/opt/ncu",
        "kernels": "",
        "timeout_s": 600.0,
        "pipelined": True,
        "prefill": False,
        "more_metrics": True,
    }


@pytest.mark.parametrize("source", ["trace", "ncu"])
def test_the_ablation_is_a_stage_of_the_same_records(
    source: str, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytes_times, "gpu_machine", lambda _: None)
    timed: list[Point] = []
    monkeypatch.setattr(bytes_times, "gather_times", lambda points, _: timed.extend(points) or ())
    outcome = run_bytes(plan(source, how=How(gather=True, prefill=True)), outputs(tmp_path), QUIET)
    for record in outcome.profile.records:
        assert [count.stage for count in record.counts] == ["attend", "gather"]
        assert record.point.backend == "questprof"
    (_, points, options), _ = told.asked
    assert not options["prefill"]
    if source == "trace":
        assert options["kernels"] == bytes_run.GATHER_STAGES
        assert not timed
    else:
        assert {point.backend for point in points} == {"gather"}
        assert len(timed) == len(POINTS)


def test_one_proof_a_shape_and_page_where_the_fewest_pages_are_selected(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[Point] = []
    proof = UnmappedProof(1 << 21, 1 << 22, 50, completed=True)

    def prove(point: Point, **_: Any) -> UnmappedProof:
        proved.append(point)
        return proof

    monkeypatch.setattr(unmapped, "prove", prove)
    outcome = run_bytes(plan("ncu", how=How(proof=True)), outputs(tmp_path), QUIET)
    assert [p.token_budget for p in proved] == [128]
    assert [r.proof for r in outcome.profile.records if r.proof] == [proof]
    assert proof_points(POINTS + tuple(replace(p, page_size=8) for p in POINTS)) == (
        POINTS[0],
        replace(POINTS[0], page_size=8),
    )


def test_a_point_with_nothing_to_unmap_proves_nothing(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = UnmappedProof(1 << 21, 0, 3, completed=False, reason="nothing to unmap: 3 of 64 pages")
    monkeypatch.setattr(unmapped, "prove", lambda *_, **__: proof)
    outcome = run_bytes(plan("ncu", how=How(proof=True)), outputs(tmp_path), QUIET)
    assert not any(record.proof for record in outcome.profile.records)


def test_what_the_interpreter_cannot_run_is_no_fault_beside_hardware(told: Told, tmp_path: Path) -> None:
    told.fields = {"status": "failed", "reason": "stage attend failed: RuntimeError: no GPU"}
    statuses = {}
    for place in ("", "beside"):
        told.asked.clear()
        how = How("my:stages")
        task = Task("trace", POINTS[:1], how, place)  # type: ignore[arg-type]
        folder = tmp_path / (place or "alone")
        outcome = run_bytes(Plan((task,), "cpu"), outputs(folder), QUIET)
        statuses[place] = outcome.profile.records[0].status
    assert statuses == {"": "wrong", "beside": "unavailable"}


@pytest.mark.parametrize(
    ("said", "has_counts", "status"),
    [
        ("ok", True, "ok"),
        ("wrong", True, "wrong"),
        ("failed", True, "wrong"),
        ("unstable", True, "unstable"),
        ("ok", False, "unavailable"),
        ("failed", False, "unavailable"),
        ("wrong", False, "wrong"),
        ("unavailable", False, "unavailable"),
        ("oom", False, "oom"),
    ],
)
def test_status_is_what_the_counter_said(said: Any, has_counts: bool, status: str) -> None:
    reason = "pipelined: gave: Profiling failed: wrong: out of memory"  # nobody reads it for the status
    counts = (ATTEND,) if has_counts else ()
    assert status_of(Counted("id", "trace", "triton", counts, status=said, reason=reason)) == status


def test_ids_that_repeat_keep_their_ratio_beside_a_ledger_that_can_be() -> None:
    record = record_of(POINTS[0], counted_of(POINTS[0], union_ratio=0.9), CPU, 4, "triton")
    assert record.union_ratio == 0.9
    assert record.ledger == entries(record.point, 4, union_ratio=1.0, variant="triton")


def test_a_users_variant_is_planned_as_the_stages_beside_it() -> None:
    told = replace(counted_of(POINTS[0]), variant="my:stages")
    record = record_of(POINTS[0], told, CPU, 7, "cuda", prefill=True)
    assert record.point.variant == record.variant == "my:stages"
    assert record.ledger == entries(record.point, 7, union_ratio=1.0, variant="cuda", prefill=True)


def outcome_of(*statuses: str, failures: Sequence[QuestprofError] = (), interrupted: bool = False) -> Outcome:
    records = tuple(
        Record(
            kind="bytes",
            point=POINTS[0],
            point_id=POINTS[0].point_id,
            env_id="e",
            status=status,  # type: ignore[arg-type]
            counts=() if status in ("oom", "unavailable") else (ATTEND,),
        )
        for status in statuses
    )
    header = Header(1, CPU, "questprof bytes", "now")
    return Outcome(Profile(header, records), list(failures), interrupted)


@pytest.mark.parametrize(
    ("outcome", "judged", "status"),
    [
        (outcome_of("ok"), None, Exit.OK),
        (outcome_of("ok"), Exit.OK, Exit.OK),
        (outcome_of("ok", "oom"), Exit.OK, Exit.OK),
        (outcome_of("wrong"), Exit.CHECK_FAILED, Exit.CHECK_FAILED),
        (outcome_of("wrong"), None, Exit.OK),
        (outcome_of("unstable"), Exit.OK, Exit.INCONCLUSIVE),
        (outcome_of("ok"), Exit.INCONCLUSIVE, Exit.INCONCLUSIVE),
        (outcome_of("unavailable"), None, Exit.MACHINE),
        (outcome_of("ok", failures=[REFUSED]), Exit.OK, Exit.MACHINE),
        (outcome_of("wrong", failures=[REFUSED]), Exit.CHECK_FAILED, Exit.CHECK_FAILED),
        (outcome_of("wrong", interrupted=True), Exit.CHECK_FAILED, Exit.INTERRUPTED),
    ],
)
def test_exit_status(outcome: Outcome, judged: Exit | None, status: Exit) -> None:
    assert exit_status(outcome, judged) is status


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, QuestprofError | None]:
    """A machine with a GPU whose counters can be read, unless `refusal` is set."""
    said: dict[str, QuestprofError | None] = {"refusal": None}
    monkeypatch.setattr(bytes_tasks, "_has_gpu", lambda: True)
    monkeypatch.setattr(bytes_tasks, "_refusal", lambda _: said["refusal"])
    return said


def places(found: Plan) -> list[tuple[str, str]]:
    return [(task.source, task.place) for task in found.tasks]


def test_auto_takes_both_sources_on_a_gpu(gpu: dict[str, Any]) -> None:
    found = plan_tasks(ASKED, "auto", How())
    assert places(found) == [("ncu", ""), ("trace", "beside")]
    assert found.device == "cuda"
    assert {p.device for p in found.tasks[0].points} == {"cuda"}
    assert {p.shape.num_qo_heads for p in found.tasks[0].points} == {32}


def test_hardware_alone_has_a_trace_in_reserve(gpu: dict[str, Any]) -> None:
    assert places(plan_tasks(ASKED, "ncu", How())) == [("ncu", ""), ("trace", "instead")]


def test_refused_counters_that_were_asked_for_end_it(gpu: dict[str, Any]) -> None:
    gpu["refusal"] = REFUSED
    with pytest.raises(QuestprofError) as caught:
        plan_tasks(ASKED, "ncu", How())
    assert caught.value is REFUSED


def test_refused_counters_are_a_failure_beside_the_trace(gpu: dict[str, Any]) -> None:
    gpu["refusal"] = REFUSED
    found = plan_tasks(ASKED, "auto", How())
    assert places(found) == [("trace", "")]
    assert found.failures == (REFUSED,)
    assert found.device == "cpu"


def test_without_a_gpu_auto_traces_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_tasks, "_has_gpu", lambda: False)
    found = plan_tasks(ASKED, "auto", How())
    assert places(found) == [("trace", "")]
    assert not found.failures


def test_kernels_that_are_none_are_refused_before_anything_is_counted() -> None:
    with pytest.raises(QuestprofError, match="there is no module no_such_kernels"):
        plan_tasks(ASKED, "trace", How("no_such_kernels:stages"))
