"""What this machine is: device, caches, memory, versions, commit. No guesses: unknown is 0 or ''."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import questprof
from questprof.errors import Exit, QuestprofError
from questprof.model import Environment
from questprof.version import commit as commit

PACKAGES = (
    "torch",
    "triton",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "numba",
    "numpy",
    "msgspec",
    "flashinfer-python",
)


def resolve_device(wanted: str) -> Literal["cpu", "cuda"]:
    """`auto` takes the GPU where there is one. QuestprofError (status 3) when `cuda` is not to be had."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise QuestprofError(f"device {wanted!r}", "it is unknown", "Choose auto, cpu or cuda.")
    if wanted == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise QuestprofError(
            "no CUDA device",
            f"torch {torch.__version__} sees no GPU on this machine",
            "Install the driver and a CUDA build of torch, or use --device cpu; see `questprof doctor`.",
            Exit.MACHINE,
        )
    return "cpu"


def package_versions() -> dict[str, str]:
    """Version of every package whose code the figures depend on; what is not installed is left out."""
    found = {"questprof": questprof.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_last_level_cache_bytes() -> int:
    """Bytes of the largest cache the first core sees (sysfs, then sysctl on macOS); 0 when unknown."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 1024, "M": 1024**2}.get(text[-1], 1)
        sizes.append(int(text.rstrip("KM")) * factor)
    if not sizes and sys.platform == "darwin":
        answer = subprocess.run(
            ["sysctl", "-n", "hw.l2cachesize"], capture_output=True, text=True, check=False
        )
        sizes = [int(answer.stdout)] if answer.stdout.strip().isdigit() else []
    return max(sizes, default=0)


def usable_cpus() -> int:
    """Cores this process may use: its affinity, capped by the cgroup's quota and NUMBA_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = cores if quota == "max" else min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    asked = os.environ.get("NUMBA_NUM_THREADS", "")
    return max(1, min(cores, int(asked)) if asked.isdigit() else cores)


def use_threads(count: int) -> None:
    """Let the compiled stages and torch use `count` threads alike, whatever OMP_NUM_THREADS says."""
    import numba
    import torch

    numba.set_num_threads(count)
    torch.set_num_threads(count)


def available_bytes(device: str) -> int:
    """Memory that can be allocated now: free GPU memory, or the system's available, capped by cgroup."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(available, _cgroup_headroom())


def total_bytes(device: str) -> int:
    """The whole memory of the GPU or of the machine, free or not."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_headroom() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - used)


def waited_seconds() -> float | None:
    """Seconds that this process's threads have been ready to run without a core; None where nobody counts.

    Of the kernel's schedstat (its second number, ns). It grows when other work takes the cores.
    """
    try:
        tasks = Path("/proc/self/task").glob("*/schedstat")
        waited = [int(task.read_text().split()[1]) for task in tasks]
    except (OSError, ValueError, IndexError):
        return None
    return sum(waited) / 1e9 if waited else None


def capture(device: Literal["cpu", "cuda"]) -> Environment:
    """The environment figures of `device` are measured in."""
    return _capture_cuda() if device == "cuda" else _capture_cpu()


def _capture_cpu() -> Environment:
    return Environment(
        device="cpu",
        device_name=cpu_name(),
        num_workers=usable_cpus(),
        last_level_cache_bytes=cpu_last_level_cache_bytes(),
        memory_bytes=total_bytes("cpu"),
        python=platform.python_version(),
        platform=platform.platform(),
        versions=package_versions(),
        commit=commit(),
    )


def _capture_cuda() -> Environment:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return Environment(
        device="cuda",
        device_name=properties.name,
        num_workers=properties.multi_processor_count,
        last_level_cache_bytes=properties.L2_cache_size,
        memory_bytes=properties.total_memory,
        python=platform.python_version(),
        platform=platform.platform(),
        versions=package_versions(),
        driver=driver_version(),
        cuda=torch.version.cuda or "",
        commit=commit(),
    )


def driver_version() -> str:
    """The NVIDIA driver's version from NVML; '' without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""
