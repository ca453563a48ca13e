"""q and k before RoPE: the outputs of a layer's projections, or of its q and k norms where it has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from questprof.errors import QuestprofError

_PLACES = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("q_proj", "k_proj"))
"""Attributes of an attention module, the last step before RoPE first."""
_TOLERANCE = 1e-3


class Projections:
    """Holds what the hooks saw last, which is the layer at work, until `take`."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, torch.Tensor]] = {}

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Hook the projections of every attention module; QuestprofError for a model without them."""
        hooks = []
        for module in model.modules():
            names = _place(module) if isinstance(getattr(module, "layer_idx", None), int) else None
            for which, name in zip("qk", names or (), strict=False):
                hooks.append(getattr(module, name).register_forward_hook(self._keeper(module, which)))
        if not hooks:
            raise _cannot("it has no q and k projections of their own (fused, or none)")
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._seen.clear()

    def take(self, module: Any, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Q and k of `module` before RoPE, in the layout of `query` and `key`; forgets them.

        QuestprofError unless `query` and `key` are rotations of them: no norm changes but by one factor, and
        nothing turns at position 0.
        """
        found = []
        for which, after in (("q", query), ("k", key)):
            owner, seen = self._seen.pop(which, (None, None))
            before = _like(seen, after) if seen is not None and owner is module else None
            if before is None or not _rotated(before, after):
                raise _cannot(f"in layer {module.layer_idx}, {which} is no rotation of what it projects")
            found.append(before)
        return found[0], found[1]

    def _keeper(self, module: Any, which: str) -> Any:
        def keep(_: Any, __: Any, output: Any) -> None:
            self._seen[which] = (module, output)

        return keep


def _place(module: Any) -> tuple[str, str] | None:
    for names in _PLACES:
        if all(isinstance(getattr(module, name, None), torch.nn.Module) for name in names):
            return names
    return None


def _like(seen: torch.Tensor, after: torch.Tensor) -> torch.Tensor | None:
    """`seen` in the layout of `after`, [1, heads, tokens, head_dim]; None where it has no such layout."""
    batch, heads, tokens, dim = after.shape
    if seen.shape == after.shape and heads != tokens:
        return seen
    if seen.shape in ((batch, tokens, heads * dim), (batch, tokens, heads, dim)):
        return seen.reshape(batch, tokens, heads, dim).transpose(1, 2)
    return None


def _rotated(before: torch.Tensor, after: torch.Tensor) -> bool:
    """RoPE turns pairs of elements by the position: norms stay (but for YaRN's one factor), token 0 too."""
    norms_before, norms_after = before.norm(dim=-1), after.norm(dim=-1)
    factor = norms_after.sum() / norms_before.sum()
    same_norms = torch.allclose(norms_after, factor * norms_before, rtol=_TOLERANCE)
    scale = float(norms_after[..., 0].max())
    return same_norms and torch.allclose(
        after[:, :, 0], factor * before[:, :, 0], rtol=_TOLERANCE, atol=_TOLERANCE * scale
    )


def _cannot(why: str) -> QuestprofError:
    return QuestprofError(
        "--pre-rope: this model's q and k before RoPE cannot be told", why, "Leave --pre-rope out."
    )
