"""A model on a device, its caches at some lengths: steps under several policies, measured one after another.

What it takes is computed, and compared with the memory that is free, before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from questprof import backends
from questprof.decode import measure as measuring
from questprof.decode.caches import StepCaches, fill, make_caches
from questprof.decode.config import (
    Device,
    ModelConfig,
    activation_dtype,
    check_lengths,
    check_weight_format,
    kv_bytes,
    layer_bytes,
    weight_bytes,
)
from questprof.decode.step import DecodeStep
from questprof.decode.weights import ModelWeights, build_weights
from questprof.environment import available_bytes
from questprof.errors import Exit, QuestprofError
from questprof.model import Environment, SummaryLayout
from questprof.units import dtype_bytes, format_bytes

USABLE_SHARE = 0.95
"""Share of the free memory that a step may plan for."""
SHRINKS_FROM = 4
"""Lengths of so many times the steps end at what was asked for; shorter ones begin there."""
SPARE_BYTES = {"cpu": 256 << 20, "cuda": 1536 << 20}
"""For what is not counted: graphs, workspaces, scratch."""


def needed_bytes(
    config: ModelConfig,
    weight_format: str,
    device: Device,
    most_tokens: Sequence[int],
    page_size: int = 16,
    summary_layout: str = "paired",
) -> int:
    """Bytes of weights, caches and buffers for requests of `most_tokens` tokens at last."""
    dtype = activation_dtype(weight_format, device)
    table = max(most_tokens) * config.head_dim * 4
    rows = 4 * config.hidden_size + config.q_size + 2 * config.kv_size + config.intermediate_size
    logits = config.vocab_size
    buffers = len(most_tokens) * (rows + logits) * dtype_bytes(dtype)
    scores = config.num_qo_heads * sum(-(-tokens // page_size) for tokens in most_tokens) * 8
    # While variants are compared: one matrix in fp32 and float64 pieces, and copies that exceed the cache.
    trial = 4 * layer_bytes(config, "fp16") if device == "cuda" else 0
    held = kv_bytes(config, dtype, most_tokens, page_size, summary_layout) + table + buffers + scores
    return weight_bytes(config, weight_format, device) + max(held, trial) + SPARE_BYTES[device]


def check_memory(needed: int, device: Device, what: str) -> None:
    """QuestprofError (status 3) when `needed` bytes exceed what is free on `device`."""
    usable = int(available_bytes(device) * USABLE_SHARE)
    if needed > usable:
        raise QuestprofError(
            what,
            f"it takes {format_bytes(needed)}, and {format_bytes(usable)} are free on this {device}",
            "Ask for shorter or fewer requests, 4-bit weights, or a smaller model.",
            Exit.MACHINE,
        )


@dataclass
class Session:
    """Weights and caches of one model; `seq_lens` is where its steps begin."""

    config: ModelConfig
    weights: ModelWeights
    caches: StepCaches
    seq_lens: tuple[int, ...]

    def step(
        self,
        policy: str,
        *,
        token_budget: int = 0,
        layer_budgets: Sequence[int] = (),
        dense_layers: int = 2,
        backend: str = "questprof",
        dense_backend: str = "questprof",
    ) -> DecodeStep:
        """A step under `policy`, at the first lengths again."""
        self.rewind()
        device = self.weights.device
        return DecodeStep(
            self.config,
            self.weights,
            self.caches,
            policy,
            backend=backends.load(backend, device),
            dense_backend=backends.load(dense_backend, device),
            token_budget=token_budget,
            layer_budgets=layer_budgets,
            dense_layers=dense_layers,
        )

    def measure(
        self, step: DecodeStep, num_steps: int, *, how: measuring.How = "activity trace"
    ) -> measuring.StepTimes:
        """Times of `num_steps` consecutive steps from the first lengths on."""
        self.rewind()
        step.refresh()
        return measuring.measure(step, num_steps, how=how)

    def rewind(self) -> None:
        """Drop what steps have appended, boxes included."""
        lead = self.caches.lead
        for request, length in enumerate(self.seq_lens):
            if lead.seq_lens[request] > length:
                lead.roll_back(request, lead.seq_lens[request] - length)


def load_weights(
    config: ModelConfig,
    weight_format: str,
    environment: Environment,
    batch_size: int,
    *,
    seed: int = 0,
    dependent: bool | None = None,
) -> ModelWeights:
    """Random weights on the environment's device, each matrix by its fastest variant at that batch.

    QuestprofError (status 3) where they do not fit, before anything is allocated.
    """
    device = environment.device
    check_weight_format(config, weight_format)
    needed = needed_bytes(config, weight_format, device, [1] * batch_size)
    check_memory(needed, device, f"{weight_format} weights of {config.name}")
    return build_weights(
        config,
        weight_format,
        device,
        batch_size,
        seed=seed,
        cache_bytes=environment.last_level_cache_bytes,
        dependent=dependent,
    )


def open_session(
    weights: ModelWeights,
    seq_lens: Sequence[int],
    num_steps: int,
    environment: Environment,
    *,
    page_size: int = 16,
    summary_layout: SummaryLayout = "paired",
    sequential: bool = False,
    seed: int = 0,
) -> Session:
    """Caches filled with random tokens, with room for measuring `num_steps` steps.

    The last of all steps that `measure` takes meets exactly `seq_lens` tokens: requests begin that much
    shorter.
    Those too short for that begin at their length and grow past it. QuestprofError for lengths past the
    model's maximum (status 2), or caches that do not fit (status 3).
    """
    config, device = weights.config, weights.device
    grown = measuring.steps_needed(num_steps, device)
    first = [length - grown if length >= SHRINKS_FROM * grown else length for length in seq_lens]
    most_tokens = [length + grown for length in first]
    check_lengths(config, most_tokens)
    dtype = activation_dtype(weights.weight_format, device)
    needed = needed_bytes(config, weights.weight_format, device, most_tokens, page_size, summary_layout)
    needed -= weight_bytes(config, weights.weight_format, device)
    check_memory(needed, device, f"a {dtype} cache of {sum(seq_lens)} tokens of {config.name}")
    caches = make_caches(
        config,
        weights.dtype,
        device,
        most_tokens,
        page_size=page_size,
        summary_layout=summary_layout,
        num_workers=environment.num_workers,
        shuffled=not sequential,
        seed=seed,
    )
    fill(caches, first, backends.load("questprof", device), seed)
    return Session(config, weights, caches, tuple(first))
