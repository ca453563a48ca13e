"""ncu_counted.py: the status of a point follows what was said of it, never the words of a reason."""

from __future__ import annotations

from questprof.counters import Counted
from questprof.counters.ncu_counted import READ, WRITE, Run, counted
from questprof.counters.ncu_csv import Row
from questprof.counters.ncu_plan import Measured, Plan, Range
from questprof.counters.statuses import CountStatus, status_of_error, worst
from questprof.model import Point, shape_presets

POINT = Point(shape_presets()["llama-2-7b"], 1024, token_budget=128)
LOST = Run("pipelined", failure="its steps apart, because the fused chain gave: Profiling failed: timeout")


def isolated(status: CountStatus = "ok", reason: str = "", *, rows: bool = True) -> Run:
    """A run of dense alone that read 7 bytes and wrote 5; without `rows` it counted nothing."""
    measured = Measured(POINT.point_id, "cuda", (0,) if rows else (), 1.0, status=status, reason=reason)
    found = [(Row("dense", (), {READ: 7.0, WRITE: 5.0}),)] if rows else []
    return Run("isolated", Plan((Range("dense"),), (measured,)), found)


def of(*runs: Run) -> Counted:
    return counted(POINT, runs)


def test_a_chain_that_was_lost_makes_nothing_wrong():
    one = of(isolated(), LOST)
    assert (one.status, len(one.counts)) == ("ok", 1)
    assert one.reason.endswith("gave: Profiling failed: timeout")


def test_a_failed_check_is_wrong_and_stands_first():
    one = of(isolated("wrong", "wrong: attend error 1 above 0.001"), LOST)
    assert one.status == "wrong"
    assert one.reason.startswith("wrong: attend error 1 above 0.001; pipelined: ")


def test_without_counts_the_worker_says_why():
    assert of(isolated("oom", "out of memory: needs 9 GiB", rows=False)).status == "oom"
    assert of(isolated("unavailable", "wrong: is a word", rows=False)).status == "unavailable"
    assert of(LOST).status == "unavailable"


def test_the_gravest_status_counts():
    assert worst() == "ok"
    assert worst("ok", "wrong", "unstable") == "wrong"
    assert worst("failed", "wrong") == "failed"
    assert status_of_error(MemoryError()) == "oom"
    assert status_of_error(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate")) == "oom"
    assert status_of_error(ValueError("out of memory")) == "unavailable"
