"""`questprof export`: options that do nothing are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles import profile, quest
from questprof.cli import app
from questprof.errors import Exit, QuestprofError
from questprof.store import seal


@pytest.mark.parametrize("output", [(), ("-o", "points.csv")])
def test_a_point_named_for_the_csv_is_refused(output: tuple[str, ...], tmp_path: Path) -> None:
    """The CSV holds all of them: one that was asked for would be lost among them in silence."""
    path = tmp_path / "run.jsonl"
    run = profile(*(quest(1024 * k, (2.0, 1.0, 5.0)) for k in (4, 8)))
    path.write_bytes(b"".join(map(seal, (run.header, *run.records))))
    found = CliRunner().invoke(app, ["export", str(path), "--point", "4k:1k", *output])
    assert isinstance(found.exception, QuestprofError)
    assert found.exception.status == Exit.USAGE
    assert str(found.exception).startswith("--point 4k:1k with --format csv: the CSV holds every point")
    trace = CliRunner().invoke(app, ["export", str(path), "--point", "4k:1k", "--format", "trace"])
    assert trace.exit_code == 0
    assert CliRunner().invoke(app, ["export", str(path)]).stdout.count("\n") > 2
