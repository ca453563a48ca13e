"""Options that several commands share: one spelling everywhere, the singular accepted as second name."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from questprof.errors import QuestprofError


def typed(context: typer.Context) -> dict[str, str]:
    """The options that stood in the command line, each name with its spelling."""
    named = {param.name: param.opts[0] for param in context.command.params if param.name}
    sources = {name: context.get_parameter_source(name) for name in named}
    return {n: named[n] for n, source in sources.items() if source and source.name == "COMMANDLINE"}


def refuse_typed(context: typer.Context | None, names: Collection[str], where: str, why: str) -> None:
    """QuestprofError that spells those of the parameters `names` in the command line, which do nothing there.

    `where`: `with --source formula`; `why` they do nothing. Without a context nothing was typed.
    """
    useless = [spelling for name, spelling in typed(context).items() if name in names] if context else []
    if useless:
        fix = f"Leave {'it' if len(useless) == 1 else 'them'} out."
        raise QuestprofError(f"{', '.join(useless)} {where}", why, fix)


def refuse_dtypes(dtype: str, summary_dtype: str) -> None:
    """QuestprofError for a --dtype or --summary-dtype whose caches no kernel of the project fills."""
    from questprof.units import KERNEL_DTYPES

    for option, given in (("--dtype", dtype), ("--summary-dtype", summary_dtype or dtype)):
        if given not in KERNEL_DTYPES:
            why = f"the kernels take one of {', '.join(KERNEL_DTYPES)}"
            raise QuestprofError(f"{option} {given}", why, f"Give {option} {_or(KERNEL_DTYPES)}.")
    bounding = dict.fromkeys((dtype, "fp32"))
    if summary_dtype and summary_dtype not in bounding:
        why = f"a summary in {summary_dtype} cannot bound {dtype} keys exactly"
        fix = f"Give --summary-dtype {_or(bounding)}, or leave it out."
        raise QuestprofError(f"--summary-dtype {summary_dtype}", why, fix)


def _or(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def shape_names(incomplete: str) -> list[str]:
    """The presets of shapes that begin so, for shells."""
    from questprof.model import shape_presets

    return [name for name in shape_presets() if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """The presets of whole models that begin so, for shells."""
    from questprof.decode.config import presets

    return [name for name in presets() if name.startswith(incomplete)]


def device_names(incomplete: str) -> list[str]:
    """What --device takes, for shells."""
    return [name for name in ("auto", "cpu", "cuda") if name.startswith(incomplete)]


SHAPE = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        "--shapes",
        help="Preset or Hugging Face config.json; may be repeated.",
        autocompletion=shape_names,
    ),
]
ONE_SHAPE = Annotated[
    str | None,
    typer.Option("--shape", help="Preset or Hugging Face config.json.", autocompletion=shape_names),
]
HEADS = Annotated[
    int | None, typer.Option("--heads", min=1, help="Query heads; KV heads stay, or one each as before.")
]
KV_HEADS = Annotated[int | None, typer.Option("--kv-heads", min=1, help="KV heads (overrides the shape).")]
HEAD_DIM = Annotated[int | None, typer.Option("--head-dim", min=1, help="Elements of a key.")]
LAYERS = Annotated[int | None, typer.Option("--layers", min=1, help="Layers (overrides the shape).")]
LENGTHS = Annotated[
    str | None,
    typer.Option("--lengths", "--length", help="Tokens: 8k,32k | 2k..128k (doubling) | 2k..32k:+2k."),
]
PAGE_SIZES = Annotated[str, typer.Option("--page-sizes", "--page-size", help="Tokens a page (S).")]
BUDGETS = Annotated[
    str | None, typer.Option("--budgets", "--budget", help="Token budgets (B); K = floor(B / S) pages.")
]
BUDGETS_OR_ALL = Annotated[
    str | None,
    typer.Option(
        "--budgets", "--budget", help="Token budgets (B), K = floor(B / S) pages; all: the whole length."
    ),
]
BATCH = Annotated[str, typer.Option("--batch", "--batches", help="Batch sizes.")]
DTYPE = Annotated[str | None, typer.Option("--dtype", help="KV dtype: fp16, bf16 or fp32.")]
SUMMARY_DTYPE = Annotated[str, typer.Option("--summary-dtype", help="Summary dtype; default: the KV dtype.")]
SUMMARY_LAYOUT = Annotated[
    str,
    typer.Option(
        "--summary-layout", "--summary-layouts", help="paired, transposed; auto: the faster for each shape."
    ),
]
DEVICE = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.", autocompletion=device_names)]
BACKENDS = Annotated[
    str | None,
    typer.Option("--backends", "--backend", help="Stage sets and dense baselines; default: all usable."),
]
POLICIES = Annotated[str, typer.Option("--policies", "--policy", help="quest, quest-open.")]
DATA = Annotated[
    str,
    typer.Option(
        "--data",
        help="Queries of a group: independent, shared. Adversarial keys: constant, ramp, needle.",
    ),
]
PAGE_ORDER = Annotated[
    str, typer.Option("--page-order", "--page-orders", help="Pages: shuffled, sequential, scattered.")
]
POOL = Annotated[
    str, typer.Option("--pool", help="Pool that scattered pages lie in; 100g, or less where less is free.")
]
APPEND = Annotated[
    bool, typer.Option("--append", help="Also time append cold and advancing, and over a whole prompt.")
]
COLD_SELECT = Annotated[
    bool, typer.Option("--cold-select", help="Also time select over scores that lie in no cache.")
]
STAGE_SETS = Annotated[
    list[str] | None,
    typer.Option(
        "--kernel",
        "--kernels",
        help="Stages or a decode of your own, [NAME=]MODULE:OBJECT, timed in the same loop; may be repeated.",
    ),
]
CHECK_ONLY = Annotated[
    bool,
    typer.Option("--check-only", help="Check each --kernel stage by stage against float64; time nothing."),
]
SAMPLES = Annotated[
    int | None,
    typer.Option("--samples", min=3, help="Exactly so many samples a stage; default: until precise."),
]
PRECISION = Annotated[
    float | None,
    typer.Option(
        "--precision",
        min=0.01,
        max=100,
        help="Stop at medians known to so many percent; 0.5 on a GPU, 2 on a CPU.",
    ),
]
MAX_SAMPLES = Annotated[
    int | None, typer.Option("--max-samples", min=6, help="Most samples a stage; 50 on a GPU, 21 on a CPU.")
]
MAX_SECONDS = Annotated[
    float | None,
    typer.Option("--max-seconds", min=0.1, help="Most seconds of timing a block; 3 on a GPU, 10 on a CPU."),
]
SINGLE_STEPS = Annotated[
    int | None,
    typer.Option(
        "--single-steps", min=0, help="Steps timed one by one on a GPU, for p95 and p99; 100. 0: none."
    ),
]
ENERGY = Annotated[
    bool, typer.Option("--energy", help="Also count each stage's energy for a second (GPU; NVML).")
]
TIME = Annotated[
    str | None, typer.Option("--time", help="Fit the grid into 90s, 5m, 1h; says what it left out.")
]
SHARD = Annotated[str | None, typer.Option("--shard", help="i/n: the i-th of n parts of the grid.")]
DRY_RUN = Annotated[
    bool, typer.Option("--dry-run", help="Print the grid with memory and time; measure nothing.")
]
SEED = Annotated[int, typer.Option("--seed", min=0, max=(1 << 32) - 1, help="Seed of data and page order.")]
JSON = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, all else on stderr.")]
FORCE = Annotated[bool, typer.Option("--force", help="Replace existing outputs.")]
SKIP_CORRUPT = Annotated[
    bool, typer.Option("--skip-corrupt", help="Leave corrupt lines out instead of stopping.")
]
HTML = Annotated[Path | None, typer.Option("--html", help="Write the page here.")]

# Of `bytes`.
SOURCE = Annotated[
    str,
    typer.Option("--source", help="auto (what the machine has), ncu (hardware counters), trace, formula."),
]
BYTES_GRID = Annotated[
    str, typer.Option("--grid", help="default, series (S = 8, 16, 32 at B = 2048) or plane (S by B).")
]
SOME_PAGE_SIZES = Annotated[
    str | None, typer.Option("--page-sizes", "--page-size", help="Tokens a page (S).")
]
APPEND_PROMPT = Annotated[
    bool, typer.Option("--append", help="Also count the append of a whole prompt; a decode's is always.")
]
GATHER = Annotated[
    bool, typer.Option("--gather", help="Also count attention over a gathered copy of the pages.")
]
PROOF = Annotated[
    bool,
    typer.Option(
        "--proof/--no-proof", help="On a GPU: attend once a cache with its unselected pages unmapped."
    ),
]
KERNELS = Annotated[
    str,
    typer.Option("--kernels", "--kernel", help="Your stages, MODULE:ATTRIBUTE, in place of the project's."),
]
NCU = Annotated[str | None, typer.Option("--ncu", help="Path of Nsight Compute; default: on PATH.")]
TIMEOUT = Annotated[float, typer.Option("--timeout", min=1, help="Seconds a source may take a run.")]
