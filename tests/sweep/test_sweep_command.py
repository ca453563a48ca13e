"""What `sweep` says at its end, and its exit status."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiles import SHAPE, dense, profile, quest
from questprof.commands.sweep import _print_closing, _print_json, ending
from questprof.errors import Exit
from questprof.grid import Grid
from questprof.model import Clocks, Energy, Profile, Record
from questprof.sweep.outputs import Outputs


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ((), Exit.INCONCLUSIVE),
        (("ok", "ok"), Exit.OK),
        (("ok", "oom"), Exit.OK),
        (("oom", "unavailable"), Exit.MACHINE),
        (("ok", "unstable"), Exit.INCONCLUSIVE),
        (("unstable", "oom"), Exit.INCONCLUSIVE),
        (("wrong", "unstable"), Exit.CHECK_FAILED),
        (("wrong", "oom"), Exit.CHECK_FAILED),
    ],
)
def test_the_worst_point_decides(statuses: tuple[str, ...], status: Exit) -> None:
    us = (1.0, 1.0, 1.0)
    records = [
        record
        for i, s in enumerate(statuses)
        for record in (dense(2048 * (i + 1), 9.0, status=s), quest(2048 * (i + 1), us, status=s))
    ]
    assert ending(profile(*records)) == status


APART = (2.0, 4.0, 9.0)
"""us, whose 90th percentile is 8 and 10th 2.4: 3.3 times that."""


@pytest.mark.parametrize(
    ("records", "status"),
    [
        ([dense(2048, 9.0), quest(2048, (1.0, 1.0, 1.0), times_us={"quest": APART})], Exit.INCONCLUSIVE),
        ([dense(2048, 9.0, times_us={"dense": APART}), quest(2048, (1.0, 1.0, 1.0))], Exit.INCONCLUSIVE),
        ([dense(2048, 9.0), quest(2048, None, status="oom", reason="needs 9 GiB")], Exit.INCONCLUSIVE),
        ([dense(2048, 9.0)], Exit.INCONCLUSIVE),
        ([dense(2048, 9.0), quest(2048, (1.0, 1.0, 1.0), budget=2048)], Exit.OK),  # what it costs is known
        (
            [
                *(dense(2048 * n, 9.0) for n in (1, 2)),
                quest(2048, (1.0, 1.0, 1.0), times_us={"quest": APART}),
                quest(4096, (1.0, 1.0, 1.0)),
            ],
            Exit.OK,
        ),
    ],
)
def test_a_sweep_without_any_verdict_is_inconclusive(records: list[Record], status: Exit) -> None:
    assert ending(profile(*records)) == status


def test_without_a_time_no_source_of_times_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid((SHAPE,), (8192,), (16,), (1024,), (1,), "cuda")
    for made in (profile(), profile(quest(8192, None, status="oom", reason="needs 9 GiB"))):
        _print_closing(made, grid)
        _print_json(made, Outputs(Path("p.jsonl"), None, False, False))
        said = capsys.readouterr().out
        assert "Times: measured" not in said
    _print_closing(_measured(), grid)
    assert "Times: measured" in capsys.readouterr().out


def _measured() -> Profile:
    point = replace(
        quest(8192, (4.0, 2.0, 6.0), status="unstable", reason="its samples drift: quest +7 %"),
        energy={"quest": Energy(600.0, 1.5, 10_000)},
        clocks=Clocks(("software power cap",), 70),
    )
    return profile(dense(8192, 36.0), point)


def test_json_says_all_that_the_terminal_does(capsys: pytest.CaptureFixture[str]) -> None:
    measured = _measured()
    _print_json(measured, Outputs(Path("p.jsonl"), None, False, False))
    document = json.loads(capsys.readouterr().out)
    assert document["energy"][0]["joules_per_launch"] == pytest.approx(0.06)
    point_id = measured.records[1].point_id
    assert document["clocks"] == {point_id: {"reasons": ["software power cap"], "temperature_c": 70}}
    assert any("drift" in line for line in document["warnings"])
    assert any("power limit" in line for line in document["warnings"])
    assert len(document["rows"]) == 1


def test_the_terminal_shows_energy_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    measured = _measured()
    point = measured.records[0].point
    _print_closing(measured, Grid((point.shape,), (8192,), (16,), (1024,), (1,), "cuda"))
    said = capsys.readouterr()
    assert "mJ a token" in said.out
    assert "warning: unstable: its samples drift: quest +7 %" in said.err
    assert "warning: clocks were held down while timing (software power cap)" in said.err
