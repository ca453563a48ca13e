"""A stage launched with every query of its scene, and on a GPU once more from a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from questprof.kernelcheck.attention import Accuracy
from questprof.kernelcheck.findings import FaultError
from questprof.kernelcheck.launches import Launcher

if TYPE_CHECKING:
    import torch

    from questprof.kernelcheck.scene import Scene


STALE = "Compute from what the tensors hold at the launch, not from what they held at the first one."


@dataclass(frozen=True)
class Outcome:
    """What a stage that is right, or approximate, did over one scene."""

    accuracy: Accuracy | None = None
    approximate: bool = False
    notes: tuple[str, ...] = ()


def turns(scene: Scene, judge: Callable[[], Accuracy | None], launcher: Launcher) -> Outcome:
    """Launch and judge with every query, then from a graph on a GPU; the worst accuracy."""
    found: list[Accuracy] = []
    for turn, query in enumerate(scene.queries):
        scene.q.copy_(query)
        left = {name: output.tensor.clone() for name, output in launcher.outputs.items()}
        launcher.launch()
        try:
            found += filter(None, [judge()])
        except FaultError as fault:
            if turn and any(_same(left[n], output.tensor) for n, output in launcher.outputs.items()):
                why = "it left the result of the launch before, though q has changed since"
                raise FaultError(why, STALE, fault.place) from None
            raise
    notes: tuple[str, ...] = ()
    if scene.q.is_cuda:
        if count := launcher.allocations():
            notes = (f"allocates {count} blocks a launch, which a graph keeps: use prepare or scratch",)
        launcher.launch_in_graph()
        found += filter(None, [judge()])
    return Outcome(max(found, key=lambda one: one.error, default=None), notes=notes)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
