"""`questprof amdahl`: the whole decode step part by part, and what an attention speed-up is worth in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from questprof.commands import options
from questprof.commands.ending import exit_status, interrupted
from questprof.commands.reading import read_as_one
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.amdahl.plan import Request
    from questprof.model import Profile


def parse_share(text: str) -> float:
    """`0.6` or `60%` as 0.6; QuestprofError for what is no number from 0 to 1."""
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise QuestprofError(f"--share {text!r}", "it is no number", "Write 0.6 or 60%.") from None
    if not 0 <= share <= 1:
        fix = "A share lies between 0 and 1, or 0% and 100%: write 0.6 or 60%."
        if 2 <= share <= 100 and not number.endswith("%"):  # 1.2 may be 120% as well as 1.2%
            fix = f"Write {number}%."
        raise QuestprofError(f"--share {text!r}", "it is no share from 0 to 1", fix)
    return share


def parse_speedup(text: str) -> float:
    """`7.03` or `7.03x` as 7.03; QuestprofError for what is no number."""
    try:
        return float(text.strip().lower().removesuffix("x"))
    except ValueError:
        raise QuestprofError(
            f"--attention-speedup {text!r}", "it is no number", "Write 7.03 or 7.03x."
        ) from None


def amdahl(
    profiles: Annotated[
        list[Path] | None, typer.Argument(help="Profiles with decode steps to read; default: measure.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--share",
            parser=parse_share,
            metavar="SHARE",
            help="By hand, eq. (13): attention's share of a dense step, as in 0.6 or 60%.",
        ),
    ] = None,
    attention_speedup: Annotated[
        float | None,
        typer.Option(
            "--attention-speedup",
            parser=parse_speedup,
            metavar="TIMES",
            help="With --share: how much faster attention becomes, as in 7.03 or 7.03x.",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            "--shapes",
            help="llama-2-7b, llama-3.1-8b, mistral-7b-v0.3, tiny or config.json.",
            autocompletion=options.model_names,
        ),
    ] = None,
    lengths: options.LENGTHS = None,
    page_size: Annotated[
        int, typer.Option("--page-size", "--page-sizes", min=1, help="Tokens a page (S).")
    ] = 16,
    budgets: options.BUDGETS = None,
    batch: options.BATCH = "1",
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="Formats of the weights: fp16, bf16, fp32, int4 (group of 128)."),
    ] = None,
    dense_layers: Annotated[
        str, typer.Option("--dense-layers", help="First layers whose attention stays dense: 2, or 0,2.")
    ] = "2",
    layer_budgets: Annotated[
        Path | None,
        typer.Option(
            "--layer-budgets",
            help="Also a step with a token budget a layer: one a line, or the JSON of recall --suggest.",
        ),
    ] = None,
    ragged: Annotated[
        bool, typer.Option("--ragged", help="Also batches of requests from 1 / batch of the length up to it.")
    ] = False,
    lengths_file: Annotated[
        Path | None, typer.Option("--lengths-file", help="One batch with these lengths, one a line.")
    ] = None,
    backends: Annotated[
        str, typer.Option("--backends", "--backend", help="Dense attention; the fastest is the baseline.")
    ] = "questprof",
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=3, help="Consecutive steps, a sample each; 50 on a GPU, 20 on a CPU."),
    ] = None,
    predict: Annotated[
        str | None, typer.Option("--predict", help="Lengths to work out from those measured (modelled).")
    ] = None,
    device: options.DEVICE = "auto",
    seed: options.SEED = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The profile (.jsonl).")] = None,
    html: options.HTML = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the profile that -o names.")] = False,
    force: options.FORCE = False,
    json: options.JSON = False,
    context: typer.Context = None,  # type: ignore[assignment]  # typer fills it in
) -> None:
    """Time whole decode steps, dense and Quest, part by part; check Amdahl's law on them; say what if."""
    if share is not None or attention_speedup is not None:
        _refuse(context, BY_HAND, "with --share", "eq. (13) by hand measures and reads nothing")
        _by_hand(share, attention_speedup, json)
        return
    at = _lengths(predict)
    if profiles:
        _refuse(context, READING, "with profiles to read", "nothing is measured")
        _from_profiles(profiles, output, html, at, force, json)
        return
    if lengths_file:
        why = "its lines are the requests of the one batch that is measured"
        options.refuse_typed(context, ("lengths", "batch", "ragged"), "with --lengths-file", why)
    from questprof.amdahl.plan import Request, plan
    from questprof.environment import resolve_device
    from questprof.report import write_report
    from questprof.sweep.outputs import plan_outputs

    request = Request(
        device=resolve_device(device),
        shapes=tuple(shape or ()),
        lengths=lengths,
        page_size=page_size,
        budgets=budgets,
        batch=batch,
        weights=weights,
        dense_layers=dense_layers,
        layer_budgets=layer_budgets,
        ragged=ragged,
        lengths_file=lengths_file,
        backends=backends,
        steps=steps,
        seed=seed,
    )
    blocks = plan(request)
    if at:
        from questprof.amdahl.forecast import check_enough

        check_enough(point for block in blocks for point in block.quest)
    outputs = plan_outputs(output, html, request.device, force=force, resume=resume)
    measured = _measure(blocks, request, outputs, json)
    if outputs.page:
        write_report([measured], outputs.page, "inline", outputs.force or outputs.resume)
    _show(measured, {"profile": outputs.profile, "page": outputs.page}, at, json)


MEASURE = "Measure one: questprof amdahl -o steps.jsonl."
BY_HAND = frozenset({"share", "attention_speedup", "json"})
"""Parameters that eq. (13) by hand takes."""
READING = frozenset({"profiles", "output", "html", "predict", "force", "json"})
"""Parameters that profiles to read take; -o is refused with a reason of its own."""


def _refuse(context: typer.Context | None, allowed: frozenset[str], where: str, why: str) -> None:
    """QuestprofError that names options in the command line which would do nothing."""
    typed = options.typed(context) if context else {}
    options.refuse_typed(context, typed.keys() - allowed, where, why)


def _by_hand(share: float | None, attention_speedup: float | None, json: bool) -> None:
    """Equation (13) alone."""
    from questprof.amdahl import law
    from questprof.amdahl.display import say
    from questprof.terminal import plain_console

    if share is None:
        raise QuestprofError(
            "--attention-speedup without --share",
            "eq. (13) needs attention's share of the dense step",
            "Add --share, as in --share 0.6, or leave both out and measure.",
        )
    found = law.hand_calculation(
        share, law.PAPER_ATTENTION_SPEEDUP if attention_speedup is None else attention_speedup
    )
    if json:
        print_json(law.as_document(found))
        return
    console = plain_console()
    if attention_speedup is None:
        say(console, "Attention speed-up: the paper's highest, 7.03x; --attention-speedup takes yours.")
    for line in law.explain(found):
        say(console, line)


def _lengths(text: str | None) -> tuple[int, ...]:
    from questprof.grid import parse_sizes

    return parse_sizes(text, "length") if text else ()


def _measure(blocks: Any, request: Request, outputs: Any, json: bool) -> Profile:
    """Run the steps; an interrupt says where its figures are and how to go on."""
    from questprof.amdahl.run import run_amdahl
    from questprof.terminal import plain_console

    try:
        return run_amdahl(blocks, request, outputs, plain_console(stderr=json))
    except KeyboardInterrupt:
        print(interrupted(outputs.profile, begun=outputs.profile.exists()), file=sys.stderr)
        raise typer.Exit(Exit.INTERRUPTED) from None


def _from_profiles(
    paths: list[Path], output: Path | None, html: Path | None, at: tuple[int, ...], force: bool, json: bool
) -> None:
    """Steps of profiles that are there; nothing is measured."""
    from questprof.amdahl.display import say
    from questprof.terminal import plain_console

    for path in paths:
        if not path.exists():
            raise QuestprofError(
                f"cannot read {path}", "No such file", f"Name a profile of amdahl. {MEASURE}"
            )
    read = read_as_one(paths, output, "hold a step twice, so that they do not compare")
    for warning in read.warnings:
        say(plain_console(stderr=True), f"warning: {warning}")
    if html:
        from questprof.report import write_report

        write_report([read], html, "inline", force)
    _show(read, {"page": html}, at, json)


def _show(profile: Profile, paths: dict[str, Path | None], at: tuple[int, ...], json: bool) -> None:
    """Tables, sentences and alarms, or one JSON document; then the exit status."""
    from questprof.amdahl.display import print_amdahl, say
    from questprof.amdahl.finding import amdahl, as_document
    from questprof.sweep.display import problems
    from questprof.terminal import plain_console
    from questprof.timing.conditions import conditions

    found = amdahl(profile, at)
    if found is None:
        raise QuestprofError(
            "no decode step in this profile",
            "it holds no record of kind amdahl",
            MEASURE,
        )
    records = [record for record in profile.records if record.kind == "amdahl"]
    warnings = [*found.alarms, *found.unpredicted, *problems(records), *conditions(profile)]
    errors = plain_console(stderr=True)
    if json:
        document = {name: str(path) if path else None for name, path in paths.items()}
        print_json(
            {
                **document,
                "environment": profile.header.environment,
                **as_document(found),
                "warnings": warnings,
            }
        )
    else:
        print_amdahl(plain_console(), found)
        for note in found.notes:
            say(errors, f"note: {note}")
    for line in warnings:
        say(errors, f"warning: {line}")
    if not json:
        for path in filter(None, paths.values()):
            print(path)
    if status := exit_status({record.status for record in records}, found.inconclusive):
        raise typer.Exit(status)
