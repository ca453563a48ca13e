"""An Outlook as tables of text, the same in the terminal and on the page; every figure's source is named.

Pure. A column names the source of its figures in its head, or the note does for all columns that name none.
Lengths are tokens (k = 1024); shares are of requests, decode steps or dense time at measured lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from questprof.crossover.coverage import Coverage
from questprof.crossover.crossing import Crossover
from questprof.crossover.outlook import Answer, Outlook
from questprof.crossover.predict import Model, Prediction, StageFit
from questprof.crossover.sentences import (
    between_text,
    format_length,
    format_speed_up,
    left_out_text,
    resampled_text,
    warm_text,
)
from questprof.samples import LEVEL
from questprof.units import format_count, format_us

MEASURED: Final = "measured: clock"
MODELLED: Final = "modelled: formula"
RESAMPLED: Final = f"{LEVEL:.0%} of resamples\n{MEASURED}"
REST_MEASURED: Final = f"Columns that name no source: {MEASURED}."
OUTSIDE: Final = {"inside": "", "": "", "below": ", below the range", "above": ", above the range"}


class Table(NamedTuple):
    """Heads (which may hold one line break), rows of text, and what is true of this table alone."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


NOTES: Final = (
    "Measured crossover: between neighbouring lengths log speed-up is straight in log length. Resamples: "
    "every point's samples are drawn anew, with medians and crossing taken again. Modelled crossover: "
    "t = fixed + bytes / rate for each stage.",
    "Fixed cost and rate: least squares of the relative error over the medians of the points above their "
    "budgets; no rate is above the read ceiling. Chain: quest less its stages timed alone, below 0 where "
    "they overlap. Select is counted by the scores it reads.",
    "Budget >= length: every page is picked, so Quest reads the summary on top of what dense reads, "
    "rho = 1 + 1/S with a paired summary, eq. (12).",
    "Traffic: attention time of one layer at decode, dense over Quest, interpolated between measured "
    "lengths, a batch being of equal lengths. Steps at lengths outside those measured count in the last "
    "column alone, there with modelled times.",
)
"""How to read the tables, once for all of them."""


def overview(found: Sequence[Outlook]) -> Table:
    """Every crossover of several settings in one table: for each page size, batch and budget."""
    return Table(
        "From which length Quest is faster: every setting",
        ("setting", "budget", f"crossover\n{MEASURED}", RESAMPLED, f"crossover\n{MODELLED}"),
        tuple(
            (one.setting, answer.budget, *_crossing_cells(answer)[:3])
            for one in found
            for answer in one.answers
        ),
    )


def tables(outlook: Outlook) -> tuple[Table, ...]:
    """Crossovers, costs, pure overhead and traffic of one setting; those without a row are left out."""
    found = (crossings(outlook), costs(outlook), overheads(outlook), traffic(outlook))
    return tuple(table for table in found if table.rows)


def crossings(outlook: Outlook) -> Table:
    """Where Quest becomes faster, measured and modelled, one row a budget."""
    return Table(
        "From which length Quest is faster than the fastest dense baseline",
        (
            "budget",
            f"crossover\n{MEASURED}",
            RESAMPLED,
            f"crossover\n{MODELLED}",
            f"without the lengths that\nbracket it, {MODELLED}",
        ),
        tuple((answer.budget, *_crossing_cells(answer)) for answer in outlook.answers),
        _crossings_note(outlook),
    )


def _crossing_cells(answer: Answer) -> tuple[str, ...]:
    return (
        measured_text(answer.measured),
        _interval(answer),
        modelled_text(answer.modelled),
        modelled_text(answer.blind),
    )


def _crossings_note(outlook: Outlook) -> str:
    said = [_left_out(answer) for answer in outlook.answers if answer.measured.lengths]
    warm = [_warm(answer) for answer in outlook.answers]
    return " ".join(filter(None, [_model_note(outlook), *warm, *said]))


def _warm(answer: Answer) -> str:
    """Which of a curve's times are of a cache; what is modelled from them is no statement about memory."""
    text = warm_text(answer.measured)
    return f"Budget {answer.budget}: {text}, times of a cache, not of memory." if text else ""


def _left_out(answer: Answer) -> str:
    """Lengths of a curve that are no evidence; a series without a curve says so in its cell."""
    text = left_out_text(answer.measured.left_out)
    return f"Left out, budget {answer.budget}: {text}." if text else ""


def _model_note(outlook: Outlook) -> str:
    if outlook.model is None:
        return f"No model: {outlook.no_model}."
    if outlook.validation is None:
        return "Fewer than three lengths: the model's error at unseen lengths is unknown."
    check = outlook.validation
    return (
        f"Error of the model at lengths left out of its fit, one at a time ({check.num_lengths}): median "
        f"{check.dense_median:.1%} of dense (worst {check.dense_worst:.1%}), {check.quest_median:.1%} of "
        f"quest (worst {check.quest_worst:.1%})."
    )


def measured_text(found: Crossover) -> str:
    """`from 3.14k`, `always (8k to 128k)`, `never (2k to 4k)`, `only between 2k and 8k`, or why none.

    `, warm` follows where a length that counts is: its times are of a cache.
    """
    if found.kind == "trivial":
        return "trivial: budget >= length"
    if not found.lengths:
        return f"{found.kind} ({left_out_text(found.left_out)})"
    span = f"{format_count(found.lengths[0])} to {format_count(found.lengths[-1])}"
    span = span if len(found.lengths) > 1 else format_count(found.lengths[0])
    turns = "" if found.steady else " (last of several)"
    turns += ", warm" * bool(found.warm)
    if found.kind == "length":
        return f"from {format_length(found.seq_len or 0.0, 2)}{turns}"
    if found.kind == "only between":
        return between_text(found, 2) + turns
    return f"{'always' if found.kind == 'always' else 'never'} ({span}){', warm' * bool(found.warm)}"


def modelled_text(found: Prediction | None) -> str:
    """`from 3.29k`, with `, below the range` outside the lengths measured; `-` without a model."""
    if found is None:
        return "-"
    if found.kind == "trivial":
        return "trivial: budget >= length"
    if found.seq_len is None:
        return "from the budget on" if found.kind == "always" else "never"
    way = "from" if found.kind == "length" else "up to"
    return f"{way} {format_length(found.seq_len, 2)}{OUTSIDE[found.where]}"


def _interval(answer: Answer) -> str:
    if answer.interval is None:
        return "-"
    text = resampled_text(answer.measured, answer.interval)
    return text or f"the same in {answer.interval.same_answer:.0%}"


def costs(outlook: Outlook) -> Table:
    """What each stage costs however little it reads, and the rate at which it reads the rest."""
    model = outlook.model
    return Table(
        "Fixed cost and rate of each stage",
        (
            "stage",
            "fixed us",
            "GB/s of its bytes\n(rate from)",
            "worst error\nof the fit",
            "points",
        ),
        _cost_rows(model) if model else (),
        f"Every column: {MODELLED}, fitted to medians of the clock; through two points a line has no error.",
    )


def _cost_rows(model: Model) -> tuple[tuple[str, ...], ...]:
    rows = [_cost_row(stage) for stage in (model.dense, *model.stages)]
    rows.append(("chain", _signed(model.chain_us), "-", "-", "-"))
    rows.append(("quest", _signed(model.fixed_us), "-", "-", "-"))
    return tuple(rows)


def _cost_row(stage: StageFit) -> tuple[str, ...]:
    rate = f"{stage.rate_gb_s:.4g} ({stage.rate_from})" if stage.rate_gb_s else "no limit seen"
    exact = (
        stage.rate_gb_s and stage.rate_from == "fit" and stage.num_points == 2
    )  # a line through two points meets both
    error = "-" if exact else f"{stage.worst_error:.1%}"
    return stage.stage, format_us(stage.fixed_us), rate, error, str(stage.num_points)


def _signed(us: float) -> str:
    return f"{'-' * (us < 0)}{format_us(abs(us))}"


def overheads(outlook: Outlook) -> Table:
    """Dense beside Quest where every page is picked."""
    return Table(
        "What Quest costs when it saves nothing (budget >= length)",
        ("length", "dense us", "quest us", "overhead us", "quest / dense", f"bytes\n{MODELLED}"),
        tuple(
            (
                format_count(one.seq_len) + " (warm)" * one.warm,
                format_us(one.dense_us),
                format_us(one.quest_us),
                _signed(one.overhead_us),
                format_speed_up(one.quest_us / one.dense_us),
                f"{one.bytes_ratio:.4g}x" if one.bytes_ratio else "-",
            )
            for one in outlook.overheads
        ),
        REST_MEASURED,
    )


def traffic(outlook: Outlook) -> Table:
    """What share of each traffic gains, and how much."""
    return Table(
        "What it covers of given traffic",
        (
            "traffic",
            "budget",
            "steps inside\n(below, above)",
            "Quest faster for:\nrequests",
            "\nsteps",
            "\ndense time",
            "gain, Quest\nalways",
            "gain, the\nfaster",
            f"over all steps\n{MODELLED}",
        ),
        tuple(_traffic_row(answer.budget, one) for answer in outlook.answers for one in answer.traffic),
        REST_MEASURED,
    )


def _traffic_row(budget: str, one: Coverage) -> tuple[str, ...]:
    inside = "unknown: no valid point" if one.inside is None else f"{one.inside:.0%}"
    beyond = f" ({one.below:.0%}, {one.above:.0%})" if one.inside != 1 and one.above is not None else ""
    shares = (one.faster_requests, one.faster_steps, one.faster_time)
    gains = [_gain(one.gain_always), _gain(one.gain_chosen)]
    modelled = "-"
    if one.modelled_chosen and one.modelled_always:
        modelled = f"{_gain(one.modelled_always)} always, {_gain(one.modelled_chosen)} the faster"
    return one.traffic, budget, inside + beyond, *map(_percent, shares), *gains, modelled


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _gain(gain: float | None) -> str:
    return format_speed_up(gain) if gain else "-"
