"""The decode step's small operations in plain torch, as a CPU runs them; arguments of the Triton launchers.

Imports no triton. Sums and products are fp32; results are rounded where the Triton kernels round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import silu


def rope_table(
    inverse_frequencies: Sequence[float], num_positions: int, device: torch.device | str
) -> torch.Tensor:
    """Cosines and sines [num_positions, 2, head_dim / 2], fp32, of angles in float64."""
    frequencies = torch.tensor(inverse_frequencies, dtype=torch.float64, device=device)
    angles = torch.arange(num_positions, dtype=torch.float64, device=device)[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def embed(tokens: torch.Tensor, embedding: torch.Tensor, out: torch.Tensor) -> None:
    """Write row tokens[r] (int64) of `embedding` [vocab_size, size] into row r of `out`."""
    torch.index_select(embedding, 0, tokens, out=out)


def add_rms_norm(
    residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """Add delta to residual in place, then write out = residual / rms(residual) * weight."""
    if delta is not None:
        residual.add_(delta)
    wide = residual.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    torch.mul(normed.to(out.dtype), weight, out=out)


def rope(qkv: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, num_heads: int) -> None:
    """Turn the first `num_heads` heads of each row of `qkv` in place, by the angles of `rope_table`.

    `positions` int32 [num_tokens].
    """
    half = table.shape[2]
    heads = qkv[:, : num_heads * 2 * half].view(qkv.shape[0], num_heads, 2, half)
    cosine, sine = table[positions.long()][:, None].unbind(2)
    x, y = heads[:, :, 0].float(), heads[:, :, 1].float()
    heads[:, :, 0], heads[:, :, 1] = x * cosine - y * sine, y * cosine + x * sine


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """Write out [num_rows, size] = silu(gate) * up from gate_up [num_rows, 2 * size], gates first."""
    gate, up = gate_up.chunk(2, dim=-1)
    out.copy_(silu(gate.float()) * up.float())


def greedy(logits: torch.Tensor, tokens: torch.Tensor) -> None:
    """Write the id of the largest of each row of `logits` into `tokens` int64; NaN never wins."""
    tokens.copy_(torch.where(logits.isnan(), float("-inf"), logits).argmax(dim=-1))
