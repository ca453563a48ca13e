"""The edge of the doctor: looks at the machine. Each probe is bounded in time, and what fails is noted.

Programs that may hang (imports of torch, numba and triton, ncu) run as children with a time limit, side by
side.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

from questprof.doctor.facts import CpuFacts, Facts, NcuFacts, NvmlFacts, TorchFacts, WriteFacts

TORCH_SECONDS: Final = 8.0
"""For torch's import from a slow disk."""
NCU_SECONDS: Final = 4.0
SECONDS: Final = TORCH_SECONDS + 1.0
ALONE: Final = "nvml"
"""Answers before the others start: torch's child, too, would be a process on the GPU."""
ALONE_SECONDS: Final = 2.0
GOVERNORS: Final = Path("/sys/devices/system/cpu")


def gather(probes: Mapping[str, Callable[[], Any]] | None = None, seconds: float = SECONDS) -> Facts:
    """The facts of this machine, in `seconds` at most. Never raises; a probe that hangs is left behind.

    `probes` replaces those of this module, by the field of Facts that each fills.
    """
    asked = dict(PROBES if probes is None else probes)
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    threads = {
        name: Thread(target=_look, args=(name, probe, found, failed), daemon=True)
        for name, probe in asked.items()
    }
    deadline = time.monotonic() + seconds
    for name in sorted(threads, key=lambda name: name != ALONE):
        threads[name].start()
        if name == ALONE:
            threads[name].join(min(ALONE_SECONDS, seconds))
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            failed[name] = f"no answer within {seconds:g} s"
    found = {name: value for name, value in dict(found).items() if name not in failed}
    unanswered = [f"{name}: {failed[name]}" for name in asked if name in failed]
    nvrtc = found.pop("nvrtc", ("", "no answer"))
    return Facts(
        python=platform.python_version(),
        system=platform.system(),
        nvrtc=nvrtc[0],
        nvrtc_error=nvrtc[1],
        unanswered=tuple(unanswered),
        **found,
    )


def _look(name: str, probe: Callable[[], Any], found: dict[str, Any], failed: dict[str, str]) -> None:
    try:
        found[name] = probe()
    except Exception as error:  # whatever a probe meets is a line of the doctor
        failed[name] = f"{type(error).__name__}: {error}"


def torch_facts(seconds: float = TORCH_SECONDS) -> TorchFacts | None:
    """What torch says in a child process; None where it does not answer in time."""
    answer = _told_by_child("torch_child", seconds=seconds)
    if answer is None:
        return None
    capability = answer.pop("capability", None)
    return TorchFacts(**answer, capability=tuple(capability) if capability else None)


def import_error(package: str, attribute: str, seconds: float = TORCH_SECONDS) -> str | None:
    """Why a child process cannot import `package` with its `attribute`; '' where it can, None out of time."""
    answer = _told_by_child("import_child", package, attribute, seconds=seconds)
    return None if answer is None else str(answer["error"])


def _told_by_child(module: str, *arguments: str, seconds: float) -> dict[str, Any] | None:
    """The last line that `module` of this package prints as a program, None out of time.

    Its `error` alone where the program ends without one.
    """
    command = [sys.executable, "-m", f"questprof.doctor.{module}", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return {"error": f"its import ended the process: {said}"}


def nvml_facts() -> NvmlFacts:
    """What the driver says through NVML."""
    from questprof.doctor import nvml

    try:
        import pynvml
    except ImportError as error:
        return NvmlFacts(error=str(error))
    return nvml.nvml_facts(pynvml)


def nvrtc_version() -> tuple[str, str]:
    """(version, '') of the compiler of CUDA stages, or ('', why there is none)."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # a missing library is an error of its own kind in each version
        return "", (str(error).splitlines() or [type(error).__name__])[0]
    return f"{major}.{minor}", ""


def ncu_facts(seconds: float = NCU_SECONDS) -> NcuFacts:
    """Where Nsight Compute is, its version, and whether the driver lets this process read counters."""
    from questprof.counters import ncu
    from questprof.counters.ncu_process import find
    from questprof.errors import QuestprofError

    try:
        admin_only: bool | None = "RmProfilingAdminOnly: 1" in ncu.DRIVER_PARAMETERS.read_text()
    except OSError:
        admin_only = None
    rights = {"admin_only": admin_only, "is_admin": ncu._is_admin()}
    try:
        path = find()
    except QuestprofError as error:
        return NcuFacts(error=error.why, **rights)  # type: ignore[arg-type]
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=seconds, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return NcuFacts(path, error=str(error), **rights)  # type: ignore[arg-type]
    lines = [line for line in answer.stdout.splitlines() if line.startswith("Version")]
    version = (lines or ["of unknown version"])[0].removeprefix("Version").strip()
    return NcuFacts(path, version, **rights)  # type: ignore[arg-type]


def cpu_facts() -> CpuFacts:
    """Name, threads, governors, cache, free memory, load."""
    from questprof import environment

    return CpuFacts(
        name=environment.cpu_name(),
        threads=environment.usable_cpus(),
        all_threads=os.cpu_count(),
        governors=governors(GOVERNORS),
        cache_bytes=environment.cpu_last_level_cache_bytes(),
        free_bytes=environment.available_bytes("cpu"),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def governors(folder: Path) -> tuple[str, ...]:
    """The frequency governors below sysfs's `folder`, each once; empty where there are none."""
    found = set()
    for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    return tuple(sorted(found))


def write_facts() -> tuple[WriteFacts, ...]:
    """The working folder, and the folders that compiled kernels are kept in."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "questprof"
    triton = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    wanted = {"working folder": Path.cwd(), "cache of CUDA stages": cache, "cache of Triton stages": triton}
    return tuple(WriteFacts(what, str(path), write_error(path)) for what, path in wanted.items())


def write_error(folder: Path) -> str:
    """Why no file can be written in `folder`, which may not be there yet; '' where one can."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def package_versions() -> dict[str, str]:
    """Installed packages by name, nothing imported."""
    from questprof import environment

    return environment.package_versions()


def device_files() -> bool:
    """Whether the system has device files of an NVIDIA GPU."""
    from questprof.counters.ncu import DEVICES

    return any(Path(device).exists() for device in DEVICES)


def commit() -> str:
    """The commit of this questprof."""
    from questprof.version import commit as found

    return found()


PROBES: Final[dict[str, Callable[[], Any]]] = {
    "torch": torch_facts,
    "numba_error": partial(import_error, "numba", "njit"),
    "triton_error": partial(import_error, "triton", "jit"),
    "ncu": ncu_facts,
    "nvml": nvml_facts,
    "nvrtc": nvrtc_version,
    "cpu": cpu_facts,
    "writes": write_facts,
    "versions": package_versions,
    "device_files": device_files,
    "commit": commit,
}
