"""The bytes section: measured or counted bytes against the formula, stage by stage, with their verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from questprof.bytecheck.judge import judge_profile
from questprof.bytecheck.judgement import Judgement
from questprof.bytecheck.summary import failures, label, summary_lines
from questprof.counts import Source
from questprof.model import Point, Profile
from questprof.report.bytes_figure import stack_figure
from questprof.report.bytes_tables import other_tables, ratio_tables, stage_table, term_table
from questprof.report.evidence import USUAL_BUDGET, USUAL_PAGE_SIZE
from questprof.report.length_scan import shape_text
from questprof.report.section import Block, Verdict, selectors
from questprof.scan import point_key
from questprof.units import count

COUNTED: Final[dict[Source, str]] = {"ncu": "measured", "trace": "counted", "formula": "modelled"}
MAX_FAILURES: Final = 200


def build(profile: Profile, prefix: str) -> Block | None:
    """The section, or None for a profile without records of kind `bytes`."""
    judgements = judge_profile(profile)
    if not judgements:
        return None
    groups: dict[tuple[bytes, Source, str], list[Judgement]] = {}
    for one in judgements:
        for source in one.sources:
            key = (point_key(one.point, seq_len=0, variant=""), source, one.variant)
            groups.setdefault(key, []).append(_only(one, source))
    panels = [
        _panel(f"{prefix}-{i}", source, variant, sorted(found, key=lambda one: one.point.seq_len))
        for i, ((_, source, variant), found) in enumerate(groups.items(), start=1)
    ]
    lines = summary_lines(judgements)
    context = {
        "panels": panels,
        "selectors": selectors([panel["settings"] for panel in panels]),
        "chosen": max(panels, key=_usual_first)["settings"] if panels else {},
        "lines": lines,
        "failures": failures(judgements, MAX_FAILURES),
        "alarms": tuple(dict.fromkeys(alarm for one in judgements for alarm in one.alarms)),
        "ratios": _ratios(judgements),
        "others": other_tables(judgements),
    }
    sentences = tuple(line for line in lines if " points hold, " in line) or lines[:1]
    verdicts = (Verdict("Bytes really read, against the formula", sentences),)
    return Block("bytes.html", context, verdicts, num_figures=sum(bool(panel["figure"]) for panel in panels))


def _usual_first(panel: dict[str, Any]) -> tuple[bool, bool]:
    """Of the page size and the budget that the verdict is about."""
    settings = panel["settings"]
    return settings["Page size"] == str(USUAL_PAGE_SIZE), settings["Budget"] == str(USUAL_BUDGET)


def _only(judgement: Judgement, source: Source) -> Judgement:
    """`judgement` with what one source says; the proof by unmapped pages stands beside hardware counters."""
    from msgspec.structs import replace

    own = (source, "proof") if source == "ncu" else (source,)
    return replace(
        judgement,
        stages=tuple(stage for stage in judgement.stages if stage.source == source),
        findings=tuple(f for f in judgement.findings if f.source in own or f.what == "record"),
    )


def _panel(uid: str, source: Source, variant: str, found: Sequence[Judgement]) -> dict[str, Any]:
    settings = _settings(found[0].point, source, variant)
    tolerances = dict.fromkeys((s.tolerance, s.stage) for one in found for s in one.stages)
    by_text: dict[str, list[str]] = {}
    for text, stage in tolerances:
        by_text.setdefault(text, []).append(stage)
    return {
        "id": uid,
        "title": ", ".join(_words(settings)),
        "settings": settings,
        "source": label(source, variant),
        "counted": COUNTED[source],
        "figure": stack_figure(found, COUNTED[source]),
        "table": stage_table(found),
        "terms": term_table(found[-1]),
        "tolerances": [f"{', '.join(stages)}: {text}" for text, stages in by_text.items()],
    }


def _settings(point: Point, source: Source, variant: str) -> dict[str, str]:
    """What sets one panel apart from another, in the words of the selectors."""
    return {
        "Shape": shape_text(point.shape),
        "Source": label(source, variant),
        "Batch": str(point.batch_size),
        "Page size": str(point.page_size),
        "Budget": str(point.token_budget) if point.token_budget else "dense",
        "Summary": point.summary_layout,
        "Policy": point.policy,
        "Kernels": point.backend,
        "Data": point.data,
        "Page order": point.page_order,
        "Requests": count(len(set(point.seq_lens)), "length") if point.seq_lens else "of one length",
        "Seed": str(point.seed),
    }


_USUAL: Final = {
    "Policy": "quest",
    "Kernels": "questprof",
    "Data": "independent",
    "Page order": "shuffled",
    "Requests": "of one length",
    "Seed": "0",
}


def _words(settings: dict[str, str]) -> list[str]:
    """The settings of a title: shape and source as they are, the unusual ones with their names."""
    bare = ("Shape", "Source")
    return [
        value if name in bare else f"{name.lower()} {value}"
        for name, value in settings.items()
        if _USUAL.get(name) != value
    ]


def _ratios(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """The series and the plane of every setting that has several page sizes."""
    groups: dict[tuple[bytes, Source, str], list[Judgement]] = {}
    for one in judgements:
        for source in one.sources:
            free = {"seq_len": 0, "page_size": 1, "token_budget": 0, "variant": ""}
            groups.setdefault((point_key(one.point, **free), source, one.variant), []).append(
                _only(one, source)
            )
    found = []
    for (_, source, variant), own in groups.items():
        left = {"Page size", "Budget"}
        settings = _settings(own[0].point, source, variant)
        place = ", ".join(_words({name: value for name, value in settings.items() if name not in left}))
        found += [{**table, "place": place} for table in ratio_tables(own)]
    return found
