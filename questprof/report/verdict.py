"""The first screen: a sentence a device, shape and batch, what its parts rest on, and what is missing.

Pure. A part that was not measured is named with the command that measures it; nothing is guessed.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from questprof.crossover.sentences import (
    between_text,
    crossover,
    format_length,
    format_speed_up,
    warm_text,
)
from questprof.model import Point, Profile, Shape, shape_presets
from questprof.report.evidence import Evidence, heads_of
from questprof.rows import Row, Series
from questprof.scan import series
from questprof.units import format_count

if TYPE_CHECKING:
    from questprof.recall.answers.equal_mass import EqualMass

USUAL_LENGTH: Final = 32768
USUAL_BUDGET: Final = 2048
USUAL_PAGE_SIZE: Final = 16
NOT_MEASURED: Final = "not measured"


class Part(NamedTuple):
    """One part of a verdict: `value` in a word or two; '' where it is missing, which `command` fills."""

    name: str
    value: str
    source: str
    """Which figure it is and where it comes from, or why it is missing."""
    command: str = ""


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
        _per_token(found, one, row),
        _mass(found, one, row),
        _bytes(found, one, row),
        _limit(found, one, row),
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
    said = f" in {point.shape.kv_dtype}" * (point.shape.kv_dtype not in ("fp16", "bf16"))
    said += f", {one.policy}" * (one.policy != "quest")
    said += f", {point.backend} kernels" * (point.backend != "questprof")
    said += f", page {one.page_size}" * (one.page_size != USUAL_PAGE_SIZE)
    said += f", {one.summary_layout} summary" * (one.summary_layout != "paired")
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
        span = " to ".join(dict.fromkeys(format_count(at.lengths[i]) for i in (0, -1)))
        never = "not faster at any" if at.kind == "never in range" else "faster at every"
        value = f"Quest is {never} length measured above the budget ({span})"
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


def _per_token(found: Evidence, one: Series, row: Row | None) -> Part:
    from questprof.amdahl.finding import amdahl

    pairs = [
        pair
        for profile in found.steps
        if (step := amdahl(profile))
        for pair in step.pairs
        if heads_of(pair.point.shape) == heads_of(found.shape)
        and (pair.point.batch_size, bool(pair.point.seq_lens)) == (one.batch_size, bool(_ragged(one)))
        and (pair.point.token_budget, pair.point.page_size) == (one.token_budget, one.page_size)
    ]
    if not pairs:
        why = f"no decode step of batch {one.batch_size}, page {one.page_size}, budget {one.budget_text}"
        return Part("Per token", "", why, _command("amdahl", one, row, "step.jsonl"))
    doubted = pairs[0].doubts
    pairs = [pair for pair in pairs if not pair.doubts]
    if not pairs:
        why = f"undecided: {'; '.join(doubted)}"
        return Part("Per token", "", why, _command("amdahl", one, row, "step.jsonl"))
    length = row.seq_len if row else USUAL_LENGTH
    nearest = min(abs(pair.point.seq_len - length) for pair in pairs)
    near = [pair for pair in pairs if abs(pair.point.seq_len - length) == nearest]
    # weights of the cache's own dtype, and of several steps the one that gains least
    near.sort(key=lambda pair: (_weights(pair.point) != found.shape.kv_dtype, pair.speedup))
    told, others = near[0], near[1:]
    at = "" if row and told.point.seq_len == row.seq_len else f" at {format_count(told.point.seq_len)}"
    source = f"measured: clock, whole decode step, {_weights(told.point)} weights"
    layout = told.point.summary_layout
    source += f", {layout} summary" * (layout != one.summary_layout)
    source += "".join(f"; {format_speed_up(one.speedup)} with {_weights(one.point)}" for one in others[:3])
    return Part("Per token", format_speed_up(told.speedup) + at + " (warm)" * told.warm, source)


def _weights(point: Point) -> str:
    return point.decode.weight_format if point.decode else "unknown"


def _ragged(one: Series) -> tuple[int, ...]:
    return one.rows[0].point.seq_lens


def _mass(found: Evidence, one: Series, row: Row | None) -> Part:
    from questprof.recall.answers.equal_mass import mass_at
    from questprof.recall.answers.evaluation import evaluations

    masses = [
        (evaluation.trace, mass)
        for profile in found.recall
        for evaluation in evaluations(profile)
        if (mass := mass_at(evaluation, one.page_size, one.policy, one.token_budget)) is not None
    ]
    if not masses:
        case = f"--page-sizes {one.page_size} --budgets {one.token_budget}"
        command = f"questprof recall TRACE {case} -o recall.jsonl"
        why = "no recall of this shape at this page size and budget; a trace comes from questprof capture"
        return Part("Attention mass", "", why, command)
    trace, mass = min(masses, key=lambda pair: (pair[0].synthetic, pair[1]))
    made_up = "made-up keys, no statement about a model; " if trace.synthetic else ""
    source = f"counted: real queries, {made_up}{trace.model}, {trace.num_tokens} tokens"
    return Part("Attention mass", f"{mass:.3f}", source)


def _bytes(found: Evidence, one: Series, row: Row | None) -> Part:
    """The check of the layout of the summary that was timed; of another one only where it has none."""
    from questprof.bytecheck.judge import judge_profile

    judged = [
        judgement
        for profile in found.bytes
        for judgement in judge_profile(profile)
        if heads_of(judgement.point.shape) == heads_of(found.shape) and judgement.sources
    ]
    command = _command("bytes --check-formula", one, row, "bytes.jsonl")
    if not judged:
        return Part("Bytes check", "", "whether the bytes are really not read was not counted", command)
    same = [j for j in judged if j.point.summary_layout == one.summary_layout or j.point.policy == "dense"]
    others = dict.fromkeys(j.point.summary_layout for j in judged if j not in same)
    only = f" ({', '.join(others)} summary)" if not same else ""
    judged = same or judged
    fell = Counter(judgement.holds for judgement in judged)
    how = {"ncu": "measured: hardware counters", "trace": "counted: address trace"}
    sources = dict.fromkeys(how[s] for judgement in judged for s in judgement.sources if s in how)
    where = _where([judgement.point for judgement in judged])
    source = (
        f"{fell[True]} of {len(judged)} points hold ({where}), {', '.join(sources) or 'modelled: formula'}"
    )
    source += f"; the {one.summary_layout} one, which was timed, was not counted" * bool(only)
    command = command if only else ""
    if fell[False]:
        told = f"{fell[False]} of {len(judged)} points fail; {source}"
        return Part("Bytes check", f"failed{only}", told, command)
    return Part("Bytes check", f"{'passed' if fell[True] else 'inconclusive'}{only}", source, command)


def _where(points: Sequence[Point]) -> str:
    """`batch 1, 2k to 128k`."""
    batches = sorted({point.batch_size for point in points})
    lengths = sorted({max(point.lengths) for point in points})
    span = " to ".join(dict.fromkeys(format_count(lengths[i]) for i in (0, -1)))
    return f"batch {', '.join(map(str, batches))}, {span}"


def _limit(found: Evidence, one: Series, row: Row | None) -> Part:
    """The stage that takes longest at the reference point, and the roof that bounds it."""
    stages = {
        stage: row.stats[stage].median
        for stage in ("score", "select", "attend")
        if row and stage in row.stats and stage not in row.impossible
    }
    if not (row and stages):
        return Part("Attention limited by", "", "no stage was timed at this point")
    stage = max(stages, key=lambda name: stages[name])
    share = stages[stage] / sum(stages.values())
    source = f"{share:.0%} of its stages' time at {format_count(row.seq_len)}, measured: clock"
    command = "" if found.roofs else _command("roofline", one, row, "roofline.jsonl")
    roof = _roof(found, row, stage)
    source += f"; {roof}" if roof else ""
    return Part(
        "Attention limited by", stage, source + ("; no other roof was measured" if command else ""), command
    )


def _roof(found: Evidence, row: Row, stage: str) -> str:
    """`bound by DRAM (82%)`: the stage under the roofs of the device, with the record's own times."""
    from questprof.roofline.display import ROOF_NAMES
    from questprof.roofline.finding import roofline

    run = next(run for run in found.times.runs if any(r.point == row.point for r in run.records))
    records = tuple(r for r in run.records if r.point == row.point)
    roofs = next((profile.header.roofs for profile in found.roofs), None)
    header = replace(run.header, roofs=roofs)
    lines = roofline(Profile(header, records)).lines
    names = ROOF_NAMES[found.environment.device]
    return next((text for line in lines if line.stage == stage and (text := line.roof_text(names))), "")


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


def _command(name: str, one: Series, row: Row | None, output: str) -> str:
    """The command that measures what is missing, at the point of the verdict."""
    point = one.rows[0].point
    length = row.seq_len if row else one.rows[-1].seq_len
    whole = name == "amdahl"
    shape = _shape_options(point.shape, whole)
    said = f"questprof {name} {shape} --lengths {format_count(length)}"
    pages = "page-size" if whole else "page-sizes"
    said += f" --{pages} {one.page_size}" * (one.page_size != USUAL_PAGE_SIZE)
    said += f" --budgets {min(one.token_budget, length)}"
    return said + f" --batch {one.batch_size}" * (one.batch_size > 1) + f" -o {output}"


def _shape_options(shape: Shape, whole: bool) -> str:
    """By its name where the tool knows that; a whole model needs its configuration."""
    if shape.name in shape_presets():
        return f"--shape {shape.name}"
    if whole:
        return "--shape config.json"
    heads = f"--heads {shape.num_qo_heads} --kv-heads {shape.num_kv_heads} --head-dim {shape.head_dim}"
    return f"--shape {shlex.quote(shape.name)} {heads}"


def fallback(profiles: Sequence[Profile], has_verdicts: bool) -> str:
    """What stands in place of an answer where no Quest point was timed."""
    if has_verdicts:
        return "How much faster Quest is was not timed here; questprof sweep times it."
    held = "these profiles hold" if len(profiles) > 1 else "this profile holds"
    return f"No verdict: {held} no Quest points. questprof sweep times them."
