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


SPOILT = "it is right over one cache, and not behind a launch over another with the same scratch"
SHARED = (
    "What a launch leaves in scratch must do for every cache of these lengths: layers of a model share it."
)
STALE = "Compute from what the tensors hold at the launch, not from what they held at the first one."


@dataclass(frozen=True)
class Outcome:
    """What a stage that is right, or approximate, did over one scene."""

    accuracy: Accuracy | None = None
    approximate: bool = False
    allocations: int = 0
    """Blocks of GPU memory that a launch allocates, which a graph keeps."""


def turns(
    scene: Scene,
    judge: Callable[[], Accuracy | None],
    launcher: Launcher,
    renew: Callable[[int], None] = lambda turn: None,
) -> Outcome:
    """Launch and judge with every query, from a graph on a GPU, and behind a neighbour; the worst accuracy.

    `renew(turn)` puts what else the stage reads into its tensors, other contents in every turn. What a
    `prepare` made serves all launches, as in a sweep, and the graph is captured with the first contents.
    """
    found: list[Accuracy] = []

    def give(turn: int) -> None:
        scene.q.copy_(scene.queries[turn])
        renew(turn)

    for turn in range(len(scene.queries)):
        give(turn)
        left = {name: output.tensor.clone() for name, output in launcher.outputs.items()}
        launcher.launch(again=turn > 0)
        try:
            found += filter(None, [judge()])
        except FaultError as fault:
            if turn and any(_same(left[n], output.tensor) for n, output in launcher.outputs.items()):
                why = "it left the result of the launch before, though its inputs have changed since"
                raise FaultError(why, STALE, fault.place) from None
            if turn and _right_anew(judge, launcher):
                why = "it is right at the first launch over a cache, and not at the next with other inputs"
                raise FaultError(why, STALE, fault.place) from None
            raise
    allocations = 0
    if scene.q.is_cuda:
        allocations = launcher.allocations()
        give(0)
        captured = launcher.captured()
        give(len(scene.queries) - 1)  # what the graph holds is to read this, not what it was captured with
        launcher.replay(captured)
        found += filter(None, [judge()])
    if launcher.scratch is not None:
        give(0)
        launcher.launch_behind_neighbour()
        try:
            found += filter(None, [judge()])
        except FaultError as fault:
            raise FaultError(SPOILT, SHARED, fault.place) from None
    return Outcome(max(found, key=lambda one: one.error, default=None), allocations=allocations)


def _right_anew(judge: Callable[[], Accuracy | None], launcher: Launcher) -> bool:
    """Whether the same launch is right when all that it was prepared with is made anew."""
    try:
        launcher.launch()
        judge()
    except FaultError:
        return False
    return True


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
