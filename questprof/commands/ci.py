"""`questprof ci`: decide, and the gate of a CI job on it, with a Markdown summary and a JSON verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import decide as deciding
from questprof.commands import options
from questprof.commands.compare import _share as parse_share
from questprof.errors import QuestprofError

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
        "Three or more measure that spread. May be repeated.",
    ),
]
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
    base: BASE = "base",
    new: NEW = "new",
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
    device: deciding.DEVICE = "auto",
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
    limit = parse_share("--threshold", threshold)
    stored = read_baselines(baseline or [])
    one = deciding.prepare(
        "ci", shape, traffic, batch, lengths, budget, page_size, dtype, weights, time, device, backends,
        kernel, samples, ncu, seed, output, resume=resume, force=force, json=json,
    )  # fmt: skip
    sides = sides_of(one, base, new)
    found, made = deciding.measure(one)
    gates = gates_of(one, found, stored, sides, limit)
    deciding.write_page(found, made, one.paths)
    if summary:
        write_summary(summary, found, made, gates)
    report(found, made, gates, one, json)


def read_baselines(paths: Sequence[Path]) -> list[Profile]:
    """The stored profiles; QuestprofError before anything is measured."""
    from questprof.store import read_profile

    return [read_profile(path) for path in paths]


def sides_of(one: Run, base: str, new: str) -> tuple[str, str] | None:
    """The two stage sets that are compared inside the run; None without two of them.

    QuestprofError where two or more are given and `base` or `new` names none of them.
    """
    known = one.asked.kernels
    if len(known) < 2:
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


def report(found: Findings, made: Decision, gates: Sequence[Gate], one: Run, json: bool) -> None:
    """The verdict on stdout, then the exit status."""
    from questprof.decide.document import document
    from questprof.decide.gate import VERDICTS, gate_document, status

    if json:
        names = deciding.path_names(found, one.paths)
        deciding.print_json(document(found, made, names) | gate_document(made, gates))
    else:
        deciding.show(found, made, one.paths)
        for gate in gates:
            print(f"{gate.name}: {gate.text}")
        print(f"gate: {VERDICTS[status(made, gates)]}")
    if ended := status(made, gates):
        raise typer.Exit(ended)
