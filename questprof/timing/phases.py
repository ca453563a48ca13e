"""Where the seconds of a run went: filling, checks, capture, timing, energy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Wall seconds by the name of what was done, nested ones counted once, by the innermost."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the seconds inside the `with` to `name`."""
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def _switch(self) -> None:
        """Count the seconds since the last switch to what was being done."""
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def describe(self) -> str:
        """`timing 80.2 s, checks 30.1 s`: the longest first, what took no time left out."""
        longest = sorted(self.seconds.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in longest if seconds >= 0.05)
