"""A whole sweep: environment, ceilings, then block after block into a profile on disk."""

from __future__ import annotations

import math
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec

from rich.console import Console

from questprof import ceilings
from questprof.environment import capture, use_threads
from questprof.errors import Exit, QuestprofError
from questprof.grid import Block
from questprof.model import SCHEMA_VERSION, Ceiling, Environment, Header, Point, Profile, Record, Shape
from questprof.roofs import Roofs
from questprof.store import ProfileWriter, other_environment, read_profile
from questprof.sweep import resuming
from questprof.sweep.block import Machine, load_all, refusals, run_block
from questprof.sweep.display import SweepDisplay
from questprof.sweep.estimate import cost, weight
from questprof.sweep.interrupt import Interrupt
from questprof.sweep.outputs import Outputs as Outputs
from questprof.sweep.outputs import plan_outputs as plan_outputs
from questprof.sweep.pacing import Late, Pacer, Spent, num_ends, priority, shortfall
from questprof.sweep.settings import Device, Settings
from questprof.timing.cpu import CpuExecutor
from questprof.timing.cuda import CudaExecutor
from questprof.timing.nvml import open_gpu
from questprof.timing.phases import Phases
from questprof.units import format_bytes

BUSY_SHARE = 0.75
"""Of the threads: a load average from there on is worth a warning."""
CEILING_TIME = 0.25
"""Share of a bounded time that the streaming-read ceiling of a CPU may take."""
CEILING_SHARE = 0.05
"""Difference between a resumed profile's ceiling and today's from which on it is worth a warning."""


@dataclass(frozen=True)
class Defaults:
    """The grid without options: what answers the question on a device in a few minutes."""

    dtype: str
    lengths: str
    budgets: str


DEFAULTS: dict[Device, Defaults] = {
    "cpu": Defaults("fp32", "2k..32k", "1024,2048"),
    "cuda": Defaults("fp16", "2k..128k", "1024,2048,4096"),
}


def default_backends(device: Device) -> str:
    """The project's stages and every dense baseline that can run here, so that the fastest is among them."""
    baselines = ["sdpa"]
    if device == "cuda":
        baselines += ["sdpa-cudnn"]
        baselines += ["flashinfer", "flashinfer-tc"] if find_spec("flashinfer") else []
        baselines += ["fa3"] if find_spec("flash_attn_interface") else []
    return ",".join(["questprof", *baselines])


@dataclass
class _Progress:
    """A run on its way: what was measured, what was left out for want of time."""

    header: Header
    records: list[Record]
    left_out: list[Late] = field(default_factory=list)

    @property
    def profile(self) -> Profile:
        return Profile(self.header, tuple(self.records))


def run_sweep(
    blocks: Sequence[Block],
    outputs: Outputs,
    settings: Settings,
    console: Console,
    survey: Callable[[Environment], tuple[Roofs, tuple[Ceiling, ...]]] | None = None,
) -> Profile:
    """Measure every block and return the profile, which is on disk block by block.

    `survey` measures more of the device, for the header, and gives the streaming reads among it. An interrupt
    ends the block being measured, whose records are kept, and then raises KeyboardInterrupt.
    """
    started = time.perf_counter()
    environment = capture(settings.device)
    console.print(_opening(environment), highlight=False)
    if busy := _busy(environment):
        console.print(f"warning: {busy}", highlight=False)
    refuse_hopeless(blocks, settings.device)
    if outputs.resume:
        for line in _prepare_resume(outputs, blocks, environment):
            console.print(line, highlight=False, soft_wrap=True)
        if finished := _finished(outputs, blocks):
            console.print(f"{outputs.profile} holds every point: nothing is measured", highlight=False)
            return finished
    phases = Phases()
    with ProfileWriter(outputs.profile, force=outputs.force, resume=outputs.resume) as writer:
        console.print(f"profile {outputs.profile}; measuring the streaming-read ceiling", highlight=False)
        with phases("ceiling"):
            measured, machine = _machine(environment, settings, phases)
        with phases("roofs"):
            roofs, reads = survey(environment) if survey else (None, ())
        measured = (*measured, *reads)
        header = writer.begin(_header(environment, measured, roofs))
        for line in _ceiling_lines(header.ceilings, measured, settings):
            console.print(line, highlight=False)
        progress = _Progress(header, list(writer.kept.records) if writer.kept else [])
        with phases("other"):
            _run_blocks(blocks, machine, settings, writer, progress, console, started)
    spent = _spent(settings, phases, time.perf_counter() - started)
    for line in shortfall(progress.left_out, spent, bool(progress.records), settings.time_share):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"time: {phases.describe()}", highlight=False)
    return Profile(header, tuple(progress.records), name=outputs.profile.name)


def _run_blocks(
    blocks: Sequence[Block],
    machine: Machine,
    settings: Settings,
    writer: ProfileWriter,
    progress: _Progress,
    console: Console,
    started: float,
) -> None:
    """Measure the blocks that are not done and fit, each into the profile as a whole."""
    done = frozenset(record.point_id for record in progress.records)
    with Interrupt(_say_at_once) as interrupt, SweepDisplay(console, sum(map(weight, blocks))) as display:
        machine.executor.interrupted = interrupt.asked
        for block in _in_time(blocks, machine.environment, settings, progress, done, started):
            display.begin(block.title)
            missing = [point for point in block.points if point.point_id not in done]
            if 0 < len(missing) < len(block.points):
                console.print(_PARTLY.format(len(missing), len(block.points)), highlight=False)
            records = list(run_block(block, machine, done))
            writer.extend(records)
            progress.records += records
            display.advance(weight(block), progress.profile)
            if interrupt.asked():
                raise KeyboardInterrupt


_PARTLY = (
    "missing in the profile: {} of its {} points, timed in a loop of their own now, so that what they are "
    "compared with was timed in another (--retry times whole blocks again)"
)


def _in_time(
    blocks: Sequence[Block],
    environment: Environment,
    settings: Settings,
    progress: _Progress,
    done: frozenset[str],
    started: float,
) -> Iterator[Block]:
    """The blocks one after another; with a bound in time those that fit, in the order that tells most."""
    if settings.time_s is None:
        yield from blocks
        return
    seconds = [cost(block, environment, settings).seconds for block in blocks]
    pacer = Pacer(seconds, settings.time_s, started)
    order = priority(blocks)
    ends = set(order[: num_ends(blocks)])
    for index in order:
        block = blocks[index]
        begun = time.perf_counter()
        if all(point.point_id in done for point in block.points):
            continue
        more = max(0.0, settings.ends_s - settings.time_s) if index in ends else 0.0
        if pacer.fits(index, begun - more):
            yield block
            pacer.took(index, time.perf_counter() - begun)
        else:
            progress.left_out.append(Late(block.title, pacer.needs(index), pacer.left(begun)))


def _spent(settings: Settings, phases: Phases, seconds: float) -> Spent:
    """What the run took, and where its bound in time has cut the ceiling short how much of it that was."""
    ceiling = phases.seconds["ceiling"]
    limit = math.inf if settings.device == "cuda" else _ceiling_limit(settings)
    return Spent(seconds, ceiling, CEILING_TIME) if ceiling > limit else Spent(seconds)


def _ceiling_limit(settings: Settings) -> float:
    """Seconds after which the ceiling of a CPU begins no further read."""
    return math.inf if settings.time_s is None else CEILING_TIME * settings.time_s


def _say_at_once(text: str) -> None:
    """Write to stderr from a signal handler, past all buffers and locks."""
    os.write(2, f"\n{text}\n".encode())


def refuse_hopeless(blocks: Sequence[Block], device: Device) -> None:
    """QuestprofError when no point of the grid can run here.

    It is this machine's fault (status 3) where a backend refuses even the most ordinary point, otherwise one
    of usage: the point could run nowhere.
    """
    points = [point for block in blocks for point in block.points]
    backends = load_all(points, device)
    refused = refusals(Block(tuple(points)), backends)
    if len(refused) < len({point.point_id for point in points}):
        return
    reasons = "; ".join(dict.fromkeys(refused.values()))
    ordinary = Point(Shape("ordinary", 32, 32, 128), 1024, token_budget=256, device=device)
    idle = [name for name, backend in backends.items() if backend.why_not(ordinary)]
    if {point.backend for point in points} <= set(idle):
        usable = [name for name in default_backends(device).split(",") if name not in idle]
        fix = f"Here run --backends {','.join(usable)}; `questprof doctor` says how to get the rest."
        raise QuestprofError("nothing of this grid can be measured here", reasons, fix, Exit.MACHINE)
    fix = "Choose another backend, dtype, head_dim or shape; `questprof formula` still answers in bytes."
    raise QuestprofError("nothing of this grid can be measured", reasons, fix)


def _prepare_resume(outputs: Outputs, blocks: Sequence[Block], environment: Environment) -> list[str]:
    """Check that the profile may be gone on with, and leave out of it what is to be measured again."""
    path = outputs.profile
    resuming.drop_a_start_without_header(path)
    if not path.exists():
        return []
    kept = read_profile(path, skip_corrupt=outputs.skip_corrupt)
    resuming.check_grid(kept, path, blocks)
    resuming.check_options(kept, _command())
    if kept.header.environment.env_id != environment.env_id:
        raise other_environment(path, kept.header.environment, environment)
    return resuming.prepare(path, blocks, skip_corrupt=outputs.skip_corrupt, retry=outputs.retry)


def _finished(outputs: Outputs, blocks: Sequence[Block]) -> Profile | None:
    """The profile that is gone on with where it holds every point of `blocks`; None otherwise."""
    if not outputs.profile.exists():
        return None
    kept = read_profile(outputs.profile)
    done = {record.point_id for record in kept.records}
    return kept if all(point.point_id in done for block in blocks for point in block.points) else None


def _command() -> str:
    return shlex.join(["questprof", *sys.argv[1:]])


def _header(environment: Environment, measured: tuple[Ceiling, ...], roofs: Roofs | None) -> Header:
    return Header(
        schema_version=SCHEMA_VERSION,
        environment=environment,
        command=_command(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ceilings=measured,
        roofs=roofs,
    )


def _machine(
    environment: Environment, settings: Settings, phases: Phases
) -> tuple[tuple[Ceiling, ...], Machine]:
    """The ceilings of this run, and the machine that times against them."""
    if environment.device == "cuda":
        measured = ceilings.measure_cuda()
        gpu = open_gpu()
        executor = CudaExecutor(
            environment,
            settings.rule,
            gpu=gpu,
            energy_seconds=settings.energy_seconds,
            single_steps=settings.single_steps,
            phases=phases,
        )
        return measured, Machine(environment, executor, phases)
    use_threads(environment.num_workers)
    measured, reader = ceilings.measure_cpu(environment, _ceiling_limit(settings))
    return measured, Machine(environment, CpuExecutor(environment, reader, settings.rule), phases)


def _opening(environment: Environment) -> str:
    kind = "CPU figures: " if environment.device == "cpu" else ""
    cache = environment.last_level_cache_bytes
    return (
        f"{kind}{environment.device_name}, {environment.num_workers} "
        f"{'thread' if environment.device == 'cpu' else 'SM'}{'s' * (environment.num_workers != 1)}, "
        f"last-level cache {format_bytes(cache) if cache else 'unknown: nothing will be called cold'}"
    )


def _busy(environment: Environment) -> str:
    """What a CPU's load average says of other work, '' when there is little."""
    if environment.device != "cpu" or not hasattr(os, "getloadavg"):
        return ""
    load = os.getloadavg()[0]
    if load < BUSY_SHARE * environment.num_workers:
        return ""
    return (
        f"other work ran in the last minute (load average {load:.1f}, threads: {environment.num_workers}); "
        "beside it every figure is too high: repeat on an idle machine"
    )


def _ceiling_lines(
    counted: Sequence[Ceiling], measured: Sequence[Ceiling], settings: Settings
) -> Iterator[str]:
    """The ceiling every floor is worked out from, before anything is measured against it.

    `counted` are those of the profile, which on resume are not those `measured` now.
    """
    best, now = _best(counted), _best(measured)
    if best is None:
        yield "no streaming-read ceiling: no buffer fits"
    else:
        rate, ceiling = best
        yield f"largest streaming read {rate:.4g} GB/s ({ceiling.name}, {format_bytes(ceiling.num_bytes)})"
        if now and abs(now[0] / rate - 1) > CEILING_SHARE:
            yield (
                f"warning: that is the profile's own; now this machine reads {now[0]:.4g} GB/s, so that the "
                "points to come may not compare with those there"
            )
    yield settings.rule.describe()


def _best(measured: Sequence[Ceiling]) -> tuple[float, Ceiling] | None:
    medians = [(statistics.median(ceiling.samples_gb_s), ceiling) for ceiling in measured]
    return max(medians, key=lambda pair: pair[0], default=None)
