"""Small traces for the tests: a header, layers with known values, and both written to a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from questprof.capture.captured import LayerCapture
from questprof.capture.header import CaptureHeader
from questprof.capture.writer import CaptureWriter

HEADER = CaptureHeader(
    model="tiny",
    model_sha256="ab" * 32,
    tokenizer="tiny-tokenizer",
    text="text.txt",
    text_sha256="cd" * 32,
    num_tokens=7,
    num_layers=3,
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=3,
    softmax_scale=3**-0.5,
    query_positions=(2, 6),
    evidence=(("name", 1, 2),),
    segments=(("question", 0, 3), ("answer", 4, 6)),
)


def layer_of(header: CaptureHeader, number: int) -> LayerCapture:
    """Layer `number` with values that no other layer or tensor has."""
    rng = np.random.default_rng(number)
    return LayerCapture(
        **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in header.shapes().items()}
    )


def write_trace(
    path: Path, header: CaptureHeader = HEADER, *, layers: tuple[int, ...] = (0, 1, 2), force: bool = False
) -> dict[int, LayerCapture]:
    """The trace at `path`; the layers that went in."""
    written = {number: layer_of(header, number) for number in layers}
    with CaptureWriter(path, header, force=force) as writer:
        for number, layer in written.items():
            writer.write(number, layer)
    return written


def pre_rope(header: CaptureHeader = HEADER) -> CaptureHeader:
    """`header` with q and k before RoPE too."""
    return replace(header, has_pre_rope=True)
