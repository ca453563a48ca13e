"""Ways to multiply a few rows of activations by a matrix: torch's own, and the project's GEMVs.

A variant turns a stored matrix into what it reads (`keep`) and multiplies (`product`). Which is fastest
depends on the matrix, the rows and the machine: `linear.py` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from questprof.decode.config import GROUP_SIZE

if TYPE_CHECKING:
    import torch

Kept = tuple[Any, ...]
"""The tensors a variant reads."""
BF16_OVER_FP16 = 8
"""bf16 has three bits less than fp16."""
MOST_PASSES = 4
"""Over int4 weights, eight rows each: they are a quarter of what a product of plain ones reads once."""


@dataclass(frozen=True)
class Stored:
    """A matrix before a variant took it: plain weights [rows, columns], or int4 numbers and scales."""

    weights: torch.Tensor | None
    numbers: torch.Tensor | None = None  # uint8 [rows, columns]
    scales: torch.Tensor | None = None  # fp16 [rows, columns / 128]
    bias: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return int(self._matrix.shape[0])

    @property
    def columns(self) -> int:
        """Columns of the matrix."""
        return int(self._matrix.shape[1])

    @property
    def _matrix(self) -> torch.Tensor:
        matrix = self.weights if self.weights is not None else self.numbers
        assert matrix is not None
        return matrix

    def pieces(self, rows: int) -> Iterator[torch.Tensor]:
        """The weights that are meant, fp32 or as stored, so many rows at a time."""
        for first in range(0, self.rows, rows):
            piece = slice(first, first + rows)
            if self.numbers is None or self.scales is None:
                yield self._matrix[piece]
            else:
                yield Stored(None, self.numbers[piece], self.scales[piece]).dequantised(_float32())

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights that are meant, in `dtype`."""
        from questprof_kernels import int4

        if self.numbers is None:
            return self._matrix.to(dtype)
        plain: torch.Tensor = int4.dequantise(self.numbers, self.scales, dtype)
        return plain


def _float32() -> torch.dtype:
    import torch

    return torch.float32


@dataclass(frozen=True)
class Variant:
    """One way. `product(x, kept, bias, out)`; a `gated` one writes silu(gate) * up itself, half as wide."""

    name: str
    keep: Callable[[Stored], Kept]
    product: Callable[..., None]
    gated: bool = False
    coarseness: int = 1
    """Rounding errors allowed over those of the activations' dtype: more for a coarser one inside."""


def variants(
    weight_format: str, device: str, num_rows: int, *, gated: bool, dependent: bool
) -> list[Variant]:
    """Every way to multiply `num_rows` rows of activations by weights of that format on `device`.

    `gated`: the matrix is the fused gate and up one. `dependent`: the project's start early.
    """
    if device == "cpu":
        return [_torch_cpu_int4(), _dequantised()] if weight_format == "int4" else [_torch()]
    found = [_torch_int4()] if weight_format == "int4" else [_torch()]
    if weight_format != "fp32":
        found += _gemvs(weight_format == "int4", num_rows, gated, dependent)
    return found


def _torch() -> Variant:
    return Variant("torch", lambda stored: (stored.weights,), _torch_product)


def _torch_product(x: torch.Tensor, kept: Kept, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    import torch

    if bias is None:
        torch.mm(x, kept[0].t(), out=out)
    else:
        torch.addmm(bias, x, kept[0].t(), out=out)


def _dequantised() -> Variant:
    """Weights expanded once: the products of int4 weights with the bytes of plain ones."""
    import torch

    return Variant("torch dequantised", lambda stored: (stored.dequantised(torch.float32),), _torch_product)


def _torch_cpu_int4() -> Variant:
    import torch

    def keep(stored: Stored) -> Kept:
        assert stored.numbers is not None
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(stored.numbers.to(torch.int32), 2)
        return packed, _scales_and_zeros(stored, torch.float32)

    def product(x: torch.Tensor, kept: Kept, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        out.copy_(torch.ops.aten._weight_int4pack_mm_for_cpu(x, kept[0], GROUP_SIZE, kept[1]))
        if bias is not None:
            out.add_(bias)

    return Variant("torch int4pack", keep, product)


def _torch_int4() -> Variant:
    """The int4 product of torch; it takes bf16 activations, and their conversion is part of its price."""
    import torch

    def keep(stored: Stored) -> Kept:
        assert stored.numbers is not None
        pairs = stored.numbers.view(stored.rows, -1, 2)
        packed = torch._convert_weight_to_int4pack(pairs[..., 0] << 4 | pairs[..., 1], 8)
        return packed, _scales_and_zeros(stored, torch.bfloat16)

    def product(x: torch.Tensor, kept: Kept, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        out.copy_(torch._weight_int4pack_mm(x.to(torch.bfloat16), kept[0], GROUP_SIZE, kept[1]))
        if bias is not None:
            out.add_(bias)

    return Variant("torch int4pack", keep, product, coarseness=BF16_OVER_FP16)


def _scales_and_zeros(stored: Stored, dtype: torch.dtype) -> torch.Tensor:
    """[columns / 128, rows, 2] as torch's int4 products take them: w = (u - 8) * scale + 0."""
    import torch

    assert stored.scales is not None
    scales = stored.scales.t().to(dtype)
    return torch.stack([scales, torch.zeros_like(scales)], dim=-1).contiguous()


def _gemvs(int4: bool, num_rows: int, gated: bool, dependent: bool) -> list[Variant]:
    """The project's GEMVs, CUDA's where they can be compiled; none for more rows than they take.

    Those of int4 weights take more rows in several passes.
    """
    from questprof_kernels import cuda_module, decode_gemv, decode_gemv_cuda, decode_rows
    from questprof_kernels.int4 import pack

    at_once = decode_gemv_cuda.MOST_ROWS
    if num_rows > at_once * (MOST_PASSES if int4 else 1):
        return []

    def keep(stored: Stored) -> Kept:
        return (pack(stored.numbers), stored.scales) if int4 else (stored.weights,)

    def product(
        launch: Callable[..., None],
        plan: Any,
        x: torch.Tensor,
        kept: Kept,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        for rows, products in zip(x.split(at_once), out.split(at_once), strict=True):
            launch(rows, *kept, bias, products, plan, gated=gated, dependent=dependent)

    modules = [decode_gemv_cuda, decode_gemv] if cuda_module.is_available() else [decode_gemv]
    ways = (
        [(module.gemv_int4, plan) for module in modules for plan in module.INT4_PLANS]
        if int4
        else [(module.gemv, plan) for module in modules for plan in module.PLANS]
    )
    if not int4 and num_rows <= decode_rows.MOST_ROWS and cuda_module.is_available():
        ways += [(decode_rows.gemv, plan) for plan in decode_rows.PLANS]
    return [Variant(plan.name, keep, partial(product, way, plan), gated=gated) for way, plan in ways]
