"""The scratch that attention stages ask for: where a kernel's blocks leave sums for one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from questprof.backends import Backend


class Scratch:
    """What launches over different caches share that follow one another, as the layers of a model do.

    Every owner, a stage or what fuses it, has a tensor of its own for each backend and size, zero at first: a
    kernel may keep tags there from launch to launch, and launches of one owner and size are of one plan.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, int], torch.Tensor] = {}

    def of(self, backend: Backend, stage: str, *arguments: Any, owner: str = "") -> torch.Tensor:
        """fp32, as many numbers as `stage` needs for `arguments`: q, the cache, and of attend page_ids."""
        import torch

        sizes = backend.scratch_floats
        size = max(1, sizes[stage](*arguments)) if stage in sizes else 1
        key = backend.name, owner or stage, size
        if key not in self._held:
            self._held[key] = torch.zeros(size, dtype=torch.float32, device=arguments[0].device)
        return self._held[key]
