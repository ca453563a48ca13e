"""What a sweep says before it measures."""

import os
from types import SimpleNamespace

import msgspec
import pytest

from profiles import CPU, READ_1000, SHAPE
from questprof.errors import Exit, QuestprofError
from questprof.grid import Block, Grid, plan_blocks
from questprof.model import Header
from questprof.sweep import run
from questprof.sweep.estimate import Cost
from questprof.sweep.pacing import Spent
from questprof.sweep.run import default_backends
from questprof.sweep.settings import RULES, Device, Settings
from questprof.timing.phases import Phases


@pytest.mark.parametrize(
    ("load", "device", "warns"),
    [(1.5, "cpu", True), (1.4, "cpu", False), (0.0, "cpu", False), (9.0, "cuda", False)],
)
def test_other_work_on_the_cpu_is_warned_of(
    load: float, device: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads: three quarters of them busy are a load average of 1.5."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    said = run._busy(SimpleNamespace(device=device, num_workers=2))  # type: ignore[arg-type]
    assert bool(said) == warns
    assert f"load average {load}" in said or not warns


@pytest.mark.parametrize(
    ("device", "installed", "expected"),
    [
        ("cpu", ("flashinfer",), "questprof,sdpa"),
        ("cuda", (), "questprof,sdpa,sdpa-cudnn"),
        ("cuda", ("flashinfer",), "questprof,sdpa,sdpa-cudnn,flashinfer,flashinfer-tc"),
        ("cuda", ("flash_attn_interface",), "questprof,sdpa,sdpa-cudnn,fa3"),
    ],
)
def test_the_default_baselines_are_those_that_can_run(
    device: str, installed: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: name if name in installed else None)
    assert default_backends(device) == expected  # type: ignore[arg-type]


def _blocks(*backends: str, shape=SHAPE):  # type: ignore[no-untyped-def]
    return plan_blocks(Grid((shape,), (2048,), (16,), (1024,), (1,), "cpu", backends=backends))


def test_what_this_machine_cannot_run_is_not_the_users_fault() -> None:
    with pytest.raises(QuestprofError, match="needs a GPU") as caught:
        run.refuse_hopeless(_blocks("triton"), "cpu")
    assert caught.value.status == Exit.MACHINE
    assert "--backends questprof,sdpa" in caught.value.fix


def test_what_no_machine_can_run_is_a_usage_error() -> None:
    odd = msgspec.structs.replace(SHAPE, head_dim=96)
    for backends in (("questprof",), ("questprof", "sdpa", "triton")):
        with pytest.raises(QuestprofError, match="head_dim 96") as caught:
            run.refuse_hopeless(_blocks(*backends, shape=odd), "cpu")
        assert caught.value.status == Exit.USAGE


def test_one_point_that_can_run_is_enough() -> None:
    blocks = _blocks("triton", "questprof")
    points = [point for block in blocks for point in block.points]
    refused = run.refusals(Block(tuple(points)), run.load_all(points, "cpu"))
    assert {point.backend for point in points if point.point_id in refused} == {"triton"}
    assert run.refuse_hopeless(blocks, "cpu") is None
    with pytest.raises(QuestprofError):  # the same grid without the point that can
        run.refuse_hopeless([Block(tuple(p for p in points if p.point_id in refused))], "cpu")


@pytest.mark.parametrize(("now", "warns"), [(1000.0, False), (960.0, False), (900.0, True), (1100.0, True)])
def test_a_resumed_run_names_the_ceiling_that_counts(now: float, warns: bool) -> None:
    """The profile's own is 1000 GB/s."""
    measured = (msgspec.structs.replace(READ_1000, samples_gb_s=(now,)),)
    lines = list(run._ceiling_lines((READ_1000,), measured, Settings("cpu", RULES["cpu"])))
    assert "1000 GB/s" in lines[0]
    assert (len(lines) == 3) == warns
    assert not warns or f"{now:g} GB/s" in lines[1]
    assert "2 %" in lines[-1]


def test_the_ends_may_take_more_time_than_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds a block, 15 for all of them, of which the ceiling took 12; 40 for both ends."""
    now = [112.0]
    monkeypatch.setattr(run.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(run, "cost", lambda *_: Cost(0, 10.0))
    blocks = plan_blocks(Grid((SHAPE,), (1024, 2048, 4096), (16,), (1024,), (1,), "cpu"))

    def timed(settings: Settings) -> list[int]:
        now[0] = 112.0
        progress = run._Progress(Header(1, CPU, "", ""), [])
        found = []
        for block in run._in_time(blocks, CPU, settings, progress, frozenset(), 100.0):
            found.append(block.points[0].seq_len)
            now[0] += 10.0
        assert len(found) + len(progress.left_out) == len(blocks)
        return found

    assert timed(Settings("cpu", RULES["cpu"], time_s=15.0)) == []
    assert timed(Settings("cpu", RULES["cpu"], time_s=15.0, ends_s=40.0)) == [1024, 4096]
    assert timed(Settings("cpu", RULES["cpu"], time_s=15.0, ends_s=25.0)) == [1024]
    assert timed(Settings("cpu", RULES["cpu"], time_s=60.0, ends_s=25.0)) == [1024, 4096, 2048]


def test_a_ceiling_that_the_time_cut_short_is_counted_apart() -> None:
    """A quarter of 20 s is 5 s: what took 5.2 s was cut short, what took 4 s was not, and no GPU's is."""
    phases = Phases()

    def spent(device: Device, ceiling: float, time_s: float | None) -> Spent:
        phases.seconds = {"ceiling": ceiling, "timing": 9.0}
        return run._spent(Settings(device, RULES[device], time_s=time_s), phases, 15.0)

    assert spent("cpu", 5.2, 20.0) == Spent(15.0, 5.2, 0.25)
    assert spent("cpu", 4.0, 20.0) == Spent(15.0)
    assert spent("cpu", 50.0, None) == spent("cuda", 5.2, 20.0) == Spent(15.0)
