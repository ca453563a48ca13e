"""Ctrl-C that ends what is being measured first: the profile gets the samples taken so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupt:
    """While entered, the first SIGINT is noted (`asked`) and said by `say`; the second one interrupts."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._count = 0
        self._old: signal.Handlers | Callable[[int, FrameType | None], object] | int | None = None

    def asked(self) -> bool:
        """Whether to end as soon as what was measured is of use."""
        return self._count > 0

    def __enter__(self) -> Interrupt:
        # Only the main thread may handle signals; elsewhere an interrupt stays what it was.
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._say("interrupted: ending this block, whose points are kept (once more to stop at once)")
