"""`questprof ci`: decide, and the gate of a CI job on it, with a Markdown summary and a JSON verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import decide as deciding
from questprof.commands import options
from questprof.commands.compare import _share as parse_share
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.decide.decision import Decision
    from questprof.decide.evidence import Findings
    from questprof.decide.gate import Gate
    from questprof.decide.run import Run
    from questprof.model import Profile

BASELINE = Annotated[
    list[Path] | None,
    typer.Option(
        "--baseline",
        help="A stored profile of an earlier run (a trend; never fails below the spread between runs). "
        "May be repeated: the run is compared with the first, and three or more measure that spread.",
    ),
]
BASE_NAME, NEW_NAME = "base", "new"
BASE = Annotated[str, typer.Option("--base", help="Of two --kernel: the one that is compared with.")]
NEW = Annotated[str, typer.Option("--new", help="Of two --kernel: the one that is judged.")]
THRESHOLD = Annotated[
    str, typer.Option("--threshold", help="Difference up to which two figures are the same: 2%, 0.02.")
]
SUMMARY = Annotated[
    Path | None,
    typer.Option(
        "--summary",
        help="Markdown is added to this file.",
        envvar="GITHUB_STEP_SUMMARY",
        show_envvar=True,
    ),
]


def ci(
    baseline: BASELINE = None,
    kernel: options.STAGE_SETS = None,
    base: BASE = BASE_NAME,
    new: NEW = NEW_NAME,
    threshold: THRESHOLD = "2%",
    summary: SUMMARY = None,
    shape: deciding.SHAPE = None,
    traffic: deciding.TRAFFIC = None,
    batch: options.BATCH = "1",
    lengths: options.LENGTHS = None,
    budget: deciding.BUDGET = None,
    page_size: deciding.PAGE_SIZE = "16",
    dtype: options.DTYPE = None,
    weights: deciding.WEIGHTS = None,
    time: deciding.TIME = None,
    device: options.DEVICE = "auto",
    backends: options.BACKENDS = None,
    samples: options.SAMPLES = None,
    ncu: options.NCU = None,
    seed: options.SEED = 0,
    output: deciding.OUTPUT = None,
    resume: deciding.RESUME = False,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Decide, and gate on it: exit 0 pass, 1 a check failed or slower, 4 inconclusive (a neutral result).

    --baseline compares with a stored profile, --kernel base=... --kernel new=... inside one run; without
    either the checks of the run itself are the gate. Exit 3 when this machine cannot.
    """
    from questprof.files import check_appendable

    with refusals_told(json):
        limit = parse_share("--threshold", threshold)
        if summary:
            check_appendable(summary)
        stored = read_baselines(baseline or [])
        one = deciding.prepare(
            "ci", shape, traffic, batch, lengths, budget, page_size, dtype, weights, time, device, backends,
            kernel, samples, ncu, seed, output, resume=resume, force=force, json=json,
        )  # fmt: skip
        sides = sides_of(one, base, new, stored)
        stored = foretell(stored, baseline or [], one)
        found, made = deciding.measure(one)
        gates = gates_of(one, found, stored, sides, limit)
        deciding.write_page(found, made, one.paths)
    ended = report(found, made, gates, one, json)
    if summary:
        write_summary(summary, found, made, gates)
    if ended:
        raise typer.Exit(ended)


@contextmanager
def refusals_told(json: bool) -> Iterator[None]:
    """With `json` a QuestprofError, which goes on, is a document too: its sentence and its status."""
    from questprof.decide.gate import refusal

    try:
        yield
    except QuestprofError as error:
        if json:
            print_json(refusal(error))
        raise


def read_baselines(paths: Sequence[Path]) -> list[Profile]:
    """The stored profiles; QuestprofError before anything is measured, also for one that times no stage.

    A run given twice is refused as well: it says nothing of the spread between runs.
    """
    from questprof.compare.pairs import refuse_repeats
    from questprof.store import read_profile

    stored = [read_profile(path) for path in paths]
    for path, profile in zip(paths, stored, strict=True):
        if not any(record.kind == "sweep" for record in profile.records):
            kinds = ", ".join(dict.fromkeys(record.kind for record in profile.records)) or "no record"
            raise QuestprofError(
                f"--baseline {path}",
                f"it holds no point of a sweep ({kinds}), so that nothing can be compared with it",
                "Name the ...-sweep.jsonl of an earlier run of questprof ci.",
            )
    refuse_repeats(stored, option="--baseline")
    return stored


def foretell(stored: Sequence[Profile], paths: Sequence[Path], one: Run) -> list[Profile]:
    """The baselines that count, of which the first is compared with; why others do not is said.

    QuestprofError for a baseline of the other device. One of another machine, another driver or other points
    is left out; where all are, the gate is inconclusive, and the run may be the next baseline.
    """
    from questprof.compare.spread import LEAST_RUNS

    for path, profile in zip(paths, stored, strict=True):
        device = profile.header.environment.device
        if device != one.asked.device:
            raise QuestprofError(
                f"--baseline {path}",
                f"it was measured on {device}, and this run is on {one.asked.device}",
                f"Give --device {device}, or a baseline of {one.asked.device}.",
            )
    doubts = [_unlike(profile, one) for profile in stored]
    alike = [(path, profile) for path, profile, why in zip(paths, stored, doubts, strict=True) if not why]
    then = "it is left out" if alike else "the comparison with it will be inconclusive"
    for path, why in zip(paths, doubts, strict=True):
        if why:
            one.say(f"warning: --baseline {path}: {why}; {then}")
    if 1 < len(alike) < LEAST_RUNS:
        one.say(
            f"--baseline {alike[0][0]} is compared with; {len(alike)} baselines do not measure the spread "
            f"between runs, {LEAST_RUNS} do: the stated one counts"
        )
    return [profile for _, profile in alike] or list(stored[:1])


def _unlike(profile: Profile, one: Run) -> str:
    """Why `profile` will not compare with the run, as far as is known before it; '' where it will."""
    from msgspec.structs import replace

    from questprof.compare.pairs import refuse_other_machine
    from questprof.decide.request import sweep_grid
    from questprof.environment import capture
    from questprof.grid import plan_blocks

    here = replace(profile.header, environment=capture(one.asked.device))
    try:
        refuse_other_machine(profile, replace(profile, header=here))
    except QuestprofError as error:
        return error.why
    asked_for = {point.point_id for block in plan_blocks(sweep_grid(one.asked)) for point in block.points}
    shared = any(record.kind == "sweep" and record.point_id in asked_for for record in profile.records)
    return "" if shared else "it holds none of the points that this run asks for"


def sides_of(one: Run, base: str, new: str, stored: Sequence[Profile] = ()) -> tuple[str, str] | None:
    """The two stage sets that are compared inside the run; None without two of them.

    QuestprofError where `base` or `new` names none of them, or one is named where there are no two: a base
    alone as well, which nothing is compared with, unless it is with one of `stored`.
    """
    known = one.asked.kernels
    if known == (BASE_NAME,) and not stored:
        raise QuestprofError(
            f"--kernel {BASE_NAME}=...",
            "a base alone is compared with nothing",
            f"Add --kernel {NEW_NAME}=..., or call it otherwise: its checks are the gate then.",
        )
    if len(known) < 2:
        if (base, new) != (BASE_NAME, NEW_NAME):
            option = f"--base {base}" if base != BASE_NAME else f"--new {new}"
            why = "two kernels are compared inside a run, and there are no two"
            raise QuestprofError(option, why, "Write --kernel base=... --kernel new=..., or leave it out.")
        return None
    for option, name in (("--base", base), ("--new", new)):
        if name not in known:
            raise QuestprofError(
                f"{option} {name}",
                f"no --kernel has that name (there are {', '.join(known)})",
                "Name two of them, or write --kernel base=... --kernel new=...",
            )
    return base, new


def gates_of(
    one: Run, found: Findings, stored: Sequence[Profile], sides: tuple[str, str] | None, limit: float
) -> list[Gate]:
    """Every comparison that was asked for."""
    from questprof.decide.gate import against_baseline, inside_run

    if found.sweep is None:
        return []
    asked_for = {point.point_id for block in one.planned for point in block.points}
    gates = [inside_run(found.sweep, *sides, limit)] if sides else []
    return gates + ([against_baseline(stored, found.sweep, asked_for, limit)] if stored else [])


def write_summary(path: Path, found: Findings, made: Decision, gates: Sequence[Gate]) -> None:
    """Add the verdict, the answer and the comparisons to `path`, as the steps of a job share one summary."""
    from questprof.decide.document import markdown
    from questprof.decide.gate import gate_markdown
    from questprof.files import cannot_write

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{gate_markdown(made, gates)}\n{markdown(found, made)}\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def report(found: Findings, made: Decision, gates: Sequence[Gate], one: Run, json: bool) -> Exit:
    """The verdict on stdout; the exit status that it means."""
    from questprof.decide.document import document
    from questprof.decide.gate import NO_COMPARISON, VERDICTS, gate_document, status

    if json:
        names = deciding.path_names(found, one.paths)
        print_json(document(found, made, names) | gate_document(made, gates))
    else:
        deciding.show(found, made, one.paths)
        for gate in gates:
            print(f"{gate.name}: {gate.text}")
        if not gates:
            print(NO_COMPARISON)
        print(f"gate: {VERDICTS[status(made, gates)]}")
    return status(made, gates)
