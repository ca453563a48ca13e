from __future__ import annotations

import os
import stat
import time
from itertools import pairwise
from pathlib import Path

import fake_ncu
import pytest

from questprof.counters import Counted, ncu, ncu_process
from questprof.counters.ncu_plan import CALIBRATION_BYTES
from questprof.errors import Exit, QuestprofError
from questprof.model import Point, Shape

SHAPE = Shape("test", 4, 4, 64)
POINTS = tuple(
    Point(SHAPE, seq_len, token_budget=budget) for seq_len in (2048, 4096) for budget in (256, 512)
)


def counted(folder: Path, behaviour: str = "ok", points=POINTS, **options) -> list[Counted]:
    options = {"timeout_s": 60.0, **options}
    return list(ncu.count(points, ncu=fake_ncu.install(folder, behaviour), **options))


def reads(one: Counted) -> dict[tuple[str, str], int]:
    return {(count.stage, count.mode): count.read for count in one.counts}


def test_every_stage_of_every_point_gets_its_own_bytes(tmp_path):
    found = {one.point_id: one for one in counted(tmp_path)}
    assert set(found) == {point.point_id for point in POINTS}
    for point in POINTS:
        one = found[point.point_id]
        assert (one.source, one.variant, one.union_ratio, one.reason) == ("ncu", "cuda", 1.0, "")
        assert reads(one) == {
            ("dense", "isolated"): 1000 * point.seq_len,
            ("score", "isolated"): 100 * point.seq_len,
            ("select", "isolated"): 10 * point.seq_len,
            ("attend", "isolated"): 200 * point.seq_len,
            ("quest", "pipelined"): 290 * point.seq_len,
        }
        assert {count.write for count in one.counts} == {64}
        assert [c.counted_bytes - c.known_bytes for c in one.calibration] == [1024, 1024]
        assert {c.known_bytes for c in one.calibration} == {CALIBRATION_BYTES}


def test_kernels_and_further_counters_are_kept(tmp_path):
    (one,) = counted(tmp_path, points=POINTS[:1], more_metrics=True)
    by_stage = {count.stage: count for count in one.counts}
    assert by_stage["select"].kernels == ("select_kernel",)
    assert by_stage["quest"].kernels == fake_ncu.KERNELS["quest"]
    assert by_stage["dense"].metrics == {
        "gpu__time_duration.sum": 64.0,
        "lts__t_sectors_srcunit_tex_op_read.sum": 64.0,
    }
    assert "gpu__time_duration.sum" not in by_stage["quest"].metrics


def test_the_command_names_every_setting_that_changes_a_figure(tmp_path):
    counted(tmp_path, points=POINTS[:1])
    alone, chained = fake_ncu.commands(tmp_path)
    for arguments, replay, stage in ((alone, "kernel", "score"), (chained, "app-range", "quest")):
        pairs = set(pairwise(arguments))
        assert {("--replay-mode", replay), ("--cache-control", "all"), ("--clock-control", "none")} <= pairs
        assert ("--nvtx-include", f"questprof@{stage}/") in pairs
        assert ("--nvtx-include", "questprof@calibration/") in pairs
    assert "dram__bytes_read.sum,dram__bytes_write.sum,gpu__time_duration.sum" in alone


def test_the_interpreter_is_never_handed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    told, code = ncu_process.execute(["sh", "-c", "echo ${TRITON_INTERPRET-unset}"], 10, str(tmp_path))
    assert (told, code) == ("unset\n", 0)


def test_dense_points_need_no_pipelined_run(tmp_path):
    (one,) = counted(tmp_path, points=[Point(SHAPE, 2048, policy="dense")])
    assert reads(one) == {("dense", "isolated"): 1000 * 2048}
    assert len(fake_ncu.commands(tmp_path)) == 1


@pytest.mark.parametrize(
    ("behaviour", "what", "fix"),
    [
        ("permission", "permission", "SYS_ADMIN"),
        ("dcgm", "taken", "dcgmi profile --pause"),
        ("driver", "does not fit the driver", "--ncu"),
        ("chip", "does not know this GPU", "newer"),
        ("option", "does not know an option", "2023.1"),
        ("lock", "lock file", "TMPDIR"),
        ("unseen", "no kernel was profiled", "NVTX_DISABLE"),
        ("lacks:dram__bytes_read.sum", "counter dram__bytes_read.sum", "--source trace"),
    ],
)
def test_what_this_machine_cannot_do_is_said_with_its_fix(tmp_path, behaviour, what, fix):
    with pytest.raises(QuestprofError) as caught:
        counted(tmp_path, behaviour)
    assert caught.value.status == Exit.MACHINE
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_an_optional_counter_that_the_chip_lacks_is_absent(tmp_path):
    (one,) = counted(tmp_path, "lacks:lts__t_sectors_srcunit_tex_op_read.sum", POINTS[:1], more_metrics=True)
    assert len(one.counts) == 5
    assert {name for count in one.counts for name in count.metrics} == {"gpu__time_duration.sum"}


def test_a_counter_without_a_value_is_no_zero(tmp_path):
    (one,) = counted(tmp_path, "absent", POINTS[:1])
    assert one.counts == ()
    assert "dense is not counted, its rows lack DRAM counters" in one.reason


def test_a_lost_kernel_shifts_nothing(tmp_path):
    found = counted(tmp_path, "lost")
    assert all(not one.counts for one in found)
    assert "range 2 is score, its kernel select_kernel is labelled select" in found[0].reason


def test_kernels_that_nobody_launched_on_purpose_are_named(tmp_path):
    found = counted(tmp_path, "more", pipelined=False)
    assert {one.reason for one in found} == {"1 kernels more than launched on purpose: elementwise_kernel"}


def test_points_before_a_crash_survive_it(tmp_path):
    first, *others = counted(tmp_path, "crash", pipelined=False)
    assert (len(first.counts), first.reason) == (4, "")
    for other in others:
        assert other.counts == ()
        assert "ended with status 1" in other.reason


def test_a_refused_point_costs_the_others_nothing(tmp_path):
    found = counted(tmp_path, "refuse", pipelined=False)
    assert [len(one.counts) for one in found] == [4, 0, 4, 4]
    assert found[1].reason == "no kernel for head_dim 80"
    assert [one.status for one in found] == ["ok", "unavailable", "ok", "ok"]


def test_a_chain_that_cannot_run_fused_runs_apart_and_says_so(tmp_path):
    (one,) = counted(tmp_path, "no-fused", POINTS[:1])
    quest = next(count for count in one.counts if count.stage == "quest")
    assert quest.kernels == fake_ncu.KERNELS["apart"]
    assert quest.read == 295 * 2048
    assert one.reason.startswith("pipelined: its steps apart, because the fused chain gave:")
    assert one.status == "ok"


def test_a_batch_that_hangs_is_tried_once_more_in_halves(tmp_path):
    found = counted(tmp_path, "hang-many", POINTS[:2], timeout_s=8.0, pipelined=False)
    assert [len(one.counts) for one in found] == [4, 4]
    assert len(fake_ncu.commands(tmp_path)) == 3


def test_nothing_is_left_of_a_run_that_hangs(tmp_path):
    started = time.monotonic()
    (one,) = counted(tmp_path, "hang", POINTS[:1], timeout_s=5.0, pipelined=False)
    assert one.reason == "no end after 5 s"
    assert time.monotonic() - started < 60
    child = int((tmp_path / "child.pid").read_text())
    assert _gone(child)


def _gone(pid: int) -> bool:
    """Whether the process, which has been killed, ends; one that nobody waits for stays as a zombie."""
    killed = time.monotonic()
    while time.monotonic() - killed < 10:  # a busy machine takes its time
        try:
            if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_batches_are_yielded_one_by_one(tmp_path):
    found = ncu.count(POINTS, ncu=fake_ncu.install(tmp_path), timeout_s=60, pipelined=False, batch_points=2)
    next(found)
    assert len(fake_ncu.commands(tmp_path)) == 1
    assert len(list(found)) == 3
    assert len(fake_ncu.commands(tmp_path)) == 2


def test_no_ncu_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu_process, "PLACES", ())
    with pytest.raises(QuestprofError, match="not there") as caught:
        next(ncu.count(POINTS, ncu=None, timeout_s=60))
    assert caught.value.status == Exit.MACHINE
    with pytest.raises(QuestprofError, match="no such program"):
        ncu_process.find(str(tmp_path / "nowhere"))


def test_ncu_is_found_on_path_and_where_cuda_puts_it(tmp_path, monkeypatch):
    installed = fake_ncu.install(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ncu_process.find() == installed
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(ncu_process, "PLACES", (f"{tmp_path}/nc*",))
    assert ncu_process.find() == installed
    monkeypatch.undo()
    assert ncu_process.version(installed).startswith("2025.3.1.0")


def test_a_program_that_does_not_run_is_no_ncu(tmp_path):
    broken = tmp_path / "ncu"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(QuestprofError, match="does not run"):
        ncu_process.version(str(broken))
    broken.write_bytes(b"#!/bin/sh\nprintf 'Copyright \xff\xfe\\nVersion 2025.3\xe9\\n'\n")  # no UTF-8
    assert ncu_process.version(str(broken)).startswith("2025.3")


def test_why_not_tells_what_shows_without_a_run(tmp_path, monkeypatch):
    installed = fake_ncu.install(tmp_path)
    parameters = tmp_path / "params"
    monkeypatch.setattr(ncu, "DRIVER_PARAMETERS", parameters)
    monkeypatch.setattr(ncu, "DEVICES", ())
    assert "no NVIDIA GPU" in ncu.why_not(installed).why
    monkeypatch.setattr(ncu, "DEVICES", (str(tmp_path),))
    assert ncu.why_not(installed) is None  # a container may hide the driver's parameters
    assert "no such program" in ncu.why_not(str(tmp_path / "nowhere")).why
    parameters.write_text("RmProfilingAdminOnly: 1\n")
    status = tmp_path / "status"
    monkeypatch.setattr(ncu, "STATUS", status)
    status.write_text("Name: python\nCapEff:\t00000000a80425fb\n")  # root in an ordinary container
    assert "permission" in ncu.why_not(installed).what
    status.write_text("Name: python\nCapEff:\t000001ffffffffff\n")
    assert ncu.why_not(installed) is None
    status.unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "permission" in ncu.why_not(installed).what
