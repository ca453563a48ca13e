"""The ablation's backend: the project's stages and policy with an attend that copies first."""

from __future__ import annotations

from dataclasses import replace

import torch

from questprof import backends
from questprof.backends import gather, paged
from questprof.model import Point, Shape
from questprof.policies import bind
from questprof.workload import make_cache, make_pool, make_query

SHAPE = Shape("tiny", 4, 2, 64, kv_dtype="fp32")
POINT = Point(shape=SHAPE, seq_len=200, token_budget=64, device="cpu")


def test_its_chain_is_score_select_attend_with_the_same_result() -> None:
    pool = make_pool(POINT, 1, 2)
    cache = make_cache(POINT, pool, backends.load("questprof", "cpu"), 0)
    q = make_query(POINT, pool, "independent", 0)
    outs = []
    for name in ("gather", "questprof"):
        bound = bind("quest", backends.load(name, "cpu"), cache, q, POINT.num_selected)
        for step in bound.chain:
            step.launch()
        outs.append(bound.outputs.out)
        assert [step.stage for step in bound.chain] == ["score", "select", "attend"]
    torch.testing.assert_close(*outs)


def test_only_attend_is_its_own() -> None:
    loaded, own = backends.load("gather", "cpu"), backends.load("questprof", "cpu")
    assert loaded.name == "gather"
    assert {name for name in own.stages if loaded.stages[name] is not own.stages[name]} == {"attend"}


def test_a_fused_stage_is_left_out() -> None:
    base = paged._cpu()
    fused = replace(base, stages={**base.stages, "select_attend": print})
    assert "select_attend" not in gather.over(fused, print).stages
