from __future__ import annotations

import pytest
import torch
from fake_driver import GRANULE, FakeDriver
from questprof_kernels import mapped_pool
from questprof_kernels.mapped_pool import MappedPool, VirtualBuffer

START = 1 << 40


@pytest.fixture
def driver(monkeypatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(mapped_pool, "_driver", lambda: fake)
    return fake


def test_every_granule_is_a_mapping_of_its_own(driver):
    buffer = VirtualBuffer(2 * GRANULE + 1, 0)
    assert (buffer.num_granules, buffer.num_bytes) == (3, 3 * GRANULE)
    assert driver.named("cuMemAddressReserve") == [(3 * GRANULE, GRANULE, 0, 0)]
    assert driver.named("cuMemMap") == [(START + i * GRANULE, GRANULE, 0, "handle", 0) for i in range(3)]
    assert len(driver.named("cuMemRelease")) == 3
    ((address, size, (access,), count),) = driver.named("cuMemSetAccess")
    assert (address, size, count, access.flags) == (START, 3 * GRANULE, 1, "both")
    assert (access.location.type, access.location.id) == ("device", 0)


def test_unmap_takes_whole_granules(driver):
    buffer = VirtualBuffer(8 * GRANULE, 0)
    buffer.unmap(5, 2)
    buffer.unmap(0, 0)
    assert driver.named("cuMemUnmap") == [(START + 5 * GRANULE, GRANULE), (START + 6 * GRANULE, GRANULE)]
    with pytest.raises(ValueError, match="granules 7 to 9 of 8"):
        buffer.unmap(7, 2)


@pytest.mark.parametrize(
    "call",
    ["cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"],
)
def test_every_answer_of_the_driver_is_checked(driver, call):
    driver.failing = call
    with pytest.raises(RuntimeError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        VirtualBuffer(GRANULE, 0)


def test_a_failed_unmap_is_no_proof(driver):
    buffer = VirtualBuffer(GRANULE, 0)
    driver.failing = "cuMemUnmap"
    with pytest.raises(RuntimeError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        buffer.unmap(0, 1)


@pytest.mark.gpu
def test_a_mapped_pool_holds_what_is_written_and_keeps_the_rest():
    pool = MappedPool(64, 32, 16, 128, torch.float16, device="cuda")
    pool.k.fill_(1)
    pool.v.fill_(2)
    assert pool.granule_bytes % pool.page_bytes == 0
    kept = pool.granule_bytes // pool.page_bytes
    pool.unmap(1, 1)
    assert bool((pool.k[:kept] == 1).all())
    assert bool((pool.v[:kept] == 2).all())
    assert bool((pool.k[2 * kept :] == 1).all())
