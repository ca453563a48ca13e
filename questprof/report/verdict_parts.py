"""What a verdict rests on beside the times: whole steps, attention mass, bytes, the stage that limits.

Each part is there, or says why it is not and which command measures it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from questprof.crossover.sentences import format_speed_up
from questprof.model import Point, Profile, Shape, shape_presets
from questprof.report.evidence import USUAL_LENGTH, USUAL_PAGE_SIZE, Evidence, counts_for, heads_of
from questprof.rows import Row, Series
from questprof.units import format_count


class Part(NamedTuple):
    """One part of a verdict: `value` in a word or two; '' where it is missing, which `command` fills."""

    name: str
    value: str
    source: str
    """Which figure it is and where it comes from, or why it is missing."""
    command: str = ""


def per_token(found: Evidence, one: Series, row: Row | None) -> Part:
    """What a token gains in a whole step; of several weight formats the one of the cache's own dtype."""
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


def attention_mass(found: Evidence, one: Series, row: Row | None) -> Part:
    """The least attention mass that a recall counted at this page size, policy and budget."""
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


def bytes_check(found: Evidence, one: Series, row: Row | None) -> Part:
    """The check of the layout of the summary that was timed; of another one only where it has none."""
    from questprof.bytecheck.judge import judge_profile

    judged = [
        judgement
        for profile in found.bytes
        for judgement in judge_profile(profile)
        if counts_for(judgement.point.shape, found.shape) and judgement.sources
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
    source += _some_heads([judgement.point.shape for judgement in judged], found.shape)
    source += f"; the {one.summary_layout} one, which was timed, was not counted" * bool(only)
    command = command if only else ""
    if fell[False]:
        told = f"{fell[False]} of {len(judged)} points fail; {source}"
        return Part("Bytes check", f"failed{only}", told, command)
    return Part("Bytes check", f"{'passed' if fell[True] else 'inconclusive'}{only}", source, command)


def _some_heads(counted: Sequence[Shape], shape: Shape) -> str:
    """Of how many heads the bytes were counted, where these are not all; '' otherwise."""
    fewest = min(one.num_kv_heads for one in counted)
    every = "every head moves the same bytes"
    return f", of {fewest} of {shape.num_kv_heads} KV heads ({every})" * (fewest < shape.num_kv_heads)


def _where(points: Sequence[Point]) -> str:
    """`batch 1, 2k to 128k`."""
    batches = sorted({point.batch_size for point in points})
    lengths = sorted({max(point.lengths) for point in points})
    span = " to ".join(dict.fromkeys(format_count(lengths[i]) for i in (0, -1)))
    return f"batch {', '.join(map(str, batches))}, {span}"


def limiting_stage(found: Evidence, one: Series, row: Row | None) -> Part:
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
    if (point.device, point.shape.kv_dtype) != ("cuda", "fp16"):  # another dtype says nothing of this one
        said += f" --{'weights' if whole else 'dtype'} {point.shape.kv_dtype}"
    said += " --device cpu" * (point.device == "cpu" and name in ("amdahl", "roofline"))
    return said + f" --batch {one.batch_size}" * (one.batch_size > 1) + f" -o {output}"


def _shape_options(shape: Shape, whole: bool) -> str:
    """By its name where the tool knows that; a whole model needs its configuration."""
    if shape.name in shape_presets():
        return f"--shape {shape.name}"
    if whole:
        return "--shape config.json"
    heads = f"--heads {shape.num_qo_heads} --kv-heads {shape.num_kv_heads} --head-dim {shape.head_dim}"
    return f"--shape {shlex.quote(shape.name)} {heads}"
