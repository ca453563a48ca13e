"""`questprof sweep`: time every stage over a grid, against dense baselines, into a profile and a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from questprof.commands import options
from questprof.errors import Exit

if TYPE_CHECKING:
    from questprof.grid import Grid
    from questprof.model import Profile
    from questprof.run import Outputs


def sweep(
    shape: options.SHAPE = None,
    lengths: options.LENGTHS = None,
    page_sizes: options.PAGE_SIZES = "16",
    budgets: options.BUDGETS = None,
    batch: options.BATCH = "1",
    heads: options.HEADS = None,
    kv_heads: options.KV_HEADS = None,
    head_dim: options.HEAD_DIM = None,
    layers: options.LAYERS = None,
    dtype: options.DTYPE = None,
    summary_dtype: options.SUMMARY_DTYPE = "",
    device: options.DEVICE = "auto",
    backends: options.BACKENDS = None,
    policies: options.POLICIES = "quest",
    summary_layout: options.SUMMARY_LAYOUT = "auto",
    data: options.DATA = "independent,shared",
    page_order: options.PAGE_ORDER = "shuffled",
    pool: options.POOL = "100g",
    append: options.APPEND = False,
    cold_select: options.COLD_SELECT = False,
    samples: Annotated[int | None, typer.Option("--samples", min=3, help="Samples a stage.")] = None,
    seed: options.SEED = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The profile (.jsonl).")] = None,
    html: options.HTML = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the profile that -o names.")] = False,
    force: options.FORCE = False,
    json: options.JSON = False,
) -> None:
    """Time append, score, select, attend, quest and dense over a grid; write a profile and a page."""
    from questprof.display import plain_console
    from questprof.environment import resolve_device
    from questprof.grid import Grid, check_names, parse_sizes, plan_blocks, resolve_shape
    from questprof.run import DEFAULTS, default_backends, plan_outputs, run_sweep
    from questprof.units import parse_bytes

    where = resolve_device(device)
    default = DEFAULTS[where]
    grid = Grid(
        shapes=tuple(
            resolve_shape(
                name,
                kv_dtype=dtype or default.dtype,
                summary_dtype=summary_dtype,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                layers=layers,
            )
            for name in shape or ["llama-2-7b"]
        ),
        lengths=parse_sizes(default.lengths if lengths is None else lengths, "length"),
        page_sizes=parse_sizes(page_sizes, "page size"),
        budgets=parse_sizes(default.budgets if budgets is None else budgets, "budget"),
        batch_sizes=parse_sizes(batch, "batch size"),
        device=where,
        policies=check_names(policies, "policy"),
        backends=check_names(default_backends(where) if backends is None else backends, "backend"),
        summary_layouts=() if summary_layout == "auto" else check_names(summary_layout, "summary layout"),
        data=check_names(data, "data"),
        page_orders=check_names(page_order, "page order"),
        pool_bytes=parse_bytes(pool, "pool"),
        extras=("append",) * append + ("select",) * cold_select,
        seed=seed,
    )
    blocks = plan_blocks(grid)
    outputs = plan_outputs(output, html, where, force=force, resume=resume)
    console = plain_console(stderr=json)
    try:
        profile = run_sweep(blocks, where, outputs, samples or default.samples, console)
    except KeyboardInterrupt:
        print(
            f"interrupted; what was measured is in {outputs.profile}: repeat the command with "
            f"-o {outputs.profile} --resume",
            file=sys.stderr,
        )
        raise typer.Exit(Exit.INTERRUPTED) from None
    _conclude(profile, grid, outputs, json)


def _conclude(profile: Profile, grid: Grid, outputs: Outputs, json: bool) -> None:
    """Print the closing table (or the JSON document), write the page, exit with the sweep's status."""
    from questprof.report import write_report

    _print_json(profile, outputs) if json else _print_closing(profile, grid)
    if outputs.page:
        write_report([profile], outputs.page, "inline", outputs.force or outputs.resume)
    if not json:
        for path in filter(None, (outputs.profile, outputs.page)):
            print(path)
    status = exit_status(profile)
    if status:
        raise typer.Exit(status)


def _print_closing(profile: Profile, grid: Grid) -> None:
    from questprof.crossover import verdicts
    from questprof.display import SOURCES, advice, plain_console, print_tables, problems
    from questprof.scan import scan_rows, series

    rows = scan_rows(profile)
    print_tables(plain_console(), rows)
    print(SOURCES)
    for sentence in verdicts(series(rows)):
        print(sentence)
    alarms = dict.fromkeys(alarm for row in rows for alarm in row.alarms)
    for line in (*alarms, *problems(profile.records)):
        print(f"warning: {line}", file=sys.stderr)
    print(advice(grid))


def _print_json(profile: Profile, outputs: Outputs) -> None:
    import msgspec

    from questprof.crossover import verdicts
    from questprof.display import SOURCES
    from questprof.scan import scan_rows, series

    rows = scan_rows(profile)
    document = {
        "profile": str(outputs.profile),
        "page": str(outputs.page) if outputs.page else None,
        "environment": profile.header.environment,
        "sources": SOURCES,
        "verdicts": verdicts(series(rows)),
        "rows": rows,
    }
    print(msgspec.json.encode(document).decode())


def exit_status(profile: Profile) -> Exit:
    """1 when a point is wrong, 3 when none could run, otherwise 0."""
    statuses = {record.status for record in profile.records}
    if "wrong" in statuses:
        return Exit.CHECK_FAILED
    return Exit.MACHINE if statuses <= {"oom", "unavailable"} else Exit.OK
