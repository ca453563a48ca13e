"""Times of parts from a trace: the n-th kernel of a replay belongs to the part that launches the n-th.

Pure but for `record`, which runs torch's profiler (CUPTI) around one call. A traced step is a little longer
than an unprofiled one; parts are taken from it, totals never.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

NO_WORK = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait", "cudaDevice", "cudaStream")
"""How events of the device begin that are waits or calls."""


@dataclass(frozen=True)
class Activity:
    """One kernel, copy or fill on the device, in nanoseconds of one clock."""

    name: str
    start_ns: int
    end_ns: int


@dataclass
class TracedStep:
    """One step, cut into parts. Times are exclusive: a kernel counts from the end of all before it."""

    parts_us: dict[str, float] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    gaps_us: float = 0.0
    """Time in which nothing ran."""
    overlap_us: float = 0.0
    """Time in which a kernel ran before the ones before it had ended."""
    overlapped: dict[str, int] = field(default_factory=dict)
    """Launches of each part that began so early."""
    total_us: float = 0.0


def cut(activities: Sequence[Activity], parts: Sequence[tuple[str, int]]) -> TracedStep:
    """The step's activities in order of their start, cut by `parts`: (name, activities it launches) in order.

    ValueError when their numbers differ: then nothing can be told of who launched what.
    """
    expected = sum(count for _, count in parts)
    if len(activities) != expected:
        raise ValueError(f"{len(activities)} activities were traced, the parts launch {expected}")
    in_order = iter(sorted(activities, key=lambda activity: activity.start_ns))
    step, reached, started = TracedStep(), 0, 0
    for name, count in parts:
        step.launches[name] = step.launches.get(name, 0) + count
        for _ in range(count):
            activity = next(in_order)
            if not reached:
                reached = started = activity.start_ns
            step.gaps_us += max(0, activity.start_ns - reached) / 1e3
            if activity.start_ns < reached:
                step.overlap_us += (min(reached, activity.end_ns) - activity.start_ns) / 1e3
                step.overlapped[name] = step.overlapped.get(name, 0) + 1
            own = max(0, activity.end_ns - max(reached, activity.start_ns)) / 1e3
            step.parts_us[name] = step.parts_us.get(name, 0.0) + own
            reached = max(reached, activity.end_ns)
    step.total_us = (reached - started) / 1e3
    return step


def record(run: Callable[[], None]) -> list[Activity]:
    """The device's activities while `run` ran, by torch's profiler; RuntimeError where it saw none."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of a profiler without a warm-up: what is looked at is no first launch
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
    results = profiler.profiler.kineto_results
    found = [
        Activity(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in results.events()
        if event.device_type().name == "CUDA" and _is_work(event.name())
    ]
    if not found:
        raise RuntimeError("the profiler saw no kernel: CUPTI is not to be had here")
    return sorted(found, key=lambda activity: activity.start_ns)


def _is_work(name: str) -> bool:
    """Whether an event is work of the device, not a wait or an annotation."""
    return not name.startswith(NO_WORK)
