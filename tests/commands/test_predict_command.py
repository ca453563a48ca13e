"""`questprof predict`: a profile without a sweep is refused for what it holds."""

from __future__ import annotations

from pathlib import Path

import amdahl_steps
from typer.testing import CliRunner

from profiles import profile
from questprof.cli import app
from questprof.errors import QuestprofError
from questprof.store import seal


def test_quest_steps_are_no_points_of_a_sweep_and_the_refusal_says_which_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for run, kinds in ((amdahl_steps.pair_profile(), "amdahl"), (profile(), "none")):
        path.write_bytes(b"".join(map(seal, (run.header, *run.records))))
        error = CliRunner().invoke(app, ["predict", str(path)]).exception
        assert isinstance(error, QuestprofError)
        assert error.what == f"{path} has no Quest point of a sweep"
        assert error.why == f"there is nothing to cross (kinds of its records: {kinds})"
