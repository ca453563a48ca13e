"""Matrix products of a decode step: every variant is checked, then timed; the fastest right one is kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from questprof.decode.records import LinearChoice
from questprof.decode.variants import Kept, Stored, Variant
from questprof.errors import Exit, QuestprofError
from questprof.model import CACHE_MULTIPLE

if TYPE_CHECKING:
    import torch

TOLERANCE = 2.0
"""Errors of a variant over those of torch's plain product in the activations' dtype, at most."""
ROUNDING_UNITS = 4
"""Roundings of the output's dtype that a variant may make beyond that."""
ROUNDS = 7
MOST_COPIES = 64
ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Linear:
    """A matrix bound to its variant; call it with x [num_rows, columns] and out."""

    variant: Variant
    kept: Kept
    bias: torch.Tensor | None
    wide: torch.Tensor | None = None
    """[num_rows, 2 * size]: what a gated product goes through when its variant does not gate itself."""
    swiglu: Callable[[torch.Tensor, torch.Tensor], None] | None = None

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write x w^T + bias, or silu(gate) * up of it, into `out`."""
        if self.wide is None or self.swiglu is None:
            self.variant.product(x, self.kept, self.bias, out)
        else:
            self.variant.product(x, self.kept, self.bias, self.wide)
            self.swiglu(self.wide, out)


@dataclass(frozen=True)
class Task:
    """A matrix product to choose a variant for; `swiglu` makes it a gated one.

    `before` writes x on a GPU, as a small kernel does in a step: what a variant does meanwhile counts for it.
    """

    matrix: str
    stored: Stored
    x: torch.Tensor  # [num_rows, columns]
    out: torch.Tensor
    weight_bytes: int
    swiglu: Callable[[torch.Tensor, torch.Tensor], None] | None = None
    before: Callable[[torch.Tensor], None] | None = None

    def bind(self, variant: Variant) -> Linear:
        """The product by `variant`."""
        kept, bias = variant.keep(self.stored), self.stored.bias
        if self.swiglu is None or variant.gated:
            return Linear(variant, kept, bias)
        wide = self.x.new_empty((self.x.shape[0], self.stored.rows))
        return Linear(variant, kept, bias, wide, self.swiglu)

    def expected(self) -> tuple[torch.Tensor, float]:
        """(result in float64, the largest error that is allowed)."""
        import torch

        def times(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            # In pieces: a head of 128k rows takes gigabytes in float64.
            pieces = self.stored.pieces(ROWS_AT_ONCE)
            return torch.cat([x.to(dtype) @ piece.to(dtype).t() for piece in pieces], dim=-1)

        def finish(product: torch.Tensor) -> torch.Tensor:
            if self.stored.bias is not None:
                product = product + self.stored.bias.to(product.dtype)
            if self.swiglu is None:
                return product
            gate, up = product.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up

        exact = finish(times(self.x, torch.float64))
        plain = finish(times(self.x, torch.float32)).to(self.out.dtype)
        unit = torch.finfo(self.out.dtype).eps * float(exact.abs().max())
        error = float((plain.double() - exact).abs().max())
        return exact, TOLERANCE * error + ROUNDING_UNITS * unit


def choose(
    task: Task, candidates: Sequence[Variant], cache_bytes: int
) -> tuple[Variant, tuple[LinearChoice, ...]]:
    """The fastest of the candidates whose result is right, and what each gave; `cache_bytes`: of the L2.

    QuestprofError when none is right.
    """
    exact, task_allowed = task.expected()
    found: dict[str, LinearChoice] = {}
    for variant in candidates:
        try:
            linear = task.bind(variant)
            task.out.fill_(float("nan"))
            linear(task.x, task.out)
            error = float((task.out.double() - exact).abs().max())
        except Exception as refusal:  # a compiler's, a driver's, a launcher's: the others go on
            why = f"{type(refusal).__name__}: {refusal}"[:200]
            found[variant.name] = LinearChoice(task.matrix, variant.name, reason=why)
            continue
        allowed = task_allowed * variant.coarseness
        if not error <= allowed:
            why = f"wrong: its error is {error:.3g}, {allowed:.3g} is allowed"
            found[variant.name] = LinearChoice(task.matrix, variant.name, reason=why)
            continue
        us = _median_us(task, linear, cache_bytes)
        found[variant.name] = LinearChoice(task.matrix, variant.name, us, task.weight_bytes / us / 1e3)
    timed = {name: choice.us for name, choice in found.items() if choice.us is not None}
    if not timed:
        reasons = "; ".join(f"{choice.variant}: {choice.reason}" for choice in found.values())
        raise QuestprofError(f"matrix {task.matrix}", reasons, "Report it.", Exit.MACHINE)
    best = min(timed, key=timed.__getitem__)
    choices = [
        LinearChoice(c.matrix, c.variant, c.us, c.gb_s, c.variant == best, c.reason) for c in found.values()
    ]
    return next(variant for variant in candidates if variant.name == best), tuple(choices)


def _median_us(task: Task, linear: Linear, cache_bytes: int) -> float:
    """Median microseconds of one product, its weights not in the cache."""
    if task.x.is_cuda:
        return _median_us_cuda(task, linear, cache_bytes)
    samples = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        linear(task.x, task.out)
        samples.append((time.perf_counter_ns() - started) / 1e3)
    return statistics.median(samples)


def _median_us_cuda(task: Task, linear: Linear, cache_bytes: int) -> float:
    """What one product adds to a row of `task.before`, or takes alone; its weights not in the cache.

    Graphs over copies of the weights that exceed CACHE_MULTIPLE times the cache together.
    """
    copies = min(MOST_COPIES, CACHE_MULTIPLE * cache_bytes // task.weight_bytes + 2)
    kept = [linear.kept, *(tuple(t.clone() for t in linear.kept) for _ in range(copies - 1))]
    turns = [Linear(linear.variant, own, linear.bias, linear.wide, linear.swiglu) for own in kept]
    x = task.x.clone()  # the task's own is what results are checked with
    before = [partial(task.before, x)] if task.before else []
    products = [partial(turn, x, task.out) for turn in turns]
    if before:
        added = _replays([launch for product in products for launch in (*before, product)]) - _replays(
            before * copies
        )
        if added > 0:
            return added / copies
    # Alone, too, where a product is so small that what it adds is lost in the scatter of the rest.
    return _replays(products) / copies


def _replays(launches: Sequence[Callable[[], None]]) -> float:
    """Median microseconds of a graph of all of them."""
    import torch

    from questprof.ceilings import replay_us

    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    replay_us(graph)
    return statistics.median(replay_us(graph) for _ in range(ROUNDS))
