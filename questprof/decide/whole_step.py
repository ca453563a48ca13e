"""What whole decode steps say of one batch: gain of a token, limit, where they overrule attention.

Pure. A step's gain counts where the 95 % interval of its speed-up does not hold 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from questprof.amdahl.breakdown import Breakdown
from questprof.amdahl.forecast import LEAST, fit
from questprof.amdahl.pairs import Pair
from questprof.crossover.crossing import solve
from questprof.crossover.traffic import Traffic
from questprof.decide.case import Case, Gain, Limit, faster_at, largest, told_at
from questprof.decode.records import PROJECTION_PARTS, SMALL_PARTS
from questprof.units import format_count

PART_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "reading the weights": PROJECTION_PARTS,
    "Quest's score": ("score",),
    "Quest's select": ("select",),
    "Quest's attend": ("attend",),
    "dense attention of the first layers": ("dense",),
    "small kernels (norms, RoPE, append)": SMALL_PARTS,
    "gaps between kernels": ("gaps",),
}


def with_steps(case: Case, pairs: Sequence[Pair], reference: int, traffic: Traffic | None) -> Case:
    """`case` with what whole steps say: the gain, the limit, and where they contradict attention."""
    judged = _overruled(case, pairs)
    at = told_at(judged, [pair.point.seq_len for pair in pairs], reference)
    pair = next(pair for pair in pairs if pair.point.seq_len == at)
    limit = _step_limit(pair.quest) if case.answer != "no" else case.limit
    gain = (
        _traffic_gain(judged, pairs, traffic)
        if traffic and judged.answer not in ("no", "undecided")
        else None
    )
    return replace(
        judged,
        gain=gain or replace(_measured_gain(pair), contrary=_contrary(case, judged, pair)),
        no_gain="",
        limit=limit or case.limit,
    )


def _step_limit(step: Breakdown) -> Limit | None:
    """The largest part of a Quest step; None where its parts were not timed."""
    return largest({name: step.sum_of(parts) for name, parts in PART_NAMES.items()}, "a Quest step")


def _pays(pair: Pair) -> bool | None:
    """Whether the whole step is faster with Quest; None where its 95 % interval holds 1, or in doubt."""
    if pair.doubts:
        return None
    low, high = pair.interval
    return True if low > 1 else False if high < 1 else None


def _measured_gain(pair: Pair) -> Gain:
    where = f"at {format_count(pair.point.seq_len)}"
    source = "measured: clock, whole decode steps"
    return Gain(pair.dense.us / 1e3, pair.quest.us / 1e3, where, source, pair.warm)


def _contrary(case: Case, judged: Case, pair: Pair) -> str:
    """Where attention, `case`, says the opposite of the step that is told: so, and which decides.

    Both steps are the same but for their attention: where that is slower, a faster step is no evidence.
    Where the answer, `judged`, is undecided, neither does, and the answer says why.
    """
    attention, saved = faster_at(case, pair.point.seq_len), pair.dense.us - pair.quest.us
    if judged.answer == "undecided" or not case.lengths or not saved or attention == (saved > 0):
        return ""
    if not attention:
        return "though its attention is slower there: attention decides, as nothing else of the step differs"
    decides = "the whole step decides" if judged.answer == "no" else "a difference within the step's noise"
    return f"though its attention is faster there: {decides}"


def _overruled(case: Case, pairs: Sequence[Pair]) -> Case:
    """Attention's answer, unless whole steps at a length where it has Quest faster say otherwise."""
    within = [pair for pair in pairs if faster_at(case, pair.point.seq_len)]
    against = [pair for pair in within if _pays(pair) is False]
    unsure = [pair for pair in within if _pays(pair) is None]
    if within and len(against) == len(within):
        note = "attention alone would gain, the whole step does not"
        return replace(_without_share(case), answer="no", seq_len=None, until=None, notes=(*case.notes, note))
    if within and len(against) + len(unsure) == len(within):
        note = "attention gains, but the gain of a whole step is within its noise"
        return replace(
            case, share=None, answer="undecided", seq_len=None, until=None, notes=(*case.notes, note)
        )
    if not against:
        return case
    return _raised(case, pairs)


def _without_share(case: Case) -> Case:
    """No request gains any more, whatever its length."""
    share = case.share
    return replace(case, share=share and replace(share, faster=0.0, slower=share.faster + share.slower))


def _raised(case: Case, pairs: Sequence[Pair]) -> Case:
    """Some steps within attention's range are slower: the step's own crossing is the answer."""
    found = solve([(pair.point.seq_len, pair.speedup) for pair in pairs])
    note = "the whole step crosses at another length than attention alone; the step's is told"
    start = max(found.seq_len or 0, case.seq_len or 0) or None
    raised = replace(
        case,
        answer="only between" if found.until else "only above",
        seq_len=start,
        until=found.until or case.until,
        share=None,
        notes=(*case.notes, note),
    )
    return raised


def _traffic_gain(case: Case, pairs: Sequence[Pair], traffic: Traffic) -> Gain | None:
    """Mean over the traffic's decode steps, Quest where it is faster; None below LEAST measured lengths."""
    if len(pairs) < LEAST or not case.lengths:
        return None
    dense, quest = fit(pairs)
    covered = [
        (round(at), steps, faster_at(case, at))
        for at, steps in zip(traffic.lengths, traffic.steps, strict=True)
        if at <= max(case.lengths)
    ]
    if not any(steps and gains for _, steps, gains in covered) or dense.fixed_us < 0:
        return None
    weighed = [(steps, dense.at(at), quest.at(at) if gains else dense.at(at)) for at, steps, gains in covered]
    total = sum(steps for steps, _, _ in weighed)
    means = [sum(one[0] * one[side] for one in weighed) / total / 1e3 for side in (1, 2)]
    source = f"modelled: straight lines through {len(pairs)} measured steps"
    beyond = len(covered) < len(traffic.lengths)
    up_to = f" up to {format_count(max(case.lengths))}" if beyond else ""
    warm = any(pair.warm for pair in pairs)
    return Gain(means[0], means[1], f"on average over {traffic.name}{up_to}", source, warm)
