"""Made-up traces for a look without a model: no statement about any real one.

    gaussian   independent normal keys and queries: boxes are nearly alike, hard for any page score
    clustered  keys near one of 12 directions, which change along the text as topics do; a query asks for one
    planted    gaussian, with one token a KV head that every query asks for: a needle whose page is known

Shapes are those of a small GQA model: 4 layers, 6 query heads, 2 KV heads, head_dim 64; 2048 tokens, the last
32 of which query.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from questprof.errors import QuestprofError

Floats32 = NDArray[np.float32]
KINDS = ("planted", "clustered", "gaussian")
NUM_CLUSTERS = 12
TOPIC_TOKENS = 48
"""Mean tokens from one change of topic to the next."""
NEEDLE_LOGIT = 14.0
"""Mean scaled logit of a planted token; those of the others have mean 0 and standard deviation 1.4."""


@dataclass(frozen=True)
class SyntheticHeader:
    """What a synthetic trace says of itself; the fields of `source.TraceHeader`."""

    model: str
    num_tokens: int = 2048
    num_layers: int = 4
    num_qo_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    query_positions: tuple[int, ...] = ()
    evidence: tuple[tuple[str, int, int], ...] = ()
    segments: tuple[tuple[str, int, int], ...] = ()
    seed: int = 0

    @property
    def layers(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(range(self.num_layers))

    @property
    def softmax_scale(self) -> float:
        """head_dim ** -0.5."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class SyntheticLayer:
    """Queries [num_queries, num_qo_heads, d], keys and values [num_tokens, num_kv_heads, d], float32."""

    q: Floats32
    k: Floats32
    v: Floats32
    q_pre_rope: Floats32 | None = None
    k_pre_rope: Floats32 | None = None


@dataclass(frozen=True)
class Synthetic:
    """A KeyQueryTrace in memory, every layer drawn from (seed, layer) when asked for."""

    kind: str
    header: SyntheticHeader
    synthetic: bool = field(default=True, init=False)

    def layer(self, number: int) -> SyntheticLayer:
        """Layer `number`, the same every time."""
        rng = np.random.default_rng([self.header.seed, number, KINDS.index(self.kind)])
        return _MAKE[self.kind](self.header, rng)


def synthetic(
    kind: str, *, num_tokens: int = 2048, num_queries: int = 32, num_layers: int = 4, seed: int = 0
) -> Synthetic:
    """A trace of `kind`; the last `num_queries` tokens query. QuestprofError for an unknown kind."""
    if kind not in KINDS:
        raise QuestprofError(f"synthetic {kind!r}", "it is unknown", f"Choose one of {', '.join(KINDS)}.")
    needle = num_tokens // 3
    header = SyntheticHeader(
        model=f"synthetic {kind}",
        num_tokens=num_tokens,
        num_layers=num_layers,
        query_positions=tuple(range(num_tokens - num_queries, num_tokens)),
        evidence=(("needle", needle, needle),) if kind == "planted" else (),
        seed=seed,
    )
    return Synthetic(kind, header)


def _normal(rng: np.random.Generator, *shape: int) -> Floats32:
    return rng.standard_normal(shape, dtype=np.float32)


def _gaussian(header: SyntheticHeader, rng: np.random.Generator) -> SyntheticLayer:
    tokens = header.num_tokens, header.num_kv_heads, header.head_dim
    queries = len(header.query_positions), header.num_qo_heads, header.head_dim
    return SyntheticLayer(_normal(rng, *queries), _normal(rng, *tokens), _normal(rng, *tokens))


def _planted(header: SyntheticHeader, rng: np.random.Generator) -> SyntheticLayer:
    """The needle's key is the mean query's direction, long enough for NEEDLE_LOGIT with every query of it."""
    plain = _gaussian(header, rng)
    group = header.num_qo_heads // header.num_kv_heads
    wanted = _normal(rng, header.num_kv_heads, header.head_dim)
    wanted *= header.head_dim**0.5 / np.linalg.norm(wanted, axis=-1, keepdims=True)
    q = plain.q + np.repeat(wanted, group, axis=0)
    for _, first, last in header.evidence:
        plain.k[first : last + 1] = wanted * np.float32(NEEDLE_LOGIT / header.head_dim**0.5)
    return SyntheticLayer(q, plain.k, plain.v)


def _clustered(header: SyntheticHeader, rng: np.random.Generator) -> SyntheticLayer:
    """Keys: a centre twice as long as the noise around it; a query: one centre with noise."""
    plain = _gaussian(header, rng)
    centres = 2 * _normal(rng, NUM_CLUSTERS, header.num_kv_heads, header.head_dim)
    changes = rng.random(header.num_tokens) < 1 / TOPIC_TOKENS
    drawn = rng.integers(0, NUM_CLUSTERS, header.num_tokens)
    topics = drawn[np.maximum.accumulate(np.where(changes, np.arange(header.num_tokens), 0))]
    group = header.num_qo_heads // header.num_kv_heads
    asked = rng.integers(0, NUM_CLUSTERS, plain.q.shape[:2])
    kv_heads = np.arange(header.num_qo_heads) // group
    q = 0.5 * plain.q + 0.25 * centres[asked, kv_heads]
    return SyntheticLayer(q, plain.k + centres[topics], plain.v)


_MAKE = {"gaussian": _gaussian, "planted": _planted, "clustered": _clustered}
