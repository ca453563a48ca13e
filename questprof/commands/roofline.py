"""`questprof roofline`: the ceilings of this device, and every stage's place under them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import options
from questprof.commands.ending import exit_status
from questprof.commands.reading import read_as_one
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.model import Profile


ALSO_OF_READING = ("profiles", "output", "html", "force", "json")
"""Parameters that say nothing of what is measured."""


def roofline(
    profiles: Annotated[
        list[Path] | None,
        typer.Argument(help="Profiles of one device with ceilings, times, counted bytes; default: measure."),
    ] = None,
    shape: options.SHAPE = None,
    lengths: options.LENGTHS = None,
    page_sizes: options.PAGE_SIZES = "16",
    budgets: options.BUDGETS = None,
    batch: options.BATCH = "1",
    heads: options.HEADS = None,
    kv_heads: options.KV_HEADS = None,
    head_dim: options.HEAD_DIM = None,
    dtype: options.DTYPE = None,
    summary_dtype: options.SUMMARY_DTYPE = "",
    device: options.DEVICE = "auto",
    backends: options.BACKENDS = "questprof",
    summary_layout: options.SUMMARY_LAYOUT = "auto",
    data: options.DATA = "independent",
    samples: Annotated[int | None, typer.Option("--samples", min=3, help="Samples a stage.")] = None,
    seed: options.SEED = 0,
    max_working_set: Annotated[
        str,
        typer.Option(
            "--max-working-set", help="End of the bandwidth curve; a quarter of free memory at most."
        ),
    ] = "4g",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The profile (.jsonl).")] = None,
    html: options.HTML = None,
    force: options.FORCE = False,
    json: options.JSON = False,
    context: typer.Context = None,  # type: ignore[assignment]  # typer fills it in
) -> None:
    """Measure bandwidth by working set, FLOP rates and launches; place every stage under those roofs."""
    if profiles:
        _refuse_measuring(context)
        _from_profiles(profiles, output, html, force, json)
        return
    from questprof.environment import resolve_device
    from questprof.roofline.run import RooflineRequest, measure
    from questprof.units import parse_bytes

    request = RooflineRequest(
        device=resolve_device(device),
        shapes=tuple(shape or ("llama-2-7b",)),
        lengths=lengths,
        page_sizes=page_sizes,
        budgets=budgets,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        summary_dtype=summary_dtype,
        backends=backends or "questprof",
        summary_layout=summary_layout,
        data=data,
        samples=samples,
        seed=seed,
        most_bytes=parse_bytes(max_working_set, "working set"),
    )
    try:
        measured, outputs = measure(request, output, html, force=force, quiet=json)
    except KeyboardInterrupt:
        print("interrupted; a profile that was begun holds what was measured until then", file=sys.stderr)
        raise typer.Exit(Exit.INTERRUPTED) from None
    paths = {"profile": outputs.profile, "page": outputs.page}
    if outputs.page:
        from questprof.report import write_report

        write_report([measured], outputs.page, "inline", force)
    _show(measured, paths, json)
    if status := exit_status({record.status for record in measured.records}):
        raise typer.Exit(status)


def _refuse_measuring(context: typer.Context | None) -> None:
    """QuestprofError for an option that says what to measure beside profiles that are only read."""
    if context is None:
        return
    given = [option for name, option in options.typed(context).items() if name not in ALSO_OF_READING]
    if given:
        raise QuestprofError(
            f"{', '.join(given)} with profiles to read",
            "nothing is measured: every stage of the profiles is shown",
            "Leave the options out, or the profiles.",
        )


def _from_profiles(
    paths: list[Path], output: Path | None, html: Path | None, force: bool, json: bool
) -> None:
    """Ceilings, times and counted bytes of profiles that are there; nothing is measured."""
    read = read_as_one(paths, output, "hold a point twice, so that they have no common roof")
    for warning in read.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if html:
        from questprof.report import write_report

        write_report([read], html, "inline", force)
    _show(read, {"page": html}, json)


def _show(profile: Profile, paths: dict[str, Path | None], json: bool) -> None:
    """Tables, notes and alarms, or one JSON document."""
    from questprof.roofline.display import SOURCES, print_roofline
    from questprof.roofline.finding import as_document, roofline
    from questprof.sweep.display import problems
    from questprof.terminal import plain_console

    found, env = roofline(profile), profile.header.environment
    if json:
        document = {
            **{name: str(path) if path else None for name, path in paths.items()},
            **{"environment": env, "sources": SOURCES},
            **as_document(found),
        }
        print_json(document)
    else:
        print_roofline(plain_console(), found, env.device)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    for line in (*found.alarms, *problems(profile.records)):
        print(f"warning: {line}", file=sys.stderr)
    if not json:
        for path in filter(None, paths.values()):
            print(path)
