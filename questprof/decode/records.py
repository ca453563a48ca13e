"""What a record of kind `amdahl` holds beside its samples: the setup asked for, and times part by part.

Pure structs, so that findings read them without torch.
"""

from __future__ import annotations

from typing import Final, Literal

from questprof.structs import ByValue, Struct, TimeDifference

PartName = Literal[
    "embed", "norm", "qkv", "rope", "append", "score", "select", "attend", "dense", "out_proj", "ffn", "head",
    "sampling", "gaps",
]  # fmt: skip
"""A part of the step. `gaps`: time of the step in which no part ran."""
PARTS: tuple[PartName, ...] = (
    "embed", "norm", "qkv", "rope", "append", "score", "select", "attend", "dense", "out_proj", "ffn", "head",
    "sampling", "gaps",
)  # fmt: skip
ATTENTION_PARTS: tuple[PartName, ...] = ("score", "select", "attend", "dense")
"""Parts that a dense step spends in `dense` alone; `append` is in both, with the summary in a Quest step."""
PROJECTION_PARTS: tuple[PartName, ...] = ("qkv", "out_proj", "ffn", "head")
"""Parts that stream weights."""
SMALL_PARTS: tuple[PartName, ...] = ("embed", "norm", "rope", "append", "sampling")
"""Parts that stream neither weights nor the cache."""

Method = Literal["activity trace", "leave-one-out", "clock"]
"""How parts were timed: kernels of traced replays, graphs that lack a part, or a clock around each (CPU)."""


class DecodeSetup(ByValue, frozen=True):
    """What is asked of a decode step beyond the attention point; a field of the point, so that ids differ."""

    model: str
    weight_format: str
    dense_layers: int = 2
    """First layers whose attention is dense under a Quest policy."""
    layer_budgets: tuple[int, ...] = ()
    """Token budget of each layer; empty: the point's, everywhere. 0: dense."""
    dense_backend: str = "questprof"
    """Backend of dense attention, in a dense step and in the dense layers of a Quest step."""


class PartTime(Struct, frozen=True):
    """Samples of one part, all its launches in one step together; `launches` counts kernels (CPU: calls)."""

    part: PartName
    method: Method
    samples_us: tuple[TimeDifference, ...]
    launches: int = 0


class LinearChoice(Struct, frozen=True):
    """One candidate for one product: its median time, and weight bytes a second.

    On a GPU the time that it adds to a row of RMSNorms, each of which it follows as in a step.
    """

    matrix: str
    """qkv, out_proj, gate_up, down or head."""
    variant: str
    us: float | None = None
    gb_s: float | None = None
    chosen: bool = False
    reason: str = ""
    """Why it was not timed."""


ASIDE: Final = ("eager", "idle")
"""What a step's `times_us` hold beside `step`: the step launched in other ways, a few times each."""


class DecodeResult(Struct, frozen=True):
    """What measuring a step gave beside `times_us`: `step` and `eager` hold the totals' raw samples there."""

    parts: tuple[PartTime, ...] = ()
    linears: tuple[LinearChoice, ...] = ()
    num_steps: int = 0
    """Consecutive steps that the samples of `step` are of; the cache grows by a token a request in each."""
    first_lengths: tuple[int, ...] = ()
    """Tokens of each request before the first of them."""
    weight_bytes: int = 0
    """Bytes of weights that a step reads."""
    overlap_us: float | None = None
    """Time of a traced step in which two kernels ran at once; None without a trace."""
    overlapped: dict[str, int] = {}
    """Launches of each part that began before the kernel before them had ended."""
    traced_us: tuple[float, ...] = ()
    """Lengths of the traced steps, first kernel's start to last one's end."""
    captures: int = 0
    """CUDA graphs captured for the steps, outside of the timed regions; 0 on a CPU."""
    bookkeeping_us: float | None = None
    """Median time of growing the caches by a token a request, on the host and outside of the timed region."""
    note: str = ""
