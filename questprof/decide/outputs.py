"""Where a decision writes: the page, and beside it the profiles it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from questprof.decode.config import Device
from questprof.errors import QuestprofError
from questprof.files import check_regular, check_writable, output_exists
from questprof.sweep.outputs import Outputs


@dataclass(frozen=True)
class Paths:
    """`decide.html`, and `decide-sweep.jsonl`, `decide-bytes.jsonl`, `decide-steps.jsonl` beside it."""

    page: Path
    force: bool
    resume: bool

    def profile(self, part: str) -> Path:
        """The profile of one part."""
        return self.page.with_name(f"{self.page.stem}-{part}.jsonl")

    def outputs(self, part: str) -> Outputs:
        """Where a part writes, and whether it goes on with what is there."""
        return Outputs(self.profile(part), None, self.force, self.resume)

    def again(self, part: str) -> Outputs:
        """The same, going on with what this run wrote."""
        return Outputs(self.profile(part), None, False, True)


PARTS = ("sweep", "bytes", "steps")


def plan_paths(output: Path | None, name: str, device: Device, *, force: bool, resume: bool) -> Paths:
    """`reports/<name>-<device>-<date>-<time>.html` unless named; never an existing file unasked.

    QuestprofError for a file that is there, cannot be written, or is no page.
    """
    if resume and (output is None or force):
        why = (
            "it needs the page whose profiles to go on with" if output is None else "--force would start over"
        )
        raise QuestprofError("--resume", why, "Name the page with -o, and leave --force out.")
    page = output or Path("reports") / f"{name}-{device}-{datetime.now():%Y%m%d-%H%M%S}.html"
    if page.suffix.lower() not in (".html", ".htm"):
        raise QuestprofError(
            f"-o {page}",
            "the output is a page, with the profiles beside it",
            f"Write -o {page.stem or 'decide'}.html.",
        )
    paths = Paths(page, force, resume)
    for path in (page, *(paths.profile(part) for part in PARTS)):
        check_regular(path)
        if path.exists() and not (force or resume):
            raise output_exists(path)
    check_writable(page)
    return paths
