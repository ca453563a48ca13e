"""An interrupt in the first moments, while the command line is imported."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from questprof import cli, streams
from questprof.errors import Exit

INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.{handler})

class Interrupting:
    def find_spec(self, name, *_):
        if name in ("typer", "questprof.commands.sweep"):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
import questprof.cli
print(signal.getsignal(signal.SIGINT) is signal.{handler})
"""


def interrupted(handler: str) -> subprocess.CompletedProcess[str]:
    code = INTERRUPTED_WHILE_IMPORTING.format(handler=handler)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_an_interrupt_while_importing_shows_no_traceback() -> None:
    done = interrupted("default_int_handler")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    done = interrupted("SIG_IGN")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_an_interrupt_before_a_command_began_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)
    monkeypatch.setattr(streams, "guard", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == Exit.INTERRUPTED
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_DFL"])
def test_once_imported_interrupts_are_as_they_were(handler: str) -> None:
    code = INTERRUPTED_WHILE_IMPORTING.format(handler=handler).replace("sys.meta_path", "[]")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
