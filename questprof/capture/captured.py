"""Traces on disk: a safetensors file, read one layer at a time and checked against its SHA-256 on the way."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from questprof.capture.header import (
    CAPTURE_KEY,
    FORMAT_VERSION,
    LENGTH_BYTES,
    SEAL_KEY,
    CaptureHeader,
    check_header,
    file_header,
    fp32_bytes,
    least_header_bytes,
)
from questprof.errors import UPDATE, QuestprofError

Array = npt.NDArray[np.float32]
_MOST_HEADER_BYTES = 100_000_000
"""What safetensors allows."""
_AGAIN = "Restore the file, or capture it again with questprof capture."


@dataclass(frozen=True)
class LayerCapture:
    """One layer, float32. q [num_queries, num_qo_heads, head_dim]; k, v [num_tokens, num_kv_heads, head_dim].

    q and k are after the rotary embedding; `q_pre_rope` and `k_pre_rope`, where stored, before it.
    """

    q: Array
    k: Array
    v: Array
    q_pre_rope: Array | None = None
    k_pre_rope: Array | None = None


class Captured:
    """A trace on disk. `layer` reads one layer; nothing of it is kept."""

    def __init__(self, path: Path, header: CaptureHeader) -> None:
        self.path = path
        self.header = header

    @classmethod
    def open(cls, path: Path) -> Captured:
        """The trace at `path`, its header checked, its tensors unread.

        QuestprofError for a file that cannot be read, is no trace, is cut short, or whose header was altered
        or does not fit its tensors.
        """
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                if size < LENGTH_BYTES or length > _MOST_HEADER_BYTES:
                    raise _no_trace(path, "it does not begin like a safetensors file")
                if length > size - LENGTH_BYTES:
                    raise _cut_short(path, size, LENGTH_BYTES + length)
                text = file.read(length)
        except OSError as error:
            raise QuestprofError(
                f"cannot read {path}", str(error.strerror or error), "Name a file of questprof capture."
            ) from error
        header = _read_header(path, text)
        if size != header.file_bytes:
            raise _cut_short(path, size, header.file_bytes)
        return cls(path, header)

    def layer(self, number: int) -> LayerCapture:
        """The model's layer `number`, read and checked against its SHA-256.

        QuestprofError for a layer that is not stored and for one that was altered since it was written.
        """
        header = self.header
        if number not in header.layers:
            raise _not_stored(self.path, header, number)
        shapes = header.shapes()
        first_digest = header.layers.index(number) * len(shapes)
        digests = header.sha256[first_digest : first_digest + len(shapes)]
        tensors = {}
        with self.path.open("rb") as file:
            file.seek(header.layer_offset(number))
            for (name, shape), digest in zip(shapes.items(), digests, strict=True):
                data = file.read(fp32_bytes(shape))
                if hashlib.sha256(data).hexdigest() != digest:
                    raise _altered(
                        self.path, f"layers.{number}.{name} has another SHA-256 than when it was written"
                    )
                tensors[name] = np.frombuffer(data, dtype="<f4").reshape(shape)
        return LayerCapture(**tensors)


def _read_header(path: Path, text: bytes) -> CaptureHeader:
    try:
        table = json.loads(text)
        metadata = table["__metadata__"]
        capture, seal = metadata[CAPTURE_KEY].encode(), metadata[SEAL_KEY]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = (
            "its header is no JSON"
            if isinstance(error, ValueError)
            else "it has no header of questprof capture"
        )
        raise _no_trace(path, why) from error
    if hashlib.sha256(capture).hexdigest() != seal:
        raise _altered(path, "its header has another SHA-256 than when it was written")
    try:
        _refuse_newer(path, capture)
        header = msgspec.json.decode(capture, type=CaptureHeader)
        check_header(header)
    except (ValueError, msgspec.DecodeError) as error:
        raise _no_trace(path, f"its header cannot be: {error}") from error
    if not header.layers:
        raise _no_trace(path, "it holds no layer")
    _check_table(path, table, header, text)
    return header


class _Version(msgspec.Struct):
    format_version: int = FORMAT_VERSION


def _refuse_newer(path: Path, capture: bytes) -> None:
    version = msgspec.json.decode(capture, type=_Version).format_version
    if version != FORMAT_VERSION:
        raise QuestprofError(
            f"{path} has format version {version}",
            f"this questprof reads version {FORMAT_VERSION}",
            UPDATE,
        )


def _check_table(path: Path, table: dict[str, object], header: CaptureHeader, text: bytes) -> None:
    """The tensors' names, types, shapes and places are those that the header leads to, byte for byte."""
    for layer in header.layers:
        for name, shape in header.shapes().items():
            found = table.get(f"layers.{layer}.{name}")
            if not isinstance(found, dict) or found.get("shape") != list(shape):
                has = found.get("shape") if isinstance(found, dict) else None
                raise _altered(
                    path,
                    f"layers.{layer}.{name} has the shape {has}, its header asks for {list(shape)}: "
                    "tensors of another model or text",
                )
    if len(text) < least_header_bytes(header) or text != file_header(header)[LENGTH_BYTES:]:
        raise _altered(path, "its list of tensors is not the one that was written")


def _no_trace(path: Path, why: str) -> QuestprofError:
    return QuestprofError(f"{path} is no trace", why, "Name a file of questprof capture.")


def _altered(path: Path, why: str) -> QuestprofError:
    return QuestprofError(f"{path} was altered", why, _AGAIN)


def _cut_short(path: Path, size: int, expected: int) -> QuestprofError:
    if size > expected:
        return _altered(path, f"it has {size - expected} bytes more than its header says")
    return QuestprofError(f"{path} is cut short", f"it has {size} of {expected} bytes", _AGAIN)


def _not_stored(path: Path, header: CaptureHeader, number: int) -> QuestprofError:
    why = (
        "its attention does not see all tokens before a query, so it is left out"
        if 0 <= number < header.num_layers
        else f"the model has layers 0 to {header.num_layers - 1}"
    )
    return QuestprofError(
        f"{path} has no layer {number}", why, f"It holds layers {', '.join(map(str, header.layers))}."
    )
