"""Stages `append` and `append_kv`: new tokens where they belong, nothing else changed, and right boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from questprof.backends.user import StageSet
from questprof.kernelcheck.findings import FaultError, Place
from questprof.kernelcheck.launches import Launcher
from questprof.kernelcheck.turns import Outcome

if TYPE_CHECKING:
    import torch

    from questprof.kernelcheck.scene import Scene


def check_append(stages: StageSet, stage: str, scene: Scene) -> Outcome:
    """New tokens where they belong, nothing else changed, and the boxes of their pages."""
    import torch

    from questprof.policies import newest_slots
    from questprof.workload import new_tokens

    cache, several = scene.cache, scene.cache.pool.page_size + 1
    counts = [min(length, several if r % 2 == 0 else 1) for r, length in enumerate(cache.seq_lens)]
    for request, count in enumerate(counts):  # the block table is full: as many tokens leave first
        cache.roll_back(request, count)
    generator = torch.Generator(device=cache.pool.device).manual_seed(scene.setting.seed + 1)
    new_indptr = cache.extend(counts)
    keys, values = new_tokens(cache.pool, sum(counts), generator)
    pages, slots = newest_slots(cache, counts)
    before = {}
    for name in ("k", "v"):
        storage = getattr(cache.pool, name)
        storage[pages, :, slots] = float("nan")
        before[name] = storage.clone()
    given = {"keys": keys, "values": values, "new_indptr": new_indptr}
    launcher = Launcher(
        stages,
        stage,
        scene,
        {},
        lambda _: ((cache, keys, values, new_indptr), {}),
        given,
        writes_cache=True,
    )
    launcher.launch()
    for name, new in (("k", keys), ("v", values)):
        before[name][pages, :, slots] = new
        _judge_storage(scene, name, before[name])
    if stage == "append":
        _judge_boxes(scene)
    return Outcome()


def _judge_storage(scene: Scene, name: str, expected: torch.Tensor) -> None:
    """K or V as it should be after an append, bit by bit."""
    from questprof.kernelcheck.guarded import bits

    cache, group = scene.cache, scene.q.shape[1] // scene.cache.pool.num_kv_heads
    wrong = bits(getattr(cache.pool, name)) != bits(expected)
    if not bool(wrong.any()):
        return
    for request in range(cache.batch_size):
        for kv_head in range(cache.pool.num_kv_heads):
            for page, physical in enumerate(cache.physical_pages(request)):
                if bool(wrong[physical, kv_head].any()):
                    slot = int(wrong[physical, kv_head].any(-1).int().argmax())
                    raise FaultError(
                        f"{name.upper()} of slot {slot} is not what append was given (KV head {kv_head})",
                        "Token i of request r goes behind those it has; only new slots are written.",
                        Place(request, kv_head * group, page),
                    )
    physical = int(wrong.flatten(1).any(1).int().argmax())
    why = f"it wrote into {name.upper()} of physical page {physical}, which no request owns"
    raise FaultError(why, "block_table maps logical pages to physical ones.")


def _judge_boxes(scene: Scene) -> None:
    from questprof_kernels import reference

    cache, group = scene.cache, scene.q.shape[1] // scene.cache.pool.num_kv_heads
    for request in range(cache.batch_size):
        for kv_head in range(cache.pool.num_kv_heads):
            stored = reference.stored_boxes(cache, request, kv_head)
            for ours, right in zip(stored, reference.boxes(cache, request, kv_head), strict=True):
                if len(wrong := (ours != right).any(-1).nonzero().flatten()):
                    page = int(wrong[0])
                    why = f"the box of KV head {kv_head} is not the least and greatest of the page's keys"
                    fix = "append keeps each dimension's minimum and maximum over the page's tokens."
                    raise FaultError(why, fix, Place(request, kv_head * group, page))
