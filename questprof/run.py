"""A whole sweep: environment, ceilings, then block after block into a profile on disk."""

from __future__ import annotations

import os
import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.console import Console

from questprof import ceilings
from questprof.display import SweepDisplay
from questprof.environment import capture, use_threads
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import SCHEMA_VERSION, Ceiling, Environment, Header, Profile, Record
from questprof.store import ProfileWriter, check_writable, output_exists
from questprof.sweep import Machine, refusals, run_block
from questprof.timing import CpuExecutor, CudaExecutor
from questprof.units import format_bytes
from questprof.workload import cache_bytes

Device = Literal["cpu", "cuda"]


BUSY_SHARE = 0.75
"""Of the threads: a load average from there on is worth a warning."""


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


def default_backends(device: Device) -> str:
    """The project's stages and every dense baseline that can run here, so that the fastest is among them."""
    baselines = ["sdpa"]
    if device == "cuda":
        baselines += ["sdpa-cudnn"]
        baselines += ["flashinfer", "flashinfer-tc"] if find_spec("flashinfer") else []
        baselines += ["fa3"] if find_spec("flash_attn_interface") else []
    return ",".join(["questprof", *baselines])


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
    if resume and (output is None or force):
        why = "it needs the profile to go on with" if output is None else "--force would start over"
        raise QuestprofError("--resume", why, "Name the profile with -o, and leave --force out.")
    if output is None:
        name = re.sub(r"[^a-z0-9]+", "-", _short_device_name(device).lower()).strip("-")
        output = Path("reports") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
        html = html or output.with_suffix(".html")
    if html and html.resolve() == output.resolve():
        raise QuestprofError(
            f"{html} twice", "profile and page need a file each", "Give --html another name."
        )
    if output.exists() and not (force or resume):
        raise output_exists(output)
    if html:
        if html.exists() and not (force or resume):
            raise output_exists(html)
        check_writable(html)
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
    if busy := _busy(environment):
        console.print(f"warning: {busy}", highlight=False)
    _refuse_hopeless(blocks, device)
    weights = [_weight(block) for block in blocks]
    with ProfileWriter(outputs.profile, force=outputs.force, resume=outputs.resume) as writer:
        records = _records_to_keep(writer, blocks)
        done = frozenset(record.point_id for record in records)
        console.print(f"profile {outputs.profile}; measuring the streaming-read ceiling", highlight=False)
        measured, machine = _machine(environment, num_samples)
        console.print(_ceiling_line(measured), highlight=False)
        header = writer.begin(_header(environment, measured))
        with SweepDisplay(console, sum(weights)) as display:
            for block, weight in zip(blocks, weights, strict=True):
                display.begin(block.title)
                for record in run_block(block, machine, done):
                    writer.append(record)
                    records.append(record)
                display.advance(weight, Profile(header, tuple(records)))
    return Profile(header, tuple(records), name=outputs.profile.name)


def _refuse_hopeless(blocks: Sequence[Block], device: Device) -> None:
    """QuestprofError when no point of the grid can run anywhere: a usage error, not this machine's fault."""
    refused = [refusals(block, device) for block in blocks]
    if all(len(reasons) == len(block.points) for block, reasons in zip(blocks, refused, strict=True)):
        raise QuestprofError(
            "nothing of this grid can be measured",
            "; ".join(dict.fromkeys(reason for reasons in refused for reason in reasons.values())),
            "Choose another backend, dtype, head_dim or shape; `questprof formula` still answers in bytes.",
        )


def _records_to_keep(writer: ProfileWriter, blocks: Sequence[Block]) -> list[Record]:
    """The records a resumed profile holds; QuestprofError when it is of another grid than `blocks`."""
    if writer.kept is None:
        return []
    asked = {point.point_id for block in blocks for point in block.points}
    if not {record.point_id for record in writer.kept.records} <= asked:
        raise QuestprofError(
            f"cannot resume {writer.path}",
            "it holds points that these options do not ask for",
            f"Repeat its own options and add --resume; it was started by: {writer.kept.header.command}",
        )
    return list(writer.kept.records)


def _header(environment: Environment, measured: tuple[Ceiling, ...]) -> Header:
    return Header(
        schema_version=SCHEMA_VERSION,
        environment=environment,
        command=shlex.join(["questprof", *sys.argv[1:]]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ceilings=measured,
    )


def _machine(environment: Environment, num_samples: int) -> tuple[tuple[Ceiling, ...], Machine]:
    """The ceilings of this run, and the machine that times against them."""
    if environment.device == "cuda":
        measured = ceilings.measure_cuda()
        return measured, Machine(environment, CudaExecutor(environment, num_samples))
    use_threads(environment.num_workers)
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


def _busy(environment: Environment) -> str:
    """What a CPU's load average says of other work, '' when there is little."""
    if environment.device != "cpu" or not hasattr(os, "getloadavg"):
        return ""
    load = os.getloadavg()[0]
    if load < BUSY_SHARE * environment.num_workers:
        return ""
    return (
        f"other work ran in the last minute (load average {load:.1f}, {environment.num_workers} threads); "
        "beside it every figure is too high: repeat on an idle machine"
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
