"""The grid syntax, shapes and blocks."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.backends import _LOADERS
from questprof.errors import Exit, QuestprofError
from questprof.grid import (
    CHOICES,
    QUEST_BACKENDS,
    WHOLE,
    Grid,
    check_names,
    parse_budgets,
    parse_sizes,
    plan_blocks,
    resolve_shape,
)
from questprof.model import Point, shape_presets
from questprof.store import read_profile
from questprof.structs import canonical_json


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8k,32k", (8192, 32768)),
        ("2k..16k", (2048, 4096, 8192, 16384)),
        ("2k..8k:+2k", (2048, 4096, 6144, 8192)),
        ("1000", (1000,)),
        ("8k,2k..8k", (2048, 4096, 8192)),
        ("2K..4k", (2048, 4096)),
        ("4k..4k", (4096,)),
    ],
)
def test_parse_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text, "length") == sizes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2k..1k", "downward"),
        ("2k..100k", "2k..128k"),
        ("2k..70k", "2k..64k"),
        ("banana", "not a whole number"),
        ("0", "at least 1"),
        ("2k..8k:+4k", "nearest end is 6k"),
        ("2k..8k:2k", "+"),
        ("0..8k", "doubled"),
        ("", "not a whole number"),
        ("8k,,9k", "not a whole number"),
        ("2k..8k:+0", "its step is 0"),
        ("2k..2k:+0", "its step is 0"),
    ],
)
def test_parse_sizes_refuses(text: str, says: str) -> None:
    with pytest.raises(QuestprofError) as caught:
        parse_sizes(text, "length")
    assert says in str(caught.value)
    assert caught.value.status == Exit.USAGE


@given(st.integers(1, 1 << 12), st.integers(0, 12))
def test_doubling_includes_both_ends(first: int, doublings: int) -> None:
    sizes = parse_sizes(f"{first}..{first << doublings}", "length")
    assert sizes == tuple(first << n for n in range(doublings + 1))


def test_presets_have_sources() -> None:
    text = (Path(__file__).parents[1] / "questprof" / "shapes.toml").read_text()
    assert set(shape_presets()) == {
        "llama-2-7b",
        "llama-3.1-8b",
        "mistral-7b-v0.3",
        "qwen3-8b",
        "smollm2-135m",
        "tiny",
    }
    assert text.count("\nsource = ") == len(shape_presets())


def test_overrides_rename_the_shape() -> None:
    shape = resolve_shape("llama-3.1-8b", kv_dtype="fp16", heads=16)
    assert (shape.name, shape.num_qo_heads, shape.num_kv_heads) == ("llama-3.1-8b*", 16, 8)
    kept = resolve_shape("llama-3.1-8b", kv_dtype="fp16", summary_dtype="fp16")
    assert (kept.name, kept.group_size, kept.summary_dtype) == ("llama-3.1-8b", 4, "")


def test_config_json(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = folder / "config.json"
    config.write_text(
        json.dumps(
            {
                "num_attention_heads": 16,
                "num_key_value_heads": 4,
                "hidden_size": 1024,
                "num_hidden_layers": 24,
            }
        )
    )
    shape = resolve_shape(str(config), kv_dtype="bf16")
    assert (shape.name, shape.num_qo_heads, shape.num_kv_heads, shape.head_dim, shape.num_layers) == (
        "my-model",
        16,
        4,
        64,
        24,
    )


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "not json",
        '{"num_attention_heads": 0, "hidden_size": 64, "num_hidden_layers": 1}',
        '{"num_attention_heads": "many", "hidden_size": 64, "num_hidden_layers": 1}',
        '{"num_attention_heads": 8, "num_hidden_layers": 1}',
        '{"num_attention_heads": 7, "hidden_size": 512, "num_hidden_layers": 1}',
        '{"num_attention_heads": 8, "num_key_value_heads": 2.7, "hidden_size": 64, "num_hidden_layers": 1}',
        '{"num_attention_heads": 8, "num_key_value_heads": true, "hidden_size": 64, "num_hidden_layers": 1}',
        '{"num_attention_heads": 8, "head_dim": Infinity, "num_hidden_layers": 1}',
        '{"num_attention_heads": 8, "kv_lora_rank": 512, "head_dim": 64, "num_hidden_layers": 1}',
        "[" * 100_000,
    ],
)
def test_config_that_is_no_transformer(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    with pytest.raises(QuestprofError, match=r"config\.json") as caught:
        resolve_shape(str(config), kv_dtype="fp16")
    assert caught.value.status == Exit.USAGE


@pytest.mark.parametrize(
    ("more", "kv_heads"),
    [("", 8), (', "multi_query": true', 1), (', "num_kv_heads": 2', 2), (', "num_key_value_heads": null', 8)],
)
def test_kv_heads_of_a_config(tmp_path: Path, more: str, kv_heads: int) -> None:
    text = f'{{"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 1{more}}}'
    (tmp_path / "config.json").write_text(text, encoding="utf-8-sig")
    shape = resolve_shape(str(tmp_path / "config.json"), kv_dtype="fp16")
    assert (shape.num_kv_heads, shape.head_dim) == (kv_heads, 64)


def test_repeated_shapes_are_one_and_baselines_alone_are_refused() -> None:
    shape = resolve_shape("llama-2-7b", kv_dtype="fp16")
    assert len(plan_blocks(_grid(shapes=(shape, shape)))) == 2
    with pytest.raises(QuestprofError, match="baselines only"):
        plan_blocks(_grid(backends=("sdpa",)))


def test_missing_config_and_unknown_preset(tmp_path: Path) -> None:
    with pytest.raises(QuestprofError, match="cannot read"):
        resolve_shape(str(tmp_path / "no.json"), kv_dtype="fp16")
    with pytest.raises(QuestprofError) as caught:
        resolve_shape("llama-9", kv_dtype="fp16")
    assert "llama-2-7b" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "overrides", "heads"),
    [
        ("llama-3.1-8b", {"heads": 64}, (64, 8)),
        ("llama-3.1-8b", {"heads": 8}, (8, 8)),
        ("llama-3.1-8b", {"heads": 4, "kv_heads": 4}, (4, 4)),
        ("llama-3.1-8b", {"heads": 16, "kv_heads": 2}, (16, 2)),
        ("llama-3.1-8b", {"kv_heads": 4}, (32, 4)),
        ("llama-2-7b", {"heads": 16}, (16, 16)),  # each query head has a KV head of its own
        ("llama-2-7b", {"kv_heads": 8}, (32, 8)),
        ("llama-2-7b", {"head_dim": 64}, (32, 32)),
        ("smollm2-135m", {"heads": 3}, (3, 3)),
    ],
)
def test_the_kv_heads_of_a_shape_stay(name: str, overrides: dict[str, int], heads: tuple[int, int]) -> None:
    found = resolve_shape(name, kv_dtype="fp16", **overrides)  # type: ignore[arg-type]
    assert (found.num_qo_heads, found.num_kv_heads) == heads


@pytest.mark.parametrize("heads", [4, 7, 12])
def test_query_heads_that_do_not_divide_among_the_kv_heads_are_refused(heads: int) -> None:
    with pytest.raises(QuestprofError, match=f"{heads} query heads do not divide into 8 KV heads"):
        resolve_shape("llama-3.1-8b", kv_dtype="fp16", heads=heads)


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(QuestprofError, match="1 query head does not divide into 2 KV heads"):
        resolve_shape("llama-2-7b", kv_dtype="float16", heads=1, kv_heads=2)
    with pytest.raises(QuestprofError, match="do not divide"):
        resolve_shape("llama-2-7b", kv_dtype="fp16", heads=9, kv_heads=2)
    with pytest.raises(QuestprofError, match="unknown"):
        resolve_shape("llama-2-7b", kv_dtype="float16")


def _grid(shape: str = "llama-2-7b", **changes: object) -> Grid:
    fields: dict[str, object] = {
        "shapes": (resolve_shape(shape, kv_dtype="fp16"),),
        "lengths": (2048, 4096),
        "page_sizes": (16,),
        "budgets": (1024, 2048),
        "batch_sizes": (1,),
        "device": "cpu",
    }
    return Grid(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_block_shares_one_cache_and_holds_baselines_first() -> None:
    blocks = plan_blocks(_grid())
    assert len(blocks) == 2
    points = blocks[0].points
    assert [(p.backend, p.policy, p.token_budget) for p in points] == [
        ("questprof", "dense", 0),
        ("sdpa", "dense", 0),
        ("questprof", "quest", 1024),
        ("questprof", "quest", 2048),
    ]
    assert {p.seq_len for p in points} == {2048}
    assert len({p.point_id for block in blocks for p in block.points}) == 8


def test_gqa_points_come_with_both_kinds_of_data() -> None:
    (block,) = plan_blocks(_grid("llama-3.1-8b", lengths=(2048,), budgets=(1024,)))
    quests = [p for p in block.points if p.policy == "quest"]
    assert [p.data for p in quests] == ["independent", "shared"]


def test_budget_smaller_than_a_page() -> None:
    with pytest.raises(QuestprofError, match="smaller than a page"):
        plan_blocks(_grid(budgets=(8, 1024)))


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("1k,all", (1024, WHOLE)),
        ("all", (WHOLE,)),
        ("ALL,4k,2k", (2048, 4096, WHOLE)),
        ("1k..4k", (1024, 2048, 4096)),
    ],
)
def test_all_is_a_budget_of_the_whole_length(text: str, budgets: tuple[int, ...]) -> None:
    assert parse_budgets(text) == budgets


@pytest.mark.parametrize("text", ["", "all,", "al", "0"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(QuestprofError, match="budget"):
        parse_budgets(text)


def test_a_budget_of_the_whole_length_is_that_of_each_block_and_no_point_twice() -> None:
    blocks = plan_blocks(_grid(budgets=(2048, WHOLE)))
    assert [[p.token_budget for p in b.points if p.policy == "quest"] for b in blocks] == [
        [2048],
        [2048, 4096],
    ]
    assert [p.num_selected for p in blocks[1].points[-1:]] == [(256,)]  # all 4096 / 16 pages
    assert len(plan_blocks(_grid(budgets=(WHOLE,), page_sizes=(128,), lengths=(64,)))) == 1


def test_a_users_stages_run_quest_and_are_a_baseline_where_they_bring_dense() -> None:
    grid = _grid(lengths=(2048,), budgets=(1024,), kernels=("base", "new"), kernels_with_dense=("new",))
    (block,) = plan_blocks(grid)
    assert [(p.backend, p.policy) for p in block.points] == [
        ("questprof", "dense"),
        ("sdpa", "dense"),
        ("new", "dense"),
        ("questprof", "quest"),
        ("base", "quest"),
        ("new", "quest"),
    ]
    (alone,) = plan_blocks(_grid(lengths=(2048,), budgets=(1024,), kernels=("base",), backends=("sdpa",)))
    assert [p.backend for p in alone.points] == ["sdpa", "base"]


def test_a_dense_that_is_anothers_is_no_baseline() -> None:
    (block,) = plan_blocks(_grid(lengths=(2048,), budgets=(1024,), backends=("questprof", "gather")))
    assert [(p.backend, p.policy) for p in block.points] == [
        ("questprof", "dense"),
        ("questprof", "quest"),
        ("gather", "quest"),
    ]


def test_baselines_alone_are_told_to_add_the_projects_stages() -> None:
    with pytest.raises(QuestprofError) as caught:
        plan_blocks(_grid(backends=("flashinfer",)))
    assert caught.value.fix == "Add questprof: --backends questprof,flashinfer."


def test_names() -> None:
    assert check_names("questprof, sdpa", "backend") == ("questprof", "sdpa")
    for text in ("magic", "", ","):
        with pytest.raises(QuestprofError):
            check_names(text, "backend")


def test_layouts_orders_and_keys_have_blocks_of_their_own_with_their_own_baselines() -> None:
    """2 layouts x 2 page orders x 2 kinds of keys; normal keys come with both kinds of queries."""
    blocks = plan_blocks(
        _grid(
            "llama-3.1-8b",
            lengths=(2048,),
            budgets=(1024,),
            summary_layouts=("paired", "transposed"),
            page_orders=("shuffled", "scattered"),
            data=("shared", "ramp", "independent"),
            extras=("append",),
        )
    )
    assert [block.title.partition("length 2k")[2] for block in blocks] == [
        "", " ramp", " scattered", " scattered ramp", " transposed", " transposed ramp",
        " transposed scattered", " transposed scattered ramp",
    ]  # fmt: skip
    for block in blocks:
        first = block.points[0]
        shared = ("summary_layout", "page_order", "pool_bytes", "seq_len")
        assert {tuple(getattr(p, name) for name in shared) for p in block.points} == {
            tuple(getattr(first, name) for name in shared)
        }
        assert [p.policy for p in block.points[:2]] == ["dense", "dense"]
        assert [p.data for p in block.points] in (
            ["independent", "independent", "shared", "independent"],
            ["ramp", "ramp", "ramp"],
        )
        assert first.pool_bytes == (100 << 30 if first.page_order == "scattered" else 0)
        assert block.extras == ("append",)
    ids = [p.point_id for block in blocks for p in block.points]
    assert len(set(ids)) == len(ids)


def test_without_groups_shared_queries_are_independent_ones() -> None:
    (block,) = plan_blocks(_grid(lengths=(2048,), budgets=(1024,), data=("shared",)))
    assert [p.data for p in block.points] == ["independent"] * 3


def test_every_backend_with_the_quest_stages_runs_quest() -> None:
    backends = check_names("questprof,triton,sdpa", "backend")
    (block,) = plan_blocks(_grid(lengths=(2048,), budgets=(1024,), backends=backends))
    assert [p.backend for p in block.points if p.policy == "quest"] == ["questprof", "triton"]


def test_the_id_of_a_point_is_that_of_its_decoded_self() -> None:
    """Defaults are left out of it by identity: names from a command line must not change an id."""
    choices = {
        what: check_names(",".join(CHOICES[what]), what) for what in ("summary layout", "data", "page order")
    }
    for block in plan_blocks(
        _grid(
            "llama-3.1-8b",
            lengths=(2048,),
            backends=check_names(",".join(["questprof", "sdpa"]), "backend"),
            policies=check_names("".join(["qu", "est"]), "policy"),
            summary_layouts=choices["summary layout"],
            data=choices["data"],
            page_orders=choices["page order"],
        )
    ):
        for point in block.points:
            assert msgspec.json.decode(canonical_json(point), type=Point).point_id == point.point_id


def test_the_default_grid_has_the_ids_that_kept_profiles_hold() -> None:
    """Options as typed name the points of llama-2-7b at 2k, budget 1024, that profiles/ holds as read."""
    (block,) = plan_blocks(
        _grid(
            lengths=(2048,),
            budgets=(1024,),
            device="cuda",
            backends=check_names("questprof,sdpa", "backend"),
            policies=check_names("quest", "policy"),
            data=check_names("independent,shared", "data"),
            summary_layouts=check_names("paired", "summary layout"),
            page_orders=check_names("shuffled", "page order"),
        )
    )
    kept = read_profile(Path(__file__).parents[1] / "profiles" / "h200" / "first-kernels.jsonl")
    assert [p.point_id for p in block.points] == [
        r.point_id for r in kept.records if r.point.seq_len == 2048 and r.point.token_budget in (0, 1024)
    ]


@pytest.mark.parametrize(
    ("shape", "device", "dtype", "layout"),
    [
        ("llama-2-7b", "cuda", "fp16", "transposed"),
        ("llama-2-7b", "cuda", "bf16", "transposed"),
        ("llama-2-7b", "cuda", "fp32", "paired"),
        ("llama-2-7b", "cpu", "fp16", "paired"),
        ("llama-3.1-8b", "cuda", "fp16", "paired"),
    ],
)
def test_each_shape_gets_the_layout_that_is_faster_for_it(
    shape: str, device: str, dtype: str, layout: str
) -> None:
    shapes = (resolve_shape(shape, kv_dtype=dtype),)
    (block,) = plan_blocks(_grid(shapes=shapes, lengths=(2048,), budgets=(1024,), device=device))
    assert {point.summary_layout for point in block.points} == {layout}


def test_every_backend_there_is_can_be_asked_for() -> None:
    assert set(_LOADERS) <= set(CHOICES["backend"])
    assert set(QUEST_BACKENDS) <= set(CHOICES["backend"])


def test_a_folder_stands_for_the_config_in_it(tmp_path: Path) -> None:
    config = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = resolve_shape(str(tmp_path), kv_dtype="fp16")
    assert (shape.num_qo_heads, shape.num_kv_heads, shape.head_dim, shape.num_layers) == (6, 2, 64, 3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(QuestprofError, match=r"cannot read .*empty/config.json"):
        resolve_shape(str(tmp_path / "empty"), kv_dtype="fp16")


def test_a_wrong_name_is_told_what_every_command_takes() -> None:
    with pytest.raises(QuestprofError, match="there is no preset of that name") as refused:
        resolve_shape("nope", kv_dtype="fp16")
    assert "--" not in refused.value.fix
    assert refused.value.fix.endswith("or name a Hugging Face config.json.")
