"""Traces in memory for the tests: any shape, any positions, any keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Header:
    num_tokens: int
    query_positions: tuple[int, ...]
    num_qo_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    num_layers: int = 1
    softmax_scale: float = 0.125
    model: str = "test"
    evidence: tuple[tuple[str, int, int], ...] = ()
    segments: tuple[tuple[str, int, int], ...] = ()
    stored: tuple[int, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        return self.stored or tuple(range(self.num_layers))


@dataclass(frozen=True)
class Layer:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    q_pre_rope: np.ndarray | None = None
    k_pre_rope: np.ndarray | None = None


@dataclass(frozen=True)
class Trace:
    header: Header
    held: dict[int, Layer] = field(default_factory=dict)

    def layer(self, number: int) -> Layer:
        return self.held[number]


def random_trace(header: Header, seed: int = 0, spread: float = 1.0) -> Trace:
    """Normal queries, keys and values; keys of neighbouring tokens resemble each other, as in a text."""
    rng = np.random.default_rng(seed)
    size = header.num_kv_heads, header.head_dim
    held = {}
    for layer in header.layers:
        topic = np.repeat(rng.normal(size=(header.num_tokens // 5 + 1, *size)), 5, axis=0)
        k = spread * (rng.normal(size=(header.num_tokens, *size)) + topic[: header.num_tokens])
        q = rng.normal(size=(len(header.query_positions), header.num_qo_heads, header.head_dim))
        v = rng.normal(size=(header.num_tokens, *size))
        held[layer] = Layer(*(array.astype(np.float32) for array in (q, k, v)))
    return Trace(header, held)
