"""Model configurations: presets, config.json files, bytes by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from questprof.decode import config as configs
from questprof.decode.config import load_config
from questprof.decode.rope import RopeScaling
from questprof.errors import QuestprofError
from questprof.model import shape_presets

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
}


def written(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in {**LLAMA, **changes}.items() if value != "-"}))
    return str(path)


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "mistral-7b-v0.3", "tiny"])
def test_presets_have_the_shapes_of_the_attention_presets(name: str) -> None:
    config = load_config(name)
    assert config.attention_shape("fp16") == shape_presets()[name]
    assert configs.validate(config) is config


def test_the_published_parameter_counts_come_out() -> None:
    # Llama-2-7B has 6,738,415,616 parameters, Llama-3.1-8B 8,030,261,248, Mistral-7B-v0.3 7,248,023,552.
    for name, parameters in (
        ("llama-2-7b", 6_738_415_616),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b-v0.3", 7_248_023_552),
    ):
        assert configs.weight_bytes(load_config(name), "fp16") == 2 * parameters


def test_int4_bytes_by_hand() -> None:
    # 4096 x 4096: half a byte each, and 32 scales of 2 bytes a row.
    assert configs.linear_bytes(4096, 4096, "int4") == 4096 * 2048 + 4096 * 32 * 2
    llama = load_config("llama-2-7b")
    plain = 2 * (2 * 32000 * 4096 + 65 * 4096)
    matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert configs.weight_bytes(llama, "int4") == plain + matrices // 2 + matrices // 128 * 2
    embedding = 32000 * 4096 * 2
    assert configs.step_weight_bytes(llama, "int4") == configs.weight_bytes(llama, "int4") - embedding


def test_cache_bytes_by_hand() -> None:
    # 128K tokens of 2 x 32 x 4096 numbers, 2 bytes each: 64 GiB; a box is as large as a token, one every 16.
    llama = load_config("llama-2-7b")
    assert configs.kv_bytes(llama, "fp16", [131072], 16) == (64 << 30) * 17 // 16
    one_token = configs.kv_bytes(llama, "fp16", [1], 16, "transposed")
    assert one_token == 2 * (16 + 64) * 4096 * 2 * 32  # a page and a block of 64 boxes


def test_a_config_json_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = load_config(written(tmp_path))
    assert config.name == "my-model"
    assert (config.head_dim, config.rope_theta, config.rope_scaling) == (64, 10000.0, None)
    assert load_config(str(tmp_path / "my-model")) == config
    assert load_config(written(tmp_path, num_key_value_heads="-")).num_kv_heads == 8


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_both_spellings_of_rope_scaling_are_read(tmp_path: Path, key: str) -> None:
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = {"rope_theta": 5e5}
    changes = {key: {**rope, **theta}} if key == "rope_parameters" else {key: rope, **theta}
    config = load_config(written(tmp_path, **changes))
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    linear = load_config(written(tmp_path, rope_scaling={"type": "linear", "factor": 4}))
    assert linear.rope_scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"hidden_size": "-"}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"head_dim": 96}, "head_dim"),
    ],
)
def test_what_is_not_llama_like_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(QuestprofError, match=key):
        load_config(written(tmp_path, **changes))


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(QuestprofError, match="cannot read"):
        load_config(str(broken))
    broken.write_text("[" * 100_000)
    with pytest.raises(QuestprofError, match=r"cannot read .*maximum recursion depth"):
        load_config(str(broken))
    broken.write_bytes(b"\xff{}")
    with pytest.raises(QuestprofError, match="cannot read"):
        load_config(str(broken))
    broken.write_text("[]")
    with pytest.raises(QuestprofError, match="no JSON object"):
        load_config(str(broken))
    with pytest.raises(QuestprofError, match="llama-2-7b"):
        load_config("llama-9")


def test_a_byte_order_mark_may_stand_first(tmp_path: Path) -> None:
    path = Path(written(tmp_path))
    plain = load_config(str(path))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_config(str(path)) == plain


def test_lengths_and_formats_that_cannot_be_are_refused(tmp_path: Path) -> None:
    config = load_config(written(tmp_path))
    configs.check_lengths(config, [4096, 1])
    with pytest.raises(QuestprofError, match="max_position_embeddings is 4096"):
        configs.check_lengths(config, [1, 4097])
    with pytest.raises(QuestprofError, match="int3"):
        configs.activation_dtype("int3", "cuda")
    odd = load_config(written(tmp_path, intermediate_size=1008))
    with pytest.raises(QuestprofError, match="down has 1008 columns"):
        configs.check_weight_format(odd, "int4")
    configs.check_weight_format(odd, "fp16")
