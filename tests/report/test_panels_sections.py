"""plane, batch, gqa, energy, comparison: figures and tables worked by hand, and absent without data."""

from __future__ import annotations

import math
import re

import html_tables
import pytest
from bytes_records import traced
from msgspec.structs import replace

from profiles import GQA_SHAPE, SHAPE, dense, profile, quest, two_baselines
from questprof.model import Energy, Point
from questprof.report import render


@pytest.fixture
def section_of(parse):
    """One section of the page of some profiles, parsed; None where it is absent."""

    def section_of(name: str, *profiles):
        found = re.search(
            rf'<section id="(?:p1-)?{name}".*?</section>', render(list(profiles), plotlyjs="cdn"), re.S
        )
        return parse(found[0]) if found else None

    return section_of


def body(section) -> list[list[str]]:
    """Texts of the first table's rows."""
    return html_tables.texts(section.html.split("<tbody>")[1].split("</tbody>")[0])


def grid(**point):
    """Pages 16 and 32, budgets 512 and 1024 at 8k: Quest takes budget / 64 + 128 / page us, dense 64."""
    found = []
    for size in (16, 32):
        found.append(dense(8192, 64.0, page_size=size, **point))
        found += [
            quest(8192, (128 / size, 1.0, budget / 64 - 1), budget=budget, page_size=size, **point)
            for budget in (512, 1024)
        ]
    return found


@pytest.mark.parametrize("name", ["plane", "batch", "gqa", "energy", "comparison"])
def test_a_section_without_its_data_is_absent(section_of, name):
    assert section_of(name, profile(*two_baselines())) is None


def test_the_plane_worked_by_hand(section_of):
    """16 / 512: 8 + 8 = 16 us, 4x; 32 / 1024: 4 + 16 = 20 us, 3.2x. rho = 1/S + B/L."""
    section = section_of("plane", profile(*grid()))
    speed, ratio = section.figures
    (cells,) = speed["data"]
    assert (cells["x"], cells["y"]) == (["512", "1024"], ["16", "32"])
    assert cells["z"] == [[4.0, pytest.approx(64 / 24, rel=1e-5)], [pytest.approx(64 / 12, rel=1e-5), 3.2]]
    assert cells["text"][0] == ["4.0x", "2.7x"]
    assert ratio["data"][0]["z"] == [[1 / 16 + 1 / 16, 1 / 16 + 1 / 8], [1 / 32 + 1 / 16, 1 / 32 + 1 / 8]]
    assert [row[:3] for row in body(section)] == [
        ["16", "512", "16.0"], ["16", "1024", "24.0"], ["32", "512", "12.0"], ["32", "1024", "20.0"]
    ]  # fmt: skip
    assert "No counted bytes" in section.html
    assert "Records: profile 1, lines 2–7" in section.html


def test_the_plane_joins_counted_bytes(section_of):
    counted = [traced(Point(SHAPE, 8192, page_size=s, token_budget=b)) for s in (16, 32) for b in (512, 1024)]
    section = section_of("plane", profile(*grid()), profile(*counted))
    assert "bytes over dense\ncounted: address trace".replace("\n", "<br>") in section.html
    assert len(section.figures) == 3
    assert "No counted bytes" not in section.html


def test_bytes_of_another_layout_of_the_summary_are_not_of_the_plane(section_of):
    """A transposed summary is read in half: counts of a paired one beside it would seem a failed check."""
    counted = [traced(Point(SHAPE, 8192, page_size=s, token_budget=b)) for s in (16, 32) for b in (512, 1024)]
    section = section_of("plane", profile(*grid(summary_layout="transposed")), profile(*counted))
    assert "counted: address trace" not in section.html
    assert "No counted bytes" in section.html


def test_lengths_within_the_budget_are_no_plane(section_of):
    short = [dense(512, 9.0, page_size=s) for s in (16, 32)]
    short += [quest(512, (1.0, 1.0, 1.0), budget=b, page_size=s) for s in (16, 32) for b in (512, 1024)]
    assert section_of("plane", profile(*short)) is None


def test_batches_and_ragged_requests(section_of):
    """Batch 4 at 8k: 40 us dense, 10 us Quest: 4x, 2.5 us a request. 2k, 4k, 8k, 8k: 5.5k on average."""
    ragged = {"batch_size": 4, "seq_lens": (2048, 4096, 8192, 8192)}
    records = [
        dense(8192, 10.0), quest(8192, (1.0, 1.0, 3.0)),
        dense(8192, 40.0, batch_size=4), quest(8192, (2.0, 2.0, 6.0), batch_size=4),
        dense(8192, 30.0, **ragged), quest(8192, (2.0, 2.0, 6.0), **ragged),
    ]  # fmt: skip
    section = section_of("batch", profile(*records))
    assert [(row[0], row[4], row[5]) for row in body(section)] == [
        ("1 x 8k", "2.0x", "5.00"),
        ("4 x 8k", "4.0x", "2.50"),
        ("4 ragged, 2k to 8k, 5.5k on average", "3.0x", "2.50"),
    ]
    equal, uneven = section.figures[0]["data"]
    assert (equal["x"], equal["y"], uneven["x"], uneven["y"]) == ([1, 4], [2.0, 4.0], [4], [3.0])
    assert equal["marker"]["symbol"] != uneven["marker"]["symbol"]


def test_groups_show_their_union(section_of):
    shape = {"shape": GQA_SHAPE}
    records = [dense(8192, 10.0, **shape)]
    records += [
        quest(8192, (1.0, 1.0, us - 2), data=data, union_ratio=union, **shape)
        for data, us, union in (("independent", 8.0, 3.5), ("shared", 4.0, 1.0))
    ]
    section = section_of("gqa", profile(*records))
    assert [(row[2], row[6], row[7]) for row in body(section)] == [
        ("independently", "1.25x", "3.500"), ("the same pages", "2.5x", "1.000")
    ]  # fmt: skip
    assert "4 query heads a KV head" in section.html


def test_energy_worked_by_hand(section_of):
    """Dense: 8 J over 4 launches of a layer, 32 layers: 64 J a token, 4 W. Quest half of it."""
    records = [
        dense(8192, 10.0, energy={"dense": Energy(8.0, 2.0, 4)}),
        quest(8192, (1.0, 1.0, 3.0), energy={"quest": Energy(4.0, 2.0, 4), "score": Energy(1.0, 2.0, 4)}),
    ]
    section = section_of("energy", profile(*records))
    assert body(section) == [
        ["8k", "dense, questprof", "dense", "2", "64", "4"],
        ["8k", "Quest, budget 1024", "quest", "1", "32", "2"],
        ["8k", "Quest, budget 1024", "score", "0.25", "8", "0"],
    ]
    assert [(trace["name"], trace["y"]) for trace in section.figures[0]["data"]] == [
        ("dense, questprof", [64.0]),
        ("Quest, budget 1024", [32.0]),
    ]


def test_energy_has_the_colours_of_the_length_scan_and_titles_what_the_panel_shares(section_of):
    """Dense in grey, told apart by marks and dashes; a title of the cache, not of the first record."""
    records = [
        dense(8192, 10.0, energy={"dense": Energy(8.0, 2.0, 4)}, summary_layout="transposed"),
        dense(8192, 11.0, energy={"dense": Energy(9.0, 2.0, 4)}, summary_layout="transposed", backend="sdpa"),
        quest(8192, (1.0, 1.0, 3.0), energy={"quest": Energy(4.0, 2.0, 4)}, summary_layout="transposed"),
    ]
    section = section_of("energy", profile(*records))
    drawn = section.figures[0]["data"]
    assert [trace["meta"]["role"] for trace in drawn] == ["dense", "dense", "quest"]
    assert len({(trace["line"]["dash"], trace["marker"]["symbol"]) for trace in drawn}) == 3
    assert drawn[0]["line"]["dash"] != drawn[1]["line"]["dash"]
    assert drawn[2]["name"] == "Quest, budget 1024, transposed"
    assert "batch 1, page 16</h3>" in section.html


def test_energy_of_both_layouts_has_a_name_and_a_curve_for_each(section_of):
    """8 J and 4 J over 4 launches of 32 layers: 64 and 32 J a token; each figure names its own two lines."""
    records = [
        dense(8192, 10.0, energy={"dense": Energy(8.0, 2.0, 4)}),
        dense(8192, 10.0, energy={"dense": Energy(4.0, 2.0, 4)}, summary_layout="transposed"),
        dense(8192, 10.0, backend="sdpa"),
    ]
    section = section_of("energy", replace(profile(*records), name="run.jsonl"))
    assert [(trace["name"], trace["y"]) for trace in section.figures[0]["data"]] == [
        ("dense, questprof", [64.0]),
        ("dense, questprof, transposed", [32.0]),
    ]
    assert "Records: run.jsonl, lines 2–3." in section.html


@pytest.mark.parametrize("bad", [Energy(-1.0, 2.0, 4), Energy(1.0, 0.0, 4), Energy(1.0, 2.0, 0)])
def test_energy_that_no_meter_reads_is_not_shown(section_of, bad):
    assert section_of("energy", profile(dense(8192, 10.0, energy={"dense": bad}))) is None


def test_two_runs_are_compared_and_a_slower_one_is_found(parse, section_of):
    """Every stage of the new run takes 1.5 times as long: far beyond 3 % + 0.5 us."""
    long = [dense(32768, 400.0), quest(32768, (40.0, 40.0, 120.0)), dense(65536, 800.0)]
    many = [replace(r, times_us={s: t * 20 for s, t in r.times_us.items()}) for r in long]
    slow = [replace(r, times_us={s: tuple(1.5 * x for x in t) for s, t in r.times_us.items()}) for r in many]
    given = replace(profile(*many), name="base.jsonl"), replace(profile(*slow), name="new.jsonl")
    section = section_of("comparison", *given)
    assert "new.jsonl against base.jsonl: slower" in section.html
    rows = {(row[0].split()[0], row[1]): row for row in body(section)}
    assert rows["32k/1k", "attend"][4] == "1.500x"
    assert rows["32k/1k", "attend"][6:8] == ["22%", "slower"]
    attend = next(trace for trace in section.figures[0]["data"] if trace["name"] == "attend")
    assert (attend["x"], attend["y"]) == ([120.0], [1.5])
    assert all(low >= 0 for low in attend["error_y"]["arrayminus"])
    assert "base.jsonl, line" in section.html
    assert "new.jsonl, line" in section.html
    page = parse(render(list(given), plotlyjs="cdn"))
    assert "#comparison" in [attrs["href"] for attrs, _ in page.all("a")]


def test_a_few_points_of_a_grid_again_are_no_second_run_of_it(section_of):
    """Such as those that stand under the roofs: all of them are in the grid, most of it is not in them."""
    every = two_baselines()
    few = [r for r in every if r.point.seq_len == every[0].point.seq_len]
    again = {"started_at": "2026-01-03T03:04:05+00:00"}
    assert len({r.point_id for r in few}) > 2
    assert section_of("comparison", profile(*every), profile(*few, **again)) is None
    assert section_of("comparison", profile(*every), profile(*every, **again)) is not None


def test_profiles_of_other_machines_say_why_they_are_not_compared(parse):
    from profiles import GPU

    other = replace(GPU, driver="999.9")
    ours = profile(*two_baselines())
    theirs = profile(*(replace(r, env_id=other.env_id) for r in ours.records), env=other)
    page = parse(render([ours, theirs], plotlyjs="cdn"))
    assert "they are of different machines (driver: 580.1 -" in page.text
    assert not [a for a, _ in page.all("section") if a["id"] == "comparison"]


def test_marks_of_many_curves_differ(section_of):
    records = [
        r
        for n in range(1, 9)
        for r in (dense(8192, 10.0 * n, batch_size=n), quest(8192, (1.0, 1.0, 3.0), batch_size=n))
    ]
    records += [
        r
        for n in (1, 2)
        for k in (16, 32, 64)
        for r in (dense(k * 1024, 10.0 * k, batch_size=n), quest(k * 1024, (1.0, 1.0, 3.0), batch_size=n))
    ]
    traces = section_of("batch", profile(*records)).figures[0]["data"]
    assert len({(t["marker"]["symbol"], t["line"]["dash"]) for t in traces}) == len(traces) == 4
    assert all(math.isfinite(y) for t in traces for y in t["y"])
