"""The page: sections in order, templates with everything escaped, scripts pinned by their hash.

A profile is untrusted input. Jinja2 escapes all text, the figures' JSON is escaped for its <script> element,
and a content security policy lets only the page's own scripts run and loads nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import questprof
from questprof.collecting import uncollected
from questprof.errors import QuestprofError
from questprof.files import cannot_write, write_whole
from questprof.model import Profile
from questprof.report import (
    amdahl,
    baselines,
    batch,
    comparison,
    energy,
    environment,
    gqa,
    length_scan,
    limits,
    plane,
    recall,
    roofline,
)
from questprof.report import bytes as bytes_section
from questprof.report.evidence import Evidence, evidence
from questprof.report.records import lines
from questprof.report.section import Block, Context, Section
from questprof.report.static import Pictures
from questprof.report.verdict import answers, fallback
from questprof.sweep.merge import merge_profiles, without_copies
from questprof.units import count

PlotlyJs = Literal["inline", "cdn", "directory"]
HERE: Final = Path(__file__).parent
PLOTLY_FILE: Final = "plotly.min.js"
_END_TAGS: Final = re.compile(r"</t[dhr]>\n?|(?<=<tr>)\n")
"""Of cells and rows, which end where the next begins: a tenth of a large page without its library."""

SECTIONS: Final = (
    Section("length-scan", "Length scan", length_scan.build, asks=True),
    Section("plane", "Page size and budget", plane.build, asks=True),
    Section("baselines", "Baselines and layouts", baselines.build, kinds=("sweep",)),
    Section("bytes", "Bytes", bytes_section.build, kinds=("bytes",)),
    Section("roofline", "Roofline", roofline.build, kinds=("sweep",)),
    Section("amdahl", amdahl.TITLE, amdahl.build, kinds=("amdahl",)),
    Section("batch", "Batches and ragged requests", batch.build, asks=True),
    Section("gqa", "Grouped-query attention", gqa.build, asks=True),
    Section("recall", recall.TITLE, recall.build, asks=True),
    Section("energy", "Energy", energy.build, asks=True),
    Section("environment", "Environment and provenance", environment.build, asks=True),
)
"""In the page's order. A section appears where its builder finds its data."""


class Script(NamedTuple):
    """A <script> element and what the content security policy needs to let it run."""

    tag: Markup
    policy: str


def render(profiles: Sequence[Profile], *, plotlyjs: PlotlyJs = "inline", lead: Sequence[str] = ()) -> str:
    """One HTML page: the verdict of all `profiles` together, then each with its own sections.

    Shards of one grid are joined first. `plotlyjs`: `inline` holds the library (one file, no request), `cdn`
    loads it from plotly's server, `directory` from plotly.min.js beside the page. QuestprofError without a
    profile, and for more than a page holds. `lead`: sentences that stand first.
    """
    if not profiles:
        raise QuestprofError("report", "there is no profile to show", "Name at least one .jsonl profile.")
    limits.refuse_too_many(profiles)
    with uncollected():
        return _render(profiles, plotlyjs, lead)


def _render(profiles: Sequence[Profile], plotlyjs: PlotlyJs, lead: Sequence[str]) -> str:
    originals, copies = without_copies(profiles)
    given = [limits.bounded(profile) for profile in originals]
    merged = merge_profiles(given)
    found = evidence(merged)
    parts = [_part(profile, f"p{i}", found, _members(profile, given)) for i, profile in enumerate(merged, 1)]
    compared, why_not_compared = comparison.build(merged, "comparison", lines(given))
    scripts = [_inline((HERE / "page.js").read_text(encoding="utf-8"))]
    if compared or any(block.num_figures for part in parts for _, _, block in part["sections"]):
        scripts.insert(0, _plotly(plotlyjs))
    pictures = Pictures()
    page = (
        _templates(pictures)
        .get_template("page.html")
        .render(
            first=_first_screen(merged, found, any(part["verdicts"] for part in parts)),
            lead=lead,
            parts=parts,
            comparison=compared,
            notices=(*copies, *filter(None, [why_not_compared])),
            pictures=pictures,
            title=f"questprof: {', '.join(dict.fromkeys(part['device_name'] for part in parts))}",
            version=questprof.__version__,
            style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
            scripts=scripts,
        )
    )
    limits.refuse_too_large(page)
    return page


def _templates(pictures: Pictures) -> Environment:
    """Jinja with everything escaped; `with_pictures` ends a section: its pictures, fewer end tags."""
    found = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_function"] = limits.dumps
    found.globals["count"] = count
    found.filters["with_pictures"] = lambda section: Markup(pictures.add(_END_TAGS.sub("", str(section))))
    return found


def _members(profile: Profile, given: Sequence[Profile]) -> list[Profile]:
    """Which of the profiles that were read are in `profile`, which holds their very records."""
    own = {id(record) for record in profile.records}
    return [one for one in given if one is profile or any(id(record) in own for record in one.records)]


def _first_screen(merged: Sequence[Profile], found: Sequence[Evidence], has_verdicts: bool) -> dict[str, Any]:
    """The question and its answers; without a timed point what there is, and how to get an answer."""
    asked = [one.environment for one in found] or [profile.header.environment for profile in merged]
    devices = ", ".join(dict.fromkeys(environment.device_name for environment in asked))
    questions = {
        "bytes": "Are the bytes really not read?",
        "recall": "What does Quest keep of the attention?",
        "eval": "What does Quest keep of the answers?",
    }
    kinds = {record.kind for profile in merged for record in profile.records}
    question = questions.get(next(iter(kinds), "")) if len(kinds) == 1 else None
    return {
        "question": question or f"Does Quest pay off on {devices}?",
        "answers": [
            {"answer": answer, "used": _names(one.used), "apart": one.apart if i == 0 else ()}
            for one in found
            for i, answer in enumerate(answers(one))
        ],
        "fallback": "" if found else fallback(merged, has_verdicts),
    }


def _names(profiles: Sequence[Profile]) -> str:
    return ", ".join(profile.name for profile in profiles if profile.name)


def write_report(
    profiles: Sequence[Profile],
    path: Path,
    plotlyjs: PlotlyJs = "inline",
    force: bool = False,
    lead: Sequence[str] = (),
) -> Path:
    """Write the page of `profiles` to `path` (and plotly.min.js beside it with `directory`); returns `path`.

    `lead`: sentences that stand first, such as the answer of `decide`, and below it what goes with it.

    QuestprofError when a file exists that would change, unless `force`, and when it cannot be written.
    """
    files = {path: render(profiles, plotlyjs=plotlyjs, lead=lead)}
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
            write_whole(target, text.encode())
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def _part(
    profile: Profile, uid: str, found: Sequence[Evidence], members: Sequence[Profile]
) -> dict[str, Any]:
    """One profile: its head, its verdicts, its sections as (id, title, Block)."""
    env, page = profile.header.environment, Context(found, lines(members), members)
    sections = [
        (f"{uid}-{section.id}", section.title, block)
        for section in SECTIONS
        if (block := _built(section, profile, f"{uid}-{section.id}", page))
    ]
    return {
        "id": uid,
        "timed_on_cpu": env.device == "cpu" and _is_timed(profile),
        "device_name": env.device_name,
        "num_workers": env.num_workers,
        "started_at": profile.header.started_at,
        "name": profile.name,
        "sections": sections,
        "verdicts": [verdict for _, _, block in sections for verdict in block.verdicts],
    }


def _built(section: Section, profile: Profile, prefix: str, page: Context) -> Block | None:
    block = section.builder(profile, prefix, page) if section.asks else section.builder(profile, prefix)
    if block and section.kinds:
        block.context["section_records"] = page.lines.of_kinds(section.kinds)
    return block


def _is_timed(profile: Profile) -> bool:
    """Whether any time is in it: counts alone are of the kernels, not of the machine that counted them."""
    if any(record.kind in ("sweep", "amdahl") for record in profile.records):
        return True
    return profile.header.roofs is not None or any(record.times_us for record in profile.records)


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
