"""One batch of a decision in words: where Quest is faster, for which requests, by what, what limits it."""

from __future__ import annotations

from collections.abc import Sequence

from questprof.crossover.crossing import Crossover
from questprof.crossover.sentences import format_length, format_speed_up
from questprof.decide.case import Case, Gain, Share
from questprof.units import count, format_count

NO_LIMIT = "what limits it is not known"


def case_parts(case: Case) -> list[str]:
    """The parts of a sentence about `case`, some of them empty."""
    limit = (
        f"limited by {case.limit.part}, {percent(case.limit.share)} of {case.limit.of}"
        if case.limit
        else NO_LIMIT
    )
    share = share_text(case.share) if case.share and case.share.covered else ""
    return [f"Quest is {reach(case)}", share, _gain(case), limit]


def range_text(case: Case) -> str:
    """`between 2k and 8k tokens`."""
    until = format_length(case.until or 0)
    return (
        f"between {format_length(case.seq_len)} and {until} tokens"
        if case.seq_len
        else f"up to {until} tokens"
    )


def reach(case: Case) -> str:
    """Where Quest is faster at one batch, to follow "Quest is", and where its times are of a cache."""
    return _reach(case) + (f", {case.warm} (times of a cache, not of memory)" if case.warm else "")


def _reach(case: Case) -> str:
    span, agree = _span(case.lengths), _agreeing(case.agreeing, case)
    if case.answer == "yes":
        return f"faster {_everywhere(case, 'every')}, {span}{agree}"
    if case.answer == "only above":
        return f"faster from {format_length(case.seq_len or 0)} tokens on{agree}"
    if case.answer == "only between":
        return f"faster only {range_text(case)}{agree}"
    if case.answer == "no":
        if not span:
            return "no faster, as the budget covers every length measured"
        return f"not faster {_everywhere(case, 'any')}, {span}{agree}"
    outside = _uncovered(case.share) if case.share and not case.share.covered else ""
    why = "; ".join(filter(None, (outside, *case.notes, case.left_out))) or "no valid pair of figures"
    return f"neither proven faster nor slower ({why})"


def _everywhere(case: Case, word: str) -> str:
    one = len(case.lengths) == 1
    return f"at {'the only' if one else word} length measured above the budget"


def _span(lengths: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(format_count(lengths[i]) for i in (0, -1))) if lengths else ""


def _agreeing(found: Crossover | None, case: Case) -> str:
    """The other end of the range where query heads share KV heads: they may pick the same pages."""
    if found is None or not found.lengths or (found.kind == "always" and case.answer == "yes"):
        return ""
    same = "if the query heads of a group pick the same pages"
    if found.kind == "always":
        return f" (at every one {same})"
    if found.kind == "length" and found.seq_len:
        return f" (from {format_length(found.seq_len)} {same})"
    return "" if found.kind == "never in range" else f" (up to {format_length(found.until or 0)} {same})"


def share_text(share: Share) -> str:
    """`it is faster for 62 % of the 1000 requests of lengths.csv`, and which of them no length covers."""
    whose = f"the {count(share.num_requests, 'request')} of {share.traffic}"
    said = f"it is faster for {percent(share.faster)} of {whose}"
    return said + (f" ({_outside(share)}, where nothing valid was measured)" if share.outside > 0 else "")


def _outside(share: Share) -> str:
    """`25 % are shorter than 1k and 50 % are longer than 8k`."""
    sides = ((share.shorter, "shorter", share.first), (share.longer, "longer", share.last))
    return " and ".join(
        f"{percent(part)} are {word} than {format_count(end)}" for part, word, end in sides if part > 0
    )


def _uncovered(share: Share) -> str:
    """`75 % of the 4 requests of lengths.csv lie where nothing valid was measured: ...`."""
    whose = f"{percent(share.outside)} of the {count(share.num_requests, 'request')} of {share.traffic}"
    return f"{whose} lie where nothing valid was measured: {_outside(share)}"


def percent(share: float) -> str:
    """`62 %`; a share that is not 0 or 1 never reads as either."""
    if 0 < share < 0.01:
        return "less than 1 %"
    if 0.99 < share < 1:
        return "more than 99 %"
    return f"{100 * share:.0f} %"


def _gain(case: Case) -> str:
    if case.gain:
        return gain_text(case.gain)
    attention = ""
    if case.attention:
        attention = (
            f" (attention alone: {format_speed_up(case.attention[1])} at {format_count(case.attention[0])})"
        )
    return f"gain per token not measured{attention}: {case.no_gain}" if case.no_gain else ""


def gain_text(gain: Gain) -> str:
    """`at 32k a token takes 7.1 ms instead of 8.05 ms, 0.95 ms or 12 % less`, and whether that is warm."""
    saved, word = gain.saved_ms, "less" if gain.saved_ms >= 0 else "more"
    modelled = "" if gain.measured else " (modelled from measured steps)"
    warm = ", warm (times of a cache, not of memory)" * gain.warm
    contrary = f" ({gain.contrary})" if gain.contrary else ""
    return (
        f"{gain.where} a token takes {ms(gain.quest_ms)} ms instead of {ms(gain.dense_ms)} ms, "
        f"{ms(abs(saved))} ms or {_percent(gain)} {word}{modelled}{warm}{contrary}"
    )


def _percent(gain: Gain) -> str:
    share = 100 * abs(gain.saved_share)
    return f"{share:.1f} %" if share < 9.95 else f"{share:.0f} %"


def ms(value: float) -> str:
    """Milliseconds, three significant digits; below a hundredth there are none to tell."""
    if 0 < value < 0.01:
        return "less than 0.01"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def saving(gain: Gain) -> str:
    """`0.95 ms (12 %) less at 32k`."""
    word = "less" if gain.saved_ms >= 0 else "more"
    saved, contrary = ms(abs(gain.saved_ms)), f" ({gain.contrary})" if gain.contrary else ""
    return f"{saved} ms ({_percent(gain)}) {word} {gain.where}{' (warm)' * gain.warm}{contrary}"
