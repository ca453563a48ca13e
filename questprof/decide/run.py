"""Runs the parts of a decision within its minutes: attention, bytes, whole steps. The edge of `decide`.

Each part keeps its profile on disk as it is measured. A part that this machine cannot do is noted with its
reason and ends no other; only without attention times there is no decision.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import Console

from questprof.amdahl.plan import Block as StepBlock
from questprof.decide.evidence import Findings, PartName
from questprof.decide.outputs import Paths
from questprof.decide.planning import (
    BYTES_SHARE,
    PAGE_SECONDS,
    SWEEP_SHARE,
    StepPacer,
    paced_rule,
    plan_sweep,
)
from questprof.decide.request import Question, bytes_asked, step_request, sweep_grid
from questprof.errors import Exit, QuestprofError
from questprof.grid import Block, plan_blocks
from questprof.model import Profile
from questprof.store import read_profile
from questprof.sweep.estimate import ASSUMED, cost
from questprof.sweep.settings import Settings
from questprof.units import count, format_seconds

SHORT_SECONDS = 60.0
SHORT_STEPS = 6
"""Decode steps a sample each where a run has less than SHORT_SECONDS."""
LEAST_BYTES_SECONDS = 30.0
"""What a source of counts is given at the least where there is time: it takes some to start."""
BYTES_OF_LEFT = 0.6
"""Share of the time that is left that a source of counts takes at the most, for the steps behind it."""
TOO_LATE_SECONDS = 3.0
"""With less left nothing more begins."""


@dataclass
class Run:
    """A decision on its way."""

    asked: Question
    paths: Paths
    settings: Settings
    seconds: float
    """For everything, the page included, from `started` on."""
    console: Console
    started: float = field(default_factory=time.perf_counter)
    kernels: str = ""
    """MODULE:ATTRIBUTE of the stages the answer is about; '' for the project's own."""
    ncu: str | None = None
    slowness: float = 1.0
    """How many times as long as planned attention took: what the other parts are planned with."""
    missing: dict[PartName, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    planned: tuple[Block, ...] = ()

    @property
    def left(self) -> float:
        """Seconds that are left for measuring."""
        return self.started + self.seconds - PAGE_SECONDS - time.perf_counter()

    def say(self, text: str) -> None:
        """A line on the way."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def run(one: Run) -> Findings:
    """Measure the parts; QuestprofError where attention cannot be measured. An interrupt goes through."""
    from questprof.environment import capture
    from questprof.timing.conditions import conditions

    environment = capture(one.asked.device)
    sweep = _sweep(one)
    counted = _guarded(one, "bytes", _bytes)
    steps = _guarded(one, "steps", _steps)
    timed = (*sweep.records, *(steps.records if steps else ()))
    warnings = tuple(conditions(Profile(sweep.header, timed)))
    return Findings(
        one.asked, environment, sweep, counted, steps, dict(one.missing), tuple(one.dropped), warnings
    )  # fmt: skip


def _guarded(one: Run, part: PartName, measure: object) -> Profile | None:
    """What `measure` gives; None with the reason noted where this machine cannot."""
    try:
        found: Profile | None = measure(one)  # type: ignore[operator]
        return found
    except QuestprofError as error:
        one.missing[part] = _reason(error)
        one.say(f"{part} not measured: {_reason(error)}")
        return None


def _reason(error: QuestprofError) -> str:
    """What happened and why, in one line."""
    return ": ".join(filter(None, (error.what, error.why)))


def _cannot(why: str) -> QuestprofError:
    """A part that is not measured, as it was asked for."""
    return QuestprofError("", why, "")


def _sweep(one: Run) -> Profile:
    """Attention at the blocks that fit, in the order that tells most."""
    from questprof.environment import capture
    from questprof.sweep.run import run_sweep

    blocks = plan_blocks(sweep_grid(one.asked))
    seconds = one.seconds * SWEEP_SHARE
    kept = _kept(one, "sweep")
    missing = [block for block in blocks if not all(point.point_id in kept for point in block.points)]
    begun = [block for block in missing if any(point.point_id in kept for point in block.points)]
    if missing:
        rule = paced_rule(one.settings.rule, len(missing), seconds, ASSUMED[one.asked.device].start_s)
        paced = Settings(one.settings.device, rule)
        plan = plan_sweep(missing, capture(one.asked.device), paced, seconds)
        one.planned = tuple(b for b in blocks if b not in missing or b in begun or b in plan.blocks)
        left_out = [block.title for block in blocks if block not in one.planned]
        one.say(
            f"attention: {count(len(plan.blocks), 'block')}, about {format_seconds(plan.seconds)}"
            + (f"; left out for want of time: {', '.join(left_out)}" if left_out else "")
        )
        one.dropped += [f"attention, {title}" for title in left_out]
    else:
        one.planned = blocks
    start = ASSUMED[one.asked.device].start_s
    rule = paced_rule(one.settings.rule, len(one.planned), seconds, start)
    time_s = min(seconds, max(1.0, one.left))
    settings = Settings(one.settings.device, rule, time_s=time_s, time_share=SWEEP_SHARE, ends_s=one.left)
    before = time.perf_counter()
    profile = run_sweep(one.planned, one.paths.outputs("sweep"), settings, one.console)
    _release(one.asked.device)
    done = {record.point_id for record in profile.records}
    timed = [b for b in one.planned if any(point.point_id in done for point in b.points)]
    one.dropped += [f"attention, {block.title}" for block in one.planned if block not in timed]
    if not kept:
        wanted = start + sum(cost(b, profile.header.environment, settings).seconds for b in timed)
        one.slowness = max(1.0, (time.perf_counter() - before) / wanted)
    return profile


def _release(device: str) -> None:
    """Give memory back to the GPU: the next part, and the profiler's own process, look at what is free."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def _kept(one: Run, part: str) -> frozenset[str]:
    """Ids of the points in the profile that a run goes on with."""
    path = one.paths.profile(part)
    if not (one.paths.resume and path.exists()):
        return frozenset()
    return frozenset(record.point_id for record in read_profile(path).records)


def _bytes(one: Run) -> Profile | None:
    """The bytes of a point or two: hardware counters where they can be read, else an address trace."""
    from questprof.bytecheck.run import run_bytes
    from questprof.bytecheck.tasks import How, plan_tasks
    from questprof.counters import ncu

    if one.asked.kernels and one.asked.device == "cpu":
        why = f"a trace counts Triton kernels, and {one.asked.backend} ran as kernels of the CPU"
        raise _cannot(why)
    if one.left < TOO_LATE_SECONDS:
        raise _cannot("time is up")
    refusal = ncu.why_not(one.ncu) if one.asked.device == "cuda" else None
    traced = one.asked.device == "cpu" or refusal is not None
    if refusal is not None:
        one.say(f"bytes: by address trace, as {refusal.what}: {refusal.why}")
    timeout = min(max(LEAST_BYTES_SECONDS, one.seconds * BYTES_SHARE), BYTES_OF_LEFT * one.left)
    how = How(one.kernels, proof=not traced, ncu=one.ncu, timeout_s=timeout)
    plan = plan_tasks(bytes_asked(one.asked, traced=traced), "trace" if traced else "ncu", how)
    outcome = run_bytes(plan, one.paths.outputs("bytes"), one.console)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.failures and not any(record.counts for record in outcome.profile.records):
        error = outcome.failures[0]
        raise error
    return outcome.profile


def _steps(one: Run) -> Profile | None:
    """Whole decode steps, batch by batch as time allows; None where there is no whole model."""
    from questprof.amdahl.memory import shortages
    from questprof.amdahl.plan import plan

    if one.asked.kernels:
        why = f"a decode step runs the project's stages, not those of {one.asked.backend}"
        raise _cannot(why)
    if one.asked.config is None:
        raise _cannot(one.asked.no_config)
    request = step_request(one.asked, SHORT_STEPS if one.seconds < SHORT_SECONDS else None)
    blocks = plan(request)
    shortages(blocks, request)  # refused before any minute is spent, where no step fits into memory
    pacer = StepPacer(one.asked.device, request.num_steps, one.asked.page_size, one.slowness)
    kept = _kept(one, "steps")
    chosen = [block for block in blocks if any(point.point_id in kept for point in block.points)]
    profile: Profile | None = None
    for batch, group in groupby(blocks, key=lambda block: len(block.seq_lens)):
        mine = [block for block in group if block not in chosen]
        fitting = pacer.choose(mine, one.asked.reference, one.left)
        late = [block.title for block in mine if block not in fitting]
        one.dropped += [f"decode step, {title}" for title in late]
        if not fitting and not any(len(block.seq_lens) == batch for block in chosen):
            continue
        chosen += fitting
        profile = _some_steps(one, blocks, chosen, fitting, pacer, profile)
    if profile is None:
        need = format_seconds(pacer.expects(blocks[:1]))
        raise _cannot(f"time is up; one decode step's figures need about {need} more")
    return profile


def _some_steps(
    one: Run,
    blocks: Sequence[StepBlock],
    chosen: Sequence[StepBlock],
    new: Sequence[StepBlock],
    pacer: StepPacer,
    before: Profile | None,
) -> Profile | None:
    """Measure `new`; what memory refuses altogether is noted, and what was measured before stays."""
    from questprof.amdahl.run import run_amdahl

    request = step_request(one.asked, SHORT_STEPS if one.seconds < SHORT_SECONDS else None)
    outputs = one.paths.outputs("steps") if before is None else one.paths.again("steps")
    begun = time.perf_counter()
    try:
        asked = [block for block in blocks if block in chosen]
        found = run_amdahl(asked, request, outputs, one.console, late=lambda: one.left < TOO_LATE_SECONDS)
    except QuestprofError as error:
        if error.status != Exit.MACHINE or before is None:
            raise
        one.missing["steps"] = _reason(error)
        return before
    pacer.took(new, time.perf_counter() - begun)
    measured = {record.point.lengths for record in found.records if record.point.policy != "dense"}
    one.dropped += [f"decode step, {block.title}" for block in new if block.seq_lens not in measured]
    return found
