"""The answer for one batch size as plain data: where Quest is faster, for whom, its gain, its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from questprof.crossover.crossing import Crossover
from questprof.decide.request import nearest

Answer = Literal["yes", "no", "only above", "only between", "undecided"]
LEAST_COVERED: Final = 0.5
"""Share of the requests that lie within the lengths measured, where an answer is one for them."""


@dataclass(frozen=True)
class Share:
    """Shares of the requests of one traffic; they add up to 1."""

    traffic: str
    num_requests: int
    faster: float
    """Quest is faster at its length."""
    slower: float
    """It is not."""
    shorter: float
    """Than any length measured."""
    longer: float
    """Than any length measured."""
    first: int
    """Shortest length with a valid pair of figures, tokens."""
    last: int

    @property
    def outside(self) -> float:
        """Shorter or longer than any length measured: nothing is known of them."""
        return self.shorter + self.longer

    @property
    def covered(self) -> bool:
        """Whether enough of them lie within the lengths measured."""
        return 1 - self.outside >= LEAST_COVERED - 1e-9


@dataclass(frozen=True)
class Gain:
    """What a token takes, ms, dense and with Quest where Quest is faster."""

    dense_ms: float
    quest_ms: float
    where: str
    """`at 32k`, `on average over lengths.csv`."""
    source: str
    """measured or modelled, and from what."""
    warm: bool = False
    """Whether a step that it rests on is of a cache, not of memory."""
    contrary: str = ""
    """Where attention says the opposite: that it does, and which of the two decides."""

    @property
    def measured(self) -> bool:
        """Whether both figures come from a clock."""
        return self.source.startswith("measured")

    @property
    def saved_ms(self) -> float:
        """Milliseconds a token; below 0 where Quest costs."""
        return self.dense_ms - self.quest_ms

    @property
    def saved_share(self) -> float:
        """Of the dense step."""
        return self.saved_ms / self.dense_ms


@dataclass(frozen=True)
class Limit:
    """The largest part of what Quest takes: making anything else faster gains less."""

    part: str
    share: float
    of: str
    """`a Quest step`, `Quest's attention`."""


@dataclass(frozen=True)
class Case:
    """The answer for one batch size. Lengths in tokens."""

    batch_size: int
    answer: Answer
    seq_len: float | None
    """only above: from there on. only between: its lower end."""
    until: float | None
    lengths: tuple[int, ...]
    """Measured lengths above the budget that count."""
    attention: tuple[int, float] | None
    """(length, speed-up of attention) nearest to the reference."""
    share: Share | None
    gain: Gain | None
    no_gain: str
    """Why no time per token is told."""
    limit: Limit | None
    notes: tuple[str, ...] = ()
    agreeing: Crossover | None = None
    """Where the query heads of a group pick the same pages; None without groups."""
    left_out: str = ""
    warm: str = ""
    """Where the times of attention are of a cache, not of memory: `warm at 2k, 4k`."""
    warm_steps: str = ""
    """The same of whole steps, `at 2k, 4k`, or `at every length`; '' where none is."""


def faster_at(case: Case, length: float) -> bool:
    """Whether the answer has Quest faster at `length`; never below what was measured above the budget."""
    if case.answer in ("no", "undecided") or not case.lengths:
        return False
    return (case.seq_len or case.lengths[0]) <= length <= (case.until or float("inf"))


def told_at(case: Case, lengths: Sequence[int], reference: int) -> int:
    """The length whose gain is told: nearest to the reference, where Quest is faster if it is anywhere."""
    return nearest([length for length in lengths if faster_at(case, length)] or lengths, reference)


def largest(times: dict[str, float], of: str) -> Limit | None:
    """The largest of `times` (us by part) as a Limit; None where they add up to nothing."""
    total = sum(times.values())
    if total <= 0:
        return None
    part = max(times, key=times.__getitem__)
    return Limit(part, times[part] / total, of)
