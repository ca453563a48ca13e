"""The recall section: what Quest's selection keeps, by layer and head, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from questprof.crossover.tables import Table
from questprof.model import Point, Profile
from questprof.recall.answers import finding_tables, sentences, tables
from questprof.recall.answers.display import Pair, paired
from questprof.recall.answers.finding import Answers, between_traces
from questprof.recall.answers.heads import passing_budget
from questprof.report import recall_figures as figures
from questprof.report.panels import Figure, Panel, block
from questprof.report.panels import table as cells
from questprof.report.records import Lines
from questprof.report.section import Block, Context, Verdict

TITLE: Final = "Selection quality"
FEW_PICTURES: Final = 12
"""Panels of a part that all get a picture for readers without scripts: one takes a tenth of a second, 40 KB
at most. Of more, the one that is shown first has it; the table below each holds every number."""
Make = Callable[[Pair, bool, Lines], Iterator[Panel]]
"""(trace, whether there are several, lines of records) -> panels of one part."""


def build(profile: Profile, prefix: str, page: Context) -> Block | None:
    """The section, or None for a profile without rows of recall; times come from all of the page."""
    pairs = paired(profile, _timings(profile, page))
    if not pairs:
        return None
    several = len(pairs) > 1
    chosen = _chosen(pairs[0])
    made = [
        (title, say, [panel for pair in pairs for panel in make(pair, several, page.lines)])
        for title, say, make in PARTS
    ]
    if several:
        made.insert(4, ("Between traces", "", [_panel(tables.trace_table(between_traces(profile)), {})]))
    shown = [
        _part(title, say, panels, f"{prefix}-{i}", chosen)
        for i, (title, say, panels) in enumerate(made, start=1)
        if panels and panels[0].table["rows"]
    ]
    context = {"traces": [_facts(pair) for pair in pairs], "parts": shown}
    verdicts = tuple(
        Verdict(f"{TITLE}: {sentences.title(e.trace)}", tuple(sentences.verdict(e, a))) for e, a in pairs
    )
    num_figures = sum(len(panel.figures) for part in shown for panel in part["panels"]["panels"])
    return Block("recall.html", context, verdicts, num_figures=num_figures)


def _timings(profile: Profile, page: Context) -> list[Profile]:
    """Profiles of the page with times, each once."""
    found = [profile, *(p for one in page.evidence for p in (one.times, *one.other_times))]
    return list({id(one): one for one in found}.values())


def _facts(pair: Pair) -> dict[str, Any]:
    evaluation, found = pair
    return {"title": sentences.title(evaluation.trace), "lines": sentences.findings(found)}


def _part(
    title: str, say: str, panels: Sequence[Panel], prefix: str, chosen: Mapping[str, str]
) -> dict[str, Any]:
    """One part with its own selectors, for panels.html; what agrees with `chosen` is shown first."""
    numbered = [panel._replace(id=f"{prefix}-{i}") for i, panel in enumerate(panels, start=1)]

    def agrees(panel: Panel) -> int:
        return sum(panel.settings.get(name) == value for name, value in chosen.items())

    first = max(numbered, key=agrees, default=None)
    for panel in numbered if len(numbered) > FEW_PICTURES else ():
        for figure in panel.figures:
            figure.spec["picture"] = panel is first
    return {"title": title, "panels": block(say, numbered, first=first).context}


def _chosen(pair: Pair) -> dict[str, str]:
    """What sentences are about: the page size, the least budget whose mean passes, Quest's own policy."""
    evaluation, found = pair
    budgets = evaluation.budgets(found.page_size)
    budget = passing_budget(evaluation, found.page_size) or (budgets[-1] if budgets else 0)
    return {"Page size": str(found.page_size), "Budget": str(budget), "Policy": found.policy}


def _settings(pair: Pair, several: bool, **own: object) -> dict[str, str]:
    """Words of the selectors; the trace is one where the profile has several."""
    named = {"Trace": pair[0].trace.source} if several else {}
    return {**named, **{name.replace("_", " "): str(value) for name, value in own.items()}}


def _panel(
    made: Table, settings: Mapping[str, str], shown: Sequence[Figure] = (), records: str = ""
) -> Panel:
    return Panel("", made.title, settings, shown, cells(made.heads, made.rows, made.note), records)


def _points(pair: Pair, page_size: int, token_budget: int | None = None, policy: str = "") -> list[Point]:
    """Points of the records that a figure is made from; None and '': every budget, every policy."""
    return [
        record.point
        for record in pair[0].records
        if record.point.page_size == page_size
        and token_budget in (None, record.point.token_budget)
        and policy in ("", record.point.policy)
    ]


def _heat_maps(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
    evaluation, _ = pair
    for size, budget, policy in evaluation.cases:
        yield _panel(
            tables.heat_table(evaluation, size, budget, policy),
            _settings(pair, several, Page_size=size, Budget=budget, Policy=policy),
            [figures.heat_map(evaluation, size, budget, policy)],
            lines.of_points(_points(pair, size, budget, policy), "recall"),
        )


def _curves(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
    evaluation, found = pair
    for size in evaluation.page_sizes:
        for policy in evaluation.policies:
            own = [one for one in found.curves if (one.page_size, one.policy) == (size, policy)]
            if own:
                yield _panel(
                    tables.curve_table(own),
                    _settings(pair, several, Page_size=size, Policy=policy),
                    [figures.budget_curves(own, found.suggestion_of(size).dense_layers)],
                    lines.of_points(_points(pair, size, policy=policy), "recall"),
                )


def _budgets(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
    for one in pair[1].suggestions:
        yield _panel(
            tables.budget_table(one, pair[1]),
            _settings(pair, several, Page_size=one.page_size),
            [figures.layer_budgets(one)],
            lines.of_points(_points(pair, one.page_size, 0, "dense"), "recall"),
        )


def _steps(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
    for one in pair[1].steps:
        if len(one.steps) > 1:
            yield _panel(
                tables.step_table(one),
                _settings(pair, several, Page_size=one.page_size),
                [figures.step_curves(one)],
                lines.of_points(_points(pair, one.page_size, 0, "dense"), "recall"),
            )


def _types(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
    for one in pair[1].steps:
        if len(one.types) > 1:
            yield _panel(tables.type_table(one), _settings(pair, several, Page_size=one.page_size))


def _tails(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
    found = pair[1].tails
    if found:
        yield _panel(finding_tables.tail_table(found), _settings(pair, several), [figures.tail_curves(found)])


def _slacks(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
    found = pair[1].slacks
    yield _panel(finding_tables.slack_table(found), _settings(pair, several), [figures.slack_curves(found)])


def _single(make: Callable[[Answers], Table]) -> Make:
    """A part of one table a trace, without a figure."""

    def panels(pair: Pair, several: bool, lines: Lines) -> Iterator[Panel]:
        if (made := make(pair[1])).rows:
            yield _panel(made, _settings(pair, several))

    return panels


PARTS: Final[Sequence[tuple[str, str, Make]]] = (
    ("Budget by layer", "What each layer needs, and what is suggested for it.", _budgets),
    ("Budget curves", "Mass recall of every layer over the budget.", _curves),
    ("From query to query", "How the budget that 95% of the mass needs moves.", _steps),
    ("By type of query", "", _types),
    ("Slack of the boxes", "How far a bound lies above the true maximum of its page.", _slacks),
    (
        "The tail page",
        "How often the newest page is picked where all pages compete, and what that costs.",
        _tails,
    ),
    ("Dense heads", "", _single(lambda found: finding_tables.dense_table(found.dense))),
    (
        "Sparse heads that their boxes fail",
        "",
        _single(lambda found: finding_tables.failed_table(found.failed)),
    ),
    ("Heads that a mean hides", "", _single(lambda found: finding_tables.hidden_table(found.hidden))),
    ("The score gap as a predictor", "", _single(finding_tables.gap_table)),
    ("Speed at equal mass", "", _single(lambda found: finding_tables.equal_table(found.joined))),
    ("Timed points and their mass", "", _single(lambda found: finding_tables.timed_table(found.joined))),
    (
        "Mass recall by layer and head",
        "Every head apart: a mean over heads hides the few that fail.",
        _heat_maps,
    ),
)
"""Title, introduction and maker of the panels, in the section's order: heat maps last, as they are many."""
