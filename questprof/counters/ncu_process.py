"""The Nsight Compute program: where it is, and running it without leaving anything behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from questprof.counters import ncu_errors
from questprof.errors import Exit, QuestprofError

PLACES = ("/usr/local/cuda/bin/ncu", "/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
GRACE_S = 5.0
"""Between asking a run to end and ending it."""


def find(asked: str | None = None) -> str:
    """The path of ncu: `asked`, on PATH, or where CUDA puts it (newest); QuestprofError (3) without."""
    if asked:
        found = shutil.which(asked)
    else:
        places = [path for pattern in PLACES for path in sorted(glob(pattern), reverse=True)]
        found = shutil.which("ncu") or next(filter(shutil.which, places), None)
    if found is None:
        raise ncu_errors.not_found(asked)
    return found


def version(ncu: str) -> str:
    """What the program says its version is; QuestprofError (3) when it does not run."""
    try:
        answer = subprocess.run(
            [ncu, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        fix = "Try `ncu --version`; reinstall Nsight Compute or give another with --ncu."
        raise QuestprofError(f"{ncu} does not run", str(error), fix, Exit.MACHINE) from error
    lines = [line for line in answer.stdout.splitlines() if line.startswith("Version")]
    return (lines or ["unknown version"])[0].removeprefix("Version").strip()


def execute(command: Sequence[str], timeout_s: float, folder: str) -> tuple[str, int | None]:
    """All that `command` prints, and its exit status, None when it was ended after `timeout_s`.

    It gets a process group of its own, which is ended as a whole however this function is left.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    log = Path(folder, "output.txt")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
    return log.read_text(errors="replace"), code


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of the process's group, politely first, and wait for the process itself."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
