"""What NVML tells of a GPU while it is timed: clocks, why they are held down, heat, power, energy, company.

Every answer is optional: what a chip, driver or container does not tell is None, never a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from questprof.model import Clocks, Energy
from questprof.roofs import MemoryBus

REASONS = {
    0x2: "application clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clock setting",
}
"""NVML's clock-event reasons by bit (nvml.h, nvmlClocksEventReason*); 0x1, idle, is no event."""
POLL_SECONDS = 0.25
TICK_SECONDS = 2.0
"""Longest wait for the energy counter to move: it is updated every few tens of milliseconds."""


class Gpu:
    """One GPU as NVML knows it. `library` is pynvml, `handle` NVML's own of the device."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml = library
        self._handle = handle

    def clocks(self) -> Clocks:
        """One reading of everything."""
        nvml = self._nvml
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        return Clocks(
            reasons=self.reasons(),
            temperature_c=self._ask("nvmlDeviceGetTemperature", getattr(nvml, "NVML_TEMPERATURE_GPU", 0)),
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", getattr(nvml, "NVML_CLOCK_SM", 1)),
            memory_mhz=self._ask("nvmlDeviceGetClockInfo", getattr(nvml, "NVML_CLOCK_MEM", 2)),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            other_processes=self.other_processes(),
        )

    def reasons(self) -> tuple[str, ...]:
        """Why the clocks are not at their highest now, idleness left out."""
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(name for bit, name in REASONS.items() if (mask or 0) & bit)

    def other_processes(self) -> int:
        """Compute processes beside this one, which has a context and so is one of those listed.

        Process ids are not compared: a container's are not the ones that NVML lists.
        """
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return max(0, len(listed or ()) - 1)

    def energy_mj(self) -> int | None:
        """Millijoules since the driver was loaded."""
        answer = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if answer is None else int(answer)

    def memory_bus(self) -> MemoryBus | None:
        """Width and highest clock of the memory bus; None where NVML does not say."""
        width = self._ask("nvmlDeviceGetMemoryBusWidth")
        clock = self._ask("nvmlDeviceGetMaxClockInfo", getattr(self._nvml, "NVML_CLOCK_MEM", 2))
        return MemoryBus(int(width), int(clock)) if width and clock else None

    def _ask(self, function: str, *arguments: Any) -> Any:
        """What `function` answers for this GPU; None where NVML lacks it or refuses."""
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except (AttributeError, self._nvml.NVMLError):
            return None


def open_gpu(index: int = 0) -> Gpu | None:
    """Torch's GPU number `index` in NVML, found by its PCI address; None where NVML does not answer."""
    try:
        import pynvml
        import torch
    except ImportError:
        return None
    try:
        properties = torch.cuda.get_device_properties(index)
        pynvml.nvmlInit()
    except (pynvml.NVMLError, RuntimeError, AssertionError):
        return None
    handle = find_handle(pynvml, properties)
    return None if handle is None else Gpu(pynvml, handle)


def find_handle(library: Any, properties: Any) -> Any:
    """NVML's handle of the GPU with torch's `properties`: by PCI address, by UUID, or the only one."""
    ways: tuple[Callable[[], Any], ...] = (
        lambda: library.nvmlDeviceGetHandleByPciBusId(pci_address(properties)),
        lambda: library.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}"),
        lambda: library.nvmlDeviceGetHandleByIndex(0) if library.nvmlDeviceGetCount() == 1 else None,
    )
    for way in ways:
        try:
            return way()
        except (library.NVMLError, AttributeError):
            continue
    return None


def pci_address(properties: Any) -> str:
    """`domain:bus:device.0` of torch's device properties, as NVML spells it."""
    domain, bus, device = (getattr(properties, f"pci_{part}_id") for part in ("domain", "bus", "device"))
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


class Monitor:
    """Readings around and during one timing loop."""

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.perf_counter) -> None:
        self._gpu, self._clock = gpu, clock
        self._readings: list[Clocks] = []
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether POLL_SECONDS have passed since the last reading."""
        return self._clock() >= self._next

    def read(self) -> None:
        """Read now: while the GPU works, as an idle one lowers its clocks and hides what held them."""
        self._readings.append(self._gpu.clocks())
        self._next = self._clock() + POLL_SECONDS

    def result(self) -> Clocks | None:
        """Every reason seen, the highest temperature and power, the lowest clocks, the most company."""
        seen = self._readings
        if not seen:
            return None
        reasons = dict.fromkeys(reason for clocks in seen for reason in clocks.reasons)
        return Clocks(
            reasons=tuple(reasons),
            temperature_c=_extreme(max, [c.temperature_c for c in seen]),
            sm_mhz=_extreme(min, [c.sm_mhz for c in seen]),
            memory_mhz=_extreme(min, [c.memory_mhz for c in seen]),
            power_w=_extreme(max, [c.power_w for c in seen]),
            other_processes=max(c.other_processes for c in seen),
        )


def _extreme(choose: Callable[..., Any], values: list[Any]) -> Any:
    return choose((value for value in values if value is not None), default=None)


def measure_energy(
    replay: Callable[[], object],
    launches: int,
    read_mj: Callable[[], int | None],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy | None:
    """Energy of at least `seconds` of replays of `launches` launches each; None where the counter stands.

    `replay` returns when it has run. The count starts and ends at a tick of the counter, which moves every
    few tens of milliseconds, with the GPU at work throughout. All of the board's energy is in it: idle
    power is not taken off.
    """
    begin = _next_tick(replay, read_mj, clock)
    if begin is None:
        return None
    started, launched, last = clock(), 0, begin
    while clock() - started < seconds + TICK_SECONDS:
        replay()
        launched += launches
        now = read_mj()
        passed = clock() - started
        if now is not None and now != last:
            last = now
            if passed >= seconds:
                return Energy(joules=(now - begin) / 1e3, seconds=passed, launches=launched)
    return None


def _next_tick(
    replay: Callable[[], object], read_mj: Callable[[], int | None], clock: Callable[[], float]
) -> int | None:
    """The counter just after it has moved; None when it does not within TICK_SECONDS."""
    replay()
    first, started = read_mj(), clock()
    while first is not None and clock() - started < TICK_SECONDS:
        replay()
        now = read_mj()
        if now is not None and now != first:
            return now
    return None
