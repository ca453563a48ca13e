"""How counting a point went, in a word: the reason beside it is for people alone."""

from __future__ import annotations

from typing import Final, Literal

CountStatus = Literal["ok", "unstable", "wrong", "failed", "oom", "unavailable"]
"""wrong: a result is off the reference; failed: a stage did not run; unstable: bytes went unseen; oom and
unavailable: nothing could be counted."""
_ORDER: Final[tuple[CountStatus, ...]] = ("ok", "unstable", "wrong", "failed", "oom", "unavailable")


def worst(*statuses: CountStatus) -> CountStatus:
    """The gravest of `statuses`, `ok` of none; a stage that did not run is graver than a wrong result."""
    return max(statuses, key=_ORDER.index, default="ok")


def status_of_error(error: Exception) -> CountStatus:
    """`oom` where memory was short for a point, otherwise `unavailable`."""
    import torch

    short = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "DefaultCPUAllocator" in str(
        error
    )
    return "oom" if short else "unavailable"
