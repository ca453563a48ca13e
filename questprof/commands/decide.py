"""`questprof decide`: doctor, sweep, bytes and amdahl in the given minutes, to one page and one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from questprof.commands import options
from questprof.commands.ending import interrupted
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.decide.decision import Decision
    from questprof.decide.evidence import Findings
    from questprof.decide.outputs import Paths
    from questprof.decide.run import Run


SHAPE = Annotated[
    str | None,
    typer.Option(
        "--shape",
        "--shapes",
        help="Preset or Hugging Face config.json; llama-3.1-8b on a GPU, tiny on a CPU.",
        autocompletion=options.shape_names,
    ),
]
TRAFFIC = Annotated[
    str | None,
    typer.Option("--traffic", help="Your requests' lengths: a CSV or JSON lines, or a stored example."),
]
BUDGET = Annotated[
    str | None, typer.Option("--budget", "--budgets", help="Token budget (B); 2048 on a GPU, 512 on a CPU.")
]
PAGE_SIZE = Annotated[str, typer.Option("--page-size", "--page-sizes", help="Tokens a page (S).")]
WEIGHTS = Annotated[
    str | None, typer.Option("--weights", help="Format of the model's weights: fp16, bf16, fp32, int4.")
]
TIME = Annotated[
    str | None,
    typer.Option("--time", help="Minutes for everything, as in 10m; what did not fit is said. 10m, CPU 2m."),
]
OUTPUT = Annotated[
    Path | None, typer.Option("-o", "--output", "--html", help="The page; its profiles lie beside it.")
]
RESUME = Annotated[
    bool, typer.Option("--resume", help="Go on with the profiles beside the page that -o names.")
]


def decide(
    shape: SHAPE = None,
    traffic: TRAFFIC = None,
    batch: options.BATCH = "1",
    lengths: options.LENGTHS = None,
    budget: BUDGET = None,
    page_size: PAGE_SIZE = "16",
    dtype: options.DTYPE = None,
    weights: WEIGHTS = None,
    time: TIME = None,
    device: options.DEVICE = "auto",
    backends: options.BACKENDS = None,
    kernel: options.STAGE_SETS = None,
    samples: options.SAMPLES = None,
    ncu: options.NCU = None,
    seed: options.SEED = 0,
    output: OUTPUT = None,
    resume: RESUME = False,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Say in one sentence and on one page whether Quest pays off here: yes, no, or only above a length.

    Runs doctor, sweep, bytes and amdahl within --time. Exit 0 with an answer (a no included), 1 when a check
    failed, 3 when this machine cannot, 4 when it is undecided or unstable.
    """
    one = prepare(
        "decide", shape, traffic, batch, lengths, budget, page_size, dtype, weights, time, device, backends,
        kernel, samples, ncu, seed, output, resume=resume, force=force, json=json,
    )  # fmt: skip
    found, made = measure(one)
    write_page(found, made, one.paths)
    if json:
        from questprof.decide.document import document

        print_json(document(found, made, path_names(found, one.paths)))
    else:
        show(found, made, one.paths)
    if made.status:
        raise typer.Exit(made.status)


def prepare(
    name: str,
    shape: str | None,
    traffic: str | None,
    batch: str,
    lengths: str | None,
    budget: str | None,
    page_size: str,
    dtype: str | None,
    weights: str | None,
    time: str | None,
    device: str,
    backends: str | None,
    kernel: list[str] | None,
    samples: int | None,
    ncu: str | None,
    seed: int,
    output: Path | None,
    *,
    resume: bool,
    force: bool,
    json: bool,
) -> Run:
    """From the options to a run that may start; QuestprofError for what cannot be, before any measuring."""
    from questprof.backends import user
    from questprof.crossover.traffic import read_traffic
    from questprof.decide.outputs import plan_paths
    from questprof.decide.request import DEFAULTS, Question, choose_lengths, parse_one, resolve
    from questprof.decide.run import Run
    from questprof.environment import resolve_device
    from questprof.grid import check_names, check_pages, parse_sizes
    from questprof.sweep.pacing import parse_duration
    from questprof.sweep.run import default_backends
    from questprof.sweep.settings import Settings, rule_for
    from questprof.terminal import plain_console

    started = perf_counter()
    weighed = read_traffic(traffic) if traffic else None
    asked_seconds = parse_duration(time) if time else None
    console = plain_console(stderr=json)
    refuse_unready(console)
    where = resolve_device(device)
    default = DEFAULTS[where]
    typed = shape or default.shape
    tokens = parse_one(budget or default.budget, "budget")
    page = parse_one(page_size, "page size")
    check_pages([tokens], [page])
    found, config, no_config = resolve(typed, where, dtype, weights)
    kernels = user.register_all(kernel or ())
    for name in kernels:
        user.refuse_interpreted(name)
    asked = Question(
        device=where,
        shape=found,
        config=config,
        no_config=no_config,
        shape_name=typed,
        lengths=choose_lengths(lengths, where, tokens, weighed, config),
        page_size=page,
        budget=tokens,
        batch_sizes=parse_sizes(batch, "batch size"),
        weights=weights or default.weights,
        backends=check_names(default_backends(where) if backends is None else backends, "backend"),
        kernels=kernels,
        kernels_with_dense=tuple(one for one in kernels if user.gives(one, "dense")),
        traffic=weighed,
        seed=seed,
    )
    return Run(
        asked=asked,
        paths=plan_paths(output, name, where, force=force, resume=resume),
        settings=Settings(where, rule_for(where, samples, None, None, None)),
        seconds=parse_duration(default.time) if asked_seconds is None else asked_seconds,
        console=console,
        started=started,
        kernels=user.source_of(asked.backend) if kernels else "",
        ncu=ncu,
    )


def refuse_unready(console: Any) -> None:
    """Run the doctor: print what is not in order; QuestprofError (status 3) where nothing can be measured."""
    from questprof.doctor.checks import diagnose
    from questprof.doctor.probes import gather

    found = diagnose(gather())
    blocking = [finding for finding in found.findings if finding.blocks]
    if blocking:
        raise QuestprofError(
            "nothing can be measured here",
            "; ".join(f"{finding.name}: {finding.detail}" for finding in blocking),
            " ".join(filter(None, (blocking[0].fix, blocking[0].command))),
            Exit.MACHINE,
        )
    for finding in found.findings:
        if finding.level != "ok":
            console.print(
                f"doctor: {finding.name}: {finding.detail}", highlight=False, markup=False, soft_wrap=True
            )


def measure(one: Run) -> tuple[Findings, Decision]:
    """Run the parts and decide; an interrupt says where its figures are and how to go on."""
    from questprof.decide.decision import decide as made
    from questprof.decide.outputs import PARTS
    from questprof.decide.run import run

    try:
        found = run(one)
    except KeyboardInterrupt:
        begun = any(one.paths.profile(part).exists() for part in PARTS)
        print(interrupted(one.paths.page, begun=begun, where="lies beside"), file=sys.stderr)
        raise typer.Exit(Exit.INTERRUPTED) from None
    return found, made(found)


def write_page(found: Findings, made: Decision, paths: Paths) -> None:
    """The page: the sentence and what must be read with it, then the report of every profile."""
    from questprof.decide.remarks import remarks
    from questprof.decide.sentences import by_batch, sentence
    from questprof.report import write_report

    if found.profiles:
        lead = (sentence(found, made), *by_batch(made), *remarks(made))
        write_report(found.profiles, paths.page, "inline", paths.force or paths.resume, lead)


def path_names(found: Findings, paths: Paths) -> dict[str, Any]:
    """The page and the profiles that there are, for JSON."""
    from questprof.decide.outputs import PARTS

    names = {part: str(paths.profile(part)) if paths.profile(part).exists() else None for part in PARTS}
    return {"page": str(paths.page) if found.profiles else None, "profiles": names}


def show(found: Findings, made: Decision, paths: Paths) -> None:
    """The table by batch, what must be read with it, the sentence, the files."""
    from questprof.decide.document import HEADS, cells, terminal_lines
    from questprof.terminal import plain_console, plain_table, print_table

    console = plain_console()
    table = plain_table(*HEADS, left=("answer", "limited by"))
    for row in cells(made):
        table.add_row(*row)
    print_table(console, table, f"{found.asked.shape.name}, budget {found.asked.budget}, by batch")
    for line in terminal_lines(found, made):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    print()
    names = path_names(found, paths)
    for path in filter(None, (names["page"], *names["profiles"].values())):
        print(path)
