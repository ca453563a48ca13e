"""From facts to findings: one pure function a line; none of them raises on facts that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from questprof.doctor import gpu_checks
from questprof.doctor.facts import Facts
from questprof.doctor.findings import Diagnosis, Finding
from questprof.doctor.next_step import next_step
from questprof.units import count, format_bytes

TORCH: Final = "pip install 'torch>=2.11,<2.14'"
TRITON: Final = "pip install 'triton>=3.6,<3.10'"
TORCH_RANGE: Final = ((2, 11), (2, 14))
NUMBA: Final = "pip install 'numba>=0.61'"
TRITON_RANGE: Final = ((3, 6), (3, 10))
UNTRIED: Final = "; its import took too long to try it"
BUSY_SHARE: Final = 0.75
"""Of the threads: a load average from there on."""
LEAST_BYTES: Final = 512 << 20
"""Free memory without which no CPU grid fits."""
LITTLE_BYTES: Final = 4 << 30
FAST_GOVERNORS: Final = ("performance",)


def diagnose(facts: Facts) -> Diagnosis:
    """Every finding in the order of what it allows, and the next command to type."""
    findings = tuple(_findings(facts))
    command, reason = next_step(facts, findings)
    return Diagnosis(findings, "cuda" if facts.has_gpu else "cpu", command, reason)


def _findings(facts: Facts) -> Iterator[Finding]:
    checks: tuple[Callable[[Facts], Finding | None], ...] = (
        tool, torch, triton, numba, *gpu_checks.CHECKS, cpu, governor, memory,
    )  # fmt: skip
    for check in checks:
        found = check(facts)
        if found is not None:
            yield found
    yield from writes(facts)
    for text in facts.unanswered:
        yield Finding("not answered", "warning", text, "Run questprof doctor again; figures need none of it.")


def tool(facts: Facts) -> Finding:
    """The tool itself."""
    version = facts.versions.get("questprof", "of unknown version")
    commit = f" ({facts.commit})" if facts.commit else ""
    return Finding("questprof", "ok", f"{version}{commit}, Python {facts.python}, {facts.system}")


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 13) of `2.13.0+cpu`; as far as it holds numbers."""
    found = []
    for word in version.split("+")[0].split(".")[:2]:
        if not word.isdecimal():
            break
        found.append(int(word))
    return tuple(found)


def _outside(version: str, bounds: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    numbers = _numbers(version)
    return len(numbers) == 2 and not bounds[0] <= numbers < bounds[1]


def torch(facts: Facts) -> Finding:
    """Everything that is measured goes through torch."""
    found, installed = facts.torch, facts.versions.get("torch", "")
    if not installed and not (found and found.version):
        return Finding("torch", "fix", "not installed", "Install it.", TORCH, blocks=True)
    if found and found.error:
        why = f"{installed}, but it does not start: {found.error}"
        return Finding("torch", "fix", why, "Install it anew.", f"{TORCH} --force-reinstall", blocks=True)
    version = found.version if found else installed
    if _outside(version, TORCH_RANGE):
        why = f"{version} is not among the tested versions, 2.11 to 2.13"
        return Finding("torch", "warning", why, "Take a tested one.", TORCH)
    if found is None:
        return Finding("torch", "warning", f"{version}; its import took too long to ask it for a GPU")
    build = f"built for CUDA {found.cuda}" if found.cuda else "CPU build"
    return Finding("torch", "ok", f"{version}, {build}")


def triton(facts: Facts) -> Finding:
    """Triton stages on a GPU; without one the interpreter, which counts addresses."""
    version = facts.versions.get("triton", "")
    if not version:
        if facts.system != "Linux":
            return Finding("triton", "ok", f"not made for {facts.system}: no address trace, all else runs")
        what = "no stage runs on the GPU" if facts.has_gpu else "bytes cannot be counted by address trace"
        return Finding(
            "triton", "fix" if facts.has_gpu else "warning", f"not installed: {what}", "Install it.", TRITON,
            blocks=facts.has_gpu,
        )  # fmt: skip
    if facts.triton_error:
        return _broken("triton", version, facts.triton_error, TRITON, blocks=facts.has_gpu)
    if _outside(version, TRITON_RANGE):
        why = f"{version} is not among the tested versions, 3.6 to 3.9"
        return Finding("triton", "warning", why, "Take a tested one.", TRITON)
    return Finding("triton", "ok", version + (UNTRIED if facts.triton_error is None else ""))


def _broken(package: str, version: str, error: str, command: str, *, blocks: bool) -> Finding:
    """An installed package that cannot be imported."""
    why = f"{version}, but it does not start: {error}"
    fix = f"Install it anew; look too for a {package}.py of your own that hides it."
    return Finding(
        package, "fix" if blocks else "warning", why, fix, f"{command} --force-reinstall", blocks=blocks
    )


def numba(facts: Facts) -> Finding:
    """What compiles the CPU stages."""
    version = facts.versions.get("numba", "")
    blocks = not facts.has_gpu
    if version and facts.numba_error:
        return _broken("numba", version, facts.numba_error, NUMBA, blocks=blocks)
    if version:
        untried = UNTRIED if facts.numba_error is None else ""
        return Finding("numba", "ok", f"{version}: stages on the CPU{untried}")
    return Finding(
        "numba", "fix" if blocks else "warning", "not installed: no stage runs on the CPU", "Install it.",
        NUMBA, blocks=blocks,
    )  # fmt: skip


def cpu(facts: Facts) -> Finding:
    """Threads, and whether other work takes them."""
    one = facts.cpu
    cache = f"last-level cache {format_bytes(one.cache_bytes)}" if one.cache_bytes else "its cache is unknown"
    told = count(one.threads, "thread")
    if one.all_threads and one.all_threads != one.threads:
        told = f"{one.threads} of {count(one.all_threads, 'thread')}"
    detail = f"{one.name or 'unknown'}, {told}, {cache}"
    if one.load is not None and one.load >= BUSY_SHARE * one.threads:
        fix = "Measure when it is idle: beside other work every figure is too high."
        return Finding("CPU", "warning", f"{detail}; busy, load average {one.load:.1f}", fix)
    return Finding("CPU", "ok", detail)


def governor(facts: Facts) -> Finding | None:
    """Whether the cores may run at their highest clock; no line where the system does not tell."""
    names = facts.cpu.governors
    if not names:
        return None
    if set(names) <= set(FAST_GOVERNORS) or facts.has_gpu:
        return Finding("CPU governor", "ok", ", ".join(names))
    fix = "Let the cores keep their clock while you measure."
    return Finding(
        "CPU governor", "warning", f"{', '.join(names)}: clocks follow the load", fix,
        "sudo cpupower frequency-set -g performance",
    )  # fmt: skip


def memory(facts: Facts) -> Finding:
    """Free memory beside the CPU."""
    free = facts.cpu.free_bytes
    if free is None:
        return Finding("memory", "warning", "free memory is not known")
    if free < LEAST_BYTES:
        blocks = not facts.has_gpu
        why = f"{format_bytes(free)} free: no grid fits"
        return Finding(
            "memory", "fix", why, "End other programs, or raise the container's limit.", blocks=blocks
        )
    if free < LITTLE_BYTES:
        fix = "Long contexts and whole models will not fit; their points say so."
        return Finding("memory", "warning", f"{format_bytes(free)} free", fix)
    return Finding("memory", "ok", f"{format_bytes(free)} free")


def writes(facts: Facts) -> Iterator[Finding]:
    """Folders that cannot be written to; one line where all can."""
    bad = [one for one in facts.writes if one.error]
    for one in bad:
        home = one.what == "working folder"
        fix = "Point XDG_CACHE_HOME and TRITON_CACHE_DIR at a folder of yours; now every run compiles anew."
        if home:
            fix = "Change to a folder of yours, or name outputs elsewhere with -o."
        yield Finding(
            "write access", "fix" if home else "warning", f"{one.what} {one.path}: {one.error}", fix
        )
    if facts.writes and not bad:
        names = ", ".join(one.what for one in facts.writes)
        yield Finding("write access", "ok", f"{count(len(facts.writes), 'folder')}: {names}")
