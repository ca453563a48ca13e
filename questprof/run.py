"""A whole sweep: environment, ceilings, then block after block into a profile on disk."""

from __future__ import annotations

import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rich.console import Console

from questprof import ceilings
from questprof.display import SweepDisplay
from questprof.environment import capture
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import SCHEMA_VERSION, Ceiling, Environment, Header, Profile, Record
from questprof.store import ProfileWriter, output_exists
from questprof.sweep import Machine, run_block
from questprof.timing import CpuExecutor, CudaExecutor
from questprof.units import format_bytes
from questprof.workload import cache_bytes

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Defaults:
    """The grid without options: what answers the question on a device in a few minutes."""

    dtype: str
    lengths: str
    budgets: str
    samples: int


DEFAULTS: dict[Device, Defaults] = {
    "cpu": Defaults("fp32", "2k..32k", "1024,2048", 15),
    "cuda": Defaults("fp16", "2k..128k", "1024,2048,4096", 30),
}


@dataclass(frozen=True)
class Outputs:
    """Where the profile and the page go, and whether a profile there may be replaced or gone on with."""

    profile: Path
    page: Path | None
    force: bool
    resume: bool


def plan_outputs(
    output: Path | None, html: Path | None, device: Device, *, force: bool, resume: bool
) -> Outputs:
    """`reports/<device>-<date>-<time>.jsonl` and `.html` unless named; never an existing file unasked."""
    if resume and output is None:
        raise QuestprofError("--resume", "it needs the profile to go on with", "Name it with -o.")
    if output is None:
        name = re.sub(r"[^a-z0-9]+", "-", _short_device_name(device).lower()).strip("-")
        output = Path("reports") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
        html = html or output.with_suffix(".html")
    for path in (output, html):
        if path and path.exists() and not (force or resume):
            raise output_exists(path)
    return Outputs(output, html, force, resume)


def _short_device_name(device: Device) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name(0)


def run_sweep(
    blocks: Sequence[Block], device: Device, outputs: Outputs, num_samples: int, console: Console
) -> Profile:
    """Measure every block and return the profile, which is on disk record by record."""
    environment = capture(device)
    console.print(_opening(environment), highlight=False)
    with console.status("measuring the streaming-read ceiling"):
        measured, machine = _machine(environment, num_samples)
    console.print(_ceiling_line(measured), highlight=False)
    header = Header(
        schema_version=SCHEMA_VERSION,
        environment=environment,
        command=shlex.join(["questprof", *sys.argv[1:]]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ceilings=measured,
    )
    weights = [_weight(block) for block in blocks]
    with (
        ProfileWriter(outputs.profile, header, force=outputs.force, resume=outputs.resume) as writer,
        SweepDisplay(console, sum(weights)) as display,
    ):
        records: list[Record] = list(writer.existing)
        done = frozenset(record.point_id for record in records if record.kind == "sweep")
        for block, weight in zip(blocks, weights, strict=True):
            display.begin(block.title)
            for record in run_block(block, machine, done):
                writer.append(record)
                records.append(record)
            display.advance(weight, Profile(writer.header, tuple(records)))
    return Profile(writer.header, tuple(records))


def _machine(environment: Environment, num_samples: int) -> tuple[tuple[Ceiling, ...], Machine]:
    """The ceilings of this run, and the machine that times against them."""
    if environment.device == "cuda":
        measured = ceilings.measure_cuda()
        return measured, Machine(environment, CudaExecutor(environment, num_samples))
    measured, reader = ceilings.measure_cpu(environment)
    return measured, Machine(environment, CpuExecutor(environment, reader, num_samples))


def _opening(environment: Environment) -> str:
    kind = "CPU figures: " if environment.device == "cpu" else ""
    cache = environment.last_level_cache_bytes
    return (
        f"{kind}{environment.device_name}, {environment.num_workers} "
        f"{'threads' if environment.device == 'cpu' else 'SMs'}, "
        f"last-level cache {format_bytes(cache) if cache else 'unknown'}"
    )


def _ceiling_line(measured: Sequence[Ceiling]) -> str:
    """The ceiling every floor is worked out from, before anything is measured against it."""
    medians = [(statistics.median(ceiling.samples_gb_s), ceiling) for ceiling in measured]
    if not medians:
        return "no streaming-read ceiling: no buffer fits"
    best, ceiling = max(medians, key=lambda pair: pair[0])
    return f"largest streaming read {best:.4g} GB/s ({ceiling.name}, {format_bytes(ceiling.num_bytes)})"


def _weight(block: Block) -> float:
    """About how long a block takes: filling and timing grow with the cache, the rest is constant."""
    return 64e6 + cache_bytes(block.points[0]) * len(block.points)
