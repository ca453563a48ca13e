"""The counted read ratio of a point against equation (12). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from questprof.bytecheck.judgement import Finding
from questprof.bytecheck.tolerance import ACCESS_BYTES, HARDWARE_SHARE, LAUNCH_BYTES, row_slack, trace_reads
from questprof.counts import Source, StageCount
from questprof.equations import eq12_read_ratio, transposed_read_ratio
from questprof.errors import QuestprofError
from questprof.ledger import counted_bytes, read_ratio
from questprof.model import Point, Record
from questprof.units import dtype_bytes


def formula_ratio(point: Point, union_ratio: float | None, sign_share: float | None) -> float | None:
    """Read ratio of `point` by formula: 1/S + K/P over a paired summary, share/S + K/P over a transposed one.

    K is the mean union of a group's pages. None where lengths or budgets differ: no single K/P stands there.
    """
    sizes = set(zip(point.num_pages, point.num_selected, strict=True))
    if len(sizes) != 1 or not all(min(sizes)):
        return None
    ((pages, selected),) = sizes
    shape = point.shape
    union = min(pages, selected * max(1.0, shape.group_size if union_ratio is None else union_ratio))
    element_ratio = dtype_bytes(shape.effective_summary_dtype) / dtype_bytes(shape.kv_dtype)
    if point.summary_layout == "transposed":
        share = 1 - 0.5**shape.group_size if sign_share is None else sign_share
        return transposed_read_ratio(point.page_size, union, pages, share, element_ratio)
    return eq12_read_ratio(point.page_size, union, pages, element_ratio)


def ratio_findings(record: Record, counts: Sequence[StageCount], broken: set[Source]) -> Iterable[Finding]:
    """One finding a source that counted score, attend and dense alone.

    A trace's ratio is of K, V and summary. Hardware's is of whole stages: its tolerance holds their itemised
    extras and a launch's own reads beside the 1 %. Both hold the empty slots of tail pages, which the formula
    counts and nobody reads; the ledger has no say in it. Where requests are unequal there is no formula, and
    the ledger's ratio stands in for it.
    """
    try:
        ledger_ratio = read_ratio(record.ledger)
    except QuestprofError:
        return
    dense = counted_bytes(record.ledger)["dense"]
    formula = formula_ratio(record.point, record.union_ratio, record.sign_share)
    expected = ledger_ratio if formula is None else formula
    chain = sum(e.read_bytes for e in record.ledger if e.stage in ("score", "attend"))
    extras = (chain - ledger_ratio * dense) / dense
    for source in dict.fromkeys(count.source for count in counts):
        own = {c.stage: c for c in counts if c.source == source and c.mode == "isolated"}
        if not {"score", "attend", "dense"} <= own.keys():
            continue
        stages = (own["score"], own["attend"], own["dense"])
        traced = all(count.tensors for count in stages)
        score, attend, whole = (_vectors(count) if traced else count.read for count in stages)
        tolerance = _tails(record.point, expected) + (_open(record) + _vector_bytes(record.point)) / dense
        if not traced:
            tolerance += HARDWARE_SHARE * expected + extras
            tolerance += (2 * LAUNCH_BYTES + row_slack(record.point, ACCESS_BYTES)) / dense
        ratio = (score + attend) / whole if whole else None
        holds = None if ratio is None or source in broken else abs(ratio - expected) <= tolerance
        yield _finding(record.point, source, ratio, expected, tolerance, holds)


def _vector_bytes(point: Point) -> int:
    """One key or value: a union given as a ratio is rounded to whole ones."""
    return point.shape.head_dim * dtype_bytes(point.shape.kv_dtype)


def _tails(point: Point, ratio: float) -> float:
    """How far empty slots of tail pages move the ratio at most: e of D slots from both of its sides, or one.

    (N - e)/(D - e) and N/(D - e) lie within e/(D - e) max(1, N/D) of N/D.
    """
    slots = sum(point.num_pages) * point.page_size
    empty = slots - sum(point.lengths)
    return empty / max(1, slots - empty) * max(1.0, ratio)


def _open(record: Record) -> int:
    """Bytes that the ledger leaves open: a tail page, a mean union, the ends of a transposed summary."""
    own = [entry for entry in record.ledger if entry.stage in ("score", "attend") and entry.in_eq12]
    return sum(max(trace_reads(entry, record.point)) for entry in own)


def _vectors(count: StageCount) -> int:
    return sum(tensor.read for name, tensor in count.tensors.items() if name in ("k", "v", "summary"))


def _finding(
    point: Point,
    source: Source,
    ratio: float | None,
    expected: float,
    tolerance: float,
    holds: bool | None,
) -> Finding:
    name = "eq. (12)" if point.summary_layout == "paired" else "eq. (12) over a transposed summary"
    counted = "dense read nothing" if ratio is None else f"the read ratio is {ratio:.5f}"
    text = f"{counted}, {expected:.5f} by {name}, tolerance {tolerance:.5f} ({source})"
    return Finding("read ratio", source, holds, "", text, expected, ratio, tolerance)
