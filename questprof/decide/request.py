"""What `decide` was asked for, and the grids of its parts. Pure but for reading a config."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from questprof.amdahl.plan import Request as StepRequest
from questprof.bytecheck.grid import Asked
from questprof.crossover.traffic import Traffic
from questprof.decode.config import Device, ModelConfig, activation_dtype, load_config
from questprof.decode.config import presets as model_presets
from questprof.errors import QuestprofError
from questprof.grid import Grid, check_pages, default_layout, no_preset, parse_sizes, resolve_shape
from questprof.model import Shape, shape_presets
from questprof.units import parse_count


@dataclass(frozen=True)
class Defaults:
    """What a device is asked without options."""

    shape: str
    lengths: str
    longest: int
    """The longest length that traffic may ask for."""
    budget: str
    weights: str
    time: str


DEFAULTS: Final[dict[Device, Defaults]] = {
    "cpu": Defaults("tiny", "1k..8k", 32768, "512", "fp32", "2m"),
    "cuda": Defaults("llama-3.1-8b", "2k..128k", 131072, "2048", "fp16", "10m"),
}
SHORTEST: Final = 32
"""Tokens of the shortest length that traffic asks for: two pages of the usual size."""
REFERENCE: Final = 32768
"""Tokens at which gains are told where no traffic says otherwise."""
TRACED_TOKENS: Final = 1024
"""Least length whose bytes a trace counts; from twice the budget on pages are left out."""
SMALL_HEADS: Final = 8
"""KV heads up to which a trace takes them all."""


@dataclass(frozen=True)
class Question:
    """One setting at several batch sizes and lengths."""

    device: Device
    shape: Shape
    config: ModelConfig | None
    """The whole model; None where only its attention shape is known."""
    no_config: str
    """Why there is no whole model, with what gives one; '' where there is."""
    shape_name: str
    """As it was typed: a preset or a path."""
    lengths: tuple[int, ...]
    page_size: int
    budget: int
    batch_sizes: tuple[int, ...]
    weights: str
    backends: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    """Names of the user's stage sets."""
    kernels_with_dense: tuple[str, ...] = ()
    traffic: Traffic | None = None
    seed: int = 0

    @property
    def backend(self) -> str:
        """Whose Quest stages the answer is about: the user's `new`, else their last, else the project's."""
        return "new" if "new" in self.kernels else self.kernels[-1] if self.kernels else "questprof"

    @property
    def above(self) -> tuple[int, ...]:
        """Lengths at which the budget leaves pages out."""
        return tuple(length for length in self.lengths if length > self.budget)

    @property
    def reference(self) -> int:
        """The length at which gains are told: where the traffic's middle step is, or the usual one."""
        return nearest(self.above or self.lengths, middle(self.traffic) if self.traffic else REFERENCE)


def resolve(
    name: str, device: Device, dtype: str | None, weights: str | None
) -> tuple[Shape, ModelConfig | None, str]:
    """The attention shape of `name`, its whole model, or why there is none.

    `name` is a preset of shapes, of models, or a config.json. QuestprofError for anything else.
    """
    weight_format = weights or DEFAULTS[device].weights
    kv_dtype = dtype or activation_dtype(weight_format, device)
    if name in model_presets() and name not in shape_presets():
        config = model_presets()[name]
        return config.attention_shape(kv_dtype), config, ""
    known = dict.fromkeys((*shape_presets(), *model_presets()))
    if not (name in known or name.endswith(".json") or Path(name).is_dir()):
        raise no_preset(name, known)
    shape = resolve_shape(name, kv_dtype=kv_dtype)
    if activation_dtype(weight_format, device) != kv_dtype:
        why = (
            f"a step of {weight_format} weights keeps its cache in {activation_dtype(weight_format, device)}"
        )
        return shape, None, f"{why}, not in {kv_dtype}; leave --dtype out"
    try:
        return shape, load_config(name), ""
    except QuestprofError as error:
        if name in shape_presets():
            return (
                shape,
                None,
                f"no sizes of the whole model {name} are stored; give its config.json as --shape",
            )
        return shape, None, f"{error.what}: {error.why}"


def parse_one(text: str, what: str) -> int:
    """One count of `what`, 1 or more; QuestprofError for a list: decide answers for one setting."""
    if "," in text or ".." in text:
        raise QuestprofError(
            f"{what}s {text!r}",
            f"an answer is about one {what}",
            f"Give one {what}; questprof sweep compares several.",
        )
    value = parse_count(text, what)
    if value < 1:
        raise QuestprofError(f"{what} {text!r}", "it must be at least 1", f"Give a {what} of 1 or more.")
    return value


def choose_lengths(
    text: str | None, device: Device, budget: int, traffic: Traffic | None, config: ModelConfig | None
) -> tuple[int, ...]:
    """The lengths asked for, or those that span the traffic, or the device's; up to the model's maximum.

    QuestprofError where the budget covers them all: then Quest has nothing to leave out.
    """
    default = DEFAULTS[device]
    most = config.max_position_embeddings if config else default.longest
    if text is not None:
        lengths = parse_sizes(text, "length")
    elif traffic is not None:
        lengths = spanning(traffic, budget, min(default.longest, most))
    else:
        lengths = tuple(n for n in parse_sizes(default.lengths, "length") if n <= most)
    if max(lengths, default=0) <= budget:
        raise QuestprofError(
            f"budget {budget} at lengths up to {max(lengths, default=0)}",
            "it covers every length, so that Quest would read every page and its summary too",
            "Give a smaller --budget, or longer --lengths.",
        )
    return lengths


def spanning(traffic: Traffic, budget: int, longest: int) -> tuple[int, ...]:
    """Doublings from below the shortest request to above the longest, within SHORTEST and `longest`.

    One length above the budget is always among them, as nothing is gained below: there the ends do.
    """
    shortest, most = min(traffic.lengths), max(2 * budget, *traffic.lengths)
    first = SHORTEST
    while 2 * first <= min(shortest, longest):
        first *= 2
    lengths = [min(first, longest)]
    while lengths[-1] < min(most, longest):
        lengths.append(2 * lengths[-1])
    kept = {lengths[0], *(length for length in lengths if 2 * length > budget)}
    return tuple(sorted(length for length in kept if length <= longest))


def middle(traffic: Traffic) -> float:
    """The length below which half of the traffic's decode steps are."""
    half, seen = sum(traffic.steps) / 2, 0.0
    pairs = sorted(zip(traffic.lengths, traffic.steps, strict=True))
    for length, steps in pairs:
        seen += steps
        if seen >= half:
            return length
    return pairs[-1][0]


def nearest(lengths: Sequence[int], wanted: float) -> int:
    """The length whose ratio to `wanted` is closest to 1; the longer of two alike."""
    return min(lengths, key=lambda length: (abs(math.log(length / max(1.0, wanted))), -length))


def sweep_grid(asked: Question) -> Grid:
    """Attention at every length and batch, against every dense baseline."""
    check_pages([asked.budget], [asked.page_size])
    return Grid(
        shapes=(asked.shape,),
        lengths=asked.lengths,
        page_sizes=(asked.page_size,),
        budgets=(asked.budget,),
        batch_sizes=asked.batch_sizes,
        device=asked.device,
        backends=asked.backends,
        kernels=asked.kernels,
        kernels_with_dense=asked.kernels_with_dense,
        seed=asked.seed,
    )


def bytes_asked(asked: Question, *, traced: bool) -> Asked:
    """The points whose bytes are counted: by a trace one short one, by hardware the reference as well."""
    short = max(TRACED_TOKENS, 2 * asked.budget)
    first = min(asked.above)
    lengths = (short,) if traced else tuple(sorted({first, asked.reference}))
    return Asked(
        shapes=(asked.shape,),
        lengths=lengths,
        page_sizes=(asked.page_size,),
        budgets=(asked.budget,),
        summary_layouts=(default_layout(asked.shape, asked.device),),
        seed=asked.seed,
        all_heads=asked.shape.num_kv_heads <= SMALL_HEADS,
    )


def step_lengths(asked: Question) -> tuple[int, ...]:
    """At most three lengths above the budget: the shortest, the reference, the longest."""
    above = asked.above
    return tuple(sorted({above[0], asked.reference, above[-1]}))


def step_request(asked: Question, num_steps: int | None) -> StepRequest:
    """Whole decode steps at `step_lengths`, every batch."""
    return StepRequest(
        device=asked.device,
        shapes=(asked.shape_name,),
        lengths=",".join(map(str, step_lengths(asked))),
        page_size=asked.page_size,
        budgets=str(asked.budget),
        batch=",".join(map(str, asked.batch_sizes)),
        weights=asked.weights,
        steps=num_steps,
        seed=asked.seed,
    )
