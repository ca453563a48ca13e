"""plan.py: which steps a request asks for, and what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from questprof.amdahl.files import read_layer_budgets, read_lengths
from questprof.amdahl.plan import (
    Block,
    Request,
    parse_dense_layers,
    plan,
    remarks,
    spread,
)
from questprof.errors import Exit, QuestprofError
from questprof.recall.answers.layer_table import LayerTable, TableSource, write_layer_table

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def asked(**more: object) -> tuple[Block, ...]:
    return plan(Request("cpu", **({"lengths": "1k,2k", "budgets": "256,512"} | more)))  # type: ignore[arg-type]


def test_the_grid_of_a_request() -> None:
    """2 formats x 2 batches x 2 lengths are 8 blocks of a dense step and one a budget."""
    blocks = asked(weights="fp32,int4", batch="1,2")
    assert len(blocks) == 8
    assert [(b.weight_format, len(b.seq_lens), max(b.seq_lens)) for b in blocks[:4]] == [
        ("fp32", 1, 1024), ("fp32", 1, 2048), ("fp32", 2, 1024), ("fp32", 2, 2048)
    ]  # fmt: skip
    first = blocks[0]
    assert [(p.policy, p.token_budget) for p in first.points] == [
        ("dense", 0),
        ("quest", 256),
        ("quest", 512),
    ]
    assert {p.decode.dense_layers for p in first.quest if p.decode} == {2}
    assert {p.shape.kv_dtype for p in first.points} == {"fp32"}
    ids = [point.point_id for block in blocks for point in block.points]
    assert len(ids) == len(set(ids))


def test_defaults_answer_on_each_device() -> None:
    gpu = plan(Request("cuda"))
    assert {block.config.name for block in gpu} == {"llama-2-7b"}
    assert {block.weight_format for block in gpu} == {"fp16", "int4"}
    assert {max(block.seq_lens) for block in gpu} == {8192, 16384, 32768, 131072}
    assert {p.summary_layout for block in gpu for p in block.points} == {"transposed"}
    assert {block.config.name for block in plan(Request("cpu"))} == {"tiny"}


def test_dense_layers_and_backends() -> None:
    (block,) = asked(lengths="1k", budgets="256", dense_layers="0,2", backends="questprof,triton")
    assert [p.backend for p in block.dense] == ["questprof", "triton"]
    assert [p.decode.dense_layers for p in block.quest if p.decode] == [0, 2]
    moved = block.quest_with("triton")
    assert {p.decode.dense_backend for p in moved if p.decode} == {"triton"}
    assert {p.backend for p in moved} == {"questprof"}


def test_a_table_of_budgets_is_a_step_more(tmp_path: Path) -> None:
    path = tmp_path / "budgets.txt"
    path.write_text("# first layers\ndense, 0\n512  1k\n")
    assert read_layer_budgets(path, 4) == (0, 0, 512, 1024)
    (block,) = asked(lengths="2k", budgets="256", layer_budgets=path)
    tabled = block.quest[-1]
    assert tabled.decode is not None
    assert tabled.decode.layer_budgets == (0, 0, 512, 1024)
    assert tabled.decode.dense_layers == 0
    assert tabled.token_budget == 1024


def test_json_lists_are_tables_too(tmp_path: Path) -> None:
    path = tmp_path / "budgets.json"
    path.write_text("[0, 256, 512, 1024]")
    assert read_layer_budgets(path, 4) == (0, 256, 512, 1024)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("256 512", "the model has 4 layers"),
        ("0 0 dense 0", "keeps every layer dense"),
        ("1 2 x 4", "whole number"),
        ("<!doctype html><p>" + "x" * 500, "budgets.txt is not a table of layer budgets: budget '<!doctype'"),
        ('{"dense_layers": [9], "budgets": {"0": 256}}', "names layers 9"),
        ('{"dense_layers": [0], "budgets": {"1": 256}}', "lacks layers 2, 3"),
        ("", "0 budgets"),
        ("8 256 256 256", "smaller than a page"),
    ],
)
def test_tables_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "budgets.txt"
    path.write_text(text)
    with pytest.raises(QuestprofError) as error:
        asked(layer_budgets=path)
    assert said in str(error.value)
    assert error.value.status == Exit.USAGE


def test_a_suggestion_for_some_layers_is_named_as_one(tmp_path: Path) -> None:
    """A trace evaluated at layers 1 and 3 of four suggests for those; one of all four is a table."""
    source = TableSource("llama", "text", "id", 1024, 4096, 16, "quest", 0.95, 0.9, 0.5)
    path = tmp_path / "layers.json"
    write_layer_table(LayerTable((1,), {"3": 512}, source), path)
    with pytest.raises(QuestprofError) as error:
        read_layer_budgets(path, 4)
    assert "suggests budgets for 2 of the model's 4 layers" in str(error.value)
    assert "evaluated at layers 1, 3 alone" in str(error.value)
    write_layer_table(LayerTable((0, 1), {"2": 256, "3": 512}, source), path, force=True)
    assert read_layer_budgets(path, 4) == (0, 0, 256, 512)


def test_ragged_batches() -> None:
    """From a quarter of the longest to the longest."""
    assert spread(4096, 4) == (4096, 3072, 2048, 1024)
    assert spread(2, 4) == (2, 1, 1, 1)
    blocks = asked(lengths="1k", batch="1,4", ragged=True)
    assert [block.seq_lens for block in blocks] == [(1024,), (1024,) * 4, (1024, 768, 512, 256)]
    assert blocks[1].dense[0].seq_lens == ()
    assert blocks[2].dense[0].seq_lens == (1024, 768, 512, 256)
    assert blocks[2].dense[0].seq_len == 1024


def test_lengths_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("2k\n100\n1  # new\n")
    assert read_lengths(path) == (2048, 100, 1)
    (block,) = asked(lengths_file=path)
    assert block.seq_lens == (2048, 100, 1)
    for text in ("# nothing\n", "2k 0"):
        path.write_text(text)
        with pytest.raises(QuestprofError, match="lengths of"):
            read_lengths(path)
    with pytest.raises(QuestprofError, match="cannot read"):
        read_lengths(tmp_path / "absent.txt")


def config_file(tmp_path: Path, **changed: object) -> str:
    path = tmp_path / "model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(LLAMA | changed))
    return str(path)


def test_a_config_json_is_a_model(tmp_path: Path) -> None:
    (block,) = asked(shapes=(config_file(tmp_path),), lengths="4k", budgets="256")
    assert block.config.num_layers == 4
    assert block.dense[0].shape.num_kv_heads == 4


def test_lengths_past_the_models_maximum_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QuestprofError) as error:
        asked(shapes=(config_file(tmp_path),), lengths="8k")
    assert "8192" in error.value.what
    assert "max_position_embeddings is 4096" in error.value.why


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "gpt2"), ("hidden_act", "gelu"), ("sliding_window", 4096), ("num_local_experts", 8)],
)
def test_what_is_not_llama_like_is_refused_by_its_key(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(QuestprofError) as error:
        asked(shapes=(config_file(tmp_path, **{key: value}),))
    assert key in error.value.what


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"weights": "fp7"}, "unknown"),
        ({"budgets": "8"}, "smaller than a page"),
        ({"dense_layers": "5"}, "the model has 4 layers"),
        ({"shapes": ("no-such-model",)}, "neither a preset nor a config.json"),
        ({"backends": "nothing"}, "unknown"),
        ({"backends": "questprof,sdpa"}, "a step's grow"),
        ({"batch": "0"}, "at least 1"),
    ],
)
def test_what_cannot_be_asked(more: dict[str, object], said: str) -> None:
    with pytest.raises(QuestprofError) as error:
        asked(**more)
    assert said in f"{error.value.why} {error.value.fix}"


def test_dense_layers_are_a_list() -> None:
    assert parse_dense_layers("0,2,2", 4) == (0, 2)
    for text, wrong in (("a", "a"), ("1,", ""), ("2k", "2k"), ("-1", "-1")):
        with pytest.raises(QuestprofError) as caught:
            parse_dense_layers(text, 4)
        assert f"--dense-layers {text!r}: {wrong!r} is no number of layers" in str(caught.value)
        assert "8192" not in caught.value.fix  # which is a length


def test_the_preset_says_what_it_stands_for() -> None:
    long = plan(Request("cuda", lengths="32k"))
    assert "long-context variants, up to 128k" in remarks(long)[0]
    assert remarks(plan(Request("cuda", lengths="2k", budgets="512"))) == []
    assert remarks(asked()) == []
