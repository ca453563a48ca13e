"""Speed at equal mass: timed points beside the mass that their page size and budget keep on the trace.

Only points timed near the trace's own length are joined: what a budget keeps of another length is not known.
Mass between two measured budgets is interpolated over the logarithm of the budget where the larger is at
most WIDE times the smaller: over wider gaps the curve bends too much. So is time between two timed ones,
however far apart; nothing is taken beyond the smallest or the largest of either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from questprof.model import Profile, Shape
from questprof.recall.answers.evaluation import Evaluation
from questprof.recall.answers.words import one_line
from questprof.rows import Row
from questprof.scan import scan_rows
from questprof.units import count

MASSES = (0.95, 0.99)
WIDE = 2
"""Neighbouring budgets further apart than this many times are too far apart to interpolate mass between."""
NOT_USABLE = "No time beside the mass: no timed point is checked, steady and compared with dense attention."
NEAR = math.sqrt(2)
"""Times were taken at the trace's length where neither is more than this many times the other."""


@dataclass(frozen=True)
class Timed:
    """One timed point with the mass there, mean over layers and heads of the trace."""

    device: str
    setting: str
    """Shape, batch, kernels: what points that are compared share."""
    seq_len: int
    page_size: int
    token_budget: int
    policy: str
    mass: float
    between: tuple[int, int] | None
    """The measured budgets that `mass` lies between; None where the budget itself was evaluated."""
    quest_us: float
    dense_us: float

    @property
    def speed_up(self) -> float:
        """Over the fastest dense baseline, measured."""
        return self.dense_us / self.quest_us


@dataclass(frozen=True)
class EqualMass:
    """One setting and page size at one mass; `token_budget` and `quest_us` are interpolated."""

    device: str
    setting: str
    seq_len: int
    page_size: int
    policy: str
    mass: float
    token_budget: float | None
    quest_us: float | None
    dense_us: float
    why_not: str = ""
    """Why there is no figure."""

    @property
    def speed_up(self) -> float | None:
        """Over the fastest dense baseline."""
        return self.dense_us / self.quest_us if self.quest_us else None


@dataclass(frozen=True)
class Joined:
    """What timing profiles add to one trace."""

    timed: tuple[Timed, ...] = ()
    equal: tuple[EqualMass, ...] = ()
    notes: tuple[str, ...] = ()


def join(evaluation: Evaluation, timings: Iterable[Profile]) -> Joined:
    """Every usable timed point near the trace's length, and the times at equal mass."""
    every = [(run, row) for profile in timings for run in profile.runs for row in scan_rows(run)]
    rows = [(profile, row) for profile, row in every if row.usable]
    if not rows:
        return Joined(notes=(NOT_USABLE,) if every else ())
    tokens = evaluation.trace.num_tokens
    near = [(p, row) for p, row in rows if max(row.seq_len / tokens, tokens / row.seq_len) <= NEAR]
    lengths = {row.seq_len for _, row in near}
    notes = [
        *_notes(evaluation, [row for _, row in rows], [row for _, row in near]),
        *_unusable([row for _, row in every if not row.usable and row.seq_len in lengths]),
        *_warm([row for _, row in near]),
    ]
    groups: dict[tuple[int, str, int, int, str], list[Timed]] = {}
    for profile, row in near:
        one = _timed(evaluation, profile, row)
        if one:
            key = id(profile), one.setting, one.seq_len, one.page_size, one.policy
            groups.setdefault(key, []).append(one)
    ordered = [sorted(group, key=lambda one: one.token_budget) for group in groups.values()]
    equal = tuple(_equal(evaluation, group, mass) for mass in MASSES for group in ordered)
    return Joined(tuple(one for group in ordered for one in group), equal, tuple(notes))


def mass_at(evaluation: Evaluation, page_size: int, policy: str, token_budget: int) -> float | None:
    """Mean mass of a budget, interpolated between measured ones; None beyond them and in a WIDE gap."""
    curve = _curve(evaluation, page_size, policy)
    around = [pair for pair in pairwise(sorted(curve)) if pair[0] < token_budget < pair[1]]
    return None if any(_is_wide(*pair) for pair in around) else _between(curve, token_budget)


def _is_wide(low: float, high: float) -> bool:
    return high > WIDE * low


def _curve(evaluation: Evaluation, page_size: int, policy: str) -> dict[float, float]:
    found = {}
    for budget in evaluation.budgets(page_size, policy):
        mass = evaluation.mass(page_size, budget, policy)
        if mass is not None:
            found[float(budget)] = mass
    return found


def _between(curve: Mapping[float, float], at: float) -> float | None:
    """The curve's value at `at`, straight over the logarithm of x between neighbours; None outside."""
    if at in curve:
        return curve[at]
    for low, high in pairwise(sorted(curve)):
        if low < at < high:
            share = math.log(at / low) / math.log(high / low)
            return curve[low] + share * (curve[high] - curve[low])
    return None


def crossing(curve: Mapping[float, float], mass: float) -> float | None:
    """The least budget whose mass on the curve is `mass`; None where none is, or only in a WIDE gap."""
    around = crossed(curve, mass)
    if around is None or _is_wide(*around):
        return None
    low, high = around
    if low == high:
        return low
    share = (mass - curve[low]) / (curve[high] - curve[low])
    return low * math.exp(share * math.log(high / low))


def crossed(curve: Mapping[float, float], mass: float) -> tuple[float, float] | None:
    """The neighbouring budgets between which the curve reaches `mass`, alike where one has it; None: none."""
    alike = [budget for budget, value in curve.items() if math.isclose(value, mass, rel_tol=1e-9)]
    if alike:
        return min(alike), min(alike)
    pairs = pairwise(sorted(curve))
    return next(((low, high) for low, high in pairs if curve[low] < mass < curve[high]), None)


def _timed(evaluation: Evaluation, profile: Profile, row: Row) -> Timed | None:
    mass = mass_at(evaluation, row.page_size, row.policy, row.token_budget)
    if mass is None or not row.quest_us or not row.dense_us:
        return None
    budgets = evaluation.budgets(row.page_size, row.policy)
    inside = row.token_budget not in budgets
    between = (
        (
            max(budget for budget in budgets if budget < row.token_budget),
            min(budget for budget in budgets if budget > row.token_budget),
        )
        if inside
        else None
    )
    return Timed(
        device=profile.header.environment.device_name,
        setting=_setting(row),
        seq_len=row.seq_len,
        page_size=row.page_size,
        token_budget=row.token_budget,
        policy=row.policy,
        mass=mass,
        between=between,
        quest_us=row.quest_us,
        dense_us=row.dense_us,
    )


def _setting(row: Row) -> str:
    from questprof.points import kernels

    point = row.point
    said = f"{shape_text(point.shape)}, batch {row.batch_size}, {kernels(point)}"
    said += f", {point.summary_layout} summary" * (point.summary_layout != "paired")
    said += f", {point.page_order} pages" * (point.page_order != "shuffled")
    return said + f", {point.data} queries" * (point.shape.group_size > 1)


def _equal(evaluation: Evaluation, timed: Sequence[Timed], mass: float) -> EqualMass:
    """Time at the budget that keeps `mass`; `timed` differ in their budget alone."""
    first = timed[0]
    curve = _curve(evaluation, first.page_size, first.policy)
    budget = crossing(curve, mass)
    times = {float(one.token_budget): one.quest_us for one in timed}
    us = _between(times, budget) if budget else None
    if budget is None:
        why = _why_no_budget(curve, mass)
    else:
        why = (
            ""
            if us
            else (
                f"it takes {budget:.0f} tokens, timed were "
                f"{', '.join(str(one.token_budget) for one in timed)}"
            )
        )
    return EqualMass(
        device=first.device,
        setting=first.setting,
        seq_len=first.seq_len,
        page_size=first.page_size,
        policy=first.policy,
        mass=mass,
        token_budget=budget,
        quest_us=us,
        dense_us=first.dense_us,
        why_not=why,
    )


def _why_no_budget(curve: Mapping[float, float], mass: float) -> str:
    """Why `crossing` found none."""
    budgets = sorted(curve)
    if around := crossed(curve, mass):
        return f"it takes between {around[0]:.0f} and {around[1]:.0f} tokens, too far apart to interpolate"
    if max(curve.values()) < mass:
        return f"no measured budget reaches it, {budgets[-1]:.0f} keeps {curve[budgets[-1]]:.1%}"
    return f"the smallest measured budget, {budgets[0]:.0f}, keeps {curve[budgets[0]]:.1%} already"


def shape_text(shape: Shape) -> str:
    """A shape in the few words that a join needs: name, heads, head_dim, dtype."""
    heads = f"{shape.num_qo_heads} query / {shape.num_kv_heads} KV heads of {shape.head_dim}"
    return f"{one_line(shape.name)} ({heads}, {shape.kv_dtype})"


def _notes(evaluation: Evaluation, rows: Sequence[Row], near: Sequence[Row]) -> Iterable[str]:
    """What keeps mass and times apart: lengths, page sizes, shapes."""
    trace, own = evaluation.trace, evaluation.records[0].point.shape if evaluation.records else None
    if not near:
        lengths = ", ".join(str(n) for n in sorted({row.seq_len for row in rows}))
        yield (
            f"No time beside {one_line(trace.source)}: it has {trace.num_tokens} tokens, timed were "
            f"{lengths}, and what a budget keeps of another length is not known."
        )
        return
    outside = [
        row for row in near if mass_at(evaluation, row.page_size, row.policy, row.token_budget) is None
    ]
    if outside:
        have, fell = "have no mass", "were not evaluated, nor lie"
        if len(outside) == 1:
            have, fell = "has no mass", "was not evaluated, nor lies"
        yield (
            f"{len(outside)} of {count(len(near), 'timed point')} near {trace.num_tokens} tokens {have}: "
            f"{_some(outside)} {fell} between evaluated budgets at most {WIDE} times apart."
        )
    if own is None:
        return
    facts: Callable[[Shape], tuple[int, int, int]] = lambda shape: (  # noqa: E731
        shape.num_qo_heads,
        shape.num_kv_heads,
        shape.head_dim,
    )
    others = {shape_text(row.point.shape) for row in near if facts(row.point.shape) != facts(own)}
    if others:
        yield (
            f"Mass is of {shape_text(own)}, times are of {'; '.join(sorted(others))}: another model keeps "
            "another mass at the same budget. Time the model's own shape (--shape config.json)."
        )


def _unusable(rows: Sequence[Row]) -> Iterable[str]:
    """Timed points at the same lengths that are no evidence."""
    if rows:
        told = count(len(rows), "timed point is", "timed points are")
        yield f"{told} left out as no evidence (wrong, unstable, or samples too far apart): {_some(rows)}."


def _warm(rows: Sequence[Row]) -> Iterable[str]:
    """Timed points whose times are of a cache."""
    if warm := [row for row in rows if row.warm]:
        yield f"Warm, times of a cache and not of memory: {_some(warm)}."


def _some(rows: Sequence[Row]) -> str:
    said = dict.fromkeys(f"page {row.page_size} budget {row.token_budget} {row.policy}" for row in rows)
    names = list(said)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
