"""stdout and stderr that say when what was printed is lost: a full disk, or a reader that is gone.

Libraries in between turn some of these errors into statuses of their own, which would read as another
verdict; an error of another kind passes through them. A JSON document has stdout for itself: what kernels and
libraries print meanwhile goes to stderr.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_STDOUT, _STDERR = 1, 2
_document: TextIO | None = None
"""Where `print_json` writes while a document has stdout for itself."""


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
        line_buffering = stream.line_buffering or name == "stderr"
        setattr(sys, name, _guarded(stream.fileno(), name, stream, line_buffering))


def _guarded(number: int, name: str, like: io.TextIOWrapper, line_buffering: bool) -> io.TextIOWrapper:
    """A stream over the descriptor `number` that encodes as `like` does; what that lacks is escaped."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(number, name)),
        encoding=like.encoding,
        errors="backslashreplace" if like.errors == "strict" else like.errors,
        line_buffering=line_buffering,
    )


def flush() -> None:
    """Write what is still buffered; OutputLostError when it cannot be."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


@contextmanager
def document_alone() -> Iterator[None]:
    """Inside it stdout takes what `print_json` writes, and nothing else: all other output goes to stderr.

    In a process of the command line so does what is written to descriptor 1, by C code and by child
    processes as well, up to the end of the process: what is buffered, or printed at exit, comes late. In
    another program's process the descriptor is not ours, and sys.stdout is as it was afterwards.
    """
    global _document
    printed = sys.stdout
    if printed is None:
        yield
        return
    printed.flush()
    _document = _apart(printed) if _is_guarded(printed) else printed
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout, _document = printed, None


def _is_guarded(stream: Any) -> bool:
    return isinstance(getattr(getattr(stream, "buffer", None), "raw", None), _Descriptor)


def _apart(printed: Any) -> TextIO:
    """A stream to where descriptor 1 led, which leads to stderr from now on."""
    kept = _guarded(os.dup(printed.fileno()), "stdout", printed, False)
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    else:
        os.dup2(_STDERR, _STDOUT)
    return kept


def print_json(document: Any) -> None:
    """`document` as the one line of JSON on stdout; OutputLostError where it does not arrive."""
    import msgspec

    print(msgspec.json.encode(document).decode(), file=_document or sys.stdout, flush=True)
