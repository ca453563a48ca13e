"""NVML behind a fake: everything optional, reasons by bit, company, energy from tick to tick."""

from types import SimpleNamespace
from typing import Any

import pytest

from questprof.model import Clocks
from questprof.roofs import MemoryBus
from questprof.timing.nvml import Gpu, Monitor, find_handle, measure_energy, open_gpu, pci_address


class _Error(Exception):
    pass


def _library(**answers: Any) -> Any:
    """A pynvml that answers what is given and raises for everything else that NVML knows."""

    def refuse(*_: Any) -> None:
        raise _Error("Not Supported")

    known = dict.fromkeys(
        (
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetCurrentClocksEventReasons",
        ),
        refuse,
    )
    functions = {name: lambda *_, answer=answer: answer for name, answer in answers.items()}
    return SimpleNamespace(NVMLError=_Error, **(known | functions))


def test_all_that_a_gpu_tells() -> None:
    gpu = Gpu(
        _library(
            nvmlDeviceGetPowerUsage=412_500,
            nvmlDeviceGetTemperature=61,
            nvmlDeviceGetClockInfo=1980,
            nvmlDeviceGetComputeRunningProcesses=["this one", "another"],
            nvmlDeviceGetTotalEnergyConsumption=123,
            nvmlDeviceGetCurrentClocksEventReasons=0x1 | 0x4 | 0x20,
        ),
        object(),
    )
    assert gpu.clocks() == Clocks(
        reasons=("software power cap", "software thermal slowdown"),
        temperature_c=61,
        sm_mhz=1980,
        memory_mhz=1980,
        power_w=412.5,
        other_processes=1,
    )
    assert gpu.energy_mj() == 123


def test_what_a_gpu_does_not_tell_is_absent() -> None:
    gpu = Gpu(_library(), object())
    assert gpu.clocks() == Clocks()
    assert gpu.energy_mj() is None


def test_reasons_by_their_older_name() -> None:
    library = _library(nvmlDeviceGetCurrentClocksThrottleReasons=0x40)
    assert Gpu(library, object()).reasons() == ("hardware thermal slowdown",)


def test_idleness_is_no_reason_and_this_process_no_company() -> None:
    library = _library(
        nvmlDeviceGetCurrentClocksEventReasons=1, nvmlDeviceGetComputeRunningProcesses=["this one"]
    )
    assert Gpu(library, object()).clocks() == Clocks()


PROPERTIES = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xAB, pci_device_id=1, uuid="1234")


def test_a_gpu_is_found_by_its_address_then_its_uuid_then_as_the_only_one() -> None:
    assert pci_address(PROPERTIES) == "00000000:AB:01.0"
    asked: list[str] = []

    def by_uuid(uuid: str) -> str:
        asked.append(uuid)
        return "by uuid"

    library = SimpleNamespace(NVMLError=_Error, nvmlDeviceGetHandleByPciBusId=lambda address: address)
    assert find_handle(library, PROPERTIES) == "00000000:AB:01.0"
    library = SimpleNamespace(NVMLError=_Error, nvmlDeviceGetHandleByUUID=by_uuid)
    assert (find_handle(library, PROPERTIES), asked) == ("by uuid", ["GPU-1234"])
    count = 1
    library = SimpleNamespace(
        NVMLError=_Error, nvmlDeviceGetCount=lambda: count, nvmlDeviceGetHandleByIndex=lambda index: index
    )
    assert find_handle(library, SimpleNamespace()) == 0
    count = 2  # which of them is not known
    assert find_handle(library, SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("width", "clock", "wanted"),
    [(6144, 3201, MemoryBus(6144, 3201)), (0, 3201, None), (None, 3201, None), (6144, None, None)],
)
def test_the_memory_bus(width: int | None, clock: int | None, wanted: MemoryBus | None) -> None:
    answers = {"nvmlDeviceGetMemoryBusWidth": width, "nvmlDeviceGetMaxClockInfo": clock}
    library = _library(**{name: value for name, value in answers.items() if value is not None})
    assert Gpu(library, object()).memory_bus() == wanted


def test_without_a_gpu_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu(index: int) -> None:
        raise RuntimeError("no CUDA")

    monkeypatch.setattr("torch.cuda.get_device_properties", no_gpu)
    assert open_gpu() is None


def test_a_monitor_keeps_the_worst_of_its_readings() -> None:
    readings = iter(
        [
            Clocks(temperature_c=50, sm_mhz=1980, power_w=300.0),
            Clocks(("software power cap",), 70, 1700, 2619, 700.0, 1),
            Clocks(("software power cap", "sync boost"), 65, 1900),
        ]
    )
    now = 0.0
    monitor = Monitor(SimpleNamespace(clocks=lambda: next(readings)), clock=lambda: now)  # type: ignore[arg-type]
    assert monitor.result() is None
    assert monitor.due
    for _ in range(3):
        monitor.read()
    assert not monitor.due
    now = 0.3
    assert monitor.due
    assert monitor.result() == Clocks(("software power cap", "sync boost"), 70, 1700, 2619, 700.0, 1)


class _Board:
    """A board at 500 W whose counter moves every 50 ms; a replay takes 2 ms."""

    def __init__(self, tick_s: float = 0.05) -> None:
        self.now = 0.013
        self._tick = tick_s

    def replay(self) -> None:
        self.now += 0.002

    def read_mj(self) -> int:
        return round(500_000 * self._tick * int(self.now / self._tick)) if self._tick else 7


def test_energy_is_counted_from_tick_to_tick() -> None:
    board = _Board()
    energy = measure_energy(board.replay, 10, board.read_mj, 1.0, clock=lambda: board.now)
    assert energy is not None
    assert 1.0 <= energy.seconds <= 1.06
    assert energy.joules / energy.seconds == pytest.approx(500, rel=0.01)
    assert energy.joules / energy.launches == pytest.approx(500 * 0.002 / 10, rel=0.01)


def test_a_counter_that_stands_still_or_is_missing_gives_no_energy() -> None:
    board = _Board(tick_s=0.0)
    assert measure_energy(board.replay, 10, board.read_mj, 1.0, clock=lambda: board.now) is None
    assert measure_energy(board.replay, 10, lambda: None, 1.0, clock=lambda: board.now) is None


def test_a_counter_that_stops_gives_no_energy() -> None:
    board = _Board()
    values = iter([1, 2])
    energy = measure_energy(board.replay, 1, lambda: next(values, 2), 1.0, clock=lambda: board.now)
    assert energy is None
