"""What a kernel of the user's asks of memory at once; more than there is at all is the kernel's own fault."""

from __future__ import annotations

import operator
import re
from typing import Any, Final

from questprof.environment import total_bytes
from questprof.errors import Exit, QuestprofError
from questprof.units import format_bytes

_ASKED: Final = re.compile(r"(?:[Tt]ried|Unable) to allocate ([\d.]+) (bytes|[KMGTPE]iB)")
_UNITS: Final = {"bytes": 1, **{f"{letter}iB": 1 << 10 * (n + 1) for n, letter in enumerate("KMGTPE")}}


class AsksTooMuchError(QuestprofError):
    """One allocation larger than the whole memory, by the kernel set `source`: no other work is to blame."""

    def __init__(self, source: str, stage: str, why: str, num_bytes: int, total: int) -> None:
        fix = f"It asks for {format_bytes(num_bytes)} at once of {format_bytes(total)} in all: allocate less."
        super().__init__(f"stage {stage} of {source}", why, fix, Exit.CHECK_FAILED)
        self.source = source


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation (torch says so on the CPU with a plain RuntimeError)."""
    import torch

    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def asked_bytes(error: BaseException) -> int:
    """Bytes that the refused allocation `error` asked for, as torch and NumPy tell them; 0: not told."""
    found = _ASKED.search(str(error))
    return int(float(found[1].rstrip(".")) * _UNITS[found[2]]) if found else 0


def beyond_all(error: BaseException) -> tuple[int, int] | None:
    """(bytes asked for, bytes of all memory) where `error` asked for more than there is; else None."""
    import torch

    if not out_of_memory(error):
        return None
    device = "cuda" if isinstance(error, torch.cuda.OutOfMemoryError) else "cpu"
    asked, total = asked_bytes(error), total_bytes(device)
    return (asked, total) if asked > total else None


def checked_floats(source: str, value: Any, *, on_gpu: bool) -> int:
    """`value` of a scratch_floats as int; QuestprofError for what is no count, or more than the memory."""
    what, fix = (
        f"stage scratch_floats of {source}",
        "Return how many fp32 numbers of scratch it needs, 0 for none.",
    )
    try:
        count = operator.index(value)
    except TypeError:
        why = f"it returned a {type(value).__name__}, not a whole number"
        raise QuestprofError(what, why, fix, Exit.CHECK_FAILED) from None
    if count < 0:
        raise QuestprofError(what, f"it returned {count}, a negative number", fix, Exit.CHECK_FAILED)
    if 4 * count > (total := total_bytes("cuda" if on_gpu else "cpu")):
        why = f"it returned {count}: more scratch than the memory holds"
        raise AsksTooMuchError(source, "scratch_floats", why, 4 * count, total)
    return count
