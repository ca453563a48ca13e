"""stdout and stderr that say when what was printed is lost: a full disk, or a reader that is gone.

Libraries in between turn some of these errors into statuses of their own, which would read as another
verdict; an error of another kind passes through them.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class OutputLostError(Exception):
    """Something printed did not arrive; `reader_gone` when whoever read a pipe has closed it."""

    def __init__(self, stream: str, error: OSError) -> None:
        super().__init__(f"{stream}: {error.strerror or error}")
        self.stream = stream
        self.why = str(error.strerror or error)
        self.reader_gone = isinstance(error, BrokenPipeError)


class _Descriptor(io.FileIO):
    """A file descriptor whose failed writes are OutputLostError; what follows goes nowhere."""

    def __init__(self, number: int, stream: str) -> None:
        super().__init__(number, "w", closefd=False)
        self._stream = stream

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # what is still buffered would fail once more at exit
            os.close(nowhere)
            raise OutputLostError(self._stream, error) from error


def guard() -> None:
    """Replace sys.stdout and sys.stderr where they are the process's own; what they lack is escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue
        guarded = io.TextIOWrapper(
            io.BufferedWriter(_Descriptor(stream.fileno(), name)),
            encoding=stream.encoding,
            errors="backslashreplace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering or name == "stderr",
        )
        setattr(sys, name, guarded)


def flush() -> None:
    """Write what is still buffered; OutputLostError when it cannot be."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
