"""What `questprof formula` computes: the article's numbers, every option, what it says and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from questprof.equations import (
    eq09_dense_bytes,
    eq10_index_bytes,
    eq11_selected_bytes,
    eq12_read_ratio,
)
from questprof.errors import Exit, QuestprofError
from questprof.formula import equation_list, explain, formula

ARTICLE: dict[str, Any] = {"length": 65536, "page_size": 16, "budget": 4096, "head_dim": 128, "dtype": "fp16"}
ARTICLE |= {"kv_heads": 1, "layers": 1}


def test_the_article_at_64k() -> None:
    document = formula(**ARTICLE)
    expected = {
        "rho": 0.125,
        "dense_bytes": 33554432,
        "index_bytes": 2097152,
        "selected_bytes": 2097152,
        "quest_bytes": 4194304,
        "num_pages": 4096,
        "num_selected": 256,
    }
    assert {key: document[key] for key in expected} == expected
    assert all(type(document[key]) is type(value) for key, value in expected.items())
    assert document["byte_ratio"] == 0.125
    assert document["messages"] == []
    assert document["source"] == "formula"


def test_the_document_is_json() -> None:
    document = formula(**ARTICLE)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_explain_puts_the_numbers_in() -> None:
    lines = explain(formula(**ARTICLE))
    assert lines[:6] == [
        "65536 tokens in 4096 pages of 16; token budget 4096: 256 pages a query head "
        "(modelled, nothing measured)",
        "dense read 2ML, eq. (9): 2 x 256 B x 65536 = 33554432 B (32 MiB)",
        "index read 2MP, eq. (10): 2 x 256 B x 4096 = 2097152 B (2 MiB)",
        "selected read 2MKS, eq. (11): 2 x 256 B x 256 x 16 = 2097152 B (2 MiB)",
        "Quest read, (10) + (11): 2097152 + 2097152 = 4194304 B (4 MiB)",
        "read ratio 1/S + K/P, eq. (12): 1/16 + 256/4096 = 0.125",
    ]
    select = "beside eq. (12), select: scores 16 KiB read, page_ids 1 KiB written, "
    assert any(line.startswith(select) for line in lines)
    assert "resident: cache 33554432 B (32 MiB), summary 2097152 B (2 MiB), 6.25 % of it" in lines


def arithmetic(line: str) -> tuple[float, float]:
    """The two sides of a line's equation: `name: 2 x 256 B x (62 x 16 + 8) x 2 KV heads = 1 B (1 B)`."""
    left, right = line.split(": ", 1)[1].split(" = ")
    words = ("requests", "KV heads", "layers", "B")
    for word in words:
        left = left.replace(f" {word}", "")
    return eval(left.replace(" x ", " * ")), float(right.split()[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_heads": 4, "layers": 3, "batch": 2},
        {"length": 1000, "budget": 200},
        {"length": 1000, "budget": 200, "page_size": 12, "physical_tile": 16},
        {"length": 4096, "last_page_len": 5, "budget": 512, "physical_tile": 4},
        {"heads": 8, "kv_heads": 2},
        {"heads": 8, "kv_heads": 2, "union_ratio": 1.5},
        {"dtype": "fp8_e4m3", "summary_dtype": "fp16"},
        {"length": 1000, "budget": 5000},
        {"length": 1024, "budget": 1024, "physical_tile": 32},
        {"summary_layout": "transposed"},
        {"summary_layout": "transposed", "heads": 8, "kv_heads": 2, "union_ratio": 1.5, "layers": 3},
        {"summary_layout": "transposed", "length": 1000, "budget": 200, "summary_dtype": "fp32"},
    ],
)
def test_the_arithmetic_on_every_line_comes_out(options: dict[str, Any]) -> None:
    lines = explain(formula(**{**ARTICLE, **options}))
    checked = 0
    for line in lines:
        if line.startswith(("dense read", "index read", "selected read", "Quest read", "read ratio")):
            left, right = arithmetic(line)
            assert left == pytest.approx(right, rel=1e-5), line
            checked += 1
    assert checked >= 5


# Options.


@pytest.mark.parametrize(("kv_heads", "layers", "batch"), [(32, 1, 1), (1, 32, 1), (1, 1, 8), (8, 4, 2)])
def test_heads_layers_and_batch_multiply_bytes_and_leave_the_ratio(
    kv_heads: int, layers: int, batch: int
) -> None:
    one, many = (
        formula(**ARTICLE),
        formula(**{**ARTICLE, "kv_heads": kv_heads, "layers": layers, "batch": batch}),
    )
    names = ("dense_bytes", "index_bytes", "selected_bytes", "quest_bytes")
    for name in (*names, "resident_cache_bytes", "resident_summary_bytes"):
        assert many[name] == kv_heads * layers * batch * one[name]
    assert many["rho"] == many["byte_ratio"] == 0.125
    assert many["num_pages"] == 4096


def test_entries_add_up_to_the_totals() -> None:
    document = formula(**{**ARTICLE, "kv_heads": 2, "heads": 8, "layers": 3, "batch": 2})
    for stage, name in (("dense", "dense_bytes"), ("score", "index_bytes"), ("attend", "selected_bytes")):
        counted = [e["read_bytes"] for e in document["entries"] if e["stage"] == stage and e["in_eq12"]]
        assert sum(counted) == document[name]
    one_layer = formula(**{**ARTICLE, "kv_heads": 2, "heads": 8, "batch": 2})["stage_bytes"]
    for stage, total in document["stage_bytes"].items():
        assert total == {way: 3 * count for way, count in one_layer[stage].items()}
        own = [entry for entry in document["entries"] if entry["stage"] == stage]
        assert total == {
            "read": sum(e["read_bytes"] for e in own),
            "write": sum(e["write_bytes"] for e in own),
        }


@pytest.mark.parametrize(
    ("dtype", "summary_dtype", "index_share"),
    [
        ("fp16", None, 1 / 16),
        ("bf16", None, 1 / 16),
        ("fp32", None, 1 / 16),
        ("int8", None, 1 / 16),
        ("fp8_e4m3", "fp16", 2 / 16),
        ("int8", "bf16", 2 / 16),
        ("fp16", "fp32", 2 / 16),
        ("fp16", "fp8_e4m3", 0.5 / 16),
        ("fp8_e4m3", "fp32", 4 / 16),
        ("fp16", "bf16", 1 / 16),
    ],
)
def test_dtypes(dtype: str, summary_dtype: str | None, index_share: float) -> None:
    document = formula(**{**ARTICLE, "dtype": dtype, "summary_dtype": summary_dtype})
    assert document["rho"] == document["byte_ratio"] == index_share + 1 / 16
    assert document["summary_dtype"] == (summary_dtype or dtype)
    wide = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8_e4m3": 1}
    assert document["dense_bytes"] == 2 * 128 * wide[dtype] * 65536
    narrow = any("summary cannot hold" in message for message in document["messages"])
    assert narrow == ((dtype, summary_dtype) in {("fp16", "fp8_e4m3"), ("fp16", "bf16")})
    assert any("formula alone" in message for message in document["messages"]) == (wide[dtype] == 1)


def test_a_page_of_12_under_a_tile_of_16() -> None:
    document = formula(length=1200, budget=120, page_size=12, physical_tile=16)
    assert document["num_pages"] == 100
    assert document["num_selected"] == 10
    assert document["dense_bytes"] == eq11_selected_bytes(256, 100, 16)
    assert document["selected_bytes"] == eq11_selected_bytes(256, 10, 16)
    assert document["index_bytes"] == eq10_index_bytes(256, 100)
    assert document["rho"] == document["byte_ratio"] == 1 / 16 + 10 / 100
    assert "physical tile 16: a page of 12 reads 16 tokens" in explain(document)


@pytest.mark.parametrize(
    ("size", "tile", "layout", "label"),
    [
        (16, 64, "paired", "1/T + K/P, eq. (12), T tokens a page in whole tiles: 1/64 + "),
        (12, 16, "paired", "1/T + K/P, eq. (12), T tokens a page in whole tiles: 1/16 + "),
        (
            16,
            64,
            "transposed",
            "1/(2T) + K/P, eq. (12) over a transposed summary (ours), T tokens a page in whole tiles: 0.5/64",
        ),
        (16, 16, "paired", "1/S + K/P, eq. (12): 1/16 + "),
        (32, 16, "paired", "1/S + K/P, eq. (12): 1/32 + "),
    ],
)
def test_the_ratio_is_called_after_what_is_divided_by(size: int, tile: int, layout: str, label: str) -> None:
    """1/S is no name of 1/64 where a page holds 16 tokens and 64 are read."""
    document = formula(length=4096, budget=512, page_size=size, physical_tile=tile, summary_layout=layout)
    (line,) = (line for line in explain(document) if line.startswith("read ratio") and "K/P" in line)
    assert line.startswith(f"read ratio {label}")


@pytest.mark.parametrize("options", [{"length": 4096, "last_page_len": 5}, {"length": 4085}])
def test_a_partial_last_page(options: dict[str, int]) -> None:
    document = formula(budget=512, **options)
    assert document["seq_len"] == 255 * 16 + 5
    assert (document["num_pages"], document["num_selected"], document["last_page_len"]) == (256, 32, 5)
    assert document["dense_bytes"] == eq09_dense_bytes(256, 4085)
    assert document["selected_bytes"] == eq09_dense_bytes(256, 31 * 16 + 5)
    assert document["rho"] == eq12_read_ratio(16, 32, 256)
    assert document["byte_ratio"] == document["quest_bytes"] / document["dense_bytes"] != document["rho"]
    assert any("the last page holds 5 of 16 tokens" in line for line in explain(document))


def test_last_page_len_may_repeat_what_the_length_leaves() -> None:
    assert formula(length=4085, budget=512, last_page_len=5) == formula(length=4085, budget=512)
    assert formula(length=4096, budget=512, last_page_len=16) == formula(length=4096, budget=512)


def test_a_group_reads_its_union() -> None:
    most = formula(length=65536, budget=1024, heads=8, kv_heads=1)
    assert (most["group_size"], most["union_ratio"], most["union_pages"]) == (8, 8.0, 512)
    assert most["rho"] == most["byte_ratio"] == 1 / 16 + 512 / 4096
    assert "the most; a measured one may be lower" in most["messages"][0]
    shared = formula(length=65536, budget=1024, heads=8, kv_heads=1, union_ratio=1.0)
    assert shared["rho"] == 1 / 16 + 64 / 4096
    assert "|union| / K = 1 (as given), 64 of 4096 pages" in shared["messages"][0]
    capped = formula(length=4096, budget=1024, heads=8, kv_heads=1)
    assert capped["union_pages"] == 256
    assert capped["rho"] == 1 / 16 + 1
    assert any("no less than dense" in message for message in capped["messages"])


# Budgets.


@pytest.mark.parametrize(
    ("length", "budget"),
    [(1024, 1024), (1024, 1025), (1024, 65536), (1000, 1000), (1000, 1001), (1000, 1008)],
)
def test_a_budget_over_the_length_costs_more_than_dense(length: int, budget: int) -> None:
    document = formula(length=length, budget=budget)
    assert document["num_selected"] == document["num_pages"]
    assert document["rho"] == 1 + 1 / 16
    assert document["selected_bytes"] == document["dense_bytes"]
    (message,) = document["messages"]
    assert "rho = 1/16 + " in message
    assert "= 1.0625, and costs more than dense." in message
    assert message in explain(document)


def test_a_transposed_summary_halves_the_index_read() -> None:
    """64K in pages of 16, K = 256: 1/32 + 1/16 = 0.09375 instead of 1/16 + 1/16."""
    paired, transposed = (formula(**ARTICLE, summary_layout=layout) for layout in ("paired", "transposed"))
    assert transposed["rho"] == 1 / 32 + 256 / 4096 == 0.09375
    assert transposed["index_bytes"] == paired["index_bytes"] / 2
    assert transposed["resident_summary_bytes"] == paired["resident_summary_bytes"]  # 4096 pages: no slack
    line = "read ratio 1/(2S) + K/P, eq. (12) over a transposed summary (ours): 0.5/16 + 256/4096 = 0.09375"
    assert line in explain(transposed)
    assert not any("transposed" in line for line in explain(paired))


def test_a_group_picks_more_rows() -> None:
    document = formula(**{**ARTICLE, "heads": 4}, summary_layout="transposed", union_ratio=1.0)
    assert document["row_share"] == 15 / 16
    assert document["rho"] == 15 / 256 + 1 / 16
    assert any(line.startswith("read ratio (1 - 2^-4)/S + K/P") for line in explain(document))
    assert any("pick 0.9375 of the min and max rows" in message for message in document["messages"])


def test_the_resident_bytes_hold_the_slack_of_blocks() -> None:
    document = formula(length=16 * 65, budget=64, summary_layout="transposed")
    assert document["resident_summary_bytes"] == 2 * 128 * 128 * 2


def test_one_of_a_kind_is_one() -> None:
    """A token, a page and a head: no "1 tokens in 1 pages"."""
    with pytest.raises(QuestprofError, match="shape '1 query head, 2 KV heads, head_dim 128'"):
        formula(**{**ARTICLE, "heads": 1, "kv_heads": 2})
    one = formula(**{**ARTICLE, "length": 1, "page_size": 1, "budget": 1})
    said = " ".join([*explain(one), *one["messages"]])
    assert said.startswith("1 token in 1 page of 1; token budget 1: 1 page a query head")
    assert "covers the one token: " in said
    assert re.findall(r"(?<![\d.])1 (?:tokens|pages|heads|layers|requests)\b", said) == []
    with pytest.raises(QuestprofError, match="the last page of 1 slot holds 1 token"):
        formula(**{**ARTICLE, "page_size": 1}, last_page_len=2)


def test_a_budget_is_whole_pages() -> None:
    document = formula(length=4096, budget=100)
    assert document["num_selected"] == 6
    assert document["messages"] == ["A token budget of 100 is 6 whole pages of 16: 96 tokens."]
    assert formula(length=4096, budget=16)["num_selected"] == 1


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 64), st.integers(1, 300), st.integers(1, 4), st.data())
def test_rho_is_the_ratio_of_the_bytes_on_full_pages(
    page_size: int, num_pages: int, group_size: int, data: st.DataObject
) -> None:
    document = formula(
        length=page_size * num_pages,
        page_size=page_size,
        budget=page_size * data.draw(st.integers(1, num_pages + 3)),
        heads=2 * group_size,
        kv_heads=2,
        dtype=data.draw(st.sampled_from(["fp16", "fp32", "int8"])),
        summary_dtype=data.draw(st.sampled_from([None, "fp32"])),
        summary_layout=data.draw(st.sampled_from(["paired", "transposed"])),
        physical_tile=data.draw(st.sampled_from([None, 1, 8, 16])),
    )
    assert document["rho"] == pytest.approx(document["quest_bytes"] / document["dense_bytes"], rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.integers(16, 4000), st.integers(16, 5000), st.integers(16, 5000))
def test_rho_never_falls_with_the_budget(length: int, one: int, other: int) -> None:
    low, high = (formula(length=length, budget=budget) for budget in sorted((one, other)))
    assert low["rho"] <= high["rho"] <= 1 + 1 / 16
    assert low["quest_bytes"] <= high["quest_bytes"]


# What is refused, the list, the start-up.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0}, "length 0"),
        ({"length": -5}, "length -5"),
        ({"page_size": 0}, "page size 0"),
        ({"page_size": -1}, "page size -1"),
        ({"budget": 15}, "token budget 15"),
        ({"budget": 0}, "token budget 0"),
        ({"budget": -16}, "token budget -16"),
        ({"last_page_len": 0}, "last page length 0"),
        ({"last_page_len": 17}, "last page length 17"),
        ({"length": 65530, "last_page_len": 5}, "last page length 5"),
        ({"physical_tile": 0}, "physical tile 0"),
        ({"union_ratio": 1.5}, "union ratio 1.5"),
        ({"heads": 4, "union_ratio": 0.5}, "union ratio 0.5"),
        ({"heads": 4, "union_ratio": 4.5}, "union ratio 4.5"),
        ({"heads": 3, "kv_heads": 2}, "shape"),
        ({"heads": 0}, "shape"),
        ({"kv_heads": 0}, "shape"),
        ({"head_dim": 0}, "shape"),
        ({"layers": 0}, "shape"),
        ({"batch": 0}, "lengths ()"),
        ({"dtype": "fp64"}, "shape"),
        ({"summary_dtype": "float"}, "shape"),
        ({"num_workers": 0}, "0 workers"),
        ({"summary_layout": "transpose"}, "summary layout 'transpose'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(QuestprofError) as caught:
        formula(**{**ARTICLE, **options})
    assert words in caught.value.what
    assert caught.value.why
    assert caught.value.fix.endswith(".")
    assert caught.value.status == Exit.USAGE == 2


def test_the_list_is_json_and_complete() -> None:
    listed = equation_list()
    assert [entry["number"] for entry in listed] == list(range(1, 16))
    assert listed[11] == {
        "number": 12,
        "name": "read ratio",
        "section": "paper §3.5, article §2",
        "summary": "rho = 1/S + K/P",
    }
    assert json.loads(json.dumps(listed)) == listed


def test_neither_import_nor_use_loads_torch_or_numpy() -> None:
    code = (
        "import sys; from questprof.formula import equation_list, explain, formula;"
        "explain(formula(length=65536, budget=4096)); equation_list();"
        "print([m for m in ('torch', 'numpy', 'triton', 'numba') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"
