"""Which commit a questprof is of: told, of a checkout, of a build, of an installation."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import questprof
from questprof import version

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUESTPROF_COMMIT", raising=False)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package of one file."""
    (tmp_path / "questprof").mkdir()
    (tmp_path / "questprof" / "a.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_a_checkout_says_its_commit_and_whether_it_is_changed(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "--short=12", "HEAD")
    assert version.commit(checkout / "questprof") == head
    (checkout / "questprof" / "a.py").write_text("2\n")
    assert version.commit(checkout / "questprof") == f"{head}-dirty"


def test_what_the_image_says_goes_before_a_history_that_may_be_old(
    monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    monkeypatch.setattr(version, "_git", lambda *_: pytest.fail("git was asked"))
    monkeypatch.setenv("QUESTPROF_COMMIT", "0123abc")
    assert version.commit(checkout / "questprof") == "0123abc"


def test_a_build_says_what_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_installed", lambda: "")
    assert version.commit(tmp_path) == ""
    (tmp_path / version.BUILT).write_text("0123abc\n")
    assert version.commit(tmp_path) == "0123abc"


def test_an_installation_from_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = json.dumps({"url": "https://example.org/q.git", "vcs_info": {"commit_id": "f" * 40}})
    monkeypatch.setattr(version, "distribution", lambda _: SimpleNamespace(read_text=lambda name: noted))
    assert version.commit(tmp_path) == "f" * 12

    def absent(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(version, "distribution", absent)
    assert version.commit(tmp_path) == ""
    monkeypatch.setattr(version, "distribution", lambda _: SimpleNamespace(read_text=lambda name: "[]"))
    assert version.commit(tmp_path) == ""


def test_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUESTPROF_COMMIT", "0123abc")
    assert version.describe() == f"{questprof.__version__} (0123abc)"


def test_the_command_line_tells_it_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from questprof.cli import app\n"
        "try:\n    app()\nfinally:\n    assert not {'torch', 'msgspec', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"questprof {version.describe()}"


def test_a_build_notes_its_commit(checkout: Path) -> None:
    """The build step of setup.py alone, over the small repository."""
    (checkout / "setup.py").write_text((ROOT / "setup.py").read_text())
    (checkout / "pyproject.toml").write_text(
        '[project]\nname = "questprof"\nversion = "0"\n[tool.setuptools]\npackages = ["questprof"]\n'
    )
    head = git(checkout, "rev-parse", "--short=12", "HEAD")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "--build-lib", "out"],
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (checkout / "out" / "questprof" / version.BUILT).read_text().strip() == head
