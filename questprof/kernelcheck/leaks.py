"""NaN in pages that no query head of a group was given: none of it may reach an output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from questprof.kernelcheck import attention
from questprof.kernelcheck.attention import Pages
from questprof.kernelcheck.findings import FaultError, Place
from questprof.kernelcheck.launches import Launcher

if TYPE_CHECKING:
    from questprof.kernelcheck.scene import Scene


def judge_leaks(scene: Scene, launcher: Launcher, pages: Callable[[], Pages], leaks: tuple[str, ...]) -> None:
    """FaultError where NaN in a page that no head of the group was given reaches an output."""
    unselected = list(_unselected(scene, pages()))
    with attention.kept(scene):
        for request, kv_head, page in unselected:
            _spoil(scene, request, kv_head, page, leaks)
        launcher.launch()
        out = launcher.outputs["out"].tensor.cpu()
    row = next((row for row in scene.rows if not bool(out[row].isfinite().all())), None)
    if row is None:
        return
    for request, kv_head, page in unselected:
        with attention.kept(scene):
            _spoil(scene, request, kv_head, page, leaks)
            launcher.launch()
            alone = launcher.outputs["out"].tensor[row].isfinite().all()
        if not bool(alone):
            place = Place(*row, page if request == row[0] else None)
            why = f"NaN in page {page} of request {request}, which was not selected, reached out"
            raise FaultError(why, "Read selected pages alone: a weight of 0 times NaN is NaN.", place)
    why = "NaN in pages that were not selected reached out"
    raise FaultError(why, "Read selected pages alone.", Place(*row))


def _unselected(scene: Scene, pages: Pages) -> Iterator[tuple[int, int, int]]:
    """(request, KV head, logical page) of pages that no query head of the group reads."""
    for request, count in enumerate(scene.cache.num_pages):
        for kv_head in range(scene.cache.pool.num_kv_heads):
            heads = [head for head in range(scene.q.shape[1]) if scene.kv_head(head) == kv_head]
            read = {page for head in heads for page in pages[request, head] or ()}
            yield from ((request, kv_head, page) for page in range(count) if page not in read)


def _spoil(scene: Scene, request: int, kv_head: int, page: int, names: tuple[str, ...]) -> None:
    physical = scene.cache.physical_pages(request)[page]
    for name in names:
        getattr(scene.cache.pool, name)[physical, kv_head] = float("nan")
