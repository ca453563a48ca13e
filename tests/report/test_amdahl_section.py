"""amdahl.py of the report: stacked bars and tables hold the numbers of the finding, as plain text."""

from __future__ import annotations

import pytest
from amdahl_steps import DENSE, QUEST, dense, pair_profile, quest
from msgspec.structs import replace

from profiles import GPU
from questprof.report import render


@pytest.fixture
def section(parse):
    def found(*records, **header):
        page = parse(render([pair_profile(*records, **header)], plotlyjs="directory"))
        html = page.html.split('id="p1-amdahl"')
        return parse('<section id="p1-amdahl"' + html[1].split("</section>")[0] + "</section>")

    return found


def test_bars_stack_up_to_the_step(section) -> None:
    (figure,) = section().figures
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert traces["dense"]["x"] == ["32k dense", "32k 2048, 1 dense"]
    assert traces["dense"]["y"] == [600, 150]
    assert traces["attend"]["y"] == [0, 45]
    assert traces["embed, norm, rope, sampling"]["y"] == [25, 25]
    bars = [trace["y"] for trace in traces.values() if trace["type"] == "bar"]
    assert [sum(heights) for heights in zip(*bars, strict=True)] == pytest.approx([1000, 625])
    assert traces["step, unprofiled"]["y"] == [1000, 625]
    assert figure["layout"]["barmode"] == "relative"
    assert "not in the parts" not in traces  # they add up
    assert "60.0% of the step" in traces["dense"]["meta"]["hover"][0]


def test_what_no_part_explains_is_a_bar_of_its_own(section) -> None:
    page = section(dense(us=1100.0), quest(us=600.0))
    traces = {trace["name"]: trace for trace in page.figures[0]["data"]}
    assert traces["not in the parts"]["y"] == pytest.approx([100, -25])
    ((_, alarm),) = page.all("div", class_="alarm")
    assert "9.1% too little" in alarm
    assert "4.2% too much" in alarm


def test_the_table_holds_the_numbers(section) -> None:
    page = section()
    cells = [cell for _, cell in page.all("td")]
    assert cells[0] == "1000"
    assert "600 60.0%" in cells
    assert "150 24.0%" in cells
    assert "1.60x" in cells
    assert "activity trace" in cells
    assert "attention s" in [head for _, head in page.all("th")]


def test_weights_and_batches_have_panels_of_their_own(section) -> None:
    int4 = {"setup": {"weight_format": "int4"}}
    big = {"point": {"batch_size": 2}}
    page = section(dense(), quest(), dense(**int4), quest(**int4), dense(**big), quest(**big))
    assert len(page.figures) == 3
    assert [attrs["data-setting"] for attrs, _ in page.all("select")] == ["Weights", "Batch"]


def test_long_tables_open_on_a_click(section) -> None:
    records = [one for k in range(1, 26) for one in at(1024 * k)]
    page = section(*records)
    assert "25 rows" in [text for _, text in page.all("summary")]
    assert not [text for _, text in section().all("summary") if text.endswith("rows")]


def at(seq_len: int):
    return dense(point={"seq_len": seq_len}), quest(point={"seq_len": seq_len})


def test_verdicts_open_the_page(parse) -> None:
    page = parse(render([pair_profile()], plotlyjs="directory"))
    ((_, verdict),) = page.all("div", class_="verdict")
    assert "1.60x end to end" in verdict
    assert "attention of the 3 layers with Quest 6.00x, 45% of the dense step" in verdict


def test_profiles_without_steps_have_no_section(parse) -> None:
    page = parse(render([pair_profile(dense(status="oom", times_us={}))], plotlyjs="directory"))
    assert not page.all("section", id="p1-amdahl")


def test_steps_without_parts_have_tables_and_no_figure(section) -> None:
    page = section(dense({}, us=1000.0), quest({}, us=500.0))
    assert page.figures == []
    assert "eq. (13) is not checked: the parts were not timed" in page.html


def test_text_of_a_profile_stays_text(parse) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    env = replace(GPU, device_name=hostile)
    setup = {"model": hostile, "weight_format": hostile, "dense_backend": hostile}
    records = (dense(DENSE, setup=setup, env=env), quest(QUEST, setup=setup, env=env))
    page = parse(render([pair_profile(*records, env=env)], plotlyjs="directory"))
    assert not page.all("img")
    for figure in page.figures:
        for trace in figure["data"]:
            assert "<" not in trace["name"] + "".join(trace["x"]) + "".join(trace["meta"]["hover"])
