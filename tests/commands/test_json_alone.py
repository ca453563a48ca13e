"""With --json stdout holds one document, whatever a user's kernel prints and in whichever way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from questprof.cli import app
from questprof.commands.given import Command
from questprof.errors import Exit

SMALL_CPU = str(Path(__file__).parents[1] / "small_sweep.py")
COMMANDS = Path(__file__).parents[2] / "questprof" / "commands"
NOISY = """
import atexit
import os
import sys

from questprof.backends import load

_own = load("questprof", "cpu")
print("printed on import")
atexit.register(print, "printed at exit")


def prepare(cache):
    os.write(1, b"written of a cache\\n")
    return cache


def score(q, cache, scores):
    print("printed of a launch")
    sys.__stdout__.write("on the stream of Python's start\\n")
    os.write(1, b"written of a launch\\n")
    _own.stages["score"](q, cache, scores)


stages = {"score": score, "prepare": prepare}
"""
SMALL = "--shape tiny --lengths 512 --samples 3 --kernel noisy.py:stages --device cpu"


def run(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    (cwd / "noisy.py").write_text(NOISY)
    kept = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "GITHUB_STEP_SUMMARY")}
    return subprocess.run(
        [sys.executable, SMALL_CPU, *arguments.split()],
        cwd=cwd, capture_output=True, text=True, env=kept, timeout=200, check=False,
    )  # fmt: skip


SAID = {
    "printed on import", "printed at exit", "written of a cache", "printed of a launch",
    "on the stream of Python's start", "written of a launch",
}  # fmt: skip
SWEEP = f"sweep {SMALL} --budget 256 --backends sdpa -o s.jsonl"


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [(SWEEP, "rows"), (f"ci {SMALL} --budget 256 --backends sdpa --time 60s -o ci.html", "verdict")],
    ids=["sweep", "ci"],
)
def test_what_a_kernel_prints_is_beside_the_document(tmp_path: Path, arguments: str, holds: str) -> None:
    done = run(f"{arguments} --json", tmp_path)
    assert done.returncode in (Exit.OK, Exit.INCONCLUSIVE), done.stderr
    assert done.stdout.count("\n") == 1
    assert holds in json.loads(done.stdout)
    assert set(done.stderr.splitlines()) >= SAID


def test_what_a_checked_kernel_prints_is_not_in_the_document(tmp_path: Path) -> None:
    """It runs in a process of its own, whose output is told where it dies."""
    done = run("sweep --check-only --shape tiny --kernel noisy.py:stages --device cpu --json", tmp_path)
    assert done.returncode == Exit.OK, done.stderr
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["passed"]


def test_without_a_document_it_stays_on_stdout(tmp_path: Path) -> None:
    assert set(run(SWEEP, tmp_path).stdout.splitlines()) >= SAID


def test_a_refusal_is_a_document_alone_as_well(tmp_path: Path) -> None:
    done = run(f"ci {SMALL} --budget 256 --baseline absent.jsonl --json", tmp_path)
    assert done.returncode == Exit.USAGE
    assert json.loads(done.stdout)["status"] == Exit.USAGE


def test_every_command_with_a_document_goes_that_way() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = {name for name, one in commands.items() if any("--json" in p.opts for p in one.params)}
    assert {"sweep", "decide", "ci", "amdahl", "bytes", "recall", "capture"} <= named
    assert all(isinstance(commands[name], Command) for name in named)
    printing = {path.stem for path in COMMANDS.glob("*.py") if "print_json(" in path.read_text()}
    assert {name.replace("-", "_") for name in named} <= printing
    assert [path.name for path in COMMANDS.glob("*.py") if "json.encode(" in path.read_text()] == []
