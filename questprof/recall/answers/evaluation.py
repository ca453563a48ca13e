"""A recall profile as the answers read it: an Evaluation a trace, its rows by page size, budget and policy.

Rows of a record whose checks failed are left out: no answer rests on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from questprof.model import Profile, Record
from questprof.recall.rows import HeadRow, PageRow, RecallRows, TraceInfo, page_rows, recall_records, trace_id

Name = tuple[int, int]
"""(layer, query head)."""
Case = tuple[int, int, str]
"""(page_size, token_budget, policy)."""
PAPER_PAGE_SIZE = 16


@dataclass(frozen=True)
class Evaluation:
    """One trace: `pages` by page size, `cases` by (page_size, token_budget, policy)."""

    trace: TraceInfo
    pages: Mapping[int, RecallRows]
    cases: Mapping[Case, RecallRows]
    records: tuple[Record, ...] = ()
    left_out: int = 0
    """Records whose checks failed."""

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """Page sizes, rising."""
        return tuple(sorted(self.pages))

    @property
    def page_size(self) -> int:
        """The one that sentences are about: the paper's 16 where it was evaluated, else the middle one."""
        sizes = self.page_sizes
        return PAPER_PAGE_SIZE if PAPER_PAGE_SIZE in sizes else sizes[len(sizes) // 2]

    @property
    def policy(self) -> str:
        """Quest's own: `quest`, else `quest-open`; empty without either."""
        names = {policy for _, _, policy in self.cases}
        return next((name for name in ("quest", "quest-open") if name in names), "")

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies in the order of the profile."""
        return tuple(dict.fromkeys(policy for _, _, policy in self.cases))

    @property
    def num_layers(self) -> int:
        """Layers of the model; 0 without a record that passed."""
        return max((record.point.shape.num_layers for record in self.records), default=0)

    def budgets(self, page_size: int, policy: str = "") -> tuple[int, ...]:
        """Token budgets of a page size and policy (default: quest's own), rising."""
        wanted = page_size, policy or self.policy
        return tuple(sorted(budget for size, budget, name in self.cases if (size, name) == wanted))

    def heads(self, page_size: int, token_budget: int, policy: str = "") -> dict[Name, HeadRow]:
        """Head rows of one case; empty where it was not evaluated."""
        rows = self.cases.get((page_size, token_budget, policy or self.policy))
        return {(row.layer, row.head): row for row in rows.heads} if rows else {}

    def page_heads(self, page_size: int) -> dict[Name, PageRow]:
        """Budget-free rows of one page size."""
        return {(row.layer, row.head): row for row in self.pages[page_size].pages}

    def mass(self, page_size: int, token_budget: int, policy: str = "") -> float | None:
        """Mass recall, mean over layers and heads; None where the case was not evaluated."""
        heads = self.heads(page_size, token_budget, policy)
        return fmean(row.mass_recall for row in heads.values()) if heads else None

    def num_pages(self, page_size: int) -> tuple[int, ...]:
        """P of every query."""
        return tuple(position // page_size + 1 for position in self.trace.query_positions)

    def num_selected(self, page_size: int, token_budget: int) -> tuple[int, ...]:
        """K of every query, min(floor(B / S), P)."""
        return tuple(min(token_budget // page_size, pages) for pages in self.num_pages(page_size))

    def covers(self, page_size: int, token_budget: int) -> bool:
        """Whether the budget is every page of every query, so that nothing is selected."""
        return self.num_selected(page_size, token_budget) == self.num_pages(page_size)


def evaluations(profile: Profile) -> tuple[Evaluation, ...]:
    """An Evaluation for every trace of `profile`, in the order of its records."""
    pages: dict[str, dict[int, RecallRows]] = {}
    for (trace, page_size), rows in page_rows(profile).items():
        pages.setdefault(trace, {})[page_size] = rows
    records: dict[str, list[Record]] = {}
    for record in recall_records(profile):
        records.setdefault(trace_id(record), []).append(record)
    return tuple(found for trace in pages if (found := _evaluation(pages[trace], records[trace])))


def _evaluation(pages: Mapping[int, RecallRows], records: Iterable[Record]) -> Evaluation | None:
    info = next((rows.trace for rows in pages.values() if rows.trace), None)
    if info is None:
        return None
    good = tuple(record for record in records if record.status == "ok")
    cases = {
        (record.point.page_size, record.point.token_budget, record.point.policy): record.rows
        for record in good
        if record.rows and record.point.policy != "dense" and record.point.page_size in pages
    }
    return Evaluation(info, pages, cases, good, sum(record.status != "ok" for record in records))


def name_text(name: Name) -> str:
    """A head as `layer.head`."""
    return f"{name[0]}.{name[1]}"
