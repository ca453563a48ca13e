"""The small operations of a step on a device: Triton kernels on a GPU, plain torch on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Operations:
    """Launchers, arguments as in kernels/decode_torch.py; `dependent`: they may start early."""

    embed: Callable[..., None]
    add_rms_norm: Callable[..., None]
    rope: Callable[..., None]
    swiglu: Callable[..., None]
    greedy: Callable[..., None]
    dependent: bool


NAMES = ("embed", "add_rms_norm", "rope", "swiglu", "greedy")


def load_operations(device: str, dependent: bool | None = None) -> Operations:
    """The operations of `device` (cpu or cuda); `dependent` None: where the GPU can."""
    if device == "cpu":
        from questprof_kernels import decode_torch

        return Operations(**{name: getattr(decode_torch, name) for name in NAMES}, dependent=False)
    import torch
    from questprof_kernels import decode_launch, decode_norm, decode_rope, decode_swiglu, decode_tokens

    if dependent is None:
        dependent = decode_launch.can_depend(torch.device(device))
    launchers = {
        "embed": decode_tokens.embed,
        "add_rms_norm": decode_norm.add_rms_norm,
        "rope": decode_rope.rope,
        "swiglu": decode_swiglu.swiglu,
        "greedy": decode_tokens.greedy,
    }
    bound = {name: partial(launch, dependent=dependent) for name, launch in launchers.items()}
    return Operations(**bound, dependent=dependent)
