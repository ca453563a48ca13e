"""Backends: named sets of stages behind one interface, torch tensors at the border.

A new backend is a module with a `load(device) -> Backend` and a line in `_MODULES`; nothing else changes.
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

_MODULES = {"questprof": "questprof.backends.paged", "sdpa": "questprof.backends.sdpa"}


@dataclass(frozen=True)
class Backend:
    """A named set of stages.

    `stages` maps a stage's name to its launcher. A launcher writes into the tensors it is given; one
    that cannot (a library that returns its own) returns the output instead. `prepare` turns a paged
    cache into what `dense` reads, untimed. `scratch_floats` maps an attention stage to the fp32 numbers of
    scratch its launcher needs for (q, cache, page_ids); dense takes no ids. `why_not(point)` names the
    reason a point cannot run, or None.
    """

    name: str
    variant: str
    stages: Mapping[str, Callable[..., torch.Tensor | None]]
    prepare: Callable[[PagedCache], Any]
    scratch_floats: Mapping[str, Callable[..., int]]
    why_not: Callable[[Point], str | None]
    caches_held: int = 1
    """Times a cache's bytes that a point takes: 1 in place, 2 when `prepare` makes a copy."""


def load(name: str, device: str) -> Backend:
    """The backend `name` on `device` (cpu or cuda); QuestprofError for an unknown name."""
    if name not in _MODULES:
        raise QuestprofError(f"backend {name!r}", "it is unknown", f"Choose one of {', '.join(_MODULES)}.")
    backend: Backend = import_module(_MODULES[name]).load(device)
    return backend


def guarded(backend: Backend, stage: str, *arguments: Any, **options: Any) -> torch.Tensor | None:
    """Launch a stage; what the launcher refuses (ValueError, TypeError) becomes a QuestprofError."""
    try:
        return backend.stages[stage](*arguments, **options)
    except (ValueError, TypeError) as error:
        raise QuestprofError(
            f"stage {stage} of backend {backend.name} ({backend.variant})",
            str(error),
            "Choose another shape, dtype or backend.",
            Exit.USAGE,
        ) from error
