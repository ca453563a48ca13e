"""Launching a user's stage over a scene: its arguments, guards about them, a graph of it on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from questprof.backends.user import StageSet
from questprof.backends.user_launch import behind
from questprof.kernelcheck.findings import FaultError
from questprof.kernelcheck.guarded import Guarded, Guards

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

    from questprof.kernelcheck.scene import Scene

CAPTURED = "A CUDA graph holds it: no .item(), .cpu() or synchronize; make what it needs in prepare."


@dataclass(frozen=True)
class Captured:
    """A CUDA graph of a launch."""

    graph: torch.cuda.CUDAGraph
    launch: Callable[[], None]
    """What was captured. A graph knows addresses alone: this holds what `prepare` made at them."""


@dataclass
class Launcher:
    """A stage of `stages` over `scene`, always with the same tensors, as a graph would have it."""

    stages: StageSet
    stage: str
    scene: Scene
    outputs: Mapping[str, Guarded]
    arguments: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]
    """What it is called with, given what it gets as the cache."""
    given: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Inputs beside query and cache."""
    reset: Callable[[], None] | None = None
    """For a stage that writes the cache: makes it again what it was before any launch."""
    scratch: torch.Tensor | None = None
    """Of a stage that is given one, which launches over other caches share."""
    _last: Callable[[], None] | None = None

    def launch(self, *, again: bool = False) -> None:
        """Launch once, and see that nothing else was touched; FaultError.

        What `prepare` makes is made anew, as the cache may have changed, unless the launch is one `again`.
        """
        if not again or self._last is None:
            self._last = self._call()
        self._guarded(self._last, "")

    def launch_behind_neighbour(self) -> None:
        """Launch again, behind a launch over the neighbour, which meets the scratch first, all zero."""
        assert self.scratch is not None
        self.scratch.zero_()
        self._call(self.scene.neighbour)()
        self.launch(again=True)

    def captured(self) -> Captured:
        """A CUDA graph of the launch; FaultError where none can hold it."""
        import torch

        call = self._call()
        call()  # compiles: nothing may while a graph is captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except Exception as error:
            cause = behind(error)
            said = cause.why if cause else (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise FaultError(f"a CUDA graph could not capture it: {said}", CAPTURED) from error
        return Captured(graph, call)

    def replay(self, captured: Captured) -> None:
        """As `launch`, from a graph."""
        self._guarded(captured.graph.replay, " when a CUDA graph replays it")

    def allocations(self) -> int:
        """Blocks of GPU memory that torch hands out during one launch."""
        import torch

        call = self._call()
        call()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        call()
        return int(torch.cuda.memory_stats()["allocation.all.allocated"] - before)

    def _call(self, cache: PagedCache | None = None) -> Callable[[], None]:
        cache = cache or self.scene.cache
        context = self.stages.contexts(cache).get(self.stage, cache)
        arguments, options = self.arguments(context)
        launcher = self.stages.stages[self.stage]

        def call() -> None:
            returned = launcher(*arguments, **options)
            if returned is not None:  # a dense that returns its output
                self.outputs["out"].tensor.copy_(returned)

        return call

    def _guarded(self, call: Callable[[], None], when: str) -> None:
        if self.reset:
            self.reset()
        guards = Guards(self.outputs, self._inputs())
        guards.arm()
        call()
        if self.scene.q.is_cuda:
            import torch

            torch.cuda.synchronize()
        try:
            guards.judge()
        except FaultError as fault:
            raise FaultError(fault.why + when, fault.fix) from None

    def _inputs(self) -> dict[str, torch.Tensor]:
        cache = self.scene.cache
        names = "block_table", "dense_table", "kv_indptr", "summary_table", "summary_indptr"
        tables = {name: getattr(cache, name) for name in (*names, "last_page_len", "last_page", "last_block")}
        contents = {"cache.pool.k": cache.pool.k, "cache.pool.v": cache.pool.v}
        contents["cache.pool.summary.data"] = cache.pool.summary.data
        inputs = {f"cache.{name}": tensor for name, tensor in tables.items()} | dict(self.given)
        return inputs if self.reset else inputs | contents | {"q": self.scene.q}
