"""The Triton stages on a GPU: real sizes, CUDA graphs, races of the merge, and the interpreter beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import DTYPES, Case, assert_close, make_cache, make_outputs, make_q, make_select_indptr
from questprof_kernels import append, attend, dense, reference, score, select
from triton_launch import attended, densely, eager, scored, selected

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def check_attention(
    case: Case, q: torch.Tensor, outputs: tuple[torch.Tensor, ...], *picks: torch.Tensor
) -> None:
    """Sampled rows of the first request against float64, with eager code's error as the measure."""
    heads = sorted({0, q.shape[1] // 3, q.shape[1] - 1})
    rows = [(0, head) for head in heads]
    oracle = (
        reference.attend(q, case.cache, *picks, rows=rows)
        if picks
        else reference.dense(q, case.cache, rows=rows)
    )
    for ours, plain, expected, what in zip(
        outputs, eager(case, q, *picks), oracle, ("out", "lse"), strict=True
    ):
        assert_close(ours[0, heads], plain[0, heads], expected[0, heads], q.dtype, what)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 32), (32, 8)])
def test_eight_thousand_tokens(dtype: str, heads: int, kv_heads: int) -> None:
    case = make_cache((8192, 77), 16, kv_heads, 128, DTYPES[dtype], 1, DEVICE, append=append.append)
    q = make_q(case, heads, 2)
    select_indptr = make_select_indptr(case.cache, 128)
    scores = scored(q, case.cache)
    assert not scores.isnan().any()
    for take_tail in (True, False):
        ids = selected(scores, case.cache, select_indptr, take_tail)
        assert torch.equal(ids.cpu(), reference.select(scores.cpu(), case.cache, select_indptr, take_tail))
    check_attention(case, q, attended(q, case.cache, ids, select_indptr), ids, select_indptr)
    check_attention(case, q, densely(q, case.cache))


def test_a_hundred_thousand_pages_in_one_row() -> None:
    case = make_cache((131072,), 1, 1, 64, torch.float16, 3, DEVICE, append=append.append)
    q = make_q(case, 2, 4)
    scores = scored(q, case.cache)
    select_indptr = make_select_indptr(case.cache, 4096)
    ids = selected(scores, case.cache, select_indptr)
    assert torch.equal(ids.cpu(), reference.select(scores.cpu(), case.cache, select_indptr))


@pytest.mark.parametrize("group", [1, 4])
def test_the_merge_has_no_race(group: int) -> None:
    case = make_cache((4000, 100, 0, 1), 16, 8, 128, torch.float16, 5, DEVICE, append=append.append)
    q = make_q(case, 8 * group, 6)
    select_indptr = make_select_indptr(case.cache, 64)
    ids = selected(scored(q, case.cache), case.cache, select_indptr)
    sparse = torch.zeros(attend.attend_plan(q, case.cache, ids).scratch_floats, device=DEVICE)
    full = torch.zeros(dense.dense_plan(q, case.cache).scratch_floats, device=DEVICE)

    def launch() -> list[torch.Tensor]:
        (sparse_out, sparse_lse), (full_out, full_lse) = make_outputs(q), make_outputs(q)
        attend.attend(q, case.cache, ids, select_indptr, sparse_out, sparse_lse, sparse)
        dense.dense(q, case.cache, full_out, full_lse, full)
        return [sparse_out, sparse_lse, full_out, full_lse]

    first = launch()
    for _ in range(300):
        assert all(torch.equal(*pair) for pair in zip(first, launch(), strict=True))


def test_a_graph_of_the_chain_follows_its_inputs() -> None:
    """Captured once; then the query changes and requests grow by a token, read from device memory."""
    case = make_cache((2000, 15), 16, 4, 128, torch.float16, 7, DEVICE, append=append.append)
    cache, q = case.cache, make_q(case, 8, 8)
    select_indptr = make_select_indptr(cache, [32, 1])
    scores = torch.full((8, cache.total_pages + 4), float("nan"), device=DEVICE)
    ids = torch.zeros((8, 33), dtype=torch.int32, device=DEVICE)
    out, lse = make_outputs(q)
    scratch = torch.zeros(attend.attend_plan(q, cache, ids).scratch_floats, device=DEVICE)

    def chain() -> None:
        score.score(q, cache, scores)
        select.select(scores, cache, select_indptr, ids)
        attend.attend(q, cache, ids, select_indptr, out, lse, scratch)

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    keys, values = case.keys, case.values
    for seed in (9, 10):
        new = torch.randn((2, 4, 128), generator=torch.Generator().manual_seed(seed)).half().to(DEVICE)
        append.append(cache, new, new, cache.extend([1, 1]))
        q.copy_(make_q(case, 8, seed))
        graph.replay()
        torch.cuda.synchronize()
        expected = reference.select(scores[:, : cache.total_pages].cpu(), cache, select_indptr)
        assert torch.equal(ids.cpu(), expected)
        first, second = case.new_indptr.tolist()[1:]
        keys, values = (
            torch.cat([old[:first], new[:1], old[first:second], new[1:]]) for old in (keys, values)
        )
        case = Case(cache, keys, values, case.new_indptr + torch.arange(3, device=DEVICE))
        oracle = reference.attend(q, cache, ids, select_indptr)
        for ours, plain, exact in zip((out, lse), eager(case, q, ids, select_indptr), oracle, strict=True):
            assert_close(ours, plain, exact, torch.float16)


def test_the_interpreter_agrees_beside_a_gpu() -> None:
    here = Path(__file__).parent
    files = [here / "test_triton_select.py", here / "test_triton_dense.py"]
    # Without the marks of a parallel run, which plugins of the child would take for their own.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)],
        env=plain | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-3000:]
    assert "passed" in child.stdout
