"""Where a sweep writes, and that it may."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from questprof.errors import QuestprofError
from questprof.files import check_regular, check_writable, output_exists
from questprof.sweep.settings import Device


@dataclass(frozen=True)
class Outputs:
    """Where the profile and the page go, and whether a profile there may be replaced or gone on with.

    `retry` and `skip_corrupt` say what of a resumed profile is measured again.
    """

    profile: Path
    page: Path | None
    force: bool
    resume: bool
    retry: bool = False
    skip_corrupt: bool = False


def plan_outputs(
    output: Path | None,
    html: Path | None,
    device: Device,
    *,
    force: bool,
    resume: bool,
    retry: bool = False,
    skip_corrupt: bool = False,
) -> Outputs:
    """`reports/<device>-<date>-<time>.jsonl` and `.html` unless named; never an existing file unasked."""
    check_resuming(output, force=force, resume=resume, retry=retry, skip_corrupt=skip_corrupt)
    if output is None:
        name = re.sub(r"[^a-z0-9]+", "-", _short_device_name(device).lower()).strip("-")
        output = Path("reports") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
        html = html or output.with_suffix(".html")
    if html and html.resolve() == output.resolve():
        raise QuestprofError(
            f"{html} twice", "profile and page need a file each", "Give --html another name."
        )
    check_regular(output)
    if output.exists() and not (force or resume):
        raise output_exists(output)
    if html:
        check_writable(html)
        if html.exists() and not (force or resume):
            raise output_exists(html)
    return Outputs(output, html, force, resume, retry, skip_corrupt)


def check_resuming(
    output: Path | None, *, force: bool, resume: bool, retry: bool = False, skip_corrupt: bool = False
) -> None:
    """QuestprofError where options of going on with a profile contradict each other, or lack the profile."""
    if resume and (output is None or force):
        why = "it needs the profile to go on with" if output is None else "--force would start over"
        raise QuestprofError("--resume", why, "Name the profile with -o, and leave --force out.")
    if (retry or skip_corrupt) and not resume:
        name = "--retry" if retry else "--skip-corrupt"
        raise QuestprofError(name, "it says what of a profile to measure again", "Add --resume and -o.")


def _short_device_name(device: Device) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name(0)
