"""Tracing in processes of their own: what comes back when children talk, die, hang or are interrupted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from questprof.counters import Counted, trace_process
from questprof.counters.trace import _dealt, block_of, count, stream
from questprof.model import Point, Shape

SHAPE = Shape("own", 2, 2, 64)
SHORT = Point(SHAPE, 100, 16, 32)
LONG = Point(SHAPE, 200, 16, 32)
TIMEOUT_S = 200.0
ENDED_S = 20.0


@pytest.fixture(autouse=True)
def stages_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a child that hangs writes its process id and that of what it started."""
    monkeypatch.setenv("TRACE_PIDS", str(tmp_path / "pids"))
    return tmp_path / "pids"


def gone(process: int) -> bool:
    """Whether the process has ended, or is only waited for, within ENDED_S."""
    deadline = time.monotonic() + ENDED_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that answer at once, without torch."""
    monkeypatch.setattr(trace_process, "MODULE", "fake_trace_child")


def test_two_children_answer_in_the_order_asked_and_print_elsewhere() -> None:
    points = [LONG, SHORT]
    answers = count(points, kernels="trace_stages:talks", timeout_s=TIMEOUT_S, processes=2)
    assert [one.point_id for one in answers] == [point.point_id for point in points]
    for point, one in zip(points, answers, strict=True):
        assert (one.reason, one.variant, one.unselected_bytes) == ("", "trace_stages:talks", 0)
        dense = next(stage for stage in one.counts if stage.stage == "dense")
        assert dense.tensors["k"].read == point.seq_len * 2 * 64 * 2


def test_a_stage_set_that_is_none_is_the_reason_in_one_line() -> None:
    (one,) = count([SHORT], kernels="trace_stages:nothing", timeout_s=TIMEOUT_S)
    assert "trace_stages has no nothing" in one.reason
    assert "Traceback" not in one.reason


@pytest.mark.usefixtures("fake")
def test_children_are_told_to_interpret() -> None:
    assert [one.variant for one in count([SHORT, LONG], timeout_s=TIMEOUT_S)] == ["1", "1"]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("die", "the tracing process died of SIGABRT: the first words | the last words"),
        ("fail", "the tracing process ended with status 7: the first words | the last words"),
        ("tear", "the tracing process ended with status 0: the first words | the last words"),
    ],
)
def test_a_child_that_ends_early_leaves_what_it_said(how: str, reason: str) -> None:
    long, short = count([LONG, SHORT], kernels=how, timeout_s=TIMEOUT_S, processes=1)
    assert long == Counted(LONG.point_id, "trace", how, status="unavailable", reason=reason)
    assert (short.point_id, short.reason) == (SHORT.point_id, "")


@pytest.mark.usefixtures("fake")
def test_time_that_is_over_keeps_what_came(pids: Path) -> None:
    started = time.monotonic()
    short, long = count([SHORT, LONG], kernels="hang", timeout_s=5.0, processes=2)
    assert time.monotonic() - started < 5 + ENDED_S
    assert short.reason == ""
    assert long.reason == "not traced within 5 s"
    assert all(gone(int(process)) for process in pids.read_text().split())


@pytest.mark.usefixtures("fake")
def test_an_interrupt_ends_the_children_and_all_they_started(pids: Path) -> None:
    answers = stream([SHORT, LONG], kernels="hang", timeout_s=TIMEOUT_S, processes=2)
    assert next(answers).point_id == SHORT.point_id
    while not pids.exists() or not pids.read_text():
        time.sleep(0.05)
    with pytest.raises(KeyboardInterrupt):
        answers.throw(KeyboardInterrupt)
    assert all(gone(int(process)) for process in pids.read_text().split())


def test_nothing_asked_is_nothing_started() -> None:
    assert count([], timeout_s=1.0) == []


def test_blocks_stay_whole_and_the_work_is_shared_out() -> None:
    lengths, budgets = (1024, 2048, 4096, 8192), (64, 128)
    points = [Point(SHAPE, length, 16, budget) for budget in budgets for length in lengths]
    hands = _dealt(points, 2)
    assert sorted(point.point_id for hand in hands for point in hand) == sorted(p.point_id for p in points)
    blocks = [{block_of(point) for point in hand} for hand in hands]
    assert not blocks[0] & blocks[1]
    assert {block_of(points[3])} == blocks[0]  # the longest alone, the others together
    assert len(_dealt(points, 64)) == len(lengths)


def test_a_block_knows_neither_budget_nor_policy() -> None:
    point = Point(SHAPE, 100, 16, 32)
    same = [Point(SHAPE, 100, 16, 64), Point(SHAPE, 100, 16, 32, policy="quest-open")]
    assert {block_of(one) for one in same} == {block_of(point)}
    assert block_of(Point(SHAPE, 100, 8, 32)) != block_of(point)
