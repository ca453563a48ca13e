"""A stand-in for cuda.bindings.driver that keeps a record of its calls and can fail one of them."""

from __future__ import annotations

from types import SimpleNamespace

GRANULE = 2 << 20


class Result(int):
    name = "CUDA_SUCCESS"


class Failed(int):
    name = "CUDA_ERROR_OUT_OF_MEMORY"


class FakeDriver:
    """Every call answers as the bindings do: a tuple that begins with the result."""

    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM="least")
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="both")

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[object, ...]] = []
        self.failing = failing

    @staticmethod
    def CUmemAllocationProp():  # noqa: N802
        return SimpleNamespace(location=SimpleNamespace())

    @staticmethod
    def CUmemAccessDesc():  # noqa: N802
        return SimpleNamespace(location=SimpleNamespace())

    def __getattr__(self, name: str):
        values = {
            "cuMemGetAllocationGranularity": (GRANULE,),
            "cuMemAddressReserve": (1 << 40,),
            "cuMemCreate": ("handle",),
        }

        def call(*arguments: object) -> tuple[object, ...]:
            self.calls.append((name, *arguments))
            if name == self.failing:
                return (Failed(2), *(None for _ in values.get(name, ())))
            return (Result(0), *values.get(name, ()))

        return call

    def named(self, name: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]
