"""A budget for every layer of this checkpoint, or dense attention where no budget is worth it.

A layer's budget is the least that keeps MASS of the dense mass for PAIRS of its (head, query) pairs. It is
promised on the queries that it was made from, of which it is counted, for contexts as long as theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from questprof.equations import eq12_read_ratio
from questprof.errors import QuestprofError
from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.answers.layer_table import LayerTable, TableSource
from questprof.recall.answers.needs import LONG, PAIRS, Need, long_queries, needed, needs

MASS = 0.95
DENSE_RATIO = 0.75
"""Read ratio, eq. (12), from which on a layer stays dense.

What is left to save, a quarter of the bytes, is the most that Quest can gain there if score, select and
attend read as fast as dense does, and they are three launches instead of one; the layer gives up mass for it.
"""


@dataclass(frozen=True)
class LayerBudget:
    """One layer of a suggestion; `ratio` is eq. (12) at the longest context, modelled."""

    need: Need
    ratio: float
    dense: bool
    kept: float
    """Share of the (head, query) pairs whose MASS the budget keeps; 1 where dense."""
    heads_left: tuple[int, ...]
    """Heads that keep it for less than PAIRS of their queries."""


@dataclass(frozen=True)
class Suggestion:
    """Budgets by layer at one page size; read ratios are means over layers at the longest context."""

    page_size: int
    mass: float
    pairs: float
    contexts: tuple[int, int]
    layers: tuple[LayerBudget, ...]
    read_ratio: float
    uniform_tokens: int
    """The one budget that promises the same in every layer."""
    uniform_ratio: float

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Layers that stay dense."""
        return tuple(one.need.layer for one in self.layers if one.dense)

    @property
    def budgets(self) -> dict[int, int]:
        """Tokens of every other layer."""
        return {one.need.layer: one.need.most_tokens for one in self.layers if not one.dense}


def suggest(evaluation: Evaluation, page_size: int, mass: float = MASS, pairs: float = PAIRS) -> Suggestion:
    """The suggestion at one of the evaluated page sizes; `mass` is one of rows.SHARES."""
    num_pages = max(evaluation.num_pages(page_size))
    quest = needed(evaluation, page_size, mass, "quest")
    layers = tuple(
        _layer(need, quest[need.layer], num_pages, pairs)
        for need in needs(evaluation, page_size, mass, pairs)
    )
    uniform = max(one.need.most_tokens for one in layers)
    return Suggestion(
        page_size=page_size,
        mass=mass,
        pairs=pairs,
        contexts=_contexts(evaluation),
        layers=layers,
        read_ratio=fmean(1.0 if one.dense else one.ratio for one in layers),
        uniform_tokens=uniform,
        uniform_ratio=_ratio(page_size, uniform, num_pages),
    )


def _layer(need: Need, pages: dict[int, list[int]], num_pages: int, pairs: float) -> LayerBudget:
    ratio = _ratio(need.page_size, need.most_tokens, num_pages)
    dense = ratio >= DENSE_RATIO
    selected = num_pages if dense else need.most_tokens // need.page_size
    kept = {head: fmean(count <= selected for count in counts) for head, counts in pages.items()}
    every = [count for counts in pages.values() for count in counts]
    return LayerBudget(
        need=need,
        ratio=ratio,
        dense=dense,
        kept=fmean(count <= selected for count in every),
        heads_left=tuple(head for head, share in sorted(kept.items()) if share < pairs),
    )


def _ratio(page_size: int, tokens: int, num_pages: int) -> float:
    return eq12_read_ratio(page_size, min(tokens // page_size, num_pages), num_pages)


def layer_table(evaluations: Sequence[Evaluation], page_size: int) -> LayerTable:
    """One table that keeps the promise on every trace: of each layer the largest budget that one of them
    needs.

    Traces with less than LONG of the longest context do not count, as with queries. QuestprofError for
    traces of several models, or without that page size.
    """
    models = dict.fromkeys(one.trace.model for one in evaluations)
    if len(models) > 1:
        raise _apart(f"the traces are of {', '.join(models)}", "Give the traces of one model.")
    if any(page_size not in one.pages for one in evaluations):
        raise _apart(f"not every trace was evaluated with pages of {page_size}", "Evaluate them alike.")
    longest = max(_contexts(one)[1] for one in evaluations)
    used = [one for one in evaluations if _contexts(one)[1] >= LONG * longest]
    num_pages = max(max(one.num_pages(page_size)) for one in used)
    tokens: dict[int, int] = {}
    for need in (need for one in used for need in needs(one, page_size, MASS)):
        tokens[need.layer] = max(tokens.get(need.layer, 0), need.most_tokens)
    dense = {layer for layer, most in tokens.items() if _ratio(page_size, most, num_pages) >= DENSE_RATIO}
    left_out = tuple(sorted(set(range(max(one.num_layers for one in used))) - set(tokens)))
    made_up = any(one.trace.synthetic for one in used)
    return LayerTable(
        dense_layers=tuple(sorted(dense)),
        budgets={str(layer): most for layer, most in sorted(tokens.items()) if layer not in dense},
        source=TableSource(
            model=next(iter(models)),
            text=", ".join(dict.fromkeys(one.trace.text or one.trace.source for one in used)),
            trace_id=", ".join(one.trace.trace_id for one in used),
            shortest_context=min(_contexts(one)[0] for one in used),
            longest_context=longest,
            page_size=page_size,
            policy="quest",
            mass=MASS,
            pairs=PAIRS,
            dense_ratio=DENSE_RATIO,
            left_out=left_out,
            synthetic=made_up,
            note=" ".join(_notes(made_up, left_out)),
        ),
    )


def _notes(made_up: bool, left_out: Sequence[int]) -> Iterator[str]:
    """What whoever reads the table must know of it."""
    if made_up:
        yield "Made-up queries and keys: no statement about any real model."
    if left_out:
        names = ", ".join(map(str, left_out))
        one = len(left_out) == 1
        yield (
            f"No budget for layer{'s' * (not one)} {names} of the model, which {'was' if one else 'were'} "
            "not evaluated."
        )


def _contexts(evaluation: Evaluation) -> tuple[int, int]:
    """The shortest and the longest context that count, tokens."""
    positions = evaluation.trace.query_positions
    counted = [positions[i] + 1 for i in long_queries(positions)]
    return min(counted), max(counted)


def _apart(why: str, fix: str) -> QuestprofError:
    return QuestprofError("one table of layer budgets", why, fix)


def suggestions(evaluation: Evaluation) -> tuple[Suggestion, ...]:
    """One a page size."""
    return tuple(suggest(evaluation, page_size) for page_size in evaluation.page_sizes)


def cheapest(found: Sequence[Suggestion]) -> Suggestion:
    """The one that reads least by eq. (12); of equal ones that of the largest pages."""
    return min(found, key=lambda one: (one.read_ratio, -one.page_size))
