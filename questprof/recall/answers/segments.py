"""What each query is of: a segment of the text (question, answer, a document), or what was generated."""

from __future__ import annotations

from questprof.recall.answers.words import one_line
from questprof.recall.rows import TraceInfo

REST = "the rest"


def query_types(trace: TraceInfo) -> dict[str, tuple[int, ...]]:
    """Indices of the queries by type, in the order of the text; types without a query are left out.

    By segment where there are segments, the last named one that holds the position; else by whether the
    model generated the token, else all as one.
    """
    found: dict[str, list[int]] = {}
    for index, position in enumerate(trace.query_positions):
        found.setdefault(_type(trace, position), []).append(index)
    return {name: tuple(queries) for name, queries in found.items()}


def _type(trace: TraceInfo, position: int) -> str:
    holding = [one_line(span.name) for span in trace.segments if span.first <= position <= span.last]
    if holding:
        return holding[-1]
    generated = position >= trace.num_tokens - trace.num_generated
    if trace.num_generated:
        return "generated" if generated else "the text"
    return REST if trace.segments else "the text"
