"""Statistics of raw samples, without assuming a distribution: a clock's noise is skewed and heavy-tailed.

Pure. Samples are positive finite numbers of one unit (us, GB/s) in the order they were taken; nothing here
sorts in place. Empty input raises ValueError: no samples is a status of the caller's, never a NaN.

Sources: order-statistic intervals and quantiles, David and Nagaraja, Order Statistics (2003), 7.1; trend,
Mann (1945), Kendall, Rank Correlation Methods (1975); two samples, Mann and Whitney (1947); sign test, Dixon
and Mood (1946); families of tests, Holm (1979); bootstrap, Efron and Tibshirani (1993), chapter 13.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, median

LEVEL = 0.95
EXACT_SIZE = 10
"""Ranks of fewer samples than this are tested exactly; of more, the normal approximation is close."""


@dataclass(frozen=True)
class Interval:
    """An interval for a median, and the probability that it holds the true one (`coverage`)."""

    low: float
    high: float
    coverage: float

    @property
    def half_width(self) -> float:
        """Half its width, in the samples' unit."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Drift:
    """How ordered samples trend: Kendall's tau with time, its two-sided p-value, and by how much.

    `change`: median of the last third over median of the first third, less 1.
    """

    tau: float
    p: float
    change: float


@dataclass(frozen=True)
class Shift:
    """One-sided p-value that new samples are larger than base ones, and by how much.

    `superiority`: probability that a sample of the new ones is larger than one of the base (ties half).
    """

    p: float
    superiority: float


def quantile(samples: Sequence[float], share: float) -> float:
    """The quantile at `share` (0 to 1), linear between ranks 0 and n - 1, in the samples' unit."""
    ranked = sorted(_some(samples))
    at = share * (len(ranked) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (at - low) * (ranked[high] - ranked[low])


def tail(samples: Sequence[float], share: float) -> float | None:
    """A tail quantile such as p95 or p99; None when fewer than 1 / (1 - share) samples cannot show it.

    Give samples of single launches: of means over many launches it is no tail.
    """
    if len(samples) * (1 - share) < 1 - 1e-9:
        return None
    return quantile(samples, share)


@lru_cache(maxsize=1024)
def depth(num_samples: int, level: float = LEVEL) -> tuple[int, float]:
    """How many samples to leave out on either side for an interval of the median, and its exact coverage.

    The interval between the order statistics d and n - 1 - d (from 0) holds the median of any continuous
    distribution with probability 1 - 2 P(Bin(n, 1/2) <= d). The narrowest that reaches `level`; where
    none does, d = 0 with the coverage of the whole range, 1 - 2 ** (1 - n).
    """
    total, below, found = 1 << num_samples, 0, 0
    coverage = 1 - 2 / total
    for d in range(num_samples // 2 + 1):
        below += math.comb(num_samples, d)
        reached = 1 - 2 * below / total
        if reached < level:
            break
        found, coverage = d, reached
    return found, max(coverage, 0.0)


def median_interval(samples: Sequence[float], level: float = LEVEL) -> Interval:
    """The order-statistic interval of the median with its exact coverage, in the samples' unit.

    Below 6 samples no interval reaches 95 %: the range is returned, and `coverage` says what it is worth.
    """
    ranked = sorted(_some(samples))
    out, coverage = depth(len(ranked), level)
    return Interval(ranked[out], ranked[len(ranked) - 1 - out], coverage)


def relative_half_width(samples: Sequence[float], level: float = LEVEL) -> float:
    """Half the width of the median's interval over the median; inf while too few samples reach `level`.

    A stopping rule compares it with the precision wanted. Looking again and again lowers the real
    coverage at the moment of stopping: stop after two looks in a row, or ask for more than is needed.
    """
    interval = median_interval(samples, level)
    middle = median(samples)
    if interval.coverage < level or middle <= 0:
        return math.inf
    return interval.half_width / middle


def drift(samples: Sequence[float]) -> Drift:
    """The Mann-Kendall trend test over samples in the order taken; exact below EXACT_SIZE without ties."""
    n = len(_some(samples))
    third = max(1, n // 3)
    change = median(samples[-third:]) / median(samples[:third]) - 1 if n > 1 else 0.0
    score = _concordance(samples)
    ties = _ties(samples)
    pairs = n * (n - 1) / 2
    tau = score / pairs if pairs else 0.0
    if n < EXACT_SIZE and not ties:
        return Drift(tau, _exact_trend_p(n, abs(score)), change)
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return Drift(tau, _normal_p(abs(score) - 1, variance), change)


def sign_test(values: Sequence[float], centre: float = 0.0) -> float:
    """One-sided exact p-value that the median of `values` is above `centre`.

    Values equal to `centre` count against: a median that sits on a threshold is not called beyond it.
    """
    above = sum(value > centre for value in _some(values))
    return _upper_tail(len(values), above)


def mann_whitney(base: Sequence[float], new: Sequence[float]) -> Shift:
    """One-sided p-value that `new` is stochastically larger than `base`, unpaired.

    Exact where both are small and untied, otherwise normal with ties and continuity corrected.
    Give samples of one unit; multiply `base` by 1 + margin to ask for more than a margin.
    """
    ranked = sorted(_some(base))
    m, n = len(ranked), len(_some(new))
    below = sum(bisect_left(ranked, value) for value in new)
    u = (below + sum(bisect_right(ranked, value) for value in new)) / 2
    ties = _ties([*base, *new])
    if max(m, n) < EXACT_SIZE and not ties:
        return Shift(_exact_u_p(m, n, round(u)), u / (m * n))
    size = m + n
    tied = sum(t**3 - t for t in ties) / (size * (size - 1))
    variance = m * n / 12 * (size + 1 - tied)
    excess = u - m * n / 2 - 0.5
    p = 1 - NormalDist().cdf(excess / math.sqrt(variance)) if variance > 0 else 1.0
    return Shift(p, u / (m * n))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in order.

    Rejecting those up to 5 % raises any false alarm in at most 5 % of families, however dependent.
    """
    adjusted, worst, count = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, index in enumerate(sorted(range(count), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def bootstrap_medians(
    groups: Sequence[Sequence[float]], *, num_resamples: int = 2000, seed: int = 0
) -> list[list[float]]:
    """Medians of `num_resamples` resamples of each group, aligned: entry i of every group is of one resample.

    Groups of equal length are resampled by the same rounds, which keeps the pairing of samples that were
    taken in turn in one loop; give groups of different loops in different calls, with different seeds.
    """
    import numpy as np

    picks: dict[int, np.ndarray] = {}
    found = []
    for group in groups:
        size = len(_some(group))
        if size not in picks:
            picks[size] = np.random.default_rng([seed, size]).integers(0, size, (num_resamples, size))
        found.append(np.median(np.asarray(group, dtype=float)[picks[size]], axis=1).tolist())
    return found


def percentile_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of bootstrap replicates: from one of them to another, outwards; some may be inf."""
    ranked = sorted(_some(values))
    outside = math.floor((1 - level) / 2 * (len(ranked) - 1))
    return ranked[outside], ranked[-1 - outside]


def between_run_sd(medians: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of log medians between runs of one code, pooled over items (point and stage).

    `medians`: for each item its median in each run; items of a single run tell nothing. None without two.
    """
    squares, degrees = 0.0, 0
    for runs in medians:
        logs = [math.log(value) for value in runs]
        if len(logs) > 1:
            centre = math.fsum(logs) / len(logs)
            squares += math.fsum((value - centre) ** 2 for value in logs)
            degrees += len(logs) - 1
    return math.sqrt(squares / degrees) if degrees else None


def _some(samples: Sequence[float]) -> Sequence[float]:
    if not samples:
        raise ValueError("there are no samples")
    return samples


def _ties(samples: Sequence[float]) -> list[int]:
    """Sizes of the groups of equal samples."""
    return [count for count in Counter(samples).values() if count > 1]


def _concordance(samples: Sequence[float]) -> int:
    """Kendall's S: pairs that rise with time less pairs that fall."""
    score, ranked = 0, list[float]()
    for value in samples:
        low, high = bisect_left(ranked, value), bisect_right(ranked, value)
        score += low - (len(ranked) - high)
        ranked.insert(high, value)
    return score


def _normal_p(excess: float, variance: float) -> float:
    """Two-sided p-value of a statistic `excess` above its mean of 0; 1 when nothing can vary."""
    if variance <= 0 or excess <= 0:
        return 1.0
    return 2 * (1 - NormalDist().cdf(excess / math.sqrt(variance)))


@lru_cache(maxsize=64)
def _inversions(size: int) -> tuple[int, ...]:
    """Permutations of `size` things by their number of inversions (Mahonian numbers)."""
    counts = [1]
    for n in range(2, size + 1):
        longer = [0] * (len(counts) + n - 1)
        for inversions, count in enumerate(counts):
            for more in range(n):
                longer[inversions + more] += count
        counts = longer
    return tuple(counts)


def _exact_trend_p(size: int, score: int) -> float:
    """Two-sided exact p-value of |S| >= `score`: S is the number of pairs less twice the inversions."""
    counts = _inversions(size)
    most = (size * (size - 1) // 2 - score) // 2
    return min(1.0, 2 * sum(counts[: most + 1]) / math.factorial(size))


@lru_cache(maxsize=256)
def _u_counts(m: int, n: int) -> tuple[int, ...]:
    """Arrangements of m and n samples by U; U of two sets is a Gaussian binomial's coefficient."""
    if not m or not n:
        return (1,)
    with_new, with_base = _u_counts(m, n - 1), _u_counts(m - 1, n)
    counts = [0] * (m * n + 1)
    for u, count in enumerate(with_new):  # the largest of all is a new one: it beats all m
        counts[u + m] += count
    for u, count in enumerate(with_base):
        counts[u] += count
    return tuple(counts)


def _exact_u_p(m: int, n: int, u: int) -> float:
    return sum(_u_counts(m, n)[u:]) / math.comb(m + n, n)


@lru_cache(maxsize=4096)
def _upper_tail(size: int, successes: int) -> float:
    """P(Bin(size, 1/2) >= successes)."""
    return sum(math.comb(size, k) for k in range(successes, size + 1)) / (1 << size)
