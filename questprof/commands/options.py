"""Options that several commands share: one spelling everywhere, the singular accepted as second name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SHAPE = Annotated[
    list[str] | None,
    typer.Option("--shape", "--shapes", help="Preset or Hugging Face config.json; may be repeated."),
]
HEADS = Annotated[int | None, typer.Option("--heads", min=1, help="Query heads (overrides the shape).")]
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
BATCH = Annotated[str, typer.Option("--batch", "--batches", help="Batch sizes.")]
DTYPE = Annotated[str | None, typer.Option("--dtype", help="KV dtype: fp16, bf16 or fp32.")]
SUMMARY_DTYPE = Annotated[str, typer.Option("--summary-dtype", help="Summary dtype; default: the KV dtype.")]
SUMMARY_LAYOUT = Annotated[
    str,
    typer.Option(
        "--summary-layout", "--summary-layouts", help="paired, transposed; auto: the faster for each shape."
    ),
]
DEVICE = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
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
SEED = Annotated[int, typer.Option("--seed", help="Seed of data and page order.")]
JSON = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, all else on stderr.")]
FORCE = Annotated[bool, typer.Option("--force", help="Replace existing outputs.")]
HTML = Annotated[Path | None, typer.Option("--html", help="Write the page here.")]
