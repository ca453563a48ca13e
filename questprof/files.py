"""Files that a command writes: never one unasked, whole or not at all, and in words where that cannot be."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from questprof.errors import Exit, QuestprofError


def output_exists(path: Path) -> QuestprofError:
    """The error for an output that would be overwritten; a folder never is."""
    if path.is_dir():
        return _irregular(path)
    return QuestprofError(
        f"{path} exists", "nothing is overwritten unasked", "Name another file, or add --force to replace it."
    )


def cannot_write(path: Path, error: OSError) -> QuestprofError:
    """The error for an output that cannot be opened, or not be written for want of room (status 3)."""
    why = str(error.strerror or error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fix = "Make room, or name a file on another disk."
        return QuestprofError(f"cannot write {path}", why, fix, Exit.MACHINE)
    return QuestprofError(f"cannot write {path}", why, "Name a file in a folder you may write to.")


def check_regular(path: Path) -> None:
    """QuestprofError where `path` is something else than a file: a folder, a device, a pipe."""
    if path.exists() and not path.is_file():
        raise _irregular(path)


def _irregular(path: Path) -> QuestprofError:
    what = "a folder" if path.is_dir() else "a device or a pipe"
    return QuestprofError(f"cannot write {path}", f"it is {what}", "Name a file, new or to be replaced.")


def write_whole(path: Path, data: bytes) -> None:
    """Write all of `data` or nothing, past links: a file beside the target takes its place when complete.

    A device or a pipe takes it as it is. OSError where it cannot.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        os.replace(partial, target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """QuestprofError unless `path` can be made, or replaced as a file.

    Makes nothing: whoever writes makes the folder, so that what is refused later leaves none behind.
    """
    check_regular(path)
    _check_folder(path)


def check_appendable(path: Path) -> None:
    """QuestprofError unless text can be added to `path`: what is there and no folder, or a new file.

    Opens no pipe: whoever reads it waits for the text.
    """
    if path.is_dir():
        check_regular(path)
    if not path.exists():
        _check_folder(path)
    elif not os.access(path, os.W_OK):
        raise cannot_write(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _check_folder(path: Path) -> None:
    try:
        there = next(folder for folder in path.absolute().parents if folder.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error
