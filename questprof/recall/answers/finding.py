"""Everything that one trace of a recall profile answers, and all traces together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec.structs import replace

from questprof.model import Profile
from questprof.recall.ablations import Ablation, ablations
from questprof.recall.answers import equal_mass, evidence, gap, heads, slack, tail
from questprof.recall.answers.evaluation import Evaluation, evaluations
from questprof.recall.answers.needs import Need, needs
from questprof.recall.answers.steps import Steps, TraceNeed, steps, trace_need
from questprof.recall.answers.suggestion import Suggestion, suggestions
from questprof.recall.rows import SHARES


@dataclass(frozen=True)
class Curve:
    """Mass recall of one layer over the budget, mean over its heads and queries."""

    page_size: int
    policy: str
    layer: int
    budgets: tuple[int, ...]
    mass: tuple[float, ...]


@dataclass(frozen=True)
class Answers:
    """One trace. Lists of heads are of `page_size`, the one that sentences are about, unless they say."""

    trace_id: str
    source: str
    model: str
    synthetic: bool
    page_size: int
    policy: str
    curves: tuple[Curve, ...]
    needs: tuple[Need, ...]
    suggestions: tuple[Suggestion, ...]
    dense: tuple[heads.DenseHead, ...]
    dense_by_layer: tuple[tuple[int, int, int], ...]
    """(layer, dense heads, heads)."""
    failed: tuple[heads.FailedHead, ...]
    """Of every page size."""
    hidden: tuple[heads.HiddenHead, ...]
    """At the least budget whose mean passes."""
    tails: tuple[tail.Tail, ...]
    slacks: tuple[slack.Slack, ...]
    steps: tuple[Steps, ...]
    """One a page size."""
    gaps: tuple[gap.Gap, ...]
    why_no_gaps: str
    ablations: tuple[Ablation, ...]
    joined: equal_mass.Joined
    hits: tuple[evidence.Hits, ...]
    """Where the spans of `capture --evidence` are picked."""
    neighbours: tuple[evidence.Neighbours, ...]
    left_out: int
    """Records that no answer rests on, because their checks failed."""

    @property
    def suggestion(self) -> Suggestion:
        """That of `page_size`."""
        return self.suggestion_of(self.page_size)

    def suggestion_of(self, page_size: int) -> Suggestion:
        """That of one of the evaluated page sizes."""
        return next(one for one in self.suggestions if one.page_size == page_size)


def answers(profile: Profile, timings: Iterable[Profile] = ()) -> tuple[Answers, ...]:
    """The answers of every trace; `timings` are profiles with timed points, of this device or another.

    Empty for a profile without recall rows of `quest` or `quest-open`.
    """
    timed = tuple(timings)
    return tuple(_answers(one, profile, timed) for one in evaluations(profile) if one.policy)


def between_traces(profile: Profile) -> tuple[TraceNeed, ...]:
    """Every trace in brief, at a page size that all have; empty with fewer than two traces."""
    found = evaluations(profile)
    shared = set.intersection(*(set(one.page_sizes) for one in found)) if found else set()
    if len(found) < 2 or not shared:
        return ()
    wanted = found[0].page_size
    page_size = wanted if wanted in shared else min(shared)
    return tuple(trace_need(one, page_size) for one in found)


def _answers(evaluation: Evaluation, profile: Profile, timings: Sequence[Profile]) -> Answers:
    trace, page_size = evaluation.trace, evaluation.page_size
    dense = heads.dense_heads(evaluation)
    passing = heads.passing_budget(evaluation, page_size)
    budgets = evaluation.budgets(page_size)
    gaps = gap.gaps(evaluation)
    return Answers(
        trace_id=trace.trace_id,
        source=trace.source,
        model=trace.model,
        synthetic=trace.synthetic,
        page_size=page_size,
        policy=evaluation.policy,
        curves=tuple(curves(evaluation)),
        needs=tuple(
            need
            for size in evaluation.page_sizes
            for share in SHARES
            for need in needs(evaluation, size, share)
        ),
        suggestions=suggestions(evaluation),
        dense=dense,
        dense_by_layer=heads.dense_by_layer(evaluation, dense),
        failed=tuple(head for size in evaluation.page_sizes for head in heads.failed_heads(evaluation, size)),
        hidden=heads.hidden_heads(evaluation, page_size, passing or budgets[-1]) if budgets else (),
        tails=tail.tails(evaluation),
        slacks=slack.slacks(evaluation),
        steps=tuple(steps(evaluation, size) for size in evaluation.page_sizes),
        gaps=gaps,
        why_no_gaps="" if gaps else gap.why_none(evaluation),
        ablations=ablations(replace(profile, records=evaluation.records, joined=())),
        joined=equal_mass.join(evaluation, timings),
        hits=evidence.hits(evaluation),
        neighbours=evidence.neighbours(evaluation),
        left_out=evaluation.left_out,
    )


def curves(evaluation: Evaluation) -> Iterable[Curve]:
    """A curve for every page size, policy and layer."""
    for page_size in evaluation.page_sizes:
        for policy in evaluation.policies:
            budgets = evaluation.budgets(page_size, policy)
            by_layer: dict[int, list[float]] = {}
            for budget in budgets:
                own: dict[int, list[float]] = {}
                for (layer, _), row in evaluation.heads(page_size, budget, policy).items():
                    own.setdefault(layer, []).append(row.mass_recall)
                for layer, masses in own.items():
                    by_layer.setdefault(layer, []).append(fmean(masses))
            for layer, masses in sorted(by_layer.items()):
                yield Curve(page_size, policy, layer, budgets, tuple(masses))
