"""A whole count of bytes: each task's points through its source, record by record into a profile on disk."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.console import Console

from questprof.bytecheck.grid import Device
from questprof.bytecheck.record import record_of
from questprof.bytecheck.tasks import Plan, Task
from questprof.counters import Counted
from questprof.counts import Source, StageCount, UnmappedProof
from questprof.environment import capture
from questprof.errors import Exit, QuestprofError
from questprof.model import SCHEMA_VERSION, Environment, Header, Point, Profile, Record
from questprof.store import ProfileWriter
from questprof.sweep.resuming import check_options, check_points
from questprof.units import format_count

if TYPE_CHECKING:
    from questprof.sweep.outputs import Outputs

GATHER_STAGES = "questprof.backends.gather:triton"
"""The ablation as a stage set, for the interpreter."""
SOURCE_DEVICE: dict[Source, Device] = {"trace": "cpu", "ncu": "cuda"}


@dataclass
class Outcome:
    """What a run came to; `failures` are sources that were wanted and cannot be used here."""

    profile: Profile
    failures: list[QuestprofError] = field(default_factory=list)
    interrupted: bool = False


def run_bytes(plan: Plan, outputs: Outputs, console: Console) -> Outcome:
    """Count every task; each record is on the disk as soon as it is known, whatever ends the run.

    A source that cannot be used ends its task alone. QuestprofError for outputs that cannot be written.
    """
    with ProfileWriter(outputs.profile, force=outputs.force, resume=outputs.resume) as writer:
        records = _kept(writer, plan)
        header = writer.begin(_header(capture(plan.device)))
        failures, interrupted = list(plan.failures), False
        try:
            for task in plan.tasks:
                if task.place == "instead" and not failures:
                    continue
                try:
                    for record in _records(task, records, console):
                        writer.append(record)
                        records.append(record)
                except QuestprofError as error:
                    failures.append(error)
        except KeyboardInterrupt:
            interrupted = True
    ordered = tuple(_in_order(records, plan))
    return Outcome(Profile(header, ordered, name=outputs.profile.name), failures, interrupted)


def _kept(writer: ProfileWriter, plan: Plan) -> list[Record]:
    """The records of a resumed profile; QuestprofError when it is of other options or points than `plan`."""
    if writer.kept is None:
        return []
    check_options(writer.kept, shlex.join(["questprof", *sys.argv[1:]]))
    asked = {_bare(point) for task in plan.tasks for point in task.points}
    held = {_bare(record.point) for record in writer.kept.records if record.kind == "bytes"}
    check_points(writer.kept, writer.path, held <= asked)
    return list(writer.kept.records)


def _bare(point: Point) -> str:
    """The id of a point whatever implementation counted it."""
    return replace(point, variant="").point_id


def _in_order(records: Iterable[Record], plan: Plan) -> list[Record]:
    """`records` as their points were planned, others last; sources answer in an order of their own."""
    planned = [point.point_id for task in plan.tasks for point in task.points]
    place = {point_id: number for number, point_id in enumerate(planned)}
    return sorted(records, key=lambda r: place.get(_bare(r.point), len(place)))


def exit_status(outcome: Outcome, judged: Exit | None) -> Exit:
    """130 interrupted; 1 a check failed; 3 a source could not be used, or nothing was counted; else `judged`.

    `judged` None: no check was asked for. Where a trace saw a stage move data past it, 0 becomes 4.
    """
    records = outcome.profile.records
    if outcome.interrupted:
        return Exit.INTERRUPTED
    if judged is Exit.CHECK_FAILED:
        return judged
    if outcome.failures or not any(record.counts for record in records):
        return Exit.MACHINE
    if judged is Exit.OK and any(record.status == "unstable" for record in records):
        return Exit.INCONCLUSIVE
    return judged or Exit.OK


def proof_points(points: Iterable[Point]) -> tuple[Point, ...]:
    """One point a shape and page size: the one with the smallest share of its pages selected."""
    found: dict[tuple[str, int], Point] = {}
    for point in points:
        key = (point.shape.name, point.page_size)
        if key not in found or _selected_share(point) < _selected_share(found[key]):
            found[key] = point
    return tuple(found.values())


def _selected_share(point: Point) -> float:
    return sum(point.num_selected) / max(1, sum(point.num_pages))


def _header(environment: Environment) -> Header:
    return Header(
        schema_version=SCHEMA_VERSION,
        environment=environment,
        command=shlex.join(["questprof", *sys.argv[1:]]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _records(task: Task, done: Sequence[Record], console: Console) -> Iterator[Record]:
    """The records of the task's points that are not in `done`, as they are counted."""
    environment = capture(SOURCE_DEVICE[task.source])
    held = {_bare(record.point) for record in done if record.kind == "bytes"}
    points = {point.point_id: point for point in task.points if point.point_id not in held}
    if not points:
        return
    asked = tuple(points.values())
    gathered = _gathered(task, asked, console) if task.how.gather else {}
    proofs = _proofs(task, asked, console) if task.how.proof and task.source == "ncu" else {}
    for number, counted in enumerate(_counted(task, asked, task.how.kernels), start=1):
        point_id = counted.point_id
        proved = replace(counted, proof=proofs.get(point_id, counted.proof))
        yield record_of(
            points[point_id],
            _without_failure(proved) if task.place == "beside" and task.how.kernels else proved,
            environment,
            _num_workers(task.source, environment),
            _planned_variant(task, points[point_id]),
            prefill=task.how.prefill,
            gather=gathered.get(point_id),
        )
        _progress(console, task.source, number, len(points), counted.reason)
    if gathered and task.source == "ncu":
        from questprof.bytecheck.times import gather_times, gpu_machine

        console.print("timing attention in place and over the copy", highlight=False)
        yield from gather_times(asked, gpu_machine(environment))


def _without_failure(counted: Counted) -> Counted:
    """Of a user's stages that hardware counts too, what the interpreter cannot run is no fault."""
    return replace(counted, counts=(), status="unavailable") if counted.status == "failed" else counted


def _progress(console: Console, source: Source, number: int, total: int, reason: str) -> None:
    """A line for each point that gives a reason and for one in ten others; in a terminal one line for all."""
    text = f"{source} {number}/{total}" + (f": {reason}" if reason else "")
    if console.is_terminal:
        console.print(text, end="\n" if reason or number == total else "\r", highlight=False)
    elif reason or number == total or number % 10 == 0:
        console.print(text, highlight=False)


def _counted(
    task: Task, points: Sequence[Point], kernels: str, *, ablation: bool = False
) -> Iterator[Counted]:
    """What the task's source says of `points`, in its own order; of the ablation only `attend` matters."""
    how, prefill = task.how, task.how.prefill and not ablation
    if task.source == "trace":
        from questprof.counters import trace

        yield from trace.stream(points, kernels=kernels, timeout_s=how.timeout_s, prefill=prefill)
    else:
        from questprof.counters import ncu

        yield from ncu.count(
            points,
            ncu=how.ncu,
            kernels=kernels,
            timeout_s=how.timeout_s,
            pipelined=not ablation,
            prefill=prefill,
            more_metrics=not ablation,
        )


def _gathered(task: Task, points: Sequence[Point], console: Console) -> dict[str, StageCount]:
    """What the ablation's `attend` moves at each point, by point id, as stage `gather`."""
    console.print(f"{task.source}: attention over a gathered copy, {len(points)} points", highlight=False)
    if task.source == "trace":
        companions, kernels = list(points), GATHER_STAGES
    else:
        companions, kernels = [replace(point, backend="gather") for point in points], ""
    asked = {c.point_id: p.point_id for c, p in zip(companions, points, strict=True)}
    found = {}
    for counted in _counted(task, companions, kernels, ablation=True):
        for count in counted.counts:
            if count.stage == "attend" and count.mode == "isolated":
                found[asked[counted.point_id]] = replace(count, stage="gather")
        if counted.reason:
            console.print(f"gather: {counted.reason}", highlight=False)
    return found


def _proofs(task: Task, points: Sequence[Point], console: Console) -> dict[str, UnmappedProof]:
    """`attend` of one KV head over pools without their unselected pages, by point id.

    Where all pages are selected nothing is proved or refuted.
    """
    from questprof.counters import unmapped

    found = {}
    for point in proof_points(points):
        proof = unmapped.prove(point, kernels=task.how.kernels)
        where = f"{point.shape.name} page {point.page_size} length {format_count(point.seq_len)}"
        said = proof.reason or f"one KV head completed with {proof.unselected_pages} pages unmapped"
        console.print(f"proof by unmapped pages, {where}: {said}", highlight=False)
        if proof.unmapped_bytes or "nothing to unmap" not in proof.reason:
            found[point.point_id] = proof
    return found


def _num_workers(source: Source, environment: Environment) -> int:
    """What the kernels that `source` counts were planned for."""
    if source == "ncu":
        return environment.num_workers
    from questprof.counters import trace

    return trace.NUM_WORKERS


def _planned_variant(task: Task, point: Point) -> str:
    """The implementation whose splits the ledger plans for a user's stages: the project's own beside them."""
    if task.source == "trace" or not task.how.kernels:
        return "triton"
    from questprof.backends import load

    return load("questprof", "cuda").variant(point)
