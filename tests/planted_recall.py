"""Recall profiles made up row by row, for answers that can be worked out by hand: nothing is evaluated.

`Planted()` is calm: 2 layers of 3 heads, 16 queries with 241 to 256 tokens of context in pages of 16;
nothing is dense, starved, failed or hidden. A test plants one thing by replacing a field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from profiles import CPU, profile
from questprof.model import Point, Profile, Record, Shape
from questprof.recall.rows import (
    GAP_UNIT,
    MASS_UNIT,
    SLACK_UNIT,
    HeadRow,
    PageRow,
    QueryRow,
    RecallRows,
    Span,
    TraceInfo,
)

MODEL = Shape("made-up", num_qo_heads=3, num_kv_heads=1, head_dim=64, kv_dtype="fp32", num_layers=2)


def calm_mass(layer: int, head: int, page_size: int, token_budget: int, policy: str) -> float:
    """Alike for every head and policy: 0.9 at 64 tokens, 0.95 at 128, 1 at 256."""
    return 1 - 6.4 / token_budget if token_budget < 256 else 1.0


@dataclass(frozen=True)
class Planted:
    """What differs from a calm profile; needs are pages, masses and shares of 1."""

    layers: tuple[int, ...] = (0, 1)
    heads: tuple[int, ...] = (0, 1, 2)
    positions: tuple[int, ...] = tuple(range(240, 256))
    page_sizes: tuple[int, ...] = (16,)
    budgets: tuple[int, ...] = (32, 64, 128, 256)
    policies: tuple[str, ...] = ("quest", "quest-open", "oracle")
    mass: Callable[[int, int, int, int, str], float] = calm_mass
    """(layer, head, page_size, token_budget, policy)."""
    needed: Callable[[int, int, int, int], int] = lambda layer, head, share, query: 2 + share
    """(layer, head, index of rows.SHARES, query): pages in quest's order."""
    oracle: Callable[[int, int, int, int], int] = lambda layer, head, share, query: 1 + share
    missed: Callable[[int, int, int], float] = lambda layer, head, query: 0.01
    """(layer, head, query): mass that quest misses."""
    gap: Callable[[int, int, int], float] = lambda layer, head, query: 1.0
    taken: Callable[[int, str], float] = lambda tokens, policy: 1.0
    """(valid tokens of the tail page, policy)."""
    query_missed: Callable[[int, str], float] | None = None
    """(valid tokens, policy): 1 - mass of a query; None: as `mass` says."""
    slack: Callable[[int, int, int], float] = lambda layer, head, page_size: 8.0
    pre_rope: float | None = None
    query_slack: Callable[[int], float] = lambda query: 8.0
    segments: tuple[Span, ...] = ()
    trace_id: str = "trace-a"
    source: str = "a.safetensors"
    synthetic: bool = False
    generation: str = ""
    status: str = "ok"

    def records(self) -> tuple[Record, ...]:
        """The records, in the order in which an evaluation writes them."""
        found = []
        for size in self.page_sizes:
            found.append(
                self._record(size, 0, "dense", RecallRows(trace=self._trace(), pages=self._pages(size)))
            )
            for budget, policy in product(self.budgets, self.policies):
                found.append(self._record(size, budget, policy, self._case(size, budget, policy)))
        return tuple(found)

    def profile(self, *others: Planted, more: Sequence[Record] = ()) -> Profile:
        """One profile of this and other traces."""
        records = [record for one in (self, *others) for record in one.records()]
        return profile(*records, *more, env=CPU)

    def _record(self, page_size: int, token_budget: int, policy: str, rows: RecallRows) -> Record:
        point = Point(
            MODEL,
            max(self.positions) + 1,
            page_size=page_size,
            token_budget=token_budget,
            policy=policy,
            policy_params={"trace": self.trace_id, "top_tokens": 10},
            device="cpu",
        )
        status = "ok" if policy == "dense" else self.status
        return Record("recall", point, point.point_id, CPU.env_id, status, rows=rows)

    def _trace(self) -> TraceInfo:
        return TraceInfo(
            trace_id=self.trace_id,
            source=self.source,
            synthetic=self.synthetic,
            model="made-up",
            num_tokens=max(self.positions) + 1,
            query_positions=self.positions,
            top_tokens=10,
            softmax_scale=0.125,
            text="text.txt",
            segments=self.segments,
            generation=self.generation,
            layers=self.layers,
            heads=self.heads,
        )

    def _names(self) -> list[tuple[int, int]]:
        return list(product(self.layers, self.heads))

    def _pages(self, page_size: int) -> tuple[PageRow, ...]:
        queries = range(len(self.positions))
        return tuple(
            PageRow(
                layer=layer,
                head=head,
                slack=(slack := self.slack(layer, head, page_size)),
                slack_p10=slack - 2,
                slack_p50=slack,
                slack_p90=slack + 2,
                slack_p99=slack + 3,
                slack_tail=slack / 2,
                tail_mass=0.2,
                slack_pre_rope=self.pre_rope,
                query_slack=tuple(round(self.query_slack(q) / SLACK_UNIT) for q in queries),
                needed_quest=tuple(tuple(self.needed(layer, head, s, q) for q in queries) for s in range(3)),
                needed_oracle=tuple(tuple(self.oracle(layer, head, s, q) for q in queries) for s in range(3)),
            )
            for layer, head in self._names()
        )

    def _case(self, page_size: int, token_budget: int, policy: str) -> RecallRows:
        fills = [position % page_size + 1 for position in self.positions]
        each = self.query_missed
        return RecallRows(
            heads=tuple(self._head(name, page_size, token_budget, policy) for name in self._names()),
            queries=tuple(map(self._query, self._names())) if policy == "quest" else (),
            tail_taken=tuple(self.taken(fill, policy) for fill in fills),
            query_missed=tuple(each(fill, policy) for fill in fills) if each else (),
        )

    def _head(self, name: tuple[int, int], page_size: int, token_budget: int, policy: str) -> HeadRow:
        mass = self.mass(*name, page_size, token_budget, policy)
        return HeadRow(
            *name,
            mass_recall=mass,
            mass_min=mass,
            top_recall=mass,
            top_page_recall=mass,
            output_rel_err=0.1,
            bound_ratio=0.5,
            pages_read=token_budget / page_size,
            union_ratio=1.5,
            tail_taken=1.0,
            missed_pages=1.0,
            regret=0.1,
            tau_bound=3.0,
            tau_true=1.0,
            false_slack=9.0,
        )

    def _query(self, name: tuple[int, int]) -> QueryRow:
        queries = range(len(self.positions))
        return QueryRow(
            *name,
            missed=tuple(round(self.missed(*name, q) / MASS_UNIT) for q in queries),
            gap=tuple(round(self.gap(*name, q) / GAP_UNIT) for q in queries),
        )
