"""The length scan: one row per Quest record of a profile, beside the fastest dense baseline at its point.

Pure: a profile in, rows out. Times are medians of the raw samples in microseconds. A figure that does not
exist is None and `Row.missing` says why; a figure that no memory could deliver is kept, named in
`Row.alarms` and compared with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from questprof.grid import NORMAL_DATA
from questprof.model import Ceiling, Point, Profile, Record, Status
from questprof.rows import ALL, Baseline, Row, Series, Stat, describe_check, over_tolerance, summarise
from questprof.structs import canonical_json
from questprof.units import format_count

QUEST_POLICIES: Final = ("quest", "quest-open")
EXTRA_STAGES: Final = ("select_cold", "append_cold", "append_kv_cold", "append_prefill", "append_kv_prefill")
"""Stages in the states that are timed only when asked for; a Row has them in `stats` alone."""
_FIELD_STAGES: Final = ("score", "select", "attend", "quest", "append", "append_kv")
QUEST_STAGES: Final = (*_FIELD_STAGES, *EXTRA_STAGES)
ALARM_FACTOR: Final = 1.02
"""Bytes over time above this many times the measured read ceiling did not come from memory."""
TIMED: Final = ("ok", "unstable")
"""Statuses whose times are shown; an unstable point is shown and kept out of every verdict."""
_COMMON: Final = ("batch_size", "page_size", "policy", "data", "seq_len", "token_budget")


def best_ceiling(ceilings: Iterable[Ceiling]) -> float | None:
    """The largest median streaming read of `ceilings`, GB/s (1e9 bytes a second); None without any."""
    return max((stat.median for c in ceilings if (stat := summarise(c.samples_gb_s))), default=None)


def point_key(point: Point, **neutral: Any) -> bytes:
    """Canonical JSON of `point` with the fields of `neutral` replaced: equal keys differ in those alone."""
    return canonical_json(replace(point, **neutral))


def scan_rows(profile: Profile) -> tuple[Row, ...]:
    """One Row per sweep record of policy `quest` or `quest-open`, whatever its status, in profile order.

    Of a joined profile the rows of each of its runs: a ratio and a floor never are of two runs.

    Dense records are matched on what a dense pass depends on: not on policy, budget, queries, backend or
    summary; those timed beside the point, in the block of its summary layout, go before others. Of several
    records of one baseline the last counts. The ceiling is the largest streaming read of the run: of the
    header, and of the records' calibration.
    """
    return tuple(row for run in profile.runs for row in _run_rows(run))


def _run_rows(profile: Profile) -> tuple[Row, ...]:
    dense: dict[tuple[str, bytes], dict[str, Record]] = {}
    for record in profile.records:
        if record.kind == "sweep" and record.point.policy == "dense":
            dense.setdefault(_dense_key(record), {})[_name(record.point)] = record
    calibration = (c for record in profile.records for c in record.calibration)
    ceiling = best_ceiling([*profile.header.ceilings, *calibration])
    return tuple(
        _row(record, dense.get(_dense_key(record)) or dense.get(_dense_key(record, "paired"), {}), ceiling)
        for record in profile.records
        if record.kind == "sweep" and record.point.policy in QUEST_POLICIES
    )


def series(rows: Sequence[Row]) -> tuple[Series, ...]:
    """`rows` grouped by shape, batch, page size, policy, budget, data and every other field but the length.

    Series are sorted by those, rows by length; of two rows of one length the last counts. Budgets that equal
    their only length make one series with budget ALL: Quest that picks every page.
    """
    groups: dict[bytes, dict[int, Row]] = {}
    for row in rows:
        groups.setdefault(point_key(row.point, seq_len=0), {})[row.seq_len] = row
    whole: dict[bytes, dict[int, Row]] = {}
    for key, group in tuple(groups.items()):
        (row, *others) = group.values()
        if not others and row.token_budget == row.seq_len and not row.point.seq_lens:
            whole.setdefault(setting_key(row.point), {})[row.seq_len] = groups.pop(key)[row.seq_len]
    found = [_series(group) for group in groups.values()]
    found += [_series(group, ALL if len(group) > 1 else None) for group in whole.values()]
    order = ("shape", "batch_size", "page_size", "policy", "summary_layout", "data", "token_budget")
    return tuple(sorted(found, key=lambda s: [getattr(s, name) for name in order]))


def setting_key(point: Point) -> bytes:
    """What points that differ in length and budget alone share."""
    return point_key(point, seq_len=0, token_budget=0)


def _series(group: Mapping[int, Row], budget: int | None = None) -> Series:
    rows = tuple(group[length] for length in sorted(group))
    row = rows[0]
    return Series(
        row.shape,
        row.batch_size,
        row.page_size,
        row.policy,
        row.token_budget if budget is None else budget,
        row.data,
        row.point.summary_layout,
        rows,
    )


def _name(point: Point) -> str:
    return f"{point.backend} ({point.variant})" if point.variant else point.backend


def _dense_key(record: Record, layout: str = "") -> tuple[str, bytes]:
    """What dense records at the point have in common, of one environment."""
    return record.env_id, dense_key(record.point, layout)


def dense_key(point: Point, layout: str = "") -> bytes:
    """What dense points at `point` have in common; `layout` replaces the point's own."""
    neutral = {"policy": "dense", "policy_params": {}, "token_budget": 0, "token_budgets": ()}
    neutral |= {"backend": "", "variant": "", "summary_layout": layout or point.summary_layout}
    neutral |= {"data": "independent" if point.data in NORMAL_DATA else point.data}
    shape = replace(point.shape, summary_dtype="")
    return point_key(point, shape=shape, **neutral)


def verdict(record: Record) -> tuple[Status, str]:
    """Status and reason; a failed check overrules `ok` and `unstable`: no figure without a passed check."""
    failed = [check for check in record.checks if not check.holds]
    if failed and record.status in TIMED:
        return "wrong", describe_check(max(failed, key=over_tolerance))
    return record.status, record.reason


def _stats(record: Record, status: Status, stages: Sequence[str]) -> dict[str, Stat]:
    if status not in TIMED:
        return {}
    found = (
        (s, summarise(record.times_us.get(s, ()), record.timing.get(s), record.single_steps.get(s)))
        for s in stages
    )
    return {stage: stat for stage, stat in found if stat}


def _append_kv(record: Record, dense: Mapping[str, Record]) -> dict[str, Stat]:
    """The append without a summary, as the dense record of the same kernels timed it."""
    own = dense.get(_name(record.point))
    stages = [stage for stage in QUEST_STAGES if stage.startswith("append_kv")]
    return _stats(own, verdict(own)[0], stages) if own else {}


def _alarm(stage: str, record: Record, num_bytes: int, us: float, ceiling: float | None) -> str:
    """What is wrong with `num_bytes` in `us`; '' when memory can deliver it."""
    gb_s = num_bytes / us / 1e3
    if not ceiling or gb_s <= ALARM_FACTOR * ceiling:
        return ""
    point, timing = record.point, record.timing.get(stage)
    what = f"dense ({_name(point)})" if stage == "dense" else f"{stage}, budget {point.token_budget},"
    cause = "cache hits, a missing synchronize or a ceiling measured too low"
    if timing and timing.cache_state != "cold":
        cause = f"its samples are labelled {timing.cache_state}: it read a cache, not memory"
    return (
        f"{what} at {format_count(point.seq_len)}: {gb_s:.4g} GB/s is above {ALARM_FACTOR} x the measured "
        f"read ceiling of {ceiling:.4g} GB/s ({cause}); it is compared with nothing and not drawn."
    )


def _baseline(name: str, record: Record, num_bytes: int, ceiling: float | None) -> Baseline:
    status, reason = verdict(record)
    stat = _stats(record, status, ["dense"]).get("dense")
    if stat:
        alarm = _alarm("dense", record, num_bytes, stat.median, ceiling)
        read_gb_s = best_ceiling(record.calibration)
        x_read = _ratio(stat.median, num_bytes / read_gb_s / 1e3 if read_gb_s else None)
        return Baseline(
            name, status, reason, stat, alarm, record.variant, x_read, _cache_state(record, "dense")
        )
    if status in TIMED:
        status, reason = "unavailable", "no valid sample"
    return Baseline(name, status, reason, None, variant=record.variant)


def _row(record: Record, dense: Mapping[str, Record], ceiling: float | None) -> Row:
    records = (record, *dense.values())
    num_bytes = {stage: n for r in reversed(records) for stage, n in r.floor_bytes.items() if n}
    baselines = tuple(_baseline(n, r, num_bytes.get("dense", 0), ceiling) for n, r in dense.items())
    status, reason = verdict(record)
    stats = _append_kv(record, dense) | _stats(record, status, QUEST_STAGES)
    alarms = {
        stage: text
        for stage, stat in stats.items()
        if (text := _alarm(stage, record, num_bytes.get(stage, 0), stat.median, ceiling))
    }
    return Row(
        point=record.point,
        shape=record.point.shape.name,
        **{name: getattr(record.point, name) for name in _COMMON},
        status=status,
        reason=reason,
        checks=record.checks,
        baselines=baselines,
        pool_bytes=record.pool_bytes,
        stats=stats,
        ceiling_gb_s=ceiling,
        floor_bytes=num_bytes,
        alarms=(*(b.alarm for b in baselines if b.alarm), *alarms.values()),
        impossible=tuple(alarms),
        **_figures(record, stats, baselines, num_bytes, ceiling, bool(alarms.get("quest"))),
    )


def _figures(
    record: Record,
    stats: Mapping[str, Stat],
    baselines: Sequence[Baseline],
    num_bytes: Mapping[str, int],
    ceiling: float | None,
    impossible: bool,
) -> dict[str, Any]:
    """The figures of a Row that follow from two others, and why the missing ones are missing."""
    floor_us = {stage: n / ceiling / 1e3 for stage, n in num_bytes.items()} if ceiling else {}
    timed = [(b.stat.median, b) for b in baselines if b.stat]
    dense_us, fastest = min(timed, key=lambda pair: pair[0], default=(None, None))
    quest_us = stats["quest"].median if "quest" in stats else None
    possible = not impossible and not (fastest and fastest.alarm)
    values = {f"{stage}_us": stats[stage].median if stage in stats else None for stage in _FIELD_STAGES} | {
        "dense_us": dense_us,
        "dense_x_floor": _ratio(dense_us, floor_us.get("dense")),
        "dense_x_read": fastest.x_read if fastest else None,
        "quest_x_floor": _ratio(quest_us, floor_us.get("quest")),
        "speed_up": _ratio(dense_us, quest_us) if possible else None,
        "bytes_ratio": _ratio(num_bytes.get("quest"), num_bytes.get("dense")),
        "most_speed_up": _ratio(num_bytes.get("dense"), num_bytes.get("quest")),
        "union_ratio": record.union_ratio,
    }
    why = _reasons(verdict(record), values, baselines, ceiling)
    missing = {name: why[name] for name, value in values.items() if value is None}
    states = {"dense": fastest.cache_state if fastest else "", "quest": _cache_state(record, "quest")}
    states = {stage: state for stage, state in states.items() if state}
    return {
        "floor_us": floor_us,
        "fastest": fastest,
        "missing": missing,
        "cache_states": states,
        **values,
    }


def _cache_state(record: Record, stage: str) -> str:
    return record.timing[stage].cache_state if stage in record.timing else ""


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _reasons(
    verdict: tuple[Status, str],
    values: Mapping[str, float | None],
    baselines: Sequence[Baseline],
    ceiling: float | None,
) -> dict[str, str]:
    """Why each of a Row's figures would be missing."""
    quest = "not timed" if verdict[0] in TIMED else ": ".join(filter(None, verdict))
    refused = "; ".join(": ".join(filter(None, (f"{b.name} {b.status}", b.reason))) for b in baselines)
    dense = f"no valid dense baseline ({refused})" if refused else "no dense baseline at this point"
    floor = "its bytes were not predicted" if ceiling else "no read ceiling was measured"
    no_dense, no_quest = values["dense_us"] is None, values["quest_us"] is None
    return dict.fromkeys((f"{stage}_us" for stage in _FIELD_STAGES), quest) | {
        "dense_us": dense,
        "dense_x_floor": dense if no_dense else floor,
        "quest_x_floor": quest if no_quest else floor,
        "speed_up": quest if no_quest else dense if no_dense else "faster than memory can be, see alarms",
        "dense_x_read": dense if no_dense else "no streaming read was timed in its loop",
        "bytes_ratio": "its bytes were not predicted",
        "most_speed_up": "its bytes were not predicted",
        "union_ratio": "not recorded",
    }
