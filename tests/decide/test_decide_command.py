"""`questprof decide` and `questprof ci` as people meet them, on this CPU and in seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from questprof.errors import Exit
from questprof.store import read_profile

SMALL_CPU = str(Path(__file__).parents[1] / "small_sweep.py")
KERNELS = """
import time
from questprof.backends import load

_own = load("questprof", "cpu")
base = {"score": _own.stages["score"]}


def _score(*arguments):
    _own.stages["score"](*arguments)
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.02:
        pass


slow = {"score": _score}
"""
LENGTHS = "input_tokens,output_tokens\\n600,100\\n800,50\\n2000,10\\n"
SMALL = "--device cpu --shape tiny --lengths 512,1k --budget 256 --samples 5"
PROFILES = Path(__file__).parents[2] / "profiles"
H200 = PROFILES / "h200" / "kernels-gqa.jsonl"
BYTES = PROFILES / "h200" / "bytes.jsonl"
ANSWERED = (Exit.OK, Exit.INCONCLUSIVE)
"""On a busy machine samples may not settle; a fault would be 1, 2 or 3."""


def run(arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command line over a CPU whose caches are said to be small."""
    kept = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "GITHUB_STEP_SUMMARY")}
    return subprocess.run(
        [sys.executable, SMALL_CPU, *arguments.split()],
        cwd=cwd, capture_output=True, text=True, env=kept | variables, timeout=200, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A whole decision in a folder: its document and what it said on the way."""
    cwd = tmp_path_factory.mktemp("decided")
    (cwd / "lengths.csv").write_text(LENGTHS.replace("\\n", "\n"))
    done = run(f"decide {SMALL} --traffic lengths.csv --time 40s -o d.html --json", cwd)
    assert done.returncode in ANSWERED, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == done.returncode
    return cwd, document, done.stderr


def test_a_decision_measures_every_part(decided: tuple[Path, dict[str, Any], str]) -> None:
    cwd, document, said = decided
    assert "CPU figures" in said
    assert document["missing"] == {}
    assert document["bytes"]["verdict"] == "passed"
    assert document["bytes"]["source"] == "counted: address trace"
    kinds = {part: {r.kind for r in read_profile(cwd / document["profiles"][part]).records} for part in
             ("sweep", "bytes", "steps")}  # fmt: skip
    assert kinds == {"sweep": {"sweep"}, "bytes": {"bytes"}, "steps": {"amdahl"}}
    (batch,) = document["batches"]
    assert batch["batch_size"] == 1
    # On a machine that others use, steps may lie too far apart: then no gain is told, and why.
    assert batch["gain"] is not None or batch["no_gain"].startswith("the samples of every whole step lie")
    sentence = document["sentence"]
    assert "(CPU figures), tiny, budget 256, batch 1" in sentence
    assert "limited by" in sentence
    assert sentence.endswith("bytes check passed, counted: address trace.")


def test_the_page_begins_with_the_sentence(decided: tuple[Path, dict[str, Any], str]) -> None:
    import html

    cwd, document, _ = decided
    page = html.unescape((cwd / "d.html").read_text())
    assert document["sentence"] in page
    for section in ("p1-length-scan", "amdahl", "bytes"):
        assert section in page


def test_going_on_measures_nothing_twice(decided: tuple[Path, dict[str, Any], str]) -> None:
    cwd, document, _ = decided
    before = {part: (cwd / document["profiles"][part]).read_bytes() for part in ("sweep", "bytes", "steps")}
    done = run(f"decide {SMALL} --traffic lengths.csv --time 40s -o d.html --resume", cwd)
    assert done.returncode == document["status"], done.stderr
    assert {part: (cwd / document["profiles"][part]).read_bytes() for part in before} == before
    assert document["sentence"] in done.stdout


@pytest.fixture(scope="module")
def gated(decided: tuple[Path, dict[str, Any], str]) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A gate over stage sets, the new one of which waits 20 ms, beside the decision's own baseline."""
    cwd = decided[0]
    (cwd / "kernels_of_mine.py").write_text(KERNELS)
    arguments = SMALL.replace("512,1k", "512").replace("--samples 5", "--samples 24")
    done = run(
        f"ci {arguments} --kernel base=kernels_of_mine:base --kernel new=kernels_of_mine:slow "
        "--baseline d-sweep.jsonl --time 40s -o ci.html",
        cwd,
        GITHUB_STEP_SUMMARY=str(cwd / "summary.md"),
    )
    return cwd, done


def test_a_slower_kernel_fails_the_gate(gated: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = gated
    assert done.returncode == Exit.CHECK_FAILED, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "gate: fail"
    assert "new against base: slower" in done.stdout
    assert "with kernels new" in done.stdout
    assert "a decode step runs the project's stages, not those of new" in done.stdout
    summary = (cwd / "summary.md").read_text()
    assert summary.startswith("## questprof ci: fail\n\nFail: new against base: slower; of ")
    assert "questprof decide: " in summary


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("decide --device cpu --budget 256,512", "one budget"),
        (
            "decide --device cpu --shape nothing",
            r"no preset of that name. Choose .*tiny.*, or name a Hugging",
        ),
        ("decide --device cpu --shape /", "cannot read /config.json"),
        ("decide --device cpu --time soon", "--time"),
        ("decide --device cpu --traffic absent.csv", "traffic"),
        ("decide --device cpu --lengths 512 --budget 512", "covers every length"),
        ("decide --device cpu -o page.txt", "a page"),
        ("decide --device cpu --shape tiny --time 1s -o x.html", "too short"),
        ("ci --device cpu --baseline absent.jsonl", "cannot read"),
        ("ci --device cpu --threshold much", "--threshold"),
        ("ci --device cpu --base mine", "--base mine: two kernels are compared inside a run"),
        ("ci --device cpu --new mine", "--new mine: two kernels are compared inside a run"),
        ("ci --device cpu --summary /", "it is a folder"),
        ("ci --device cpu --summary /proc/none/s.md", "cannot write /proc/none/s.md"),
        (f"ci --device cpu --baseline {BYTES}", r"no point of a sweep \(bytes\)"),
        (f"ci --device cpu --baseline {H200}", "measured on cuda, and this run is on cpu"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, says: str
) -> None:
    import typer

    from questprof.cli import app
    from questprof.commands import decide as deciding
    from questprof.errors import QuestprofError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deciding, "refuse_unready", lambda _: None)  # seconds that nothing here needs
    command: Any = typer.main.get_command(app)
    with pytest.raises(QuestprofError, match=says) as refused:
        command.main(arguments.split(), standalone_mode=False)
    assert refused.value.status == Exit.USAGE
    assert [path.name for path in tmp_path.iterdir()] == []


def test_an_unready_machine_is_3(monkeypatch: pytest.MonkeyPatch) -> None:
    from questprof.commands.decide import refuse_unready
    from questprof.doctor import probes
    from questprof.doctor.facts import Facts, TorchFacts
    from questprof.errors import QuestprofError
    from questprof.terminal import plain_console

    broken = Facts(versions={"torch": "2.13.0"}, torch=TorchFacts(error="libcudart is missing"))
    monkeypatch.setattr(probes, "gather", lambda: broken)
    with pytest.raises(QuestprofError, match="libcudart is missing") as refused:
        refuse_unready(plain_console())
    assert refused.value.status == Exit.MACHINE


def test_shapes_and_devices_complete() -> None:
    from questprof.commands.options import device_names, shape_names

    assert shape_names("llama-") == ["llama-2-7b", "llama-3.1-8b"]
    assert "tiny" in shape_names("")
    assert device_names("c") == ["cpu", "cuda"]


def test_the_shell_completes_commands() -> None:
    variables = {"_QUESTPROF_COMPLETE": "complete_bash", "COMP_WORDS": "questprof de", "COMP_CWORD": "1"}
    code = "import sys; from questprof.cli import main; sys.argv[0] = 'questprof'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["decide"], done.stderr
