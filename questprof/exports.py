"""A profile for other programs: flat rows (CSV, pandas) and one point's stages as a Chrome trace (Perfetto).

Pure but for `write_text`. Units sit in the names of the columns; a figure that does not exist is None, in
CSV an empty cell. As everywhere, a point whose check failed shows no times.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from questprof.counts import ByteCount, StageCount
from questprof.decode.records import PartTime
from questprof.errors import Exit, QuestprofError
from questprof.files import cannot_write, output_exists, write_whole
from questprof.model import Point, Profile, Record
from questprof.recall.rows import HeadRow, PageRow, recall_records, trace_id
from questprof.rows import Row, Stat, summarise
from questprof.scan import scan_rows, verdict
from questprof.units import count, format_count, parse_count

MEASURED: Final = "measured: clock"
LAID: Final = "laid end to end from median durations: positions are not measured"
SHOWN: Final = 12
"""Points that an error offers, a line each."""
_STATS: Final = ("median", "p10", "p90", "p50", "p95", "p99")
"""p50, p95 and p99 are of single steps; p50 is that of steps timed one by one, which means in a row lack."""
_TIMING: Final = (
    "launches_per_sample",
    "num_buffers",
    "touched_bytes",
    "cache_state",
    "loop_id",
    "stop_reason",
)
_STEPS: Final = ("num_buffers", "touched_bytes", "cache_state", "resolution_us", "empty_us")
_SOURCES: Final = ("formula", "trace", "ncu")


def flat_rows(profile: Profile) -> list[dict[str, Any]]:
    """One row per record and stage, every row with the same columns; a record without a stage keeps a row.

    A recall record has a row per layer and query head instead, in columns that other profiles go without:
    the fields of HeadRow and, once a page size (policy `dense`), what of PageRow is one figure. The parts of
    a whole decode step (kind `amdahl`) follow its own rows.
    Bytes by source: `formula` is modelled, `trace` counted, `ncu` measured, a stage run alone; `floor_bytes`
    are modelled too.
    """
    names = _columns(profile)
    return [
        {name: row.get(name) for name in names}
        for record in profile.records
        for row in _rows(profile, record)
    ]


def _rows(profile: Profile, record: Record) -> Iterator[dict[str, Any]]:
    shared = _shared(profile, record)
    if record.rows and (record.rows.heads or record.rows.pages):
        for row in (*record.rows.pages, *record.rows.heads):
            figures = {name: getattr(row, name) for name in row.__struct_fields__}
            yield {**shared, "stage": "", "trace": trace_id(record), **figures}
        return
    for stage in _stages(record) or ("",):
        yield {**shared, **_of_stage(record, stage)}
    for part in record.decode.parts if record.decode else ():
        yield {**shared, **_of_part(record, part)}


def to_csv(profile: Profile) -> str:
    """`flat_rows` as CSV with a header; empty where a figure does not exist."""
    rows = flat_rows(profile)
    out = io.StringIO()
    writer = csv.DictWriter(out, _columns(profile), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def to_dataframe(profile: Profile) -> Any:
    """`flat_rows` as a pandas DataFrame; QuestprofError without pandas, which questprof does not bring."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise QuestprofError(
            "to_dataframe needs pandas",
            str(error),
            "pip install pandas, or take questprof.exports.flat_rows(profile), a list of dicts.",
            Exit.MACHINE,
        ) from error
    return pandas.DataFrame(flat_rows(profile), columns=_columns(profile))


def _columns(profile: Profile) -> list[str]:
    recall = _RECALL_COLUMNS if recall_records(profile) else ()
    return list(dict.fromkeys([*_POINT_COLUMNS, *_STAGE_COLUMNS, *recall]))


def _stages(record: Record) -> list[str]:
    counted = (one.stage for one in record.counts)
    return list(
        dict.fromkeys([*record.times_us, *record.floor_bytes, *record.bytes, *counted, *record.energy])
    )


def _shared(profile: Profile, record: Record) -> dict[str, Any]:
    """What the stages of a record share."""
    point, environment = record.point, profile.header.environment
    status, reason = verdict(record)
    values = {
        "profile": profile.name,
        "device_name": environment.device_name,
        "env_id": record.env_id,
        "kind": record.kind,
        "point_id": record.point_id,
        "status": status,
        "reason": reason,
        "shape": point.shape.name,
        "num_qo_heads": point.shape.num_qo_heads,
        "num_kv_heads": point.shape.num_kv_heads,
        "head_dim": point.shape.head_dim,
        "kv_dtype": point.shape.kv_dtype,
        "summary_dtype": point.shape.effective_summary_dtype,
        "num_pages": sum(point.num_pages),
        "num_selected": sum(point.num_selected) if point.token_budget or point.token_budgets else None,
        "variant": record.variant or point.variant,
        "union_ratio": record.union_ratio,
        "sign_share": record.sign_share,
        "measured_at": record.measured_at,
    }
    return {name: values[name] if name in values else getattr(point, name) for name in _POINT_COLUMNS}


_POINT_COLUMNS: Final = (
    *("profile", "device_name", "env_id", "kind", "point_id", "status", "reason", "shape", "num_qo_heads"),
    *("num_kv_heads", "head_dim", "kv_dtype", "summary_dtype", "batch_size", "seq_len", "page_size"),
    *("num_pages", "token_budget", "num_selected", "policy", "backend", "variant", "device"),
    *("summary_layout", "data", "page_order", "seed", "union_ratio", "sign_share", "measured_at"),
)
_STAGE_COLUMNS: Final = (
    *("stage", *(f"{name}_us" for name in _STATS), "no_tail", "num_samples", *_TIMING, "floor_bytes"),
    *("single_num_samples", *(f"single_{name}" for name in _STEPS)),
    *(f"{source}_{way}_bytes" for source in _SOURCES for way in ("read", "write")),
    *("energy_joules", "energy_seconds", "energy_launches"),
)
_PER_QUERY: Final = ("query_slack", "needed_quest", "needed_oracle")
"""Fields of PageRow that are no one figure."""
_RECALL_COLUMNS: Final = (
    "trace",
    *HeadRow.__struct_fields__,
    *(name for name in PageRow.__struct_fields__ if name not in _PER_QUERY),
)


def _of_stage(record: Record, stage: str) -> dict[str, Any]:
    values: dict[str, Any] = {"stage": stage, "floor_bytes": record.floor_bytes.get(stage)}
    timing, energy = record.timing.get(stage), record.energy.get(stage)
    single = record.single_steps.get(stage)
    wrong = verdict(record)[0] == "wrong"
    stat = None if wrong else summarise(record.times_us.get(stage, ()), timing, single)
    if stat:
        values |= {f"{name}_us": getattr(stat, name) for name in _STATS}
        values |= {"no_tail": stat.no_tail, "num_samples": stat.num_samples}
    if timing:
        values |= {name: getattr(timing, name) for name in _TIMING}
    if single:
        values |= {f"single_{name}": getattr(single, name) for name in _STEPS}
        values["single_num_samples"] = len(single.samples_us)
    counts: list[tuple[str, ByteCount | StageCount]] = [*record.bytes.get(stage, {}).items()]
    counts += [(c.source, c) for c in record.counts if c.stage == stage and c.mode == "isolated"]
    for source, counted in counts:
        values |= {f"{source}_read_bytes": counted.read, f"{source}_write_bytes": counted.write}
    if energy:
        values |= {f"energy_{name}": getattr(energy, name) for name in ("joules", "seconds", "launches")}
    return {name: values.get(name) for name in _STAGE_COLUMNS}


def _of_part(record: Record, part: PartTime) -> dict[str, Any]:
    """A part of a whole decode step, all its launches in one step together, under its name as stage."""
    stat = None if verdict(record)[0] == "wrong" else summarise(part.samples_us, None)
    stats = {f"{name}_us": getattr(stat, name) for name in _STATS} if stat else {}
    counts = {"num_samples": stat.num_samples, "no_tail": stat.no_tail} if stat else {}
    return {"stage": part.part, "launches_per_sample": part.launches, **stats, **counts}


def _cell(value: Any) -> Any:
    """Text of a profile may not become a formula in a spreadsheet."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def find_row(profile: Profile, wanted: str | None) -> Row:
    """The Quest point that `wanted` names: a point_id or its start, or `LENGTH:BUDGET` as in `32k:2048`.

    None: the only one. QuestprofError, with those there are, when it names none or several.
    """
    rows = scan_rows(profile)
    found = [row for row in rows if wanted is None or _names(wanted, row.point)]
    if len(found) == 1:
        return found[0]
    offered = found or list(rows)
    shown = [f"    {row.point.point_id}  {_describe(row.point)}" for row in offered[:SHOWN]]
    more = [f"    and {len(offered) - SHOWN} more, in the CSV"] if len(offered) > SHOWN else []
    raise QuestprofError(
        f"--point {wanted}" if wanted else "a trace shows one point",
        f"{len(found) or 'none'} of the {count(len(rows), 'Quest point')} of the profile fit",
        "\n".join(["Name one by its id, or as LENGTH:BUDGET:", *shown, *more])
        if shown
        else "Name a profile with Quest points.",
    )


def _names(wanted: str, point: Point) -> bool:
    length, colon, budget = wanted.partition(":")
    if not colon:
        return point.point_id.startswith(wanted)
    return (parse_count(length, "length"), parse_count(budget, "budget")) == (
        point.seq_len,
        point.token_budget,
    )


def _describe(point: Point) -> str:
    sizes = f"{format_count(point.seq_len)}:{format_count(point.token_budget)}"
    words = (point.policy, point.backend, point.summary_layout, point.page_order, point.data)
    return f"{sizes} {point.shape.name} batch {point.batch_size} page {point.page_size} {' '.join(words)}"


def to_trace(row: Row) -> str:
    """Chrome trace events of one point, for Perfetto or chrome://tracing: a track a way of running it.

    Durations are medians in us, each with its spread, its samples and its source. QuestprofError when the
    point has no times.
    """
    stages = [(stage, row.stats[stage]) for stage in ("score", "select", "attend") if stage in row.stats]
    appended = [("append", row.stats["append"])] if "append" in row.stats else []
    tracks = {
        "quest, as one chain": [("quest", row.stats["quest"])] if "quest" in row.stats else [],
        "quest, each stage timed alone": stages,
        **{f"dense, {b.name}": [("dense", b.stat)] for b in row.baselines if b.stat},
        "append of one token": appended,
    }
    shown = {name: bars for name, bars in tracks.items() if bars}
    if not row.quest_us:
        raise QuestprofError(
            f"point {row.point.point_id}",
            f"it has no times ({row.missing['quest_us']})",
            "Name another point.",
        )
    title = f"{_describe(row.point)}: {LAID}"
    events = [_label("process_name", 0, title)]
    for track, (name, bars) in enumerate(shown.items()):
        events += [_label("thread_name", track, name), *_bars(track, bars, row)]
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"positions": LAID}}, indent=1
    )


def _label(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": track, "args": {"name": name}}


def _bars(track: int, bars: Iterable[tuple[str, Stat]], row: Row) -> Iterable[dict[str, Any]]:
    start = 0.0
    for stage, stat in bars:
        yield {
            "ph": "X",
            "name": stage,
            "cat": MEASURED,
            "pid": 0,
            "tid": track,
            "ts": start,
            "dur": stat.median,
            "args": _facts(stage, stat, row),
        }
        start += stat.median


def _facts(stage: str, stat: Stat, row: Row) -> Mapping[str, Any]:
    facts: dict[str, Any] = {
        "source": MEASURED,
        "p10_us": stat.p10,
        "p90_us": stat.p90,
        "samples": stat.num_samples,
    }
    if num_bytes := row.floor_bytes.get(stage):
        facts |= {"bytes, modelled: eq. (12)": num_bytes, "GB/s of them": num_bytes / stat.median / 1e3}
    if row.fastest and stat is row.fastest.stat:
        facts["baseline"] = "the fastest: speed-ups are over it"
    return facts


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write `text` to `path`; QuestprofError when it exists (unless `force`) or cannot be written."""
    if path.exists() and not force:
        raise output_exists(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise cannot_write(path, error) from error
