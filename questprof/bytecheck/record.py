"""From what a source counted at a point to the record: with its ledger, its status, its variant."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from questprof import ledger
from questprof.counters import Counted
from questprof.counts import StageCount
from questprof.ledger_case import VARIANTS
from questprof.model import Environment, Point, Record, Status


def record_of(
    asked: Point,
    counted: Counted,
    environment: Environment,
    num_workers: int,
    planned: str,
    *,
    prefill: bool = False,
    gather: StageCount | None = None,
) -> Record:
    """The record of `asked` as counted, with the ledger that the real ids and queries give.

    The point's variant is what was counted, so that the trace of one is never the count of another.
    `num_workers` and `planned` (a variant of the ledger's) plan the splits where counted.variant is a user's.
    """
    point = replace(asked, variant=counted.variant)
    entries = ledger.entries(
        point,
        num_workers,
        union_ratio=None if counted.union_ratio is None else max(1.0, counted.union_ratio),
        sign_share=counted.sign_share,
        variant=counted.variant if counted.variant in VARIANTS else planned,
        prefill=prefill,
    )
    return Record(
        kind="bytes",
        point=point,
        point_id=point.point_id,
        env_id=environment.env_id,
        status=status_of(counted),
        reason=counted.reason,
        bytes={stage: {"formula": count} for stage, count in ledger.stage_bytes(entries).items()},
        floor_bytes=ledger.counted_bytes(entries),
        ledger=entries,
        counts=(*counted.counts, *((gather,) if gather else ())),
        unselected_bytes=counted.unselected_bytes,
        proof=counted.proof,
        counter_calibration=counted.calibration,
        variant=counted.variant,
        union_ratio=counted.union_ratio,
        sign_share=counted.sign_share,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def status_of(counted: Counted) -> Status:
    """The record's status: a stage that failed is `wrong`, without any counts `unavailable`."""
    if not counted.counts and counted.status in ("ok", "failed"):
        return "unavailable"
    return "wrong" if counted.status == "failed" else counted.status
