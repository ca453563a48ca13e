"""length_scan.py, figure.py, table.py: figure, table and rows hold the same numbers; a dash says why."""

from __future__ import annotations

import json

import html_tables
import pytest
from msgspec.structs import replace

from profiles import GQA_SHAPE, READ_1000, SHAPE, dense, profile, quest, two_baselines
from questprof.crossover.sentences import crossover
from questprof.model import Check, StageTiming
from questprof.report import render
from questprof.scan import scan_rows, series


@pytest.fixture
def page_of(parse):
    """The parsed page of some records."""
    return lambda *records, **header: parse(render([profile(*records, **header)], plotlyjs="directory"))


def traces(figure, role: str, budget: int | None = None) -> list[dict]:
    return [t for t in figure["data"] if t["meta"]["role"] == role and t["meta"]["budget"] == budget]


def notes(page) -> list[str]:
    """The last cell of each row of the first table of points."""
    table = page.html.split('<table class="points">')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [row[-1] for row in html_tables.texts(table)]


def test_the_table_shows_the_rows(page_of):
    rows = [
        row for one in series(scan_rows(profile(*two_baselines()))) for row in one.rows
    ]  # the page's order: budget, then length
    cells = page_of(*two_baselines()).cells
    for field in ("seq_len", "token_budget", "dense_us", "score_us", "select_us", "attend_us", "quest_us",
                  "append_us", "append_kv_us", "speed_up", "dense_x_floor", "quest_x_floor", "bytes_ratio",
                  "check_ratio"):  # fmt: skip
        shown = [float(value) for value, _ in cells[field]]
        assert shown == pytest.approx([getattr(row, field) for row in rows], rel=1e-5), field
    assert [text for _, text in cells["dense_backend"]] == [row.dense_backend for row in rows]
    assert [float(value) for value, _ in cells["dense:sdpa"]] == [5.0 * row.seq_len / 1024 for row in rows]
    assert cells["dense_spread_us"][0][1] == "9.20–10.8"  # 0.92 and 1.08 times 10 us
    assert cells["quest_spread_us"][0][1] == "9.66–11.3"  # times 10.5 us


def test_a_row_in_words(page_of):
    cells = page_of(*two_baselines()).cells
    first = {field: column[0][1] for field, column in cells.items()}
    assert first["seq_len"] == "2k"
    assert (first["dense_us"], first["dense_backend"], first["dense:questprof"]) == ("10.0", "sdpa", "12.0")
    assert (first["score_us"], first["quest_us"], first["speed_up"]) == ("2.50", "10.5", "0.95x")
    assert (first["bytes_ratio"], first["check_ratio"], first["status"]) == ("0.5625", "0.5", "ok")


def test_the_figure_holds_the_numbers_of_the_table(page_of):
    page = page_of(*two_baselines())
    (figure,) = page.figures
    columns = {name: [value and float(value) for value, _ in column] for name, column in page.cells.items()}
    for budget in (1024, 4096):
        where = [i for i, found in enumerate(columns["token_budget"]) if found == budget]
        lengths = [columns["seq_len"][i] for i in where]
        for stage in ("score", "select", "attend", "quest"):
            (trace,) = traces(figure, stage, budget)
            assert trace["x"] == lengths
            assert trace["meta"]["y"]["us"] == [columns[f"{stage}_us"][i] for i in where]
        (total,) = traces(figure, "quest", budget)
        assert total["meta"]["y"]["x"] == pytest.approx([1 / columns["speed_up"][i] for i in where], rel=1e-5)
    named = {trace["name"]: trace for trace in traces(figure, "dense")}
    assert named["dense, sdpa"]["meta"]["y"]["us"] == columns["dense:sdpa"][:5]
    assert named["dense, questprof"]["meta"]["y"]["us"] == columns["dense:questprof"][:5]


def test_gb_s_worked_by_hand(page_of):
    """8k: dense reads 4194304 bytes in 36 us: 116.508 GB/s. Score reads 262144 in 4 us: 65.536."""
    (figure,) = page_of(*two_baselines()).figures
    assert traces(figure, "dense")[0]["meta"]["y"]["gb_s"][2] == pytest.approx(116.508, abs=1e-3)
    assert traces(figure, "score", 1024)[0]["meta"]["y"]["gb_s"][2] == 65.536
    assert traces(figure, "select", 1024)[0]["meta"]["y"]["gb_s"] == [None] * 5
    assert traces(figure, "ceiling")[0]["meta"]["y"] == {
        "us": [None] * 5,
        "x": [None] * 5,
        "gb_s": [1000.0] * 5,
    }


def test_hover_has_the_spread(page_of):
    (figure,) = page_of(*two_baselines()).figures
    assert traces(figure, "quest", 1024)[0]["meta"]["spread"][0] == pytest.approx([9.66, 11.34, 3])


def test_floors_are_dashed_and_modelled_and_the_rest_is_measured(page_of):
    (figure,) = page_of(*two_baselines()).figures
    for trace in figure["data"]:
        floor = trace["meta"]["role"].endswith("-floor")
        modelled = floor or trace["meta"]["role"] == "predicted"
        assert trace["meta"]["source"].startswith("modelled: formula" if modelled else "measured: clock")
        if floor:
            assert trace["line"]["dash"] == "dash"
    assert traces(figure, "dense-floor")[0]["meta"]["y"]["us"][2] == pytest.approx(4.194304)
    assert traces(figure, "quest-floor", 1024)[0]["meta"]["y"]["us"][2] == pytest.approx(0.786432)


def test_curves_differ_by_mark_or_dash_and_not_by_colour_alone(page_of):
    (figure,) = page_of(*two_baselines()).figures
    shown = [t for t in figure["data"] if t["meta"]["budget"] in (None, 1024)]
    looks = [
        (t.get("marker", {}).get("symbol"), t["line"]["dash"], t["meta"]["role"].split("-")[-1])
        for t in shown
    ]
    assert (
        len(set(looks)) == len({(t["name"]) for t in shown}) - 1
    )  # the two floors share a look, not a colour


def test_the_crossover_is_marked_where_the_curves_meet(page_of):
    """Budget 1024 crosses sdpa's 5 us per 1k at 2158 tokens: 10.5 us."""
    records = two_baselines()
    found = crossover(series(scan_rows(profile(*records)))[0])
    (figure,) = page_of(*records).figures
    assert figure["crossings"] == [{"budget": 1024, "x": found.seq_len, "label": "Quest is faster from 2.1k"}]
    (mark,) = traces(figure, "crossing", 1024)
    assert mark["x"] == [found.seq_len]
    assert mark["meta"]["y"]["us"][0] == pytest.approx(found.seq_len / 1024 * 5, rel=1e-6)
    assert mark["meta"]["y"]["x"] == [1.0]
    assert traces(figure, "crossing", 4096) == []


def test_losing_again_is_marked_as_such(page_of):
    records = [
        dense(2048, 20.0),
        dense(8192, 20.0),
        quest(2048, (2.0, 4.0, 4.0)),
        quest(8192, (20.0, 10.0, 10.0)),
    ]
    (figure,) = page_of(*records).figures
    assert figure["crossings"] == [
        {"budget": 1024, "x": pytest.approx(4096), "label": "Quest is slower from 4k"}
    ]


def test_units_and_budgets_can_be_switched_without_a_mouse(page_of):
    page = page_of(*two_baselines())
    units = [attrs for attrs, _ in page.all("input") if attrs["name"].endswith("-unit")]
    assert [attrs["value"] for attrs in units] == ["us", "x", "gb_s"]
    budgets = [attrs for attrs, _ in page.all("input") if attrs["name"].endswith("-budget")]
    assert [attrs["value"] for attrs in budgets] == ["1024", "4096"]
    assert {attrs["type"] for attrs in (*units, *budgets)} == {"radio"}


def test_missing_figures_are_dashes_with_reasons(page_of):
    records = [
        *two_baselines(),
        dense(65536, 400.0),
        dense(65536, None, backend="sdpa", status="unavailable", reason="too long"),
        quest(65536, None, status="oom", reason="needs 3 GiB, 2 GiB free"),
    ]
    page = page_of(*records)
    where = [text for _, text in page.cells["seq_len"]].index("64k")
    for field in ("quest_us", "score_us", "speed_up", "quest_x_floor", "dense:sdpa", "quest_spread_us"):
        assert page.cells[field][where] == (None, "–"), field
    assert page.cells["dense_us"][where] == ("400", "400")
    dashes = [attrs["title"] for attrs, text in page.all("td") if text == "–"]
    assert "oom: needs 3 GiB, 2 GiB free" in dashes
    assert "unavailable: too long" in dashes
    assert "" not in dashes
    assert notes(page)[where] == "oom: needs 3 GiB, 2 GiB free"
    items = [text for _, text in page.all("li")]
    assert "quest, budget 1024: oom, needs 3 GiB, 2 GiB free. At 64k (toy, batch 1, page 16)." in items
    assert "dense (sdpa): unavailable, too long. At 64k (toy, batch 1, page 16)." in items
    (figure,) = page.figures
    assert 65536 not in traces(figure, "quest", 1024)[0]["x"]


def test_every_dash_has_a_reason_or_does_not_apply(page_of):
    records = [quest(2048, (1.0, 1.0, 1.0), checks=()), quest(4096, (1.0, 1.0, 1.0), times_us={})]
    page = page_of(*records, ceilings=())
    for attrs, text in page.all("td"):
        if text == "–":
            assert attrs["title"], attrs


def test_zero_is_never_shown_for_a_missing_figure(page_of):
    page = page_of(quest(2048, None, status="oom"))
    assert {text for field, column in page.cells.items() if field.endswith("_us") for _, text in column} == {
        "–"
    }


def test_wrong_points_are_listed_with_their_check(page_of):
    wrong = quest(8192, (1.0, 1.0, 1.0), checks=(Check("attend", "after", 0.5, 0.1),))
    page = page_of(dense(8192, 10.0), wrong)
    assert page.cells["check_ratio"][0][1] == "5"
    assert page.cells["status"][0][1] == "wrong"
    assert "attend after timing: error 5 x its tolerance of 0.1" in page.text


def test_alarms_are_listed_and_their_values_not_drawn(page_of):
    """4194304 bytes in 4 us are 1049 GB/s."""
    page = page_of(
        dense(8192, 4.0), dense(16384, 40.0), quest(8192, (1.0, 1.0, 1.0)), quest(16384, (1.0, 1.0, 1.0))
    )
    assert page.text.count("1049 GB/s is above 1.02 x the measured read ceiling of 1000 GB/s") == 1
    assert traces(page.figures[0], "dense")[0]["x"] == [16384]
    assert page.cells["dense_us"][0] == ("4", "4.00!")
    fast_score = quest(8192, (0.1, 1.0, 1.0))  # 262144 bytes in 0.1 us: 2621 GB/s
    (figure,) = page_of(dense(8192, 40.0), fast_score).figures
    assert traces(figure, "score", 1024) == []
    assert traces(figure, "quest", 1024)[0]["x"] == [8192]
    assert page.cells["speed_up"][0] == (None, "–")
    assert "Alarms" not in page_of(*two_baselines()).text


def test_a_budget_that_covers_the_length_is_said_to(page_of):
    page = page_of(*two_baselines())
    covered = "the budget covers the length: every page is read, and the summary too"
    assert [covered in note for note in notes(page)[:10]] == [False] * 5 + [True, True, False, False, False]


def test_selectors_offer_only_what_differs(page_of):
    other = replace(SHAPE, name="toy-2", num_qo_heads=4, num_kv_heads=4)
    page = page_of(*two_baselines(), *two_baselines(batch_size=8), *two_baselines(other))
    assert [attrs["data-setting"] for attrs, _ in page.all("select")][:2] == ["Shape", "Batch"]
    assert [text for _, text in page.all("option")][2:4] == ["1", "8"]
    panels = [json.loads(attrs["data-settings"]) for _, attrs, _ in page.elements if "data-settings" in attrs]
    panels = [panel for panel in panels if "Shape" in panel]
    assert [(p["Shape"].split()[0], p["Batch"]) for p in panels] == [
        ("toy", "1"),
        ("toy", "8"),
        ("toy-2", "1"),
    ]
    assert not page_of(*two_baselines()).all("select")


def test_the_union_column_is_there_for_groups_only(page_of):
    gqa = [dense(8192, 10.0, shape=GQA_SHAPE), quest(8192, (1.0, 1.0, 1.0), shape=GQA_SHAPE, union_ratio=3.5)]
    assert page_of(*gqa).cells["union_ratio"] == [("3.5", "3.500")]
    assert "union_ratio" not in page_of(*two_baselines()).cells


def test_every_column_stands_under_its_source(page_of):
    page = page_of(*two_baselines())
    heads = page.html.split("</thead>")[0]
    groups = [(text, int(attrs["colspan"])) for attrs, text in page.all("th", scope="colgroup")]
    groups = groups[: heads.count('scope="colgroup"')]
    assert [text for text, _ in groups] == [
        "point", "measured: clock, times in us", "measured: clock / modelled: formula", "modelled: formula",
        "check",
    ]  # fmt: skip
    assert sum(span for _, span in groups) == len(page.cells)


def test_scripts_off_leaves_note_tables_and_nothing_hidden(page_of):
    page = page_of(*two_baselines(), *two_baselines(batch_size=8))
    assert [text.count("Quest, budget 1024") for _, text in page.all("noscript")] == [1, 1, 0]
    # two settings with crossovers, costs, overhead, traffic each; all crossovers, baselines, batches, roofs
    assert len(page.all("table")) == 2 * 5 + 1 + 2 + 1 + 1
    assert not [attrs for _, attrs, _ in page.elements if "hidden" in attrs]


def test_a_read_of_the_same_loop_has_a_column_where_there_is_one(page_of):
    page = page_of(dense(8192, 36.0, calibration=(READ_1000,)), quest(8192, (4.0, 2.0, 6.0)))
    assert page.cells["dense_x_read"][0][1] == "8.58x"
    assert page.cells["most_speed_up"][0][1] == "5.33x"
    assert "dense_x_read" not in page_of(*two_baselines()).cells


def test_extra_states_have_columns_where_they_were_timed(page_of):
    record = quest(8192, (4.0, 2.0, 6.0))
    record = replace(record, times_us={**record.times_us, "append_cold": (3.0,)})
    page = page_of(dense(8192, 36.0), record, quest(16384, (4.0, 2.0, 6.0)))
    assert [text for _, text in page.cells["append_cold_us"]] == ["3.00", "–"]
    assert "select_cold_us" not in page.cells
    (dash,) = [attrs for attrs, text in page.cells_of("append_cold_us") if text == "–"]
    assert dash["title"] == "not asked for at this point"
    kept = replace(dense(8192, 36.0), times_us={"dense": (36.0,) * 3, "append_kv_cold": (2.0,)})
    assert "append_kv cold" in page_of(kept, record).text  # as the stage is called


def test_layouts_orders_and_keys_are_settings(page_of):
    settings = ({}, {"summary_layout": "transposed"}, {"page_order": "scattered", "pool_bytes": 4 << 30},
                {"data": "ramp"})  # fmt: skip
    records = [
        record for more in settings for record in (dense(8192, 36.0, **more), quest(8192, (1.0,) * 3, **more))
    ]
    page = page_of(*(replace(r, pool_bytes=1 << 30) if r.point.pool_bytes else r for r in records))
    selectors = [attrs["data-setting"] for attrs, _ in page.all("select")]
    assert selectors == ["Keys", "Page order", "Summary", "Pool"]
    heads = [text for attrs, text in page.all("h3") if "query" in text and attrs.get("class") != "setting"]
    titles = [text.removeprefix("toy (2 query / 2 KV heads of 64, fp16), batch 1, page 16") for text in heads]
    assert sorted(titles) == ["", ", keys ramp", ", page order scattered, pool 4 GiB", ", summary transposed"]
    assert page.text.count("memory allowed a pool of 1 GiB") == 1


def titles(page) -> list[str]:
    return [text for _, text in page.all("h4")]


def test_crossovers_costs_overhead_and_traffic_follow_the_table(page_of):
    page = page_of(*two_baselines())
    assert titles(page) == [
        "From which length Quest is faster than the fastest dense baseline",
        "Fixed cost and rate of each stage",
        "What Quest costs when it saves nothing (budget >= length)",
        "What it covers of given traffic",
    ]
    assert "from 2.11k" in page.text
    assert "Source: Azure LLM inference trace 2023" in page.text
    assert "synthetic, no measurement" in page.text


def test_without_a_ceiling_there_is_no_table_of_costs_and_a_reason(page_of):
    page = page_of(*two_baselines(), ceilings=())
    assert "Fixed cost and rate of each stage" not in titles(page)
    assert "No model: no read ceiling was measured." in page.text


def test_warm_points_are_marked(page_of):
    assert "cache_states" not in page_of(*two_baselines()).cells
    record = quest(8192, (4.0, 2.0, 6.0))
    warm = replace(record, timing={"quest": StageTiming(1, 1, 100, "warm", "loop", "fixed")})
    page = page_of(dense(8192, 40.0), dense(16384, 80.0), warm, quest(16384, (4.0, 2.0, 6.0)))
    assert [text for _, text in page.cells["cache_states"]] == ["quest warm", "cold"]
    assert notes(page)[0] == "warm, not cold: quest touched too few bytes"
    assert "warm" not in notes(page)[1]


def test_tails_have_columns_where_samples_are_single_steps(page_of):
    """Samples 1 to 101 us: p95 is 96, p99 is 100. Dense has three samples, and its dash says so."""
    samples = tuple(float(i) for i in range(1, 102))
    record = quest(8192, (4.0, 2.0, 6.0))
    record = replace(record, times_us={**record.times_us, "quest": samples})
    page = page_of(dense(8192, 100.0), record)
    assert (page.cells["quest_p95_us"], page.cells["quest_p99_us"]) == (
        [("96", "96.0")],
        [("100", "100")],
    )
    assert "dense_p95_us" not in page.cells
    assert "3 samples: p95 needs 20 and p99 100" in page.text
    means = {"quest": StageTiming(182, 1, 100, "cold", "loop", "fixed")}
    page = page_of(dense(8192, 100.0), replace(record, timing=means))
    assert not [field for field in page.cells if "p95" in field or "p99" in field]
    assert "a sample is the mean of many steps" in page.text


def test_budgets_of_the_length_itself_are_one_curve(page_of):
    records = [
        r for n in (2048, 4096, 8192) for r in (dense(n, n / 100), quest(n, (1.0, 1.0, n / 100), budget=n))
    ]
    page = page_of(*records, *(quest(n, (1.0, 1.0, 5.0)) for n in (2048, 4096, 8192)))
    (figure,) = page.figures
    names = [trace["name"] for trace in figure["data"] if trace["meta"]["role"] == "quest"]
    assert names == ["Quest, budget 1024", "Quest, budget all"]
    labels = [attrs["value"] for attrs, _ in page.all("input") if attrs["name"].endswith("-budget")]
    assert [float(label) for label in labels] == [float(budget) for budget in figure["budgets"]]
    assert {float(t["meta"]["budget"]) for t in figure["data"] if t["meta"]["budget"]} == set(
        map(float, labels)
    )
    assert "all" in [text for _, text in page.all("span")]
    assert "Budget all: it covers every length measured" in page.text


def test_the_stages_shown_first_are_of_the_budget_that_the_verdict_is_about(parse):
    """2048, where it was timed; otherwise the middle one."""
    long = [
        dense(32768, 400.0),
        *(quest(32768, (10.0, 2.0, 20.0), budget=b) for b in (512, 1024, 2048, 4096)),
    ]
    for records, first in ((long, 2048), ([r for r in long if r.point.token_budget != 2048], 1024)):
        page = parse(render([profile(*records)], plotlyjs="cdn"))
        assert page.figures[0]["focus"] == first
