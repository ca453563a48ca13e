"""One thread for torch and numba: at these sizes a second one only waits, on a busy machine for long."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Give the numbers back afterwards: other folders' tests time and plan with them."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])
