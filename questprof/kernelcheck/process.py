"""A user's kernels checked in a process of their own: whatever they do to it, this one has an answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from questprof.backends.user import IN_DECODE
from questprof.backends.user_launch import ARGUMENTS, DECODE
from questprof.errors import QuestprofError
from questprof.kernelcheck.findings import KernelFinding, Order, StageFinding
from questprof.printable import printable

MODULE = "questprof.kernelcheck.child"
LAST_LINES = 3
"""Lines of what a process that died wrote last that the failure quotes."""


def check_kernel(name: str, order: Order, timeout_s: float) -> KernelFinding:
    """All stages of the set `order.source`, in at most `timeout_s`; QuestprofError for a set that is none."""
    started = time.monotonic()
    status, output, errors = _run(order, timeout_s)
    said = [msgspec.json.decode(line) for line in output.splitlines()]
    for line in said:
        if "refused" in line:
            raise QuestprofError(**line["refused"])
    stages = tuple(msgspec.convert(line, StageFinding) for line in said if "stage" in line)
    failure, fix = _failure(status, said, errors, timeout_s)
    brings: list[str] = next((line["brings"] for line in said if "brings" in line), [])
    return KernelFinding(
        name,
        order.source,
        order.device,
        stages,
        _borrowed(brings) if brings else (),
        failure,
        fix,
        round(time.monotonic() - started, 2),
    )


def _borrowed(brings: Sequence[str]) -> tuple[str, ...]:
    """The stages that a set which `brings` these leaves to the project."""
    own = (*brings, "select_attend", DECODE, *(IN_DECODE if DECODE in brings else ()))
    return tuple(stage for stage in ARGUMENTS if stage not in own)


def _run(order: Order, timeout_s: float) -> tuple[int | None, bytes, str]:
    """(exit status, or None out of time; standard output; standard error) of a child; it and its own end."""
    interpreted = {"TRITON_INTERPRET": "1"} if order.device == "cpu" else {}
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **interpreted},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(msgspec.json.encode(order), timeout=timeout_s)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        _end(process)
        output, errors = process.communicate()
        status = None
    finally:
        _end(process)
    return status, output, errors.decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _failure(
    status: int | None, said: Sequence[dict[str, Any]], errors: str, timeout_s: float
) -> tuple[str, str]:
    """Why the check has no end, and what to do; ('', '') when it has one."""
    if status == 0 and said and said[-1].get("finished"):
        return "", ""
    at = said[-1].get("began", "") if said else ""
    doing = f" in {at}" if at else " before its first stage"
    if status is None:
        why = f"it was not done after {timeout_s:g} s{doing}"
        return (
            why,
            "Look for a loop without an end; --page-sizes and --shape choose smaller caches.",
        )
    last = printable(" | ".join(errors.strip().splitlines()[-LAST_LINES:]))
    if status == 0:
        why = f"its process ended{doing} before the check was done" + (f": {last}" if last else "")
        return why, "A kernel returns: take out what ends the process (exit, os._exit)."
    how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    why = f"its process {how}{doing}" + (f": {last}" if last else "")
    if status > 0:
        return (
            why,
            "A kernel returns or raises: take out what ends the process, and look at what it said last.",
        )
    if status == -signal.SIGKILL:
        return why, "Most likely memory ran out: allocate less, or give the process more."
    return why, "It most likely read or wrote outside its tensors: mask loads and stores."
