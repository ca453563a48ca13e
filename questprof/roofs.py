"""What `roofline` measures of a device beside the sweep's read ceilings: raw samples only.

Kept in the profile's header. What follows from them (plateaus, knees, shares) is worked out in `roofline.py`.
"""

from __future__ import annotations

from typing import Literal

from questprof.structs import Sample, Struct

Operation = Literal["read", "copy"]
Unit = Literal["tensor cores", "CUDA cores", "CPU"]
LaunchKind = Literal["", "graph node", "eager", "compiled call", "stage call"]
"""How nothing was launched; empty in profiles of before it was kept."""


class Bandwidth(Struct, frozen=True):
    """Passes over one working set, repeated: hot in every cache that holds it."""

    operation: Operation
    name: str
    """The kernel, the fastest of those tried at this size."""
    working_set_bytes: int
    """Distinct bytes of one pass: all read, or for a copy half of them read and half written."""
    samples_gb_s: tuple[Sample, ...]
    """Bytes read and written a second, 1e9 of them."""


class FlopRate(Struct, frozen=True):
    """Floating-point operations a second of one kernel that reads next to nothing for each of them."""

    name: str
    dtype: str
    """Of the inputs; `tf32` is fp32 rounded to 10 bits of mantissa by the tensor cores."""
    unit: Unit
    """What did the arithmetic."""
    size: str
    """What was computed, for example `8192 x 8192 x 8192`."""
    flops: int
    """Operations of one launch; a fused multiply-add is two."""
    samples_tflop_s: tuple[Sample, ...]
    """1e12 operations a second."""


class Launch(Struct, frozen=True):
    """Time of a launch that has nothing to do."""

    name: str
    launches: int
    """Launches a sample is the mean of."""
    samples_us: tuple[Sample, ...]
    kind: LaunchKind = ""


class MemoryBus(Struct, frozen=True):
    """What NVML says of the memory interface."""

    bus_width_bits: int
    max_clock_mhz: int

    @property
    def gb_s(self) -> float:
        """Two transfers a clock over the whole bus, 1e9 bytes a second: derived, never measured."""
        return 2 * self.max_clock_mhz * 1e6 * self.bus_width_bits / 8 / 1e9


class Roofs(Struct, frozen=True):
    """Everything `roofline` measured of the device in one run."""

    bandwidths: tuple[Bandwidth, ...] = ()
    flop_rates: tuple[FlopRate, ...] = ()
    launches: tuple[Launch, ...] = ()
    memory_bus: MemoryBus | None = None
    absent: tuple[tuple[str, str], ...] = ()
    """What could not be measured, and why."""
