"""What `sweep` says at its end, and its exit status."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiles import dense, profile, quest
from questprof.commands.sweep import _print_closing, _print_json, exit_status
from questprof.errors import Exit
from questprof.grid import Grid
from questprof.model import Clocks, Energy, Profile
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
    records = [dense(1024 * (i + 1), 1.0, status=s) for i, s in enumerate(statuses)]
    assert exit_status(profile(*records)) == status


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
