"""The small hostile caches of a check, and what the float64 reference says of them.

One request of several pages, and a ragged batch about the page's edges; pages shuffled over a larger pool,
NaN in every slot of K and V that holds no token, two queries. What a stage reads comes from the reference and
not from the stage before, so that each is judged alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from questprof.backends import FILLER, Backend, load
from questprof.counters.trace_fill import fill, poison
from questprof.kernelcheck.findings import Order, Setting
from questprof.model import Point, Shape
from questprof.policies import Bound, Outputs
from questprof.workload import make_cache, make_pool, make_query

if TYPE_CHECKING:
    import torch
    from questprof_kernels.paged_cache import PagedCache

WORKERS = 4
"""Workers that launches are planned for: few splits, and more than one."""
SELECTED = 4
"""Pages selected a request, where it has so many."""
TIED = 2
"""Equal scores on either side of the last place of a selection."""
CACHES = 3
"""For so many the pool has room: the one checked, its neighbour, and pages that nobody holds."""
LONG = 9
"""Full pages of the longest request, a partial one behind them."""


@dataclass
class Scene:
    """One cache with its queries; everything that a launch may be given lies on the device."""

    case: str
    setting: Setting
    cache: PagedCache
    neighbour: PagedCache
    """Another of the same lengths and pool, as a rotation has: launches over both share scratch."""
    q: torch.Tensor  # [batch_size, num_qo_heads, head_dim]
    queries: tuple[torch.Tensor, ...]
    """What `q` holds in the first, second launch; the launch is given the same tensor."""
    num_selected: tuple[int, ...]
    select_indptr: torch.Tensor

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(request, head) of every row of the output."""
        heads = range(self.q.shape[1])
        return [(request, head) for request in range(self.cache.batch_size) for head in heads]

    @property
    def starts(self) -> list[int]:
        """First flat logical page of each request, and the end."""
        starts = [0]
        for count in self.cache.num_pages:
            starts.append(starts[-1] + count)
        return starts

    @property
    def bounds(self) -> list[int]:
        """`select_indptr` on the host."""
        starts = [0]
        for count in self.num_selected:
            starts.append(starts[-1] + count)
        return starts

    def kv_head(self, head: int) -> int:
        """The KV head of a query head."""
        group: int = self.q.shape[1] // self.cache.pool.num_kv_heads
        return head // group

    def bound(self) -> Bound:
        """The scene as the checks of a sweep know it."""
        return Bound(self.cache, self.q, self.setting.take_tail, Outputs(self.q, None))

    def scores(self) -> torch.Tensor:
        """The reference's scores of the present query, fp32 [num_qo_heads, total_pages]."""
        import torch
        from questprof_kernels import reference

        scores: torch.Tensor = reference.score(self.q, self.cache)
        return scores.to(torch.float32).to(self.q.device)

    def tied_scores(self) -> torch.Tensor:
        """`scores`, of which in every row about the last place of the selection some are equal."""
        scores = self.scores()
        for request, head in self.rows:
            row = scores[head, self.starts[request] : self.starts[request + 1]]
            competing = row[: len(row) - self.setting.take_tail]
            places = self.num_selected[request] - self.setting.take_tail
            if 0 < places < len(competing):
                ranked = competing.argsort(descending=True, stable=True)
                competing[ranked[max(0, places - TIED) : places + TIED]] = competing[ranked[places]].clone()
        return scores

    def page_ids(self, scores: torch.Tensor) -> torch.Tensor:
        """The reference's selection from `scores`, int32 [num_qo_heads, select_indptr[-1]]."""
        from questprof_kernels import reference

        tail = self.setting.take_tail
        ids: torch.Tensor = reference.select(scores.cpu(), self.cache, self.bounds, take_tail=tail)
        return ids.to(self.q.device)


def lengths_of(page_size: int) -> dict[str, tuple[int, ...]]:
    """The cases by their names: tokens of each request."""
    long = LONG * page_size + max(1, page_size // 3)
    edges = (1, page_size - 1, page_size, page_size + 1, 5 * page_size + 1, long)
    return {
        f"one request of {long} tokens": (long,),
        "a ragged batch": tuple(length for length in edges if length),
    }


def scenes(order: Order, setting: Setting) -> Iterator[Scene]:
    """Every case over `setting`, made when it is asked for."""
    filler = _filler(order.device)
    for case, lengths in lengths_of(setting.page_size).items():
        yield make_scene(order.device, setting, case, lengths, filler)


def make_scene(
    device: str, setting: Setting, case: str, lengths: tuple[int, ...], filler: Backend | None = None
) -> Scene:
    """One cache of `lengths`, filled by the project."""
    import torch

    point = _point(device, setting, lengths)
    pool = make_pool(replace(point, page_order="scattered"), CACHES, WORKERS)
    pool.region_bytes = 1  # one a page, so that dense_table has another order than block_table
    poison(pool)
    cache, neighbour = (make_cache(point, pool, filler or _filler(device), index) for index in (0, 1))
    queries = tuple(make_query(point, pool, "independent", index) for index in (0, 1))
    num_selected = tuple(min(SELECTED, pages) for pages in cache.num_pages)
    indptr = torch.tensor([0, *num_selected]).cumsum(0).to(torch.int32).to(pool.device)
    return Scene(case, setting, cache, neighbour, queries[0].clone(), queries, num_selected, indptr)


def _point(device: str, setting: Setting, lengths: tuple[int, ...]) -> Point:
    shape = Shape(
        "check",
        setting.num_qo_heads,
        setting.num_kv_heads,
        setting.head_dim,
        setting.kv_dtype,
        setting.summary_dtype,
    )
    return Point(
        shape=shape,
        seq_len=max(lengths),
        seq_lens=lengths,
        batch_size=len(lengths),
        page_size=setting.page_size,
        summary_layout=setting.summary_layout,
        device="cuda" if device == "cuda" else "cpu",
        seed=setting.seed,
    )


def _filler(device: str) -> Backend:
    """The project's append on a GPU; elsewhere plain torch, as compiling takes longer than the check."""
    if device == "cuda":
        return load(FILLER, device)
    return Backend("torch", lambda _: "", {"append": fill}, lambda cache, _: cache, {}, lambda _: None)
