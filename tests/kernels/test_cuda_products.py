"""What the CUDA products of a decode step write, on the CPU: against float64, for every form they take."""

from __future__ import annotations

from pathlib import Path

import cuda_host
import pytest
import torch
from questprof_kernels import decode_gemv_cuda, decode_rows, int4
from questprof_kernels.decode_gemv_cuda import CudaGemvPlan
from questprof_kernels.decode_rows import RowsPlan

pytestmark = cuda_host.needs_compiler
ROWS = 37
"""Of the matrix: no multiple of what a block or a warp takes."""


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda_host.install(monkeypatch, tmp_path)


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(
    out: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None, gated: bool
) -> None:
    """Within a few roundings of the output's dtype of the product in float64."""
    exact = x.double() @ weights.double().t()
    if gated:
        gate, up = exact.chunk(2, dim=-1)
        exact = gate / (1 + torch.exp(-gate)) * up
    if bias is not None:
        exact = exact + bias.double()
    assert not out.isnan().any()
    unit = torch.finfo(out.dtype).eps * exact.abs().max()
    assert (out.double() - exact).abs().max() <= 4 * unit


def matrix(columns: int, dtype: torch.dtype, gated: bool) -> torch.Tensor:
    return numbers(2 * ROWS if gated else ROWS, columns, dtype=dtype, seed=1) * columns**-0.5


@pytest.mark.parametrize(
    ("plan", "dtype", "num_x_rows", "gated", "biased"),
    [
        (CudaGemvPlan(4, 2), torch.float16, 1, False, True),
        (CudaGemvPlan(2, 1), torch.bfloat16, 8, False, False),
        (CudaGemvPlan(4, 2), torch.float16, 3, True, False),
    ],
)
def test_products_by_tensor_cores(
    plan: CudaGemvPlan, dtype: torch.dtype, num_x_rows: int, gated: bool, biased: bool
) -> None:
    x, w = numbers(num_x_rows, 512, dtype=dtype, seed=2), matrix(512, dtype, gated)
    bias = numbers(ROWS, dtype=dtype, seed=3) if biased else None
    out = torch.full((num_x_rows, ROWS), float("nan"), dtype=dtype)
    decode_gemv_cuda.gemv(x, w, bias, out, plan, gated=gated)
    check(out, x, w, bias, gated)


@pytest.mark.parametrize(
    ("plan", "num_x_rows", "gated"),
    [(CudaGemvPlan(4, 2), 1, False), (CudaGemvPlan(2, 1), 5, True)],
)
def test_products_of_four_bit_weights(plan: CudaGemvPlan, num_x_rows: int, gated: bool) -> None:
    x, w = numbers(num_x_rows, 640, dtype=torch.float16, seed=4), matrix(640, torch.float16, gated)
    quantised, scales = int4.quantise(w)
    out = torch.full((num_x_rows, ROWS), float("nan"), dtype=torch.float16)
    decode_gemv_cuda.gemv_int4(x, int4.pack(quantised), scales, None, out, plan, gated=gated)
    check(out, x, int4.dequantise(quantised, scales, torch.float64), None, gated)


@pytest.mark.parametrize(
    ("dtype", "num_x_rows", "gated", "biased"),
    [
        (torch.float16, 1, False, True),
        (torch.bfloat16, 4, False, False),
        (torch.float16, 2, True, False),
    ],
)
def test_products_by_a_row_a_warp(dtype: torch.dtype, num_x_rows: int, gated: bool, biased: bool) -> None:
    x, w = numbers(num_x_rows, 768, dtype=dtype, seed=5), matrix(768, dtype, gated)
    bias = numbers(ROWS, dtype=dtype, seed=6) if biased else None
    out = torch.full((num_x_rows, ROWS), float("nan"), dtype=dtype)
    decode_rows.gemv(x, w, bias, out, RowsPlan(4, 4), gated=gated)
    check(out, x, w, bias, gated)


def test_a_fault_in_the_source_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    edit = ("decode_rows.cu", "int at = now.load * WARP + lane;", "int at = lane;")
    cuda_host.install(monkeypatch, folder, edit=edit)
    with pytest.raises(AssertionError):
        test_products_by_a_row_a_warp(torch.float16, 1, False, True)
