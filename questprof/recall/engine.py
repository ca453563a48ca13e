"""A whole evaluation: layer by layer and page size by page size, into one record a case.

One layer of the trace is held at a time, with the arrays of one page size; of the layers before only rows
stay, and which pages any head picked in the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from questprof.model import Point, Record, Shape, Status
from questprof.recall import tables
from questprof.recall.agreement import Agreement, failures
from questprof.recall.cases import Asked, Case, resolve, sampled_layers
from questprof.recall.layer import Evaluated, evaluate
from questprof.recall.rows import HeadRow, LayerRow, PageRow, PairRow, QueryRow, RecallRows, TraceInfo
from questprof.recall.setting import Arrays, Setting, narrowed
from questprof.recall.source import KeyQueryTrace, checked_layer
from questprof.recall.view import Bools

if TYPE_CHECKING:
    from questprof.backends import Backend

BOUND_POLICIES = ("quest", "quest-open")
"""Of which the first asked for keeps its rows of every query."""


@dataclass(frozen=True)
class Path:
    """Whose stages run: a backend on a device, or none; `gather` is the same with the pages copied first."""

    backend: Backend | None
    device: Literal["cpu", "cuda"]
    gather: Backend | None = None


@dataclass
class _Gathered:
    """What the layers so far gave for one case."""

    heads: list[HeadRow] = field(default_factory=list)
    queries: list[QueryRow] = field(default_factory=list)
    layers: list[LayerRow] = field(default_factory=list)
    hits: list[list[np.ndarray]] = field(default_factory=list)
    pairs: list[tuple[float, PairRow]] = field(default_factory=list)
    tails: list[np.ndarray] = field(default_factory=list)
    """Share of the shown heads that took each query's tail page, a layer an entry."""
    missed: list[np.ndarray] = field(default_factory=list)
    """1 - mass of each query, mean over the shown heads, a layer an entry."""


@dataclass
class _Size:
    """What the layers so far gave for one page size."""

    setting: Setting
    cases: list[_Gathered]
    agreement: Agreement
    pages: list[PageRow] = field(default_factory=list)
    last: tuple[int, Bools] | None = None
    """The last layer, and the pages that any of its heads picked."""


def run(
    trace: KeyQueryTrace,
    info: TraceInfo,
    asked: Asked,
    path: Path,
    env_id: str,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Record]:
    """The records of `trace`, page size by page size, after its last layer.

    QuestprofError for what is asked beyond the trace, and for a layer unlike its header.
    """
    header, scope = trace.header, resolve(asked, trace.header)
    sizes = [_begin(Setting(asked, scope, header, size)) for size in asked.page_sizes]
    attended = sampled_layers(asked.compare, scope.layers) if path.backend else ()
    for count, number in enumerate(scope.layers, start=1):
        arrays = narrowed(scope, checked_layer(trace, number))
        for size in sizes:
            gather = path.gather if number in attended[:1] else None
            _take(size, _layer(size.setting, number, arrays, path, number in attended, gather))
        progress(f"layer {number} ({count} of {len(scope.layers)})")
    sampled = len(attended) < len(scope.layers)
    for size in sizes:
        yield from _records(size, info, path, env_id, sampled)


def _begin(setting: Setting) -> _Size:
    cases = len(setting.cases)
    return _Size(setting, [_Gathered() for _ in range(cases)], Agreement(cases))


def _layer(
    setting: Setting, number: int, arrays: Arrays, path: Path, attend: bool, gather: Backend | None
) -> Evaluated:
    if path.backend is None:
        return evaluate(setting, number, arrays, None, False)
    from questprof.recall.stages import Product

    header = setting.header
    stages = Product(
        path.backend,
        path.device,
        arrays.q,
        arrays.k,
        arrays.v,
        header.query_positions,
        setting.page_size,
        header.softmax_scale,
    )
    return evaluate(setting, number, arrays, stages, attend, gather)


def _take(size: _Size, found: Evaluated) -> None:
    """Turn one layer into rows."""
    kept = _kept_policy(size.setting.asked)
    here = tables.any_head(found)
    neighbour = size.last is not None and size.last[0] == found.layer - 1
    before = size.last[1] if size.last and neighbour else None
    shown = size.setting.scope.shown
    for index, (case, to) in enumerate(zip(size.setting.cases, size.cases, strict=True)):
        to.heads += tables.head_rows(found, index)
        to.layers.append(tables.layer_row(found, here[index], None if before is None else before[index]))
        to.hits.append(tables.evidence_hits(found, index))
        to.tails.append(found.board["tail_taken"][index, shown].mean(axis=0))
        to.missed.append(found.board["missed"][index, shown].mean(axis=0))
        to.pairs = sorted(to.pairs + tables.pair_rows(found, index), key=lambda pair: -pair[0])
        del to.pairs[tables.KEPT_PAIRS :]
        if case.policy.name == kept:
            to.queries += tables.query_rows(found, index)
    size.pages += tables.page_rows(found)
    size.agreement.add(found.agreement)
    size.last = found.layer, here


def _kept_policy(asked: Asked) -> str:
    names = [policy.name for policy in asked.policies]
    return next((name for name in BOUND_POLICIES if name in names), "")


def _records(size: _Size, info: TraceInfo, path: Path, env_id: str, sampled: bool) -> Iterator[Record]:
    """The record without a budget, then one a case."""
    setting = size.setting
    yield _record(setting, info, path, env_id, None, RecallRows(trace=info, pages=tuple(size.pages)))
    for index, (case, of) in enumerate(zip(setting.cases, size.cases, strict=True)):
        spans = setting.header.evidence
        rows = RecallRows(
            heads=tuple(of.heads),
            queries=tuple(of.queries),
            layers=tuple(of.layers),
            evidence=tuple(tables.evidence_rows(spans, setting.scope.layers, of.hits)),
            tail_taken=tuple(round(share, 4) for share in np.mean(of.tails, axis=0).tolist()),
            pairs=tuple(row for _, row in of.pairs),
            near_ties=size.agreement.near_ties[index],
            query_missed=tuple(float(f"{lost:.4g}") for lost in np.mean(of.missed, axis=0).tolist()),
        )
        record = _record(setting, info, path, env_id, case, rows)
        checks = size.agreement.checks(index, setting.header.head_dim, sampled)
        wrong = failures(checks)
        status: Status = "wrong" if wrong else "ok"
        yield replace(record, checks=checks, status=status, reason="; ".join(wrong))


def _record(
    setting: Setting, info: TraceInfo, path: Path, env_id: str, case: Case | None, rows: RecallRows
) -> Record:
    header, asked = setting.header, setting.asked
    point = Point(
        shape=Shape(
            name=header.model,
            num_qo_heads=header.num_qo_heads,
            num_kv_heads=header.num_kv_heads,
            head_dim=header.head_dim,
            kv_dtype="fp32",
            num_layers=header.num_layers,
        ),
        seq_len=header.num_tokens,
        page_size=setting.page_size,
        token_budget=case.token_budget if case else 0,
        policy=case.policy.name if case else "dense",
        policy_params={"trace": info.trace_id, "top_tokens": asked.top_tokens},
        backend=path.backend.name if path.backend else "float64",
        device=path.device,
        seed=asked.seed,
    )
    return Record(
        "recall",
        point,
        point.point_id,
        env_id,
        "ok",
        rows=rows,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
