"""The keys of a Hugging Face config.json, as fields of a ModelConfig; what is not Llama-like is refused.

Pure. A key is refused by name when a step built from the others would compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from questprof.decode.rope import RopeScaling
from questprof.errors import QuestprofError

MODEL_TYPES = ("llama", "mistral")
NAMES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_qo_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}
"""Fields without a default, by the key they are read from."""
PLAIN_ONLY = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "sliding_window": None,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
}
"""Keys with the one value (or absence) that the step implements."""


def from_hf(table: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Keyword arguments of ModelConfig but its name; QuestprofError names the key that does not fit."""
    kind = table.get("model_type")
    if kind not in MODEL_TYPES:
        _refuse(source, "model_type", kind, f"only {' and '.join(MODEL_TYPES)} are Llama-like here")
    for key, only in PLAIN_ONLY.items():
        if table.get(key, only) not in (only, None):
            _refuse(source, key, table[key], f"the step knows {only!r} only")
    for key in table:
        if "expert" in key and table[key]:
            _refuse(source, key, table[key], "a mixture of experts is not Llama-like")
    fields = {name: _whole(table, key, source) for name, key in NAMES.items()}
    heads = fields["num_qo_heads"]
    fields["num_kv_heads"] = _whole(table, "num_key_value_heads", source, heads)
    fields["head_dim"] = _whole(table, "head_dim", source, fields["hidden_size"] // max(1, heads))
    fields["max_position_embeddings"] = _whole(table, "max_position_embeddings", source, 2048)
    theta, scaling = _rope(table, source)
    return {
        **fields,
        "rms_norm_eps": _number(table, "rms_norm_eps", source, 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": bool(table.get("tie_word_embeddings", False)),
        "attention_bias": bool(table.get("attention_bias", False)),
    }


def _rope(table: Mapping[str, Any], source: str) -> tuple[float, RopeScaling | None]:
    """(theta, scaling); newer files keep both in `rope_parameters`."""
    key = "rope_parameters" if table.get("rope_parameters") else "rope_scaling"
    rope = table.get(key) or {}
    if not isinstance(rope, dict):
        _refuse(source, key, rope, "an object was expected")
    where = rope if "rope_theta" in rope else table
    theta = _number(where, "rope_theta", source, 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", None):
        return theta, None
    if kind not in ("linear", "llama3"):
        _refuse(source, f"{key}.rope_type", kind, "default, linear and llama3 are known")
    names: tuple[str, ...] = ("factor",)
    if kind == "llama3":
        names += ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    values: dict[str, Any] = {name: _number(rope, name, source) for name in names}
    if kind == "llama3":
        values["original_max_position_embeddings"] = int(values["original_max_position_embeddings"])
    return theta, RopeScaling(kind=kind, **values)


def _whole(table: Mapping[str, Any], key: str, source: str, default: int | None = None) -> int:
    value = table.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        _refuse(source, key, value, "a whole number above 0 was expected")
    return int(value)


def _number(table: Mapping[str, Any], key: str, source: str, default: float | None = None) -> float:
    value = table.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        _refuse(source, key, value, "a number above 0 was expected")
    return float(value)


def _refuse(source: str, key: str, value: Any, why: str) -> NoReturn:
    raise QuestprofError(
        f"{key} {value!r} in {source}", why, "Give the config.json of a Llama-like model, or a preset's name."
    )
