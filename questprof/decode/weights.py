"""The weights of a model on a device: random ones from a seed, or those of a Hugging Face state dict.

Random matrices have a standard deviation of 1 / sqrt(columns), those that write to the residual stream less
by sqrt(2 * layers), so that activations and logits stay near a variance of 1 whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from questprof.decode.config import (
    Device,
    ModelConfig,
    activation_dtype,
    check_weight_format,
    linear_bytes,
)
from questprof.decode.linear import Linear, Task, choose
from questprof.decode.operations import Operations, load_operations
from questprof.decode.records import LinearChoice
from questprof.decode.variants import Stored, Variant, variants
from questprof.errors import QuestprofError

if TYPE_CHECKING:
    import torch

Source = Callable[[str, int], "torch.Tensor"]
"""source(name, layer) gives one tensor in the activations' dtype on the device; layer -1: of no layer.

Names: embedding, final_norm, head; input_norm, post_norm, qkv, out_proj, gate_up, down, qkv_bias,
out_proj_bias.
"""
MATRICES = ("qkv", "out_proj", "gate_up", "down")


@dataclass(frozen=True)
class LayerWeights:
    """One layer."""

    input_norm: torch.Tensor
    post_norm: torch.Tensor
    linears: dict[str, Linear]


@dataclass(frozen=True)
class ModelWeights:
    """A model's weights, bound to the products that are fastest at `batch_size` rows."""

    config: ModelConfig
    weight_format: str
    device: Device
    batch_size: int
    dtype: torch.dtype
    embedding: torch.Tensor
    final_norm: torch.Tensor
    head: Linear
    layers: tuple[LayerWeights, ...]
    operations: Operations
    choices: tuple[LinearChoice, ...]


def build_weights(
    config: ModelConfig,
    weight_format: str,
    device: Device,
    batch_size: int,
    source: Source | None = None,
    *,
    seed: int = 0,
    cache_bytes: int = 0,
    dependent: bool | None = None,
) -> ModelWeights:
    """The weights that `source` gives (random ones without it), each matrix by its fastest variant.

    The variants of a matrix are measured once, on the first layer's. `cache_bytes` is the last-level cache's
    size. `dependent`: the project's kernels may start before the one before has ended; None: where it can.
    """
    import torch
    from questprof_kernels.paged_cache import DTYPES

    check_weight_format(config, weight_format)
    dtype = DTYPES[activation_dtype(weight_format, device)]
    source = source or random_source(config, device, dtype, seed)
    operations = load_operations(device, dependent)
    embedding = source("embedding", -1)
    builder = _Builder(config, weight_format, device, batch_size, dtype, operations, cache_bytes, {}, [])
    layers = tuple(builder.layer(source, index) for index in range(config.num_layers))
    plain = Stored(embedding if config.tie_word_embeddings else source("head", -1))
    head = builder.linear("head", plain, activation_dtype(weight_format, device))
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what variants were compared with makes room for the caches
    return ModelWeights(
        config=config,
        weight_format=weight_format,
        device=device,
        batch_size=batch_size,
        dtype=dtype,
        embedding=embedding,
        final_norm=source("final_norm", -1),
        head=head,
        layers=layers,
        operations=operations,
        choices=tuple(builder.choices),
    )


@dataclass(frozen=True)
class _Builder:
    """Builds linears, choosing a variant for each matrix the first time it comes."""

    config: ModelConfig
    weight_format: str
    device: Device
    batch_size: int
    dtype: torch.dtype
    operations: Operations
    cache_bytes: int
    chosen: dict[str, Variant]
    choices: list[LinearChoice]

    def layer(self, source: Source, index: int) -> LayerWeights:
        """Layer number `index`."""
        linears = {}
        for name in MATRICES:
            biased = self.config.attention_bias and name in ("qkv", "out_proj")
            bias = source(f"{name}_bias", index) if biased else None
            linears[name] = self.linear(name, self._stored(source(name, index), bias), self.weight_format)
        return LayerWeights(source("input_norm", index), source("post_norm", index), linears)

    def linear(self, name: str, stored: Stored, weight_format: str) -> Linear:
        """Matrix `name` by its chosen variant."""
        import torch

        gated = name == "gate_up"
        size = stored.rows // 2 if gated else stored.rows
        empty = partial(torch.empty, dtype=self.dtype, device=self.device)
        x, out = empty((self.batch_size, stored.columns)).normal_(), empty((self.batch_size, size))
        num_bytes = linear_bytes(stored.rows, stored.columns, weight_format)
        swiglu = self.operations.swiglu if gated else None
        task = Task(name, stored, x, out, num_bytes, swiglu, self._norm(stored.columns))
        if name not in self.chosen:
            candidates = variants(
                weight_format, self.device, self.batch_size, gated=gated, dependent=self.operations.dependent
            )
            self.chosen[name], found = choose(task, candidates, self.cache_bytes)
            self.choices.extend(found)
        return task.bind(self.chosen[name])

    def _norm(self, size: int) -> Callable[[torch.Tensor], None] | None:
        """The small kernel that writes what a product reads, for timing; None on a CPU."""
        import torch

        if self.device == "cpu":
            return None
        residual = torch.randn((self.batch_size, size), dtype=self.dtype, device=self.device)
        weight = torch.ones(size, dtype=self.dtype, device=self.device)
        return partial(self.operations.add_rms_norm, residual, None, weight, self.config.rms_norm_eps)

    def _stored(self, weights: torch.Tensor, bias: torch.Tensor | None) -> Stored:
        from questprof_kernels import int4

        if self.weight_format != "int4":
            return Stored(weights, bias=bias)
        numbers, scales = int4.quantise(weights)
        return Stored(None, numbers, scales, bias)


def random_source(config: ModelConfig, device: Device, dtype: torch.dtype, seed: int) -> Source:
    """Random tensors, the same for the same seed, device and order of calls."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    deep = (2 * config.num_layers) ** -0.5

    def source(name: str, layer: int) -> torch.Tensor:
        if name in config.linear_shapes:
            rows, columns = config.linear_shapes[name]
            scale = columns**-0.5 * (deep if name in ("out_proj", "down") else 1.0)
        elif name in ("embedding", "head"):
            rows, columns = config.vocab_size, config.hidden_size
            scale = 1.0 if name == "embedding" else columns**-0.5
        elif name.endswith("_norm"):
            return torch.ones(config.hidden_size, dtype=dtype, device=device)
        else:
            rows, columns, scale = 1, config.linear_shapes[name.removesuffix("_bias")][0], 0.1
        drawn = torch.randn((rows, columns), generator=generator, dtype=dtype, device=device).mul_(scale)
        return drawn[0] if name.endswith("_bias") else drawn

    return source


def state_source(
    config: ModelConfig, state: Mapping[str, torch.Tensor], device: Device, dtype: torch.dtype
) -> Source:
    """The tensors of a Hugging Face Llama state dict, fused as the step wants them.

    QuestprofError names a tensor that is missing.
    """
    import torch

    parts = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out_proj": ("self_attn.o_proj",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
        "input_norm": ("input_layernorm",),
        "post_norm": ("post_attention_layernorm",),
    }
    whole = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}

    def source(name: str, layer: int) -> torch.Tensor:
        kind = "bias" if name.endswith("_bias") else "weight"
        names = [whole[name]] if name in whole else parts[name.removesuffix("_bias")]
        prefix = "" if name in whole else f"model.layers.{layer}."
        keys = [f"{prefix}{part}.{kind}" for part in names]
        missing = [key for key in keys if key not in state]
        if missing:
            raise QuestprofError(
                f"weights of {config.name!r}", f"{missing[0]} is missing", "Give the whole state dict."
            )
        return torch.cat([state[key] for key in keys]).to(device=device, dtype=dtype).contiguous()

    return source
