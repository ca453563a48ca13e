"""Every figure of every query against the brute-force oracle, the kernels beside it, GQA and ragged tails."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import recall_brute as brute
import torch
from recall_traces import Header, random_trace

from questprof.backends import load
from questprof.backends.gather import over_triton
from questprof.recall.cases import Asked, resolve
from questprof.recall.layer import Evaluated, evaluate
from questprof.recall.policies import POLICIES, parse_policies
from questprof.recall.setting import Setting, narrowed, views
from questprof.recall.stages import Product

POLICY_NAMES = ("quest", "quest-open", "oracle", "fixed")
BUDGETS = (16, 48, 1000)
# A page's first, middle and last slot, a lone first token, and the positions around a boundary.
HEADER = Header(num_tokens=75, query_positions=(0, 3, 15, 16, 31, 40, 47, 48, 71, 74))


@lru_cache
def evaluated(page_size: int, kernels: bool = True) -> tuple[Evaluated, Asked]:
    asked = Asked((page_size,), BUDGETS, parse_policies(",".join(POLICY_NAMES)), top_tokens=10)
    trace = random_trace(HEADER, seed=page_size)
    setting = Setting(asked, resolve(asked, HEADER), HEADER, page_size)
    arrays = narrowed(setting.scope, trace.layer(0))
    stages = None
    if kernels:
        backend = load("questprof", "cpu")
        stages = Product(
            backend, "cpu", arrays.q, arrays.k, arrays.v, HEADER.query_positions, page_size, 0.125
        )
    return evaluate(setting, 0, arrays, stages, kernels, load("gather", "cpu")), asked


@pytest.mark.parametrize("page_size", [5, 8, 16])
def test_every_figure_of_every_query_is_the_oracles(page_size: int) -> None:
    found, _ = evaluated(page_size)
    layer = random_trace(HEADER, seed=page_size).layer(0)
    for index, case in enumerate(found.setting.cases):
        for query, position in enumerate(HEADER.query_positions):
            for head in (0, 4, 5):
                q, k, v = layer.q[query, head], layer.k[:, head // 3], layer.v[:, head // 3]
                expected = brute.figures(
                    q, k, v, position, page_size, case.token_budget, case.policy.name, 0.125
                )
                got = figures_of(found, index, head, query)
                for name, value in expected.items():
                    assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True), (
                        name,
                        case,
                        position,
                        head,
                    )


def figures_of(found: Evaluated, case: int, head: int, query: int) -> dict[str, float]:
    board = found.board
    by_case = ("mass", "rel_err", "bound_ratio", "top_tokens", "top_pages", "pages", "tail_taken", "gap")
    regrets = ("lost_pages", "lost", "tau_bound", "tau_true", "missed_slack", "false_slack", "swallowed")
    return {
        **{name: board[name][case, head, query] for name in (*by_case, *regrets)},
        **{name: board[name][head, query] for name in ("slack", "slack_tail", "tail_mass")},
        "needed_quest_95": board["needed_quest"][1, head, query],
        "needed_oracle_99": board["needed_oracle"][2, head, query],
    }


def test_the_union_is_of_the_group() -> None:
    found, _ = evaluated(8)
    layer = random_trace(HEADER, seed=8).layer(0)
    case = found.setting.cases[0]
    assert (case.token_budget, case.policy.name) == (16, "quest")
    for query, position in enumerate(HEADER.query_positions):
        for group in (0, 1):
            picks = []
            for head in range(3 * group, 3 * group + 3):
                q, k = (np.asarray(a, np.float64) for a in (layer.q[query, head], layer.k[:, group]))
                pages = brute.pages_of(position, 8)
                bounds, maxima = brute.bounds_of(q, k, pages), brute.maxima_of(q, k, pages)
                picks.append(brute.pick("quest", 16, 8, bounds, maxima))
            assert found.board["union_ratio"][0, 3 * group, query] == pytest.approx(brute.union_ratio(picks))


@pytest.mark.parametrize("page_size", [5, 8, 16])
def test_kernels_and_float64_agree(page_size: int) -> None:
    found, _ = evaluated(page_size)
    for index, case in enumerate(found.setting.cases):
        checks = found.agreement.checks(index, 64, False)
        compared = [check.stage for check in checks]
        selects = ["select"] if case.policy.take_tail is not None else []
        gathers = ["gather"] if selects and case.token_budget == BUDGETS[0] else []
        bounds = ["bound (4)", "bound (7)"]
        assert compared == ["score", *selects, "mass", "output", *gathers, *bounds]
        assert all(check.holds for check in checks), checks
    assert sum(found.agreement.near_ties) == 0


def test_the_paths_are_independent_of_each_other() -> None:
    with_kernels, _ = evaluated(8)
    alone, _ = evaluated(8, kernels=False)
    assert np.array_equal(with_kernels.picked, alone.picked)
    assert set(alone.agreement.errors[0]) == {"bound (4)", "bound (7)"}


def test_all_pages_are_dense_attention() -> None:
    found, _ = evaluated(16)
    for index, case in enumerate(found.setting.cases):
        if case.token_budget == 1000:
            assert (found.board["mass"][index] == 1).all()
            assert (found.board["rel_err"][index] == 0).all()
            assert (found.board["top_tokens"][index] == 1).all()
            assert (found.board["lost_pages"][index] == 0).all()


def test_views_cut_the_queries_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = evaluated(8, kernels=False)
    monkeypatch.setattr("questprof.recall.setting.VIEW_BYTES", 200_000)
    setting, arrays = whole.setting, narrowed(whole.setting.scope, random_trace(HEADER, seed=8).layer(0))
    assert len(list(views(setting, 0, arrays))) > 2
    cut = evaluate(setting, 0, arrays, None, False)
    for name in ("mass", "slack", "swallowed", "needed_quest", "top_tokens"):
        np.testing.assert_allclose(cut.board[name], whole.board[name], rtol=1e-12, atol=1e-12)


def test_random_draws_depend_on_seed_and_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(seed: int, heads: tuple[int, ...] = ()) -> np.ndarray:
        asked = Asked((8,), (24,), (POLICIES["random"],), heads=heads, seed=seed)
        setting = Setting(asked, resolve(asked, HEADER), HEADER, 8)
        arrays = narrowed(setting.scope, random_trace(HEADER, seed=8).layer(0))
        return evaluate(setting, 0, arrays, None, False).picked[0]

    first = drawn(0)
    assert (first.sum(axis=-1) == np.minimum(3, np.asarray(HEADER.query_positions) // 8 + 1)).all()
    assert not np.array_equal(first, drawn(1))
    assert np.array_equal(first[3:], drawn(0, heads=(4,)))
    monkeypatch.setattr("questprof.recall.setting.VIEW_BYTES", 200_000)
    assert np.array_equal(first, drawn(0))


def test_the_triton_stages_take_the_same_trace() -> None:
    """What runs on a GPU, here in Triton's interpreter (natively where there is a GPU)."""
    header = Header(num_tokens=40, query_positions=(16, 39), num_qo_heads=2, num_kv_heads=1)
    asked = Asked((16,), (32,), parse_policies("quest,quest-open,fixed"))
    setting = Setting(asked, resolve(asked, header), header, 16)
    arrays = narrowed(setting.scope, random_trace(header).layer(0))
    backend = load("triton", "cuda")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stages = Product(backend, device, arrays.q, arrays.k, arrays.v, header.query_positions, 16, 0.125)
    found = evaluate(setting, 0, arrays, stages, True, over_triton(backend))
    for index in range(3):
        checks = found.agreement.checks(index, 64, False)
        assert {"score", "mass", "output"} <= {check.stage for check in checks}
        assert all(check.holds for check in checks), checks
