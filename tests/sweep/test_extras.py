"""Extra states of stages: right ones pass, lazy ones are caught, rotations are long enough to be cold."""

from dataclasses import replace

import msgspec
import pytest
import torch

from profiles import CPU
from questprof.backends import Backend, load
from questprof.checks import check
from questprof.model import Point, Shape
from questprof.policies import bind
from questprof.scan import EXTRA_STAGES
from questprof.sweep.binding import poison
from questprof.sweep.extras import MAX_ROTATION, STAGES, extra_candidates
from questprof.timing.candidates import Candidate
from questprof.timing.cuda import CudaExecutor
from questprof.timing.stopping import fixed
from questprof.workload import make_cache, make_pool, make_query

SHAPE = Shape("toy", num_qo_heads=4, num_kv_heads=2, head_dim=64, kv_dtype="fp32")
QUEST = Point(shape=SHAPE, seq_len=200, token_budget=64, device="cpu", batch_size=2)
DENSE = msgspec.structs.replace(QUEST, policy="dense", token_budget=0)
KIB = 1 << 10


def _candidates(point: Point, backend: Backend | None = None, cache_bytes: int = 0) -> dict[str, Candidate]:
    """Every extra of `point` by stage, for a GPU's rule with that last-level cache."""
    filler = load("questprof", "cpu")
    backend = backend or filler
    pool = make_pool(point, 1, 2)
    cache = make_cache(point, pool, filler, 0)
    query = make_query(point, pool, point.data, 0)
    bound = bind(point.policy, filler, cache, query, point.num_selected)
    for step in bound.steps:
        step.launch()
    executor = CudaExecutor(msgspec.structs.replace(CPU, last_level_cache_bytes=cache_bytes), fixed(3))
    found = extra_candidates(("append", "select"), bound, point, backend, filler, executor)
    return {candidate.rotation[0].steps[0].stage: candidate for candidate in found}


def _failed(candidate: Candidate) -> set[str]:
    """The checks that do not hold after every turn of the rotation has been launched on spoilt outputs."""
    poison(candidate.rotation)
    found = []
    for bound in candidate.rotation:
        for step in bound.steps:
            step.launch()
        checks = check(bound, bound.steps, "before", 0)
        assert checks
        assert {c.stage for c in checks} <= set(STAGES)
        found += checks
    return {c.stage for c in found if not c.holds}


def test_stages_by_policy() -> None:
    quest, dense = _candidates(QUEST), _candidates(DENSE)
    assert [*quest, *dense] == [
        "append_cold",
        "append_prefill",
        "select_cold",
        "append_kv_cold",
        "append_kv_prefill",
    ]
    assert set(EXTRA_STAGES) == set(STAGES)
    assert {stage for c in (*quest.values(), *dense.values()) for stage in c.touched_bytes} == set(STAGES)


@pytest.mark.parametrize("data", ["independent", "constant", "ramp", "needle"])
def test_right_results_pass(data: str) -> None:
    point = msgspec.structs.replace(QUEST, data=data)
    for candidate in (*_candidates(point).values(), *_candidates(DENSE).values()):
        assert _failed(candidate) == set()


def test_requests_without_tokens_are_no_obstacle() -> None:
    point = msgspec.structs.replace(QUEST, batch_size=3, seq_lens=(200, 0, 33), token_budgets=(64, 64, 32))
    for candidate in _candidates(point).values():
        assert _failed(candidate) == set()


@pytest.mark.parametrize("point", [QUEST, DENSE], ids=["quest", "dense"])
def test_a_stage_that_does_nothing_is_caught(point: Point) -> None:
    real = load("questprof", "cpu")
    idle = replace(real, stages={**real.stages, **dict.fromkeys(real.stages, lambda *_: None)})
    for stage, candidate in _candidates(point, idle).items():
        assert _failed(candidate) == {stage}


def test_append_advances_through_a_page_and_leaves_its_caches_cold() -> None:
    """New tokens of two requests: keys and values in and out, 4 x 2 x 2 x 64 x 4 bytes, and boxes."""
    candidate = _candidates(QUEST, cache_bytes=100 * KIB)["append_cold"]
    assert [bound.cache.seq_lens for bound in candidate.rotation[:17]] == [
        (1 + i % 16, 1 + i % 16) for i in range(17)
    ]
    touched = candidate.touched_bytes["append_cold"]
    assert 4096 * 2 <= touched < 4096 * 4
    assert len(candidate.rotation) * touched > 3 * 100 * KIB
    assert len({page for b in candidate.rotation for r in (0, 1) for page in b.cache.physical_pages(r)}) == (
        2 * len(candidate.rotation)
    )


def test_a_prefill_writes_every_token_and_box() -> None:
    candidate = _candidates(QUEST)["append_prefill"]
    (bound,) = candidate.rotation
    assert bound.cache.seq_lens == (200, 200)
    assert bound.outputs.appended is not None
    assert len(bound.outputs.appended[0]) == 400
    # keys, values in; K, V out: 4 x 400 tokens x 2 heads x 64 x 4 bytes; 26 boxes of 2 x 2 x 64 x 4 out
    assert candidate.touched_bytes == {"append_prefill": 4 * 400 * 512 + 26 * 1024}


def test_cold_selects_read_scores_of_their_own() -> None:
    """26 scores and 8 ids a head: 4 x 34 x 4 bytes a launch, so 565 of them pass 3 x 100 KiB."""
    candidate = _candidates(QUEST, cache_bytes=100 * KIB)["select_cold"]
    assert candidate.touched_bytes == {"select_cold": 544}
    assert len(candidate.rotation) == 3 * 100 * KIB // 544 + 1
    scores = [bound.outputs.scores for bound in candidate.rotation]
    assert len({s.data_ptr() for s in scores if s is not None}) == len(candidate.rotation)
    assert all(torch.equal(s, scores[0]) for s in scores if s is not None and scores[0] is not None)


def test_a_rotation_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of 1 GiB wants more than any graph takes."""
    monkeypatch.setattr("questprof.sweep.extras.MAX_ROTATION", 40)
    found = _candidates(QUEST, cache_bytes=1 << 30)
    assert {stage: len(candidate.rotation) for stage, candidate in found.items()} == dict.fromkeys(found, 40)
    assert MAX_ROTATION == 4096


def test_memory_for_no_second_cache_leaves_the_prefill_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("questprof.sweep.extras.available_bytes", lambda device: 1000)
    assert list(_candidates(DENSE)) == ["append_kv_cold"]


def test_a_backend_without_a_stage_has_no_extras() -> None:
    assert _candidates(DENSE, load("sdpa", "cpu")) == {}
