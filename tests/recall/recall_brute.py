"""The oracle of the recall tests: float64, one query at a time, loops over pages; no code of questprof's.

`figures` says what one query of one head must come to, for a page size, a token budget and a policy.
"""

from __future__ import annotations

import math

import numpy as np


def pages_of(position: int, page_size: int) -> list[list[int]]:
    """Token positions of every page that a query at `position` sees."""
    tokens = list(range(position + 1))
    return [tokens[start : start + page_size] for start in range(0, len(tokens), page_size)]


def bounds_of(q: np.ndarray, k: np.ndarray, pages: list[list[int]]) -> list[float]:
    bounds = []
    for page in pages:
        total = 0.0
        for j in range(len(q)):
            column = [float(k[token, j]) for token in page]
            total += max(q[j] * min(column), q[j] * max(column))
        bounds.append(float(total))
    return bounds


def maxima_of(q: np.ndarray, k: np.ndarray, pages: list[list[int]]) -> list[float]:
    return [max(float(q @ k[token]) for token in page) for page in pages]


def best(scores: list[float], count: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda page: (-scores[page], page))[:count]


def pick(policy: str, budget: int, page_size: int, bounds: list[float], maxima: list[float]) -> list[int]:
    """Picked pages; every policy but random."""
    count, last = min(budget // page_size, len(bounds)), len(bounds) - 1
    if policy == "quest":
        return [last, *best(bounds[:-1], count - 1)]
    if policy == "quest-open":
        return best(bounds, count)
    if policy == "oracle":
        return best(maxima, count)
    assert policy == "fixed"
    return [0, *range(last, last - count + 1, -1)]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def needed(weights: list[float], order: list[int], share: float) -> int:
    total = 0.0
    for count, page in enumerate(order, start=1):
        total += weights[page]
        if total >= share:
            return count
    return len(order)


def figures(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    position: int,
    page_size: int,
    budget: int,
    policy: str,
    scale: float,
    top: int = 10,
) -> dict[str, float]:
    """`q` [d], `k`, `v` [tokens, d]: the figures of one query."""
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    pages = pages_of(position, page_size)
    bounds, maxima = bounds_of(q, k, pages), maxima_of(q, k, pages)
    picked = pick(policy, budget, page_size, bounds, maxima)
    p = softmax(k[: position + 1] @ q * scale)
    inside = sorted(token for page in picked for token in pages[page])
    outside = [token for token in range(position + 1) if token not in set(inside)]
    epsilon = math.fsum(p[outside])
    dense = p @ v[: position + 1]
    sparse = softmax(k[inside] @ q * scale) @ v[inside]
    size = float(np.linalg.norm(dense - sparse))
    largest = max(float(np.linalg.norm(v[token])) for token in range(position + 1))
    ranked = sorted(range(position + 1), key=lambda token: (-float(k[token] @ q), token))[:top]
    top_pages = {token // page_size for token in ranked}
    oracle = best(maxima, len(picked))
    missed, false = set(oracle) - set(picked), set(picked) - set(oracle)
    slack = [(bound - maximum) * scale for bound, maximum in zip(bounds, maxima, strict=True)]
    weights = [math.fsum(p[page]) for page in pages]
    tail_first = [len(pages) - 1, *best(bounds[:-1], len(pages))]
    found = {
        "mass": 1 - epsilon,
        "rel_err": size / float(np.linalg.norm(dense)),
        "bound_ratio": size / (2 * epsilon * largest) if epsilon else 0.0,
        "top_tokens": sum(token in inside for token in ranked) / len(ranked),
        "top_pages": len(top_pages & set(picked)) / len(top_pages),
        "pages": len(picked),
        "tail_taken": float(len(pages) - 1 in picked),
        "lost_pages": len(missed),
        "lost": (sum(maxima[m] for m in missed) - sum(maxima[f] for f in false)) * scale / len(picked),
        "tau_bound": sorted(bounds, reverse=True)[len(picked) - 1] * scale,
        "tau_true": sorted(maxima, reverse=True)[len(picked) - 1] * scale,
        "missed_slack": np.mean([slack[m] for m in missed]) if missed else math.nan,
        "false_slack": np.mean([slack[f] for f in false]) if false else math.nan,
        "slack": np.mean(slack),
        "slack_tail": slack[-1],
        "tail_mass": weights[-1],
        "needed_quest_95": needed(weights, tail_first, 0.95),
        "needed_oracle_99": needed(weights, best(maxima, len(pages)), 0.99),
    }
    order = {"quest": tail_first, "quest-open": best(bounds, len(pages))}.get(policy)
    order = best(maxima, len(pages)) if policy == "oracle" else order
    swallowed = max(order.index(page) for page in oracle) + 1 - len(picked) if order else math.nan
    found["swallowed"] = max(0, swallowed) if order else math.nan
    if len(picked) < len(pages):
        ordered = sorted(bounds, reverse=True)
        found["gap"] = (ordered[len(picked) - 1] - ordered[len(picked)]) * scale
    else:
        found["gap"] = math.nan
    return found


def union_ratio(picks: list[list[int]]) -> float:
    """Of the picks of a group's heads, K each."""
    return len(set().union(*picks)) / len(picks[0])
