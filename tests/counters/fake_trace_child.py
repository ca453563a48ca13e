"""Stands in for the child that traces: answers at once, and does what `kernels` says at a long point."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from questprof.counters import Counted
from questprof.counters.trace_process import Order

LONG = 200


def misbehave(how: str) -> None:
    print("the first words\nthe last words", file=sys.stderr, flush=True)
    if how == "die":
        os.abort()
    if how == "fail":
        sys.exit(7)
    if how == "hang":
        grandchild = subprocess.Popen(["sleep", "600"])
        Path(os.environ["TRACE_PIDS"]).write_text(f"{os.getpid()} {grandchild.pid}")
        time.sleep(600)
    if how == "tear":  # a line that is never finished
        sys.stdout.write('{"point_id": "tor')
        sys.stdout.flush()
        os._exit(0)


order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
for point in order.points:
    if point.seq_len >= LONG:
        misbehave(order.kernels)
    answer = Counted(point.point_id, "trace", os.environ["TRITON_INTERPRET"])
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.flush()
