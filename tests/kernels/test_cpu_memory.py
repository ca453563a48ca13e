"""Large CPU tensors: their shape, their owner, and when huge pages are asked for."""

from __future__ import annotations

import gc
import mmap
import weakref

import pytest
import torch
from questprof_kernels import cpu_memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("rows", [0, 1, cpu_memory.LEAST_BYTES // 64])
def test_an_empty_tensor_can_be_written_everywhere(dtype: torch.dtype, rows: int) -> None:
    tensor = cpu_memory.empty((rows, 2, 16), dtype)
    assert tensor.shape == (rows, 2, 16)
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0
    tensor.fill_(3)
    assert tensor.sum(dtype=torch.float64) == 96 * rows


def test_another_device_gets_its_own_memory() -> None:
    assert cpu_memory.empty((cpu_memory.LEAST_BYTES,), torch.float32, "meta").is_meta


def test_a_view_keeps_the_memory_and_its_end_frees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Memory(mmap.mmap):
        def __init__(self, *_: object, **__: object) -> None:
            made.append(weakref.ref(self))

    monkeypatch.setattr(mmap, "mmap", Memory)
    row = cpu_memory.empty((2, cpu_memory.LEAST_BYTES), torch.float32)[1]
    gc.collect()
    assert made[0]() is not None
    assert row.fill_(2.0).mean() == 2.0
    del row
    gc.collect()
    assert made[0]() is None


def test_a_system_without_huge_pages_gives_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError("Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Memory)
    assert cpu_memory.empty((cpu_memory.LEAST_BYTES,), torch.float32).fill_(1.0).mean() == 1.0
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert cpu_memory.empty((cpu_memory.LEAST_BYTES,), torch.float32).fill_(1.0).mean() == 1.0
