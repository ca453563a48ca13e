"""What `ci` says of a stored baseline before it spends a minute, and how it tells what it refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from decisions import asked, findings
from msgspec.structs import replace
from rich.console import Console

from profiles import CPU, GPU, profile, two_baselines
from questprof import environment
from questprof.commands.ci import foretell, read_baselines, refusals_told, report, sides_of
from questprof.decide.decision import decide
from questprof.decide.gate import NO_COMPARISON
from questprof.decide.outputs import Paths
from questprof.decide.request import sweep_grid
from questprof.decide.run import Run
from questprof.errors import Exit, QuestprofError
from questprof.grid import plan_blocks
from questprof.model import Environment, Profile
from questprof.store import seal
from questprof.sweep.settings import RULES, Settings

STORED = Path("base.jsonl")


def said(stored: Profile, here: Environment, monkeypatch: pytest.MonkeyPatch, **question: Any) -> str:
    """What is said of `stored` before a run on `here`."""
    return counted([stored], here, monkeypatch, **question)[1]


def counted(
    stored: list[Profile], here: Environment, monkeypatch: pytest.MonkeyPatch, **question: Any
) -> tuple[list[Profile], str]:
    """The baselines of `stored` that count for a run on `here`, and what is said of them before it."""
    monkeypatch.setattr(environment, "capture", lambda device: here)
    one = Run(
        asked=asked(**{"device": here.device} | question),
        paths=Paths(Path("ci.html"), False, False),
        settings=Settings("cuda", RULES["cuda"]),
        seconds=600.0,
        console=Console(file=io.StringIO(), width=500),
    )
    kept = foretell(stored, [STORED.with_stem(f"base{n or ''}") for n in range(len(stored))], one)
    return kept, one.console.file.getvalue()  # type: ignore[attr-defined]


def earlier() -> Profile:
    """A run of the same question: the first point that it plans."""
    (point, *_) = plan_blocks(sweep_grid(asked()))[0].points
    (record, *_) = two_baselines()
    return profile(replace(record, point=point, point_id=point.point_id))


def test_a_baseline_of_this_machine_and_grid_needs_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(earlier(), GPU, monkeypatch) == ""


def test_another_driver_is_told_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(earlier(), replace(GPU, driver="999.9"), monkeypatch)
    assert text.startswith("warning: --baseline base.jsonl: they are of different machines (driver: 580.1")
    assert "999.9" in text
    assert text.endswith("the comparison with it will be inconclusive\n")


def test_other_points_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(earlier(), GPU, monkeypatch, lengths=(1 << 17,))
    assert "it holds none of the points that this run asks for" in text


def test_the_other_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QuestprofError, match="measured on cuda, and this run is on cpu") as refused:
        said(earlier(), CPU, monkeypatch)
    assert refused.value.status == Exit.USAGE


@pytest.mark.parametrize("as_json", [True, False])
def test_a_refusal_is_told_on_stdout_where_a_document_was_asked_for(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QuestprofError), refusals_told(as_json):
        raise QuestprofError("no GPU", "torch sees none", "Add --device cpu.", Exit.MACHINE)
    out = capsys.readouterr().out
    assert bool(out) == as_json
    if as_json:
        document = json.loads(out)
        assert (document["verdict"], document["status"]) == ("cannot run", 3)
        assert document["sentence"] == "no GPU: torch sees none. Add --device cpu."


def test_two_baselines_say_that_the_second_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, text = counted([earlier()] * 2, GPU, monkeypatch)
    assert len(kept) == 2
    assert text == (
        "--baseline base.jsonl is compared with; 2 baselines do not measure the spread between runs, 3 do: "
        "the stated one counts\n"
    )
    assert counted([earlier()] * 3, GPU, monkeypatch)[1] == ""


def test_a_baseline_of_another_machine_measures_no_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and third are of this machine; of the second, an older driver's, nothing counts."""
    older = replace(GPU, driver="570.0")
    found = [earlier(), replace(earlier(), header=replace(earlier().header, environment=older)), earlier()]
    kept, text = counted(found, GPU, monkeypatch)
    assert [one.header.environment.driver for one in kept] == [GPU.driver] * 2
    assert "warning: --baseline base1.jsonl: they are of different machines" in text
    assert "it is left out" in text
    kept, text = counted(found, older, monkeypatch)
    assert [one.header.environment.driver for one in kept] == ["570.0"]
    assert text.count("it is left out") == 2
    kept, text = counted(found, replace(GPU, driver="999.9"), monkeypatch)
    assert kept == found[:1]
    assert text.count("the comparison with it will be inconclusive") == 3


def alone(kernel: str) -> Run:
    """A run of one kernel set of the user's."""
    question = asked(device="cpu", kernels=(kernel,))
    settings = Settings("cpu", RULES["cpu"])
    console = Console(file=io.StringIO(), width=500)
    return Run(question, Paths(Path("ci.html"), False, False), settings, 600.0, console)


def test_a_base_without_a_new_is_refused() -> None:
    with pytest.raises(QuestprofError, match="a base alone is compared with nothing") as refused:
        sides_of(alone("base"), "base", "new")
    assert refused.value.status == Exit.USAGE
    assert sides_of(alone("base"), "base", "new", [earlier()]) is None  # with a baseline it is compared
    assert sides_of(alone("mine"), "base", "new") is None


def test_a_run_without_a_comparison_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings()
    assert report(found, decide(found), [], alone("mine"), json=False) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-2:] == [NO_COMPARISON, "gate: pass"]


def test_a_run_given_twice_is_no_second_baseline(tmp_path: Path) -> None:
    run = earlier()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(b"".join(map(seal, (run.header, *run.records))))
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    assert len(read_baselines(paths[:1])) == 1
    with pytest.raises(QuestprofError, match=r"--baseline b\.jsonl: it is a run that is a baseline already"):
        read_baselines(paths)
