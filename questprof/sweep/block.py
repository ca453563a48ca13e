"""From a block of points to records: predict, fill, check, time, check again.

Nothing is timed before its check has passed, and nothing is kept as `ok` unless the outputs that the
timed launches left pass it again.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from questprof import ledger
from questprof.backends import FILLER, Backend, load, user
from questprof.backends.user_launch import behind
from questprof.backends.user_memory import AsksTooMuchError, out_of_memory
from questprof.checks import check, sign_share, union_ratio
from questprof.environment import available_bytes
from questprof.errors import QuestprofError
from questprof.grid import Block
from questprof.model import Point, Record, Status
from questprof.policies import Bound, Step
from questprof.sweep.binding import Machine, Running, bind_all, poison
from questprof.sweep.extras import extra_candidates
from questprof.timing.candidates import Candidate, Loop, Timed, merged
from questprof.timing.stopping import drifting
from questprof.units import format_bytes
from questprof.workload import USABLE_SHARE, cache_bytes

__all__ = ["Machine", "load_all", "memory_shortage", "refusals", "run_block"]


def load_all(points: Iterable[Point], device: str) -> dict[str, Backend]:
    """The backends of `points`, and the one that fills caches, by name."""
    return {name: load(name, device) for name in {FILLER: 0} | {point.backend: 0 for point in points}}


def refusals(block: Block, backends: dict[str, Backend]) -> dict[str, str]:
    """Point id -> why the point can run on no machine with its backend (nothing is allocated)."""
    found = {p.point_id: backends[p.backend].why_not(p) or backends[FILLER].why_not(p) for p in block.points}
    return {point_id: reason for point_id, reason in found.items() if reason}


def run_block(block: Block, machine: Machine, done: frozenset[str] = frozenset()) -> Iterator[Record]:
    """Records of the block's points that are not in `done` (point ids), baselines first."""
    points = [point for point in block.points if point.point_id not in done]
    device = machine.environment.device
    backends = load_all(points, device)
    refused = refusals(Block(tuple(points)), backends)
    fitting = []
    for point in points:
        if point.point_id in refused:
            yield _record(point, machine, "unavailable", refused[point.point_id])
        elif shortage := memory_shortage(point, backends[point.backend], device):
            yield _record(point, machine, "oom", shortage)
        else:
            fitting.append(point)
    if fitting:
        yield from _run_fitting(Block(tuple(fitting), block.extras), backends, machine)


def memory_shortage(point: Point, backend: Backend, device: str) -> str:
    """Why the point does not fit, with the predicted and the available bytes; '' when it fits."""
    needed = backend.caches_held * cache_bytes(point)
    available = int(available_bytes(device) * USABLE_SHARE)
    if needed <= available:
        return ""
    return f"needs {format_bytes(needed)}, {format_bytes(available)} are usable"


def _run_fitting(block: Block, backends: dict[str, Backend], machine: Machine) -> Iterator[Record]:
    import torch

    rest: tuple[Point, ...] = ()
    try:
        records = list(_measure(block, backends, machine))
    except (RuntimeError, MemoryError, AsksTooMuchError) as error:
        refused = behind(error)
        greedy = [point for point in block.points if _is_greedy(point.backend, refused)]
        if greedy and refused:
            rest = tuple(point for point in block.points if point not in greedy)
            reason = f"{refused.what}: {refused.why}"
            records = [_record(point, machine, "wrong", reason) for point in greedy]
        elif refused:
            raise refused from error
        elif not out_of_memory(error):
            raise
        else:
            free = format_bytes(available_bytes(machine.environment.device))
            predicted = format_bytes(cache_bytes(block.points[0]))
            reason = f"predicted to fit ({predicted} a cache), but {_first_line(error)}; {free} are free"
            records = [_record(point, machine, "oom", reason) for point in block.points]
    gc.collect()
    if machine.environment.device == "cuda":
        torch.cuda.empty_cache()
    yield from records
    if rest:  # the others' points know nothing of it
        yield from _run_fitting(replace(block, points=rest), backends, machine)


def _is_greedy(backend: str, error: QuestprofError | None) -> bool:
    """Whether `backend` stands for the user's kernel set that asked for more memory than there is."""
    if not isinstance(error, AsksTooMuchError) or backend not in user.registered():
        return False
    return user.source_of(backend) == error.source


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _measure(block: Block, backends: dict[str, Backend], machine: Machine) -> Iterator[Record]:
    with machine.phases("filling"):
        running = bind_all(block.points, backends, machine)
    good = []
    appended: set[tuple[str, bool]] = set()
    for run in running:
        with machine.phases("checks"):
            refusal = _check_before(run)
        # An append knows no budget: its extra states are timed with the first point of a backend.
        stage = (run.point.backend, run.point.policy == "dense")
        names = [name for name in block.extras if name != "append" or stage not in appended]
        if names and not refusal:
            appended.add(stage)
            _add_extras(run, names, backends[FILLER], machine)
        if refusal:
            yield _record(run.point, machine, "unavailable", refusal)
        elif all(c.holds for c in run.checks):
            good.append(run)
        else:
            yield _finish(run, machine, None, Loop(()))
    if good:
        yield from _time(good, machine)


def _time(good: Sequence[Running], machine: Machine) -> Iterator[Record]:
    """Time checked points in one loop, and check what the timed launches left."""
    for run in good:
        poison(run.rotation)
    loop_id = hashlib.sha256("".join(r.point.point_id for r in good).encode()).hexdigest()[:12]
    candidates = [[_candidate(run), *run.extras] for run in good]
    with machine.phases("timing"):
        loop = machine.executor.time([c for each in candidates for c in each], loop_id)
    results = iter(loop.timed)
    for run, each in zip(good, candidates, strict=True):
        timed = [next(results) for _ in each]
        with machine.phases("checks"):
            for candidate, result in zip(each, timed, strict=True):
                # The cache checked before, and the one launched last: what one leaves in the scratch that
                # they share must not spoil another, and few samples do not reach all of a long rotation.
                for index in sorted({0, result.last}):
                    bound = candidate.rotation[index]
                    run.checks += check(bound, bound.last_written, "after", run.point.seed, run.memo)
        yield _finish(run, machine, merged(timed), loop)


def _check_before(run: Running) -> str:
    """Launch every step once on the first cache and check, then a chain that launches something else.

    The ids of the steps tell the union that the ledger needs, the queries the share of the rows of bounds.
    Returns why a baseline's library refuses the point, or ''.
    """
    bound = run.rotation[0]
    try:
        _launch(bound, bound.steps)
    except QuestprofError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        # Only a library that has no stage but dense refuses a point by its error: others are at fault.
        if "score" in run.backend.stages or not isinstance(error, RuntimeError):
            raise
        return _first_line(error)
    run.union_ratio, run.sign_share = union_ratio(bound), sign_share(bound)
    run.checks = check(bound, bound.steps, "before", run.point.seed, run.memo)
    if bound.fused:
        poison([bound])
        _launch(bound, bound.chain)
        run.checks += check(bound, bound.chain, "before", run.point.seed, run.memo)
    return ""


def _add_extras(run: Running, names: Sequence[str], filler: Backend, machine: Machine) -> None:
    """Bind and check the extra states of the point's stages."""
    bound = run.rotation[0]
    with machine.phases("filling"):
        extras = extra_candidates(names, bound, run.point, run.backend, filler, machine.executor)
    run.extras = [replace(candidate, warm_up=run.warm_up) for candidate in extras]
    with machine.phases("checks"):
        for candidate in run.extras:
            first = candidate.rotation[0]
            poison(candidate.rotation)
            _launch(first, first.steps)
            run.checks += check(first, first.steps, "before", run.point.seed, run.memo)
            poison(candidate.rotation)


def _launch(bound: Bound, steps: Iterable[Step]) -> None:
    """Launch `steps` and wait for them."""
    for step in steps:
        step.launch()
    _synchronize(bound)


def _candidate(run: Running) -> Candidate:
    entries = ledger.entries(
        run.point,
        run.rotation[0].cache.pool.num_workers,
        union_ratio=run.union_ratio,
        sign_share=run.sign_share,
        variant=run.backend.variant(run.point),
    )
    counts, counted = ledger.stage_bytes(entries), ledger.counted_bytes(entries)
    run.bytes = {stage: {"formula": count} for stage, count in counts.items() if _has(run, stage)}
    run.floor_bytes = {stage: n for stage, n in counted.items() if _has(run, stage)}
    touched = {stage: count.read + count.write for stage, count in counts.items()}
    return Candidate(tuple(run.rotation), touched, counted, run.warm_up)


def _has(run: Running, stage: str) -> bool:
    steps = {step.stage for step in run.rotation[0].steps}
    return stage in steps or (stage == "quest" and bool(run.rotation[0].chain))


def _synchronize(bound: Bound) -> None:
    if bound.q.is_cuda:
        import torch

        torch.cuda.synchronize()


def _finish(run: Running, machine: Machine, timed: Timed | None, loop: Loop) -> Record:
    status, reason = _verdict(run, machine, timed)
    kept = timed if timed and status != "wrong" else Timed({}, {})
    return _record(
        run.point,
        machine,
        status,
        reason,
        checks=run.checks,
        union_ratio=run.union_ratio,
        sign_share=run.sign_share,
        bytes=run.bytes,
        floor_bytes=run.floor_bytes,
        times_us=kept.times_us,
        timing=kept.timing,
        energy=kept.energy,
        single_steps=kept.single_steps,
        clocks=loop.clocks,
        calibration=loop.calibration,
        pool_bytes=run.pool_bytes,
        variant=run.backend.variant(run.point),
    )


def _verdict(run: Running, machine: Machine, timed: Timed | None) -> tuple[Status, str]:
    """`wrong` with the checks that failed, `unstable` with the stages that drifted, otherwise `ok`."""
    failed = [
        f"{c.stage} {c.when} timing: error {c.max_rel_err if c.max_rel_err is not None else 'not finite'} "
        f"above {c.tolerance:.3g}"
        for c in run.checks
        if not c.holds
    ]
    if failed:
        return "wrong", "; ".join(failed)
    drift = drifting(timed.times_us, machine.environment.device) if timed else ""
    return ("unstable", drift) if drift else ("ok", "")


def _record(point: Point, machine: Machine, status: Status, reason: str, **fields: Any) -> Record:
    return Record(
        kind="sweep",
        point=point,
        point_id=point.point_id,
        env_id=machine.environment.env_id,
        status=status,
        reason=reason,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **fields,
    )
