"""run.py, record.py and memory.py: what is measured, kept, refused and gone on with, over made-up steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from profiles import CPU, GPU, profile
from questprof.amdahl import memory, record, run
from questprof.amdahl.plan import Block, Request, plan
from questprof.amdahl.record import How, measured, tolerance, whole_budget_check
from questprof.decode import session as sessions
from questprof.decode.measure import StepTimes
from questprof.decode.records import DecodeResult, PartTime
from questprof.errors import Exit, QuestprofError
from questprof.model import Ceiling, Check, Clocks, Profile
from questprof.store import read_profile
from questprof.sweep.outputs import Outputs

GOOD = Check("step", "before", 0.0, 1.0)
torch = pytest.importorskip("torch")


class FakeStep:
    """A step whose time is `us` and whose logits are `values`."""

    def __init__(self, us: float, values: tuple[float, ...] = (1.0, -2.0)) -> None:
        self.us, self.logits = us, torch.tensor([values])
        self.asked: dict[str, Any] = {}

    def advance(self) -> None:
        """Nothing grows."""

    def set_tokens(self, tokens: list[int]) -> None:
        """Any token gives these logits."""

    def run_eager(self) -> None:
        """Nothing runs."""


class FakeSession:
    """Dense steps take 100 us (triton 80), Quest steps 50 us."""

    seq_lens = (1024,)
    weights = SimpleNamespace(weight_format="fp32")

    def __init__(self, config: Any, quest_logits: tuple[float, ...] = (1.0, -2.0)) -> None:
        self.config, self.quest_logits = config, quest_logits
        self.steps: list[tuple[str, dict[str, Any]]] = []

    def step(self, policy: str, **options: Any) -> FakeStep:
        self.steps.append((policy, options))
        if policy != "dense":
            return FakeStep(50.0, self.quest_logits)
        return FakeStep(80.0 if options.get("dense_backend") == "triton" else 100.0)

    def measure(self, step: FakeStep, num_steps: int) -> StepTimes:
        parts = (PartTime("dense", "clock", (step.us,), 4),)
        return StepTimes((step.us,) * num_steps, (2 * step.us,), DecodeResult(parts, num_steps=num_steps))


def blocks(**more: Any) -> tuple[Block, ...]:
    return plan(Request("cpu", lengths="1k", budgets="256", **more))


def how(**more: Any) -> How:
    return How(CPU, 3, Console(quiet=True), **({"gpu": None} | more))


def test_a_step_as_a_record() -> None:
    (block,) = blocks()
    session = FakeSession(block.config)
    found = measured(block.quest[0], session, how(), (GOOD,))  # type: ignore[arg-type]
    assert found.status == "ok"
    assert found.times_us == {"step": (50.0,) * 3, "eager": (100.0,)}
    assert found.timing["step"].launches_per_sample == 1
    assert found.timing["step"].stop_reason == "3 steps"
    assert found.decode is not None
    assert found.decode.num_steps == 3
    assert session.steps[-1] == (
        "quest", {"token_budget": 256, "layer_budgets": (), "dense_layers": 2, "dense_backend": "questprof"}
    )  # fmt: skip
    assert found.clocks is not None
    # tiny: 2 x 256 tokens x 4 heads x 64 dims x 4 layers x 4 bytes of K and V, beside the weights.
    dense = measured(block.dense[0], session, how(), (GOOD,))  # type: ignore[arg-type]
    kept = 2 * 768 * 4 * 64 * 4 * 4
    assert dense.timing["step"].touched_bytes - found.timing["step"].touched_bytes == kept


def test_wrong_logits_have_no_times() -> None:
    """A whole budget gives 1.5 where dense gives 1: 0.5 / 2 = 0.25 of the largest logit."""
    (block,) = blocks()
    session = FakeSession(block.config, (1.5, -2.0))
    check = whole_budget_check(session, block.dense[0])  # type: ignore[arg-type]
    assert check.max_rel_err == pytest.approx(0.25)
    assert not check.holds
    assert session.steps[1][1]["token_budget"] == 1024 + 16
    found = measured(block.quest[0], session, how(), (check,))  # type: ignore[arg-type]
    assert (found.status, found.times_us) == ("wrong", {})
    assert "error 0.25 above" in found.reason


def test_logits_that_are_no_numbers_are_wrong() -> None:
    (block,) = blocks()
    session = FakeSession(block.config, (float("nan"), 1.0))
    assert whole_budget_check(session, block.dense[0]).max_rel_err is None  # type: ignore[arg-type]
    found = measured(block.quest[0], session, how(), (GOOD,))  # type: ignore[arg-type]
    assert (found.status, found.times_us) == ("wrong", {})


def test_tolerances_grow_with_depth_and_dtype() -> None:
    """fp32, 4 layers: 8 x 2^-23 x 2; fp16, 32 layers: 8 x 2^-10 x sqrt(32)."""
    assert tolerance(blocks()[0].dense[0]) == pytest.approx(8 * 2**-23 * 2)
    fp16, bf16 = (plan(Request("cuda", weights=name))[0].dense[0] for name in ("fp16", "bf16"))
    assert tolerance(fp16) == pytest.approx(8 * 2**-10 * 32**0.5)
    assert tolerance(bf16) == pytest.approx(8 * tolerance(fp16))


def test_nvml_is_read_while_steps_run() -> None:
    class FakeGpu:
        def clocks(self) -> Clocks:
            return Clocks(sm_mhz=1755)

    (block,) = blocks()
    session = FakeSession(block.config)
    plain = session.measure

    def slow(step: FakeStep, num_steps: int) -> StepTimes:
        import time

        time.sleep(3 * record.POLL_SECONDS)
        return plain(step, num_steps)

    session.measure = slow  # type: ignore[method-assign]
    found = measured(block.quest[0], session, how(gpu=FakeGpu()), (GOOD,))  # type: ignore[arg-type]
    assert found.clocks == Clocks(sm_mhz=1755)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    """Sessions without a device; the list of those that were opened."""
    opened: list[FakeSession] = []

    def open_session(weights: Any, seq_lens: Any, *_: Any, **__: Any) -> FakeSession:
        opened.append(FakeSession(weights))
        return opened[-1]

    monkeypatch.setattr(sessions, "load_weights", lambda config, *_, **__: config)
    monkeypatch.setattr(sessions, "open_session", open_session)
    monkeypatch.setattr(run, "capture", lambda device: CPU)
    monkeypatch.setattr(run, "_ceilings", lambda environment, kept: ())
    return opened


def go(path: Path, asked: tuple[Block, ...], request: Request, **outputs: bool) -> Profile:
    given = {"force": False, "resume": False} | outputs
    return run.run_amdahl(asked, request, Outputs(path, None, **given), Console(quiet=True))


REQUEST = Request("cpu", lengths="1k,2k", budgets="256", backends="questprof,triton", steps=3)


def test_dense_layers_take_the_fastest_dense_backend(tmp_path: Path, faked: list[FakeSession]) -> None:
    profile = go(tmp_path / "a.jsonl", plan(REQUEST), REQUEST)
    assert [(r.point.policy, r.point.backend) for r in profile.records[:3]] == [
        ("dense", "questprof"), ("dense", "triton"), ("quest", "questprof")
    ]  # fmt: skip
    quest = profile.records[2].point.decode
    assert quest is not None
    assert quest.dense_backend == "triton"
    assert len(faked) == 2
    assert read_profile(tmp_path / "a.jsonl").records == profile.records


def test_a_profile_is_gone_on_with(tmp_path: Path, faked: list[FakeSession]) -> None:
    """Cut off after three of six records: the second length is measured, the first is not again."""
    path = tmp_path / "a.jsonl"
    go(path, plan(REQUEST), REQUEST)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    faked.clear()
    profile = go(path, plan(REQUEST), REQUEST, resume=True)
    assert len(profile.records) == 6
    assert len(faked) == 1
    faked.clear()
    assert len(go(path, plan(REQUEST), REQUEST, resume=True).records) == 6
    assert faked == []


def test_a_profile_that_is_gone_on_with_keeps_its_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they are measured once, and not again to be thrown away."""
    now, before = (Ceiling("read", 1 << 20, (gb_s,) * 3) for gb_s in (100.0, 90.0))
    monkeypatch.setattr(run.ceilings, "measure_cuda", lambda: (now,))
    assert run._ceilings(GPU, None) == (now,)
    assert run._ceilings(GPU, profile(ceilings=(before,))) == (before,)


def test_another_grid_is_not_gone_on_with(tmp_path: Path, faked: list[FakeSession]) -> None:
    path = tmp_path / "a.jsonl"
    go(path, plan(REQUEST), REQUEST)
    other = Request("cpu", lengths="1k", budgets="512", steps=3)
    with pytest.raises(QuestprofError, match="do not ask for"):
        go(path, plan(other), other, resume=True)


def test_an_interrupt_keeps_the_step_that_was_measured(
    tmp_path: Path, faked: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.Interrupt, "asked", lambda self: True)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "a.jsonl", plan(REQUEST), REQUEST)
    assert len(read_profile(tmp_path / "a.jsonl").records) == 1


def test_what_does_not_fit_is_said_before_anything_is_allocated(
    tmp_path: Path, faked: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plan(REQUEST)
    short = memory.shortages(asked, REQUEST)
    assert short == {}
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1 << 20)
    with pytest.raises(QuestprofError) as error:
        go(tmp_path / "a.jsonl", asked, REQUEST)
    assert error.value.status == Exit.MACHINE
    assert "length 1k, needs" in error.value.why
    assert "972.8 KiB are usable" in error.value.why  # 95 % of a MiB
    assert faked == []
    assert not (tmp_path / "a.jsonl").exists()


def test_blocks_that_do_not_fit_are_records(
    tmp_path: Path, faked: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request("cpu", lengths="1k,1m", budgets="256", shapes=("tiny",), steps=3)
    with pytest.raises(QuestprofError, match="max_position_embeddings"):
        plan(request)
    request = Request("cpu", lengths="1k,128k", budgets="256", steps=3)
    asked = plan(request)
    free = 1 << 40
    monkeypatch.setattr(memory, "available_bytes", lambda device: free)
    assert memory.shortages(asked, request) == {}
    # K and V of 128k tokens of tiny: 2 x 131072 x 256 x 4 layers x 4 B = 1 GiB beside what 1k takes.
    free = 1 << 30
    profile = go(tmp_path / "a.jsonl", asked, request)
    assert {(r.point.seq_len, r.status) for r in profile.records} == {(1024, "ok"), (131072, "oom")}
    assert "are usable" in next(r.reason for r in profile.records if r.status == "oom")
    assert len(faked) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QuestprofError("matrix qkv", "no kernel is right", "Report it.", Exit.MACHINE), "unavailable"),
        (MemoryError("no room"), "oom"),
        (RuntimeError("DefaultCPUAllocator: not enough memory"), "oom"),
    ],
)
def test_what_is_refused_meanwhile_is_a_record(
    tmp_path: Path, faked: list[FakeSession], monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    def refuse(*_: Any, **__: Any) -> FakeSession:
        raise error

    monkeypatch.setattr(sessions, "open_session", refuse)
    profile = go(tmp_path / "a.jsonl", plan(REQUEST), REQUEST)
    assert {r.status for r in profile.records} == {status}
    assert all(r.reason for r in profile.records)


def test_weights_that_memory_refuses_leave_records_for_all_their_steps(
    tmp_path: Path, faked: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise QuestprofError("weights", "they take 9 GiB, and 1 GiB are free", "Less.", Exit.MACHINE)

    monkeypatch.setattr(sessions, "load_weights", refuse)
    profile = go(tmp_path / "a.jsonl", plan(REQUEST), REQUEST)
    assert [r.status for r in profile.records] == ["unavailable"] * 6
    assert "9 GiB" in profile.records[0].reason
    assert faked == []


def test_a_failed_check_blames_quest_alone(
    tmp_path: Path, faked: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "whole_budget_check", lambda *_: Check("step", "before", 2.0, 1.0))
    profile = go(tmp_path / "a.jsonl", plan(REQUEST), REQUEST)
    assert {(r.point.policy, r.status) for r in profile.records} == {("dense", "ok"), ("quest", "wrong")}


def test_other_errors_are_not_hidden(
    tmp_path: Path, faked: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> FakeSession:
        raise RuntimeError("a kernel is wrong")

    monkeypatch.setattr(sessions, "open_session", refuse)
    with pytest.raises(RuntimeError, match="a kernel is wrong"):
        go(tmp_path / "a.jsonl", plan(REQUEST), REQUEST)


def test_the_opening_names_cpu_figures() -> None:
    assert run._opening(CPU).startswith("CPU figures: Toy CPU, 2 threads")
    assert run._opening(GPU) == "Toy GPU, 4 SMs"


def test_once_it_is_late_nothing_more_begins(tmp_path: Path, faked: list[FakeSession]) -> None:
    """Late after the dense steps of the first length: no Quest step, no cache of the second."""
    path, asked_for = tmp_path / "late.jsonl", plan(REQUEST)
    outputs = Outputs(path, None, force=False, resume=False)

    def late() -> bool:
        return path.exists() and len(path.read_bytes().splitlines()) > 2

    profile = run.run_amdahl(asked_for, REQUEST, outputs, Console(quiet=True), late)
    assert [record.point.policy for record in profile.records] == ["dense", "dense"]
    assert len(faked) == 1
    assert run.run_amdahl(asked_for, REQUEST, Outputs(tmp_path / "b.jsonl", None, False, False),
                          Console(quiet=True), lambda: True).records == ()  # fmt: skip
