"""The first screen: a sentence a device, shape and batch, what its parts rest on, and what is missing.

Pure. A part that was not measured is named with the command that measures it; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from questprof.crossover.sentences import (
    between_text,
    crossover,
    format_length,
    format_speed_up,
    throughout_text,
    warm_text,
)
from questprof.model import Profile
from questprof.report.evidence import USUAL_BUDGET, USUAL_LENGTH, USUAL_PAGE_SIZE, Evidence, heads_of
from questprof.report.verdict_parts import Part, attention_mass, bytes_check, limiting_stage, per_token
from questprof.rows import Row, Series
from questprof.scan import series
from questprof.units import format_count

if TYPE_CHECKING:
    from questprof.recall.answers.equal_mass import EqualMass

NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True)
class Answer:
    """The verdict of one device, shape and batch."""

    sentence: str
    parts: tuple[Part, ...]
    more: tuple[str, ...] = ()
    """Speed at equal attention mass."""

    @property
    def missing(self) -> tuple[Part, ...]:
        """The parts that a command would fill."""
        return tuple(part for part in self.parts if part.command)


def answers(found: Evidence) -> tuple[Answer, ...]:
    """One Answer a batch size of `found`, requests of equal lengths before ragged ones."""
    return tuple(_answer(found, group) for group in _by_batch(series(found.rows)))


def told_first(found: Iterable[Series]) -> Series:
    """What the first sentence is about."""
    return _main(_by_batch(found)[0])


def _by_batch(found: Iterable[Series]) -> list[list[Series]]:
    groups: dict[tuple[bool, int], list[Series]] = {}
    for one in found:
        point = one.rows[0].point
        groups.setdefault((bool(point.seq_lens), point.batch_size), []).append(one)
    return [groups[key] for key in sorted(groups)]


def _answer(found: Evidence, group: Sequence[Series]) -> Answer:
    one = _main(group)
    row = _reference(one)
    parts = (
        _crossing(one),
        _attention(row, group),
        per_token(found, one, row),
        attention_mass(found, one, row),
        bytes_check(found, one, row),
        limiting_stage(found, one, row),
    )
    return Answer(_sentence(found, one, parts), parts, tuple(_equal_mass(found, one)))


def _main(group: Sequence[Series]) -> Series:
    """What the sentence is about: quest, page 16, budget 2048; of several the longest, the fastest."""

    def rank(one: Series) -> tuple[bool | float, ...]:
        point, row = one.rows[0].point, _reference(one)
        return (
            row is not None,
            one.policy == "quest",
            point.backend == "questprof",
            one.data == "independent",
            point.page_order == "shuffled",
            one.page_size == USUAL_PAGE_SIZE,
            one.token_budget == USUAL_BUDGET,
            -abs(one.token_budget - USUAL_BUDGET),
            sum(row.usable for row in one.rows),
            (row.speed_up or 0.0) if row else 0.0,
        )

    return max(group, key=rank)


def _reference(one: Series) -> Row | None:
    """The row at the usual length, or else the longest that is evidence and above the budget."""
    usable = [row for row in one.rows if row.usable and not row.trivial]
    return next((row for row in usable if row.seq_len == USUAL_LENGTH), usable[-1] if usable else None)


def _sentence(found: Evidence, one: Series, parts: Sequence[Part]) -> str:
    crossing, attention, token, mass, counted, limit = parts
    place = f"On {found.environment.device_name}, {found.shape.name}{_unusual(one)}"
    said = f"{place}, {_batch(one)}, budget {one.budget_text}: {crossing.value}"
    gains = [f"{attention.value} in attention" if attention.value else "attention not comparable"]
    gains.append(f"{token.value} per token" if token.value else f"per token {NOT_MEASURED}")
    gains.append(f"at attention mass {mass.value}" if mass.value else f"attention mass {NOT_MEASURED}")
    checked = f"bytes check {counted.value or 'not run'}"
    limited = f"attention limited by {limit.value}" if limit.value else "what limits it is not known"
    return f"{said}; {', '.join(gains)}; {checked}; {limited}."


def _unusual(one: Series) -> str:
    """What of the setting a reader would not expect."""
    point = one.rows[0].point
    said = f" in {point.shape.kv_dtype}" * (point.shape.kv_dtype != "fp16")
    said += f", {one.policy}" * (one.policy != "quest")
    said += f", {point.backend} kernels" * (point.backend != "questprof")
    said += f", page {one.page_size}" * (one.page_size != USUAL_PAGE_SIZE)
    said += f", {one.summary_layout} summary" * (one.summary_layout != "paired")
    said += f", {point.page_order} pages" * (point.page_order != "shuffled")
    return said + f", {one.data} keys" * (one.data not in ("independent", "shared"))


def _batch(one: Series) -> str:
    point = one.rows[0].point
    return f"batch {one.batch_size}{' of ragged requests' if point.seq_lens else ''}"


def _crossing(one: Series) -> Part:
    at = crossover(one)
    if at.kind == "trivial":
        value = "Quest reads every page, as the budget covers every length measured"
    elif not at.lengths:
        value = "no verdict, no length above the budget has a valid pair of figures"
    elif at.kind == "length":
        value = f"Quest is faster from {format_length(at.seq_len or 0.0)}"
    elif at.kind == "only between":
        value = f"Quest is faster {between_text(at, 2)}{'' if at.steady else ' (last of several)'}"
    else:
        value = f"Quest is {throughout_text(at)}"
    warm = warm_text(at)
    value += f", {warm} (times of a cache, not of memory)" if warm else ""
    return Part("Quest pays", value, "measured: clock, over the fastest dense baseline")


def _attention(row: Row | None, group: Sequence[Series]) -> Part:
    if row is None or row.speed_up is None:
        return Part("Attention", "", "no point above the budget has a valid pair of figures")
    value = f"{format_speed_up(row.speed_up)} at {format_count(row.seq_len)}{' (warm)' * bool(row.warm)}"
    source = f"measured: clock, over the fastest dense, {row.dense_backend}"
    if row.point.shape.group_size > 1 and (both := _twin(row, group)):
        source += f"; {format_speed_up(both)} if the query heads of a group pick the same pages"
    return Part("Attention", value, source)


def _twin(row: Row, group: Sequence[Series]) -> float | None:
    """The speed-up at the same point with the other way in which the heads of a group pick."""
    wanted = replace(row.point, data="shared" if row.data == "independent" else "independent")
    return next((r.speed_up for one in group for r in one.rows if r.point == wanted and r.usable), None)


def _equal_mass(found: Evidence, one: Series) -> Iterable[str]:
    """The fastest page size at each share of the mass, where a trace near a timed length tells."""
    from questprof.recall.answers.equal_mass import join
    from questprof.recall.answers.evaluation import evaluations

    timed = found.times.only(
        lambda record: (
            record.kind == "sweep"
            and record.point.batch_size == one.batch_size
            and heads_of(record.point.shape) == heads_of(found.shape)
        )
    )
    for profile in found.recall:
        for evaluation in evaluations(profile):
            joined = join(evaluation, [timed])
            best: dict[float, EqualMass] = {}
            for equal in joined.equal:
                if (equal.speed_up or 0.0) > (
                    best[equal.mass].speed_up or 0.0 if equal.mass in best else 0.0
                ):
                    best[equal.mass] = equal
            yield from (_equal_text(evaluation.trace.model, equal) for equal in best.values())
            yield from joined.notes


def _equal_text(model: str, equal: EqualMass) -> str:
    return (
        f"At {equal.mass:.0%} of the attention mass of {model}: {format_speed_up(equal.speed_up or 0.0)} at "
        f"{format_count(equal.seq_len)} in attention, with page {equal.page_size} and a budget of "
        f"{equal.token_budget or 0:.0f} (interpolated)."
    )


def fallback(profiles: Sequence[Profile], has_verdicts: bool) -> str:
    """What stands in place of an answer where no Quest point was timed."""
    if any(record.kind == "amdahl" for profile in profiles for record in profile.records):
        return "Attention by itself was not timed here over the lengths; questprof sweep times it."
    if has_verdicts:
        return "How much faster Quest is was not timed here; questprof sweep times it."
    held = "these profiles hold" if len(profiles) > 1 else "this profile holds"
    return f"No verdict: {held} no Quest points. questprof sweep times them."
