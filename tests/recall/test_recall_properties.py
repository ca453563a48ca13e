"""What holds for any queries, keys and values: bounds, monotone mass, dense attention with every page."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from recall_traces import Header, random_trace

from questprof.grid import WHOLE
from questprof.recall.cases import Asked, resolve
from questprof.recall.layer import Evaluated, evaluate
from questprof.recall.policies import POLICIES
from questprof.recall.setting import Setting, narrowed


@st.composite
def evaluations(draw: st.DrawFn, budgets: tuple[int, ...] = ()) -> Evaluated:
    """A small trace of any lengths and spread of keys, all policies."""
    page_size = draw(st.integers(1, 9))
    num_tokens = draw(st.integers(1, 60))
    positions = draw(st.sets(st.integers(0, num_tokens - 1), min_size=1, max_size=5))
    group, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    header = Header(num_tokens, tuple(sorted(positions)), group * kv_heads, kv_heads, 8, softmax_scale=0.35)
    trace = random_trace(header, draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 0.1, 1.0, 30.0])))
    pages = sorted(draw(st.sets(st.integers(1, 12), min_size=2, max_size=4)))
    asked = Asked((page_size,), budgets or tuple(count * page_size for count in pages))
    setting = Setting(asked, resolve(asked, header), header, page_size)
    return evaluate(setting, 0, narrowed(setting.scope, trace.layer(0)), None, False)


@settings(max_examples=60, deadline=None)
@given(evaluations())
def test_bounds_hold_and_mass_grows(found: Evaluated) -> None:
    cases, board = found.setting.cases, found.board
    for index, case in enumerate(cases):
        assert all(check.holds for check in found.agreement.checks(index, 8, False))
        picked = found.picked[index].sum(axis=-1)
        expected = np.minimum(case.token_budget // found.setting.page_size, found.setting.num_pages)
        assert (picked == expected).all()
    assert (board["bound_ratio"] <= 1 + 1e-9).all()
    assert (board["slack"] >= 0).all()
    assert ((board["mass"] >= 0) & (board["mass"] <= 1)).all()
    assert (board["lost"] >= 0).all()
    for name in ("oracle", "quest", "quest-open", "random"):
        own = [board["mass"][index] for index, case in enumerate(cases) if case.policy.name == name]
        for small, large in pairwise(own):
            assert (large >= small - 1e-12).all(), name


@settings(max_examples=40, deadline=None)
@given(evaluations((WHOLE,)))
def test_every_page_is_dense_attention(found: Evaluated) -> None:
    board = found.board
    assert len(found.setting.cases) == len(POLICIES)
    for name, exact in (("mass", 1), ("top_tokens", 1), ("top_pages", 1), ("rel_err", 0), ("missed", 0)):
        assert (board[name] == exact).all(), name
    assert (board["lost_pages"] == 0).all()
    assert (board["union_ratio"] == 1).all()
    assert (board["pages"] == found.setting.num_pages).all()
