"""What one run of `bytes` counts by which source, from what the machine has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from questprof.bytecheck.grid import Asked, Device, beside_hardware, plan_points
from questprof.counts import Source
from questprof.errors import QuestprofError
from questprof.model import Point

TRACED = "the Triton kernels in the interpreter, every address recorded: counted, no time is measured"


@dataclass(frozen=True)
class How:
    """How points are counted, whatever counts them."""

    kernels: str = ""
    """A stage set MODULE:ATTRIBUTE over the project's stages; '' for the project's own."""
    prefill: bool = False
    gather: bool = False
    """Count the ablation too: `attend` over a gathered copy, as stage `gather` of the same records."""
    proof: bool = False
    ncu: str | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Task:
    """The points that one source counts; they have no variant, as counting tells it."""

    source: Source
    points: tuple[Point, ...]
    how: How
    place: Literal["", "beside", "instead"] = ""
    """beside: of a trace beside hardware counters, whose failure is none of a user's own CUDA kernels;
    instead: only when another source fails."""


@dataclass(frozen=True)
class Plan:
    """The tasks in their order, the device whose environment heads the profile, and what to say before."""

    tasks: tuple[Task, ...]
    device: Device
    notes: tuple[str, ...] = ()
    failures: tuple[QuestprofError, ...] = ()
    """Sources that were wanted and cannot be used here."""


def plan_tasks(asked: Asked, source: str, how: How) -> Plan:
    """The plan of `source`: auto, ncu or trace. QuestprofError for kernels or a grid that cannot be.

    And for `ncu` (status 3) where no hardware counters can be read: who asked for them wants nothing else.
    """
    if how.kernels:
        from questprof.backends.user import countable

        countable(how.kernels)
    trace = Task("trace", plan_points(asked, "cpu"), how)
    if source == "trace" or (source == "auto" and not _has_gpu()):
        return Plan((trace,), "cpu", (f"trace: {TRACED}",))
    if refusal := _refusal(how.ncu):
        if source == "ncu":
            raise refusal
        return Plan((trace,), "cpu", (f"trace: {TRACED}",), (refusal,))
    hardware = Task("ncu", plan_points(asked, "cuda"), how)
    second = Task("trace", beside_hardware(asked), how, "beside" if source == "auto" else "instead")
    notes = ("ncu: the counters of the GPU; no time is measured",)
    return Plan((hardware, second), "cuda", notes + (f"trace: {TRACED}",) * (source == "auto"))


def _has_gpu() -> bool:
    """Whether the system has an NVIDIA device, found without loading anything."""
    from questprof.counters import ncu

    return any(Path(device).exists() for device in ncu.DEVICES)


def _refusal(path: str | None) -> QuestprofError | None:
    """Why hardware counters cannot be read here, as far as that shows before a run."""
    from questprof.counters import ncu
    from questprof.environment import resolve_device

    if refusal := ncu.why_not(path):
        return refusal
    try:
        resolve_device("cuda")
    except QuestprofError as error:
        return error
    return None
