"""What the tests of the CUDA kernels share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is compiled for the CPU."""
    return tmp_path_factory.mktemp("libraries")
