"""roofline.py of the report: the figures and tables hold the numbers of the findings, as plain text."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from profiles import GPU, dense, profile, quest
from questprof.counts import ByteCount, StageCount
from questprof.model import Record
from questprof.report import render
from questprof.roofs import Bandwidth, FlopRate, Launch, Roofs

ROOFS = Roofs(
    (
        Bandwidth("read", "reader", 1 << 19, (2000.0,)),
        Bandwidth("copy", "copier", 1 << 19, (1800.0,)),
        Bandwidth("read", "reader", 1 << 30, (1000.0,)),
    ),
    (FlopRate("torch.matmul", "fp16", "tensor cores", "8192 x 8192 x 8192", 1, (100.0,)),),
    (Launch("empty kernel", 1000, (1.0,)),),
)


def with_bytes(record: Record, num_bytes: int) -> Record:
    stages = ("dense",) if record.point.policy == "dense" else ("score", "select", "attend", "quest")
    return replace(record, bytes={stage: {"formula": ByteCount(num_bytes, 0)} for stage in stages})


@pytest.fixture
def section(parse):
    def found(*records, **header):
        page = parse(render([profile(*records, **({"roofs": ROOFS} | header))], plotlyjs="directory"))
        html = page.html.split('id="p1-roofline"')
        return parse('<section id="p1-roofline"' + html[1].split("</section>")[0] + "</section>")

    return found


def test_only_profiles_with_roofs_have_the_section(parse) -> None:
    page = parse(render([profile(dense(8192, 8.0))], plotlyjs="directory"))
    assert not page.all("section", id="p1-roofline")


def test_roofs_and_marks_are_drawn_where_they_belong(section) -> None:
    """dense at 8k: one operation a byte, 500 GFLOP/s. DRAM's roof meets 100 TFLOP/s at 100 of them."""
    figure, curve = section(with_bytes(dense(8192, 8.388608), 4194304)).figures
    traces = {trace["name"]: trace for trace in figure["data"]}
    roof = traces["DRAM roof"]
    assert roof["x"] == [0.5, 100]
    assert roof["y"] == [500, 100_000]
    level = traces["fp16, tensor cores: torch.matmul"]
    assert level["x"] == [50, 400]  # from the ridge with the L2 to beyond that with DRAM
    assert level["y"] == [100_000, 100_000]
    mark = traces["dense (questprof), DRAM"]
    assert (mark["x"], mark["y"]) == ([1], [500])
    assert "bound by DRAM" in mark["meta"]["hover"][0]
    assert figure["layout"]["xaxis"]["type"] == figure["layout"]["yaxis"]["type"] == "log"
    reads = next(trace for trace in curve["data"] if trace["name"] == "read")
    assert (reads["x"], reads["y"]) == ([1 << 19, 1.07374e9], [2000, 1000])
    assert {"measured knee", "size of L2", "DRAM roof"} <= {trace["name"] for trace in curve["data"]}


def test_the_table_holds_the_numbers(section) -> None:
    page = section(with_bytes(dense(8192, 8.388608), 4194304))
    cells = [cell for _, cell in page.all("td")]
    assert cells[:10] == [
        "dense",
        "questprof",
        "8.39",
        "1",
        "500",
        "50%",
        "1",
        "500",
        "500",
        "bound by DRAM (50%)",
    ]


def test_counted_marks_have_columns_of_their_own(section) -> None:
    record = dense(8192, 8.388608)
    point = replace(quest(8192, None).point, variant="cuda")
    count = StageCount("dense", "ncu", 8_388_608, 0)
    counted = Record("bytes", point, point.point_id, record.env_id, "ok", counts=(count,))
    page = section(record, counted)
    assert "bytes measured: counter" in page.html
    names = [trace["name"] for trace in page.figures[0]["data"]]
    assert "dense (questprof), DRAM by ncu" in names
    assert "by ncu" not in str([t["name"] for t in section(record).figures[0]["data"]])


def test_what_is_above_a_roof_is_an_alarm_and_no_mark(section) -> None:
    page = section(dense(8192, 4.0), dense(4096, 8.0))
    ((_, alarm),) = page.all("div", class_="alarm")
    assert "1049 GB/s" in alarm
    (mark,) = (t for t in page.figures[0]["data"] if t["name"].startswith("dense"))
    assert len(mark["x"]) == 1
    assert "impossible" in [cell for _, cell in page.all("td")]


def test_without_stages_the_curve_remains(section) -> None:
    page = section()
    assert len(page.figures) == 1
    assert "measured only" in page.html


def test_text_of_a_profile_stays_text(parse) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    roofs = Roofs(
        (Bandwidth("read", hostile, 1 << 19, (2000.0,)),),
        (FlopRate(hostile, hostile, "tensor cores", hostile, 1, (100.0,)),),
        (Launch(hostile, 1, (1.0,)),),
        absent=((hostile, hostile),),
    )
    env = replace(GPU, device_name=hostile)
    page = parse(render([profile(dense(8192, 40.0, env=env, backend=hostile), env=env, roofs=roofs)]))
    assert not page.all("img")
    for figure in page.figures:
        for trace in figure["data"]:
            assert "<" not in trace["name"] + "".join(trace["meta"].get("hover", ()))
