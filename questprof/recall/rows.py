"""What a recall profile holds: selection quality by layer and head, as stored and as read back.

A record of kind `recall` is one (page_size, token_budget, policy) over one trace, with `rows` a row per layer
and query head; so that figures that have neither budget nor policy are stored once, each page size has one
record of policy `dense` and token_budget 0, which holds them and the trace. 30 layers, 9 heads, 3 page sizes,
5 budgets and 5 policies are 78 records: rows are JSON arrays without names, figures have SIGNIFICANT digits,
and what is kept of every query is kept as whole numbers, so that all of it is a few MB.

Pure: neither torch nor keys. Logits are scaled as the softmax takes them (q.k times softmax_scale) in every
figure. Means are over queries; layers, heads and queries weigh equally. Fields of a row are stored in order:
add new ones at its end, with a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from questprof.structs import Struct

if TYPE_CHECKING:
    from questprof.model import Profile, Record

SIGNIFICANT = 5
"""Significant digits of a stored figure."""
SHARES = (0.9, 0.95, 0.99)
"""Shares of the dense mass whose budget is looked for."""
MASS_UNIT = 1e-4
"""Unit of the missed mass of one query, a whole number."""
GAP_UNIT = 1e-4
"""Unit of the score gap of one query, in scaled logits, a whole number."""
SLACK_UNIT = 1e-3
"""Unit of the slack of one query, in scaled logits, a whole number."""


class HeadRow(Struct, frozen=True, array_like=True):
    """One layer and query head at one page size, budget and policy: means over queries unless said."""

    layer: int
    head: int
    mass_recall: float
    """Dense softmax weight inside the picked pages, 1 - epsilon."""
    mass_min: float
    """That of the worst query."""
    top_recall: float
    """Share of the R tokens with the most dense weight that lie in picked pages."""
    top_page_recall: float
    """Share of the distinct pages of those tokens that are picked."""
    output_rel_err: float
    """|o - o_C| / |o|, Euclidean, equation (6)."""
    bound_ratio: float
    """|o - o_C| / (2 epsilon V_max), equation (7), of the worst query: above 1 the bound is broken."""
    pages_read: float
    """Pages picked (K, over queries of different lengths)."""
    union_ratio: float
    """|union of the picks of the GQA group of this head| / K."""
    tail_taken: float
    """Share of queries whose tail page (that of their own token) is picked."""
    missed_pages: float
    """Pages of the oracle's K that are not picked: as many picked ones are false positives."""
    regret: float
    """True page maxima of missed pages less those of the false positives in their place, over K."""
    tau_bound: float
    """tau_U: the K-th largest page bound."""
    tau_true: float
    """tau_s: the K-th largest true page maximum."""
    missed_slack: float | None = None
    """Slack of a missed page; None when no query missed one."""
    false_slack: float | None = None
    """Slack of the false positive in its place."""
    swallowed_pages: float | None = None
    """Pages beyond K to read, in the policy's own order, until the oracle's K are all among them.

    None for a policy whose picks follow no order of pages that is the same for every K."""
    evidence_recall: float | None = None
    """Share of the evidence's pages (those the query can see) that are picked; None without evidence."""


class QueryRow(Struct, frozen=True, array_like=True):
    """One layer and head, every query in the order of the trace's positions; policy `quest` alone.

    (Of `quest-open` when `quest` was not asked for.) Whole numbers of MASS_UNIT and GAP_UNIT.
    """

    layer: int
    head: int
    missed: tuple[int, ...]
    """1 - mass of each query, in units of MASS_UNIT (rounded; `missed_mass` gives numbers)."""
    gap: tuple[int, ...]
    """U_(K) - U_(K+1) of all pages by bound, in units of GAP_UNIT of a scaled logit; -1: K is every page."""

    @property
    def missed_mass(self) -> tuple[float, ...]:
        """1 - mass of each query."""
        return tuple(number * MASS_UNIT for number in self.missed)

    @property
    def gaps(self) -> tuple[float | None, ...]:
        """Score gap of each query in scaled logits; None where every page is picked."""
        return tuple(None if number < 0 else number * GAP_UNIT for number in self.gap)


class PageRow(Struct, frozen=True, array_like=True):
    """One layer and query head at one page size: how loose its boxes are, and what budget its mass needs."""

    layer: int
    head: int
    slack: float
    """g_p = U_p less the true page maximum, in scaled logits: mean over pages, then over queries."""
    slack_p10: float
    """Quantiles are over all pages of all queries together."""
    slack_p50: float
    slack_p90: float
    slack_p99: float
    slack_tail: float
    """Mean slack of tail pages alone, which have from 1 to page_size tokens."""
    tail_mass: float
    """Dense mass of the tail page."""
    slack_pre_rope: float | None
    """Mean slack of boxes over keys before RoPE, with queries before RoPE; None when not captured."""
    query_slack: tuple[int, ...]
    """Slack of each query (mean over its pages), in units of SLACK_UNIT."""
    needed_quest: tuple[tuple[int, ...], ...]
    """Pages that reach each of SHARES of the mass, for each query, tail first and then by bound."""
    needed_oracle: tuple[tuple[int, ...], ...]
    """The same in the oracle's order, by true page maximum."""

    @property
    def query_slacks(self) -> tuple[float, ...]:
        """Slack of each query in scaled logits."""
        return tuple(number * SLACK_UNIT for number in self.query_slack)


class PairRow(Struct, frozen=True, array_like=True):
    """A page that was missed beside the false positive in its place: the worst of a record's pairs.

    The i-th best missed page (by true maximum) is paired with the i-th false positive (by bound). Scaled
    logits.
    """

    layer: int
    head: int
    position: int
    """Position of the query."""
    missed_page: int
    missed_true: float
    """Its true maximum; its bound is below."""
    missed_bound: float
    false_page: int
    false_true: float
    false_bound: float


class LayerRow(Struct, frozen=True, array_like=True):
    """One layer at one page size, budget and policy."""

    layer: int
    candidates: float
    """Pages that any head of the layer picked, over all pages of the query."""
    jaccard: float | None
    """|A and B| / |A or B| of the pages any head picks here and in the layer before; None in the first."""


class EvidenceRow(Struct, frozen=True, array_like=True):
    """One evidence span and one query that sees all of it, over all layers.

    A head hits a span when it picks every page of it, a layer when one of its heads does.
    """

    name: str
    query: int
    """Index of the query in the trace's positions."""
    first_layer: int
    """The first layer that hits; -1: none does."""
    hit_layers: int
    """Layers that hit."""
    hit_heads: int
    """(layer, head) pairs that hit."""


class Span(Struct, frozen=True):
    """Tokens first..last (both included) of a text, and what they are."""

    name: str
    first: int
    last: int


class TraceInfo(Struct, frozen=True):
    """Which queries and keys were evaluated, and how."""

    trace_id: str
    """Hash of the trace's header: the same in `Point.policy_params` of every record over this trace."""
    source: str
    """Name of the file, or `planted`, `clustered`, `gaussian`."""
    synthetic: bool
    """Made up: no statement about a model."""
    model: str
    num_tokens: int
    query_positions: tuple[int, ...]
    """Each sees the tokens 0..t."""
    top_tokens: int
    """R of `top_recall`."""
    softmax_scale: float
    model_sha256: str = ""
    text_sha256: str = ""
    text: str = ""
    """What the text is called."""
    num_generated: int = 0
    """The trace's last tokens that the model added itself, and how: `generation`."""
    generation: str = ""
    segments: tuple[Span, ...] = ()
    """What the text consists of, such as question, answer, format, or documents."""
    evidence: tuple[Span, ...] = ()
    layers: tuple[int, ...] = ()
    """Layers evaluated, and query heads below: all of the trace's or those asked for."""
    heads: tuple[int, ...] = ()
    path: str = ""
    """What ran beside float64: `cpu`, `cuda`, `triton` kernels, or `float64` where it is alone."""
    why_float64: str = ""
    """Why no kernel ran, in words."""
    attended_layers: tuple[int, ...] = ()
    """Layers whose attention ran through the kernels and was compared; selection ran in every layer."""


class RecallRows(Struct, frozen=True, tag="recall"):
    """The rows of one record. `trace`, `pages` are of policy `dense` alone, the others of the policies."""

    trace: TraceInfo | None = None
    pages: tuple[PageRow, ...] = ()
    heads: tuple[HeadRow, ...] = ()
    queries: tuple[QueryRow, ...] = ()
    layers: tuple[LayerRow, ...] = ()
    evidence: tuple[EvidenceRow, ...] = ()
    tail_taken: tuple[float, ...] = ()
    """Of each query: share of (layer, head) that picked its tail page, of position % page_size + 1 tokens."""
    pairs: tuple[PairRow, ...] = ()
    """The pairs that lost most, worst first."""
    near_ties: int = 0
    """Selections whose pages differ between kernel and float64, by scores equal but for rounding."""
    query_missed: tuple[float, ...] = ()
    """Of each query: 1 - mass, mean over (layer, head); empty in profiles from before it was kept."""


class RecallRow(Struct, frozen=True):
    """One line of `questprof recall --json`: a HeadRow with what it is of; field meanings are there."""

    layer: int
    head: int
    page_size: int
    token_budget: int
    """Tokens; `all` is the pages of the whole trace times page_size."""
    policy: str
    mass_recall: float
    top_recall: float
    output_rel_err: float
    slack: float
    """Of the PageRow: the same for every budget and policy of a page size."""
    union_ratio: float
    mass_min: float
    top_page_recall: float
    bound_ratio: float
    pages_read: float
    tail_taken: float
    missed_pages: float
    regret: float
    tau_bound: float
    tau_true: float
    missed_slack: float | None
    false_slack: float | None
    swallowed_pages: float | None
    evidence_recall: float | None
    trace: str = ""
    """TraceInfo.trace_id."""


def recall_records(profile: Profile) -> tuple[Record, ...]:
    """The records of kind `recall` that have rows, in the order in which they were written."""
    return tuple(record for record in profile.records if record.kind == "recall" and record.rows)


def trace_id(record: Record) -> str:
    """Which trace a recall record is of: `TraceInfo.trace_id` of one of the `dense` records."""
    return str(record.point.policy_params.get("trace", ""))


def page_rows(profile: Profile) -> dict[tuple[str, int], RecallRows]:
    """The budget-free rows and the trace, by (trace_id, page_size)."""
    return {
        (trace_id(record), record.point.page_size): record.rows
        for record in recall_records(profile)
        if record.rows is not None and record.point.policy == "dense"
    }


def recall_rows(profile: Profile) -> tuple[RecallRow, ...]:
    """Every HeadRow of `profile` with its page size, budget, policy and slack."""
    slacks = {
        (*key, row.layer, row.head): row.slack
        for key, rows in page_rows(profile).items()
        for row in rows.pages
    }
    return tuple(row for record in recall_records(profile) for row in _flat(record, slacks))


def _flat(record: Record, slacks: dict[tuple[str, int, int, int], float]) -> Iterator[RecallRow]:
    point = record.point
    heads: Iterable[HeadRow] = record.rows.heads if record.rows else ()
    for row in heads:
        figures = {name: getattr(row, name) for name in row.__struct_fields__}
        yield RecallRow(
            page_size=point.page_size,
            token_budget=point.token_budget,
            policy=point.policy,
            trace=trace_id(record),
            slack=slacks[trace_id(record), point.page_size, row.layer, row.head],
            **figures,
        )
