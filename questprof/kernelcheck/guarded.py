"""Tensors that tell what a launch did to them: poisoned outputs between guard bands, inputs that stay.

The poison is a NaN (of an integer, a number) that no kernel computes, so that what was not written is told
from what was written wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from questprof.kernelcheck.findings import FaultError

if TYPE_CHECKING:
    import torch

BAND = 512
"""Elements of poison on either side of an output."""
POISON = {4: 0x7FC5A5A5, 2: 0x7FD5}
"""By bytes of an element: NaN as fp32, fp16 and bf16; 2143659429 as int32, which is no page."""


class Guarded:
    """One output of `shape` amid its guard bands; `tensor` is what a launch is given."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        import torch

        self._bits = torch.empty(
            prod(shape) + 2 * BAND,
            dtype=torch.int32 if dtype.itemsize == 4 else torch.int16,
            device=device,
        )
        self._poison = POISON[dtype.itemsize]
        self.tensor = self._bits.view(dtype)[BAND : BAND + prod(shape)].view(tuple(shape))
        self.poison()

    def poison(self) -> None:
        """Poison the output and its bands."""
        self._bits.fill_(self._poison)

    @property
    def unwritten(self) -> torch.Tensor:
        """Which elements are as `poison` left them: bool, of the output's shape."""
        return (self._bits[BAND:-BAND] == self._poison).view(self.tensor.shape)

    @property
    def overrun(self) -> int | None:
        """The written element of a band nearest to the output: negative before it, else from its size on."""
        written = (self._bits != self._poison).nonzero().flatten().cpu() - BAND
        size = self.tensor.numel()
        outside = [int(i) for i in written if not 0 <= i < size]
        return min(outside, key=lambda i: -i if i < 0 else i - size, default=None)


@dataclass
class Guards:
    """The outputs of a launch, and the inputs that it must leave as they are."""

    outputs: Mapping[str, Guarded]
    inputs: Mapping[str, torch.Tensor]
    _before: dict[str, torch.Tensor] = field(default_factory=dict)

    def arm(self) -> None:
        """Poison the outputs and remember the inputs."""
        for output in self.outputs.values():
            output.poison()
        self._before = {name: bits(tensor).clone() for name, tensor in self.inputs.items()}

    def judge(self) -> None:
        """FaultError when a launch since `arm` wrote where it must not."""
        for name, output in self.outputs.items():
            if (element := output.overrun) is not None:
                shape, size = list(output.tensor.shape), output.tensor.numel()
                raise FaultError(
                    f"it wrote outside {name} {shape}: element {element} of {size}",
                    f"Mask the stores to {name}; heads, requests and head_dim end where its shape says.",
                )
        for name, tensor in self.inputs.items():
            changed = (bits(tensor) != self._before[name]).nonzero()
            if len(changed):
                at = ", ".join(str(int(i)) for i in changed[0])
                raise FaultError(f"it wrote into its input {name}, at [{at}]", f"{name} is to be read alone.")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as integers, in which a NaN equals itself."""
    import torch

    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)
