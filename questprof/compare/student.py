"""Student's t: its distribution for whole degrees of freedom, and the test of a mean.

Pure. Sources: Student (1908); finite sums, Abramowitz and Stegun (1964), 26.7.3 and 26.7.4; samples that
resemble the ones before, Zwiers and von Storch (1995).
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def student_test(values: Sequence[float], centre: float = 0.0, independent: float = math.inf) -> float:
    """One-sided p-value that the mean of `values` is above `centre`, by Student's t.

    Values that resemble the ones before count as fewer `independent` ones, and vary by less than they would
    had there been time. 1 below two such values: then nothing is known.
    """
    n = len(values)
    count = min(float(n), independent)
    if count < 2:
        return 1.0
    mean = math.fsum(values) / n
    square = math.fsum((value - mean) ** 2 for value in values) / n / (count - 1)
    if mean <= centre:
        return 1.0
    t = (mean - centre) / math.sqrt(square) if square > 0 else math.inf
    return max(0.0, (1 - t_central(t, math.floor(count) - 1)) / 2)


def student_t(share: float, degrees: int) -> float:
    """The quantile of Student's t at `share` > 0.5, by bisection of its distribution function."""
    low, high = 0.0, 1e6
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_central(middle, degrees) < 2 * share - 1 else (low, middle)
    return high


def t_central(t: float, degrees: int) -> float:
    """P(|T| <= t) of Student's t for whole `degrees` of freedom."""
    theta = math.atan(t / math.sqrt(degrees))
    cosine, total = math.cos(theta), 0.0
    term = cosine if degrees % 2 else 1.0
    for k in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    if degrees % 2:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total
