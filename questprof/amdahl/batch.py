"""Batches as a service: tokens a second, latency a token, attended tokens, attention's share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from questprof.amdahl.breakdown import Breakdown, quest_layers
from questprof.model import Point
from questprof.rows import Stat


@dataclass(frozen=True)
class Served:
    """One step as a service: every request with tokens gets one more a step."""

    point: Point
    requests: int
    """Active tokens a step: one for each request that is not empty."""
    cached_tokens: int
    """Tokens in the cache, over all requests."""
    attended_tokens: float
    """Tokens that a head attends to in a step: over all requests, mean over the layers."""
    ms_a_token: float
    p95_ms: float | None
    no_p95: str
    """Why p95 is missing; '' where it is there."""
    tokens_s: float
    attention_share: float | None


def served(step: Breakdown) -> Served:
    """A step's tokens and rates. A request waits one whole step for its token, whatever the batch."""
    point = step.point
    requests = sum(length > 0 for length in point.lengths)
    return Served(
        point=point,
        requests=requests,
        cached_tokens=sum(point.lengths),
        attended_tokens=attended_tokens(point),
        ms_a_token=step.us / 1e3,
        p95_ms=step.step.p95 / 1e3 if step.step.p95 else None,
        no_p95="" if step.step.p95 else _no_p95(step.step),
        tokens_s=requests / step.us * 1e6,
        attention_share=step.attention_share if step.parts else None,
    )


def _no_p95(stat: Stat) -> str:
    return stat.no_tail or f"{stat.num_samples} samples"


def attended_tokens(point: Point) -> float:
    """Tokens a head attends to in a step, mean over the layers: all of them where a layer is dense."""
    everything, layers = sum(point.lengths), point.shape.num_layers
    setup, quest = point.decode, quest_layers(point)
    if not quest or setup is None:
        return float(everything)
    if setup.layer_budgets:
        budgets = [budget for budget in setup.layer_budgets[setup.dense_layers :] if budget]
        picked = sum(_attended(point, (budget,) * len(point.lengths)) for budget in budgets)
    else:
        picked = quest * _attended(point, point.budgets)
    return (picked + (layers - quest) * everything) / layers


def _attended(point: Point, budgets: Sequence[int]) -> int:
    """Tokens of the selected pages of one layer; a budget that covers its request takes all of it."""
    size = point.page_size
    return sum(
        length if budget >= length else budget // size * size
        for budget, length in zip(budgets, point.lengths, strict=True)
    )
