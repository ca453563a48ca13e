"""A child process that traces: started, listened to until a deadline, and ended with all it started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from questprof.counters import Counted
from questprof.model import Point
from questprof.structs import ByValue

NUM_WORKERS = 4
"""Workers that the kernels of a trace are planned for: enough that splits and their merge take part."""
MODULE = "questprof.counters.trace_child"
READ_BYTES = 1 << 16
EXIT_S = 10.0
"""How long a child that has closed its output may take to end by itself."""
LAST_LINES = 3
"""Lines of what a crashed child wrote last that its reason quotes."""


class Order(ByValue, frozen=True):
    """What a child is asked, as JSON on its standard input; `stream` of trace.py says what each means."""

    points: tuple[Point, ...]
    kernels: str = ""
    num_workers: int = NUM_WORKERS
    prefill: bool = False


class TraceProcess:
    """One child, while entered; left, it and everything in its process group are killed."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.silent = False
        """Whether its output has ended."""
        self._rest = b""

    def __enter__(self) -> TraceProcess:
        self._errors = tempfile.TemporaryFile()  # a pipe nobody reads would stop a talkative kernel
        with tempfile.TemporaryFile() as asked:
            asked.write(msgspec.json.encode(self.order))
            asked.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "TRITON_INTERPRET": "1"},
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    @property
    def output(self) -> int:
        """File descriptor of its standard output."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def lines(self, new: bytes) -> Iterator[Counted]:
        """The whole lines that `new` bytes of its output complete."""
        *whole, self._rest = (self._rest + new).split(b"\n")
        for line in whole:
            yield msgspec.json.decode(line, type=Counted)

    def reason(self) -> str:
        """Why points of it may be missing; empty when it still runs, out of time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_S if self.silent else 0.0)
        status = self._process.returncode
        if status is None:
            return ""
        how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        return ": ".join([f"the tracing process {how}", *([" | ".join(last)] if last else [])])


def said(children: Sequence[TraceProcess], deadline: float) -> Iterator[Counted]:
    """Every line that `children` write until all are silent or `deadline` (time.monotonic) has passed."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.output, selectors.EVENT_READ, child)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                new = os.read(key.fd, READ_BYTES)
                if not new:
                    selector.unregister(key.fd)
                    key.data.silent = True
                yield from key.data.lines(new)
