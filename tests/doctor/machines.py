"""Machines that a doctor may meet, as facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from questprof.doctor.facts import CpuFacts, Facts, NcuFacts, NvmlFacts, TorchFacts, WriteFacts
from questprof.doctor.findings import Finding

GIB = 1 << 30
VERSIONS = {"questprof": "0.1.0", "torch": "2.11.0+cu130", "triton": "3.6.0", "numba": "0.62.0"}
CPU_MACHINE = Facts(
    python="3.11.7",
    versions=VERSIONS | {"torch": "2.13.0+cpu"},
    torch=TorchFacts(version="2.13.0+cpu"),
    nvml=NvmlFacts(error="Driver Not Loaded"),
    nvrtc_error="No module named 'cuda'",
    ncu=NcuFacts(error="ncu is not on PATH"),
    cpu=CpuFacts("Some CPU", 8, 16, ("performance",), 32 << 20, 64 * GIB, 0.2),
    writes=(WriteFacts("working folder", "/home/me"), WriteFacts("cache of Triton stages", "/home/me/.t")),
)
GPU_MACHINE = replace(
    CPU_MACHINE,
    versions=VERSIONS | {"cuda-bindings": "13.3", "flashinfer-python": "0.6.3"},
    device_files=True,
    torch=TorchFacts("2.11.0+cu130", "13.0", 1, "NVIDIA H200", (9, 0), 132, 60 << 20, 139 * GIB, 138 * GIB),
    nvml=NvmlFacts(
        driver="580.1", driver_cuda=(13, 0), num_gpus=1, name="NVIDIA H200", memory_bytes=139 * GIB,
        free_bytes=138 * GIB, sm_mhz=345, max_sm_mhz=1980, memory_mhz=3201, max_memory_mhz=3201,
        temperature_c=35, ecc=True, ecc_errors=0, mig=False, processes=0,
    ),
    nvrtc="13.0",
    nvrtc_error="",
    ncu=NcuFacts("/usr/local/cuda/bin/ncu", "2025.3.1", "", False, True),
)  # fmt: skip


def gpu(**changes: Any) -> Facts:
    """The GPU machine; fields of its torch, nvml, ncu, cpu by `torch__num_gpus=0` and the like."""
    return _changed(GPU_MACHINE, changes)


def cpu(**changes: Any) -> Facts:
    """The machine without a GPU, changed in the same way."""
    return _changed(CPU_MACHINE, changes)


def _changed(facts: Facts, changes: dict[str, Any]) -> Facts:
    for name, value in changes.items():
        field, _, inner = name.partition("__")
        new = replace(getattr(facts, field), **{inner: value}) if inner else value
        facts = replace(facts, **{field: new})
    return facts


def named(findings: tuple[Finding, ...], name: str) -> Finding:
    """The one finding of that name."""
    (found,) = [finding for finding in findings if finding.name == name]
    return found
