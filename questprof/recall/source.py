"""What a recall evaluation reads: queries, keys and values of every layer, from a file or made up."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from questprof.errors import QuestprofError
from questprof.units import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


class TraceHeader(Protocol):
    """What a trace says of itself; a span is (name, first token, last token)."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the text."""

    @property
    def num_layers(self) -> int:
        """Layers of the model."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Those that the trace holds, rising."""

    @property
    def num_qo_heads(self) -> int:
        """Query heads of a layer."""

    @property
    def num_kv_heads(self) -> int:
        """KV heads of a layer."""

    @property
    def head_dim(self) -> int:
        """Elements of a key."""

    @property
    def softmax_scale(self) -> float:
        """The factor on q.k before the softmax."""

    @property
    def query_positions(self) -> tuple[int, ...]:
        """Token positions of the queries, rising; each sees the tokens 0..t."""

    @property
    def evidence(self) -> tuple[tuple[str, int, int], ...]:
        """Spans of tokens that hold the answer; may be empty."""

    @property
    def segments(self) -> tuple[tuple[str, int, int], ...]:
        """Spans of tokens by what they are; may be empty."""


class LayerArrays(Protocol):
    """One layer, fp32: q [num_queries, num_qo_heads, head_dim]; k, v [num_tokens, num_kv_heads, head_dim]."""

    @property
    def q(self) -> Array:
        """Queries after RoPE."""

    @property
    def k(self) -> Array:
        """Keys after RoPE."""

    @property
    def v(self) -> Array:
        """Values."""

    @property
    def q_pre_rope(self) -> Array | None:
        """Queries before RoPE."""

    @property
    def k_pre_rope(self) -> Array | None:
        """Keys before RoPE."""


class KeyQueryTrace(Protocol):
    """Queries, keys and values of a text: a captured file, or `synthetic.Synthetic`."""

    @property
    def header(self) -> TraceHeader:
        """What the trace says of itself."""

    def layer(self, number: int) -> LayerArrays:
        """The model's layer `number`, one of `header.layers`; loaded when asked for."""


def checked_layer(trace: KeyQueryTrace, number: int) -> LayerArrays:
    """Layer `number` of `trace`; QuestprofError for arrays unlike its header, or not finite."""
    import numpy as np

    header, arrays = trace.header, trace.layer(number)
    shapes = {
        "q": (len(header.query_positions), header.num_qo_heads, header.head_dim),
        "k": (header.num_tokens, header.num_kv_heads, header.head_dim),
        "v": (header.num_tokens, header.num_kv_heads, header.head_dim),
    }
    for name, shape in shapes.items():
        array = getattr(arrays, name)
        if array.shape != shape:
            raise _unfit(number, f"{name} is {list(array.shape)}, its header makes it {list(shape)}")
        if not np.isfinite(array).all():
            raise _unfit(number, f"{name} holds a NaN or infinity")
    return arrays


def check_header(header: TraceHeader) -> None:
    """QuestprofError for heads, positions or spans that no trace can have."""
    positions, heads = header.query_positions, (header.num_qo_heads, header.num_kv_heads)
    if not positions or any(b <= a for a, b in pairwise(positions)):
        raise _unfit(None, "its query positions do not rise, or there are none")
    outside = [position for position in positions if not 0 <= position < header.num_tokens]
    if outside:
        raise _unfit(
            None, f"a query stands at position {outside[-1]}, outside its {header.num_tokens} tokens"
        )
    if min(*heads, header.head_dim) < 1 or heads[0] % heads[1]:
        query_heads = count(heads[0], "query head does", "query heads do")
        raise _unfit(None, f"{query_heads} not divide into {count(heads[1], 'KV head')}")
    for name, first, last in (*header.evidence, *header.segments):
        if not 0 <= first <= last < header.num_tokens:
            raise _unfit(
                None, f"the span {name!r} is {first}..{last}, outside its {header.num_tokens} tokens"
            )


def _unfit(layer: int | None, why: str) -> QuestprofError:
    what = "the trace" if layer is None else f"layer {layer} of the trace"
    return QuestprofError(what, why, "Capture it again with questprof capture.")
