"""`questprof doctor` as people meet it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from machines import cpu, gpu
from rich.console import Console
from rich.text import Text

from questprof.commands.doctor import doctor
from questprof.doctor import display, probes
from questprof.doctor.checks import diagnose
from questprof.doctor.facts import Facts, TorchFacts
from questprof.errors import Exit


def show(monkeypatch: pytest.MonkeyPatch, facts: Facts, **options: bool) -> None:
    monkeypatch.setattr(probes, "gather", lambda: facts)
    monkeypatch.setenv("COLUMNS", "120")
    doctor(**options)


def test_this_machine_in_seconds(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "questprof", "doctor", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.OK, done.stderr
    assert time.monotonic() - begun < 30  # a few seconds, on a busy machine too
    told = json.loads(done.stdout)
    assert told["ready"]
    assert told["next"].startswith("questprof ")
    assert list(tmp_path.iterdir()) == []


def test_every_line_has_its_level_and_the_last_is_the_next_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(monkeypatch, gpu(nvrtc="", nvrtc_error="no nvrtc"))
    lines = capsys.readouterr().out.splitlines()
    levels = [line.split()[0] for line in lines[: lines.index("")] if not line.startswith(" ")]
    assert set(levels) == {"ok", "warning"}
    assert any("`pip install -e '.[gpu]'`" in line for line in lines)  # square brackets are no markup
    assert lines[-2] == "Next: questprof decide --shape llama-3.1-8b --time 10m -o decide.html"


def test_a_machine_that_can_do_nothing_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        show(monkeypatch, cpu(torch=TorchFacts(error="broken")), json=True)
    assert ended.value.exit_code == Exit.MACHINE
    assert json.loads(capsys.readouterr().out)["ready"] is False


@pytest.mark.parametrize("width", [48, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_the_command_stays_one(width: int) -> None:
    """What is broken goes on below its first word, and a shell takes the command as it was."""
    command = "questprof decide --shape llama-3.1-8b --time 10m -o 'a page.html'"
    found = dataclasses.replace(diagnose(gpu()), next_command=command, next_reason="one sentence of it " * 5)
    console = Console(width=width, force_terminal=True, no_color=True)
    with console.capture() as capture:
        display.show(found, console)
    lines = Text.from_ansi(capture.get()).plain.splitlines()
    assert max(map(len, lines)) <= width
    start = next(i for i, line in enumerate(lines) if line.startswith("Next: "))
    end = next(i for i, line in enumerate(lines) if line.startswith("      ("))
    assert all(line.startswith(" " * 6) for line in lines[start + 1 :])
    shown = "\n".join(lines[start:end]).removeprefix("Next: ")
    assert shlex.split(shown.replace("\\\n", "")) == shlex.split(command)
    assert ("\\\n" in shown) == (width < len("Next: ") + len(command))
