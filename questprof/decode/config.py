"""What a Llama-like model consists of: presets, config.json files, and the bytes it takes.

Pure: imports no torch. What the step cannot run is refused here, before anything is allocated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from questprof.decode.hf_config import from_hf
from questprof.decode.rope import RopeScaling
from questprof.errors import QuestprofError
from questprof.grid import read_config
from questprof.model import Shape
from questprof.structs import ByValue
from questprof.units import dtype_bytes

WEIGHT_FORMATS = ("fp16", "bf16", "fp32", "int4")
GROUP_SIZE = 128
"""Weights of a row that share a scale in format int4."""
SCALE_BYTES = 2
"""Bytes of a scale: fp16."""

Device = Literal["cpu", "cuda"]


class ModelConfig(ByValue, frozen=True):
    """The sizes of a Llama-like model; names as in the tool's shapes, others as in a config.json."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = False
    attention_bias: bool = False

    @property
    def q_size(self) -> int:
        """Elements of all query heads of a token."""
        return self.num_qo_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of all keys (or values) of a token in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) of the fused matrices of one layer, by the part that multiplies by them."""
        return {
            "qkv": (self.q_size + 2 * self.kv_size, self.hidden_size),
            "out_proj": (self.hidden_size, self.q_size),
            "gate_up": (2 * self.intermediate_size, self.hidden_size),
            "down": (self.hidden_size, self.intermediate_size),
        }

    def attention_shape(self, kv_dtype: str) -> Shape:
        """The attention shape of a layer, with a KV cache in `kv_dtype`."""
        return Shape(
            name=self.name,
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            kv_dtype=kv_dtype,
            num_layers=self.num_layers,
        )


def load_config(name_or_path: str) -> ModelConfig:
    """The preset of that name, or the model of a Hugging Face config.json (or of a folder that holds one).

    QuestprofError for an unknown name, an unreadable file, a model that is not Llama-like (it names the key).
    """
    if name_or_path in presets():
        return presets()[name_or_path]
    path = Path(name_or_path)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise QuestprofError(
            f"model {name_or_path!r}",
            "it is neither a preset nor a config.json",
            f"Choose one of {', '.join(presets())}, or give the path of a config.json.",
        )
    fix = "Give a Hugging Face config.json."
    table = read_config(path, fix)
    if not isinstance(table, dict):
        raise QuestprofError(str(path), "it holds no JSON object", fix)
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return validate(ModelConfig(name=name, **from_hf(table, str(path))))


@lru_cache(maxsize=1)
def presets() -> dict[str, ModelConfig]:
    """The models of models.toml by name."""
    table = tomllib.loads(Path(__file__).with_name("models.toml").read_text())
    return {name: _preset(name, entry) for name, entry in table.items()}


def _preset(name: str, entry: Mapping[str, Any]) -> ModelConfig:
    fields = {key: value for key, value in entry.items() if key != "source"}
    if "rope_scaling" in fields:
        fields["rope_scaling"] = RopeScaling(**fields["rope_scaling"])
    return ModelConfig(name=name, **fields)


def validate(config: ModelConfig) -> ModelConfig:
    """`config` itself; QuestprofError for sizes that no step can have."""
    sizes = {
        name: getattr(config, name)
        for name in (
            "hidden_size", "intermediate_size", "num_layers", "num_qo_heads", "num_kv_heads", "head_dim",
            "vocab_size", "max_position_embeddings",
        )
    }  # fmt: skip
    problems = [f"{name} is {size}" for name, size in sizes.items() if size < 1]
    if not problems and config.num_qo_heads % config.num_kv_heads:
        problems.append(
            f"{config.num_qo_heads} query heads do not divide into {config.num_kv_heads} KV heads"
        )
    if config.head_dim not in (64, 128):
        problems.append(f"head_dim is {config.head_dim}, and there are kernels for 64 and 128")
    if config.hidden_size % 16 or config.intermediate_size % 16:
        problems.append("hidden_size and intermediate_size must be multiples of 16")
    if problems:
        raise QuestprofError(f"model {config.name!r}", "; ".join(problems), "Give another model.")
    return config


def activation_dtype(weight_format: str, device: Device) -> str:
    """The dtype of activations and of the KV cache; int4 weights meet fp16 on a GPU and fp32 on a CPU.

    QuestprofError for an unknown weight format.
    """
    if weight_format not in WEIGHT_FORMATS:
        raise QuestprofError(
            f"weight format {weight_format!r}", "it is unknown", f"Choose one of {', '.join(WEIGHT_FORMATS)}."
        )
    if weight_format == "int4":
        return "fp16" if device == "cuda" else "fp32"
    return weight_format


def check_weight_format(config: ModelConfig, weight_format: str) -> None:
    """QuestprofError where the columns of a matrix do not divide into groups of int4."""
    if weight_format != "int4":
        return
    odd = {name: columns for name, (_, columns) in config.linear_shapes.items() if columns % GROUP_SIZE}
    if odd:
        listed = ", ".join(f"{name} has {columns} columns" for name, columns in odd.items())
        raise QuestprofError(
            f"int4 weights of {config.name!r}",
            f"{listed}, and a group has {GROUP_SIZE}",
            "Choose another weight format.",
        )


def linear_bytes(rows: int, columns: int, weight_format: str) -> int:
    """Bytes of one matrix; those of int4 with a scale a group."""
    if weight_format == "int4":
        return rows * columns // 2 + rows * (columns // GROUP_SIZE) * SCALE_BYTES
    return rows * columns * dtype_bytes(weight_format)


def layer_bytes(config: ModelConfig, weight_format: str) -> int:
    """Bytes of the matrices of one layer."""
    return sum(linear_bytes(*shape, weight_format) for shape in config.linear_shapes.values())


def weight_bytes(config: ModelConfig, weight_format: str, device: Device = "cuda") -> int:
    """Bytes of all weights. Embedding, head, norms and biases stay in the activations' dtype with int4."""
    wide = dtype_bytes(activation_dtype(weight_format, device))
    tables = (1 if config.tie_word_embeddings else 2) * config.vocab_size * config.hidden_size
    norms = (2 * config.num_layers + 1) * config.hidden_size
    biases = (config.q_size + 2 * config.kv_size + config.hidden_size) * config.num_layers
    plain = tables + norms + (biases if config.attention_bias else 0)
    return config.num_layers * layer_bytes(config, weight_format) + plain * wide


def step_weight_bytes(config: ModelConfig, weight_format: str, device: Device = "cuda") -> int:
    """Bytes of weights that one decode step reads: all but the embedding, which gives it a row a request."""
    wide = dtype_bytes(activation_dtype(weight_format, device))
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size * wide
    return weight_bytes(config, weight_format, device) - embedding


def kv_bytes(
    config: ModelConfig,
    kv_dtype: str,
    seq_lens: Iterable[int],
    page_size: int,
    summary_layout: str = "paired",
) -> int:
    """Bytes of K, V and summaries of all layers for requests of `seq_lens` tokens at last."""
    pages = [-(-length // page_size) for length in seq_lens]
    boxes = sum(pages) if summary_layout == "paired" else sum(-(-count // 64) * 64 for count in pages)
    numbers = 2 * (sum(pages) * page_size + boxes) * config.kv_size
    return config.num_layers * numbers * dtype_bytes(kv_dtype)


def check_lengths(config: ModelConfig, seq_lens: Iterable[int]) -> None:
    """QuestprofError where a request would grow past the model's maximum."""
    longest = max(seq_lens)
    if longest > config.max_position_embeddings:
        raise QuestprofError(
            f"length {longest} of {config.name!r}",
            f"its max_position_embeddings is {config.max_position_embeddings}",
            "Ask for shorter requests, fewer steps, or a long-context variant of the model.",
        )
