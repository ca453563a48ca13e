"""The modelled crossover: per stage t = fixed + bytes / rate, fitted to a run's times, and where they cross.

Pure. Everything here is modelled; `crossing.py` has the measured answer, and nothing of it enters the fit but
the medians. A fit takes the points of one setting (equal but for length and budget) above their budgets, as
at or below it the stages do other work; only without any it takes those. Bytes are those of equation (12) as
predicted before the run; select, for which it counts none, is given the scores it reads, 4 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from questprof.ledger import SCORE_BYTES
from questprof.rows import Row

CHAIN = ("score", "select", "attend")
MOST_FITS = 10
"""Of a cross-validation: of more lengths several are left out at a time."""


@dataclass(frozen=True)
class StageFit:
    """t = fixed_us + bytes / rate_gb_s of one stage."""

    stage: str
    fixed_us: float
    """What it costs however little it reads; never below 0."""
    rate_gb_s: float | None
    """GB/s (1e9 bytes a second) of its bytes, never above the read ceiling; None: no limit seen."""
    rate_from: Literal["fit", "ceiling"]
    """`ceiling`: the points are of one size, or the fit was faster than memory."""
    num_points: int
    worst_error: float
    """Largest |modelled / measured - 1| over the points."""

    def us(self, num_bytes: float) -> float:
        """Modelled time of `num_bytes`, us."""
        return self.fixed_us + (num_bytes / self.rate_gb_s / 1e3 if self.rate_gb_s else 0.0)


@dataclass(frozen=True)
class CrossValidation:
    """Errors at lengths that the fit had not seen: each is left out in turn, of many those ten apart."""

    num_lengths: int
    dense_median: float
    dense_worst: float
    quest_median: float
    quest_worst: float


@dataclass(frozen=True)
class Model:
    """Dense and Quest of one setting as functions of length and budget."""

    dense: StageFit
    stages: tuple[StageFit, ...]
    """Score, select, attend."""
    chain_us: float
    """Median of quest less its stages timed alone: below 0 where they overlap."""
    token_bytes: Mapping[str, float]
    """Bytes a token of the longest request: dense, score, select."""
    budget_bytes: Mapping[int, float]
    """What attend reads at each budget."""
    lengths: tuple[int, ...]
    """Those that were fitted."""

    @property
    def fixed_us(self) -> float:
        """Quest's cost however little it reads: its stages' fixed costs and the chain's."""
        return sum(stage.fixed_us for stage in self.stages) + self.chain_us

    def dense_us(self, seq_len: float) -> float:
        """Modelled time of the fastest dense baseline, us."""
        return self.dense.us(self.token_bytes["dense"] * seq_len)

    def quest_us(self, seq_len: float, token_budget: int) -> float:
        """Modelled time of score, select and attend as one chain, us; every page within the budget."""
        whole = self.token_bytes["dense"] * seq_len
        read = {stage: self.token_bytes[stage] * seq_len for stage in ("score", "select")}
        read["attend"] = min(whole, self.budget_bytes.get(token_budget, whole))
        return sum(stage.us(read[stage.stage]) for stage in self.stages) + self.chain_us


@dataclass(frozen=True)
class Prediction:
    """Where a model has Quest faster than dense."""

    kind: Literal["length", "until", "always", "never", "trivial"]
    """`length`: from seq_len on. `until`: up to it, as Quest grows faster. The others: above the budget."""
    seq_len: float | None = None
    where: Literal["", "inside", "below", "above"] = ""
    """Of the lengths measured; outside them it is an extrapolation."""


def fit(rows: Iterable[Row], without: Iterable[int] = ()) -> Model | None:
    """The model of rows that differ in length and budget alone; None when `why_not` has a reason.

    `without`: lengths to leave out.
    """
    left_out = set(without)
    usable = [row for row in rows if row.seq_len not in left_out and _complete(row)]
    if _why_not(usable):
        return None
    above = [row for row in usable if not row.trivial] or usable
    dense = {row.seq_len: row for row in usable}.values()
    return Model(
        _stage("dense", list(dense)),
        tuple(_stage(stage, above) for stage in CHAIN),
        median(row.stats["quest"].median - sum(row.stats[s].median for s in CHAIN) for row in above),
        {s: median(_bytes(row, s) / row.seq_len for row in usable) for s in ("dense", "score", "select")},
        {
            budget: median(row.floor_bytes["attend"] for row in above if row.token_budget == budget)
            for budget in {row.token_budget for row in above}
        },
        tuple(sorted({row.seq_len for row in usable})),
    )


def why_not(rows: Iterable[Row]) -> str:
    """Why there is no model of `rows`; '' when there is one."""
    return _why_not([row for row in rows if _complete(row)])


def _why_not(usable: Sequence[Row]) -> str:
    if not usable:
        return "no point has valid times of dense and of every stage, and predicted bytes"
    if len({row.seq_len for row in usable}) < 2:
        return "a line needs two lengths with valid points"
    if not any(row.ceiling_gb_s for row in usable):
        return "no read ceiling was measured"
    return ""


def _complete(row: Row) -> bool:
    return (
        row.usable
        and not row.impossible
        and all(stage in row.stats for stage in (*CHAIN, "quest"))
        and all(row.floor_bytes.get(stage) for stage in ("dense", "score", "attend"))
    )


def _bytes(row: Row, stage: str) -> float:
    if stage == "select":
        return float(SCORE_BYTES * row.point.shape.num_qo_heads * sum(row.point.num_pages))
    return float(row.floor_bytes[stage])


def _stage(stage: str, rows: Sequence[Row]) -> StageFit:
    """Least squares of the relative error, with the fixed cost at least 0 and no rate above the ceiling.

    With u = 1 / t and v = bytes / t the error of a point is fixed u + slope v - 1.
    """
    times = [row.dense_us or 0.0 if stage == "dense" else row.stats[stage].median for row in rows]
    sizes = [_bytes(row, stage) for row in rows]
    least = 0.0 if stage == "select" else 1e-3 / max(row.ceiling_gb_s or 0.0 for row in rows)
    fixed, slope = _line(sizes, times, least)
    errors = [abs((fixed + slope * size) / us - 1) for size, us in zip(sizes, times, strict=True)]
    return StageFit(
        stage,
        fixed,
        1e-3 / slope if slope else None,
        "ceiling" if slope == least else "fit",
        len(rows),
        max(errors),
    )


def _line(sizes: Sequence[float], times: Sequence[float], least: float) -> tuple[float, float]:
    """Fixed cost and slope (us a byte); the slope is at least `least`."""
    u = [1 / us for us in times]
    v = [size / us for size, us in zip(sizes, times, strict=True)]
    uu, uv, vv = _dot(u, u), _dot(u, v), _dot(v, v)
    if len(set(sizes)) > 1:
        if scale := max(0.0, uu * vv - uv * uv):  # 0: the sizes differ by less than floats tell
            fixed, slope = (sum(u) * vv - sum(v) * uv) / scale, (uu * sum(v) - uv * sum(u)) / scale
        else:
            fixed, slope = -1.0, 0.0
        if fixed >= 0 and slope >= least:
            return fixed, slope
        if fixed < 0 and sum(v) / vv >= least:
            return 0.0, sum(v) / vv
    return max(0.0, (sum(u) - least * uv) / uu), least


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def predict(model: Model, token_budget: int) -> Prediction:
    """Where the lines cross: what Quest starts with more over what dense adds more a token.

    Above the budget attend reads the same at every length, so dense, score and select alone grow.
    """
    if token_budget not in model.budget_bytes:
        return Prediction("trivial")
    score, select, attend = model.stages
    start = model.fixed_us - attend.fixed_us + attend.us(model.budget_bytes[token_budget])
    more = start - model.dense.fixed_us
    gain = _growth(model, model.dense) - _growth(model, score) - _growth(model, select)
    if not gain:
        return Prediction("always" if more < 0 else "never")
    at = more / gain
    if at <= token_budget:
        return Prediction("always" if gain > 0 else "never")
    below, above = at < model.lengths[0], at > model.lengths[-1]
    where: Literal["below", "above", "inside"] = "below" if below else "above" if above else "inside"
    return Prediction("length" if gain > 0 else "until", at, where)


def _growth(model: Model, stage: StageFit) -> float:
    """Us a token."""
    return model.token_bytes[stage.stage] / stage.rate_gb_s / 1e3 if stage.rate_gb_s else 0.0


def cross_validate(rows: Sequence[Row]) -> CrossValidation | None:
    """Errors of models fitted without the length they predict; None below three lengths."""
    dense, quest = list[float](), list[float]()
    by_length: dict[int, list[Row]] = {}
    for row in sorted(filter(_complete, rows), key=lambda row: row.seq_len):
        by_length.setdefault(row.seq_len, []).append(row)
    lengths = list(by_length)
    if len(lengths) < 3:
        return None
    for first in range(min(len(lengths), MOST_FITS)):
        unseen = lengths[first::MOST_FITS]
        model = fit(rows, without=unseen)
        if model is None:
            return None
        for length in unseen:
            dense.append(abs(model.dense_us(length) / (by_length[length][0].dense_us or 0.0) - 1))
            quest += [
                abs(model.quest_us(length, row.token_budget) / row.stats["quest"].median - 1)
                for row in by_length[length]
                if not row.trivial and row.token_budget in model.budget_bytes
            ]
    if not quest:
        return None
    return CrossValidation(len(lengths), median(dense), max(dense), median(quest), max(quest))
