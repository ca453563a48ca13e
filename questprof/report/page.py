"""The page: sections in order, templates with everything escaped, scripts pinned by their hash.

A profile is untrusted input. Jinja2 escapes all text, the figures' JSON is escaped for its <script> element,
and a content security policy lets only the page's own scripts run and loads nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import questprof
from questprof.errors import QuestprofError
from questprof.model import Profile
from questprof.report import baselines, environment, length_scan, roofline
from questprof.report import bytes as bytes_section
from questprof.report.section import Section

PlotlyJs = Literal["inline", "cdn", "directory"]
HERE: Final = Path(__file__).parent
PLOTLY_FILE: Final = "plotly.min.js"

SECTIONS: Final = (
    Section("length-scan", "Length scan", length_scan.build),
    Section("baselines", "Baselines and layouts", baselines.build),
    Section("roofline", "Roofline", roofline.build),
    Section("bytes", "Bytes", bytes_section.build),
    Section("environment", "Environment and provenance", environment.build),
)
"""In the page's order. A section appears where its builder finds its data."""


class Script(NamedTuple):
    """A <script> element and what the content security policy needs to let it run."""

    tag: Markup
    policy: str


def render(profiles: Sequence[Profile], *, plotlyjs: PlotlyJs = "inline") -> str:
    """One HTML page for `profiles`, each with its own sections.

    `plotlyjs`: `inline` holds the library (one file, no request), `cdn` loads it from plotly's server,
    `directory` from plotly.min.js beside the page. QuestprofError without a profile.
    """
    if not profiles:
        raise QuestprofError("report", "there is no profile to show", "Name at least one .jsonl profile.")
    parts = [_part(profile, number) for number, profile in enumerate(profiles, start=1)]
    scripts = [_inline((HERE / "page.js").read_text(encoding="utf-8"))]
    if any(block.num_figures for part in parts for _, _, block in part["sections"]):
        scripts.insert(0, _plotly(plotlyjs))
    templates = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html").render(
        parts=parts,
        title=f"questprof: {', '.join(dict.fromkeys(part['device_name'] for part in parts))}",
        version=questprof.__version__,
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        scripts=scripts,
    )


def write_report(
    profiles: Sequence[Profile],
    path: Path,
    plotlyjs: PlotlyJs = "inline",
    force: bool = False,
) -> Path:
    """Write the page of `profiles` to `path` (and plotly.min.js beside it with `directory`); returns `path`.

    QuestprofError when a file exists that would change, unless `force`, and when it cannot be written.
    """
    files = {path: render(profiles, plotlyjs=plotlyjs)}
    if plotlyjs == "directory":
        files[path.with_name(PLOTLY_FILE)] = _library()
    try:
        files = {p: text for p, text in files.items() if p == path or not _holds(p, text)}
        for existing in (p for p in files if p.exists() and not force):
            raise QuestprofError(
                f"{existing} exists",
                "nothing is overwritten unasked",
                "Name another file, or add --force to replace it.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        for target, text in files.items():
            _write(target, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise QuestprofError(
            f"cannot write {path}", reason, "Name a file in a folder you can write to."
        ) from error
    return path


def _part(profile: Profile, number: int) -> dict[str, Any]:
    """One profile: its head, its verdicts, its sections as (id, title, Block)."""
    env = profile.header.environment
    built = [(f"p{number}-{s.id}", s.title, s.builder(profile, f"p{number}-{s.id}")) for s in SECTIONS]
    sections = [(uid, title, block) for uid, title, block in built if block]
    return {
        "id": f"p{number}",
        "is_cpu": env.device == "cpu",
        "device_name": env.device_name,
        "num_workers": env.num_workers,
        "started_at": profile.header.started_at,
        "name": profile.name,
        "sections": sections,
        "verdicts": [verdict for _, _, block in sections for verdict in block.verdicts],
    }


def _library() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("\r\n", "\n")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _inline(text: str) -> Script:
    """`text` as an element of its own; it must not close the element itself."""
    if "</script" in text.lower():
        raise AssertionError("a script of the page closes its own element")
    return Script(Markup(f"<script>{text}</script>"), f"'{_digest(text)}'")


def _plotly(how: PlotlyJs) -> Script:
    if how == "inline":
        return _inline(_library())
    if how == "directory":
        return Script(Markup(f'<script src="{PLOTLY_FILE}"></script>'), "'self' file:")
    from plotly.offline import get_plotlyjs_version

    address = f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"
    pinned = f'integrity="{_digest(_library())}" crossorigin="anonymous"'
    return Script(Markup(f'<script src="{address}" {pinned}></script>'), address)


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_bytes() == text.encode()


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a file beside the target takes its place when complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(text.encode())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
