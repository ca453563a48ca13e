"""One kernel set checked: every stage it brings, over all settings and cases, until its first fault."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from questprof.backends.user import StageSet, stage_set
from questprof.backends.user_launch import raised
from questprof.backends.user_memory import out_of_memory
from questprof.backends.user_module import first_line, where
from questprof.errors import QuestprofError
from questprof.kernelcheck.findings import Began, Brings, FaultError, Order, Setting, StageFinding
from questprof.kernelcheck.scene import scenes
from questprof.kernelcheck.stages import check_stage
from questprof.kernelcheck.turns import Outcome


def check_stages(order: Order) -> Iterator[Brings | Began | StageFinding]:
    """What each stage is about to do, and did; QuestprofError for a set without stages."""
    stages = stage_set(order.source)
    yield Brings(tuple(stages.stages))
    for setting in order.settings:
        for stage in stages.stages:
            yield (yield from _check(stages, stage, order, setting))


def _check(
    stages: StageSet, stage: str, order: Order, setting: Setting
) -> Generator[Began, None, StageFinding]:
    """The first fault of `stage` over `setting`, or how accurate it is over all its cases; each is told."""
    outcomes: list[Outcome] = []
    for scene in scenes(order, setting):
        yield Began(stage, setting.title, scene.case)
        try:
            outcomes.append(check_stage(stages, stage, scene))
        except FaultError as fault:
            failed = StageFinding(stage, setting.title, "fail", scene.case)
            return _with(failed, fault.why, fault.fix, fault)
        except QuestprofError as error:
            own = error.what == f"stage {stage} of {order.source}"
            why = error.why if own else f"{error.what}: {error.why}"
            return _with(StageFinding(stage, setting.title, "fail", scene.case), why, error.fix)
        except Exception as error:
            if out_of_memory(error):
                if not where(error):  # of no line of the kernel's: the machine has too little for the check
                    raise
                told = raised(order.source, stage, error)
                return _with(StageFinding(stage, setting.title, "fail", scene.case), told.why, told.fix)
            why = f"checking it ended in {type(error).__name__}: {first_line(error)}{where(error)}"
            fix = "docs/kernels.md says what the stage is given."
            return _with(StageFinding(stage, setting.title, "fail", scene.case), why, fix)
    return _passed(stage, setting, outcomes)


def _with(finding: StageFinding, why: str, fix: str, fault: FaultError | None = None) -> StageFinding:
    from msgspec.structs import replace

    return replace(finding, why=why, fix=fix, place=fault.place if fault else None)


def _passed(stage: str, setting: Setting, outcomes: list[Outcome]) -> StageFinding:
    accuracies = [outcome.accuracy for outcome in outcomes if outcome.accuracy]
    worst = max(accuracies, key=lambda one: one.error, default=None)
    approximate = any(outcome.approximate for outcome in outcomes)
    return StageFinding(
        stage,
        setting.title,
        "approximate" if approximate else "pass",
        max_rel_err=worst.error if worst else None,
        tolerance=worst.tolerance if worst and not approximate else None,
        allocations=max((outcome.allocations for outcome in outcomes), default=0),
    )
