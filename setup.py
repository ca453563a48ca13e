"""Build step beside pyproject.toml: notes in wheel and sdist which commit the code is of."""

from __future__ import annotations

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
FILE = Path("questprof", "commit.txt")


def _commit() -> str:
    """What an sdist brought along, or git says of the checkout; '' where neither tells."""
    if (ROOT / FILE).exists():
        return (ROOT / FILE).read_text(encoding="ascii").strip()
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        dirty = _git("status", "--porcelain", "--untracked-files=no", "--", "questprof", "kernels")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}-dirty" if dirty else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def _note(folder: str) -> None:
    if found := _commit():
        target = Path(folder) / FILE
        target.unlink(missing_ok=True)  # in an sdist it may be a link to the checkout's
        target.write_text(f"{found}\n", encoding="ascii")


class BuildPy(build_py):
    """Packages, and the commit beside them; an editable install asks git instead."""

    def run(self) -> None:
        """Build, then note the commit."""
        super().run()
        if not self.editable_mode:
            _note(self.build_lib)


class Sdist(sdist):
    """The sources, and the commit among them, as they come without their history."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Make the tree, then note the commit in it."""
        super().make_release_tree(base_dir, files)
        _note(base_dir)


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
