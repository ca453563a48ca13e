"""`questprof bytes`: the bytes that the stages really move, beside the formula, tensor by tensor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from questprof.commands import options
from questprof.errors import Exit, QuestprofError
from questprof.streams import print_json

if TYPE_CHECKING:
    from questprof.bytecheck.grid import Asked
    from questprof.bytecheck.run import Outcome
    from questprof.bytecheck.tasks import How
    from questprof.sweep.outputs import Outputs

SOURCES = ("auto", "ncu", "trace", "formula")
COUNTING = (
    *("check_formula", "append", "gather", "proof", "kernels", "ncu", "timeout"),
    *("output", "html", "resume", "force"),
)
"""Parameters that the formula alone has no use for."""


def bytes_(
    check_formula: Annotated[
        bool, typer.Option("--check-formula", help="Exit with the verdict: 1 where a count is off.")
    ] = False,
    source: options.SOURCE = "auto",
    grid: options.BYTES_GRID = "default",
    shape: options.SHAPE = None,
    lengths: options.LENGTHS = None,
    page_sizes: options.SOME_PAGE_SIZES = None,
    budgets: options.BUDGETS = None,
    batch: options.BATCH = "1",
    heads: options.HEADS = None,
    kv_heads: options.KV_HEADS = None,
    head_dim: options.HEAD_DIM = None,
    dtype: options.DTYPE = "fp16",
    summary_dtype: options.SUMMARY_DTYPE = "",
    summary_layout: options.SUMMARY_LAYOUT = "paired,transposed",
    data: options.DATA = "independent",
    policies: options.POLICIES = "quest",
    append: options.APPEND_PROMPT = False,
    gather: options.GATHER = False,
    proof: options.PROOF = True,
    kernels: options.KERNELS = "",
    ncu: options.NCU = None,
    timeout: options.TIMEOUT = 600.0,
    seed: options.SEED = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The profile (.jsonl).")] = None,
    html: options.HTML = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the profile that -o names.")] = False,
    force: options.FORCE = False,
    json: options.JSON = False,
    context: typer.Context = None,  # type: ignore[assignment]  # typer fills it in
) -> None:
    """Count the bytes that every stage moves, beside equations (9)-(12), tensor by tensor.

    With hardware counters where a GPU and Nsight Compute are, and everywhere by the address trace of the
    Triton kernels in the interpreter.
    """
    from questprof.bytecheck.grid import Asked
    from questprof.bytecheck.tasks import How
    from questprof.grid import check_names, parse_sizes, resolve_shape

    if source not in SOURCES:
        raise QuestprofError(f"source {source!r}", "it is unknown", f"Choose one of {', '.join(SOURCES)}.")
    shapes = [
        resolve_shape(
            name,
            kv_dtype=dtype or "fp16",
            summary_dtype=summary_dtype,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )
        for name in shape or ["llama-2-7b"]
    ]
    chosen = (shape, lengths, page_sizes, budgets, heads, kv_heads, head_dim)
    asked = Asked(
        shapes=tuple(shapes),
        grid=grid,
        lengths=parse_sizes(lengths, "length") if lengths is not None else None,
        page_sizes=parse_sizes(page_sizes, "page size") if page_sizes is not None else None,
        budgets=parse_sizes(budgets, "budget") if budgets is not None else None,
        batch_sizes=parse_sizes(batch, "batch size"),
        summary_layouts=(() if summary_layout == "auto" else check_names(summary_layout, "summary layout")),
        data=check_names(data, "data"),
        policies=check_names(policies, "policy"),
        seed=seed,
        all_heads=bool(heads or kv_heads),
        corners=grid == "default"
        and not any(chosen)
        and (batch, policies, data) == ("1", "quest", "independent"),
    )
    if source == "formula":
        why = "the formula alone counts nothing that could be checked or kept"
        options.refuse_typed(context, COUNTING, "with --source formula", why)
        _show_formula(asked, json)
        return
    if source == "trace":
        why = "an address trace reads no hardware counters"
        options.refuse_typed(context, ("ncu",), "with --source trace", why)
    how = How(kernels.partition("=")[2] or kernels, append, gather, proof, ncu, timeout)
    _count(asked, source, how, (output, html), force, resume, check_formula, json)


def _count(
    asked: Asked,
    source: str,
    how: How,
    paths: tuple[Path | None, Path | None],
    force: bool,
    resume: bool,
    check: bool,
    json: bool,
) -> None:
    """Count, show, write the page, and exit with the status."""
    from questprof.bytecheck.grid import heads_note
    from questprof.bytecheck.judge import judge_profile, overall
    from questprof.bytecheck.run import exit_status, run_bytes
    from questprof.bytecheck.tasks import plan_tasks
    from questprof.report import write_report
    from questprof.sweep.outputs import plan_outputs
    from questprof.terminal import plain_console

    plan = plan_tasks(asked, source, how)
    outputs = plan_outputs(*paths, plan.device, force=force, resume=resume)
    console = plain_console(stderr=True)
    traced = any(task.source == "trace" and task.place != "instead" for task in plan.tasks)
    for note in filter(
        None, (*plan.notes, heads_note(asked.shapes) if traced and not asked.all_heads else "")
    ):
        console.print(note, highlight=False)
    outcome = run_bytes(plan, outputs, console)
    judged = judge_profile(outcome.profile)
    status = exit_status(outcome, overall(judged) if check else None)
    if outputs.page and judged and not outcome.interrupted:
        write_report([outcome.profile], outputs.page, "inline", force or resume)
    _show_json(outcome, outputs, judged, status) if json else _show(outcome, outputs, judged)
    if status:
        raise typer.Exit(status)


def _show(outcome: Outcome, outputs: Outputs, judged: Any) -> None:
    """Tables and verdicts on stdout, what could not be counted and why on stderr."""
    from questprof.bytecheck.display import print_bytes
    from questprof.terminal import plain_console

    if judged:
        print_bytes(plain_console(), judged)
    for error in outcome.failures:
        print(f"error: {error.what}\n  why: {error.why}\n  fix: {error.fix}", file=sys.stderr)
    if outcome.interrupted:
        print(
            f"interrupted; what was counted is in {outputs.profile}: repeat the command with "
            f"-o {outputs.profile} --resume",
            file=sys.stderr,
        )
        return
    for path in filter(None, (outputs.profile, outputs.page)):
        print(path)


def _show_json(outcome: Outcome, outputs: Outputs, judged: Any, status: Exit) -> None:
    from questprof.bytecheck.display import summary_lines

    document = {
        "profile": str(outputs.profile),
        "page": str(outputs.page) if outputs.page else None,
        "environment": outcome.profile.header.environment,
        "status": int(status),
        "failures": [{"what": e.what, "why": e.why, "fix": e.fix} for e in outcome.failures],
        "summary": summary_lines(judged),
        "judgements": judged,
    }
    print_json(document)


def _show_formula(asked: Asked, json: bool) -> None:
    """The ledger of every point on a GPU: totals by stage and the read ratio, all tensors with --json."""
    from questprof.bytecheck.formula import formula_rows, formula_table
    from questprof.terminal import plain_console

    rows = formula_rows(asked)
    if json:
        print_json(rows)
        return
    plain_console().print(formula_table(rows))
    print("Modelled, not counted: --source trace counts, --json lists every tensor.")
