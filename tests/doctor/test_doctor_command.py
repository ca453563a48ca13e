"""`questprof doctor` as people meet it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from machines import cpu, gpu

from questprof.commands.doctor import doctor
from questprof.doctor import probes
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
    assert any("`pip install 'questprof[gpu]'`" in line for line in lines)  # square brackets are no markup
    assert lines[-2] == "Next: questprof decide --shape llama-3.1-8b --time 10m -o decide.html"


def test_a_machine_that_can_do_nothing_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        show(monkeypatch, cpu(torch=TorchFacts(error="broken")), json=True)
    assert ended.value.exit_code == Exit.MACHINE
    assert json.loads(capsys.readouterr().out)["ready"] is False
