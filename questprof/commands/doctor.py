"""`questprof doctor`: what this machine can do, and how to get the rest."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass

from questprof.commands import options


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: what was looked for, whether it is there, what it says, how to get it."""

    name: str
    found: bool
    detail: str
    fix: str = ""


def doctor(json: options.JSON = False) -> None:
    """Say what this machine can measure, and how to get what is missing."""
    findings = examine()
    if json:
        import msgspec

        print(msgspec.json.encode([asdict(f) for f in findings]).decode())
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        mark = "[green]yes[/]" if finding.found else "[yellow]no[/]"
        said = finding.detail + (f" -> {finding.fix}" if finding.fix else "")
        table.add_row(finding.name, mark, escape(said))  # [gpu] is no markup
    Console().print(table)


def examine() -> list[Finding]:
    """Everything the doctor looks for, in the order of what it allows."""
    from questprof import environment
    from questprof.units import format_bytes

    versions = environment.package_versions()
    cache = environment.cpu_last_level_cache_bytes()
    return [
        Finding("Python", True, f"{sys.version.split()[0]}, questprof {versions['questprof']}"),
        Finding(
            "CPU",
            True,
            f"{environment.cpu_name()}, {environment.usable_cpus()} cores, "
            f"last-level cache {format_bytes(cache) if cache else 'unknown'}, "
            f"{format_bytes(environment.available_bytes('cpu'))} available: sweep and roofline --device cpu",
        ),
        _package("torch", versions, "pip install 'torch>=2.11,<2.14'"),
        _package(
            "triton", versions, "pip install 'triton>=3.6,<3.10' (Linux): interpreter and compile tests"
        ),
        _gpu(),
        _nvrtc(versions),
        _package("flashinfer-python", versions, "pip install 'questprof[baselines]': dense baselines"),
        _ncu(),
    ]


def _package(name: str, versions: dict[str, str], fix: str) -> Finding:
    there = name in versions
    return Finding(name, there, versions.get(name, "not installed"), "" if there else fix)


def _gpu() -> Finding:
    from questprof import environment
    from questprof.units import format_bytes

    try:
        import torch
    except ImportError:
        return Finding("GPU", False, "not looked for: torch is not installed", "install torch first")
    if not torch.cuda.is_available():
        fix = "a driver and a CUDA build of torch give --device cuda; sweeps run on the CPU until then"
        return Finding("GPU", False, "torch sees none", fix)
    env = environment.capture("cuda")
    return Finding(
        "GPU",
        True,
        f"{env.device_name}, {env.num_workers} SMs, L2 {format_bytes(env.last_level_cache_bytes)}, "
        f"{format_bytes(env.memory_bytes)}, driver {env.driver}, CUDA {env.cuda}: sweep and roofline "
        f"--device cuda; {_printed(env.device_name)}",
    )


def _printed(device_name: str) -> str:
    """What stands beside the measured roofs of this GPU."""
    from questprof.roofline.vendor import vendor

    known = vendor(device_name)
    return f"vendor's {known.gb_s:.4g} GB/s beside it" if known else "no vendor figure known: measured only"


def _nvrtc(versions: dict[str, str]) -> Finding:
    """What compiles the CUDA stages; without it Triton ones run in their place."""
    name, fix = "NVRTC", "pip install 'questprof[gpu]': CUDA stages; Triton ones run until then"
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        return Finding(name, False, (str(error).splitlines() or [type(error).__name__])[0], fix)
    bindings = versions.get("cuda-bindings", "of unknown version")
    detail = f"{major}.{minor} through cuda-bindings {bindings}: CUDA stages on a GPU from sm_80 on"
    return Finding(name, True, detail)


def _ncu() -> Finding:
    path = shutil.which("ncu")
    if path:
        return Finding("Nsight Compute", True, path)
    return Finding("Nsight Compute", False, "ncu is not on PATH", "install it to read hardware counters")
