"""Takes q, k and v out of a model's forward pass, where transformers hands them to attention.

transformers calls one function for the attention of every architecture that goes through its attention
interface, with queries and keys after RoPE. `recording` puts a function of its own there, which computes the
same attention (torch SDPA), so that the layers behind see what they should, and passes a copy of one layer
on. Nothing of a layer is kept after its call. Outside `recording` the function is SDPA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from questprof.capture.captured import LayerCapture
from questprof.capture.projections import Projections
from questprof.errors import QuestprofError

ATTENTION = "questprof"
"""Name of the function in transformers' attention interface."""
_CHANGES_SOFTMAX = {
    "softcap": "caps its logits",
    "s_aux": "has attention sinks beside its keys",
    "sinks": "has attention sinks beside its keys",
    "position_bias": "adds a bias to its logits",
    "indices": "picks keys by an index of its own",
    "block_indices": "picks keys by an index of its own",
}
"""Arguments of an attention that is no plain softmax over q.k: its mass cannot be told from q and k."""


@dataclass(frozen=True)
class LayerShape:
    """What all layers of a trace share."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    softmax_scale: float


Sink = Callable[[int, LayerShape, LayerCapture], None]


@dataclass
class Recorder:
    """Gives `sink` the layers of a forward pass whose queries see all tokens before them."""

    positions: Sequence[int]
    sink: Sink
    projections: Projections | None = None
    """Of q and k before RoPE, where they are wanted."""
    calls: int = 0
    shape: LayerShape | None = None
    _last_layer: int = field(default=-1)

    def record(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        options: dict[str, Any],
    ) -> None:
        """Take one layer.

        query [1, num_qo_heads, num_tokens, head_dim]; key, value [1, num_kv_heads, num_tokens, head_dim].
        QuestprofError for an attention whose weights are not the softmax of scaled q.k.
        """
        self.calls += 1
        layer = _layer_of(module)
        _refuse_other_attention(layer, module, options)
        if key.shape[2] != query.shape[2] or query.shape[0] != 1 or value.shape != key.shape:
            raise _unsupported(
                f"layer {layer} has q {tuple(query.shape)}, k {tuple(key.shape)}, v {tuple(value.shape)}",
                "a trace needs keys and values of one shape and a key for every query",
            )
        if not sees_all_before(mask, key.shape[2], options.get("sliding_window")):
            return
        shape = self._checked_shape(layer, query, key, options)
        before = self.projections.take(module, query, key) if self.projections else (None, None)
        self.sink(layer, shape, self._copied(query, key, value, *before))

    def _copied(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        query_before: torch.Tensor | None,
        key_before: torch.Tensor | None,
    ) -> LayerCapture:
        rows = torch.as_tensor(list(self.positions), device=query.device)

        def array(tensor: torch.Tensor) -> Any:
            return tensor[0].transpose(0, 1).detach().float().cpu().contiguous().numpy()

        return LayerCapture(
            q=array(query[:, :, rows]),
            k=array(key),
            v=array(value),
            q_pre_rope=None if query_before is None else array(query_before[:, :, rows]),
            k_pre_rope=None if key_before is None else array(key_before),
        )

    def _checked_shape(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]
    ) -> LayerShape:
        head_dim, scale = key.shape[3], options.get("scaling")
        scale = float(head_dim**-0.5 if scale is None else scale)
        shape = LayerShape(query.shape[1], key.shape[1], head_dim, scale)
        if self.shape is not None and shape != self.shape:
            raise _unsupported(f"layer {layer} has {shape}", f"the layers before have {self.shape}")
        if layer <= self._last_layer:
            raise _unsupported(f"layer {layer} attends after layer {self._last_layer}", "layers must follow")
        self.shape, self._last_layer = shape, layer
        return shape


_active: Recorder | None = None


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Pass what models loaded with the attention `ATTENTION` attend with to `recorder`."""
    global _active
    _active = recorder
    try:
        yield
    finally:
        _active = None


def register() -> None:
    """Make `ATTENTION` known to transformers, with the masks that SDPA gets."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **options: Any,
) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if _active is not None:
        _active.record(module, query, key, value, attention_mask, options)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def sees_all_before(mask: Any, num_tokens: int, window: int | None) -> bool:
    """Whether the query at t sees exactly the keys 0..t.

    `mask` is what the model hands to SDPA: None (causal), bools (True: seen) or what is added to the logits,
    [1, any, num_tokens, num_tokens]. `window` is the sliding window that the model names, in tokens.
    """
    if mask is None:
        if window is not None and window < num_tokens:
            raise _unsupported(
                f"an attention with a window of {window} tokens comes without a mask",
                "what its queries see cannot be told",
            )
        return True
    seen = mask if mask.dtype == torch.bool else mask == 0
    causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=mask.device).tril()
    return bool(seen.shape[-2:] == causal.shape and (seen == causal).all())


def _layer_of(module: Any) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise _unsupported(f"{type(module).__name__} does not tell its layer", "it has no layer_idx")
    return layer


def _refuse_other_attention(layer: int, module: Any, options: Any) -> None:
    for name, what in _CHANGES_SOFTMAX.items():
        if options.get(name) is not None:
            raise _unsupported(
                f"the attention of layer {layer} {what} ({name})",
                "its weights are no softmax of q.k alone, on which page scores and mass are built",
            )
    causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise _unsupported(f"the attention of layer {layer} is not causal", "queries see later tokens")


def _unsupported(what: str, why: str) -> QuestprofError:
    return QuestprofError(
        f"this model cannot be captured: {what}", why, "Capture a model with plain causal attention."
    )
