"""From the options of `amdahl` to blocks of points: steps over one cache, with one model's weights. Pure.

What cannot be is refused here, before anything is allocated: models that are not Llama-like, lengths past
their maximum, budgets below a page, tables of budgets of another depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from questprof.amdahl.files import read_layer_budgets, read_lengths
from questprof.decode.config import (
    Device,
    ModelConfig,
    activation_dtype,
    check_lengths,
    check_weight_format,
    load_config,
)
from questprof.decode.records import DecodeSetup
from questprof.errors import QuestprofError
from questprof.grid import check_names, check_pages, default_layout, parse_sizes
from questprof.model import Point
from questprof.units import count, format_count


@dataclass(frozen=True)
class Defaults:
    """The grid without options: what answers the question on a device in a few minutes."""

    shape: str
    lengths: str
    budgets: str
    weights: str
    steps: int


DEFAULTS: Final[dict[Device, Defaults]] = {
    "cpu": Defaults("tiny", "1k,4k,16k", "256,1024", "fp32", 20),
    "cuda": Defaults("llama-2-7b", "8k,16k,32k,128k", "512,1024,2048,4096", "fp16,int4", 50),
}
GROWING: Final = ("questprof", "triton")
"""Backends whose dense attention serves a cache that grows under one CUDA graph."""
LONG_CONTEXT: Final = "llama-2-7b"
LONG_CONTEXT_FROM: Final = 4096
"""Positions that the preset's base model was trained with."""


@dataclass(frozen=True)
class Request:
    """What the command was asked for, as typed; None takes the device's default."""

    device: Device
    shapes: tuple[str, ...] = ()
    lengths: str | None = None
    page_size: int = 16
    budgets: str | None = None
    batch: str = "1"
    weights: str | None = None
    dense_layers: str = "2"
    layer_budgets: Path | None = None
    ragged: bool = False
    lengths_file: Path | None = None
    backends: str = "questprof"
    steps: int | None = None
    seed: int = 0

    @property
    def num_steps(self) -> int:
        """Consecutive steps a sample each."""
        return self.steps or DEFAULTS[self.device].steps


@dataclass(frozen=True)
class Block:
    """Steps over one cache: dense ones, then Quest ones whose dense layers take the fastest of them."""

    config: ModelConfig
    dense: tuple[Point, ...]
    quest: tuple[Point, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """All of them, the Quest ones with the dense backend that the first dense one has."""
        return (*self.dense, *self.quest)

    @property
    def block_id(self) -> str:
        """Id of the first dense point, which is in no other block."""
        return self.dense[0].point_id

    @property
    def weight_format(self) -> str:
        """Format of the weights."""
        setup = self.dense[0].decode
        return setup.weight_format if setup else ""

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens of each request."""
        return self.dense[0].lengths

    @property
    def title(self) -> str:
        """What the steps share, in words."""
        shortest, longest = min(self.seq_lens), max(self.seq_lens)
        span = (
            format_count(longest)
            if shortest == longest
            else f"{format_count(shortest)} to {format_count(longest)}"
        )
        return f"{self.config.name} {self.weight_format} batch {len(self.seq_lens)} length {span}"

    def quest_with(self, dense_backend: str) -> tuple[Point, ...]:
        """The Quest steps with their dense layers run by `dense_backend`."""
        return tuple(
            replace(point, decode=replace(point.decode, dense_backend=dense_backend))
            for point in self.quest
            if point.decode
        )


def plan(request: Request) -> tuple[Block, ...]:
    """The blocks of a request: by model, weight format and batch, so that weights are made once each."""
    default = DEFAULTS[request.device]
    lengths = parse_sizes(request.lengths or default.lengths, "length")
    budgets = parse_sizes(request.budgets or default.budgets, "budget")
    batches = parse_sizes(request.batch, "batch size")
    formats = tuple(dict.fromkeys(name.strip() for name in (request.weights or default.weights).split(",")))
    check_pages(budgets, [request.page_size])
    backends = _dense_backends(request.backends)
    blocks = []
    for name in request.shapes or (default.shape,):
        config = load_config(name)
        for weights in formats:
            check_weight_format(config, weights)
            for seq_lens in _requests(request, lengths, batches):
                check_lengths(config, seq_lens)
                blocks.append(_block(request, config, weights, seq_lens, budgets, backends))
    return tuple(blocks)


def _dense_backends(text: str) -> tuple[str, ...]:
    names = check_names(text, "backend")
    fixed = [name for name in names if name not in GROWING]
    if fixed:
        raise QuestprofError(
            f"backend {fixed[0]!r} in a decode step",
            "it plans for caches of one length, and a step's grow",
            f"Choose among {', '.join(GROWING)}; `questprof sweep` times attention alone with the others.",
        )
    return names


def _requests(request: Request, lengths: Sequence[int], batches: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Tokens of each request, batch by batch: equal ones, and ragged ones where asked for."""
    if request.lengths_file:
        yield read_lengths(request.lengths_file)
        return
    for batch in batches:
        for length in lengths:
            yield (length,) * batch
            if request.ragged and batch > 1:
                yield spread(length, batch)


def spread(longest: int, batch: int) -> tuple[int, ...]:
    """Ragged requests: evenly from 1 / batch of the longest up to it, longest first."""
    return tuple(max(1, longest * (batch - number) // batch) for number in range(batch))


def parse_dense_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """`2`, or `0,2` for steps with each; QuestprofError for more than the model has."""
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if not (word.isascii() and word.isdecimal())), None)
    if wrong is not None:
        fix = "Write how many of the first layers stay dense: 2, or 0,2 for steps with each."
        raise QuestprofError(f"--dense-layers {text!r}", f"{wrong!r} is no number of layers", fix)
    counts = tuple(dict.fromkeys(map(int, words)))
    if max(counts) > num_layers:
        why = f"the model has {count(num_layers, 'layer')}"
        raise QuestprofError(f"--dense-layers {max(counts)}", why, "Give at most as many.")
    return counts


def _block(
    request: Request,
    config: ModelConfig,
    weights: str,
    seq_lens: tuple[int, ...],
    budgets: Sequence[int],
    backends: Sequence[str],
) -> Block:
    shape = config.attention_shape(activation_dtype(weights, request.device))
    equal = len(set(seq_lens)) == 1
    dense = Point(
        shape=shape,
        seq_len=max(seq_lens),
        page_size=request.page_size,
        batch_size=len(seq_lens),
        seq_lens=() if equal else seq_lens,
        policy="dense",
        summary_layout=default_layout(shape, request.device),
        device=request.device,
        seed=request.seed,
        decode=DecodeSetup(config.name, weights, dense_backend=backends[0]),
    )
    quest = [
        _quest(dense, budget, dense_layers=count)
        for count in parse_dense_layers(request.dense_layers, config.num_layers)
        for budget in budgets
    ]
    if request.layer_budgets:
        table = read_layer_budgets(request.layer_budgets, config.num_layers)
        check_pages([budget for budget in table if budget], [request.page_size])
        quest.append(_quest(dense, max(table), dense_layers=0, layer_budgets=table))
    return Block(config, tuple(_on(dense, backend) for backend in backends), tuple(quest))


def _quest(dense: Point, budget: int, **setup: object) -> Point:
    decode = dense.decode and replace(dense.decode, **setup)
    return replace(dense, policy="quest", token_budget=budget, decode=decode)


def _on(dense: Point, backend: str) -> Point:
    return replace(
        dense, backend=backend, decode=dense.decode and replace(dense.decode, dense_backend=backend)
    )


def remarks(blocks: Sequence[Block]) -> list[str]:
    """What a reader should know of the models before anything is measured."""
    longest = max((max(b.seq_lens) for b in blocks if b.config.name == LONG_CONTEXT), default=0)
    if longest <= LONG_CONTEXT_FROM:
        return []
    return [
        f"{LONG_CONTEXT} stands for its long-context variants, up to 128k tokens: the base model was trained "
        f"with {format_count(LONG_CONTEXT_FROM)}"
    ]
