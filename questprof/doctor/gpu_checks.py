"""Findings about the GPU, its driver and its counters. Pure; without a GPU one line stands for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from questprof.doctor.facts import Facts, NvmlFacts
from questprof.doctor.findings import Finding
from questprof.errors import IN_CHECKOUT, install
from questprof.units import count, format_bytes

LEAST_CAPABILITY: Final = (8, 0)
"""From where on the CUDA stages run."""
HOT_C: Final = 85
LITTLE_BYTES: Final = 8 << 30
CUDA_TORCH: Final = "pip install --force-reinstall 'torch>=2.11,<2.14'"
HARD_REASONS: Final = ("application clocks setting", "sync boost", "display clock setting")
"""Reasons that stand while the GPU idles too; of the others only a run shows whether they bite."""


def gpu(facts: Facts) -> Finding:
    """Whether torch sees a GPU, and which."""
    found, nvml = facts.torch, facts.nvml
    if found and found.num_gpus:
        sms = f"{found.num_sms} SMs, " if found.num_sms else ""
        more = f"; the first of {found.num_gpus} is measured" if found.num_gpus > 1 else ""
        arch = f"sm_{found.capability[0]}{found.capability[1]}, " if found.capability else ""
        detail = f"{found.device_name}, {arch}{sms}{format_bytes(found.memory_bytes)}{more}"
        if found.capability and found.capability < LEAST_CAPABILITY:
            return Finding("GPU", "warning", f"{detail}: older than sm_80, so that Triton stages run alone")
        return Finding("GPU", "ok", detail)
    if facts.has_gpu and nvml:
        return Finding("GPU", "ok", f"{nvml.name} (by the driver; torch was not asked)")
    if found is None:
        seen = "a device file is here" if facts.device_files else "no driver and no device file shows one"
        fix = "Run questprof doctor again, on an idle machine."
        return Finding("GPU", "warning", f"not known: torch did not answer in time; {seen}", fix)
    if not facts.is_gpu_machine:
        fix = "Sweeps run on the CPU, and say so; for GPU figures run on a machine with an NVIDIA GPU."
        return Finding("GPU", "warning", "none here: figures will be those of the CPU", fix)
    name = nvml.name if nvml and nvml.name else "an NVIDIA GPU"
    if found and not found.cuda and not found.error:
        why = f"{name} is here, but this torch is a CPU build and does not see it"
        return Finding("GPU", "fix", why, "Install a CUDA build of torch (see pytorch.org).", CUDA_TORCH)
    return Finding("GPU", "fix", f"{name} is here, but torch does not see it", _driver_fix(facts))


def _driver_fix(facts: Facts) -> str:
    """What most likely keeps torch from the GPU."""
    nvml, found = facts.nvml, facts.torch
    if nvml and nvml.error:
        return f"Load the NVIDIA driver; in a container add --gpus all ({nvml.error})."
    if nvml and nvml.driver_cuda and found and _too_new(found.cuda, nvml.driver_cuda):
        return f"Update the driver: it runs CUDA up to {_dotted(nvml.driver_cuda)}, torch wants {found.cuda}."
    return "Look at CUDA_VISIBLE_DEVICES and at nvidia-smi."


def _too_new(cuda: str, driver_cuda: tuple[int, int]) -> bool:
    """Whether torch's CUDA is of a later major version than the driver runs."""
    major = cuda.split(".")[0]
    return major.isdecimal() and int(major) > driver_cuda[0]


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def driver(facts: Facts) -> Finding | None:
    """The driver and NVML, which tells clocks, energy and company."""
    nvml = facts.nvml
    if not facts.is_gpu_machine:
        return None
    if nvml is None or nvml.error:
        why = nvml.error if nvml else "no answer"
        fix = "Without it no clocks, energy or other processes are recorded; see nvidia-smi."
        return Finding("NVML", "warning", why, fix)
    cuda = f", CUDA up to {_dotted(nvml.driver_cuda)}" if nvml.driver_cuda else ""
    return Finding("driver", "ok", f"{nvml.driver or 'of unknown version'}{cuda}; NVML answers")


def l2(facts: Facts) -> Finding | None:
    """The L2 cache: what cold means."""
    if not (facts.torch and facts.torch.num_gpus):
        return None
    if facts.torch.l2_bytes:
        return Finding("L2 cache", "ok", format_bytes(facts.torch.l2_bytes))
    return Finding("L2 cache", "warning", "its size is not known: nothing will be called cold")


def _answering(facts: Facts) -> NvmlFacts | None:
    """NVML's facts where it answers for a GPU that is used."""
    return facts.nvml if facts.has_gpu and facts.nvml and not facts.nvml.error else None


def clocks(facts: Facts) -> Finding | None:
    """Clocks now and at most, and what holds them down."""
    nvml = _answering(facts)
    if nvml is None:
        return None
    said = [
        f"{name} {now if now is not None else '?'} of {most if most is not None else '?'} MHz"
        for name, now, most in (
            ("SM", nvml.sm_mhz, nvml.max_sm_mhz), ("memory", nvml.memory_mhz, nvml.max_memory_mhz)
        )
        if now is not None or most is not None
    ]  # fmt: skip
    hot = nvml.temperature_c is not None and nvml.temperature_c >= HOT_C
    said += [f"{nvml.temperature_c} C"] if nvml.temperature_c is not None else []
    detail = ", ".join(said) or "not told"
    held = [reason for reason in nvml.reasons if reason in HARD_REASONS or "slowdown" in reason]
    if held or hot:
        why = f"{detail}; held down by: {', '.join(held)}" if held else f"{detail}: hot"
        fix = "Compare only runs under the same limits; see nvidia-smi -q -d CLOCK,PERFORMANCE."
        return Finding("clocks", "warning", why, fix)
    return Finding("clocks", "ok", f"{detail} (idle)" if said else detail)


def ecc(facts: Facts) -> Finding | None:
    """Error correction, and errors that it could not correct."""
    nvml = _answering(facts)
    if nvml is None:
        return None
    if nvml.ecc_errors:
        fix = "Reset or replace the GPU; see nvidia-smi -q -d ECC."
        return Finding("ECC", "warning", f"{count(nvml.ecc_errors, 'uncorrected error')} since start", fix)
    state = {True: "on", False: "off", None: "not told by this GPU"}[nvml.ecc]
    return Finding("ECC", "ok", state)


def mig(facts: Facts) -> Finding | None:
    """Whether the GPU is cut into instances."""
    nvml = _answering(facts)
    if nvml is None:
        return None
    if nvml.mig:
        why = "on: figures are of one instance, whose neighbours share the memory"
        return Finding("MIG", "warning", why, "Take a whole GPU for figures that hold for one.")
    return Finding("MIG", "ok", "off" if nvml.mig is False else "not known to this GPU")


def company(facts: Facts) -> Finding | None:
    """Free memory of the GPU, and who else is on it."""
    found, nvml = facts.torch, _answering(facts)
    free = found.free_bytes if found and found.num_gpus else nvml.free_bytes if nvml else None
    if not facts.has_gpu or free is None:
        return None
    others = nvml.processes if nvml and nvml.processes is not None else 0
    detail = f"{format_bytes(free)} free"
    if others:
        fix = "Measure when nvidia-smi shows none: beside other work every figure is too high."
        on_it = count(others, "process", "processes")
        return Finding("GPU memory", "warning", f"{detail}, {on_it} on it", fix)
    if free < LITTLE_BYTES:
        return Finding("GPU memory", "warning", detail, "Long contexts and whole models will not fit.")
    return Finding("GPU memory", "ok", detail)


def nvrtc(facts: Facts) -> Finding | None:
    """What compiles the CUDA stages; Triton ones run in their place."""
    if not facts.is_gpu_machine:
        return None
    if facts.nvrtc:
        bindings = facts.versions.get("cuda-bindings", "of unknown version")
        return Finding("NVRTC", "ok", f"{facts.nvrtc} through cuda-bindings {bindings}: CUDA stages")
    why = f"{facts.nvrtc_error or 'not found'}: the slower Triton stages run instead of CUDA ones"
    return Finding("NVRTC", "warning", why, f"Install the extra, {IN_CHECKOUT}.", install("gpu"))


def ncu(facts: Facts) -> Finding | None:
    """Nsight Compute, which reads hardware counters."""
    if not facts.is_gpu_machine:
        return None
    one = facts.ncu
    if one.error:
        why = f"{f'{one.path} does not run' if one.path else 'not found'} ({one.error})"
        fix = (
            "Install Nsight Compute (it comes with the CUDA toolkit), or give its path with --ncu; until "
            "then bytes are counted by address trace."
        )
        return Finding("Nsight Compute", "warning", why, fix)
    return Finding("Nsight Compute", "ok", f"{one.version}, {one.path}")


def counters(facts: Facts) -> Finding | None:
    """Whether the driver lets this process read counters."""
    if not facts.is_gpu_machine:
        return None
    one = facts.ncu
    if one.admin_only is None:
        return Finding("counters", "ok", "the driver does not say who may read them; the first count tells")
    if one.admin_only and not one.is_admin:
        fix = (
            "Run as root or with CAP_SYS_ADMIN, or set NVreg_RestrictProfilingToAdminUsers=0 for the driver; "
            "until then bytes are counted by address trace."
        )
        return Finding("counters", "warning", "for administrators alone (RmProfilingAdminOnly: 1)", fix)
    who = "this process is one of the administrators" if one.admin_only else "for everybody"
    return Finding("counters", "ok", f"{who} (RmProfilingAdminOnly: {int(one.admin_only)})")


def flashinfer(facts: Facts) -> Finding | None:
    """The dense baseline that servers use."""
    if not facts.has_gpu:
        return None
    version = facts.versions.get("flashinfer-python", "")
    if version:
        return Finding("FlashInfer", "ok", version)
    why = "not installed: Quest is compared with the other dense baselines alone"
    return Finding("FlashInfer", "warning", why, f"Install it, {IN_CHECKOUT}.", install("baselines"))


CHECKS: Final[tuple[Callable[[Facts], Finding | None], ...]] = (
    gpu, driver, l2, company, clocks, ecc, mig, nvrtc, ncu, counters, flashinfer,
)  # fmt: skip
