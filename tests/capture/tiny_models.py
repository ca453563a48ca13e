"""Checkpoints of random weights, and a float64 forward pass that shares no code with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SIZES = {
    "vocab_size": 260,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
WORDS = "".join(
    f"Line {n} speaks of {n * 37 % 101} foxes, gr\N{LATIN SMALL LETTER O WITH DIAERESIS}ßer. "
    for n in range(40)
)


def save_model(folder: Path, family: str = "Llama", *, seed: int = 0, **changes: Any) -> Path:
    """A random causal LM of `family` with a tokenizer of bytes in `folder`."""
    text_config = getattr(transformers, f"{family}TextConfig", None)
    config = (text_config or getattr(transformers, f"{family}Config"))(**{**SIZES, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):  # not the ones they start as
                weight.add_(torch.randn_like(weight) * 0.3)
            elif "proj" in name:
                weight.mul_(8)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A token a byte, and a BOS before every text unless told not to."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="! $A", special_tokens=[("!", 0)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="!", eos_token="~").save_pretrained(folder)


def token_ids(text: str) -> list[int]:
    """What the tokenizer of `save_tokenizer` makes of `text`: its bytes' places in the alphabet of signs."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    sign = {byte: byte for byte in printable}
    for byte in range(256):
        sign.setdefault(byte, 256 + len(sign) - len(printable))
    rank = {code: place for place, code in enumerate(sorted(sign.values()))}
    return [rank[sign[byte]] for byte in text.encode()]


def oracle(folder: Path, ids: list[int]) -> list[dict[str, np.ndarray]]:
    """q, k, v [tokens, heads, head_dim] of every layer in float64, `q_pre_rope`, `k_pre_rope` among them.

    The Llama family: RMS norms, biases and q/k norms where the checkpoint has them, RoPE over halves.
    """
    config = json.loads((folder / "config.json").read_text())
    weights = {
        name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()
    }
    eps, heads, kv_heads = (
        config["rms_norm_eps"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
    )
    theta = config["rope_parameters"]["rope_theta"]
    x = weights["model.embed_tokens.weight"][ids]
    found = []
    for layer in range(config["num_hidden_layers"]):
        own = {
            name.removeprefix(f"model.layers.{layer}."): w
            for name, w in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }

        def project(name: str, h: np.ndarray, own: dict[str, np.ndarray] = own) -> np.ndarray:
            return h @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0.0)

        h = _norm(x, own["input_layernorm.weight"], eps)
        q = project("self_attn.q_proj", h).reshape(len(ids), heads, -1)
        k = project("self_attn.k_proj", h).reshape(len(ids), kv_heads, -1)
        v = project("self_attn.v_proj", h).reshape(len(ids), kv_heads, -1)
        if "self_attn.q_norm.weight" in own:
            q = _norm(q, own["self_attn.q_norm.weight"], eps)
            k = _norm(k, own["self_attn.k_norm.weight"], eps)
        turned_q, turned_k = _rope(q, theta), _rope(k, theta)
        found.append({"q": turned_q, "k": turned_k, "v": v, "q_pre_rope": q, "k_pre_rope": k})
        x = x + project("self_attn.o_proj", _attend(turned_q, turned_k, v))
        h = _norm(x, own["post_attention_layernorm.weight"], eps)
        gate = project("mlp.gate_proj", h)
        x = x + project("mlp.down_proj", gate / (1 + np.exp(-gate)) * project("mlp.up_proj", h))
    return found


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _rope(x: np.ndarray, theta: float) -> np.ndarray:
    """Element i and i + d/2 are a complex number, turned by position / theta^(2i/d)."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    tokens, heads, dim = q.shape
    out = np.empty((tokens, heads, dim))
    for head in range(heads):
        kv_head = head * k.shape[1] // heads
        for t in range(tokens):
            logits = k[: t + 1, kv_head] @ q[t, head] / np.sqrt(dim)
            weights = np.exp(logits - logits.max())
            out[t, head] = weights @ v[: t + 1, kv_head] / weights.sum()
    return out.reshape(tokens, -1)
