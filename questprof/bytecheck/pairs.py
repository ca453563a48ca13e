"""Points that an address trace and hardware both counted, each figure with its own variant. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from questprof.bytecheck.judgement import Judgement, StageFinding
from questprof.counts import Source
from questprof.model import Point
from questprof.scan import point_key


class Pair(NamedTuple):
    """One point as a trace and as hardware counted it, of the variants that they could run."""

    trace: Judgement
    hardware: Judgement


class PairLine(NamedTuple):
    """One stage of a Pair, in bytes a KV head: a trace may take a few heads of a shape."""

    stage: str
    trace_vectors: float
    """Distinct K, V and summary."""
    trace_residual: float
    hardware_reads: float
    """Everything that the stage read."""
    hardware_residual: float


def pairs(judgements: Iterable[Judgement]) -> tuple[Pair, ...]:
    """Points that both sources counted, whatever number of KV heads each took."""
    found: dict[bytes, dict[str, Judgement]] = {}
    for one in judgements:
        for source in one.sources:
            found.setdefault(_per_head(one.point), {})[source] = one
    return tuple(Pair(one["trace"], one["ncu"]) for one in found.values() if {"trace", "ncu"} <= one.keys())


def pair_lines(pair: Pair) -> tuple[PairLine, ...]:
    """The stages of equation (12) that both counted alone."""
    lines = []
    heads, all_heads = (one.point.shape.num_kv_heads for one in pair)
    for stage in ("score", "attend", "dense"):
        traced, counted = _stage(pair.trace, stage, "trace"), _stage(pair.hardware, stage, "ncu")
        if traced and counted:
            vectors = [term.read for term in traced.terms if term.in_eq12 and term.read]
            lines.append(
                PairLine(
                    stage,
                    sum(read.counted_bytes for read in vectors) / heads,
                    sum(read.residual_bytes for read in vectors) / heads,
                    counted.read.counted_bytes / all_heads,
                    counted.read.residual_bytes / all_heads,
                )
            )
    return tuple(lines)


def _per_head(point: Point) -> bytes:
    shape = replace(point.shape, name="", num_qo_heads=point.shape.group_size, num_kv_heads=1)
    return point_key(point, shape=shape, variant="", device="cuda")


def _stage(judgement: Judgement, stage: str, source: Source) -> StageFinding | None:
    own = (s for s in judgement.stages if (s.stage, s.source, s.mode) == (stage, source, "isolated"))
    return next(own, None)
