"""The Triton kernels of a decode step against float64 (interpreted on a CPU, native on a GPU)."""

from __future__ import annotations

import pytest
import torch
from cases import DTYPES
from questprof_kernels import (
    decode_gemv,
    decode_gemv_cuda,
    decode_norm,
    decode_rope,
    decode_swiglu,
    decode_tokens,
    int4,
)
from questprof_kernels.decode_torch import rope_table

EPS = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-23}


def normal(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def close(found: torch.Tensor, exact: torch.Tensor, units: float = 1.0) -> None:
    """Within `units` roundings of the found dtype, at the size of the largest result."""
    error = (found.double().cpu() - exact).abs().max().item()
    assert error <= units * EPS[found.dtype] * exact.abs().max().item()


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double().cpu()


@pytest.fixture(params=list(DTYPES))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return DTYPES[request.param]


@pytest.mark.parametrize("size", [64, 100, 384])
@pytest.mark.parametrize("with_delta", [False, True])
def test_norm_is_that_of_the_sum(dtype: torch.dtype, device: str, size: int, with_delta: bool) -> None:
    residual = normal(3, size, dtype=dtype, device=device)
    delta = normal(3, size, dtype=dtype, device=device, seed=1) if with_delta else None
    weight = normal(size, dtype=dtype, device=device, seed=2)
    total = residual.clone() if delta is None else residual + delta
    out = torch.full_like(residual, float("nan"))
    decode_norm.add_rms_norm(residual, delta, weight, 1e-5, out)
    truncates = device == "cpu" and dtype == torch.bfloat16  # the interpreter does, where hardware rounds
    close(residual, wide(total), units=2 if truncates else 0)
    total = residual
    exact = wide(total) / (wide(total).square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * wide(weight)
    close(out, exact, units=2)


def test_rope_turns_queries_and_keys_and_leaves_values(dtype: torch.dtype, device: str) -> None:
    heads, dim = 6, 64
    qkv = normal(2, 8 * dim, dtype=dtype, device=device)
    before, table = wide(qkv), rope_table([0.7**i for i in range(dim // 2)], 40, device)
    positions = torch.tensor([39, 3], dtype=torch.int32, device=device)
    decode_rope.rope(qkv, positions, table, heads)
    assert torch.equal(wide(qkv)[:, heads * dim :], before[:, heads * dim :])
    angles = wide(positions)[:, None, None] * torch.tensor(
        [0.7**i for i in range(dim // 2)], dtype=torch.float64
    )
    x, y = before[:, : heads * dim].view(2, heads, 2, dim // 2).unbind(2)
    exact = torch.stack([x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()], dim=2)
    close(qkv[:, : heads * dim].reshape(2, heads, 2, dim // 2), exact, units=2)


def test_swiglu_is_gate_times_sigmoid_times_up(dtype: torch.dtype, device: str) -> None:
    gate_up = normal(2, 1400, dtype=dtype, device=device)
    out = torch.full((2, 700), float("nan"), dtype=dtype, device=device)
    decode_swiglu.swiglu(gate_up, out)
    gate, up = wide(gate_up).chunk(2, dim=1)
    close(out, gate * torch.sigmoid(gate) * up, units=4)


def test_embedding_rows_are_copied(dtype: torch.dtype, device: str) -> None:
    embedding = normal(50, 1100, dtype=dtype, device=device)
    out = torch.empty((3, 1100), dtype=dtype, device=device)
    tokens = torch.tensor([49, 0, 7], device=device)
    decode_tokens.embed(tokens, embedding, out)
    assert torch.equal(out, embedding[tokens])


def test_the_largest_logit_wins_ties_go_low_and_nan_never(dtype: torch.dtype, device: str) -> None:
    size = decode_tokens.GREEDY_BLOCK + 900  # two rounds, the last one not full
    logits = normal(5, size, dtype=dtype, device=device)
    logits[0, size - 1] = logits[0, 17] = logits[0, size - 883] = 50.0
    logits[1, size - 500] = 50.0
    logits[2, 3], logits[2, size - 1] = float("nan"), 50.0
    logits[3] = float("nan")
    logits[4] = float("-inf")
    tokens = torch.full((5,), -1, device=device)
    decode_tokens.greedy(logits, tokens)
    assert tokens[:3].tolist() == [17, size - 500, size - 1]
    assert ((tokens >= 0) & (tokens < size)).all()


def product(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None, gated: bool) -> torch.Tensor:
    exact = wide(x) @ wide(weights).t()
    if gated:
        gate, up = exact.chunk(2, dim=1)
        return gate * torch.sigmoid(gate) * up
    return exact if bias is None else exact + wide(bias)


@pytest.mark.parametrize("int4_weights", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("num_rows", "rows", "columns"), [(1, 37, 1408), (3, 16, 256)])
def test_gemv_is_the_product(
    device: str, int4_weights: bool, gated: bool, num_rows: int, rows: int, columns: int
) -> None:
    fp16 = torch.float16
    weights = normal(2 * rows if gated else rows, columns, dtype=fp16, device=device) * columns**-0.5
    bias = None if gated else normal(rows, dtype=fp16, device=device, seed=3)
    x = normal(num_rows, columns, dtype=fp16, device=device, seed=4)
    out = torch.full((num_rows, rows), float("nan"), dtype=fp16, device=device)
    plan = decode_gemv.GemvPlan(4, 2)
    if int4_weights:
        numbers, scales = int4.quantise(weights)
        decode_gemv.gemv_int4(x, int4.pack(numbers), scales, bias, out, plan, gated=gated)
        weights = int4.dequantise(numbers, scales, torch.float64)
    else:
        decode_gemv.gemv(x, weights, bias, out, plan, gated=gated)
    close(out, product(x, weights, bias, gated), units=2)


def test_gemv_takes_bf16_weights(device: str) -> None:
    bf16 = torch.bfloat16
    x, weights = normal(2, 320, dtype=bf16, device=device), normal(24, 320, dtype=bf16, device=device, seed=1)
    out = torch.empty((2, 24), dtype=bf16, device=device)
    decode_gemv.gemv(x, weights, None, out, decode_gemv.GemvPlan(2, 1))
    close(out, product(x, weights, None, False))


def test_what_the_kernels_do_not_take_is_refused() -> None:
    half = torch.float16
    x, w, out = torch.zeros(1, 64, dtype=half), torch.zeros(8, 64, dtype=half), torch.zeros(1, 8, dtype=half)
    check = decode_gemv_cuda.check_arguments
    check(x, w, None, None, out, False)
    with pytest.raises(TypeError, match=r"x is torch\.float32"):
        check(x.float(), w, None, None, out, False)
    with pytest.raises(ValueError, match="w is"):
        check(x, w, None, None, out, True)
    with pytest.raises(ValueError, match="1 to 8 are taken"):
        check(x.repeat(9, 1), w, None, None, out.repeat(9, 1), False)
    with pytest.raises(ValueError, match="48 columns"):
        check(x[:, :48], w[:, :48], None, None, out, False)
    with pytest.raises(ValueError, match="aligned"):
        check(x, torch.zeros(513, dtype=half)[1:].view(8, 64), None, None, out, False)
    with pytest.raises(TypeError, match="bf16"):
        check(x.bfloat16(), torch.zeros(8, 8, dtype=torch.int32), torch.ones(8, 1), None, out, False)
    with pytest.raises(ValueError, match="out has shape"):
        decode_swiglu.swiglu(torch.zeros(1, 8), torch.zeros(1, 4, 1))
    with pytest.raises(ValueError, match="positions must be int32"):
        decode_rope.rope(x, torch.zeros(1), rope_table([1.0] * 32, 2, "cpu"), 1)
