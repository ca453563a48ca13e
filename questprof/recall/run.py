"""A recall run: the trace opened, the stages chosen, the records in a profile on disk."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from questprof import backends
from questprof.environment import capture, use_threads
from questprof.errors import QuestprofError
from questprof.files import check_writable
from questprof.model import SCHEMA_VERSION, Header, Point, Profile, Shape
from questprof.recall import engine
from questprof.recall.cases import Asked, resolve, sampled_layers
from questprof.recall.rows import Span, TraceInfo, recall_records
from questprof.recall.source import KeyQueryTrace, TraceHeader, check_header
from questprof.store import ProfileWriter, differences, read_profile
from questprof.structs import Struct, short_hash
from questprof.sweep.merge import merge_profiles

if TYPE_CHECKING:
    from questprof.sweep.outputs import Outputs

Device = Literal["cpu", "cuda"]


def open_trace(path: Path) -> KeyQueryTrace:
    """The captured trace at `path`; QuestprofError for what is none."""
    from questprof.capture.captured import Captured

    return Captured.open(path)


def run_recall(
    traces: Mapping[str, KeyQueryTrace],
    asked: Asked,
    device: Device,
    outputs: Outputs,
    progress: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Evaluate `traces`, by what they are called, and write their records; the profile, which is on disk.

    They are written after the last layer. QuestprofError for a trace, a choice or an output that cannot be.
    """
    planned = [_plan(trace, source, asked, device) for source, trace in traces.items()]
    _check_distinct([info for _, info, _ in planned])
    check_writable(outputs.profile)
    environment = capture(device)
    header = Header(
        schema_version=SCHEMA_VERSION,
        environment=environment,
        command=shlex.join(["questprof", *sys.argv[1:]]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if device == "cpu":
        use_threads(environment.num_workers)
    records = tuple(
        record
        for trace, info, path in planned
        for record in engine.run(trace, info, asked, path, environment.env_id, progress)
    )
    with ProfileWriter(outputs.profile, force=outputs.force) as writer:
        writer.begin(header)
        writer.extend(records)
    return Profile(header, records, name=outputs.profile.name)


def _plan(
    trace: KeyQueryTrace, source: str, asked: Asked, device: Device
) -> tuple[KeyQueryTrace, TraceInfo, engine.Path]:
    check_header(trace.header)
    path, why_not = choose_path(trace.header, asked.page_sizes, device)
    return trace, describe(trace, source, asked, path, why_not), path


def _check_distinct(infos: Sequence[TraceInfo]) -> None:
    """QuestprofError for one trace under two names: its records could not be told apart."""
    by_id: dict[str, str] = {}
    for info in infos:
        if info.trace_id in by_id:
            raise QuestprofError(
                f"{by_id[info.trace_id]} and {info.source}", "they are one trace", "Name each trace once."
            )
        by_id[info.trace_id] = info.source


def read_stored(paths: Sequence[Path]) -> Profile:
    """Recall profiles written before, as one; QuestprofError for others, and for runs that do not join."""
    profiles = [read_profile(path) for path in paths]
    for path, profile in zip(paths, profiles, strict=True):
        _check_rows(path, profile)
    for (path, one), (later, other) in combinations(zip(paths, profiles, strict=True), 2):
        _check_joins(path, one, later, other)
    return merge_profiles(profiles)[0]


def _check_rows(path: Path, profile: Profile) -> None:
    """QuestprofError for a profile without a recall record of any policy, with the cause that applies."""
    if any(record.point.policy != "dense" for record in recall_records(profile)):
        return
    if profile.warnings or recall_records(profile):
        why, fix = "it is cut short: no policy's record is whole", "Restore the file, or evaluate again."
    else:
        why, fix = "there are no recall rows in it", "Name profiles of `questprof recall`."
    raise QuestprofError(str(path), why, fix)


def _check_joins(path: Path, one: Profile, later: Path, other: Profile) -> None:
    """QuestprofError for two profiles that cannot be shown as one, with the cause that applies."""
    ours, theirs = one.header.environment, other.header.environment
    if {record.key for record in one.records} & {record.key for record in other.records}:
        why = "they evaluate the same trace: its records could not be told apart"
        raise QuestprofError(f"{path} and {later}", why, "Name profiles of different traces.")
    if ours.env_id != theirs.env_id:
        why = f"they are of different environments ({differences(ours, theirs)})"
        fix = "Name profiles that one version of `questprof recall` wrote on one machine."
        raise QuestprofError(f"{path} and {later}", why, fix)


def choose_path(header: TraceHeader, page_sizes: tuple[int, ...], device: Device) -> tuple[engine.Path, str]:
    """The stages that run every page size of this shape on `device`, or none; and why none, in words."""
    backend = backends.load("questprof", device)
    for page_size in page_sizes:
        why_not = backend.why_not(_point(header, page_size, device))
        if why_not:
            return engine.Path(None, device), why_not
    return engine.Path(backend, device, backends.load("gather", device)), ""


def _point(header: TraceHeader, page_size: int, device: Device) -> Point:
    shape = Shape(
        name=header.model,
        num_qo_heads=header.num_qo_heads,
        num_kv_heads=header.num_kv_heads,
        head_dim=header.head_dim,
        kv_dtype="fp32",
    )
    return Point(shape=shape, seq_len=header.num_tokens, page_size=page_size, device=device)


def describe(trace: KeyQueryTrace, source: str, asked: Asked, path: engine.Path, why_not: str) -> TraceInfo:
    """What the records say of the trace and of how it was evaluated."""
    header, scope = trace.header, resolve(asked, trace.header)
    return TraceInfo(
        trace_id=_trace_id(header),
        source=source,
        synthetic=getattr(trace, "synthetic", False),
        model=header.model,
        num_tokens=header.num_tokens,
        query_positions=tuple(header.query_positions),
        top_tokens=asked.top_tokens,
        softmax_scale=header.softmax_scale,
        model_sha256=getattr(header, "model_sha256", ""),
        text_sha256=getattr(header, "text_sha256", ""),
        text=getattr(header, "text", ""),
        num_generated=len(getattr(header, "generated", ())),
        generation=getattr(header, "generation", ""),
        segments=tuple(Span(*span) for span in header.segments),
        evidence=tuple(Span(*span) for span in header.evidence),
        layers=scope.layers,
        heads=scope.heads,
        path=path.backend.variant(_point(header, asked.page_sizes[0], path.device))
        if path.backend
        else "float64",
        why_float64=why_not,
        attended_layers=sampled_layers(asked.compare, scope.layers) if path.backend else (),
    )


def _trace_id(header: TraceHeader) -> str:
    """Of a captured header its hash, which covers every tensor's; of a made-up one that of its fields."""
    if isinstance(header, Struct):
        return short_hash(header)
    return hashlib.sha256(repr(header).encode()).hexdigest()[:16]
