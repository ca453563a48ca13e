"""Small models and steps that the decode tests of every device share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from questprof import backends
from questprof.decode.caches import fill, make_caches
from questprof.decode.config import Device, ModelConfig
from questprof.decode.rope import RopeScaling
from questprof.decode.step import DecodeStep
from questprof.decode.weights import ModelWeights

SMALL = ModelConfig(
    name="small",
    hidden_size=256,
    intermediate_size=384,
    num_layers=3,
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=320,
    rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64),
    max_position_embeddings=1024,
)


def make_step(
    weights: ModelWeights,
    policy: str,
    lengths: Sequence[int],
    most_tokens: Sequence[int],
    *,
    seed: int = 0,
    summary_layout: Any = "paired",
    backend: str = "questprof",
    **options: Any,
) -> DecodeStep:
    """A step of `weights` over caches of `lengths` random tokens, the same for the same seed."""
    config, device = weights.config, weights.device
    stages = backends.load(backend, device)
    caches = make_caches(config, weights.dtype, device, most_tokens, summary_layout=summary_layout, seed=seed)
    fill(caches, lengths, backends.load("questprof", device), seed)
    return DecodeStep(config, weights, caches, policy, backend=stages, **options)


def run_steps(step: DecodeStep, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [num_steps, batch_size, vocab_size] of feeding tokens [num_steps, batch_size]."""
    found = []
    for row in tokens.tolist():
        step.advance()
        step.set_tokens(row)
        step.run_eager()
        found.append(step.logits.clone())
    return torch.stack(found)


def random_tokens(num_steps: int, batch_size: int, device: Device = "cpu", seed: int = 5) -> torch.Tensor:
    """Token ids of SMALL's vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SMALL.vocab_size, (num_steps, batch_size), generator=generator).to(device)
