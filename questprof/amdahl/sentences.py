"""What the whole step says, in sentences: the verdict of a pair, its check, clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from questprof.amdahl.breakdown import quest_layers
from questprof.amdahl.check import CAUSES, RESIDUAL, UNEXPLAINED_SHARE, Cause, Check, Term
from questprof.amdahl.pairs import Pair, title
from questprof.units import count

MANY = 4
"""Terms of a residual that are named one by one."""
WORTH = 0.001
"""Of the measured step: a term below that is not named."""
CLOCK_CHANGE = 0.01
"""Relative difference of the SM clock from which on it is named."""


def verdict(pair: Pair) -> str:
    """One sentence: whether the whole step pays, by how much, and what attention alone would say.

    Of a pair with doubts only what was timed, and why that decides nothing.
    """
    if pair.doubts:
        return (
            f"{title(pair.point)}: undecided, because {'; '.join(pair.doubts)}. As timed, a token takes "
            f"{pair.quest.us / 1e3:.3g} ms with Quest and {pair.dense.us / 1e3:.3g} ms without: repeat it on "
            "an idle machine with more --steps."
        )
    low, high = pair.interval
    pays = "Quest pays" if low > 1 else "Quest does not pay" if high < 1 else "undecided"
    alone = _attention(pair.check, quest_layers(pair.point)) if pair.check else ""
    alone += "; its times are warm: of a cache, not of memory" * pair.warm
    return (
        f"{title(pair.point)}: {pays}, a token takes {pair.quest.us / 1e3:.3g} ms instead of "
        f"{pair.dense.us / 1e3:.3g} ms, {pair.speedup:.2f}x end to end (95 %: {low:.2f} to {high:.2f})"
        f"{alone}."
    )


def _attention(found: Check, layers: int) -> str:
    """How much faster attention became where Quest serves it, and what share of the step it had there."""
    if found.attention_speedup is None:
        return "; no layer is served by Quest"
    where = "the layer" if layers == 1 else f"the {layers} layers"
    return (
        f"; attention of {where} with Quest {found.attention_speedup:.2f}x, {found.served_share:.0%} of the "
        "dense step"
    )


def check_sentence(found: Check) -> str:
    """Equation (13) beside the measurement, the residual, and what explains it."""
    s = f"{found.attention_speedup:.2f}" if found.attention_speedup else "-"
    text = (
        f"Step time ratio, eq. (13): 1 - {found.served_share:.3f} + {found.served_share:.3f} / {s} = "
        f"{found.time_ratio:.3f}, a speed-up of {found.predicted_speedup:.2f}x; measured "
        f"{found.speedup:.2f}x. The Quest step takes {abs(found.residual_us):.0f} us "
        f"{'more' if found.residual_us >= 0 else 'less'} than predicted, {abs(found.residual):.1%} of itself"
    )
    if not named(found):
        return f"{text}."
    return f"{text}: {', '.join(map(_term, named(found)))}{_doubt(found)}."


def _doubt(found: Check) -> str:
    """That parts leave too much of the step open, where they do."""
    share = abs(found.unexplained_us) / (found.predicted_us + found.residual_us)
    if share <= UNEXPLAINED_SHARE:
        return ""
    return f"; {share:.1%} of the step is not explained by any part"


def named(found: Check) -> list[Term]:
    """The largest terms of a residual, largest first; none that is below WORTH of the step."""
    step = found.predicted_us + found.residual_us
    worth = [term for term in found.terms if abs(term.us) >= WORTH * step]
    return sorted(worth, key=lambda term: -abs(term.us))[:MANY]


def _term(term: Term) -> str:
    return f"{term.part} {term.us:+.0f} us"


def causes(found: Check) -> list[tuple[Cause, float]]:
    """The residual by cause, us, without empty causes; they add up to the residual."""
    sums: dict[Cause, float] = {}
    for term in found.terms:
        sums[term.cause] = sums.get(term.cause, 0.0) + term.us
    return [(cause, sums[cause]) for cause in CAUSES if cause in sums]


def clock_sentence(pair: Pair) -> str:
    """That the two steps ran at different clocks, where NVML saw it; '' otherwise."""
    one, other = pair.dense.clocks, pair.quest.clocks
    if not (one and other):
        return ""
    said = []
    if one.sm_mhz and other.sm_mhz and abs(other.sm_mhz / one.sm_mhz - 1) > CLOCK_CHANGE:
        said.append(f"the SM clock was {one.sm_mhz} MHz in the dense step and {other.sm_mhz} MHz in Quest's")
    if one.memory_mhz and other.memory_mhz and one.memory_mhz != other.memory_mhz:
        said.append(f"the memory clock {one.memory_mhz} MHz and {other.memory_mhz} MHz")
    for name, mine, others in (
        ("dense", one.reasons, other.reasons),
        ("Quest", other.reasons, one.reasons),
    ):
        if alone := sorted(set(mine) - set(others)):
            said.append(f"the {name} step alone was held down by: {', '.join(alone)}")
    return f"{title(pair.point)}: {'; '.join(said)}." if said else ""


def check_summary(pairs: Sequence[Pair]) -> str:
    """How far equation (13) is from all measured steps, in one sentence; '' where none was checked.

    Pairs with doubts hold nothing against it; it is said how many they are.
    """
    checked = [(pair, pair.check) for pair in pairs if pair.check and not pair.doubts]
    if not checked:
        return ""
    doubted = sum(bool(pair.doubts) for pair in pairs)
    close = sum(abs(found.residual) <= RESIDUAL for _, found in checked)
    worst, found = max(checked, key=lambda one: abs(one[1].residual))
    return (
        f"Eq. (13) predicts {close} of {len(checked)} measured Quest steps within {RESIDUAL:.0%}; furthest "
        f"is {title(worst.point)}, by {found.residual:+.1%}"
        + f"; {count(doubted, 'undecided pair')} left out" * bool(doubted)
        + "."
    )


def is_told(pair: Pair) -> bool:
    """Whether the check of a pair says more than that it holds; of doubted steps it says nothing."""
    found = pair.check
    return found is not None and not pair.doubts and (abs(found.residual) > RESIDUAL or bool(_doubt(found)))


def notes(pairs: Sequence[Pair]) -> Iterator[str]:
    """Sentences about clocks and about what could not be checked."""
    for pair in pairs:
        if text := clock_sentence(pair):
            yield text
        if pair.unchecked:
            yield f"{title(pair.point)}: eq. (13) is not checked: {pair.unchecked}."
