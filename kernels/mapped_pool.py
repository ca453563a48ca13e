"""A page pool whose K and V lie in CUDA virtual memory, granule by granule, so that parts can be taken away.

A granule is the least amount of memory that the device maps (2 MiB on today's GPUs). After `unmap` an access
to it is an illegal address, which ends the process's CUDA context: proof that what runs does not touch it.
Needs `cuda-bindings`; memory is given back when the process ends.
"""

from __future__ import annotations

from typing import Any

import torch
from questprof_kernels.cuda_module import checked
from questprof_kernels.paged_cache import PagePool
from questprof_kernels.plan import ceil_div


def granule_bytes(device: torch.device | str | int) -> int:
    """Bytes of the least piece of memory that a CUDA device maps; ValueError for another device."""
    return int(checked(_driver().cuMemGetAllocationGranularity(*_placement(_index(device)))))


def _index(device: torch.device | str | int) -> int:
    """The number of a CUDA device."""
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type != "cuda":
        raise ValueError(f"only memory of a CUDA device can be unmapped, not of {found}")
    return found.index if found.index is not None else torch.cuda.current_device()


def _placement(index: int) -> tuple[Any, Any]:
    """Memory pinned on device `index`, and the least granularity."""
    driver = _driver()
    place = driver.CUmemAllocationProp()
    place.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    place.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.location.id = index
    return place, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM


class VirtualBuffer:
    """At least `num_bytes` of device memory in one range of addresses, each granule mapped on its own."""

    def __init__(self, num_bytes: int, device: int) -> None:
        driver = _driver()
        place, _ = _placement(device)
        self.granule_bytes = granule_bytes(device)
        self.num_granules = max(1, ceil_div(num_bytes, self.granule_bytes))
        self.num_bytes = self.num_granules * self.granule_bytes
        self.address = int(checked(driver.cuMemAddressReserve(self.num_bytes, self.granule_bytes, 0, 0)))
        for granule in range(self.num_granules):
            handle = checked(driver.cuMemCreate(self.granule_bytes, place, 0))
            checked(driver.cuMemMap(self._start(granule), self.granule_bytes, 0, handle, 0))
            checked(driver.cuMemRelease(handle))  # the mapping keeps it until it is unmapped
        access = driver.CUmemAccessDesc()
        access.location.type = place.location.type
        access.location.id = device
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        checked(driver.cuMemSetAccess(self.address, self.num_bytes, [access], 1))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The buffer as bytes, for torch.as_tensor."""
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The first bytes as a contiguous tensor."""
        flat = torch.as_tensor(self, device=device)
        elements = torch.Size(shape).numel()
        return flat[: elements * dtype.itemsize].view(dtype).view(shape)

    def unmap(self, first: int, count: int) -> None:
        """Take away `count` granules from number `first` on; nothing may be using them."""
        if not 0 <= first <= first + count <= self.num_granules:
            raise ValueError(f"granules {first} to {first + count} of {self.num_granules}")
        for granule in range(first, first + count):
            checked(_driver().cuMemUnmap(self._start(granule), self.granule_bytes))

    def _start(self, granule: int) -> int:
        return self.address + granule * self.granule_bytes


class MappedPool(PagePool):
    """A PagePool on a CUDA device whose K and V can lose granules; its summaries are ordinary memory.

    Takes what PagePool takes; ValueError for another device.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        index = _index(self.device)
        torch.cuda.synchronize()  # the context that the memory is mapped into exists
        shape, dtype = tuple(self.k.shape), self.k.dtype
        self._buffers = [VirtualBuffer(self.k.nbytes, index) for _ in range(2)]
        self.k, self.v = (buffer.tensor(shape, dtype, self.k.device) for buffer in self._buffers)

    @property
    def granule_bytes(self) -> int:
        """Bytes of a granule."""
        return self._buffers[0].granule_bytes

    def unmap(self, first: int, count: int) -> None:
        """Take away granules `first` to `first + count` of K and of V, once the device is idle."""
        torch.cuda.synchronize()
        for buffer in self._buffers:
            buffer.unmap(first, count)


def _driver() -> Any:
    from cuda.bindings import driver

    return driver
