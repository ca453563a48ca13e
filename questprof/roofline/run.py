"""A roofline run: the device's roofs first, then a small sweep under them, in one profile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from questprof.environment import use_threads
from questprof.grid import Grid, check_names, parse_sizes, plan_blocks, resolve_shape
from questprof.model import Ceiling, Environment, Profile
from questprof.roofline.curve import large_reads
from questprof.roofs import Roofs
from questprof.sweep.outputs import Outputs, plan_outputs
from questprof.sweep.run import DEFAULTS, run_sweep
from questprof.sweep.settings import Device, Settings
from questprof.terminal import plain_console
from questprof.timing.stopping import fixed


@dataclass(frozen=True)
class RooflineRequest:
    """What the command was asked for, as typed; None takes the device's default."""

    device: Device
    shapes: tuple[str, ...]
    lengths: str | None
    page_sizes: str
    budgets: str | None
    batch: str
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    dtype: str | None
    summary_dtype: str
    backends: str
    summary_layout: str
    data: str
    samples: int | None
    seed: int
    most_bytes: int
    """The largest working set of the bandwidth curve; less where memory is short."""


LENGTHS: dict[Device, str] = {"cpu": "4k,16k", "cuda": "8k,32k,128k"}
BUDGETS: dict[Device, str] = {"cpu": "1024", "cuda": "2048"}
SAMPLES: dict[Device, int] = {"cpu": 7, "cuda": 20}


def plan(request: RooflineRequest) -> Grid:
    """The grid of a request; QuestprofError for what cannot be."""
    device = request.device
    shapes = tuple(
        resolve_shape(
            name,
            kv_dtype=request.dtype or DEFAULTS[device].dtype,
            summary_dtype=request.summary_dtype,
            heads=request.heads,
            kv_heads=request.kv_heads,
            head_dim=request.head_dim,
        )
        for name in request.shapes
    )
    layout = request.summary_layout
    return Grid(
        shapes=shapes,
        lengths=parse_sizes(request.lengths or LENGTHS[device], "length"),
        page_sizes=parse_sizes(request.page_sizes, "page size"),
        budgets=parse_sizes(request.budgets or BUDGETS[device], "budget"),
        batch_sizes=parse_sizes(request.batch, "batch size"),
        device=device,
        backends=check_names(request.backends, "backend"),
        summary_layouts=() if layout == "auto" else check_names(layout, "summary layout"),
        data=check_names(request.data, "data"),
        seed=request.seed,
    )


def measure(
    request: RooflineRequest, output: Path | None, html: Path | None, *, force: bool, quiet: bool
) -> tuple[Profile, Outputs]:
    """Measure roofs and stages; the profile, which is on disk, and where it and its page go.

    `quiet` keeps stdout free. QuestprofError for a grid or an output that cannot be.
    """
    blocks = plan_blocks(plan(request))
    outputs = plan_outputs(output, html, request.device, force=force, resume=False)
    console = plain_console(stderr=quiet)
    settings = Settings(request.device, fixed(request.samples or SAMPLES[request.device]))
    look = partial(survey, request.most_bytes)
    return run_sweep(blocks, outputs, settings, console, look), outputs


def survey(most_bytes: int, environment: Environment) -> tuple[Roofs, tuple[Ceiling, ...]]:
    """The roofs of this device, working sets up to `most_bytes`, and the reads that its memory served."""
    roofs = _roofs(most_bytes, environment)
    return roofs, large_reads(roofs, environment)


def _roofs(most_bytes: int, environment: Environment) -> Roofs:
    if environment.device == "cuda":
        from questprof.roofline import roofs_cuda

        return roofs_cuda.measure(environment, most_bytes)
    from questprof.roofline import roofs_cpu

    use_threads(environment.num_workers)
    return roofs_cpu.measure(environment, most_bytes)
