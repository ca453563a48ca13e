"""Everything a profile says of where Quest pays: measured and modelled crossovers, costs, and traffic.

Pure: a profile's rows in, one Outlook a setting out. The command and the page show nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from questprof.crossover.coverage import Coverage, cover
from questprof.crossover.crossing import Crossover, Resampled, crossover, resampled
from questprof.crossover.predict import (
    CrossValidation,
    Model,
    Prediction,
    cross_validate,
    fit,
    predict,
    why_not,
)
from questprof.crossover.traffic import Traffic
from questprof.points import setting, settings
from questprof.rows import Row, Series
from questprof.scan import series, setting_key


@dataclass(frozen=True)
class Overhead:
    """One point whose budget covers its length: what scan and selection cost when they save nothing."""

    seq_len: int
    token_budget: int
    dense_us: float
    quest_us: float
    overhead_us: float
    """Measured: quest - dense."""
    bytes_ratio: float | None
    """Modelled: rho, 1 + 1/S with K = P and a paired summary."""
    warm: bool = False
    """Whether one of the two times is of a cache, not of memory."""


@dataclass(frozen=True)
class Answer:
    """One series: its measured crossover, the modelled one, and what traffic makes of it."""

    budget: str
    measured: Crossover
    interval: Resampled | None
    modelled: Prediction | None
    blind: Prediction | None
    """Modelled without the two lengths that bracket the measured crossover."""
    traffic: tuple[Coverage, ...]


@dataclass(frozen=True)
class Outlook:
    """One setting: everything that is the same at each of its points but length and budget."""

    setting: str
    answers: tuple[Answer, ...]
    overheads: tuple[Overhead, ...]
    model: Model | None
    no_model: str
    """Why there is no model."""
    validation: CrossValidation | None


def outlooks(rows: Sequence[Row], traffic: Iterable[Traffic] = ()) -> tuple[Outlook, ...]:
    """One Outlook a setting, in the order of `series`."""
    groups: dict[bytes, list[Series]] = {}
    for one in series(rows):
        groups.setdefault(setting_key(one.rows[0].point), []).append(one)
    wanted = tuple(traffic)
    names = settings([group[0].rows[0].point for group in groups.values()])
    return tuple(outlook(group, wanted, name) for group, name in zip(groups.values(), names, strict=True))


def outlook(group: Sequence[Series], traffic: Sequence[Traffic] = (), name: str = "") -> Outlook:
    """The Outlook of series that differ in their budget alone; `name`: what to call their setting."""
    rows = [row for one in group for row in one.rows]
    model = fit(rows)
    return Outlook(
        name or setting(rows[0].point),
        tuple(_answer(one, rows, model, traffic) for one in group),
        _overheads(rows),
        model,
        why_not(rows),
        cross_validate(rows),
    )


def plain(outlook: Outlook) -> dict[str, Any]:
    """An Outlook as plain data for JSON; of rows that were left out it keeps length and status."""
    document: dict[str, Any] = msgspec.to_builtins(outlook)
    for answer, found in zip(document["answers"], outlook.answers, strict=True):
        answer["measured"]["left_out"] = [
            {"seq_len": row.seq_len, "status": row.status} for row in found.measured.left_out
        ]
    return document


def _answer(one: Series, rows: Sequence[Row], model: Model | None, traffic: Sequence[Traffic]) -> Answer:
    measured = crossover(one)
    unseen = fit(rows, without=measured.bracket) if measured.bracket else None
    return Answer(
        one.budget_text,
        measured,
        resampled(one, measured),
        predict(model, one.token_budget) if model else None,
        predict(unseen, one.token_budget) if unseen else None,
        tuple(cover(one.rows, wanted, model, one.token_budget) for wanted in traffic),
    )


def _overheads(rows: Iterable[Row]) -> tuple[Overhead, ...]:
    """One a length: any budget from the length on reads the same pages."""
    by_length = {row.seq_len: row for row in rows if row.overhead_us is not None}
    return tuple(
        Overhead(
            length,
            row.token_budget,
            row.dense_us or 0.0,
            row.quest_us or 0.0,
            row.overhead_us or 0.0,
            row.bytes_ratio,
            bool(row.warm),
        )
        for length, row in sorted(by_length.items())
    )
