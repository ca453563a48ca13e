"""Which questprof this is: its version and the commit of its code. Imports the standard library alone."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import questprof

HERE = Path(__file__).resolve().parent
BUILT = "commit.txt"
"""File beside this one that a build writes; a checkout has none."""


def describe() -> str:
    """`0.1.0 (0123456789ab)`, without the brackets where no commit is known."""
    found = commit()
    return f"{questprof.__version__} ({found})" if found else questprof.__version__


def commit(here: Path = HERE) -> str:
    """What QUESTPROF_COMMIT says; else git of a checkout; else what a build was made from; else ''.

    The variable is for copies of a checkout, whose own history may be old or missing. `-dirty` is added
    where git sees that the code is changed. `here` is the folder of the package.
    """
    if told := os.environ.get("QUESTPROF_COMMIT"):
        return told
    root = here.parent
    if (root / ".git").exists():
        return checkout_commit(root)
    return _built(here) or _installed()


def checkout_commit(root: Path) -> str:
    """The commit of the checkout at `root`, with `-dirty` where its code is changed; '' without git."""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        dirty = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "questprof", "kernels")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}-dirty" if dirty else head


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=10)
    return answer.stdout.strip()


def _built(here: Path) -> str:
    """What the build wrote beside the code."""
    try:
        return (here / BUILT).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _installed() -> str:
    """The commit that pip noted when it installed from a repository's address."""
    try:
        noted = json.loads(distribution("questprof").read_text("direct_url.json") or "{}")
        return str(noted.get("vcs_info", {}).get("commit_id", ""))[:12]
    except (PackageNotFoundError, ValueError, AttributeError):
        return ""
