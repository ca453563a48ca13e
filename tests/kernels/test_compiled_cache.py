"""Where compiled code is kept when neither the installation nor the home may be written to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from questprof_kernels import compiled_cache

CHILD = """
import numpy as np
from numba.core import caching
implementation = getattr(caching, "CacheImpl", None) or caching._CacheImpl
provided = getattr(caching, "UserProvidedCacheLocator", None) or caching._UserProvidedCacheLocator
implementation._locator_classes = [provided]  # as where nothing may be written
from questprof_kernels import flops_cpu
import numba
print(flops_cpu.multiply_add(1, 1), numba.config.CACHE_DIR)
"""


def test_a_read_only_installation_compiles_all_the_same(tmp_path: Path) -> None:
    """One step of x * 0.5 + 0.5 from 1 leaves 1 in each of 12 x 16 numbers."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        capture_output=True,
        text=True,
        env=environment | {"TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    total, folder = done.stdout.split()
    assert float(total) == 12 * 16
    assert Path(folder) == tmp_path / f"questprof-{os.getuid()}"
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    assert any(Path(folder).rglob("*.nbi"))  # kept for the next process


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    wanted = tmp_path / "questprof-7"
    assert compiled_cache._own_folder(wanted) == wanted
    wanted.chmod(0o777)
    other = compiled_cache._own_folder(wanted)
    assert other != wanted
    assert stat.S_IMODE(other.stat().st_mode) == 0o700
    link = tmp_path / "link"
    link.symlink_to(wanted)
    assert compiled_cache._own_folder(link) not in (link, wanted)
