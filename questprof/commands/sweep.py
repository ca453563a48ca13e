"""`questprof sweep`: time every stage over a grid, against dense baselines, into a profile and a page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import options
from questprof.commands.check_only import SHAPES as CHECKED_SHAPES
from questprof.commands.check_only import check_only as check_kernels
from questprof.commands.check_only import refuse_useless
from questprof.commands.ending import exit_status, interrupted
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from questprof.grid import Block, Grid
    from questprof.model import Profile
    from questprof.sweep.outputs import Outputs
    from questprof.sweep.settings import Settings

NOT_IN_PRESETS = (
    *("preset", "check_only", "list_presets"),
    *("output", "html", "resume", "retry", "skip_corrupt", "force"),
)


def _use_preset(context: typer.Context, name: str | None) -> str | None:
    """Take the preset's options as defaults, which the command line goes before."""
    if name:
        from questprof.sweep.presets import load_preset

        given = [p.name for p in context.command.params if p.name and p.name not in NOT_IN_PRESETS]
        context.default_map = {**(context.default_map or {}), **load_preset(name, given)}
    return name


def _list_presets(wanted: bool) -> None:
    if wanted:
        from questprof.sweep.presets import list_presets

        print(list_presets())
        raise typer.Exit


def sweep(
    shape: options.SHAPE = None,
    lengths: options.LENGTHS = None,
    page_sizes: options.PAGE_SIZES = "16",
    budgets: options.BUDGETS_OR_ALL = None,
    batch: options.BATCH = "1",
    heads: options.HEADS = None,
    kv_heads: options.KV_HEADS = None,
    head_dim: options.HEAD_DIM = None,
    layers: options.LAYERS = None,
    dtype: options.DTYPE = None,
    summary_dtype: options.SUMMARY_DTYPE = "",
    device: options.DEVICE = "auto",
    backends: options.BACKENDS = None,
    kernel: options.STAGE_SETS = None,
    check_only: options.CHECK_ONLY = False,
    policies: options.POLICIES = "quest",
    summary_layout: options.SUMMARY_LAYOUT = "auto",
    data: options.DATA = "independent,shared",
    page_order: options.PAGE_ORDER = "shuffled",
    pool: options.POOL = "100g",
    append: options.APPEND = False,
    cold_select: options.COLD_SELECT = False,
    samples: options.SAMPLES = None,
    precision: options.PRECISION = None,
    max_samples: options.MAX_SAMPLES = None,
    max_seconds: options.MAX_SECONDS = None,
    single_steps: options.SINGLE_STEPS = None,
    energy: options.ENERGY = False,
    time: options.TIME = None,
    shard: options.SHARD = None,
    seed: options.SEED = 0,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", callback=_use_preset, is_eager=True, help="Options by name: NAME or FILE.toml:NAME."
        ),
    ] = None,
    list_presets: Annotated[
        bool, typer.Option("--list-presets", callback=_list_presets, is_eager=True, help="Show the presets.")
    ] = False,
    dry_run: options.DRY_RUN = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The profile (.jsonl).")] = None,
    html: options.HTML = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the profile that -o names.")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="On resume, time blocks with wrong, oom or unstable points again.")
    ] = False,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="On resume, measure the points of corrupt lines again.")
    ] = False,
    force: options.FORCE = False,
    json: options.JSON = False,
    context: typer.Context = None,  # type: ignore[assignment]  # typer fills it in
) -> None:
    """Time append, score, select, attend, quest and dense over a grid; write a profile and a page."""
    from questprof.backends import user
    from questprof.environment import resolve_device
    from questprof.grid import Grid, check_names, parse_budgets, parse_sizes, plan_blocks, resolve_shape
    from questprof.sweep.outputs import check_resuming, plan_outputs
    from questprof.sweep.pacing import parse_duration
    from questprof.sweep.run import DEFAULTS, default_backends
    from questprof.sweep.settings import Settings, energy_seconds, rule_for
    from questprof.sweep.settings import single_steps as steps_of
    from questprof.terminal import plain_console
    from questprof.units import parse_bytes

    check_resuming(output, force=force, resume=resume, retry=retry, skip_corrupt=skip_corrupt)
    where = resolve_device(device)
    default = DEFAULTS[where]
    options.refuse_dtypes(dtype or default.dtype, summary_dtype)
    shapes = tuple(
        resolve_shape(
            name,
            kv_dtype=dtype or default.dtype,
            summary_dtype=summary_dtype,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            layers=layers,
        )
        for name in shape or (CHECKED_SHAPES if check_only else ["llama-2-7b"])
    )
    layouts = () if summary_layout == "auto" else check_names(summary_layout, "summary layout")
    if check_only:
        refuse_useless(options.typed(context))
        sizes, named = parse_sizes(page_sizes, "page size"), check_names(policies, "policy")
        check_kernels(kernel or (), where, shapes, sizes, layouts, named, seed, json=json)
        return
    kernels = user.register_all(kernel or ())
    for name in kernels:
        user.refuse_interpreted(name)
    grid = Grid(
        shapes=shapes,
        lengths=parse_sizes(default.lengths if lengths is None else lengths, "length"),
        page_sizes=parse_sizes(page_sizes, "page size"),
        budgets=parse_budgets(default.budgets if budgets is None else budgets),
        batch_sizes=parse_sizes(batch, "batch size"),
        device=where,
        policies=check_names(policies, "policy"),
        backends=check_names(default_backends(where) if backends is None else backends, "backend"),
        kernels=kernels,
        kernels_with_dense=tuple(name for name in kernels if user.gives(name, "dense")),
        summary_layouts=layouts,
        data=check_names(data, "data"),
        page_orders=check_names(page_order, "page order"),
        pool_bytes=parse_bytes(pool, "pool"),
        extras=("append",) * append + ("select",) * cold_select,
        seed=seed,
    )
    if "scattered" not in grid.page_orders:
        why = "only scattered pages lie in a pool"
        options.refuse_typed(context, ("pool",), f"with pages that are {' and '.join(grid.page_orders)}", why)
    settings = Settings(
        device=where,
        rule=rule_for(where, samples, precision, max_samples, max_seconds),
        energy_seconds=energy_seconds(where, energy),
        single_steps=steps_of(where, single_steps),
        time_s=None if time is None else parse_duration(time),
    )
    blocks = _sharded(plan_blocks(grid), shard)
    if dry_run:
        _show_plan(blocks, settings, json)
        return
    outputs = plan_outputs(
        output, html, where, force=force, resume=resume, retry=retry, skip_corrupt=skip_corrupt
    )
    profile = _measure(blocks, outputs, settings, plain_console(stderr=json))
    _conclude(profile, grid, outputs, json)


def _sharded(blocks: Sequence[Block], text: str | None) -> Sequence[Block]:
    """The i-th of n parts of `blocks` for `i/n`; all of them without."""
    from questprof.sweep.estimate import shard

    if text is None:
        return blocks
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise QuestprofError(f"--shard {text!r}", "it is no i/n with i from 1 to n", "Write 1/4 to 4/4.")
    chosen = shard(blocks, int(match[1]), int(match[2]))
    if not chosen:
        why = f"the grid has {len(blocks)} blocks (points over one cache), which are not split"
        raise QuestprofError(f"--shard {text} is empty", why, f"Give at most {len(blocks)} shards.")
    return chosen


def _show_plan(blocks: Sequence[Block], settings: Settings, json: bool) -> None:
    from questprof.sweep.dry_run import plan, show
    from questprof.sweep.run import refuse_hopeless
    from questprof.terminal import plain_console

    refuse_hopeless(blocks, settings.device)
    document = plan(blocks, settings)
    if json:
        print_json(document)
    else:
        show(document, plain_console())


def _measure(blocks: Sequence[Block], outputs: Outputs, settings: Settings, console: Console) -> Profile:
    """Run the sweep; an interrupt says where its figures are and how to go on."""
    from questprof.sweep.run import run_sweep

    try:
        return run_sweep(blocks, outputs, settings, console)
    except KeyboardInterrupt:
        print(interrupted(outputs.profile, begun=outputs.profile.exists()), file=sys.stderr)
        raise typer.Exit(Exit.INTERRUPTED) from None


def _conclude(profile: Profile, grid: Grid, outputs: Outputs, json: bool) -> None:
    """Print the closing table (or the JSON document), write the page, exit with the sweep's status."""
    from questprof.report import write_report

    _print_json(profile, outputs) if json else _print_closing(profile, grid)
    if outputs.page:
        write_report([profile], outputs.page, "inline", outputs.force or outputs.resume)
    if not json:
        for path in filter(None, (outputs.profile, outputs.page)):
            print(path)
    status = ending(profile)
    if status:
        raise typer.Exit(status)


def _print_closing(profile: Profile, grid: Grid) -> None:
    from questprof.crossover.sentences import verdicts
    from questprof.scan import scan_rows, series
    from questprof.sweep.display import advice, print_energy, print_tables, problems, sources
    from questprof.sweep.tails import print_tails
    from questprof.terminal import plain_console
    from questprof.timing.conditions import conditions

    rows = scan_rows(profile)
    print_tables(plain_console(), rows)
    if legend := sources(rows):
        print(legend)
    print_tails(plain_console(), profile, rows)
    print_energy(plain_console(), profile.records)
    for sentence in verdicts(series(rows)):
        print(sentence)
    alarms = dict.fromkeys(alarm for row in rows for alarm in row.alarms)
    for line in (*alarms, *problems(profile.records), *conditions(profile)):
        print(f"warning: {line}", file=sys.stderr)
    print(advice(grid))


def _print_json(profile: Profile, outputs: Outputs) -> None:
    from questprof.crossover.sentences import verdicts
    from questprof.scan import scan_rows, series
    from questprof.sweep.display import problems, sources
    from questprof.timing.conditions import conditions
    from questprof.timing.energy import stage_energies
    from questprof.timing.steps_source import steps_source

    rows = scan_rows(profile)
    document = {
        "profile": str(outputs.profile),
        "page": str(outputs.page) if outputs.page else None,
        "environment": profile.header.environment,
        "sources": sources(rows),
        "single_steps": steps_source(profile.records),
        "verdicts": verdicts(series(rows)),
        "warnings": [*problems(profile.records), *conditions(profile)],
        "clocks": {record.point_id: record.clocks for record in profile.records if record.clocks},
        "energy": stage_energies(profile.records),
        "rows": rows,
    }
    print_json(document)


def ending(profile: Profile) -> Exit:
    """Its `exit_status`; inconclusive where no length of any budget has a valid pair of figures.

    So where no time was left for any.
    """
    from questprof.crossover.crossing import crossover
    from questprof.scan import scan_rows, series

    nothing = all(crossover(one).kind == "no valid point" for one in series(scan_rows(profile)))
    return exit_status({record.status for record in profile.records}, nothing)
