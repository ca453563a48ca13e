"""Every stage of the interface and what checks it over one scene.

Each check launches the user's stage with both queries of the scene, with NaN in what it must not read, and on
a GPU once more from a CUDA graph. It returns the accuracy, or raises FaultError with the first place that
differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from questprof.backends.user import StageSet
from questprof.kernelcheck.appending import check_append
from questprof.kernelcheck.attending import check_attend, check_decode, check_dense, check_select_attend
from questprof.kernelcheck.picking import check_score, check_select
from questprof.kernelcheck.turns import Outcome

if TYPE_CHECKING:
    from questprof.kernelcheck.scene import Scene

CHECKS: dict[str, Callable[[StageSet, str, Scene], Outcome]] = {
    "append": check_append,
    "append_kv": check_append,
    "score": check_score,
    "select": check_select,
    "attend": check_attend,
    "dense": check_dense,
    "select_attend": check_select_attend,
    "decode": check_decode,
}


def check_stage(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """Check `stage` of `stages` over `scene`; FaultError, or QuestprofError for what the stage raises."""
    return CHECKS[stage](stages, stage, scene)
