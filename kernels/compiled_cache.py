"""A place for the code that numba compiles, imported before any of it: it is kept between processes.

numba keeps it beside the source or in the user's own cache, and refuses to work where it may write to
neither, as in a container whose installation and home are read-only. There a folder of this user's alone
below the temporary one takes it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

import numba


def _keep_somewhere() -> None:
    """Give numba a folder of its own where it finds none."""
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:  # no locator available
        numba.config.CACHE_DIR = str(_own_folder(Path(tempfile.gettempdir()) / f"questprof-{os.getuid()}"))


def _nothing() -> None:
    """Never called: numba looks for its folder when a function is decorated."""


def _own_folder(wanted: Path) -> Path:
    """`wanted`, made if need be; a new folder for this process where another user could write to it."""
    wanted.mkdir(mode=0o700, exist_ok=True)
    found = wanted.lstat()
    ours = found.st_uid == os.getuid() and not found.st_mode & 0o022
    if stat.S_ISDIR(found.st_mode) and ours:
        return wanted
    folder = Path(tempfile.mkdtemp(prefix="questprof-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_keep_somewhere()
