"""What NVML tells the doctor of the first GPU; every answer is optional. `library`: pynvml or a fake."""

from __future__ import annotations

from typing import Any

from questprof.doctor.facts import NvmlFacts
from questprof.timing.nvml import Gpu


def nvml_facts(library: Any) -> NvmlFacts:
    """The facts; `error` where NVML does not start or sees no GPU. Never raises."""
    try:
        library.nvmlInit()
        count = int(library.nvmlDeviceGetCount())
        handle = library.nvmlDeviceGetHandleByIndex(0) if count else None
    except Exception as error:  # a driver that answers nonsense is a finding, not a crash
        return NvmlFacts(error=str(error) or type(error).__name__)
    if handle is None:
        return NvmlFacts(driver=_text(_ask(library, "nvmlSystemGetDriverVersion")), error="it lists no GPU")
    gpu = Gpu(library, handle)
    clocks = gpu.clocks()
    memory = _ask(library, "nvmlDeviceGetMemoryInfo", handle)
    listed = _ask(library, "nvmlDeviceGetComputeRunningProcesses", handle)
    return NvmlFacts(
        driver=_text(_ask(library, "nvmlSystemGetDriverVersion")),
        driver_cuda=_cuda(_ask(library, "nvmlSystemGetCudaDriverVersion")),
        num_gpus=count,
        name=_text(_ask(library, "nvmlDeviceGetName", handle)),
        memory_bytes=_number(getattr(memory, "total", None)),
        free_bytes=_number(getattr(memory, "free", None)),
        sm_mhz=clocks.sm_mhz,
        max_sm_mhz=_number(_ask(library, "nvmlDeviceGetMaxClockInfo", handle, _constant(library, "SM", 1))),
        memory_mhz=clocks.memory_mhz,
        max_memory_mhz=_number(
            _ask(library, "nvmlDeviceGetMaxClockInfo", handle, _constant(library, "MEM", 2))
        ),
        reasons=clocks.reasons,
        temperature_c=clocks.temperature_c,
        ecc=_first_flag(_ask(library, "nvmlDeviceGetEccMode", handle)),
        ecc_errors=_number(
            _ask(library, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
        ),  # uncorrected, volatile
        mig=_first_flag(_ask(library, "nvmlDeviceGetMigMode", handle)),
        processes=len(listed) if isinstance(listed, (list, tuple)) else None,
    )


def _ask(library: Any, function: str, *arguments: Any) -> Any:
    """What `function` answers; None where NVML lacks it or refuses."""
    try:
        return getattr(library, function)(*arguments)
    except Exception:
        return None


def _constant(library: Any, clock: str, number: int) -> int:
    return int(getattr(library, f"NVML_CLOCK_{clock}", number))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _cuda(value: Any) -> tuple[int, int] | None:
    """13000 is CUDA 13.0."""
    return (int(value) // 1000, int(value) % 1000 // 10) if isinstance(value, int) and value else None


def _first_flag(value: Any) -> bool | None:
    """NVML answers (current, pending)."""
    return bool(value[0]) if isinstance(value, (list, tuple)) and value else None
