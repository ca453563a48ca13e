"""The process that traces: an order as JSON on standard input, one `Counted` a line on standard output.

Nothing else is on standard output: what kernels print goes to standard error. Run by trace_process.py as
`python -m questprof.counters.trace_child`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import BinaryIO

WATCH_S = 1.0
"""How often the child looks whether its parent is still there."""


def main() -> None:
    """Count every point of the order, each line out as soon as it is known."""
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, or it would compile
    watch_parent()
    lines = own_output()
    import msgspec
    import questprof_kernels.interpreter  # noqa: F401
    import torch

    from questprof.counters.trace_point import PointTracer
    from questprof.counters.trace_process import Order
    from questprof.errors import QuestprofError

    torch.set_num_threads(1)  # a child a core: more threads would only wait for each other
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        tracer = PointTracer(order.kernels, order.num_workers, prefill=order.prefill)
    except QuestprofError as error:  # a stage set that is none
        sys.exit(str(error))
    for point in order.points:
        lines.write(msgspec.json.encode(tracer.count(point)) + b"\n")
        lines.flush()


def own_output() -> BinaryIO:
    """Standard output for the lines alone; whoever else writes to it writes to standard error from now on."""
    sys.stdout.flush()
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return lines


def watch_parent() -> None:
    """End this process when its parent has gone without ending it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
