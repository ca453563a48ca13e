"""The wrong kernels compile for a GPU too, so that its counters can be shown them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import triton


def test_every_fault_compiles(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-m", "faults.compile_child"],
        cwd=tests,
        env=plain | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert child.returncode == 0, f"triton {triton.__version__}: {child.stderr[-2000:]}"
    assert len(child.stdout.splitlines()) == 11
