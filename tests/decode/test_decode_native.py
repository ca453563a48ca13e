"""On a GPU: products and kernels of the step against float64, graphs of real steps against eager ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from decode_models import SMALL, make_step, random_tokens, run_steps
from questprof_kernels import decode_torch, int4

from questprof import environment
from questprof.decode.linear import Task, choose
from questprof.decode.measure import measure, steps_needed
from questprof.decode.operations import load_operations
from questprof.decode.variants import Stored, variants
from questprof.decode.weights import ModelWeights, build_weights, random_source

pytestmark = pytest.mark.gpu
EPS = {torch.float16: 2**-10, torch.bfloat16: 2**-7}


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def close(found: torch.Tensor, wanted: torch.Tensor, units: float = 4) -> None:
    assert not found.isnan().any()
    error = (found.double().cpu() - wanted.double().cpu()).abs().max().item()
    assert error <= units * EPS[found.dtype] * wanted.abs().max().item()


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("dtype", list(EPS), ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_small_kernels_do_what_plain_torch_does(dtype: torch.dtype, rows: int, dependent: bool) -> None:
    run = load_operations("cuda", dependent and torch.cuda.get_device_capability() >= (9, 0))
    size, heads, dim = 4096, 40, 128
    residual, delta = normal(rows, size, dtype=dtype), normal(rows, size, dtype=dtype, seed=1)
    weight, out = (
        normal(size, dtype=dtype, seed=2),
        torch.full((rows, size), float("nan"), dtype=dtype).cuda(),
    )
    wanted, wanted_out = residual.float().cpu(), torch.empty(rows, size)
    decode_torch.add_rms_norm(wanted, delta.float().cpu(), weight.float().cpu(), 1e-5, wanted_out)
    run.add_rms_norm(residual, delta, weight, 1e-5, out)
    close(residual, wanted)
    close(out, wanted_out)

    qkv, table = (
        normal(rows, 48 * dim, dtype=dtype),
        decode_torch.rope_table([0.5**i for i in range(64)], 99, "cuda"),
    )
    positions = torch.tensor([98, 0, 41][:rows], dtype=torch.int32, device="cuda")
    wanted = qkv.float().cpu()
    decode_torch.rope(wanted, positions.cpu(), table.cpu(), heads)
    run.rope(qkv, positions, table, heads)
    close(qkv, wanted)

    gate_up, out = normal(rows, 2 * 1000, dtype=dtype), torch.empty((rows, 1000), dtype=dtype, device="cuda")
    wanted = torch.empty(rows, 1000)
    decode_torch.swiglu(gate_up.float().cpu(), wanted)
    run.swiglu(gate_up, out)
    close(out, wanted)

    logits = normal(rows, 32000, dtype=dtype)
    logits[0, 31999] = logits[0, 7] = 100.0
    logits[0, 6] = float("nan")
    tokens = torch.zeros(rows, dtype=torch.int64, device="cuda")
    run.greedy(logits, tokens)
    assert tokens[0] == 7
    assert torch.equal(logits[1:].gather(1, tokens[1:, None])[:, 0], logits[1:].amax(dim=1))
    embedded = torch.empty((rows, size), dtype=dtype, device="cuda")
    embedding = normal(32000, size, dtype=dtype)
    run.embed(tokens, embedding, embedded)
    assert torch.equal(embedded, embedding[tokens])


FORMATS = [("fp16", torch.float16), ("bf16", torch.bfloat16), ("int4", torch.float16)]


@pytest.mark.parametrize(("weight_format", "dtype"), FORMATS, ids=str)
@pytest.mark.parametrize("num_rows", [1, 2, 8])
@pytest.mark.parametrize(("rows", "columns"), [(4096, 4096), (1000, 11008)])
def test_every_variant_of_a_product_is_right(
    weight_format: str, dtype: torch.dtype, num_rows: int, rows: int, columns: int
) -> None:
    for gated in (False, True):
        weights = normal(2 * rows if gated else rows, columns, dtype=dtype) * columns**-0.5
        bias = None if gated else normal(rows, dtype=dtype, seed=3)
        stored = Stored(weights, bias=bias)
        if weight_format == "int4":
            stored = Stored(None, *int4.quantise(weights), bias)
        x, out = (
            normal(num_rows, columns, dtype=dtype, seed=4),
            torch.empty((num_rows, rows), dtype=dtype).cuda(),
        )
        run = load_operations("cuda")
        candidates = variants(weight_format, "cuda", num_rows, gated=gated, dependent=run.dependent)
        norm = partial(
            run.add_rms_norm, normal(num_rows, columns, dtype=dtype), None, torch.ones_like(x[0]), 1e-5
        )
        swiglu = run.swiglu if gated else None
        _, found = choose(Task("test", stored, x, out, 1 << 30, swiglu, norm), candidates, 0)
        refused = {choice.variant: choice.reason for choice in found if choice.reason}
        assert not refused
        assert len(found) == len(candidates) >= 5


@pytest.mark.parametrize("gated", [False, True])
def test_twenty_rows_go_over_int4_weights_in_passes(gated: bool) -> None:
    stored = Stored(None, *int4.quantise(normal(2000 if gated else 1000, 4096, dtype=torch.float16) / 64))
    x, out = normal(20, 4096, dtype=torch.float16, seed=4), torch.empty((20, 1000)).half().cuda()
    run = load_operations("cuda")
    candidates = variants("int4", "cuda", 20, gated=gated, dependent=run.dependent)
    norm = partial(run.add_rms_norm, normal(20, 4096, dtype=torch.float16), None, torch.ones_like(x[0]), 1e-5)
    _, found = choose(
        Task("test", stored, x, out, 1 << 30, run.swiglu if gated else None, norm), candidates, 0
    )
    assert not [choice for choice in found if choice.reason]
    assert len(found) == len(candidates) >= 5


@pytest.fixture(scope="module", params=["fp16", "bf16", "int4"])
def weights(request: pytest.FixtureRequest) -> ModelWeights:
    return build_weights(SMALL, request.param, "cuda", 2)


def test_a_budget_of_all_tokens_is_the_dense_step(weights: ModelWeights) -> None:
    tokens = random_tokens(20, 2, "cuda")
    lengths, most = (37, 200), (80, 240)
    dense = run_steps(make_step(weights, "dense", lengths, most), tokens)
    for layout in ("paired", "transposed"):
        options: dict[str, Any] = {"token_budget": 512, "dense_layers": 1, "summary_layout": layout}
        close(run_steps(make_step(weights, "quest", lengths, most, **options), tokens), dense, units=16)


@pytest.mark.parametrize("policy", ["dense", "quest"])
def test_one_graph_makes_every_step_while_the_cache_grows(weights: ModelWeights, policy: str) -> None:
    lengths, most = (30, 470), (120, 560)  # four more pages each
    # All layers select: their plans are for the longest, so that eager and replayed steps round alike and
    # pick the same pages. A dense layer's splits follow the length.
    make = partial(make_step, weights, policy, lengths, most, token_budget=64, dense_layers=0)
    eager, replayed = make(), make()
    replayed.advance()
    replayed.run_eager()
    graph = replayed.capture()
    for request, length in enumerate(lengths):
        replayed.caches.lead.roll_back(request, replayed.caches.lead.seq_lens[request] - length)
    tokens = random_tokens(66, 2, "cuda")
    eager.set_tokens(tokens[0].tolist())
    replayed.set_tokens(tokens[0].tolist())
    for _ in range(66):  # each step's token is the one sampled before
        for step in (eager, replayed):
            step.advance()
        eager.run_eager()
        graph.replay()
        close(replayed.logits, eager.logits, units=1 if policy == "quest" else 16)
        replayed.tokens.copy_(eager.tokens)  # equal logits may round to another winner
    assert eager.caches.lead.seq_lens == (96, 536)


def test_early_starts_change_nothing() -> None:
    tokens = random_tokens(12, 2, "cuda")
    found = []
    for dependent in (False, True):
        source = random_source(SMALL, "cuda", torch.float16, seed=1)
        weights = build_weights(SMALL, "fp16", "cuda", 2, source, dependent=dependent)
        step = make_step(weights, "quest", (300, 77), (320, 99), token_budget=512, dense_layers=1)
        found.append(run_steps(step, tokens))
    close(found[1], found[0], units=16)  # another variant of a product may have been the fastest


def test_parts_of_a_graph_add_up_to_the_step(weights: ModelWeights) -> None:
    grown = steps_needed(20, "cuda")
    step = make_step(weights, "quest", (512, 512), (512 + grown, 512 + grown), token_budget=128)
    times = measure(step, 20)
    assert len(times.step_us) == 20
    names = {part.part for part in times.result.parts}
    assert names >= {"embed", "norm", "qkv", "rope", "append", "score", "attend", "out_proj", "ffn", "head"}
    assert all(part.method == "activity trace" for part in times.result.parts), times.result.note
    parts_us = sum(sorted(part.samples_us)[2] for part in times.result.parts)
    assert 0 < parts_us <= 1.03 * sorted(times.step_us)[10]
    assert sorted(times.eager_us)[2] > sorted(times.step_us)[10]
    assert environment.capture("cuda").device == "cuda"
