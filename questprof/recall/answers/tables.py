"""Tables of the answers as heads and rows of text, each with the source of its figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from questprof.crossover.tables import MODELLED, Table
from questprof.recall.answers.evaluation import Evaluation, name_text
from questprof.recall.answers.finding import Answers, Curve
from questprof.recall.answers.needs import PAIRS
from questprof.recall.answers.steps import Steps, TraceNeed
from questprof.recall.answers.suggestion import Suggestion
from questprof.recall.rows import SHARES
from questprof.units import format_count

NONE: Final = "–"
COUNTED: Final = "counted: picked pages, weighed by the dense softmax of the trace in float64"
LOGITS: Final = "counted: bounds and true maxima of every page and query of the trace, float64, scaled logits"


def heat_table(evaluation: Evaluation, page_size: int, token_budget: int, policy: str) -> Table:
    """Mass recall, a row a layer and a column a head."""
    heads = evaluation.heads(page_size, token_budget, policy)
    numbers = sorted({head for _, head in heads})
    rows = [
        [
            str(layer),
            *(f"{heads[layer, n].mass_recall:.3f}" if (layer, n) in heads else NONE for n in numbers),
        ]
        for layer in sorted({layer for layer, _ in heads})
    ]
    title = f"Mass recall by layer and head: page {page_size}, budget {format_count(token_budget)}, {policy}"
    return text_table(title, ["layer", *(f"head {n}" for n in numbers)], rows, COUNTED)


def curve_table(found: Sequence[Curve]) -> Table:
    """Mass recall of layers by budget, mean over heads and queries; one page size and policy."""
    first = found[0]
    rows = [[str(one.layer), *(f"{mass:.3f}" for mass in one.mass)] for one in found]
    heads = ["layer", *(f"budget\n{format_count(budget)}" for budget in first.budgets)]
    return text_table(
        f"Mass recall by layer and budget: page {first.page_size}, {first.policy}", heads, rows, COUNTED
    )


def budget_table(found: Suggestion, answers: Answers) -> Table:
    """What every layer needs for each share of the mass, and what is suggested for it."""
    needs = {(one.layer, one.share): one for one in answers.needs if one.page_size == found.page_size}
    rows = []
    for one in found.layers:
        layer = one.need.layer
        shares = [needs[layer, share] for share in SHARES]
        rows.append(
            [
                str(layer),
                *(f"{need.median_tokens} | {need.most_tokens}" for need in shares),
                str(one.need.oracle_tokens),
                f"{layer}.{one.need.worst_head}: {one.need.worst_tokens}",
                "dense" if one.dense else str(one.need.most_tokens),
                "1" if one.dense else f"{one.ratio:.3f}",
                f"{one.kept:.0%}",
                _listed([name_text((layer, head)) for head in one.heads_left]),
            ]
        )
    heads = [
        "layer",
        *(f"{share:.0%} of the mass\nhalf | {PAIRS:.0%} of pairs" for share in SHARES),
        f"oracle, {found.mass:.0%}\n{PAIRS:.0%} of pairs",
        f"worst head,\n{found.mass:.0%}",
        "suggested\nbudget",
        "read ratio\neq. (12)",
        "pairs that\nkeep it",
        "heads left below",
    ]
    note = (
        f"Tokens: counted: pages that each (head, query) needs, queries with {found.contexts[0]} to "
        f"{found.contexts[1]} tokens of context. Read ratio: {MODELLED}"
    )
    return text_table(f"Budget by layer: page {found.page_size}", heads, rows, note)


def step_table(found: Steps) -> Table:
    """Every query with its need."""
    rows = [
        [str(s.position), s.type, f"{s.median_tokens:.0f}", str(s.most_tokens), str(s.oracle_tokens)]
        for s in found.steps
    ]
    heads = ["position", "of", "half of the heads", f"{PAIRS:.0%} of the heads", f"{PAIRS:.0%}, oracle"]
    return text_table(
        f"Tokens that 95% of the mass needs, query by query: page {found.page_size}", heads, rows, COUNTED
    )


def type_table(found: Steps) -> Table:
    """The needs by type of query."""
    rows = [
        [
            one.name, str(one.num_queries), f"{one.first}–{one.last}", f"{one.low_tokens:.0f}",
            f"{one.middle_tokens:.0f}", f"{one.high_tokens:.0f}",
        ]
        for one in found.types
    ]  # fmt: skip
    heads = ["queries of", "queries", "positions", "p10", "median", "p90"]
    title = (
        f"Tokens with which {PAIRS:.0%} of the heads keep 95% of the mass, by type of query: page "
        f"{found.page_size}"
    )
    return text_table(title, heads, rows, COUNTED)


def trace_table(found: Sequence[TraceNeed]) -> Table:
    """The needs of several traces: documents, seeds."""
    rows = [
        [
            one.source, one.text or NONE, one.generation or NONE, str(one.num_queries),
            str(one.longest_context), f"{one.median_tokens:.0f}", f"{one.most_tokens:.0f}",
        ]
        for one in found
    ]  # fmt: skip
    heads = [
        "trace",
        "text",
        "generated",
        "queries",
        "longest\ncontext",
        "half of\nthe heads",
        f"{PAIRS:.0%} of\nthe heads",
    ]
    return text_table("Tokens that 95% of the mass needs, by trace", heads, rows, COUNTED)


def _listed(names: Sequence[str]) -> str:
    """`0.1, 0.4-0.6`: runs of heads of one layer are joined."""
    found = []
    numbers = [tuple(map(int, name.split("."))) for name in names]
    for _, run in groupby(enumerate(numbers), key=lambda pair: (pair[1][0], pair[1][1] - pair[0])):
        own = [name for _, name in run]
        first, last = (f"{layer}.{head}" for layer, head in (own[0], own[-1]))
        found.append(first if len(own) == 1 else f"{first}–{last}")
    return ", ".join(found)


def text_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> Table:
    """A table of text; `note` names the source of its figures and ends without a full stop."""
    said = f"{note[0].upper()}{note[1:]}."
    return Table(title, tuple(heads), tuple(map(tuple, rows)), said)
