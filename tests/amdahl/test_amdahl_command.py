"""`questprof amdahl` as people meet it: by hand, measured on this CPU, read again from its profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from amdahl_steps import dense, pair_profile, quest

from questprof.commands.amdahl import amdahl
from questprof.commands.decide import measure
from questprof.commands.ending import exit_status
from questprof.decide.outputs import Paths
from questprof.errors import Exit, QuestprofError
from questprof.model import Profile
from questprof.store import read_profile, seal

SMALL = (
    "amdahl --shape tiny --device cpu --lengths 256,1k --budgets 128 --steps 3 --predict 4k -o steps.jsonl "
    "--html steps.html"
)


def run(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "questprof", *arguments.split()]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=280, check=False
    )


def write(path: Path, profile: Profile) -> None:
    path.write_bytes(b"".join(map(seal, (profile.header, *profile.records))))


def test_the_articles_hand_calculation(tmp_path: Path) -> None:
    """0.4 + 0.6 / 7.03 = 0.4853 and 1 / 0.4853 = 2.06; with 40 % it is 1.52."""
    done = run("amdahl --share 0.6 --attention-speedup 7.03 --json", tmp_path)
    assert done.returncode == Exit.OK
    document = json.loads(done.stdout)
    assert round(document["time_ratio"], 4) == 0.4853
    assert round(document["speedup"], 2) == 2.06
    text = run("amdahl --share 0.4 --attention-speedup 7.03", tmp_path).stdout
    assert "= 1.52x" in text


def test_without_a_speed_up_the_papers_is_taken_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    amdahl(share=0.4)
    said = capsys.readouterr().out
    assert "the paper's highest, 7.03x" in said
    assert "= 1.52x" in said
    with pytest.raises(QuestprofError, match="--share"):
        amdahl(attention_speedup=7.0)


@pytest.mark.parametrize("arguments", ["share=0.6, attention_speedup=7.03", "profiles=[Path('p.jsonl')]"])
def test_by_hand_and_from_a_profile_no_torch_is_imported(tmp_path: Path, arguments: str) -> None:
    write(tmp_path / "p.jsonl", pair_profile())
    code = (
        "import sys; from pathlib import Path; from questprof.commands.amdahl import amdahl;"
        f"amdahl({arguments}); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    cwd = tmp_path_factory.mktemp("amdahl")
    return cwd, run(SMALL, cwd)


def test_a_run_measures_steps_and_shows_them(
    measured: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    cwd, done = measured
    assert done.returncode in (Exit.OK, Exit.INCONCLUSIVE), done.stderr  # a busy machine may drift
    assert done.stdout.splitlines()[0].startswith("CPU figures")
    for text in ("where a step's time goes", "Amdahl's law, eq. (13)", "what if", "batches and concurrency"):
        assert text in done.stdout, text
    assert done.stdout.splitlines()[-2:] == ["steps.jsonl", "steps.html"]
    assert 'id="p1-amdahl"' in (cwd / "steps.html").read_text()
    records = read_profile(cwd / "steps.jsonl").records
    assert [(r.point.policy, r.point.seq_len) for r in records] == [
        ("dense", 256), ("quest", 256), ("dense", 1024), ("quest", 1024)
    ]  # fmt: skip
    for record in records:
        assert record.decode is not None
        assert len(record.times_us["step"]) == record.decode.num_steps == 3
        named = {part.part for part in record.decode.parts}
        assert {
            "embed",
            "norm",
            "qkv",
            "rope",
            "append",
            "dense",
            "out_proj",
            "ffn",
            "head",
            "sampling",
        } <= named
        assert ({"score", "attend"} <= named) == (record.point.policy == "quest")
        assert [check.holds for check in record.checks] == [True] * (record.point.policy == "quest")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with the profile of two steps and one without any."""
    monkeypatch.chdir(tmp_path)
    found = pair_profile()
    write(tmp_path / "p.jsonl", found)
    (tmp_path / "empty.jsonl").write_bytes(seal(found.header))
    return tmp_path


def test_the_document_of_a_profile(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    amdahl([Path("p.jsonl")], json=True)
    document = json.loads(capsys.readouterr().out)
    (pair,) = document["pairs"]
    assert pair["speedup"] == pytest.approx(1.6)
    assert pair["check"]["attention_speedup"] == pytest.approx(6)
    causes = sum(cause["us"] for cause in pair["causes"])
    assert causes == pytest.approx(pair["check"]["residual_us"], abs=1e-9)
    for step in document["steps"]:
        assert sum(part["share"] for part in step["parts"]) == pytest.approx(1)
    assert document["alarms"] == []
    assert document["page"] is None


def test_an_alarm_is_a_warning(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(kept / "bad.jsonl", pair_profile(dense(us=1200.0), quest()))
    with pytest.raises(typer.Exit) as left:
        amdahl([Path("bad.jsonl")], html=Path("bad.html"))
    assert left.value.exit_code == Exit.INCONCLUSIVE
    assert "16.7% too little" in capsys.readouterr().err
    assert "16.7% too little" in (kept / "bad.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"profiles": [Path("p.jsonl")], "output": Path("other.jsonl")}, "nothing is measured"),
        ({"profiles": [Path("absent.jsonl")]}, "cannot read absent.jsonl: No such file"),
        ({"profiles": [Path("p.jsonl"), Path("p.jsonl")]}, "do not compare"),
        ({"profiles": [Path("empty.jsonl")]}, "no record of kind amdahl"),
        ({"device": "cpu", "shape": ["nothing"]}, "neither a preset nor a config.json"),
        ({"device": "cpu", "lengths": "256k"}, "max_position_embeddings is 131072"),
        ({"device": "cpu", "output": Path("p.jsonl")}, "exists"),
        ({"share": 1.5}, "cannot be"),
        ({"device": "cpu", "layer_budgets": Path("absent")}, "cannot read absent: No such file"),
    ],
)
def test_what_cannot_be_is_refused(kept: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(QuestprofError, match=said) as error:
        amdahl(**arguments)
    assert error.value.status == Exit.USAGE


def test_a_missing_profile_is_one_of_amdahl(kept: Path) -> None:
    with pytest.raises(QuestprofError) as error:
        amdahl([Path("absent.jsonl")])
    assert error.value.fix == "Name a profile of amdahl. Measure one: questprof amdahl -o steps.jsonl."


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_names_a_profile_that_there_is(
    kept: Path, begun: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything was measured there is none to go on with; so of `amdahl` and of `decide`."""

    paths = Paths(Path("d.html"), force=False, resume=False)

    def stopped(*_: object) -> None:
        if begun:
            Path("new.jsonl").touch()
            paths.profile("sweep").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("questprof.amdahl.run.run_amdahl", stopped)
    monkeypatch.setattr("questprof.decide.run.run", stopped)
    for interrupted in (
        lambda: amdahl(device="cpu", lengths="256", budgets="128", output=Path("new.jsonl"), force=True),
        lambda: measure(SimpleNamespace(paths=paths)),
    ):
        with pytest.raises(typer.Exit) as left:
            interrupted()
        assert left.value.exit_code == Exit.INTERRUPTED
        said = capsys.readouterr().err
        assert ("--resume" in said) == begun
        assert ("interrupted before anything was measured" in said) != begun


def test_a_length_that_cannot_be_predicted_is_said(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        amdahl([Path("p.jsonl")], predict="8k,64k")
    assert left.value.exit_code == Exit.INCONCLUSIVE
    assert "at least 2 measured lengths above the budget" in capsys.readouterr().err
    with pytest.raises(QuestprofError, match="at least 2 measured lengths") as error:
        amdahl(device="cpu", lengths="1k", budgets="256", predict="4k")
    assert error.value.status == Exit.USAGE


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--share 0.6 --device cpu --lengths 2k -o x --json", "--lengths, --device, -o with --share"),
        ("p.jsonl --share 0.6", "profiles with --share"),
        ("p.jsonl --lengths 2k --seed 0", "--lengths, --seed with profiles to read"),
        ("--device cpu --lengths-file x.txt --lengths 2k", "--lengths with --lengths-file"),
        ("--device cpu --lengths-file x.txt --batch 4 --ragged", "--batch, --ragged with --lengths-file"),
    ],
)
def test_options_that_would_do_nothing_are_refused(kept: Path, arguments: str, named: str) -> None:
    done = run(f"amdahl {arguments}", kept)
    assert done.returncode == Exit.USAGE
    assert named in done.stderr
    assert "Leave" in done.stderr
    assert not (kept / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("--share 60% --attention-speedup 7.03X", Exit.OK, "0.4 + 0.6 / 7.03 = 0.4853"),
        ("--share most", Exit.USAGE, "Write 0.6 or 60%."),
        ("--share 60", Exit.USAGE, "it is no share from 0 to 1\n  fix: Write 60%."),
        ("--share 600%", Exit.USAGE, "A share lies between 0 and 1, or 0% and 100%: write 0.6 or 60%."),
        ("--share 1.2", Exit.USAGE, "A share lies between 0 and 1, or 0% and 100%: write 0.6 or 60%."),
        ("--share 0.6 --attention-speedup twice", Exit.USAGE, "Write 7.03 or 7.03x."),
    ],
)
def test_shares_and_speed_ups_as_people_write_them(
    tmp_path: Path, arguments: str, status: Exit, said: str
) -> None:
    done = run(f"amdahl {arguments}", tmp_path)
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def test_exit_statuses() -> None:
    assert exit_status({"ok"}, inconclusive=True) == Exit.INCONCLUSIVE
    assert exit_status({"wrong"}, inconclusive=True) == Exit.CHECK_FAILED
    assert exit_status({"ok", "oom"}) == Exit.OK
    assert exit_status({"oom"}) == Exit.MACHINE
    assert exit_status({"ok", "unstable"}) == Exit.INCONCLUSIVE
    assert exit_status({"unstable", "wrong"}) == Exit.CHECK_FAILED
