"""records.py, limits.py: lines lead back to the file; hostile profiles are escaped or refused."""

from __future__ import annotations

import json
import re
import time
import tracemalloc

import pytest
from msgspec.structs import replace

from profiles import SHAPE, dense, profile, quest, two_baselines
from questprof.errors import QuestprofError
from questprof.model import Shape
from questprof.report import limits, render, write_report
from questprof.report.records import lines, listing, numbers, ranges
from questprof.store import read_profile, seal

MEGABYTE = 1 << 20


def many(count: int):
    """`count` records as sweeps write them: 3 baselines and 3 budgets at 7 lengths, shape by shape."""
    records = []
    while len(records) < count:
        shape = Shape(f"shape-{len(records)}", num_qo_heads=8, num_kv_heads=8, head_dim=128)
        for k in (2, 4, 8, 16, 32, 64, 128):
            records += [dense(k * 1024, 7.77 * k, shape=shape, backend=name) for name in ("a", "b", "c")]
            records += [
                quest(k * 1024, (k / 3, 2.2, budget / 333), shape=shape, budget=budget)
                for budget in (1024, 2048, 4096)
            ]
    return profile(*records[:count])


def test_lines_in_words():
    found = [("a", n) for n in (2, 3, 4, 9, 11, 10)] + [("b", 3)]
    assert ranges(found) == "a, lines 2–4, 9–11; b, line 3"


def test_the_page_names_the_line_that_holds_a_record(tmp_path, parse):
    """Line 1 is the header; a corrupt line that was skipped keeps its number."""
    found = profile(*two_baselines())
    lines = [seal(found.header), *map(seal, found.records)]
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join([*lines[:3], b"{}\n", *lines[3:]]))
    read = read_profile(path, skip_corrupt=True)
    assert numbers(read)[:4] == [2, 3, 5, 6]
    page = parse(render([read], plotlyjs="cdn"))
    (listing,) = [text for attrs, text in page.all("details") if "records" in attrs.get("class", "")]
    stored = path.read_text().splitlines()
    shown = [line.split() for line in listing.splitlines() if line.startswith("line ")]
    assert len(shown) == len(found.records)
    for _, line, kind, point_id, *_ in shown:
        assert (json.loads(stored[int(line) - 1])["kind"], json.loads(stored[int(line) - 1])["point_id"]) == (
            kind,
            point_id,
        )
    assert "Records: run.jsonl, lines 2–3, 5–22." in page.text
    assert page.text.count("Records: run.jsonl, lines 2–3, 5–22.") == 2  # length scan and baselines


def both_layouts():
    """Lines 2 to 5 dense and Quest beside each other; 6 to 9 the same in the loop of the other layout."""
    for layout in ("paired", "transposed"):
        yield dense(8192, 20.0, summary_layout=layout)
        yield dense(8192, 21.0, summary_layout=layout, backend="sdpa")
        yield quest(8192, (2.0, 2.0, 2.0), summary_layout=layout)
        yield quest(8192, (2.0, 2.0, 2.0), budget=2048, summary_layout=layout)


def test_a_panel_names_the_dense_records_of_its_own_loop_alone():
    records = list(both_layouts())
    found = replace(profile(*records), name="run.jsonl")
    where = lines([found])
    assert where.of_rows([records[2].point, records[3].point]) == "run.jsonl, lines 2–5"
    assert where.of_rows([records[6].point]) == "run.jsonl, lines 6–8"
    assert where.of_points([records[2].point]) == "run.jsonl, line 4"


def test_a_layout_without_dense_records_stands_on_the_paired_ones():
    """As `scan_rows` takes them; and not on those over other keys."""
    paired, other, alone = (
        dense(8192, 20.0),
        dense(8192, 20.0, data="ramp"),
        quest(8192, (2.0, 2.0, 2.0), summary_layout="transposed"),
    )
    where = lines([replace(profile(paired, other, alone), name="run.jsonl")])
    assert where.of_rows([alone.point]) == "run.jsonl, lines 2, 4"


def test_of_a_baseline_that_was_timed_twice_the_last_counts():
    first, second, quested = dense(8192, 20.0), dense(8192, 21.0), quest(8192, (2.0, 2.0, 2.0))
    where = lines([replace(profile(first, second, quested), name="run.jsonl")])
    assert where.of_rows([quested.point]) == "run.jsonl, lines 3–4"


def test_no_two_records_of_the_listing_read_the_same():
    rows = listing(profile(*both_layouts()))["rows"]
    labels = [re.sub(r"^line \d+ +(\w+) +\w+", r"\1", row) for row in rows]
    assert len(set(labels)) == 8
    assert labels[0].endswith("dense, questprof, paired")
    assert labels[4].endswith("dense, questprof, transposed")


@pytest.mark.parametrize(("count", "seconds"), [(1000, 2.0), (10_000, 10.0)])
def test_rendering_is_quick(count, seconds):
    """CPU time, so that a busy machine does not fail it; what is imported once is imported before."""
    render([profile(*two_baselines())])
    found = many(count)
    start = time.process_time()
    page = render([found])
    assert time.process_time() - start < seconds
    assert page.count('class="panel"') >= count / 42


def test_a_long_text_is_cut_and_the_page_stays_small():
    long = "x" * (10 * MEGABYTE)
    shape = replace(SHAPE, name=long)
    records = [dense(8192, 10.0, shape=shape), quest(8192, (1.0, 1.0, 1.0), shape=shape, variant=long)]
    records += [quest(4096, None, shape=shape, status="oom", reason=long)]
    tracemalloc.start()
    page = render([replace(profile(*records, command=long), name=long, warnings=(long,))], plotlyjs="cdn")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(page) < MEGABYTE
    assert peak < 200 * MEGABYTE
    assert "x" * limits.MOST_TEXT in page
    assert "x" * (limits.MOST_TEXT + 1) not in page
    assert f"({10 * MEGABYTE} characters)" in page


def test_what_is_short_is_not_touched():
    found = profile(*two_baselines())
    assert limits.bounded(found) == found
    assert limits.bounded(found).records is found.records


def test_text_that_utf8_cannot_hold_is_replaced(tmp_path):
    odd = replace(profile(*two_baselines(), command="a\udfffb"), name="toy\ud801")
    text = write_report([odd], tmp_path / "page.html", "cdn").read_text(encoding="utf-8")
    assert "toy?" in text


def test_too_many_records_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "MOST_RECORDS", 19)
    with pytest.raises(QuestprofError, match="a page of 20 records") as caught:
        render([profile(*two_baselines())])
    assert "questprof export" in caught.value.fix
    monkeypatch.setattr(limits, "MOST_RECORDS", 20)
    assert render([profile(*two_baselines())])


def test_too_large_a_page_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "MOST_PAGE_BYTES", MEGABYTE)
    with pytest.raises(QuestprofError, match="it may have 1 MiB at most"):
        render([profile(*two_baselines())])


def test_a_hundred_thousand_samples_cost_a_page_nothing():
    record = dense(8192, 10.0)
    record = replace(record, times_us={"dense": tuple(10 + (i % 7) / 10 for i in range(100_000))})
    assert len(render([profile(record, quest(8192, (1.0, 1.0, 1.0)))], plotlyjs="cdn")) < MEGABYTE


def test_a_thousand_budgets_draw_a_dozen():
    """The figure draws twelve of them, the first and the last too; the table holds all."""
    records = [dense(65536, 100.0)] + [quest(65536, (1.0, 1.0, 1.0), budget=16 * n) for n in range(1, 1001)]
    page = render([profile(*records)], plotlyjs="cdn")
    (figure,) = re.findall(r'figure-data">(.*?)</script>', page)
    assert len(json.loads(figure)["budgets"]) == 12
    assert {16, 16000} <= set(json.loads(figure)["budgets"])
    assert len(re.findall(r'<th scope="row" data-v="65536">', page)) == 1000


EXTREMES = (2e-9, 9e14, 1.0)


@pytest.mark.parametrize("us", EXTREMES)
@pytest.mark.parametrize("quest_us", EXTREMES)
def test_numbers_at_the_ends_of_the_floats_leave_valid_json(parse, us, quest_us):
    records = [dense(length, us) for length in (4096, 8192)]
    for length in (4096, 8192):
        one = quest(length, (1.0, 1.0, 1.0))
        records.append(replace(one, times_us=dict.fromkeys(one.times_us, (quest_us,) * 3)))
    page = parse(render([profile(*records)], plotlyjs="cdn"))
    assert len(page.figures) == 1
    assert "NaN" not in json.dumps(page.figures)
    assert "Infinity" not in json.dumps(page.figures)


@pytest.mark.parametrize("samples", [(-1.0, 2.0, 3.0), (0.0,), (float("nan"),), (float("inf"), 1.0), ()])
def test_samples_that_no_clock_reads_are_no_figures(parse, samples):
    bad = replace(quest(8192, (1.0, 1.0, 1.0)), times_us={"quest": samples, "score": samples})
    page = parse(render([profile(dense(8192, 10.0), bad)], plotlyjs="cdn"))
    assert {text for _, text in page.cells["quest_us"]} == {"–"}
    assert "no verdict, no length above the budget has a valid pair of figures" in page.text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "../../etc/passwd"),
        ("/dev/null", "/dev/null"),
        ("C:\\x\\..\\y.jsonl", "C:\\x\\..\\y.jsonl"),
        ("a\nb\0c.jsonl", "a\nb\ufffdc.jsonl"),
        ("\u202elnosj.x", "\ufffdlnosj.x"),
    ],
)
def test_a_name_is_text_and_no_path(parse, name, shown):
    """Names of files are shown; nothing is read or written by them."""
    page = parse(render([replace(profile(*two_baselines()), name=name)], plotlyjs="cdn"))
    assert shown in page.html or shown in page.text
    for _, attrs, _ in page.elements:
        assert attrs.get("href", "#").startswith(("#", "https://cdn.plot.ly"))


def test_what_steers_a_terminal_or_turns_words_around_is_shown_as_such(tmp_path, parse):
    """A device that is called like an override of the direction of writing, in header and reason."""
    hostile = profile(*two_baselines())
    environment = replace(hostile.header.environment, device_name="GPU \u202erewols\x1b[31m\x7f")
    records = tuple(replace(one, reason="late \u2066\x07") for one in hostile.records)
    hostile = replace(hostile, header=replace(hostile.header, environment=environment), records=records)
    bounded = limits.bounded(hostile)
    assert bounded.header.environment.device_name == "GPU \ufffdrewols\ufffd[31m\ufffd"
    assert {one.reason for one in bounded.records} == {"late \ufffd\ufffd"}
    page = render([hostile], plotlyjs="directory")
    assert "GPU \ufffdrewols" in page
    assert [mark for mark in "\u202e\u2066\x1b\x07\x7f" if mark in page] == []
