"""What is printed and lost: a full disk, a reader that is gone, no stdout; for every way of printing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from questprof.errors import Exit

KEPT = Path(__file__).parents[1] / "profiles" / "cpu" / "length-scan.jsonl"
COMMANDS = ("formula", f"roofline {KEPT}", f"export {KEPT}", "--help")
"""Printed by print, by rich, in one large piece, and by typer."""


def start(arguments: str, **streams: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "questprof", *arguments.split()]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen(command, text=True, **given)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda text: text.split()[0])
def test_a_full_disk_is_one_screen(arguments: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = start(arguments, stdout=full)
        said = done.communicate(timeout=60)[1]
    assert done.returncode == Exit.MACHINE
    assert said.splitlines()[-3:] == [
        "error: cannot write to stdout",
        "  why: No space left on device",
        "  fix: Make room, or send it elsewhere; a profile keeps what was measured.",
    ]
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda text: text.split()[0])
def test_a_reader_that_is_gone_ends_it_quietly(arguments: str) -> None:
    """`questprof ... | true`, as a shell tells of SIGPIPE; neither 1, a check failed, nor 120."""
    reading, writing = os.pipe()
    os.close(reading)
    done = start(arguments, stdout=writing)
    os.close(writing)
    said = done.communicate(timeout=60)[1]
    assert done.returncode == Exit.READER_GONE
    assert [line for line in said.splitlines() if not line.startswith(("note:", "warning:"))] == []


def test_what_cannot_be_said_on_stderr_is_no_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = start("roofline absent.jsonl", stdout=full, stderr=full)
        done.communicate(timeout=60)
    assert done.returncode == Exit.MACHINE


def test_without_a_stdout_nothing_is_printed_and_all_is_well() -> None:
    script = f"exec {sys.executable} -m questprof formula >&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.OK, "")


def test_text_that_an_encoding_lacks_is_escaped() -> None:
    code = "from questprof import streams; streams.guard(); print('10\u201390 \u00b5s'); streams.flush()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert done.stdout == "10\\u201390 \\xb5s\n"
