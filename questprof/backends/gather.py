"""Ablation `gather`: the same selected pages copied into a contiguous temporary, then ordinary attention.

Score, select and append are the project's. `attend` copies and then runs the project's own `dense` over the
copy, so that what it costs beside `attend` in place is the copy alone. Nothing is fused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from questprof.backends import Backend, paged

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache


def load(device: str) -> Backend:
    """The project's backend on `device` with a gathering `attend`."""
    base = paged.load(device)
    return replace(over(base, _copier(triton=device == "cuda")), name="gather")


def over_triton(base: Backend) -> Backend:
    """`base`, whose stages are Triton's wherever they run, with a gathering `attend`."""
    return over(base, _copier(triton=True))


class _Triton:
    """The gathering `attend` in Triton as a stage set, which `backends.user` lays over Triton's stages."""

    @property
    def attend(self) -> Callable[..., Any]:
        """The launcher."""
        return self._backend.stages["attend"]

    @property
    def scratch_floats(self) -> dict[str, Callable[..., int]]:
        """What it needs."""
        return {"attend": self._backend.scratch_floats["attend"]}

    @property
    def _backend(self) -> Backend:
        return over_triton(paged.load_triton("cuda"))


triton = _Triton()


def _copier(*, triton: bool) -> Callable[..., None]:
    """The launcher that copies pages, in Triton or compiled for the CPU."""
    if triton:
        from questprof_kernels import gather
    else:
        from questprof_kernels import gather_cpu as gather
    copier: Callable[..., None] = gather.gather
    return copier


def over(base: Backend, copy: Callable[..., None]) -> Backend:
    """`base` with an `attend` that copies the pages by `copy` and attends over them by the base's `dense`."""
    from questprof_kernels import gathered

    def attend(
        q: torch.Tensor,
        cache: PagedCache,
        page_ids: torch.Tensor,
        select_indptr: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scratch: torch.Tensor,
    ) -> None:
        if not (q.is_contiguous() and out.is_contiguous()):
            raise ValueError("q and out must be contiguous: every query head becomes a request of its own")
        copied = gathered.carved(q, cache, page_ids, scratch)
        copy(cache, page_ids, select_indptr, copied)
        rest = scratch[gathered.floats(q, cache, page_ids) :]
        base.stages["dense"](_alone(q), copied, _alone(out), lse.view(-1, 1), rest)

    def scratch_floats(q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> int:
        planned: Any = gathered.planned(q, cache, page_ids)
        attention = base.scratch_floats["dense"](_alone(q), planned)
        return attention + int(gathered.floats(q, cache, page_ids))

    stages = {name: stage for name, stage in base.stages.items() if name != "select_attend"}
    return replace(
        base,
        stages={**stages, "attend": attend},
        scratch_floats={**base.scratch_floats, "attend": scratch_floats},
    )


def _alone(rows: torch.Tensor) -> torch.Tensor:
    """[batch_size, num_qo_heads, head_dim] as [batch_size * num_qo_heads, 1, head_dim]."""
    return rows.flatten(0, 1).unsqueeze(1)
