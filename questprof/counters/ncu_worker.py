"""The process that runs under Nsight Compute: fills caches, warms up, checks, and launches range by range.

`python -m questprof.counters.ncu_worker REQUEST.json`. A cache is filled once and serves every point that
asks for the same; what knows no budget (append, dense) is launched once a cache and backend. Compilation is
over before a range opens. Without a profiler it does all the same, and nobody counts.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
import nvtx

from questprof.backends import FILLER, Backend, load
from questprof.backends.user import over, stage_set
from questprof.checks import check, sign_share, union_ratio
from questprof.counters.launched import kernel_names
from questprof.counters.ncu_batches import by_cache
from questprof.counters.ncu_plan import (
    CALIBRATION,
    CALIBRATION_BYTES,
    DOMAIN,
    Ended,
    Measured,
    Range,
    Request,
)
from questprof.counters.statuses import CountStatus, status_of_error
from questprof.environment import available_bytes
from questprof.model import Point
from questprof.policies import Bound, Outputs, Step, bind, launcher
from questprof.units import format_bytes
from questprof.workload import (
    USABLE_SHARE,
    cache_bytes,
    make_cache,
    make_pool,
    make_query,
    new_tokens,
    scatter_bytes,
)

if TYPE_CHECKING:
    import torch

BESIDE = ("append", "append_kv", "dense", "append_prefill")
"""Stages that are no part of a chain and know no budget."""
TIMED_OUT = 124


class Recorder:
    """Opens ranges and writes the plan, a line before each."""

    def __init__(self, plan: TextIO, *, pipelined: bool, device: str = "cuda") -> None:
        import torch
        from questprof_kernels import streaming

        self._plan, self._pipelined = plan, pipelined
        self._count = 0
        words = CALIBRATION_BYTES // 4
        self._known, self._other = (torch.arange(words, dtype=torch.int32, device=device) for _ in range(2))
        self._sums = torch.empty(streaming.out_size(self._known), dtype=torch.int32, device=device)
        self._stream(self._known)

    def write(self, line: Range | Measured | Ended) -> None:
        """Append one line to the plan, at once: what follows may end the process."""
        self._plan.write(msgspec.json.encode(line).decode() + "\n")
        self._plan.flush()

    def calibrate(self) -> None:
        """A streaming read of CALIBRATION_BYTES in a range of its own."""
        self.open(CALIBRATION, [lambda: self._stream(self._known)])

    def open(self, stage: str, launches: Sequence[Callable[[], None]]) -> int:
        """Launch inside a range named `stage`; the range's number.

        The profiler flushes caches before every kernel that it replays alone. Before a chain that runs as
        it is, another buffer passes through them here, so that it starts cold under any replay mode.
        """

        def launch() -> None:
            for each in launches:
                each()

        self.write(Range(stage, kernel_names(launch)))
        if self._pipelined:
            self._stream(self._other)
        _synchronize()
        nvtx.push_range(stage, domain=DOMAIN)
        try:
            launch()
            _synchronize()
        finally:
            nvtx.pop_range(domain=DOMAIN)
        self._count += 1
        return self._count - 1

    def _stream(self, buffer: torch.Tensor) -> None:
        from questprof_kernels import streaming

        streaming.read(buffer, self._sums)


class CacheRun:
    """One filled cache and the points that it serves."""

    def __init__(self, request: Request, recorder: Recorder, point: Point) -> None:
        self._request, self._recorder = request, recorder
        scattered = scatter_bytes(point, available_bytes(point.device), 0)
        self._pool = make_pool(point, 1, 0, scattered)
        self._cache = make_cache(point, self._pool, load(FILLER, point.device), 0)
        self._beside: dict[tuple[str, str], tuple[list[int], list[str]]] = {}

    def measure(self, point: Point, backend: Backend) -> Measured:
        """Warm up, check and launch the stages of `point`, each in its range."""
        q = make_query(point, self._pool, point.data, 0)
        bound = bind(point.policy, backend, self._cache, q, point.num_selected)
        _launch(bound.steps)
        union, share = union_ratio(bound), sign_share(bound)
        run = self._chain if self._request.mode == "pipelined" else self._stages
        ranges, wrong = run(point, backend, bound)
        return Measured(
            point.point_id,
            backend.variant(point),
            tuple(ranges),
            union,
            share,
            status="wrong" if wrong else "ok",
            reason=f"wrong: {'; '.join(wrong)}" if wrong else "",
        )

    def _chain(self, point: Point, _: Backend, bound: Bound) -> tuple[list[int], list[str]]:
        """The whole chain in one range: as a user runs it, or its steps one after another."""
        alone = tuple(step for step in bound.steps if step.stage not in BESIDE)
        chain = bound.chain if self._request.fused else alone
        if not bound.chain:
            return [], []
        _launch(chain)
        wrong = _wrong(bound, [step for step in chain if step not in bound.steps], point.seed)
        return [self._recorder.open("quest", [step.launch for step in chain])], wrong

    def _stages(self, point: Point, backend: Backend, bound: Bound) -> tuple[list[int], list[str]]:
        """Every stage in a range of its own; those beside the chain once a cache."""
        key = (backend.name, point.policy)
        if key not in self._beside:
            self._beside[key] = self._open_beside(point, backend, bound)
        ranges, wrong = self._beside[key]
        own = [step for step in bound.steps if step.stage not in BESIDE]
        wrong = wrong + _wrong(bound, own, point.seed)
        return ranges + [self._recorder.open(step.stage, [step.launch]) for step in own], wrong

    def _open_beside(self, point: Point, backend: Backend, bound: Bound) -> tuple[list[int], list[str]]:
        """Dense, and with a Quest policy the append of one token and, if asked for, of a whole prompt."""
        bounds = [bound]
        if bound.chain and "dense" in backend.stages:
            bounds.append(bind("dense", backend, self._cache, bound.q, point.num_selected))
        if bound.chain and self._request.prefill and "append" in backend.stages:
            bounds.append(self._prefill(point, backend, bound))
        ranges, wrong = [], []
        for other in bounds:
            steps = [step for step in other.steps if step.stage in BESIDE and step.stage != "append_kv"]
            _launch(steps)
            wrong += _wrong(other, steps, point.seed)
            ranges += [self._recorder.open(step.stage, [step.launch]) for step in steps]
        return ranges, wrong

    def _prefill(self, point: Point, backend: Backend, bound: Bound) -> Bound:
        """An empty cache given all its tokens in one launch."""
        import torch
        from questprof_kernels.paged_cache import PagedCache

        pool = make_pool(point, 1, self._pool.num_workers)
        cache = PagedCache(pool, len(point.lengths), sum(point.num_pages))
        new_indptr = cache.extend(point.lengths)
        generator = torch.Generator(device=pool.device).manual_seed(point.seed)
        keys, values = new_tokens(pool, sum(point.lengths), generator)
        outputs = Outputs(bound.outputs.out, None, appended=(keys, values), new_tokens=point.lengths)
        launch = launcher(backend, "append", cache, keys, values, new_indptr)
        return Bound(
            cache, bound.q, bound.take_tail, outputs, (Step("append_prefill", launch, like="append"),)
        )


def _wrong(bound: Bound, steps: Sequence[Step], seed: int) -> list[str]:
    """What the checks of `steps`, just launched, find wrong."""
    return [
        f"{c.stage} error {'not finite' if c.max_rel_err is None else f'{c.max_rel_err:.3g}'} "
        f"above {c.tolerance:.3g}"
        for c in check(bound, steps, "before", seed)
        if not c.holds
    ]


def _launch(steps: Sequence[Step]) -> None:
    """Launch `steps` outside any range, which compiles what they need, and wait."""
    for step in steps:
        step.launch()
    _synchronize()


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _backend(point: Point, kernels: str) -> Backend:
    base = load(point.backend, point.device)
    return over(base, stage_set(kernels)) if kernels else base


def _shortage(point: Point, backend: Backend, prefill: bool) -> str:
    """Why a cache of the point does not fit, or ''."""
    copies = backend.caches_held + 2 * prefill
    needed, usable = copies * cache_bytes(point), int(available_bytes(point.device) * USABLE_SHARE)
    if needed <= usable:
        return ""
    return f"out of memory: needs {format_bytes(needed)}, {format_bytes(usable)} are usable"


def _measure_cache(points: Sequence[Point], request: Request, recorder: Recorder) -> None:
    """Measure the points of one cache; what one of them cannot do costs the others nothing."""
    cache: CacheRun | None = None
    for point in points:
        backend = _backend(point, request.kernels)
        reason = backend.why_not(point) or load(FILLER, point.device).why_not(point)
        status: CountStatus = "unavailable"
        if not reason and (reason := "" if cache else _shortage(point, backend, request.prefill)):
            status = "oom"
        if not reason:
            try:
                cache = cache or CacheRun(request, recorder, point)
                recorder.write(cache.measure(point, backend))
                continue
            except Exception as error:  # a user's kernel may leave anything behind
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                status = status_of_error(error)
        recorder.write(Measured(point.point_id, backend.variant(point), status=status, reason=reason))


def run(request: Request) -> None:
    """Do what `request` asks; the plan tells what was launched."""
    import torch

    with Path(request.plan_path).open("w") as plan:
        device = request.points[0].device
        recorder = Recorder(plan, pipelined=request.mode == "pipelined", device=device)
        try:
            recorder.calibrate()
            for points in by_cache(request.points):
                _measure_cache(points, request, recorder)
                torch.cuda.empty_cache()
            recorder.write(Ended())
        except Exception as error:
            recorder.write(Ended(error=f"{type(error).__name__}: {error}"))
            raise


def main() -> None:
    """Read the request that the first argument names and end, by force if need be."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Request)
    watchdog = threading.Timer(request.limit_s, os._exit, (TIMED_OUT,))
    watchdog.daemon = True
    watchdog.start()
    try:
        run(request)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
