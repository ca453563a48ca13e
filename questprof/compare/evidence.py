"""What the raw samples of one stage say about two sides of it: a ratio, its interval, and doubts about them.

Pure. Rounds of one loop are compared one by one, two runs by their medians; both without a distribution.
Rounds that resemble the ones before them count as fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from questprof.compare.serial import independent_samples, weakened
from questprof.compare.student import student_test
from questprof.rows import STEADY_SPREAD
from questprof.samples import LEVEL, depth, mann_whitney, quantile, sign_test

Side = Literal["same", "within spread", "faster", "slower"]
"""`within spread`: not the same, and less than two runs of one code lie apart."""
MACHINE_DRIFT: Final = 0.1
"""Relative difference of the streaming reads of two loops up to which they met the same machine: the loops of
profiles/h200/grid.jsonl and grid-again.jsonl read within 1 % of each other; of the CPU's in
tests/data/cpu_repeats.json, whose neighbours came and went, one pair in five is within a tenth."""


class Evidence(NamedTuple):
    """Two sides of one stage; `base` and `new` are sorted samples in us, `ratio` above 1 is slower."""

    base: Sequence[float]
    new: Sequence[float]
    ratio: float
    """Paired: the median of the rounds' ratios; otherwise the ratio of the medians."""
    low: float
    high: float
    """Order-statistic interval of the ratio; unpaired it spans the raw ratio and the one over `machine`."""
    coverage: float
    """Probability with which the interval holds the ratio."""
    p: float
    """Two-sided p-value that the sides differ by more than `beyond`; 1 unless the interval lies beyond it."""
    beyond: float
    """Relative difference from which they differ: 0.02 for 2 %."""
    machine: float = 1.0
    """How much longer the streaming read of the new loop took than that of the base loop."""
    independent: float = math.inf
    """How many independent rounds tell as much as those taken; inf between two runs, which have no rounds."""
    spreads: tuple[float, float] = (0.0, 0.0)
    """How far the samples of each side lie apart, as `apart` has it."""

    def side(self, threshold: float, margin: float) -> Side | None:
        """Where the interval lies: within `threshold`, then `margin`, past `beyond`, or (None) nowhere.

        `margin`: how far two runs of one code lie apart, at least `threshold`, which it is inside one loop.
        Within either only an interval that holds the ratio with LEVEL says anything; beyond it p does.
        """
        if self._within(margin):
            inner: Side = "same" if self._within(threshold) else "within spread"
            return inner if self.coverage >= LEVEL else None
        if self.low > 1 + self.beyond:
            return "slower"
        return "faster" if self.high < 1 / (1 + self.beyond) else None

    def _within(self, share: float) -> bool:
        return self.low >= 1 / (1 + share) and self.high <= 1 + share

    def doubt(self) -> str:
        """Why no verdict may rest on these samples, '' when one may."""
        taken = min(len(self.base), len(self.new))
        if depth(taken)[1] < LEVEL or (self.independent == math.inf and self.coverage < LEVEL):
            return f"too few samples: {taken}"
        for name, spread in zip(("base", "new"), self.spreads, strict=True):
            if 1 + spread > STEADY_SPREAD:
                return f"the samples of {name} lie too far apart"
        if not 1 / (1 + MACHINE_DRIFT) <= self.machine <= 1 + MACHINE_DRIFT:
            return f"the streaming read of its loop takes {self.machine:.2f}x as long: another machine state"
        return self._fast_quarter()

    def _fast_quarter(self) -> str:
        """Work beside a run only adds time, now and then; other code moves its fastest samples too."""
        ratio = quantile(self.new, 0.25) / quantile(self.base, 0.25)
        if self.low > 1 + self.beyond and ratio <= 1 + self.beyond:
            return "its fastest quarter is not slower"
        if self.high < 1 / (1 + self.beyond) and ratio >= 1 / (1 + self.beyond):
            return "its fastest quarter is not faster"
        return ""


def paired(base: Sequence[float], new: Sequence[float], margin: float, rho: float = 0.0) -> Evidence:
    """Round by round: `base` and `new` (us) in the order taken, one sample each a round.

    `rho`: how much a round resembles the one before (`likeness.py`); interval and p-value are those of as
    many independent rounds.
    """
    size = len(base)
    share = independent_samples(size, rho) / size
    ratios = sorted(n / b for b, n in zip(base, new, strict=True))
    out, reached = depth(size, 1 - 2 * weakened((1 - LEVEL) / 2, 1 / share))
    low, high = ratios[out], ratios[size - 1 - out]
    p = 1.0
    if low > 1 + margin:
        p = _p(ratios, 1 + margin, share)
    elif high < 1 / (1 + margin):
        p = _p([1 / ratio for ratio in ratios], 1 + margin, share)
    ranked = sorted(base), sorted(new)
    return Evidence(
        base=ranked[0],
        new=ranked[1],
        ratio=median(ratios),
        low=low,
        high=high,
        coverage=1 - 2 * weakened((1 - reached) / 2, share),
        p=p,
        beyond=margin,
        independent=share * size,
        spreads=(apart(ranked[0]), apart(ranked[1])),
    )


def _p(ratios: Sequence[float], above: float, share: float) -> float:
    """Two-sided p-value by two tests, each at half the level, of which `share` of the rounds tell anything.

    The sign test needs no distribution and sees no distance: seven rounds 50 % above are no more to it than
    seven just above. Student's t of the log ratios sees it, and is led astray by single wild rounds.
    """
    by_sign = weakened(sign_test(ratios, above), share)
    logs = [math.log(ratio) for ratio in ratios]
    by_distance = student_test(logs, math.log(above), share * len(ratios))
    return min(1.0, 2 * 2 * min(by_sign, by_distance))


def unpaired(base: Sequence[float], new: Sequence[float], margin: float, machine: float = 1.0) -> Evidence:
    """Two runs, by the intervals of both medians and the Mann-Whitney test.

    They must differ by more than `margin` and than samples within either lie apart, raw and over `machine`.
    """
    base, new = sorted(base), sorted(new)
    spreads = apart(base), apart(new)
    beyond = max(margin, *spreads)
    level = math.sqrt(LEVEL)
    (out_base, reached_base), (out_new, reached_new) = depth(len(base), level), depth(len(new), level)
    low = new[out_new] / base[len(base) - 1 - out_base] / max(1.0, machine)
    high = new[len(new) - 1 - out_new] / base[out_base] / min(1.0, machine)
    p = 1.0
    if low > 1 + beyond:
        scale = (1 + beyond) * max(1.0, machine)
        p = 2 * mann_whitney([scale * us for us in base], new).p
    elif high < 1 / (1 + beyond):
        scale = (1 + beyond) / min(1.0, machine)
        p = 2 * mann_whitney([scale * us for us in new], base).p
    coverage = reached_base * reached_new
    ratio, p = median(new) / median(base), min(p, 1.0)
    return Evidence(base, new, ratio, low, high, coverage, p, beyond, machine, spreads=spreads)


def apart(samples: Sequence[float]) -> float:
    """90th over 10th percentile less 1, as in rows.Stat: what moves samples so far moves runs as far."""
    return quantile(samples, 0.9) / quantile(samples, 0.1) - 1
