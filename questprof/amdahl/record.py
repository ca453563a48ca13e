"""One decode step as a record: checked, measured, with what the machine did meanwhile."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from questprof.amdahl.pairs import budget_text
from questprof.backends import load
from questprof.decode.config import weight_bytes
from questprof.environment import waited_seconds
from questprof.model import Check, Clocks, Environment, Point, Record, StageTiming, Status
from questprof.timing.candidates import cache_state
from questprof.timing.nvml import Gpu, Monitor
from questprof.timing.stopping import drifting
from questprof.units import dtype_bytes

if TYPE_CHECKING:
    from questprof.decode.measure import StepTimes
    from questprof.decode.session import Session

POLL_SECONDS: Final = 0.1
"""Between two readings of NVML while steps run."""
ROUNDINGS: Final = 8
"""Units of the dtype a layer's rounding may move the logits by, over the largest of them."""


@dataclass(frozen=True)
class How:
    """How the steps of a run are measured, and where they say so."""

    environment: Environment
    num_steps: int
    console: Console
    gpu: Gpu | None


def whole_budget_check(session: Session, point: Point) -> Check:
    """Logits of a Quest step whose budget covers every request against those of a dense step.

    The error is the largest difference over the largest logit; both steps read the same token.
    """
    size = point.page_size
    budget = -(-(max(session.seq_lens) + size) // size) * size
    backend = point.decode.dense_backend if point.decode else "questprof"
    found = [
        _logits(session, "dense", dense_backend=backend),
        _logits(session, "quest", token_budget=budget, dense_layers=0, dense_backend=backend),
    ]
    scale = float(found[0].abs().max())
    error = float((found[1] - found[0]).abs().max()) / scale if scale else 0.0
    finite = error == error and error != float("inf")
    return Check("step", "before", error if finite else None, tolerance(point))


def tolerance(point: Point) -> float:
    """Error of logits that rounding explains: ROUNDINGS units of the dtype a layer, added up as a walk."""
    unit = {4: 2.0**-23, 2: 2.0**-10}[dtype_bytes(point.shape.kv_dtype)]
    if point.shape.kv_dtype == "bf16":
        unit = 2.0**-7
    return float(ROUNDINGS * unit * point.shape.num_layers**0.5)


def _logits(session: Session, policy: str, **options: Any) -> Any:
    """Logits [batch_size, vocab_size], fp32, of the first step under a policy."""
    step = session.step(policy, **options)
    step.advance()
    step.set_tokens([0] * len(session.seq_lens))  # the one token that every vocabulary has
    step.run_eager()
    return step.logits.float().clone()


def measured(point: Point, session: Session, how: How, checks: tuple[Check, ...]) -> Record:
    """One step's record; `wrong` without times where a check failed or the logits are no numbers."""
    setup = point.decode
    if setup is None:
        raise AssertionError("a point of a decode step holds its setup")
    failed = [check for check in checks if not check.holds]
    if failed:
        return record(point, how.environment, "wrong", _wrong(failed[0]), checks=checks)
    step = session.step(
        point.policy,
        token_budget=point.token_budget,
        layer_budgets=setup.layer_budgets,
        dense_layers=setup.dense_layers,
        dense_backend=setup.dense_backend,
    )
    with _watched(how) as seen:
        times = session.measure(step, how.num_steps)
    if not bool(step.logits.isfinite().all()):
        return record(
            point, how.environment, "wrong", "the last step's logits hold a NaN or infinity", checks=checks
        )
    samples = {"step": times.step_us, "eager": times.eager_us, "idle": times.idle_us}
    samples = {name: found for name, found in samples.items() if found}
    drift = drifting({"step": times.step_us}, how.environment.device)
    status: Status = "unstable" if drift else "ok"
    how.console.print(_progress(point, times), highlight=False)
    return record(
        point,
        how.environment,
        status,
        drift,
        checks=checks,
        times_us=samples,
        timing={name: _timing(point, session, how, len(values)) for name, values in samples.items()},
        clocks=seen.get("clocks"),
        decode=times.result,
        variant=load(point.backend, how.environment.device).variant(point),
    )


def _wrong(check: Check) -> str:
    if check.max_rel_err is None:
        return "a budget of the whole length gives a NaN or infinity"
    return (
        f"a budget of the whole length gives other logits than dense attention: error "
        f"{check.max_rel_err:.3g} above {check.tolerance:.3g}"
    )


def _progress(point: Point, times: StepTimes) -> str:
    what = f"dense ({point.backend})" if point.policy == "dense" else budget_text(point)
    return f"  {what}: {median(times.step_us) / 1e3:.3g} ms a token"


def _timing(point: Point, session: Session, how: How, count: int) -> StageTiming:
    """Single steps, each of which reads the weights and what it attends to once."""
    shape = point.shape
    numbers = 2 * sum(point.lengths if point.policy == "dense" else map(min, point.lengths, point.budgets))
    attended = numbers * shape.num_kv_heads * shape.head_dim * shape.num_layers * dtype_bytes(shape.kv_dtype)
    weights = weight_bytes(session.config, session.weights.weight_format, how.environment.device)
    touched = weights + attended
    return StageTiming(
        launches_per_sample=1,
        num_buffers=1,
        touched_bytes=touched,
        cache_state=cache_state("step", touched, how.environment.last_level_cache_bytes),
        loop_id=hashlib.sha256(point.point_id.encode()).hexdigest()[:12],
        stop_reason=f"{count} steps",
    )


@contextmanager
def _watched(how: How) -> Iterator[dict[str, Clocks | None]]:
    """Clocks while steps run: NVML's from a thread on a GPU; on a CPU the share of time without a core."""
    found: dict[str, Clocks | None] = {}
    started, waited = time.perf_counter(), waited_seconds()
    if how.gpu is None:
        yield found
        seconds, after = time.perf_counter() - started, waited_seconds()
        if waited is not None and after is not None and seconds > 0:
            share = (after - waited) / seconds / how.environment.num_workers
            found["clocks"] = Clocks(waited_share=round(min(1.0, max(0.0, share)), 4))
        return
    monitor, ended = Monitor(how.gpu), threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            monitor.read()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
    found["clocks"] = monitor.result()


def record(point: Point, environment: Environment, status: Status, reason: str = "", **fields: Any) -> Record:
    """A record of a decode step, measured or refused."""
    return Record(
        kind="amdahl",
        point=point,
        point_id=point.point_id,
        env_id=environment.env_id,
        status=status,
        reason=reason,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **fields,
    )
