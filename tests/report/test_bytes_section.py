"""report/bytes.py: counted bytes on the page, with the numbers of the judgements; text stays text."""

from __future__ import annotations

import re

import html_tables
import pytest
from bytes_records import BIG, MIB, POINT, PROVEN, chain_reads, measured, refused, traced
from msgspec.structs import replace
from test_page import HOSTILE

from profiles import GPU, profile, two_baselines
from questprof.counts import StageCount
from questprof.model import Shape
from questprof.report import render
from questprof.scan import scan_rows


@pytest.fixture
def page_of(parse):
    def page_of(*records, **header):
        return parse(render([profile(*records, **header)], plotlyjs="directory"))

    return page_of


@pytest.fixture
def section_of(page_of, parse):
    """The bytes section alone, parsed."""

    def section_of(*records, **header):
        page = page_of(*records, **header)
        found = re.search(r'<section id="p1-bytes".*?</section>', page.html, re.S)
        return parse(found[0]) if found else None

    return section_of


def rows_of(section, label: str) -> list[list[str]]:
    """Texts of the table whose region is labelled so."""
    region = re.search(rf'aria-label="Table: {re.escape(label)}.*?</table>', section.html, re.S)
    cells = html_tables.texts(region[0])
    return [[" ".join(re.sub("<[^>]*>", "", text).split()) for text in row] for row in cells]


def grid():
    """2k, 8k, 32k in pages of 8, 16, 32 with budgets 1024 and 2048: 64 KiB more than predicted in score."""
    found = []
    for seq_len in (2048, 8192, 32768):
        for page_size in (8, 16, 32):
            for budget in (1024, 2048):
                point = replace(BIG, seq_len=seq_len, page_size=page_size, token_budget=budget)
                pipelined = chain_reads(point) - (1 << 16)
                found.append(measured(point, reads={"score": 1 << 16}, pipelined=pipelined, proof=PROVEN))
    return found


def test_there_is_no_section_without_counted_points(page_of):
    page = page_of(*two_baselines())
    assert "p1-bytes" not in page.html
    assert "Does Quest pay off" in page.text


def test_sweep_sections_leave_bytes_records_aside(page_of):
    both = profile(*two_baselines(), traced(), measured(pipelined=chain_reads()))
    assert scan_rows(both) == scan_rows(profile(*two_baselines()))
    ids = [attrs["id"] for attrs, _ in page_of(*both.records).all("section")]
    assert [name for name in ids if name in ("p1-length-scan", "p1-baselines", "p1-bytes")] == [
        "p1-length-scan",
        "p1-baselines",
        "p1-bytes",
    ]
    alone = [attrs["id"] for attrs, _ in page_of(traced()).all("section")]
    assert not {"p1-length-scan", "p1-baselines"} & set(alone)


def test_the_verdict_opens_the_page(page_of):
    page = page_of(traced(), measured(reads={"attend": -32 * MIB}))
    said = page.html.split('class="verdict"')[1].split("</div>")[0]
    assert "Bytes really read, against the formula" in said
    assert "1 of 1 points hold, counted: address trace (triton): K, V and summary to the byte." in said
    assert "0 of 1 points hold, measured: hardware counters (cuda). 1 fail: K without V." in said
    assert "No verdict" not in page.text


def test_stages_by_length_worked_by_hand(section_of):
    """dense at 4k: 2 MiB of K and V; beside it q, block table, indptr, partials, as the ledger itemises."""
    section = section_of(traced(), traced(replace(POINT, seq_len=8192)))
    rows = rows_of(section, "bytes by stage")
    assert rows[0][:3] == ["point", "dense", "score"]
    assert rows[1][:5] == ["length", "verdict", "counted", "formula", "residual"]
    assert rows[2][:5] == ["4k", "ok", "2.003 MiB", "2.003 MiB", "0.00 %"]
    assert rows[2][-2:] == ["0.3125", "0.3125"]  # 1/16 + 64/256
    assert rows[3][-2:] == ["0.1875", "0.1875"]  # 1/16 + 64/512
    (terms,) = [rows_of(section, "8k, page 16, budget 1k")]
    assert ["score", "summary*", "262144", "0", "262144", "0"] in terms


def test_a_failure_is_marked_in_its_cell_and_told(section_of):
    section = section_of(traced(changes={"attend": {"v": None}}))
    marked = section.all("td", class_="alarmed")
    assert [text for _, text in marked][:1] == ["K without V"]
    assert any("V was not read" in attrs.get("title", "") for attrs, _ in marked)
    (_, told) = section.all("div", aria_label="What does not hold")[0]
    assert "attend (trace, triton) read 259.3 KiB, 515.3 KiB predicted (-49.68 %): K without V" in told


def test_an_alarm_refuses_a_figure(section_of):
    fast = {"dense": {"gpu__time_duration.sum": 1000.0}}
    section = section_of(measured(metrics=fast))
    (_, said) = section.all("div", aria_label="Alarms: impossible counts")[0]
    assert "above 1.02 x the measured read ceiling of 1000 GB/s" in said
    assert section.figures == []  # no ratio without dense
    assert "dense" not in rows_of(section, "bytes by stage")[0]


def test_the_figure_stacks_the_terms_under_the_mark(section_of):
    """4k: 1/16 of summary, 1/8 of K and of V, the rest itemised; the mark is their sum."""
    section = section_of(traced(), traced(replace(POINT, seq_len=8192)))
    (figure,) = section.figures
    assert figure["layout"]["barmode"] == "stack"
    bars = {trace["name"]: trace for trace in figure["data"]}
    names = ("summary, eq. (10)", "selected K, eq. (11)", "selected V, eq. (11)")
    # over all that dense reads, so that a share is a little below that of equation (12)
    assert [bars[name]["y"][0] for name in names] == pytest.approx([1 / 16, 1 / 8, 1 / 8], rel=1e-2)
    for i in (0, 1):
        total = sum(trace["y"][i] for trace in figure["data"] if trace["type"] == "bar")
        assert bars["counted"]["y"][i] == pytest.approx(total, rel=1e-4)
    assert bars["counted"]["x"] == ["4k", "8k"]
    assert bars["selected K, eq. (11)"]["meta"]["hover"][0].startswith(
        "4k tokens, selected K, eq. (11): 256 KiB"
    )


def test_the_series_over_page_sizes_and_the_plane(section_of):
    """32k, S = 16, B = 2048: 1/16 + 128/2048 = 0.125 exactly by (12)."""
    section = section_of(*grid())
    series = rows_of(section, "Read ratio by length and page size, budget 2048")
    assert series[0] == ["length", "S = 8", "S = 16", "S = 32"]
    assert [row[0] for row in series[1:]] == ["2k", "8k", "32k"]
    assert re.fullmatch(r"0\.12\d\d \(0\.1250, \+0\.\d\d %\)", series[3][2])
    plane = rows_of(section, "Read ratio by page size and budget, length 32k")
    assert plane[0] == ["page size", "B = 1024", "B = 2048"]
    assert plane[2][2] == series[3][2]
    assert [row[0] for row in plane[1:]] == ["8", "16", "32"]


def test_one_panel_a_setting_and_a_selector_for_what_varies(section_of):
    section = section_of(*grid())
    assert len(section.all("div", class_="panel")) == 6
    assert [attrs["data-setting"] for attrs, _ in section.all("select")] == ["Page size", "Budget"]
    assert len(section.figures) == 6


def test_sources_are_never_mixed(section_of):
    """A trace and hardware counts of one point: a panel each, beside each other in one table only."""
    few = replace(BIG, shape=Shape("big*", 2, 2, 128))
    section = section_of(traced(few), measured())
    titles = [text for _, text in section.all("h3")]
    assert any("counted: address trace (triton)" in title for title in titles)
    assert any("measured: hardware counters (cuda)" in title for title in titles)
    rows = rows_of(section, "Both sources, bytes a KV head")
    assert rows[1][:6] == ["64k, page 16, budget 4k", "score", "triton", "2 MiB", "+0 B", "cuda"]


def test_reuse_calibration_proof_and_gather_have_tables(section_of):
    isolated = chain_reads()
    record = measured(pipelined=isolated - MIB, proof=PROVEN)
    attend = next(count for count in record.counts if count.stage == "attend")
    moved = attend.read + attend.write
    copied = StageCount("gather", "ncu", moved, 2 * moved)
    section = section_of(replace(record, counts=(*record.counts, copied)))
    (reuse,) = rows_of(section, "Reuse between stages")[1:]
    assert reuse[-2:] == ["1 MiB", f"{100 * MIB / isolated:.2f} %"]
    (error,) = rows_of(section, "The counter&#39;s own error")[1:]
    assert error == ["measured: hardware counters", "268435456 B", "268476416 B", "+0.015 %", "ok"]
    (proof,) = rows_of(section, "Proof on the device")[1:]
    assert proof[1:] == ["2 MiB", "512 MiB", "3000", "completed"]
    (gather,) = rows_of(section, "Attention over a gathered copy")[1:]
    assert gather[4:] == ["3.00x", "–", "–"]


def test_points_that_nothing_could_count_are_told(section_of, page_of):
    section = section_of(refused(reason="ncu was not found"))
    assert "Not counted: unavailable: ncu was not found (4k, page 16, budget 1k)." in section.html
    assert not section.all("table")
    assert "Not counted" in page_of(refused(reason="ncu was not found")).html.split('class="verdict"')[1]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_profile_stays_text(parse, text):
    def hostile(word: str):
        shape = replace(POINT.shape, name=word)
        point = replace(POINT, shape=shape)
        record = traced(point, status="wrong", reason=word)
        record = replace(record, variant=word, proof=replace(PROVEN, completed=False, reason=word))
        count = replace(record.counts[0], stage=word)
        other = measured(replace(point, page_size=8), counter_calibration=(), metrics={"score": {word: 1.0}})
        records = (replace(record, counts=(*record.counts, count)), other, refused(point, reason=word))
        return profile(*records, env=replace(GPU, device_name=word))

    page = parse(render([hostile(text)], plotlyjs="directory"))
    calm = parse(render([hostile("calm")], plotlyjs="directory"))
    assert [tag for tag, _, _ in page.elements] == [tag for tag, _, _ in calm.elements]
    for (_, ours, _), (_, theirs, _) in zip(page.elements, calm.elements, strict=True):
        assert ours.keys() == theirs.keys()
    assert "<" not in "".join(re.findall(r'figure-data">(.*?)</script>', page.html, re.S))
    assert text in page.text
