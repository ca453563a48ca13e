"""`questprof report`: what it leaves on disk, and what it says."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from profiles import dense, profile
from questprof.cli import app
from questprof.store import seal


def test_a_page_without_a_figure_leaves_no_folder_of_pictures(tmp_path: Path) -> None:
    """One dense point: a table, and no curve."""
    path, folder = tmp_path / "run.jsonl", tmp_path / "pictures"
    run = profile(dense(4096, 20.0))
    path.write_bytes(b"".join(map(seal, (run.header, *run.records))))
    done = CliRunner().invoke(app, ["report", str(path), "--plotlyjs", "cdn", "--pictures", str(folder)])
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == [str(tmp_path / "run.html")]
    assert done.stderr == "warning: --pictures wrote none, as the page has no figure\n"
    assert not folder.exists()
