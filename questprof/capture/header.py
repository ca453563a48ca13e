"""What a trace says of itself, and the safetensors header that follows from it byte for byte."""

from __future__ import annotations

import hashlib
import itertools
import json
import math

from msgspec.structs import replace

from questprof.structs import ByValue, canonical_json

FORMAT_VERSION = 1
CAPTURE_KEY = "questprof_capture"
"""Key of the header's JSON in the metadata of the safetensors file; `SEAL_KEY` holds its SHA-256."""
SEAL_KEY = "questprof_sha256"
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its JSON, little endian."""
_NO_DIGEST = "0" * 64

Span = tuple[str, int, int]
"""A name, the first token and the last (both in it)."""


class CaptureHeader(ByValue, frozen=True):
    """One trace: whose, of which text, in which shape, and where to look. Positions and spans are in tokens.

    The query at position t sees the keys 0..t of every layer stored: layers that see less are left out.
    """

    model: str
    model_sha256: str
    """Of the weights' files, names included."""
    tokenizer: str
    text: str
    text_sha256: str
    num_tokens: int
    num_layers: int
    """Of the model; `layers` are those stored."""
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    softmax_scale: float
    query_positions: tuple[int, ...]
    """Ascending. The rows of q."""
    layers: tuple[int, ...] = ()
    """The model's numbers of the layers stored, ascending. Set by the writer."""
    evidence: tuple[Span, ...] = ()
    segments: tuple[Span, ...] = ()
    generated: tuple[int, ...] = ()
    """Ids of the tokens that the model added to the text: the trace's last ones."""
    generation: str = ""
    """How they were chosen: greedy, or the temperature and seed."""
    has_pre_rope: bool = False
    dtype: str = "fp32"
    rope: str = "after"
    """Where q and k are taken: after the rotary embedding (a model without one: as attention sees them)."""
    format_version: int = FORMAT_VERSION
    sha256: tuple[str, ...] = ()
    """Of every tensor, in the file's order. Set by the writer."""

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The tensors of one layer and their shapes, in the file's order."""
        q = (len(self.query_positions), self.num_qo_heads, self.head_dim)
        k = (self.num_tokens, self.num_kv_heads, self.head_dim)
        return {"q": q, "k": k, "v": k, **({"q_pre_rope": q, "k_pre_rope": k} if self.has_pre_rope else {})}

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer."""
        return sum(map(fp32_bytes, self.shapes().values()))

    @property
    def data_offset(self) -> int:
        """Byte at which the first tensor begins, behind the room that a header with all layers needs."""
        return LENGTH_BYTES + _reserved_bytes(self)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.data_offset + len(self.layers) * self.layer_bytes

    def layer_offset(self, layer: int) -> int:
        """Byte at which the stored layer `layer` begins; ValueError where it is not stored."""
        return self.data_offset + self.layers.index(layer) * self.layer_bytes


def fp32_bytes(shape: tuple[int, ...]) -> int:
    """Bytes of a float32 tensor."""
    return 4 * math.prod(shape)


def file_header(header: CaptureHeader) -> bytes:
    """The file up to its first tensor: the JSON's length, the JSON, spaces up to `data_offset`."""
    text = _table(header)
    size = _reserved_bytes(header)
    return size.to_bytes(LENGTH_BYTES, "little") + text.ljust(size, b" ")


def check_header(header: CaptureHeader) -> None:
    """ValueError, saying why, for a header that no trace can have."""
    counts = ("num_tokens", "num_layers", "num_qo_heads", "num_kv_heads", "head_dim")
    for name in counts:
        if getattr(header, name) < 1:
            raise ValueError(f"{name} is {getattr(header, name)}")
    if header.num_qo_heads % header.num_kv_heads:
        raise ValueError(
            f"{header.num_qo_heads} query heads do not share {header.num_kv_heads} KV heads evenly"
        )
    if header.dtype != "fp32" or header.rope != "after":
        raise ValueError(f"its dtype is {header.dtype} and its rope {header.rope}, not fp32 and after")
    if not (math.isfinite(header.softmax_scale) and header.softmax_scale > 0):
        raise ValueError(f"softmax_scale is {header.softmax_scale}")
    _check_ascending("query_positions", header.query_positions, header.num_tokens, "tokens")
    if not header.query_positions:
        raise ValueError("it has no query positions")
    _check_ascending("layers", header.layers, header.num_layers, "layers")
    for name, first, last in (*header.evidence, *header.segments):
        if not 0 <= first <= last < header.num_tokens:
            raise ValueError(
                f"the span {name} is {first}:{last}, the trace's tokens are 0:{header.num_tokens - 1}"
            )
    if len(header.generated) >= header.num_tokens:
        raise ValueError(
            f"{len(header.generated)} of {header.num_tokens} tokens are generated: none is the text's"
        )
    if len(header.sha256) != len(header.layers) * len(header.shapes()):
        raise ValueError(f"{len(header.sha256)} digests for {len(header.layers)} layers")


def least_header_bytes(header: CaptureHeader) -> int:
    """Bytes that the digests alone of all the model's layers take: a cheap check before `file_header`."""
    return header.num_layers * len(header.shapes()) * len(_NO_DIGEST)


def _check_ascending(name: str, values: tuple[int, ...], end: int, what: str) -> None:
    if any(b <= a for a, b in itertools.pairwise(values)):
        raise ValueError(f"{name} do not ascend")
    for value in values:
        if not 0 <= value < end:
            raise ValueError(f"{name} has {value}, but there are {end} {what}")


def _reserved_bytes(header: CaptureHeader) -> int:
    """Length of the JSON if every layer of the model were stored, rounded up to whole words."""
    layers = tuple(range(header.num_layers))
    full = replace(header, layers=layers, sha256=(_NO_DIGEST,) * (len(layers) * len(header.shapes())))
    return -(-len(_table(full)) // LENGTH_BYTES) * LENGTH_BYTES


def _table(header: CaptureHeader) -> bytes:
    capture = canonical_json(header)
    metadata = {CAPTURE_KEY: capture.decode(), SEAL_KEY: hashlib.sha256(capture).hexdigest()}
    table: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for layer in header.layers:
        for name, shape in header.shapes().items():
            end = offset + fp32_bytes(shape)
            table[f"layers.{layer}.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
            offset = end
    return json.dumps(table, separators=(",", ":"), ensure_ascii=True).encode()
