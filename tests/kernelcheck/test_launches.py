"""What a captured launch holds on to, with a stand-in for CUDA's graphs."""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch

from questprof.backends.user import stage_set
from questprof.kernelcheck.findings import FaultError, Setting
from questprof.kernelcheck.guarded import Guarded
from questprof.kernelcheck.launches import Launcher
from questprof.kernelcheck.scene import make_scene

SETTING = Setting(2, 2, 64, "fp32", "fp32", 16, "paired", take_tail=True)


@pytest.mark.parametrize("table", ["block_table", "dense_table", "last_page"])
def test_a_table_that_a_stage_writes_is_named(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def writing(q: Any, cache: Any, out: torch.Tensor, lse: Any, scratch: Any) -> None:
        getattr(cache, table)[0] += 1

    module = ModuleType("writing_kernel")
    module.kernel = {"dense": writing}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "writing_kernel", module)
    scene = make_scene("cpu", SETTING, "one request", (40,))
    outputs = {"out": Guarded(scene.q.shape, scene.q.dtype, scene.q.device)}
    arguments = (outputs["out"].tensor, None, None)
    launcher = Launcher(
        stage_set("writing_kernel:kernel"),
        "dense",
        scene,
        outputs,
        lambda cache: ((scene.q, cache, *arguments), {}),
    )
    with pytest.raises(FaultError, match=f"cache.{table}"):
        launcher.launch()


class Prepared:
    """What a `prepare` makes: a graph reads its tensor by address."""

    made: weakref.ref[Prepared]

    def __init__(self, cache: Any) -> None:
        self.table = torch.arange(cache.total_pages)
        Prepared.made = weakref.ref(self)


class Graph:
    """Stands in for a CUDA graph, which keeps nothing alive."""

    def replay(self) -> None:
        gc.collect()
        assert Prepared.made() is not None, "the graph reads memory that was freed"


def test_what_was_prepared_lives_as_long_as_the_graph_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("prepared_kernel")
    module.kernel = {"prepare": Prepared, "dense": lambda q, prepared, out, lse, scratch: None}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "prepared_kernel", module)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    scene = make_scene("cpu", SETTING, "one request", (40,))
    outputs = {"out": Guarded(scene.q.shape, scene.q.dtype, scene.q.device)}
    launcher = Launcher(
        stage_set("prepared_kernel:kernel"),
        "dense",
        scene,
        outputs,
        lambda prepared: ((scene.q, prepared, outputs["out"].tensor, None, None), {}),
    )
    captured = launcher.captured()
    launcher.replay(captured)
    del captured
    gc.collect()
    assert Prepared.made() is None
