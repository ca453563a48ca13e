"""The step on a CPU: against transformers' Llama, budgets against dense, ragged batches, layers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from decode_models import SMALL, make_step, random_tokens, run_steps
from msgspec.structs import replace

from questprof import backends
from questprof.decode.attention import Selection
from questprof.decode.caches import make_caches
from questprof.decode.config import ModelConfig
from questprof.decode.hf_config import from_hf
from questprof.decode.step import DecodeStep, layer_budgets_of
from questprof.decode.weights import ModelWeights, build_weights, random_source, state_source
from questprof.errors import QuestprofError

transformers = pytest.importorskip("transformers", reason="the oracle of whole models is transformers' Llama")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def oracle(seed: int = 0, **changes: Any) -> Any:
    """A float32 Llama of transformers with normal weights, norms and biases away from 1 and 0."""
    options = {
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        **changes,
    }
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options)).eval()
    for parameter in model.parameters():
        noise = torch.randn_like(parameter) * (0.06 if parameter.dim() > 1 else 0.1)
        parameter.data = noise if parameter.dim() > 1 else parameter.data + noise
    return model


def weights_of(model: Any, batch_size: int) -> ModelWeights:
    fields = from_hf(json.loads(model.config.to_json_string()), "the oracle")
    config = ModelConfig(name="oracle", **fields)
    source = state_source(config, model.state_dict(), "cpu", torch.float32)
    return build_weights(config, "fp32", "cpu", batch_size, source)


def prefilled(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [num_steps, batch_size, vocab_size] of one forward pass over all of tokens [steps, batch]."""
    with torch.no_grad():
        return model(tokens.t()).logits.transpose(0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 2, "rope_parameters": LLAMA3},
        {"tie_word_embeddings": True, "attention_bias": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    ],
    ids=["mha", "gqa llama3", "tied biased", "linear"],
)
def test_consecutive_steps_are_the_prefill_of_transformers_llama(changes: dict[str, Any]) -> None:
    model, tokens = oracle(**changes), random_tokens(37, 2)
    weights, wanted = weights_of(model, 2), prefilled(model, tokens)
    for policy, options in (("dense", {}), ("quest", {"token_budget": 64, "dense_layers": 1})):
        found = run_steps(make_step(weights, policy, (0, 0), (37, 37), **options), tokens)
        assert (found - wanted).abs().max() < 1e-4
        assert wanted.abs().max() > 1


def test_a_small_budget_is_another_result() -> None:
    # What the check above would miss if no page were ever left out.
    model, tokens = oracle(), random_tokens(70, 1)
    weights, wanted = weights_of(model, 1), prefilled(model, tokens)
    step = make_step(weights, "quest", (0,), (70,), token_budget=32, dense_layers=0)
    found = run_steps(step, tokens)
    assert (found[:32] - wanted[:32]).abs().max() < 1e-4
    assert (found[60:] - wanted[60:]).abs().max() > 1e-2


@pytest.fixture(scope="module", params=["fp32", "bf16", "int4"])
def small(request: pytest.FixtureRequest) -> ModelWeights:
    return build_weights(SMALL, request.param, "cpu", 2)


@pytest.mark.parametrize("layout", ["paired", "transposed"])
def test_a_budget_of_all_tokens_is_the_dense_step(small: ModelWeights, layout: str) -> None:
    tokens, lengths, most = random_tokens(5, 2), (14, 70), (40, 90)
    dense = run_steps(make_step(small, "dense", lengths, most), tokens)
    quest = run_steps(
        make_step(small, "quest", lengths, most, token_budget=96, dense_layers=0, summary_layout=layout),
        tokens,
    )
    unit = torch.finfo(small.dtype).eps
    assert (quest - dense).abs().max() <= 16 * unit * dense.abs().max()
    assert dense.float().std() > 0.3


def test_ragged_batches_are_their_requests_alone() -> None:
    lengths, tokens = (5, 130, 64), random_tokens(20, 3)
    options: dict[str, Any] = {"token_budget": 32, "dense_layers": 1, "summary_layout": "transposed"}
    model = oracle(num_key_value_heads=2)
    together = run_steps(
        make_step(weights_of(model, 3), "quest", (0, 0, 0), (60, 60, 60), **options),
        torch.cat([random_tokens(40, 3, seed=9), tokens]),
    )
    for request in range(3):
        alone = run_steps(
            make_step(weights_of(model, 1), "quest", (0,), (60,), **options),
            torch.cat([random_tokens(40, 3, seed=9), tokens])[:, request : request + 1],
        )
        assert (together[:, request] - alone[:, 0]).abs().max() < 1e-4
    ragged = make_step(weights_of(model, 3), "quest", lengths, (40, 150, 90), **options)
    found = run_steps(ragged, tokens)
    assert ragged.caches.lead.seq_lens == (25, 150, 84)
    assert not found.isnan().any()


def test_steps_follow_the_tokens_they_sample() -> None:
    model = oracle()
    step = make_step(weights_of(model, 1), "dense", (0,), (12,))
    tokens = [7]
    step.set_tokens(tokens)
    for _ in range(12):
        step.advance()
        step.run_eager()
        tokens.append(int(step.tokens[0]))
    wanted = prefilled(model, torch.tensor(tokens[:-1])[:, None])[:, 0].argmax(dim=-1)
    assert tokens[1:] == wanted.tolist()
    with pytest.raises(QuestprofError, match=r"made for \(12,\) tokens"):
        step.advance()


def test_layers_have_their_own_budgets_and_the_first_ones_are_dense() -> None:
    assert layer_budgets_of(SMALL, "quest", 64, (), 2) == (0, 0, 64)
    assert layer_budgets_of(SMALL, "quest", 0, (32, 0, 48), 0) == (32, 0, 48)
    assert layer_budgets_of(SMALL, "quest", 0, (32, 16, 48), 1) == (0, 16, 48)
    assert layer_budgets_of(SMALL, "dense", 64, (), 0) == (0, 0, 0)
    weights = build_weights(SMALL, "fp32", "cpu", 1)
    step = make_step(weights, "quest-open", (100,), (120,), layer_budgets=(32, 0, 48), dense_layers=0)
    stages = [(part.layer, part.name) for part in step.parts if part.name in ("select", "dense")]
    assert stages == [(0, "select"), (1, "dense"), (2, "select")]
    step.advance()
    step.run_eager()
    assert {budget: s.num_selected(step.caches.lead) for budget, s in step._selections.items()} == {
        32: [2],
        48: [3],
    }


def test_a_policy_that_selects_open_may_leave_the_tail_out() -> None:
    weights = build_weights(SMALL, "fp32", "cpu", 1, random_source(SMALL, "cpu", torch.float32, 3))
    taken = {}
    for policy in ("quest", "quest-open"):
        step = make_step(weights, policy, (161,), (180,), token_budget=16, dense_layers=0)
        step.advance()
        step.run_eager()
        taken[policy] = step._selections[16].page_ids[:, 0].tolist()
    assert set(taken["quest"]) == {10}
    assert set(taken["quest-open"]) != {10}


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("oracle", {}, "policy 'oracle'"),
        ("quest", {"token_budget": 15}, "a page has 16 tokens"),
        ("quest", {"layer_budgets": (16, 16)}, "2 layer budgets"),
        ("quest", {"token_budget": 16, "dense_layers": 4}, "4 dense layers"),
        ("quest", {"token_budget": 16, "layer_budgets": (-1, 16, 16)}, "budgets"),
        ("dense", {"backend": "sdpa"}, "it has no stage"),
    ],
)
def test_what_cannot_be_is_refused(policy: str, options: dict[str, Any], message: str) -> None:
    weights = build_weights(replace(SMALL, num_layers=3), "fp32", "cpu", 1)
    with pytest.raises(QuestprofError, match=message):
        make_step(weights, policy, (20,), (30,), **options)


def test_weights_for_another_batch_are_refused() -> None:
    weights = build_weights(SMALL, "fp32", "cpu", 2)
    with pytest.raises(QuestprofError, match="bound for 2 requests"):
        make_step(weights, "dense", (20,), (30,))


def test_a_missing_tensor_is_named() -> None:
    model = oracle()
    state = {key: value for key, value in model.state_dict().items() if "layers.1.mlp.up" not in key}
    fields = from_hf(json.loads(model.config.to_json_string()), "the oracle")
    config = ModelConfig(name="oracle", **fields)
    source = state_source(config, state, "cpu", torch.float32)
    with pytest.raises(QuestprofError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        build_weights(config, "fp32", "cpu", 1, source)


def test_what_launches_are_planned_for_is_the_longest() -> None:
    caches = make_caches(SMALL, torch.float32, "cpu", (40, 200))
    assert caches.most_pages == (3, 13)
    selection = Selection(caches, 100, 4)
    assert selection.page_ids.shape == (4, 3 + 7)  # within 100 tokens a request has up to 7 pages
    assert selection.most_selected == 7
    step = DecodeStep(
        SMALL,
        build_weights(SMALL, "fp32", "cpu", 2),
        caches,
        "quest",
        backend=backends.load("questprof", "cpu"),
        token_budget=100,
    )
    assert step.buffers.scores.shape == (4, 16)
