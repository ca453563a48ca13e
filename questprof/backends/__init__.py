"""Backends: named sets of stages behind one interface, torch tensors at the border.

A new backend is a function `load(device) -> Backend` in a module and a line in `_LOADERS`; nothing else
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from questprof.errors import Exit, QuestprofError
from questprof.model import Point

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

_LOADERS = {
    "questprof": "questprof.backends.paged:load",
    "triton": "questprof.backends.paged:load_triton",
    "gather": "questprof.backends.gather:load",
    "sdpa": "questprof.backends.sdpa:load",
    "sdpa-cudnn": "questprof.backends.sdpa:load_cudnn",
    "flashinfer": "questprof.backends.flashinfer:load",
    "flashinfer-tc": "questprof.backends.flashinfer:load_tensor_cores",
    "fa3": "questprof.backends.fa3:load",
}


FILLER = "questprof"
"""The backend whose append fills the caches, whatever is measured on them."""
CACHES_HELD = {"sdpa": 2, "sdpa-cudnn": 2}
"""Times a cache's bytes that a point of the backend holds; 1 for the others, which read it in place."""


@dataclass(frozen=True)
class Backend:
    """A named set of stages.

    `stages` maps a stage's name to its launcher. A launcher writes into the tensors it is given; one
    that cannot (a library that returns its own) returns the output instead. `prepare(cache, q)` makes what
    `dense` reads, untimed: a copy, or a library's plan for these tensors. `scratch_floats` maps an
    attention stage to the fp32 numbers of scratch its launcher needs for (q, cache, page_ids); dense takes
    no ids. `why_not(point)` names the reason a point cannot run, or None. `variant(point)` names the
    implementation that runs it. `fuses(q, cache, page_ids, most_selected)`: whether `select_attend`, where it
    is among the stages, takes these tensors. `contexts(cache)`: what stages but `dense` read in place of the
    cache, made untimed. `asks` names what a fused `decode` takes beside q, cache and out.
    """

    name: str
    variant: Callable[[Point], str]
    stages: Mapping[str, Callable[..., torch.Tensor | None]]
    prepare: Callable[[PagedCache, torch.Tensor], Any]
    scratch_floats: Mapping[str, Callable[..., int]]
    why_not: Callable[[Point], str | None]
    fuses: Callable[[torch.Tensor, PagedCache, torch.Tensor, int], bool] = lambda *_: True
    contexts: Callable[[PagedCache], Mapping[str, Any]] | None = None
    asks: tuple[str, ...] = ()

    @property
    def caches_held(self) -> int:
        """Times a cache's bytes that a point takes: 1 in place, 2 when it is made into something else."""
        return 2 if self.contexts else CACHES_HELD.get(self.name, 1)


def load(name: str, device: str) -> Backend:
    """The backend `name` on `device` (cpu or cuda), a registered user's too; QuestprofError if unknown."""
    from questprof.backends import user

    if name in user.registered():
        return user.load(name, device)
    if name not in _LOADERS:
        known = ", ".join((*_LOADERS, *user.registered()))
        raise QuestprofError(f"backend {name!r}", "it is unknown", f"Choose one of {known}.")
    module, _, function = _LOADERS[name].partition(":")
    backend: Backend = getattr(import_module(module), function)(device)
    return backend


def guarded(backend: Backend, stage: str, *arguments: Any, **options: Any) -> torch.Tensor | None:
    """Launch a stage; what the launcher refuses (ValueError, TypeError) becomes a QuestprofError."""
    try:
        return backend.stages[stage](*arguments, **options)
    except (ValueError, TypeError) as error:
        raise QuestprofError(
            f"stage {stage} of backend {backend.name}",
            str(error),
            "Choose another shape, dtype or backend.",
            Exit.USAGE,
        ) from error
