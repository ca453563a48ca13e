"""What Nsight Compute prints when it cannot count -> what that means here and how to fix it (status 3)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from questprof.errors import Exit, QuestprofError

PERMISSION_FIX = (
    "Run as root, or let the driver allow it (`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d, then reload the driver; /proc/driver/nvidia/params shows RmProfilingAdminOnly). A "
    "container needs --cap-add=SYS_ADMIN or --privileged. `--source trace` counts without counters."
)


@dataclass(frozen=True)
class _Known:
    """A message of the profiler: the pattern that finds it, and the error that stands for it."""

    pattern: str
    what: str
    why: str
    fix: str


_KNOWN = (
    _Known(
        r"ERR_NVGPUCTRPERM",
        "no permission to read the GPU's counters",
        "the driver keeps them for administrators (ERR_NVGPUCTRPERM)",
        PERMISSION_FIX,
    ),
    _Known(
        r"driver resource was unavailable|[Aa]lready under profiling|HARDWARE_BUSY|already in use",
        "the GPU's counters are taken",
        "another tool holds them, most often DCGM, which monitors data-centre GPUs",
        "Where DCGM runs, `dcgmi profile --pause` lends the counters and `dcgmi profile --resume` gives them "
        "back; otherwise wait until the other profiler has ended.",
    ),
    _Known(
        r"[Cc]uda driver is not compatible|Failed to load Nsight Compute CUDA modules",
        "Nsight Compute does not fit the driver",
        "one of the two is too old for the other",
        "Give the Nsight Compute of the CUDA that `nvidia-smi` shows with --ncu, or update the driver.",
    ),
    _Known(
        r"Profiling is not supported on",
        "Nsight Compute does not know this GPU",
        "it is older than the GPU, or the system (a virtual GPU, WSL) does not pass counters on",
        "Install a newer Nsight Compute and give it with --ncu; `ncu --list-chips` lists what it knows.",
    ),
    _Known(
        r"unrecogni[sz]ed option|the (required )?argument for option .* is (missing|invalid)",
        "Nsight Compute does not know an option",
        "it is too old",
        "Install Nsight Compute 2023.1 or newer and give it with --ncu.",
    ),
    _Known(
        r"nsight-compute-lock|InterprocessLock",
        "Nsight Compute's lock file cannot be opened",
        "another user made it in the folder for temporary files",
        "Set TMPDIR to a folder of your own, and run no second profiler on this GPU.",
    ),
)


def _error(known: _Known) -> QuestprofError:
    return QuestprofError(known.what, known.why, known.fix, Exit.MACHINE)


_NO_KERNELS = re.compile(r"No (kernels|ranges|results) were profiled")
_MISSING_METRIC = re.compile(r"Failed to find metric (?:regex:\^?)?([\w.\\]+)")
_APPLICATION = re.compile(r"application returned an error code \((-?\d+)\)")


def refusal(output: str) -> QuestprofError | None:
    """The error of a run that this machine cannot do, from all that the profiler printed; None without."""
    said = _own_lines(output)
    for known in _KNOWN:
        if re.search(known.pattern, said):
            return _error(known)
    return None


def no_permission() -> QuestprofError:
    """The error of a process that the driver will refuse its counters."""
    return _error(_KNOWN[0])


def _own_lines(output: str) -> str:
    """What the profiler itself printed: the profiled process writes to the same place."""
    return "\n".join(line for line in output.splitlines() if line.startswith("=="))


def missing_metric(output: str) -> str | None:
    """The metric that the chip lacks, where that ended the run."""
    found = _MISSING_METRIC.search(_own_lines(output))
    return found.group(1).replace("\\", "").rstrip(".") if found else None


def no_such_counter(metric: str) -> QuestprofError:
    """The error for a needed counter that the chip does not have."""
    fix = "`ncu --query-metrics` lists what it has; `--source trace` counts without counters."
    return QuestprofError(f"counter {metric}", "this GPU does not have it", fix, Exit.MACHINE)


def nothing_profiled(output: str) -> QuestprofError | None:
    """The error of a run that launched its kernels while the profiler saw none of them; None otherwise."""
    if not _NO_KERNELS.search(_own_lines(output)):
        return None
    return QuestprofError(
        "no kernel was profiled",
        "no launch lay in a range that the filter names; Domain@Name/ is a push/pop range, without the "
        "slash it would be a start/end range, and a range belongs to the thread that pushed it",
        "Check that the package nvtx is installed and not switched off (NVTX_DISABLE), and that this ncu "
        "knows --nvtx-include.",
        Exit.MACHINE,
    )


def application_code(output: str) -> int | None:
    """The exit status of the profiled process, where the profiler told that it was not 0."""
    found = _APPLICATION.search(_own_lines(output))
    return int(found.group(1)) if found else None


def last_error(output: str) -> str:
    """The last line of an error, for what is not known: the profiler's own, or else the last line at all."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    return (errors or lines or ["it printed nothing"])[-1]


def not_found(asked: str | None) -> QuestprofError:
    """The error where there is no ncu, or not where --ncu says."""
    if asked:
        return QuestprofError(
            f"--ncu {asked}", "there is no such program", "Give the path of the ncu program.", Exit.MACHINE
        )
    return QuestprofError(
        "Nsight Compute is not there",
        "no ncu on PATH, in /usr/local/cuda*/bin or /opt/nvidia/nsight-compute",
        "Install it (package nsight-compute of the CUDA repository) or give its path with --ncu; "
        "`--source trace` counts without it.",
        Exit.MACHINE,
    )
