"""What is printed and lost: a full disk, a reader that is gone, no stdout; a document that has it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from questprof import streams
from questprof.errors import Exit

KEPT = Path(__file__).parents[1] / "profiles" / "cpu" / "length-scan.jsonl"
COMMANDS = ("formula", f"roofline {KEPT}", f"export {KEPT}", "--help", f"predict {KEPT} --json")
"""Printed by print, by rich, in one large piece, by typer, and as a document."""


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


NOISE = """
import atexit, ctypes, os, subprocess, sys
from sys import stdout
from questprof import streams

streams.guard()
atexit.register(print, "at exit")
with streams.document_alone():
    print("printed")
    os.write(1, b"written\\n")
    ctypes.CDLL(None).printf(b"of C, which keeps it until the end\\n")
    stdout.write("on a stream of before\\n")
    subprocess.run(["echo", "of a child"], check=True)
    streams.print_json({"a": 1})
    print("printed after it")
streams.flush()
"""


def test_a_document_has_stdout_alone() -> None:
    done = subprocess.run([sys.executable, "-c", NOISE], capture_output=True, text=True, check=True)
    assert done.stdout == '{"a":1}\n'
    assert sorted(done.stderr.splitlines()) == [
        "at exit", "of C, which keeps it until the end", "of a child", "on a stream of before", "printed",
        "printed after it", "written",
    ]  # fmt: skip


def test_without_a_stderr_what_is_not_the_document_is_lost() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, NOISE],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == '{"a":1}\n'


def test_without_a_stdout_a_document_is_lost() -> None:
    script = f"exec {sys.executable} -m questprof predict {KEPT} --json >&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (Exit.OK, "")
    assert "Traceback" not in done.stderr


def test_the_stdout_of_another_program_is_as_it_was_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    stdout = sys.stdout
    with suppress(ZeroDivisionError), streams.document_alone():
        print("printed")
        streams.print_json([1])
        raise ZeroDivisionError
    assert sys.stdout is stdout
    streams.print_json([2])
    assert capsys.readouterr() == ("[1]\n[2]\n", "printed\n")
