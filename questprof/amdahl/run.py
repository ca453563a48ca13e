"""Decode steps of a grid into a profile: weights once, caches block by block, each step once measured."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.console import Console

from questprof import ceilings
from questprof.amdahl.memory import is_out_of_memory, shortages
from questprof.amdahl.plan import Block, Request, remarks
from questprof.amdahl.record import How, measured, record, whole_budget_check
from questprof.decode.config import Device, weight_bytes
from questprof.environment import available_bytes, capture, use_threads
from questprof.errors import Exit, QuestprofError
from questprof.model import SCHEMA_VERSION, Ceiling, Environment, Header, Point, Profile, Record, Status
from questprof.store import ProfileWriter
from questprof.sweep import resuming
from questprof.sweep.interrupt import Interrupt
from questprof.sweep.outputs import Outputs
from questprof.timing.nvml import open_gpu
from questprof.units import format_bytes

if TYPE_CHECKING:
    from questprof.decode.weights import ModelWeights


@dataclass
class _Run:
    """A run on its way."""

    request: Request
    environment: Environment
    writer: ProfileWriter
    console: Console
    records: list[Record]
    how: How
    interrupt: Interrupt
    late: Callable[[], bool]
    done: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.done = frozenset(one.point_id for one in self.records)

    def keep(self, new: Record) -> None:
        """Write a record to the disk; KeyboardInterrupt after it where an interrupt was noted."""
        self.writer.append(new)
        self.records.append(new)
        if self.interrupt.asked():
            raise KeyboardInterrupt

    def find(self, point: Point) -> Record | None:
        """The record of a point that is done."""
        return next((one for one in self.records if one.point_id == point.point_id), None)


def run_amdahl(
    blocks: Sequence[Block],
    request: Request,
    outputs: Outputs,
    console: Console,
    late: Callable[[], bool] = lambda: False,
) -> Profile:
    """Measure every block; the profile, which is on disk record by record.

    QuestprofError (status 3) where no block fits into memory, before anything is allocated. An interrupt ends
    the step being measured, whose record is kept, and then raises KeyboardInterrupt. Once `late` says so no
    further weights, caches or steps are begun.
    """
    environment = capture(request.device)
    console.print(_opening(environment), highlight=False)
    for remark in remarks(blocks):
        console.print(f"note: {remark}", highlight=False, soft_wrap=not console.is_terminal)
    short = shortages(blocks, request)
    if outputs.resume:
        resuming.drop_a_start_without_header(outputs.profile)
    with ProfileWriter(outputs.profile, force=outputs.force, resume=outputs.resume) as writer:
        _check_resumed(writer, blocks)
        console.print(f"profile {outputs.profile}", highlight=False)
        header = writer.begin(_header(environment, _ceilings(environment, writer.kept)))
        _release(request.device)
        kept = list(writer.kept.records) if writer.kept else []
        gpu = open_gpu() if request.device == "cuda" else None
        how = How(environment, request.num_steps, console, gpu)
        with Interrupt(_say) as interrupt:
            run = _Run(request, environment, writer, console, kept, how, interrupt, late)
            for _, same in groupby(blocks, key=lambda b: (b.config, b.weight_format, len(b.seq_lens))):
                _run_blocks(list(same), run, short)
    return Profile(header, tuple(run.records), name=outputs.profile.name)


def _run_blocks(blocks: Sequence[Block], run: _Run, short: dict[str, str]) -> None:
    """Blocks that share weights."""
    left = []
    for block in blocks:
        if block.block_id in short:
            for point in block.points:
                if point.point_id not in run.done:
                    run.keep(record(point, run.environment, "oom", short[block.block_id]))
        elif _missing(block, run):
            left.append(block)
    if not left or run.late():
        return
    weights = _load(left, run)
    if weights is None:
        return
    for block in left:
        if run.late():
            break
        run.console.print(block.title, highlight=False)
        try:
            _run_block(block, weights, run)
        except (QuestprofError, RuntimeError, MemoryError) as error:
            _keep_refused([block], run, error)
        _release(run.environment.device)
    del weights
    _release(run.environment.device)


def _load(blocks: Sequence[Block], run: _Run) -> ModelWeights | None:
    """The weights that blocks share; None where memory refused them, which is in the blocks' records then."""
    from questprof.decode.session import load_weights

    config, weight_format = blocks[0].config, blocks[0].weight_format
    size = format_bytes(weight_bytes(config, weight_format, run.environment.device))
    run.console.print(f"{config.name}: {weight_format} weights, {size}", highlight=False)
    try:
        return load_weights(
            config, weight_format, run.environment, len(blocks[0].seq_lens), seed=run.request.seed
        )
    except (QuestprofError, RuntimeError, MemoryError) as error:
        _keep_refused(blocks, run, error)
        return None


def _missing(block: Block, run: _Run) -> bool:
    """Whether a step of the block is still to be measured."""
    dense = [point.point_id in run.done for point in block.dense]
    fastest = _fastest_dense(block, run)
    return not all(dense) or any(point.point_id not in run.done for point in block.quest_with(fastest))


def _keep_refused(blocks: Sequence[Block], run: _Run, error: Exception) -> None:
    """Points that this machine refused while they were made, as records; any other error goes on."""
    status: Status
    if isinstance(error, QuestprofError):
        if error.status != Exit.MACHINE:
            raise error
        status, reason = "unavailable", f"{error.what}: {error.why}"
    elif is_out_of_memory(error):
        free = format_bytes(available_bytes(run.environment.device))
        status, reason = "oom", f"predicted to fit, but {str(error).splitlines()[0]}; {free} are free"
    else:
        raise error
    done = {one.point_id for one in run.records}
    for point in (point for block in blocks for point in block.points):
        if point.point_id not in done:
            run.keep(record(point, run.environment, status, reason))


def _run_block(block: Block, weights: ModelWeights, run: _Run) -> None:
    """Steps over one cache: dense, then Quest with the fastest dense backend in its dense layers."""
    from questprof.decode.session import open_session

    first = block.dense[0]
    session = open_session(
        weights,
        block.seq_lens,
        run.request.num_steps,
        run.environment,
        page_size=run.request.page_size,
        summary_layout=first.summary_layout,
        seed=run.request.seed,
    )
    checks = (whole_budget_check(session, first),)
    for point in block.dense:
        if point.point_id not in run.done and not run.late():
            run.keep(measured(point, session, run.how, ()))
    for point in block.quest_with(_fastest_dense(block, run)):
        if point.point_id not in run.done and not run.late():
            run.keep(measured(point, session, run.how, checks))


def _fastest_dense(block: Block, run: _Run) -> str:
    """The backend of the fastest dense step that was measured; the first one's before any was."""
    medians = {
        point.backend: median(found.times_us["step"])
        for point in block.dense
        if (found := run.find(point)) and found.status == "ok" and found.times_us.get("step")
    }
    return min(medians, key=medians.__getitem__, default=block.dense[0].backend)


def _check_resumed(writer: ProfileWriter, blocks: Sequence[Block]) -> None:
    """QuestprofError when the kept profile holds points that `blocks` do not ask for."""
    if writer.kept is None:
        return
    asked = {_any_dense(point) for block in blocks for point in block.points}
    held = {_any_dense(one.point) for one in writer.kept.records}
    resuming.check_points(writer.kept, writer.path, held <= asked)


def _any_dense(point: Point) -> str:
    """A Quest point's id whichever dense backend was the fastest; a dense point's own."""
    if point.policy == "dense" or point.decode is None:
        return point.point_id
    return replace(point, decode=replace(point.decode, dense_backend="")).point_id


def _header(environment: Environment, measured: tuple[Ceiling, ...]) -> Header:
    return Header(
        schema_version=SCHEMA_VERSION,
        environment=environment,
        command=shlex.join(["questprof", *sys.argv[1:]]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ceilings=measured,
    )


def _ceilings(environment: Environment, kept: Profile | None) -> tuple[Ceiling, ...]:
    """The streaming reads that a GPU's weights are compared with; a CPU's may lie in caches.

    A profile that is gone on with (`kept`) keeps its own: measured again they would be thrown away.
    """
    if environment.device == "cuda":
        return kept.header.ceilings if kept else ceilings.measure_cuda()
    use_threads(environment.num_workers)
    return ()


def _opening(environment: Environment) -> str:
    kind = "CPU figures: " if environment.device == "cpu" else ""
    workers = "threads" if environment.device == "cpu" else "SMs"
    return f"{kind}{environment.device_name}, {environment.num_workers} {workers}"


def _say(text: str) -> None:
    """Write to stderr from a signal handler, past all buffers and locks."""
    os.write(2, f"\n{text}\n".encode())


def _release(device: Device) -> None:
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
