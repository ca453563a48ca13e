"""The worker's own work on the CPU: what it launches in which range, without a profiler."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from questprof.counters import ncu_worker
from questprof.counters.ncu_plan import Plan, Request, read_plan
from questprof.model import Point, Shape

SHAPE = Shape("test", 4, 2, 64, kv_dtype="fp32")


@pytest.fixture(autouse=True)
def _small_calibration(monkeypatch):
    monkeypatch.setattr(ncu_worker, "CALIBRATION_BYTES", 1 << 14)
    monkeypatch.setattr(ncu_worker.Recorder, "_stream", lambda *_: None)


def point(**options) -> Point:
    return Point(SHAPE, **{"seq_len": 200, "token_budget": 64, "device": "cpu", **options})


def planned(folder: Path, points, mode="isolated", **options) -> Plan:
    request = Request(tuple(points), mode, str(folder / "plan.jsonl"), **options)
    (folder / "request.json").write_bytes(msgspec.json.encode(request))
    ncu_worker.run(msgspec.json.decode((folder / "request.json").read_bytes(), type=Request))
    return read_plan((folder / "plan.jsonl").read_text().splitlines())


def stages(plan: Plan, number: int) -> list[str]:
    return [plan.ranges[index].stage for index in plan.points[number].ranges]


def test_budgets_of_one_cache_share_what_knows_no_budget(tmp_path):
    plan = planned(tmp_path, [point(token_budget=64), point(token_budget=128)])
    assert [r.stage for r in plan.ranges] == [
        *("calibration", "append", "dense", "score", "select", "attend"),
        *("score", "select", "attend"),
    ]
    assert stages(plan, 0) == stages(plan, 1) == ["append", "dense", "score", "select", "attend"]
    assert plan.points[0].ranges[:2] == plan.points[1].ranges[:2]
    assert plan.ended is not None
    assert plan.ended.error == ""
    for told in plan.points:
        assert (told.reason, told.variant, told.sign_share) == ("", "cpu", None)
        assert 1 <= told.union_ratio <= 2


def test_the_signs_of_a_transposed_summary_are_told(tmp_path):
    (told,) = planned(tmp_path, [point(summary_layout="transposed")]).points
    assert 0.5 < told.sign_share < 1


def test_a_prompt_is_appended_where_asked(tmp_path):
    plan = planned(tmp_path, [point()], prefill=True)
    assert stages(plan, 0) == ["append", "dense", "append_prefill", "score", "select", "attend"]


def test_a_dense_point_has_dense_alone(tmp_path):
    plan = planned(tmp_path, [point(policy="dense", token_budget=0)])
    assert stages(plan, 0) == ["dense"]


def test_pipelined_opens_the_chain_alone(tmp_path):
    plan = planned(tmp_path, [point(), point(policy="quest-open")], "pipelined")
    assert [r.stage for r in plan.ranges] == ["calibration", "quest", "quest"]
    assert [told.ranges for told in plan.points] == [(1,), (2,)]


def test_what_cannot_run_is_told_and_the_rest_runs(tmp_path):
    odd = Point(Shape("odd", 4, 2, 80, kv_dtype="fp32"), 200, token_budget=64, device="cpu")
    plan = planned(tmp_path, [odd, point()])
    assert "head_dim 80" in plan.points[0].reason
    assert plan.points[0].ranges == ()
    assert len(plan.points[1].ranges) == 5


def test_a_pool_that_does_not_fit_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu_worker, "available_bytes", lambda device: 1000)
    (told,) = planned(tmp_path, [point()]).points
    assert told.reason.startswith("out of memory: needs")
    assert told.status == "oom"


class Halved:
    """A stage set whose attention is half of what it should be."""

    @staticmethod
    def attend(q, cache, page_ids, select_indptr, out, lse, scratch):
        from questprof_kernels import cpu

        cpu.attend(q, cache, page_ids, select_indptr, out, lse, scratch)
        out /= 2


def test_wrong_results_are_told_and_counted_all_the_same(tmp_path):
    plan = planned(tmp_path, [point()], kernels="test_ncu_worker:Halved")
    (told,) = plan.points
    assert told.reason.startswith("wrong: attend error 0.5")
    assert told.status == "wrong"
    assert told.variant == "test_ncu_worker:Halved"
    assert stages(plan, 0) == ["append", "dense", "score", "select", "attend"]


def test_what_stops_the_worker_is_its_last_line(tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no such thing")

    monkeypatch.setattr(ncu_worker, "by_cache", broken)
    with pytest.raises(ValueError, match="no such thing"):
        planned(tmp_path, [point()])
    plan = read_plan((tmp_path / "plan.jsonl").read_text().splitlines())
    assert plan.ended is not None
    assert plan.ended.error == "ValueError: no such thing"
