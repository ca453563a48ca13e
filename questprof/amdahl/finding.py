"""Everything `amdahl` says of one profile. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from questprof.amdahl.batch import Served, served
from questprof.amdahl.breakdown import Breakdown
from questprof.amdahl.check import CAUSES
from questprof.amdahl.forecast import Forecast, forecasts, left_out
from questprof.amdahl.isolated import Isolated, isolated
from questprof.amdahl.pairs import Pair, Steps, step_title, steps_of, title
from questprof.amdahl.paper import PaperTable, beside_paper
from questprof.amdahl.paying import Paying, paying, paying_sentences, paying_text
from questprof.amdahl.sentences import (
    causes,
    check_sentence,
    check_summary,
    notes,
    verdict,
)
from questprof.amdahl.whatif import WhatIf, what_ifs
from questprof.model import Profile
from questprof.scan import ALARM_FACTOR

SOURCES = (
    "Times of a step: measured, clock, medians of single steps over a growing cache, nothing profiled. "
    "Parts: measured apart, by the method named; what they leave of the step is a line of its own. "
    "Step time ratio: modelled, eq. (13), from the dense step's parts. Intervals: the middle 95 % of "
    "resampled medians."
)


@dataclass(frozen=True)
class Amdahl:
    """The steps of a profile and what follows from them."""

    steps: Steps
    served: tuple[Served, ...]
    paying: tuple[Paying, ...]
    what_ifs: tuple[tuple[Pair, tuple[WhatIf, ...]], ...]
    forecasts: tuple[Forecast, ...]
    paper: PaperTable | None
    isolated: Mapping[str, Isolated]
    """By point id of the Quest step: what a sweep in the same profile promises."""
    alarms: tuple[str, ...]
    notes: tuple[str, ...]
    unpredicted: tuple[str, ...] = ()
    """Where lengths were asked for and no line can be drawn through the measured ones."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Quest steps beside the fastest dense ones."""
        return self.steps.pairs

    @property
    def headlines(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(setting, sentences): budgets at the longest length of each, doubted pairs, where Quest pays."""
        groups: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            setup = pair.point.decode
            name = f"{setup.model}, {setup.weight_format} weights, " if setup else ""
            groups.setdefault(f"{name}batch {pair.point.batch_size}", []).append(pair)
        found = []
        for name, pairs in groups.items():
            longest = max(pair.point.seq_len for pair in pairs)
            told = tuple(verdict(p) for p in pairs if p.point.seq_len == longest or p.doubts)
            found.append((name, told))
        more = (*paying_sentences(self.paying), *filter(None, [check_summary(self.pairs)]))
        return (*found, ("all steps", more)) if more else tuple(found)

    @property
    def inconclusive(self) -> bool:
        """Whether a pair gives no verdict for its doubts, or a length was asked for in vain."""
        return any(pair.doubts for pair in self.pairs) or bool(self.unpredicted)

    @property
    def all_steps(self) -> tuple[Breakdown, ...]:
        """Every step once, each dense one before the Quest steps that are compared with it."""
        return self.steps.all


def amdahl(profile: Profile, at: Sequence[int] = ()) -> Amdahl | None:
    """The finding of a profile, with modelled steps at the lengths `at`; None without its records."""
    if not any(record.kind == "amdahl" for record in profile.records):
        return None
    steps = steps_of(profile)
    pairs = steps.pairs
    fastest = {pair.dense.point.point_id: pair.dense for pair in pairs}
    shown = (*fastest.values(), *(pair.quest for pair in pairs), *steps.alone)
    return Amdahl(
        steps=steps,
        served=tuple(map(served, shown)),
        paying=paying(pairs),
        what_ifs=tuple((pair, found) for pair in pairs if (found := what_ifs(pair, pairs))),
        forecasts=forecasts(pairs, at),
        paper=beside_paper(steps.dense, pairs),
        isolated=isolated(profile, pairs),
        alarms=tuple(alarm for one in steps.all for alarm in _alarms(one)),
        notes=(
            *notes(pairs),
            *(f"{title(one.point)}: no dense step to compare with." for one in steps.alone),
            *dict.fromkeys(one.note for one in shown if one.note),
        ),
        unpredicted=left_out(pairs) if at else (),
    )


def _alarms(step: Breakdown) -> Iterator[str]:
    """Parts that do not add up, and weights that are read faster than anything was read in the run."""
    if step.alarm:
        yield f"{step_title(step.point)}: {step.alarm}"
    rate, ceiling_gb_s = step.projection_gb_s, step.ceiling_gb_s
    if step.cold and ceiling_gb_s and rate and rate > ALARM_FACTOR * ceiling_gb_s:
        yield (
            f"{step_title(step.point)}: the projections read {rate:.0f} GB/s, above the largest streaming "
            f"read of {ceiling_gb_s:.0f} GB/s: a part is too short, or its weights did not come from memory"
        )


def as_document(found: Amdahl) -> dict[str, Any]:
    """`found` for JSON: a `steps` entry a step, a `pairs` entry a pair, sentences and tables beside."""
    return {
        "sources": SOURCES,
        "headlines": [{"setting": name, "sentences": said} for name, said in found.headlines],
        "steps": [_step(one) for one in found.all_steps],
        "pairs": [_pair(pair, found.isolated.get(pair.point.point_id)) for pair in found.pairs],
        "what_ifs": [
            {
                "title": title(pair.point),
                "point_id": pair.point.point_id,
                "answers": msgspec.to_builtins(answers),
            }
            for pair, answers in found.what_ifs
        ],
        "batches": [
            {"title": title(one.point), "policy": one.point.policy, **_without_point(one)}
            for one in found.served
        ],
        "paying": [msgspec.to_builtins(one) | {"text": paying_text(one)} for one in found.paying],
        "forecasts": msgspec.to_builtins(found.forecasts),
        "unpredicted": found.unpredicted,
        "paper": msgspec.to_builtins(found.paper),
        "alarms": found.alarms,
        "notes": found.notes,
    }


def _without_point(one: Served) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(one).items() if name != "point"}


def _step(one: Breakdown) -> dict[str, Any]:
    return {
        "title": title(one.point),
        "point_id": one.point.point_id,
        "point": one.point,
        "step_us": one.us,
        "step": one.step,
        "eager_us": one.eager.median if one.eager else None,
        "launch_overhead_us": one.launch_overhead_us,
        "parts": one.parts,
        "sum_us": one.sum_us,
        "overlap_us": one.overlap_us,
        "unexplained_us": one.unexplained_us if one.parts else None,
        "unexplained_share": one.unexplained_us / one.us if one.parts else None,
        "projection_gb_s": one.projection_gb_s,
        "small_us": one.small_us if one.parts else None,
        "linears": one.linears,
        "alarm": one.alarm,
    }


def _pair(pair: Pair, alone: Isolated | None) -> dict[str, Any]:
    return {
        "title": title(pair.point),
        "dense_point_id": pair.dense.point.point_id,
        "quest_point_id": pair.point.point_id,
        "dense_us": pair.dense.us,
        "quest_us": pair.quest.us,
        "speedup": pair.speedup,
        "interval": pair.interval,
        "check": msgspec.to_builtins(pair.check),
        "check_text": check_sentence(pair.check) if pair.check else "",
        "causes": [{"cause": cause, "meaning": CAUSES[cause], "us": us} for cause, us in causes(pair.check)]
        if pair.check
        else [],
        "unchecked": pair.unchecked,
        "doubts": pair.doubts,
        "isolated": msgspec.to_builtins(alone),
        "verdict": verdict(pair),
    }
