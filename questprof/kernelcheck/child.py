"""The process that launches a user's kernels: an order as JSON on standard input, a JSON line a result.

Nothing else is on standard output: what kernels print goes to standard error. Run by process.py as
`python -m questprof.kernelcheck.child`; Triton kernels run in the interpreter unless the order is for a GPU.
"""

from __future__ import annotations

import sys
from itertools import chain

from questprof.counters.trace_child import own_output, watch_parent


def main() -> None:
    """Check what the order says, each line out as soon as it is known; status 2 with what refuses it."""
    watch_parent()
    lines = own_output()
    import msgspec

    from questprof.errors import QuestprofError
    from questprof.kernelcheck.findings import Finished, Order

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if order.device == "cpu":
        _interpret()
    from questprof.kernelcheck.run import check_stages

    try:
        for said in chain(check_stages(order), [Finished(True)]):
            lines.write(msgspec.json.encode(said) + b"\n")
            lines.flush()
    except QuestprofError as error:
        refusal = {"what": error.what, "why": error.why, "fix": error.fix}
        lines.write(msgspec.json.encode({"refused": refusal}) + b"\n")
        sys.exit(2)


def _interpret() -> None:
    """Mend the interpreter where Triton is installed; a kernel without Triton needs none."""
    from importlib.util import find_spec

    import torch

    torch.set_num_threads(1)
    if find_spec("triton"):
        import questprof_kernels.interpreter  # noqa: F401


if __name__ == "__main__":
    main()
