"""The time that a gathered copy costs: `attend` and the ablation's, interleaved in one loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from questprof.bytecheck.grid import once
from questprof.grid import Block
from questprof.model import Environment, Point, Record
from questprof.sweep.block import Machine, run_block


def gpu_machine(environment: Environment) -> Machine:
    """Times on the GPU of `environment` by the rule of a sweep."""
    from questprof.sweep.settings import RULES
    from questprof.timing.cuda import CudaExecutor

    return Machine(environment, CudaExecutor(environment, RULES["cuda"]))


def gather_times(points: Iterable[Point], machine: Machine) -> Iterator[Record]:
    """Records of kind `sweep` of each point and of the backend `gather` beside it.

    The layout of the summary is nothing to `attend`: of points that differ in it alone, the first is timed.
    """
    asked = list(points)
    first = {replace(point, summary_layout="paired").point_id: point for point in reversed(asked)}
    for point in once(reversed(first.values())):
        yield from run_block(Block((point, replace(point, backend="gather"))), machine)
