"""How far the product's stages and the float64 path agree, and whether the bounds hold: worst errors by case.

score   |U_fp32 - U_float64| over sum_j |q_j| max(|m_j|, |M_j|), at most head_dim roundings of fp32
select  how far the float64 bound of a picked page lies below that of a page left out, over the same sum:
        pages may differ where bounds are equal but for rounding (near ties, which are counted), nowhere else
mass    |exp(lse_attend - lse_dense) - mass|
output  |o_C of `attend` - o_C|, the largest element, over V_max
gather  the same of `attend` over a gathered copy of the same pages, against `attend` in place
bound (4), bound (7)   in float64, of every page and query: how far the bounded number lies above its bound
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from questprof.model import Check
from questprof.recall.view import Bools, Floats, PageView

AGREEMENT = 1e-4
"""Tolerance of `mass` and `output`."""
BOUND_ROUNDING = 1e-9
"""Rounding that bound (7) may be exceeded by, of the bound."""
FP32, FLOAT64 = 2.0**-24, 2.0**-53


def tolerances(head_dim: int) -> dict[str, float]:
    """Tolerance of every comparison, in the order shown."""
    return {
        "score": head_dim * FP32,
        "select": 2 * head_dim * FP32,
        "mass": AGREEMENT,
        "output": AGREEMENT,
        "gather": AGREEMENT,
        "bound (4)": 2 * head_dim * FLOAT64,
        "bound (7)": BOUND_ROUNDING,
    }


@dataclass
class Agreement:
    """Worst errors so far: `errors[case][stage]`, NaN where a stage gave nonsense."""

    num_cases: int
    errors: list[dict[str, float]] = field(default_factory=list)
    near_ties: list[int] = field(default_factory=list)
    """Queries and heads whose picks differ between the paths."""

    def __post_init__(self) -> None:
        """Nothing compared yet."""
        self.errors = self.errors or [{} for _ in range(self.num_cases)]
        self.near_ties = self.near_ties or [0] * self.num_cases

    def note(self, case: int, stage: str, error: float) -> None:
        """Keep `error` where it is the worst of its case and stage; NaN is worse than all."""
        held = self.errors[case].get(stage, 0.0)
        self.errors[case][stage] = math.nan if math.isnan(error) or math.isnan(held) else max(held, error)

    def note_all(self, stage: str, error: float) -> None:
        """`note` for every case."""
        for case in range(self.num_cases):
            self.note(case, stage, error)

    def add(self, other: Agreement) -> None:
        """Take in what another layer gave."""
        for case, errors in enumerate(other.errors):
            for stage, error in errors.items():
                self.note(case, stage, error)
            self.near_ties[case] += other.near_ties[case]

    def checks(self, case: int, head_dim: int, sampled: bool) -> tuple[Check, ...]:
        """The case's comparisons as checks of a record; `sampled`: attention ran over some layers only."""
        errors = self.errors[case]
        return tuple(
            Check(
                stage,
                "after",
                errors[stage] if math.isfinite(errors[stage]) else None,
                tolerance,
                stage == "gather" or (sampled and stage in ("mass", "output")),
            )
            for stage, tolerance in tolerances(head_dim).items()
            if stage in errors
        )


def score_error(view: PageView, scores: np.ndarray) -> float:
    """Worst error of `scores` [group, query, page] of stage `score` against the view's bounds."""
    there = np.broadcast_to(view.visible, view.bounds.shape)
    off = np.abs(scores.astype(np.float64)[there] - view.bounds[there])
    return worst(off, view.rounding[there])


def shortfall(view: PageView, picked: Bools, expected: Bools, scores: Floats) -> tuple[float, int]:
    """(worst shortfall of `picked` where it differs from `expected`, rows [group, query] that differ).

    `scores` [group, query, page] are what was ranked, in float64: +inf for a page that is always taken.
    """
    wrong, left_out = picked & ~expected, expected & ~picked
    rows = wrong.any(axis=-1) | left_out.any(axis=-1)
    if not rows.any():
        return 0.0, 0
    lowest = np.where(wrong, scores, np.inf).min(axis=-1)[rows]
    highest = np.where(left_out, scores, -np.inf).max(axis=-1)[rows]
    return worst(np.maximum(highest - lowest, 0), view.rounding.max(axis=-1)[rows]), int(rows.sum())


def worst(off: Floats, over: Floats | float) -> float:
    """The largest off / over: 0 without any, infinite where something stands over nothing, NaN for a NaN."""
    if not off.size:
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(off == 0, 0.0, off / over)
    return float(ratio.max())


def attention_errors(
    lse: np.ndarray, dense_lse: np.ndarray, out: np.ndarray, mass: Floats, reference: Floats, largest: Floats
) -> tuple[float, float]:
    """(error of the mass, error of the output) of stage `attend` for one case.

    `lse`, `dense_lse`, `mass` [head, query]; `out`, `reference` [head, query, d]; `largest` [head, query].
    """
    found = np.exp(lse.astype(np.float64) - dense_lse.astype(np.float64))
    off = np.abs(out.astype(np.float64) - reference).max(axis=-1)
    return worst(np.abs(found - mass), 1.0), worst(off, largest)


def failures(checks: Sequence[Check]) -> list[str]:
    """The checks that do not hold, in words."""
    return [
        f"{check.stage}: {'no number' if check.max_rel_err is None else f'{check.max_rel_err:.3g}'}"
        f", at most {check.tolerance:.3g} allowed"
        for check in checks
        if not check.holds
    ]
