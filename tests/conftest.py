"""One process is one Triton mode: interpreted without a GPU, native with one (chosen before any import)."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _share_cores() -> None:
    """Leave each of several workers its share of the cores, where float64 references would take them all."""
    import torch

    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


if _has_gpu():
    _share_cores()
else:
    os.environ["TRITON_INTERPRET"] = "1"
    import questprof_kernels.interpreter  # noqa: F401

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def device() -> str:
    """Where the Triton kernels run: natively on a GPU, interpreted on the CPU."""
    return "cuda" if _has_gpu() else "cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` and `counters` tests where there is no GPU."""
    if _has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu") or item.get_closest_marker("counters"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session", autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """New pools on the CPU hold NaN, so that a read of what nobody wrote fails in every run, not in some."""
    from questprof_kernels import cpu_memory

    plain = cpu_memory.empty

    def poisoned(shape, dtype, device="cpu"):
        memory = plain(shape, dtype, device)
        return memory.fill_(float("nan")) if dtype.is_floating_point else memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_memory, "empty", poisoned)
        yield


@pytest.fixture(scope="session", autouse=True)
def _regions_of_a_page() -> Iterator[None]:
    """The small pools of tests would lie in one region each, and walks would be in logical order."""
    from questprof_kernels import paged_cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_cache, "REGION_BYTES", 1)
        yield


@pytest.fixture(autouse=True)
def _own_numbers() -> None:
    """What a test draws without a seed does not depend on the tests before it."""
    import torch

    torch.manual_seed(0)
