"""The three ablations in the article's order, from a recall profile: one thing is taken away at a time.

query-aware off   the fixed pages in place of quest's: what scoring with the current query is worth
summary           the oracle in place of quest-open: what the slack of the boxes costs, all else alike
kernel off        the same pages through a gathered copy: quality cannot change, which is checked; what the
                  paged kernel is worth in time, `questprof sweep --backends questprof,gather` measures

Means over layers and heads, which weigh equally. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from questprof.model import Profile, Record
from questprof.recall.rows import recall_records


@dataclass(frozen=True)
class Ablation:
    """One page size and budget; mass recall as a share, output errors relative. None: not evaluated."""

    page_size: int
    token_budget: int
    quest: float | None
    fixed: float | None
    quest_open: float | None
    oracle: float | None
    gather_error: float | None
    """Largest difference of the gathered copy's output, over V_max; it runs with the first budget alone."""

    @property
    def query_aware(self) -> float | None:
        """Mass lost with the query's scores replaced by fixed pages."""
        return _less(self.quest, self.fixed)

    @property
    def summary(self) -> float | None:
        """Mass gained with the boxes' bounds replaced by true page maxima."""
        return _less(self.oracle, self.quest_open)

    @property
    def tail_rule(self) -> float | None:
        """Mass gained by taking the tail page always: no ablation of the article's, but as large as one."""
        return _less(self.quest, self.quest_open)


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def ablations(profile: Profile) -> tuple[Ablation, ...]:
    """A row per page size and budget, in the profile's order."""
    found: dict[tuple[int, int], dict[str, Record]] = {}
    for record in recall_records(profile):
        point = record.point
        if point.policy != "dense":
            found.setdefault((point.page_size, point.token_budget), {})[point.policy] = record
    return tuple(_ablation(*key, by_policy) for key, by_policy in found.items())


def _ablation(page_size: int, token_budget: int, by_policy: dict[str, Record]) -> Ablation:
    mass = {name: mean_mass(record) for name, record in by_policy.items()}
    return Ablation(
        page_size,
        token_budget,
        mass.get("quest"),
        mass.get("fixed"),
        mass.get("quest-open"),
        mass.get("oracle"),
        _gather_error(list(by_policy.values())),
    )


def mean_mass(record: Record) -> float:
    """Mass recall of a record, mean over its layers and heads."""
    heads = record.rows.heads if record.rows else ()
    return sum(row.mass_recall for row in heads) / len(heads)


def _gather_error(records: Sequence[Record]) -> float | None:
    errors = [
        check.max_rel_err
        for record in records
        for check in record.checks
        if check.stage == "gather" and check.max_rel_err is not None
    ]
    return max(errors, default=None)
