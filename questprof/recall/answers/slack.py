"""How loose the boxes are: by page size, by what the query is of, and before against after RoPE."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.answers.segments import query_types

QUANTILES = ("slack_p10", "slack_p50", "slack_p90", "slack_p99")


@dataclass(frozen=True)
class Slack:
    """Slack of one page size in scaled logits: means over layers and heads of each head's own figures."""

    page_size: int
    mean: float
    quantiles: tuple[float, float, float, float]
    """p10, p50, p90 and p99 over pages and queries."""
    tail: float
    pre_rope: float | None
    by_type: tuple[tuple[str, float], ...]
    """Mean slack by type of query; empty where all queries are of one."""
    loosest: tuple[int, int, float]
    """(layer, head, mean slack)."""

    @property
    def rope_ratio(self) -> float | None:
        """Slack after RoPE over slack before; None where that was not captured, or is 0."""
        return self.mean / self.pre_rope if self.pre_rope else None


def slacks(evaluation: Evaluation) -> tuple[Slack, ...]:
    """A Slack a page size, rising."""
    return tuple(_slack(evaluation, page_size) for page_size in evaluation.page_sizes)


def _slack(evaluation: Evaluation, page_size: int) -> Slack:
    rows = evaluation.pages[page_size].pages
    before = [row.slack_pre_rope for row in rows if row.slack_pre_rope is not None]
    loosest = max(rows, key=lambda row: row.slack)
    low, middle, high, highest = (fmean(getattr(row, name) for row in rows) for name in QUANTILES)
    return Slack(
        page_size=page_size,
        mean=fmean(row.slack for row in rows),
        quantiles=(low, middle, high, highest),
        tail=fmean(row.slack_tail for row in rows),
        pre_rope=fmean(before) if len(before) == len(rows) else None,
        by_type=_by_type(evaluation, page_size),
        loosest=(loosest.layer, loosest.head, loosest.slack),
    )


def _by_type(evaluation: Evaluation, page_size: int) -> tuple[tuple[str, float], ...]:
    types = query_types(evaluation.trace)
    if len(types) < 2:
        return ()
    rows = [row.query_slacks for row in evaluation.pages[page_size].pages]
    return tuple((name, fmean(row[i] for row in rows for i in queries)) for name, queries in types.items())
