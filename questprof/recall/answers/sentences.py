"""What the answers say in words: a verdict, then what was found and what was looked for in vain. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from questprof.recall.answers import equal_mass, heads
from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.answers.finding import Answers
from questprof.recall.answers.head_sentences import (
    dense_sentence,
    evidence_sentences,
    failed_sentence,
    hidden_sentence,
    tail_sentences,
)
from questprof.recall.answers.slack import Slack
from questprof.recall.answers.step_sentences import equal_sentences, gap_sentences, step_sentences
from questprof.recall.answers.steps import Steps
from questprof.recall.answers.suggestion import DENSE_RATIO, Suggestion
from questprof.recall.answers.words import listed, one_line, points
from questprof.recall.rows import TraceInfo
from questprof.units import count, format_count

ALIKE = 0.05
"""Relative difference below which two figures are called alike."""


def verdict(evaluation: Evaluation, found: Answers) -> list[str]:
    """What a budget keeps, what the layers need, and whether that pays in bytes."""
    said = ["Made-up queries and keys: no statement about any real model."] if found.synthetic else []
    return [*said, *_mean(evaluation), suggested(found.suggestion)]


def title(trace: TraceInfo) -> str:
    """What a trace is called: model, text, contexts."""
    text = f", {one_line(trace.text)}" if trace.text else ""
    positions = trace.query_positions
    shown = f"{positions[0] + 1} to {positions[-1] + 1}" if len(positions) > 1 else f"{positions[0] + 1}"
    queries = count(len(positions), "query", "queries")
    return f"{one_line(trace.model)}{text}, {queries} with {shown} tokens of context"


def _mean(evaluation: Evaluation) -> Iterator[str]:
    """The budget whose mean passes, and what the means need."""
    size, policy = evaluation.page_size, evaluation.policy
    curve = {b: m for b in evaluation.budgets(size) if (m := evaluation.mass(size, b)) is not None}
    if not curve:
        return
    longest = max(evaluation.trace.query_positions) + 1
    budget = _headline_budget(evaluation, size, curve)
    needs = _needs_of_all(curve)
    yield (
        f"Pages of {size}, {policy}: a budget of {format_count(budget)} tokens, {budget / longest:.0%} of "
        f"the context, keeps {curve[budget]:.1%} of the dense mass in the mean over layers and heads; "
        f"{needs}."
    )


def _headline_budget(evaluation: Evaluation, page_size: int, curve: Mapping[int, float]) -> int:
    """The least that passes, else the largest; never the whole context where another was evaluated."""
    selecting = [budget for budget in curve if not evaluation.covers(page_size, budget)] or list(curve)
    passing = heads.passing_budget(evaluation, page_size)
    return passing if passing in selecting else max(selecting)


def _needs_of_all(curve: Mapping[int, float]) -> str:
    """`95% takes about 300 and 99% takes 512`; masses that need the same are named together."""
    by_need: dict[str, list[str]] = {}
    for mass in equal_mass.MASSES:
        by_need.setdefault(_needs(curve, mass), []).append(f"{mass:.0%}")
    return " and ".join(
        f"{' and '.join(masses)} {'takes' if len(masses) == 1 else 'take'} {need}"
        for need, masses in by_need.items()
    )


def _needs(curve: Mapping[int, float], mass: float) -> str:
    """How many tokens `mass` takes, in words."""
    known = {float(budget): value for budget, value in curve.items()}
    at, around = equal_mass.crossing(known, mass), equal_mass.crossed(known, mass)
    if around and around[0] == around[1]:
        return f"{around[0]:.0f}"
    if at is not None:
        return f"about {at:.0f} (interpolated)"
    if around:
        return f"between {around[0]:.0f} and {around[1]:.0f}"
    if max(curve.values()) < mass:
        return f"more than {format_count(max(curve))}"
    return f"at most {format_count(min(curve))}"


def suggested(found: Suggestion) -> str:
    """The table of layers in a sentence, with what it saves by eq. (12)."""
    promise = f"{found.mass:.0%} of the mass for {found.pairs:.0%} of a layer's (head, query)"
    budgets, dense = found.budgets, found.dense_layers
    if not budgets:
        return (
            f"To keep {promise}, every layer has to read {DENSE_RATIO:.0%} or more of what dense attention "
            "reads (eq. (12), modelled): at this length all layers are better left dense."
        )
    said = f"To keep {promise}, {_range(budgets)}"
    said += f", and {_layers(dense)} so much that dense attention is the better choice" if dense else ""
    uniform = (
        f"; one budget for all would have to be {found.uniform_tokens} and reads {found.uniform_ratio:.0%}"
        if len(found.layers) > 1
        else ""
    )
    return (
        f"{said}. That reads {found.read_ratio:.0%} of what dense attention reads at {found.contexts[1]} "
        f"tokens (eq. (12), modelled){uniform}. {_pays(found)}"
    )


def _range(budgets: Mapping[int, int]) -> str:
    """What the layers need, from the least to the most; one figure where that is all there is."""
    low, high = min(budgets, key=lambda n: budgets[n]), max(budgets, key=lambda n: budgets[n])
    if len(budgets) == 1:
        return f"layer {low} needs {budgets[low]} tokens"
    if budgets[low] == budgets[high]:
        return f"{len(budgets)} layers need {budgets[low]} tokens each"
    return f"layers need from {budgets[low]} (layer {low}) to {budgets[high]} tokens (layer {high})"


def _pays(found: Suggestion) -> str:
    table, uniform = (ratio < DENSE_RATIO for ratio in (found.read_ratio, found.uniform_ratio))
    longer = "What longer contexts need, a trace of their length tells."
    if uniform:
        return f"At this length Quest can pay{', with one budget too' * (len(found.layers) > 1)}. {longer}"
    if table:
        return f"At this length Quest can pay with a budget by layer, hardly with one for all. {longer}"
    return f"At this length Quest hardly pays at that mass. {longer}"


def _layers(layers: Sequence[int]) -> str:
    names = listed(map(str, layers))
    return f"layer {names} needs" if len(layers) == 1 else f"layers {names} need"


def findings(found: Answers) -> list[str]:
    """Every rule's sentence, whether it found something or not; then ablations, slack, steps and gap."""
    return [
        *tail_sentences(found.tails, found.page_size),
        dense_sentence(found),
        failed_sentence(found),
        hidden_sentence(found),
        *ablation_sentences(found),
        *slack_sentences(found.slacks),
        *step_sentences(_own(found.steps, found.page_size)),
        *gap_sentences(found),
        *evidence_sentences(found),
        *equal_sentences(found.joined),
        *(
            [f"{count(found.left_out, 'record')} failed a check against float64: no answer rests on them."]
            if found.left_out
            else []
        ),
    ]


def _own(found: Iterable[Steps], page_size: int) -> Steps:
    return next(one for one in found if one.page_size == page_size)


def ablation_sentences(found: Answers) -> Iterator[str]:
    """The article's ablations at the middle budget of the page size that sentences are about."""
    own = [one for one in found.ablations if one.page_size == found.page_size]
    if not own:
        return
    one = own[len(own) // 2]
    where = f"at {format_count(one.token_budget)} tokens in pages of {one.page_size}"
    said = []
    if one.query_aware is not None:
        verb = "costs" if one.query_aware >= 0 else "gains"
        said.append(
            f"without the query (page 0 and the newest pages instead) {verb} {points(abs(one.query_aware))} "
            "of mass"
        )
    if one.summary is not None:
        said.append(f"boxes as tight as true maxima would gain {points(one.summary)} over quest-open")
    if one.tail_rule is not None:
        verb = "costs" if one.tail_rule >= 0 else "gains"
        said.append(f"leaving the tail page to compete {verb} {points(abs(one.tail_rule))}")
    if one.gather_error is not None:
        said.append(f"gathering the pages first changes outputs by {one.gather_error:.1g} of V_max")
    if said:
        yield f"Ablations {where}: {'; '.join(said)}."


def slack_sentences(found: Sequence[Slack]) -> Iterator[str]:
    """Slack against page size, type of query and RoPE."""
    means = ", ".join(f"{one.mean:.1f} in pages of {one.page_size}" for one in found)
    layer, head, most = found[len(found) // 2].loosest
    yield (
        f"Boxes are loose by {means} (slack, scaled logits; a logit more is {2.718:.1f} times the weight); "
        f"the loosest are those of head {layer}.{head}, {most:.1f} in pages of "
        f"{found[len(found) // 2].page_size}."
    )
    typed = [one for one in found if one.by_type]
    if typed:
        one = typed[len(typed) // 2]
        said = ", ".join(f"{name} {value:.1f}" for name, value in one.by_type)
        yield f"Slack by type of query in pages of {one.page_size}: {said}."
    roped = [one for one in found if one.rope_ratio is not None]
    if roped:
        said = ", ".join(
            f"{one.pre_rope:.1f} before, {one.mean:.1f} after in pages of {one.page_size}" for one in roped
        )
        ratio = median(one.rope_ratio or 1.0 for one in roped)
        says = (
            f"RoPE makes boxes looser by {ratio - 1:.0%}"
            if ratio > 1 + ALIKE
            else f"RoPE makes boxes tighter by {1 - ratio:.0%}"
            if ratio < 1 - ALIKE
            else "RoPE changes the boxes little"
        )
        yield f"{says}: slack {said}."
