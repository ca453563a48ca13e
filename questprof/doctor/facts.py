"""What a look at a machine gave, before anybody judges it. Tests write it, `probes.py` gathers it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TorchFacts:
    """What torch says in a process of its own; `error` where it does not start."""

    version: str = ""
    cuda: str = ""
    """The CUDA it was built for; '' of a CPU build."""
    num_gpus: int = 0
    device_name: str = ""
    capability: tuple[int, int] | None = None
    num_sms: int = 0
    l2_bytes: int = 0
    memory_bytes: int = 0
    free_bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class NvmlFacts:
    """What the driver says through NVML of its first GPU; None is not told."""

    driver: str = ""
    driver_cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs."""
    num_gpus: int = 0
    name: str = ""
    memory_bytes: int | None = None
    free_bytes: int | None = None
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    memory_mhz: int | None = None
    max_memory_mhz: int | None = None
    reasons: tuple[str, ...] = ()
    """Why the clocks are held down now, idleness left out."""
    temperature_c: int | None = None
    ecc: bool | None = None
    ecc_errors: int | None = None
    """Uncorrected since the driver was loaded."""
    mig: bool | None = None
    processes: int | None = None
    """Compute processes on the GPU."""
    error: str = ""


@dataclass(frozen=True)
class NcuFacts:
    """Nsight Compute and who may read counters."""

    path: str = ""
    version: str = ""
    error: str = ""
    """Why it was not found or does not run."""
    admin_only: bool | None = None
    """The driver's RmProfilingAdminOnly; None where it is not told."""
    is_admin: bool = False


@dataclass(frozen=True)
class CpuFacts:
    """The processor and the memory beside it."""

    name: str = ""
    threads: int = 1
    """Those that this process may use."""
    all_threads: int | None = None
    governors: tuple[str, ...] = ()
    """Frequency governors of the cores, each once; empty where the system does not tell."""
    cache_bytes: int = 0
    free_bytes: int | None = None
    load: float | None = None
    """Load average of the last minute."""


@dataclass(frozen=True)
class WriteFacts:
    """One folder that is written to; `error` why it cannot be."""

    what: str
    path: str
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """Everything that was looked for; what did not answer is in `unanswered`."""

    python: str = ""
    system: str = "Linux"
    versions: dict[str, str] = field(default_factory=dict)
    """Installed packages, questprof among them."""
    commit: str = ""
    device_files: bool = False
    """Whether the system has device files of an NVIDIA GPU."""
    torch: TorchFacts | None = None
    numba_error: str | None = ""
    """Why an import of numba fails; '' where it works, None where it did not end in time."""
    triton_error: str | None = ""
    nvml: NvmlFacts | None = None
    nvrtc: str = ""
    nvrtc_error: str = ""
    ncu: NcuFacts = NcuFacts()
    cpu: CpuFacts = CpuFacts()
    writes: tuple[WriteFacts, ...] = ()
    unanswered: tuple[str, ...] = ()
    """Probes that failed or took too long, with the reason."""

    @property
    def has_gpu(self) -> bool:
        """Whether the main job finds a GPU: torch sees one, or did not answer in time and the driver does."""
        if self.torch is None:
            return self.nvml is not None and self.nvml.num_gpus > 0
        return self.torch.num_gpus > 0

    @property
    def is_gpu_machine(self) -> bool:
        """Whether there is an NVIDIA GPU at all, seen by torch or not."""
        return self.has_gpu or self.device_files or bool(self.nvml and self.nvml.num_gpus)
