"""The counted read ratio of a point against equation (12). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from questprof.bytecheck.judgement import Finding
from questprof.bytecheck.tolerance import ACCESS_BYTES, HARDWARE_SHARE, LAUNCH_BYTES, row_slack, trace_reads
from questprof.counts import Source, StageCount
from questprof.equations import eq12_read_ratio, transposed_read_ratio
from questprof.errors import QuestprofError
from questprof.ledger import counted_bytes, read_ratio
from questprof.model import Point, Record
from questprof.units import dtype_bytes

ROUNDING: Final = 1e-9
"""Of ratios in double precision."""


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
    """One finding a source that counted score, attend and dense alone: it holds where two checks do.

    The count is held to the ledger's ratio, and the ledger's to the formula; neither tolerance knows the
    formula, so that a wrong one widens nothing. Where requests are unequal there is no formula to hold to.
    """
    try:
        ledger_ratio = read_ratio(record.ledger)
    except QuestprofError:
        return
    formula = formula_ratio(record.point, record.union_ratio, record.sign_share)
    fits = formula is None or abs(ledger_ratio - formula) <= _formula_slack(record, ledger_ratio)
    for source in dict.fromkeys(count.source for count in counts):
        own = {c.stage: c for c in counts if c.source == source and c.mode == "isolated"}
        if not {"score", "attend", "dense"} <= own.keys():
            continue
        stages = (own["score"], own["attend"], own["dense"])
        traced = all(count.tensors for count in stages)
        score, attend, whole = (_vectors(count) if traced else count.read for count in stages)
        ratio = (score + attend) / whole if whole else None
        tolerance = _count_slack(record, ledger_ratio, traced=traced)
        holds = None
        if ratio is not None and source not in broken:
            holds = fits and abs(ratio - ledger_ratio) <= tolerance + ROUNDING
        yield _finding(record.point, source, ratio, ledger_ratio, formula, tolerance, holds, fits)


def _count_slack(record: Record, ledger_ratio: float, *, traced: bool) -> float:
    """How far the counted ratio may be from the ledger's.

    A trace counts K, V and summary alone: sectors, and what a mean union leaves open. Hardware counts whole
    stages: 1 %, their itemised extras, a launch's own reads and whole accesses of memory as well.
    """
    dense = counted_bytes(record.ledger)["dense"]
    own = [entry for entry in record.ledger if entry.stage in ("score", "attend") and entry.in_eq12]
    slack = sum(max(trace_reads(entry, record.point)) for entry in own) / dense
    if traced:
        return slack
    chain = sum(e.read_bytes for e in record.ledger if e.stage in ("score", "attend"))
    extras = (chain - ledger_ratio * dense) / dense
    own_reads = (2 * LAUNCH_BYTES + row_slack(record.point, ACCESS_BYTES)) / dense
    return slack + HARDWARE_SHARE * ledger_ratio + extras + own_reads


def _formula_slack(record: Record, ledger_ratio: float) -> float:
    """How far the ledger's ratio may be from the formula's: empty slots of tail pages, and rounding.

    The ledger leaves them out of both sides of its ratio, or of dense alone: with e of D slots empty,
    (N - e)/(D - e) and N/(D - e) lie within e/(D - e) max(1, ratio) of the formula's N/D. A union given as a
    ratio is rounded to whole vectors, of K and of V.
    """
    point = record.point
    slots = sum(point.num_pages) * point.page_size
    valid = sum(point.lengths)
    vector_bytes = point.shape.head_dim * dtype_bytes(point.shape.kv_dtype)
    tails = (slots - valid) / valid * max(1.0, ledger_ratio)
    return tails + vector_bytes / counted_bytes(record.ledger)["dense"] + ROUNDING


def _vectors(count: StageCount) -> int:
    return sum(tensor.read for name, tensor in count.tensors.items() if name in ("k", "v", "summary"))


def _finding(
    point: Point,
    source: Source,
    ratio: float | None,
    ledger_ratio: float,
    formula: float | None,
    tolerance: float,
    holds: bool | None,
    fits: bool,
) -> Finding:
    """`predicted` is the formula's, or else the ledger's; `tolerance` is that of the count."""
    name = "eq. (12)" if point.summary_layout == "paired" else "eq. (12) over a transposed summary"
    expected = ledger_ratio if formula is None else formula
    counted = "dense read nothing" if ratio is None else f"the read ratio is {ratio:.5f}"
    by = f"{expected:.5f} by {name}" if formula is not None else f"{expected:.5f} by the ledger"
    off = "" if fits else f", which the ledger's {ledger_ratio:.5f} does not confirm"
    text = f"{counted}, {by}{off}, tolerance {tolerance:.5f} ({source})"
    return Finding("read ratio", source, holds, "", text, expected, ratio, tolerance)
