"""report/recall.py: every figure with its table and source, the numbers of the rows, and text that stays
text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import html_tables
import pytest
from msgspec.structs import replace as changed
from planted_recall import MODEL, Planted, calm_mass
from test_page import HOSTILE

from profiles import dense, profile, quest, two_baselines
from questprof.recall.rows import Span
from questprof.report import recall, render
from questprof.store import read_profile

SMALL = Planted(
    layers=(0, 3),
    page_sizes=(8, 16),
    budgets=(64, 128),
    policies=("quest", "quest-open"),
    pre_rope=6.0,
    segments=(Span("question", 240, 247), Span("answer", 248, 255)),
    needed=lambda layer, head, share, query: 30 if layer == 3 else 3,
)


@pytest.fixture
def section_of(parse):
    """The recall section alone, parsed."""

    def section_of(*profiles):
        html = render(list(profiles), plotlyjs="directory")
        found = re.search(r'<section id="p\d-recall".*?</section>', html, re.S)
        return parse(found[0]) if found else None

    return section_of


def rows_of(section, label: str) -> list[list[str]]:
    """Texts of the table whose region is labelled so."""
    region = re.search(rf'aria-label="Table: {re.escape(label)}.*?</table>', section.html, re.S)
    cells = html_tables.texts(region[0])
    return [[" ".join(re.sub("<[^>]*>", " ", text).split()) for text in row] for row in cells]


def test_there_is_no_section_without_recall(section_of) -> None:
    assert section_of(profile(*two_baselines())) is None


def test_the_verdict_is_on_the_page_and_the_findings_in_the_section(parse, section_of) -> None:
    page = parse(render([SMALL.profile()], plotlyjs="directory"))
    assert "Selection quality: made-up, text.txt, 16 queries with 241 to 256 tokens of context" in page.text
    assert "layer 3 needs so much that dense attention is the better choice" in page.text
    section = section_of(SMALL.profile())
    assert "No head is dense" in section.html
    assert "Whether boxes fail sparse heads is not known" in section.html


def test_a_heat_map_for_every_page_size_budget_and_policy(section_of) -> None:
    """2 x 2 x 2 maps; at 64 tokens every head keeps 0.9, at 128 0.95."""
    section = section_of(SMALL.profile())
    maps = [figure for figure in section.figures if figure["data"][0]["type"] == "heatmap"]
    assert len(maps) == 8
    for figure in maps:
        (trace,) = figure["data"]
        assert (trace["x"], trace["y"]) == (["0", "1", "2"], ["0", "3"])
        assert {mass for row in trace["z"] for mass in row} <= {90, 95}
    rows = rows_of(section, "Mass recall by layer and head: page 16, budget 128, quest")
    assert rows[0] == ["layer", "head 0", "head 1", "head 2"]
    assert rows[1:] == [["0", "0.950", "0.950", "0.950"], ["3", "0.950", "0.950", "0.950"]]
    names = {attrs["data-setting"] for attrs, _ in section.all("select")}
    assert names == {"Page size", "Budget", "Policy"}


def test_a_head_in_the_map_is_that_of_its_row(section_of) -> None:
    """Layer 3 head 1 alone keeps 0.25; the map's row is the layer, its column the head."""
    planted = replace(SMALL, mass=lambda a, b, *rest: 0.25 if (a, b) == (3, 1) else calm_mass(a, b, *rest))
    section = section_of(planted.profile())
    (trace,) = next(f["data"] for f in section.figures if f["data"][0]["type"] == "heatmap")
    assert [[mass == 25 for mass in row] for row in trace["z"]] == [[False] * 3, [False, True, False]]


def test_a_kept_page_holds_its_library_and_is_small() -> None:
    """78 records, 75 maps of 270 heads: a page with the library in it stays below 6 MB."""
    kept = read_profile(Path(__file__).parents[2] / "profiles" / "smollm2-135m" / "recall.jsonl")
    assert len(render([kept], plotlyjs="inline").encode()) < 5.9e6


def test_points_share_one_hover_text(section_of) -> None:
    """Of a map, and of a curve: what differs is in plotly's variables, not in a text a point."""
    for figure in section_of(SMALL.profile()).figures:
        for trace in figure["data"]:
            if trace["type"] == "heatmap" or trace["name"] == "mean over layers":
                assert trace["hovertemplate"].endswith("of the mass, counted<extra></extra>")
                assert list(trace["meta"]) == ["role"]


def test_of_many_maps_the_first_that_is_shown_has_a_picture(monkeypatch) -> None:
    """8 maps for readers without scripts, or one: that of page 16, 64 tokens, quest."""

    def pictures() -> list[str]:
        html = render([SMALL.profile()], plotlyjs="directory")
        panels = re.findall(r'<div class="panel".*?(?=<div class="panel"|$)', html, re.S)
        maps = [panel for panel in panels if '"heatmap"' in panel and "<svg" in panel]
        return [re.search(r"<h3>(.*?)</h3>", panel)[1] for panel in maps]

    assert len(pictures()) == 8
    monkeypatch.setattr(recall, "FEW_PICTURES", 7)
    assert pictures() == ["Mass recall by layer and head: page 16, budget 64, quest"]


def test_every_figure_stands_over_a_table_and_names_its_source(section_of) -> None:
    section = section_of(SMALL.profile())
    panels = re.findall(r'<div class="panel".*?(?=<div class="panel"|$)', section.html, re.S)
    drawn = [panel for panel in panels if "figure-data" in panel]
    assert len(drawn) == 8 + 4 + 2 + 2 + 1 + 1  # maps, curves, budgets, steps, slack, tail
    for panel in drawn:
        assert "<table>" in panel
        caption = re.search(r"<figcaption>(.*?)</figcaption>", panel, re.S)[1]
        assert "counted: " in caption


def test_curves_of_the_layers_and_their_mean(section_of) -> None:
    section = section_of(SMALL.profile())
    figure = next(f for f in section.figures if f["data"][-1].get("name") == "mean over layers")
    by_name = {trace["name"]: trace for trace in figure["data"]}
    assert by_name["mean over layers"]["y"] == pytest.approx([0.9, 0.95])
    assert by_name["layers better left dense"]["hovertemplate"].startswith("layer 3, budget %{x:d}: ")
    assert sum(trace.get("showlegend", True) for trace in figure["data"]) == 3


def test_budgets_by_layer_worked_by_hand(section_of) -> None:
    """Pages of 8, 32 of them: layer 0 needs 3 (by the oracle 2), 1/8 + 3/32 = 0.219; layer 3 30, 1.0625."""
    rows = rows_of(section_of(SMALL.profile()), "Budget by layer: page 8")
    assert rows[1][4:9] == ["16", "0.0: 24", "24", "0.219", "100%"]
    assert rows[2][6:8] == ["dense", "1"]


def test_needs_slack_and_types(section_of) -> None:
    section = section_of(SMALL.profile())
    types = rows_of(
        section, "Tokens with which 90% of the heads keep 95% of the mass, by type of query: page 16"
    )
    assert [row[:3] for row in types[1:]] == [["question", "8", "240–247"], ["answer", "8", "248–255"]]
    slack = rows_of(section, "Slack of the boxes by page size")
    assert slack[0] == [
        "page",
        "mean",
        "p10",
        "p50",
        "p90",
        "p99",
        "tail pages",
        "before RoPE",
        "question",
        "answer",
    ]
    assert slack[1] == ["8", "8.00", "6.00", "8.00", "10.00", "11.00", "4.00", "6.00", "8.00", "8.00"]


def test_times_of_another_profile_are_joined(section_of) -> None:
    """`report recall.jsonl sweep.jsonl`: 0.95 of the mass at 128 tokens, 40 us against 20 us."""
    sweep = profile(dense(256, 40.0, shape=MODEL), quest(256, (5.0, 5.0, 10.0), budget=128, shape=MODEL))
    alone = section_of(SMALL.profile())
    assert "Speed at equal mass" not in alone.html
    section = section_of(SMALL.profile(), sweep)
    rows = rows_of(section, "Speed at equal mass")
    assert rows[1][2:] == ["95%", "16", "quest", "128", "20.0", "40.0", "2.00x", ""]
    assert "no measured budget reaches it, 128 keeps 95.0%" in section.html
    assert "measured: clock" in section.html


def test_several_traces_have_a_selector_and_a_table(section_of) -> None:
    section = section_of(SMALL.profile(replace(SMALL, trace_id="b", source="b.safetensors")))
    (trace, *_) = [attrs for attrs, _ in section.all("select") if attrs["data-setting"] == "Trace"]
    assert trace
    rows = rows_of(section, "Tokens that 95% of the mass needs, by trace")
    assert [row[0] for row in rows[1:]] == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_profile_stays_text(parse, text: str) -> None:
    def hostile(word: str):
        few = replace(SMALL, page_sizes=(16,), source=word, generation=word, segments=(Span(word, 240, 250),))
        return few.profile(replace(few, trace_id="b"))

    def with_names(word: str):
        made = hostile(word)
        records = tuple(named(record, word) for record in made.records)
        return changed(made, records=records, name=word)

    def named(record, word: str):
        if not (record.rows and record.rows.trace):
            return record
        trace = changed(record.rows.trace, model=word, text=word)
        return changed(record, rows=changed(record.rows, trace=trace))

    page = parse(render([with_names(text)], plotlyjs="directory"))
    calm = parse(render([with_names("calm")], plotlyjs="directory"))
    assert [tag for tag, _, _ in page.elements] == [tag for tag, _, _ in calm.elements]
    assert "<" not in "".join(re.findall(r'figure-data">(.*?)</script>', page.html, re.S))
    assert text in page.text
