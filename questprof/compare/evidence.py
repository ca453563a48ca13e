"""What the raw samples of one stage say about two sides of it: a ratio, its interval, and doubts about them.

Pure. Rounds of one loop are compared one by one, two runs by their medians; both without a distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from questprof.rows import STEADY_SPREAD
from questprof.samples import LEVEL, depth, mann_whitney, quantile, sign_test

MACHINE_DRIFT: Final = 0.1
"""Relative difference of the streaming reads of two loops up to which they met the same machine."""


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
    """Probability with which the interval holds the ratio, for independent samples."""
    p: float
    """Two-sided p-value that the sides differ by more than `beyond`; 1 unless the interval lies beyond it."""
    beyond: float
    """Relative difference from which they differ: 0.02 for 2 %."""
    machine: float = 1.0
    """How much longer the streaming read of the new loop took than that of the base loop."""

    def side(self, margin: float) -> Literal["same", "faster", "slower"] | None:
        """Where the interval lies: within `margin`, past `beyond` on one side, or (None) neither."""
        if self.low >= 1 / (1 + margin) and self.high <= 1 + margin:
            return "same"
        if self.low > 1 + self.beyond:
            return "slower"
        return "faster" if self.high < 1 / (1 + self.beyond) else None

    def doubt(self) -> str:
        """Why no verdict may rest on these samples, '' when one may."""
        if self.coverage < LEVEL:
            return f"{min(len(self.base), len(self.new))} samples are too few"
        for name, ranked in (("base", self.base), ("new", self.new)):
            if 1 + apart(ranked) > STEADY_SPREAD:
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


def paired(base: Sequence[float], new: Sequence[float], margin: float) -> Evidence:
    """Round by round, by the sign test: `base` and `new` (us) in the order taken, one sample each a round."""
    ratios = sorted(n / b for b, n in zip(base, new, strict=True))
    out, coverage = depth(len(ratios))
    low, high = ratios[out], ratios[len(ratios) - 1 - out]
    p = 1.0
    if low > 1 + margin:
        p = 2 * sign_test(ratios, 1 + margin)
    elif high < 1 / (1 + margin):
        p = 2 * sign_test([1 / ratio for ratio in ratios], 1 + margin)
    return Evidence(sorted(base), sorted(new), median(ratios), low, high, coverage, min(p, 1.0), margin)


def unpaired(base: Sequence[float], new: Sequence[float], margin: float, machine: float = 1.0) -> Evidence:
    """Two runs, by the intervals of both medians and the Mann-Whitney test.

    They must differ by more than `margin` and than samples within either lie apart, raw and over `machine`.
    """
    base, new = sorted(base), sorted(new)
    beyond = max(margin, apart(base), apart(new))
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
    return Evidence(base, new, median(new) / median(base), low, high, coverage, min(p, 1.0), beyond, machine)


def apart(ranked: Sequence[float]) -> float:
    """90th over 10th percentile of sorted samples less 1: what moves samples so far moves runs as far."""
    last = len(ranked) - 1
    return ranked[int(0.9 * last)] / ranked[int(0.1 * last)] - 1
