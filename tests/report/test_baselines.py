"""baselines.py: every baseline and every layout beside each other, with the numbers of the rows."""

from __future__ import annotations

import re

import html_tables
import pytest
from msgspec.structs import replace

from profiles import GQA_SHAPE, READ_1000, dense, profile, quest, two_baselines
from questprof.report import render


@pytest.fixture
def tables_of(parse):
    """(title, rows of cell texts) of the section's tables; a cell that spans rows is repeated."""

    def found(*records, **header):
        page = parse(render([profile(*records, **header)], plotlyjs="directory"))
        section = re.search(r'<section id="p1-baselines".*?</section>', page.html, re.S)
        if not section:
            return []
        part = parse(section[0])
        titles = [text for _, text in part.all("h3")]
        bodies = re.findall(r"<table>.*?</table>", section[0], re.S)
        return [(title, _grid(parse(body))) for title, body in zip(titles, bodies, strict=True)]

    return found


def _grid(table) -> list[list[str]]:
    """Texts by row and column, a spanning cell in every row (not column) that it covers."""
    grid: dict[tuple[int, int], str] = {}
    for y, html_row in enumerate(html_tables.rows(table.html)):
        x = 0
        for attrs, text in html_row:
            while (y, x) in grid:
                x += 1
            span = re.search(r'rowspan="(\d+)"', attrs)
            for below in range(int(span[1]) if span else 1):
                grid[y + below, x] = " ".join(re.sub("<[^>]*>", " ", text).split())
            x += 1
    height = max(y for y, _ in grid) + 1
    return [[grid[place] for place in sorted(grid) if place[0] == y] for y in range(height)]


def test_a_line_worked_by_hand(tables_of):
    """8k: paired 36 / 12 = 3 of 1 / (1/16 + 64/512) = 5.33; transposed 30 / 6 = 5 of 6.4, half the index.

    4194304 bytes are read in 4.194304 us: 36 us are 8.58 of them.
    """
    transposed = {"summary_layout": "transposed"}
    record = quest(8192, (2.0, 2.0, 2.0), **transposed)
    record = replace(record, floor_bytes={"score": 131072, "attend": 524288, "quest": 655360})
    records = [
        replace(dense(8192, 36.0, calibration=(READ_1000,)), variant="cuda"),
        dense(8192, 40.0, backend="sdpa"),
        quest(8192, (4.0, 2.0, 6.0)),
        replace(dense(8192, 30.0, **transposed), variant="cuda"),
        record,
    ]
    ((title, rows),) = tables_of(*records)
    assert title == "toy (fp16), batch 1, page 16"
    ways = ["quest, questprof, paired", "quest, questprof, transposed"]
    assert rows[0] == ["point", *ways, "dense, us (x read)"]
    figures = ["us", "speed-up", "at most"]
    assert rows[1] == ["length", "budget", *figures, *figures, "questprof cuda", "sdpa"]
    shown = [*("12.0", "3.00x", "5.33x"), *("6.00", "5.00x", "6.40x")]
    assert rows[2] == ["8k", "1024", *shown, "36.0 (8.58)", "40.0"]


def test_budgets_of_a_length_share_its_baselines(tables_of):
    ((_, rows),) = tables_of(*two_baselines())
    assert [row[:2] + row[-2:] for row in rows[2:6]] == [
        ["2k", "1024", "12.0", "10.0"],
        ["2k", "4096", "12.0", "10.0"],
        ["4k", "1024", "20.0", "20.0"],
        ["4k", "4096", "20.0", "20.0"],
    ]
    assert len(rows) == 2 + 5 * 2


def test_the_fastest_baseline_and_the_largest_speed_up_are_bold(parse):
    page = parse(render([profile(*two_baselines())], plotlyjs="directory"))
    bold = [text for _, text in page.all("strong")]
    assert bold[:3] == ["0.95x", "10.0", "0.44x"]  # 2k: 10 / 10.5, sdpa, 10 / 22.5
    assert "36.0" in bold


def test_missing_figures_are_dashes_with_reasons(parse):
    records = [
        dense(8192, 36.0),
        dense(8192, None, backend="fa3", status="unavailable", reason="not installed"),
        quest(8192, None, status="oom", reason="needs 3 GiB"),
        quest(8192, (1.0, 1.0, 1.0), budget=2048, backend="triton"),
    ]
    page = parse(render([profile(*records)], plotlyjs="directory"))
    section = page.html.split('id="p1-baselines"')[1].split("</section>")[0]
    assert 'title="unavailable: not installed">–' in section
    assert 'title="oom: needs 3 GiB">–' in section
    assert 'title="not in this run">–' in section
    assert not re.search(r"<td>–", section)


def test_one_baseline_and_one_way_need_no_section(tables_of):
    assert tables_of(dense(8192, 36.0), quest(8192, (1.0, 1.0, 1.0))) == []


def test_caches_apart_and_queries_together(tables_of):
    records = []
    for point in ({}, {"data": "ramp"}, {"page_order": "scattered"}):
        records += [
            dense(8192, 36.0, shape=GQA_SHAPE, backend=name, **point) for name in ("questprof", "sdpa")
        ]
        records.append(quest(8192, (1.0, 1.0, 1.0), shape=GQA_SHAPE, **point))
    records.append(quest(8192, (1.0, 1.0, 1.0), shape=GQA_SHAPE, data="shared"))
    found = tables_of(*records)
    name = "toy-gqa (fp16), batch 1, page 16"
    assert [title for title, _ in found] == [name, f"{name}, ramp keys", f"{name}, scattered pages"]
    ways = found[0][1][0][1:-1]
    assert ways == [
        "quest, questprof, paired, independent queries",
        "quest, questprof, paired, shared queries",
    ]


def test_text_of_a_profile_stays_text(parse):
    hostile = "<img src=x onerror=alert(1)>"
    records = [
        dense(8192, 36.0, backend=hostile),
        dense(8192, 40.0),
        quest(8192, (1.0, 1.0, 1.0), variant=hostile),
    ]
    page = parse(render([profile(*records)], plotlyjs="directory"))
    assert not page.all("img")
