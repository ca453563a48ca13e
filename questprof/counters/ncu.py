"""Hardware counters: drives Nsight Compute over the worker, batch by batch, and reads what it counted.

Isolated: every kernel replayed alone after a cache flush. Pipelined: the chain in one range as it runs,
started cold. Clocks stay as they are (`--clock-control none`) and no time of such a run is ever reported.
The report is written when the profiler ends, hence the batches: what one loses, the others keep.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from questprof.counters import Counted, ncu_errors
from questprof.counters.ncu_batches import batches, halves
from questprof.counters.ncu_counted import READ, WRITE, Run, counted
from questprof.counters.ncu_csv import parse_raw
from questprof.counters.ncu_plan import CALIBRATION, DOMAIN, Mismatch, Mode, Plan, Request, match, read_plan
from questprof.counters.ncu_process import GRACE_S, execute, find, version
from questprof.errors import Exit, QuestprofError
from questprof.model import Point

METRICS = (READ, WRITE, "gpu__time_duration.sum")
"""They fit one pass."""
MORE_METRICS = ("lts__t_sectors_srcunit_tex_op_read.sum",)
"""Sectors that the multiprocessors read from L2: against DRAM's they tell re-reads."""
STAGES = ("append", "append_prefill", "dense", "score", "select", "attend")
"""Ranges of an isolated run; of a pipelined one `quest`."""
DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 21
"""Bit of the capabilities in STATUS."""
BATCH_POINTS = 36
"""A run costs about 15 s before its first launch, and all it counts when it fails."""


def why_not(ncu: str | None = None) -> QuestprofError | None:
    """Why counters cannot be read here, as far as that shows without a run; None when it looks possible."""
    if not any(Path(device).exists() for device in DEVICES):
        fix = "Run on a machine with an NVIDIA GPU, or count with --source trace."
        return QuestprofError("hardware counters", "no NVIDIA GPU is here", fix, Exit.MACHINE)
    try:
        version(find(ncu))
        parameters = DRIVER_PARAMETERS.read_text()
    except QuestprofError as error:
        return error
    except OSError:
        return None
    if "RmProfilingAdminOnly: 1" in parameters and not _is_admin():
        return ncu_errors.no_permission()
    return None


def _is_admin() -> bool:
    """Whether the process has CAP_SYS_ADMIN, which root in a container may lack."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return os.geteuid() == 0
    held = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(held, 16) >> CAP_SYS_ADMIN & 1)


@dataclass(frozen=True)
class Driver:
    """How every run of this count is made. `timeout_s` holds for each of them."""

    ncu: str
    kernels: str
    timeout_s: float
    prefill: bool
    metrics: tuple[str, ...]
    optional: frozenset[str]


def count(
    points: Sequence[Point],
    *,
    ncu: str | None,
    kernels: str = "",
    timeout_s: float,
    pipelined: bool = True,
    prefill: bool = False,
    more_metrics: bool = False,
    batch_points: int = BATCH_POINTS,
) -> Iterator[Counted]:
    """Bytes that the stages of `points` move, by the counters of the GPU; one `Counted` a point.

    Points come grouped by cache, not in the given order. `timeout_s` bounds each run of the profiler; a
    batch that exceeds it is tried once more in halves. `reason` with no counts says why; with counts it
    tells which check failed (status `wrong`), or what the pipelined run could not do.
    Raises QuestprofError (status 3) when no run can count on this machine.
    """
    path = find(ncu)
    version(path)
    extra = MORE_METRICS if more_metrics else ()
    driver = Driver(
        path, kernels, timeout_s, prefill, METRICS + extra, frozenset((*MORE_METRICS, METRICS[2]))
    )
    for batch in batches(points, batch_points):
        yield from _count_batch(driver, batch, pipelined)


def _count_batch(driver: Driver, batch: tuple[Point, ...], pipelined: bool) -> Iterator[Counted]:
    alone = _run_in_halves(driver, batch, "isolated")
    chains = tuple(point for point in batch if pipelined and point.policy != "dense")
    chained = _run_in_halves(driver, chains, "pipelined") if chains else {}
    for point in batch:
        yield counted(point, [run for run in (alone.get(point.point_id), chained.get(point.point_id)) if run])


def _run_in_halves(driver: Driver, batch: tuple[Point, ...], mode: Mode) -> dict[str, Run]:
    """The run of each point id; a batch that timed out once more in halves."""
    run = _run(driver, batch, mode)
    if not run.timed_out or len(batch) == 1:
        return dict.fromkeys((point.point_id for point in batch), run)
    parts = [(half, _run(driver, half, mode)) for half in halves(batch)]
    return {point.point_id: part for half, part in parts for point in half}


def _run(driver: Driver, batch: tuple[Point, ...], mode: Mode) -> Run:
    """One run, and for a chain that cannot run fused under the profiler one more with its steps apart."""
    if mode == "isolated":
        return _profile(driver, batch, mode, fused=True)
    try:
        run = _profile(driver, batch, mode, fused=True)
    except QuestprofError as error:
        run = Run(mode, failure=str(error))
    if run.failure and not run.timed_out:
        try:
            apart = _profile(driver, batch, mode, fused=False)
        except QuestprofError:
            return run
        if not apart.failure:
            apart.failure = f"its steps apart, because the fused chain gave: {run.failure}"
            return apart
    return run


def _profile(driver: Driver, batch: tuple[Point, ...], mode: Mode, *, fused: bool) -> Run:
    """Run the profiler over the worker and read its report. Raises what concerns the whole machine."""
    with tempfile.TemporaryDirectory(prefix="questprof-ncu-") as folder:
        request = Request(
            batch,
            mode,
            f"{folder}/plan.jsonl",
            driver.kernels,
            driver.prefill,
            fused,
            driver.timeout_s + GRACE_S,
        )
        Path(folder, "request.json").write_bytes(msgspec.json.encode(request))
        output, code = execute(_command(driver, folder, mode), driver.timeout_s, folder)
        plan_file = Path(request.plan_path)
        plan = read_plan(plan_file.read_text().splitlines()) if plan_file.exists() else Plan()
        if refused := ncu_errors.refusal(output):
            raise refused
        if (metric := ncu_errors.missing_metric(output)) is not None:
            return _without(driver, metric, batch, mode, fused=fused)
        return _read(driver, mode, plan, output, code, folder)


def _without(driver: Driver, metric: str, batch: tuple[Point, ...], mode: Mode, *, fused: bool) -> Run:
    """The same run without an optional counter that the chip lacks; `metric` is how its name begins."""
    asked = next((name for name in driver.metrics if name.startswith(metric)), metric)
    if asked not in driver.optional or asked not in driver.metrics:
        raise ncu_errors.no_such_counter(asked)
    kept = tuple(name for name in driver.metrics if name != asked)
    return _profile(replace(driver, metrics=kept), batch, mode, fused=fused)


def _command(driver: Driver, folder: str, mode: Mode) -> list[str]:
    stages = ("quest",) if mode == "pipelined" else STAGES
    filters = [word for s in (CALIBRATION, *stages) for word in ("--nvtx-include", f"{DOMAIN}@{s}/")]
    replay = "app-range" if mode == "pipelined" else "kernel"
    metrics = driver.metrics if mode == "isolated" else [m for m in driver.metrics if "time" not in m]
    worker = [sys.executable, "-m", "questprof.counters.ncu_worker", f"{folder}/request.json"]
    return [
        driver.ncu,
        *("--target-processes", "application-only"),
        *("--replay-mode", replay),
        *("--cache-control", "all"),
        *("--clock-control", "none"),
        *("--nvtx", *filters),
        *("--metrics", ",".join(metrics)),
        *("--force-overwrite", "--export", f"{folder}/report"),
        *worker,
    ]


def _read(driver: Driver, mode: Mode, plan: Plan, output: str, code: int | None, folder: str) -> Run:
    """The rows of each range of a run, or why there are none."""
    if code is None:
        return Run(mode, plan, failure=f"no end after {driver.timeout_s:g} s", timed_out=True)
    if plan.ended is not None and not plan.ended.error and (nothing := ncu_errors.nothing_profiled(output)):
        raise nothing
    stopped = _stopped(plan, output)
    report = next(iter(sorted(Path(folder).glob("report*.ncu-rep"))), None)
    if report is None:
        return Run(mode, plan, failure=stopped or f"no report: {ncu_errors.last_error(output)}")
    command = [driver.ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    text, code = execute([*command, "--print-kernel-base", "function"], driver.timeout_s, folder)
    if code != 0:
        return Run(mode, plan, failure=f"the report cannot be read: {ncu_errors.last_error(text)}")
    try:
        rows = match(parse_raw(text, driver.metrics, DOMAIN), plan, mode)
    except Mismatch as mismatch:
        return Run(mode, plan, failure=str(mismatch))
    return Run(mode, plan, rows, failure=stopped)


def _stopped(plan: Plan, output: str) -> str:
    """Why the worker did not come to its end, or ''."""
    if plan.ended is not None:
        return plan.ended.error
    code = ncu_errors.application_code(output)
    told = f"with status {code}" if code is not None else "early"
    return f"the profiled process ended {told}: {ncu_errors.last_error(output)}"
