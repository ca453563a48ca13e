"""Samples that resemble the ones before: how much they do, and how many independent ones tell as much.

Pure. Sources: the estimate and its bias, Marriott and Pope (1954); how many count, Bayley and
Hammersley (1946).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist


def autocorrelation(samples: Sequence[float]) -> float:
    """Lag-1 autocorrelation of samples in the order taken, corrected for the bias of an estimated mean.

    The plain estimate r of n samples expects rho - (1 + 4 rho) / n (Marriott and Pope), so what is returned
    is (n r + 1) / (n - 4), within -1 and 1; 0 below 6 samples or where they do not vary.
    """
    n = len(samples)
    centre = math.fsum(samples) / n
    rest = [sample - centre for sample in samples]
    square = math.fsum(value * value for value in rest)
    if n < 6 or square <= n * (1e-12 * (1 + abs(centre))) ** 2:  # rounding, no noise
        return 0.0
    r = math.fsum(one * other for one, other in pairwise(rest)) / square
    return max(-1.0, min(1.0, (n * r + 1) / (n - 4)))


def independent_samples(num_samples: int, rho: float) -> float:
    """How many independent samples tell as much of a mean as `num_samples` of autocorrelation rho ** lag.

    n (1 - rho) / (1 + rho), Bayley and Hammersley's limit of many; from 1 to as many as there are.
    """
    rho = max(0.0, rho)
    return max(1.0, num_samples * (1 - rho) / (1 + rho))


def weakened(p: float, share: float) -> float:
    """A one-sided p-value of samples of which only `share` tell anything: its normal score times sqrt(share).

    With 1 / share the p-value that is weakened to `p`. At 0.5 and above nothing was told: `p` itself.
    """
    if not 0 < p < 0.5 or share == 1:
        return p
    normal = NormalDist()
    return normal.cdf(normal.inv_cdf(p) * math.sqrt(share))
