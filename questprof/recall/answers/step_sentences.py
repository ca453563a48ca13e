"""Steps, traces, the score gap and speed at equal mass in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from questprof.recall.answers import equal_mass, gap
from questprof.recall.answers.finding import Answers
from questprof.recall.answers.needs import PAIRS
from questprof.recall.answers.steps import SHARE, Steps, TraceNeed
from questprof.recall.answers.words import one_line
from questprof.units import format_count


def step_sentences(found: Steps) -> Iterator[str]:
    """How the need moves over the queries, and what it depends on."""
    if len(found.steps) < 2:
        return
    low, high = found.spread
    types = ""
    if len(found.types) > 1:
        types = "; " + ", ".join(f"{one.name} {one.middle_tokens:.0f}" for one in found.types)
    yield (
        f"From query to query, {PAIRS:.0%} of (layer, head) keep {SHARE:.0%} of the mass with {low:.0f} to "
        f"{high:.0f} tokens (p10 to p90 over queries, pages of {found.page_size}){types}."
    )
    if found.between_heads is not None and found.change is not None:
        yield (
            f"{found.between_heads:.0%} of the variance of the (log) need lies between heads, "
            f"{1 - found.between_heads:.0%} between the queries of a head, whose need changes by "
            f"{found.change:.0%} from one query to the next in the median."
        )


def trace_sentence(found: Sequence[TraceNeed]) -> str:
    """How the need moves between documents and seeds; empty without several traces."""
    if len(found) < 2:
        return ""
    said = ", ".join(
        f"{one.most_tokens:.0f} in {one_line(one.source)}"
        f"{f' ({one_line(one.generation)})' if one.generation else ''} with contexts up to "
        f"{one.longest_context}"
        for one in found
    )
    return (
        f"Between traces, {PAIRS:.0%} of (layer, head) keep {SHARE:.0%} of the mass with {said} tokens "
        f"(median over queries)."
    )


def gap_sentences(found: Answers) -> Iterator[str]:
    """Whether the score gap tells a budget that is too small, and what knowing the head tells."""
    if not found.gaps:
        yield f"Whether the score gap predicts too small a budget was not tested: {found.why_no_gaps}."
        return
    one = gap_shown(found.gaps, found.page_size)
    yield _tested(one)
    yield from _within(one)
    yield _over_all(found.gaps)


def _over_all(gaps: Sequence[gap.Gap]) -> str:
    """The AUC at every page size and budget that was tested, and how to read it."""
    aucs, read = [one.auc.value for one in gaps], "0.5 being a coin and [..] 95% intervals"
    if len(gaps) == 1:
        reaches = "reaches" if gaps[0].auc.says == "predicts" else "does not reach"
        return f"At the one page size and budget that can be tested the AUC {reaches} {gap.WEAK}, {read}."
    return (
        f"Over all {len(gaps)} page sizes and budgets the AUC of the gap is {min(aucs):.2f} to "
        f"{max(aucs):.2f}, {read}; it reaches {gap.WEAK} at "
        f"{sum(one.auc.says == 'predicts' for one in gaps)} of them."
    )


def _tested(one: gap.Gap) -> str:
    """One threshold for all heads, with the halves that calibrated and tested it."""
    side = "below" if one.small_gap_fails else "above"
    precise = "no failure is predicted" if one.precision is None else f"precision {one.precision:.0%}"
    return (
        f"The score gap U_(K) - U_(K+1) {_predicts(one.auc)}: AUC {_area(one.auc)}, calibrated on the "
        f"queries at {one.calibrated_on[0]} to {one.calibrated_on[1]}, tested on those at "
        f"{one.tested_on[0]} to {one.tested_on[1]}, at {format_count(one.token_budget)} tokens in pages of "
        f"{one.page_size}, where {one.too_small:.0%} miss more than {gap.TOO_SMALL:.0%} of the mass. At the "
        f"calibrated threshold, a gap {side} {one.threshold:.3f}: {precise} against {one.too_small:.0%} by "
        f"chance, recall {one.recall:.0%}."
    )


def _within(one: gap.Gap) -> Iterator[str]:
    """Whether the gap tells the steps of a head, and what the head alone tells."""
    if one.auc_within is not None:
        yield f"Within one head it {_predicts(one.auc_within)}, AUC {_area(one.auc_within)}."
    if one.auc_head is not None:
        worth = ": a budget by head or layer is worth more than one by step" if _head_wins(one) else ""
        yield f"Knowing the head alone, from the first half, gives an AUC of {_area(one.auc_head)}{worth}."


def gap_shown(found: Sequence[gap.Gap], page_size: int) -> gap.Gap:
    """The test that sentences are about: of that page size, where failures are nearest to a half."""
    own = [one for one in found if one.page_size == page_size] or list(found)
    return min(own, key=lambda one: (abs(one.too_small - 0.5), one.token_budget))


def _head_wins(one: gap.Gap) -> bool:
    return one.auc_head is not None and one.auc_head.low > one.auc.high


def _predicts(area: gap.Area) -> str:
    return {
        "nothing": "predicts nothing",
        "hardly": "hardly predicts too small a budget",
        "predicts": "predicts too small a budget",
    }[area.says]


def _area(area: gap.Area) -> str:
    return f"{area.value:.2f} [{area.low:.2f}, {area.high:.2f}]"


def equal_sentences(found: equal_mass.Joined) -> Iterator[str]:
    """The fastest page size at each mass, setting by setting; then what keeps mass and times apart."""
    groups: dict[tuple[str, str, int, str, float], list[equal_mass.EqualMass]] = {}
    for one in found.equal:
        groups.setdefault((one.device, one.setting, one.seq_len, one.policy, one.mass), []).append(one)
    for (device, setting, seq_len, policy, mass), own in groups.items():
        timed = [one for one in own if one.quest_us]
        where = f"At {mass:.0%} of the mass, {seq_len} tokens, {setting}, {policy} on {device}"
        if not timed:
            yield f"{where}: no figure; {own[0].why_not}."
            continue
        best = min(timed, key=lambda one: one.quest_us or 0.0)
        assert best.quest_us is not None
        rest = ", ".join(
            f"{one.speed_up:.2f}x in pages of {one.page_size}" for one in timed if one is not best
        )
        yield (
            f"{where}: {best.dense_us / best.quest_us:.2f}x the fastest dense attention in pages of "
            f"{best.page_size} with about {best.token_budget:.0f} tokens{f' ({rest})' if rest else ''}."
        )
    yield from found.notes
