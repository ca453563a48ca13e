"""A user's kernels checked in a process of their own: whatever they do to it, this one has an answer.

The process says what it is at; one that has said nothing for too long hangs, and is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

import msgspec

from questprof.backends.user import IN_DECODE
from questprof.backends.user_launch import ARGUMENTS, DECODE
from questprof.errors import QuestprofError
from questprof.kernelcheck.findings import KernelFinding, Order, StageFinding
from questprof.printable import printable

MODULE = "questprof.kernelcheck.child"
LAST_LINES = 3
"""Lines of what a process that died wrote last that the failure quotes."""
TOTAL_S = 300.0
"""Seconds that the check of one kernel set takes at most."""
QUIET_S = {"cpu": 60.0, "cuda": 120.0}
"""Seconds without a word, over one stage and cache, after which a kernel hangs; a GPU's may be compiling."""
TELL_S = 10.0
"""Seconds without a word after which the reader is told what the check is at."""


@dataclass(frozen=True)
class Patience:
    """How long a check may take, and whom to tell while it lasts."""

    total_s: float = TOTAL_S
    quiet_s: float | None = None
    """Without a word; None: QUIET_S of the device."""
    tell_s: float = TELL_S
    tell: Callable[[str], None] = lambda text: None
    """Called with what is being checked, each time it has been quiet for `tell_s`."""


@dataclass
class _Run:
    """What a child said, and how it ended."""

    said: list[dict[str, Any]] = field(default_factory=list)
    status: int | None = None
    """None: it was ended from here."""
    limit: str = ""
    """Which limit ended it, in words."""
    errors: str = ""


def check_kernel(name: str, order: Order, patience: Patience | None = None) -> KernelFinding:
    """All stages of the set `order.source`, while `patience` lasts; QuestprofError for a set that is none.

    KeyboardInterrupt also where the interrupt reached the process of the kernels alone.
    """
    started = time.monotonic()
    run = _run(name, order, patience or Patience())
    if run.status == -signal.SIGINT:
        raise KeyboardInterrupt
    said = run.said
    for line in said:
        if "refused" in line:
            raise QuestprofError(**line["refused"])
    stages = tuple(msgspec.convert(line, StageFinding) for line in said if "stage" in line)
    failure, fix = _failure(run)
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


def _run(name: str, order: Order, patience: Patience) -> _Run:
    """A child over `order` until it ends or patience does; it and whatever it started end with it."""
    interpreted = {"TRITON_INTERPRET": "1"} if order.device == "cpu" else {}
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **interpreted},
        start_new_session=True,
    )
    assert process.stdin
    lines: SimpleQueue[bytes | None] = SimpleQueue()
    errors: list[bytes] = []
    readers = (
        Thread(target=_read, args=(process.stdout, lines.put), daemon=True),
        Thread(target=_read, args=(process.stderr, errors.append), daemon=True),
    )
    for reader in readers:
        reader.start()
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(msgspec.json.encode(order))
    run = _Run()
    try:
        _listen(run, lines, name, order.device, patience)
        if not run.limit:
            with suppress(subprocess.TimeoutExpired):
                run.status = process.wait(patience.tell_s)
    finally:
        _end(process)
        process.wait()
    for reader in readers:
        reader.join(patience.tell_s)
    run.errors = b"".join(line for line in errors if line).decode(errors="replace")
    return run


def _read(stream: IO[bytes], put: Callable[[bytes | None], None]) -> None:
    """Every line of `stream` as it comes, and None at its end."""
    with stream:
        for line in stream:
            put(line)
    put(None)


def _listen(run: _Run, lines: SimpleQueue[bytes | None], name: str, device: str, patience: Patience) -> None:
    """Add what comes to `run.said` until the end of the lines or of patience, which is `run.limit` then."""
    quiet_s = patience.quiet_s or QUIET_S[device]
    started = heard = time.monotonic()
    told = False
    while True:
        now = time.monotonic()
        if now >= started + patience.total_s:
            run.limit = f"it was not done after {patience.total_s:g} s"
            return
        if now >= heard + quiet_s:
            run.limit = f"it hung: nothing came of it for {quiet_s:g} s"
            return
        if not told and now >= heard + patience.tell_s:
            told = True
            patience.tell(f"{name}: still{_doing(run.said)}, quiet for {patience.tell_s:g} of {quiet_s:g} s")
        ends = [started + patience.total_s, heard + quiet_s]
        ends += [] if told else [heard + patience.tell_s]
        try:
            line = lines.get(timeout=max(0.0, min(ends) - now))
        except Empty:
            continue
        if line is None:
            return
        run.said.append(msgspec.json.decode(line))
        heard, told = time.monotonic(), False


def _doing(said: Sequence[dict[str, Any]]) -> str:
    """What the child was at when it said the last of these."""
    if not said:
        return " importing it"
    last = said[-1]
    if not last.get("began"):
        return " between two stages"
    case = f" over {last['case']}" if last.get("case") else ""
    return f" in {last['began']}{case} ({last['setting']})"


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _failure(run: _Run) -> tuple[str, str]:
    """Why the check has no end, and what to do; ('', '') when it has one."""
    said, status = run.said, run.status
    if status == 0 and said and said[-1].get("finished"):
        return "", ""
    at = said[-1].get("began", "") if said else ""
    doing = f" in {at}" if at else " before its first stage" if said else " while it was imported"
    if run.limit:
        fix = "Look for a loop without an end"
        return (
            f"{run.limit}{doing}",
            f"{fix}; --page-sizes and --shape choose smaller caches." if at else f"{fix}.",
        )
    last = printable(" | ".join(run.errors.strip().splitlines()[-LAST_LINES:]))
    if not status:
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
