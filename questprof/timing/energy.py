"""Energy of stages, a launch and a token, from the counts that `sweep --energy` keeps. Pure.

All of the board's energy while the stage ran over and over: idle power is not taken off. A token's share is
that of one layer's launch times the layers of the shape, over the requests of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from questprof.model import Energy, Record

SOURCE = (
    "Energy: measured, NVML's counter of the whole board over about a second of replays a stage, idle power "
    "included; a token: attention of all layers."
)


@dataclass(frozen=True)
class StageEnergy:
    """One stage of one record. Joules a launch and a token, mean watts."""

    point_id: str
    backend: str
    policy: str
    seq_len: int
    token_budget: int
    batch_size: int
    stage: str
    joules_per_launch: float
    joules_per_token: float
    watts: float


def stage_energies(records: Sequence[Record]) -> list[StageEnergy]:
    """Every stage whose energy was counted, in the order of `records`."""
    return [_of_stage(record, stage, energy) for record in records for stage, energy in record.energy.items()]


def _of_stage(record: Record, stage: str, energy: Energy) -> StageEnergy:
    point = record.point
    per_launch = energy.joules / energy.launches
    return StageEnergy(
        point_id=record.point_id,
        backend=point.backend,
        policy=point.policy,
        seq_len=point.seq_len,
        token_budget=point.token_budget,
        batch_size=point.batch_size,
        stage=stage,
        joules_per_launch=per_launch,
        joules_per_token=per_launch * point.shape.num_layers / len(point.lengths),
        watts=energy.joules / energy.seconds,
    )
