"""Captured q, k, v of random models of several architectures against a float64 forward pass."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import WORDS, oracle, save_model, save_tokenizer, token_ids
from transformers import AutoModelForCausalLM, DynamicCache

from questprof.capture import generating
from questprof.capture import recorder as recorder_module
from questprof.capture.captured import Captured
from questprof.capture.checkpoint import find_checkpoint
from questprof.capture.recorder import sees_all_before
from questprof.capture.run import Asked, Outcome, run_capture
from questprof.errors import Exit, QuestprofError

TOKENS = 96
ORACLE_FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": TOKENS},
    "Llama-yarnless-theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}


def _text(folder: Path, content: str = WORDS) -> Path:
    path = folder / "words.txt"
    path.write_text(content)
    return path


def _capture(model: Path, **changes: Any) -> tuple[Captured, Outcome]:
    asked = Asked(
        texts=(_text(model),), output=model / "trace.safetensors", max_tokens=TOKENS, queries="every:7"
    )
    asked = replace(asked, force=True, **changes)
    outcome = run_capture(find_checkpoint(model), asked)
    return Captured.open(asked.output), outcome


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama") / "tiny-llama")


@pytest.mark.parametrize("family", ORACLE_FAMILIES)
def test_every_layer_is_that_of_a_float64_forward_pass(tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "model", family.partition("-")[0], **ORACLE_FAMILIES[family])
    trace, _ = _capture(folder, pre_rope=True)
    header = trace.header
    assert (header.num_tokens, header.num_layers, header.layers) == (TOKENS, 3, (0, 1, 2))
    assert (header.num_qo_heads, header.num_kv_heads, header.head_dim) == (6, 2, 8)
    assert header.softmax_scale == pytest.approx(8**-0.5)
    assert header.query_positions == tuple(range(6, TOKENS, 7))
    expected = oracle(folder, token_ids(WORDS)[:TOKENS])
    for number in header.layers:
        layer = trace.layer(number)
        for name, array in expected[number].items():
            rows = list(header.query_positions) if name.startswith("q") else slice(None)
            close = np.abs(getattr(layer, name) - array[rows]).max() / np.abs(array).max()
            assert close < 2e-5, (number, name)


def test_the_oracle_tells_rope_and_norms_apart(llama: Path) -> None:
    """What the comparison would catch: no rotation, positions off by one, KV heads that are swapped."""
    layer = oracle(llama, token_ids(WORDS)[:TOKENS])[1]
    k, before = layer["k"], layer["k_pre_rope"]
    size = np.abs(k).max()
    assert np.abs(k - before).max() / size > 0.1
    assert np.abs(k[1:] - k[:-1]).max() / size > 0.1
    assert np.abs(k[:, ::-1] - k).max() / size > 0.1


def test_prefill_equals_token_by_token_decoding(llama: Path) -> None:
    """The KV cache of the model's own decode steps, with transformers' own attention."""
    trace, _ = _capture(llama)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32, attn_implementation="eager")
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        for token in token_ids(WORDS)[:TOKENS]:
            model(torch.tensor([[token]]), cache=cache, use_cache=True)
    for number in range(3):
        layer = trace.layer(number)
        for mine, theirs in ((layer.k, cache.layers[number].keys), (layer.v, cache.layers[number].values)):
            np.testing.assert_allclose(
                mine, theirs[0].transpose(0, 1).numpy(), atol=2e-5 * np.abs(mine).max()
            )


def test_one_layer_is_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer is recorded, the k of no other layer but the one before is in memory any more."""
    folder = save_model(tmp_path / "deep", num_hidden_layers=8)
    seen: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    original = recorder_module.Recorder.record

    def record(self: Any, module: Any, query: Any, key: Any, *rest: Any) -> None:
        gc.collect()
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(key))
        original(self, module, query, key, *rest)

    monkeypatch.setattr(recorder_module.Recorder, "record", record)
    trace, _ = _capture(folder, pre_rope=True)
    assert len(alive) == len(trace.header.layers) == 8
    assert max(alive) <= 1


def test_the_same_text_gives_the_same_trace(llama: Path, tmp_path: Path) -> None:
    first, _ = _capture(llama)
    second, _ = _capture(llama, output=tmp_path / "again.safetensors")
    assert first.header == second.header
    third, _ = _capture(llama, output=tmp_path / "other.safetensors", texts=(_text(tmp_path, WORDS[1:]),))
    assert third.header.text_sha256 != first.header.text_sha256
    assert third.header.model_sha256 == first.header.model_sha256


def test_another_model_has_another_hash(llama: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", seed=1)
    assert find_checkpoint(other).sha256() != find_checkpoint(llama).sha256()


def test_no_bos_is_added(llama: Path) -> None:
    """v of token 0 in layer 0 depends on that token alone: the text's first byte."""
    trace, _ = _capture(llama)
    expected = oracle(llama, token_ids(WORDS[0]))[0]["v"][0]
    np.testing.assert_allclose(trace.layer(0).v[0], expected, rtol=1e-4, atol=1e-5)


def test_windowed_layers_are_left_out_and_said(tmp_path: Path) -> None:
    """Gemma 3 in small: of six layers, the last sees everything."""
    folder = save_model(
        tmp_path / "gemma", "Gemma3", num_hidden_layers=6, sliding_window=16, query_pre_attn_scalar=8
    )
    trace, outcome = _capture(folder)
    assert trace.header.layers == (5,)
    assert trace.header.num_layers == 6
    assert outcome.warnings[0].startswith("layers 0, 1, 2, 3, 4 are left out")
    with pytest.raises(QuestprofError, match="no layer 0"):
        trace.layer(0)


def test_a_window_that_holds_the_text_leaves_nothing_out(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "wide", "Mistral", sliding_window=TOKENS)
    assert _capture(folder)[0].header.layers == (0, 1, 2)
    with pytest.raises(QuestprofError, match="no layer's attention sees all tokens"):
        _capture(folder, max_tokens=TOKENS + 1)


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("Gemma2", {"query_pre_attn_scalar": 8}, "caps its logits"),
        ("GptOss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "attention sinks"),
        ("Bloom", {}, "attention interface of transformers"),
    ],
)
def test_attention_that_is_no_plain_softmax_is_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], why: str
) -> None:
    folder = save_model(tmp_path / "model", family, **changes)
    with pytest.raises(QuestprofError, match=why):
        _capture(folder)
    assert not (folder / "trace.safetensors").exists()


def test_pre_rope_of_a_fused_projection_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "phi", "Phi3")
    assert _capture(folder)[0].header.layers == (0, 1, 2)
    with pytest.raises(QuestprofError, match="no q and k projections of their own"):
        _capture(folder, pre_rope=True)


def test_pre_rope_with_a_norm_after_it_is_refused(tmp_path: Path) -> None:
    """Hunyuan normalizes q and k after the rotation: what is projected is not what is rotated and used."""
    folder = save_model(tmp_path / "hunyuan", "HunYuanDenseV1")
    with pytest.raises(QuestprofError, match="q is no rotation of what it projects"):
        _capture(folder, pre_rope=True)


def test_pre_rope_allows_for_yarn(tmp_path: Path) -> None:
    """YaRN stretches q and k by 0.1 ln(factor) + 1 as it turns them."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
    trace, _ = _capture(save_model(tmp_path / "yarn", rope_parameters=yarn), pre_rope=True)
    layer = trace.layer(1)
    stretch = np.linalg.norm(layer.k, axis=-1) / np.linalg.norm(layer.k_pre_rope, axis=-1)
    np.testing.assert_allclose(stretch, 0.1 * np.log(4) + 1, rtol=1e-4)


def test_masks_tell_what_a_query_sees() -> None:
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    assert sees_all_before(None, 5, None)
    assert sees_all_before(None, 5, 5)
    assert sees_all_before(causal[None, None], 5, None)
    assert sees_all_before(torch.where(causal, 0.0, -torch.inf)[None, None], 5, 3)
    windowed = causal & ~torch.ones(5, 5, dtype=torch.bool).tril(-3)
    assert not sees_all_before(windowed[None, None], 5, None)
    assert not sees_all_before(torch.ones(1, 1, 5, 5, dtype=torch.bool), 5, None)
    assert not sees_all_before(torch.where(causal, 0.5, -torch.inf)[None, None], 5, None)
    with pytest.raises(QuestprofError, match="window of 4 tokens comes without a mask"):
        sees_all_before(None, 5, 4)


def test_greedy_generation_is_what_the_model_finds_likeliest(llama: Path) -> None:
    trace, outcome = _capture(llama, generate=6, queries="")
    header = trace.header
    assert header.generation == "greedy"
    assert header.num_tokens == TOKENS + 6
    assert header.query_positions == tuple(range(TOKENS, TOKENS + 6))
    assert header.segments == (("words", 0, TOKENS - 1), ("generated", TOKENS, TOKENS + 5))
    assert len(outcome.generated) > 0
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32, attn_implementation="eager")
    ids = token_ids(WORDS)[:TOKENS]
    for token in header.generated:
        with torch.inference_mode():
            assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)
    expected = oracle(llama, ids)[2]
    np.testing.assert_allclose(trace.layer(2).k, expected["k"], atol=2e-5 * np.abs(expected["k"]).max())


def test_sampled_generation_follows_its_seed(llama: Path) -> None:
    def ids(seed: int) -> tuple[int, ...]:
        header = _capture(llama, generate=12, temperature=2.0, seed=seed)[0].header
        assert header.generation == f"sampled, temperature 2, seed {seed}"
        return header.generated

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_generation_ends_where_the_model_ends(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "ends")
    first = _capture(folder, generate=3)[0].header.generated
    config = folder / "generation_config.json"
    config.write_text(f'{{"eos_token_id": [{first[2]}, 259]}}')
    trace, outcome = _capture(folder, generate=3)
    assert trace.header.generated == first[: first.index(first[2])]
    assert "ended its text after" in outcome.warnings[-1]


def test_positions_past_the_training_are_warned_of(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "short", max_position_embeddings=64)
    assert "the model was trained for 64" in _capture(folder)[1].warnings[0]


def test_learned_positions_end_somewhere(tmp_path: Path) -> None:
    """GPT-2 in small: no RoPE, fused projections, keys as attention sees them; a table of 64 positions."""
    folder = save_model(tmp_path / "gpt2", "GPT2", max_position_embeddings=64)
    trace, _ = _capture(folder, max_tokens=64)
    assert (trace.header.num_qo_heads, trace.header.num_kv_heads, trace.header.head_dim) == (6, 6, 4)
    with pytest.raises(QuestprofError, match=r"cannot read 65 tokens \(it was trained for 64\)") as raised:
        _capture(folder, max_tokens=65, output=folder / "longer.safetensors")
    assert raised.value.status == Exit.MACHINE
    assert not (folder / "longer.safetensors").exists()


def test_mistakes_show_before_anything_is_generated(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> tuple[int, ...]:
        raise AssertionError("generated first")

    monkeypatch.setattr(generating, "generate", never)
    with pytest.raises(QuestprofError, match="past the trace"):
        _capture(llama, generate=9, queries=str(TOKENS + 9))
    with pytest.raises(QuestprofError, match="does not have these words"):
        _capture(llama, generate=9, evidence=("a=no such words",))
    with pytest.raises(AssertionError, match="generated first"):
        _capture(llama, generate=9, queries=str(TOKENS + 8))


def test_missing_weights_are_no_random_ones(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    with pytest.raises(QuestprofError, match=r"no complete model.*weights are missing"):
        _capture(folder)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}},
        ),
    ],
)
def test_code_in_a_folder_is_neither_run_nor_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any]
) -> None:
    folder, ran = save_model(tmp_path / "model"), tmp_path / "ran"
    config = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**config, **changes}))
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    with pytest.raises(QuestprofError, match="contains custom code"):
        _capture(folder)
    assert not asked
    assert not ran.exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_files_are_said_in_a_line(tmp_path: Path, name: str) -> None:
    folder = save_model(tmp_path / "model")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(QuestprofError, match="cannot load") as raised:
        _capture(folder)
    assert "\n" not in raised.value.why
    assert not (folder / "trace.safetensors").exists()


def test_weights_that_are_not_finite_are_said(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[0, 0] = float("nan")
    model.save_pretrained(folder)
    save_tokenizer(folder)
    with pytest.raises(QuestprofError, match=r"layers\.1\.v has values that are not finite"):
        _capture(folder)
    assert not (folder / "trace.safetensors").exists()
