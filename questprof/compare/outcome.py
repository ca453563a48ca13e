"""What a comparison found: a verdict a stage, what was left out, and the verdict over all of it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from questprof.compare.spread import Spread
from questprof.errors import Exit
from questprof.model import Point
from questprof.samples import LEVEL

Verdict = Literal["same", "within spread", "faster", "slower", "undecided"]
"""`within spread`: a difference that two runs of one code show as well, so that it may be one or none."""
Overall = Literal[Verdict, "wrong"]
"""Of a whole comparison: `wrong` where the check of a point fails in new alone, which is no slowness."""
ERROR_RATE: Final = 1 - LEVEL
"""Share of comparisons of equal code in which any stage may be called faster or slower."""


class Comparison(msgspec.Struct, frozen=True):
    """One stage of one point. Times in us; `ratio` is new over base, above 1 slower."""

    point: Point
    stage: str
    base_us: float
    new_us: float
    """Medians."""
    ratio: float
    """Paired: the median of the rounds' ratios; otherwise the ratio of the medians."""
    low: float
    high: float
    """Order-statistic interval of the ratio; unpaired it spans the raw ratio and the one over `machine`."""
    coverage: float
    """Probability with which the interval holds the ratio; of `independent` rounds where it is paired."""
    margin: float
    """Relative difference up to which two runs of one code lie apart; inside one loop the threshold."""
    beyond: float
    """The row's limit, which a difference exceeds: `margin`, or how far the samples of either of two runs lie
    apart, whichever is more."""
    paired: bool
    num_samples: tuple[int, int]
    verdict: Verdict
    p: float = 1.0
    """Holm's adjusted p-value that the difference exceeds the margin."""
    independent: float | None = None
    """Paired: how many independent rounds tell as much as those taken; interval and p are of so many."""
    machine: float = 1.0
    """How much longer the streaming read of the new loop took than that of the base loop."""
    why: str = ""
    """Why it is undecided or within the spread."""
    cache_state: str = "cold"


class Skipped(msgspec.Struct, frozen=True):
    """A pair that is not compared, and why."""

    point: Point
    why: str
    counts_as: Overall
    """For the overall verdict: wrong where new turned so, undecided where only base was measured."""


class Outcome(msgspec.Struct, frozen=True):
    """The whole comparison: what the table, the document and the exit status are made from."""

    names: tuple[str, str]
    comparisons: tuple[Comparison, ...]
    skipped: tuple[Skipped, ...]
    only_base: tuple[Point, ...]
    only_new: tuple[Point, ...]
    threshold: float
    spread: Spread | None
    """Between runs; None where every stage was compared inside one loop."""
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Overall:
        """Wrong where a point turned so, slower where any stage is, then undecided, faster, and so on."""
        found: set[Overall] = {one.verdict for one in self.comparisons}
        found |= {one.counts_as for one in self.skipped}
        order: tuple[Overall, ...] = ("wrong", "slower", "undecided", "faster", "within spread")
        return next(
            (verdict for verdict in order if verdict in found), "same" if self.comparisons else "undecided"
        )

    def exit_status(self, undecided: int = Exit.INCONCLUSIVE) -> int:
        """0 same, faster or within the spread, 1 wrong or slower, `undecided` otherwise.

        Between two runs short stages leave the threshold without a cause: that is no finding, and fails none.
        """
        failed = int(Exit.CHECK_FAILED)
        return {"wrong": failed, "slower": failed, "undecided": undecided}.get(self.verdict, int(Exit.OK))
