"""`questprof recall`: what Quest's selection keeps of dense attention, by layer and head."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from questprof.commands import options
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.model import Profile
    from questprof.recall.source import KeyQueryTrace


ALSO_OF_SHOWING = ("traces", "suggest", "timings", "html", "force", "json")
"""What may stand beside profiles to show, of which nothing is evaluated."""


def recall(
    context: typer.Context,
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Traces of questprof capture (.safetensors), or profiles of recall (.jsonl) to show again."
        ),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            "--synthetic", help="Without a trace: planted, clustered or gaussian. No statement about models."
        ),
    ] = None,
    page_sizes: options.PAGE_SIZES = "8,16,32",
    budgets: options.BUDGETS_OR_ALL = "128..2048",
    policies: Annotated[
        str, typer.Option("--policies", "--policy", help="quest, quest-open, oracle, fixed, random.")
    ] = "quest,quest-open,oracle,fixed,random",
    layers: Annotated[
        str | None, typer.Option("--layers", "--layer", help="Layers: 0,5-9; default: all of the trace.")
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", "--head", help="Query heads: 0,3-5; default: all.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="R of the recall of the top tokens.")] = 10,
    check: Annotated[
        str,
        typer.Option(
            "--check",
            help="Layers whose attention runs through the kernels too: all, sample (4) or none. Selection is "
            "compared in every layer, the bounds are checked on every query.",
        ),
    ] = "all",
    device: options.DEVICE = "auto",
    seed: options.SEED = 0,
    suggest: Annotated[
        Path | None,
        typer.Option("--suggest", help="Write a budget for every layer here, for amdahl --layer-budgets."),
    ] = None,
    timings: Annotated[
        list[Path] | None,
        typer.Option("--with", help="A profile of sweep: speed at equal mass. May be repeated."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The profile (.jsonl).")] = None,
    html: options.HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Recall, attention mass, output error and slack by layer and head, for page sizes x budgets x policies.

    The project's own stages select and attend; a float64 path checks them. Exit 1 where a bound is broken or
    the paths differ.
    """
    from questprof.environment import resolve_device
    from questprof.grid import parse_budgets, parse_sizes
    from questprof.recall.answers.files import check_suggest, read_timings
    from questprof.recall.cases import Asked, parse_compare, parse_numbers, resolve
    from questprof.recall.policies import parse_policies
    from questprof.recall.run import run_recall
    from questprof.sweep.outputs import plan_outputs
    from questprof.terminal import plain_console

    asked = Asked(
        page_sizes=parse_sizes(page_sizes, "page size"),
        budgets=parse_budgets(budgets or "128..2048"),
        policies=parse_policies(policies),
        layers=parse_numbers(layers, "layer"),
        heads=parse_numbers(heads, "head"),
        top_tokens=top,
        seed=seed,
        compare=parse_compare(check),
    )
    if traces and not synthetic and _are_profiles(traces):
        _check_only_shown(context, traces)
        check_suggest(suggest, (), force)
        _finish(_stored(traces), Paths(None, html, suggest), read_timings(timings or ()), force, json)
        return
    check_suggest(suggest, asked.heads, force)
    timed = read_timings(timings or ())
    sources = _sources(traces or [], synthetic, seed)
    for opened in sources.values():
        resolve(asked, opened.header)
    where = resolve_device(device)
    outputs = plan_outputs(output, html, where, force=force, resume=False)
    console = plain_console(stderr=True)

    def progress(text: str) -> None:
        if console.is_terminal:
            console.print(text, style="dim", highlight=False)

    try:
        profile = run_recall(sources, asked, where, outputs, progress)
    except KeyboardInterrupt:
        print("interrupted; records are written after the last layer, so there are none", file=sys.stderr)
        raise typer.Exit(Exit.INTERRUPTED) from None
    _finish(profile, Paths(outputs.profile, outputs.page, suggest), timed, force, json)


class Paths(NamedTuple):
    """Files that a run leaves; `profile` None: it was there before."""

    profile: Path | None
    page: Path | None
    suggest: Path | None


def _finish(profile: Profile, paths: Paths, timed: Sequence[Profile], force: bool, json: bool) -> None:
    """Page, suggestion, text; exit 1 where a check failed."""
    from questprof.recall.answers.files import write_suggestion

    if paths.page:
        from questprof.report import write_report

        write_report([profile, *timed], paths.page, "inline", force)
    if paths.suggest:
        write_suggestion(profile, paths.suggest, force)
    _show(profile, paths, timed, json)
    if any(record.status == "wrong" for record in profile.records):
        raise typer.Exit(Exit.CHECK_FAILED)


def _are_profiles(paths: Sequence[Path]) -> bool:
    """Whether profiles are to be shown; QuestprofError for some beside traces."""
    shown = [path for path in paths if path.suffix == ".jsonl"]
    others = [path for path in paths if path.suffix != ".jsonl"]
    if shown and others:
        raise QuestprofError(
            f"{shown[0]} beside {others[0]}",
            "a profile and a trace cannot be mixed: profiles (.jsonl) are shown, traces are evaluated",
            "Evaluate the traces first, then name profiles alone.",
        )
    return bool(shown)


def _check_only_shown(context: typer.Context, paths: Sequence[Path]) -> None:
    """QuestprofError for options of an evaluation beside profiles, and for a profile named twice."""
    given = [option for name, option in options.typed(context).items() if name not in ALSO_OF_SHOWING]
    if given:
        raise QuestprofError(
            f"{', '.join(given)} with profiles to show",
            "nothing is evaluated, so there is no new profile: everything in these is shown",
            "Leave the options out, or name traces; --html writes the page.",
        )
    _check_named_once(paths)


def _check_named_once(paths: Sequence[Path]) -> None:
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise QuestprofError(f"{path} twice", "they are one file", "Name each file once.")


def _stored(paths: Sequence[Path]) -> Profile:
    """Profiles written before, as one; what is wrong with a file goes to stderr."""
    from questprof.recall.run import read_stored

    profile = read_stored(paths)
    for warning in profile.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return profile


def _sources(paths: Sequence[Path], synthetic: str | None, seed: int) -> dict[str, KeyQueryTrace]:
    """The traces by what they are called; QuestprofError unless there are files or a made-up one."""
    from questprof.recall.run import open_trace
    from questprof.recall.synthetic import synthetic as make

    if bool(paths) == (synthetic is not None):
        raise QuestprofError(
            f"{paths[0]} beside --synthetic {synthetic}" if paths else "no trace",
            "queries and keys are either captured or made up",
            "Name a trace of `questprof capture`, or give --synthetic planted, clustered or gaussian.",
        )
    if synthetic is not None:
        return {synthetic: make(synthetic, seed=seed)}
    _check_named_once(paths)
    names = [path.name for path in paths]
    return {path.name if names.count(path.name) == 1 else str(path): open_trace(path) for path in paths}


def _show(profile: Profile, paths: Paths, timed: Sequence[Profile], json: bool) -> None:
    """Sentences and tables, or one JSON document; what failed goes to stderr."""
    from questprof.printable import printable
    from questprof.recall.answers.display import print_answers
    from questprof.recall.display import print_recall
    from questprof.terminal import plain_console

    if json:
        print_json(_document(profile, paths, timed))
    else:
        print_recall(plain_console(), profile)
        print_answers(plain_console(), profile, timed)
    for record in profile.records:
        if record.status == "wrong":
            point = record.point
            where = f"page {point.page_size} budget {point.token_budget} {point.policy}"
            print(printable(f"wrong: {where}: {record.reason}"), file=sys.stderr)
    if not json:
        for path in filter(None, paths):
            print(path)


def _document(profile: Profile, paths: Paths, timed: Sequence[Profile]) -> dict[str, Any]:
    from questprof.recall.ablations import ablations
    from questprof.recall.answers.display import document, paired
    from questprof.recall.display import by_trace, summary_lines
    from questprof.recall.rows import page_rows, recall_rows, trace_id

    infos = {info.trace_id: info for rows in page_rows(profile).values() if (info := rows.trace)}
    parts = by_trace(profile)
    return {
        **{name: str(path) if path else None for name, path in paths._asdict().items()},
        "environment": profile.header.environment,
        "traces": list(infos.values()),
        "summary": [line for one in parts for line in summary_lines(one)],
        "checks": [
            {
                "trace": trace_id(record),
                "page_size": record.point.page_size,
                "token_budget": record.point.token_budget,
                "policy": record.point.policy,
                "status": record.status,
                "checks": record.checks,
            }
            for record in profile.records
            if record.checks
        ],
        "ablations": {trace_id(one.records[0]): ablations(one) for one in parts},
        "answers": document(paired(profile, timed)),
        "rows": recall_rows(profile),
    }
