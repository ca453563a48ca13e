"""The order of the parts and what becomes of one that fails, over parts that measure nothing."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bytes_records
import pytest
from amdahl_steps import dense, quest
from decisions import asked
from rich.console import Console

from profiles import GPU, profile, two_baselines
from questprof import environment
from questprof.amdahl import memory
from questprof.amdahl import run as amdahl_run
from questprof.bytecheck import run as bytes_run
from questprof.bytecheck import tasks
from questprof.counters import ncu
from questprof.decide.decision import decide
from questprof.decide.outputs import Paths
from questprof.decide.planning import PAGE_SECONDS
from questprof.decide.run import Run, run
from questprof.decide.sentences import sentence
from questprof.decode.config import load_config
from questprof.errors import Exit, QuestprofError
from questprof.model import Profile
from questprof.sweep import run as sweep_run
from questprof.sweep.settings import RULES, Settings

NO_MEMORY = QuestprofError(
    "no decode step of this grid fits into memory", "needs 40 GiB, 30 GiB are usable", "Less.", Exit.MACHINE
)
NO_COUNTERS = QuestprofError("no permission to read the GPU's counters", "ERR_NVGPUCTRPERM", "", Exit.MACHINE)


class Parts:
    """Stand-ins for the parts, which note what they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.blocks: list[list[str]] = []
        self.errors: dict[str, Any] = {}
        self.batches_that_fit: tuple[int, ...] = (1, 8)
        self.late: list[bool] = []
        self.settings: list[Settings] = []
        self.timeouts: list[float] = []
        self.traced: list[str] = []
        monkeypatch.setattr(environment, "capture", lambda device: GPU)
        monkeypatch.setattr(sweep_run, "run_sweep", self.sweep)
        monkeypatch.setattr(bytes_run, "run_bytes", self.bytes)
        monkeypatch.setattr(tasks, "plan_tasks", self.plan)
        monkeypatch.setattr(amdahl_run, "run_amdahl", self.steps)
        monkeypatch.setattr(memory, "shortages", self.fits)
        monkeypatch.setattr(ncu, "why_not", lambda path=None: self.errors.get("ncu"))

    def note(self, part: str) -> None:
        self.seen.append(part)
        if part in self.errors:
            raise self.errors[part]

    def sweep(self, blocks: Sequence[Any], outputs: Any, settings: Settings, console: Console) -> Profile:
        self.note("sweep")
        self.settings.append(settings)
        return profile(*two_baselines())

    def plan(self, question: Any, source: str, how: Any) -> str:
        self.timeouts.append(how.timeout_s)
        self.traced.append(f"{source} {','.join(map(str, question.lengths))}")
        return source

    def bytes(self, plan: Any, outputs: Any, console: Console) -> Any:
        self.note("bytes")
        made = profile(bytes_records.traced())
        return SimpleNamespace(profile=made, failures=[], interrupted=bool(self.errors.get("interrupt")))

    def fits(self, blocks: Sequence[Any], request: Any) -> dict[str, str]:
        if not self.batches_that_fit:
            raise NO_MEMORY
        return {}

    def steps(
        self, blocks: Sequence[Any], request: Any, outputs: Any, console: Console, late: Callable[[], bool]
    ) -> Profile:
        self.note("steps")
        self.late.append(late())
        self.blocks.append([block.title for block in blocks])
        batches = {len(block.seq_lens) for block in blocks}
        if not batches <= set(self.batches_that_fit):
            raise NO_MEMORY
        return profile(dense(), quest(point={"token_budget": 1024}))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


def made(tmp_path: Path, **changes: Any) -> Run:
    """A run of ten minutes on a GPU that is not there; the model is a real one's sizes."""
    question = asked(
        config=load_config("llama-3.1-8b"), no_config="", shape_name="llama-3.1-8b", batch_sizes=(1, 8)
    )
    return Run(
        asked=replace(question, **changes),
        paths=Paths(tmp_path / "d.html", False, False),
        settings=Settings("cuda", RULES["cuda"]),
        seconds=600.0,
        console=Console(file=io.StringIO()),
    )


def test_every_part_runs_and_the_weights_are_loaded_a_batch_at_a_time(parts: Parts, tmp_path: Path) -> None:
    found = run(made(tmp_path))
    assert parts.seen == ["sweep", "bytes", "steps", "steps"]
    assert parts.traced == ["ncu 2048,32768"]
    assert found.missing == {}
    first, second = parts.blocks
    assert all("batch 1 " in title for title in first)
    assert second[: len(first)] == first  # done, and so skipped, but asked for
    assert decide(found).status == Exit.OK


def test_without_counters_a_short_trace_counts(parts: Parts, tmp_path: Path) -> None:
    parts.errors["ncu"] = NO_COUNTERS
    one = made(tmp_path)
    found = run(one)
    assert parts.traced == ["trace 2048"]
    assert found.bytes is not None
    assert "by address trace, as no permission" in one.console.file.getvalue()  # type: ignore[attr-defined]


def test_bytes_that_cannot_be_counted_end_nothing_else(parts: Parts, tmp_path: Path) -> None:
    parts.errors["bytes"] = NO_COUNTERS
    found = run(made(tmp_path, batch_sizes=(1,)))
    assert parts.seen == ["sweep", "bytes", "steps"]
    text = sentence(found, decide(found))
    assert "bytes not checked: no permission to read the GPU's counters: ERR_NVGPUCTRPERM" in text
    assert "a token takes" in text


def test_no_memory_for_the_model_is_told_and_attention_stands(parts: Parts, tmp_path: Path) -> None:
    parts.batches_that_fit = ()
    found = run(made(tmp_path, batch_sizes=(1,)))
    assert found.steps is None
    text = sentence(found, decide(found))
    assert "gain per token not measured (attention alone: 7.3x at 32k)" in text
    assert "needs 40 GiB, 30 GiB are usable" in text
    assert decide(found).status == Exit.OK


def test_a_batch_that_does_not_fit_keeps_the_steps_of_the_others(parts: Parts, tmp_path: Path) -> None:
    parts.batches_that_fit = (1,)
    found = run(made(tmp_path))
    assert found.steps is not None
    assert "needs 40 GiB" in found.missing["steps"]


def test_without_a_whole_model_the_reason_is_told(parts: Parts, tmp_path: Path) -> None:
    found = run(made(tmp_path, config=None, no_config="give its config.json as --shape"))
    assert parts.seen == ["sweep", "bytes"]
    assert found.missing["steps"] == "give its config.json as --shape"


def test_without_attention_there_is_no_decision(parts: Parts, tmp_path: Path) -> None:
    parts.errors["sweep"] = QuestprofError("nothing of this grid", "no GPU", "", Exit.MACHINE)
    with pytest.raises(QuestprofError, match="no GPU"):
        run(made(tmp_path))


def test_an_interrupt_goes_through_every_part(parts: Parts, tmp_path: Path) -> None:
    parts.errors["interrupt"] = True
    with pytest.raises(KeyboardInterrupt):
        run(made(tmp_path))
    parts.errors = {"steps": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run(made(tmp_path))


def test_when_time_is_up_steps_are_left_out_and_named(parts: Parts, tmp_path: Path) -> None:
    one = made(tmp_path)
    one.started -= 590.0  # ten seconds are left
    found = run(one)
    assert parts.seen == ["sweep", "bytes"]
    assert "time is up" in found.missing["steps"]
    assert sum(text.startswith("decode step, ") for text in found.dropped) == 4  # 2 batches x 2 lengths


def test_attention_may_take_more_for_both_ends_and_the_parts_behind_it_share_the_rest(
    parts: Parts, tmp_path: Path
) -> None:
    """Of ten minutes: half for attention, all but the page's for its ends; a fifth at most for bytes."""
    run(made(tmp_path, batch_sizes=(1,)))
    (settings,) = parts.settings
    assert settings.time_s == 300.0
    assert settings.time_share == 0.5  # what another --time would do is told of the whole
    assert settings.ends_s == pytest.approx(600.0 - PAGE_SECONDS, abs=1.0)
    assert parts.timeouts == [120.0]
    assert parts.late == [False]


def test_bytes_leave_time_for_the_steps(parts: Parts, tmp_path: Path) -> None:
    one = made(tmp_path)
    one.started -= 560.0  # forty seconds are left, the page's among them
    run(one)
    assert parts.settings[0].time_s == pytest.approx(40.0 - PAGE_SECONDS, abs=1.0)
    assert parts.timeouts == [pytest.approx(0.6 * (40.0 - PAGE_SECONDS), abs=1.0)]


def test_with_no_time_left_neither_bytes_nor_steps_begin(parts: Parts, tmp_path: Path) -> None:
    one = made(tmp_path)
    one.started -= 596.0
    found = run(one)
    assert parts.seen == ["sweep"]
    assert found.missing["bytes"] == "time is up"
    assert "time is up" in found.missing["steps"]


@pytest.mark.parametrize("took", [1.0, 200.0])
def test_a_slow_machine_is_noticed_while_attention_is_timed(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    one, plain = made(tmp_path, batch_sizes=(1,)), parts.sweep

    def slow(*given: Any) -> Profile:
        clock[0] += took
        return plain(*given)

    monkeypatch.setattr(sweep_run, "run_sweep", slow)
    run(one)
    assert (one.slowness > 2.0) == (took == 200.0)
    assert one.slowness >= 1.0
