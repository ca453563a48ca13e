"""A gathering attend gives what attend in place gives, and copies nothing but valid tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import (
    DTYPES,
    HOSTILE_LENGTHS,
    Case,
    assert_close,
    eager_attend,
    make_cache,
    make_outputs,
    make_page_ids,
    make_q,
    make_select_indptr,
    non_contiguous,
)
from questprof_kernels import gathered, reference

from questprof import backends
from questprof.backends import Backend, gather, paged

TRITON = "triton"
CPU = "cpu"
CUDA = "cuda"
KINDS = [TRITON, CPU, pytest.param(CUDA, marks=pytest.mark.gpu)]


def backend(kind: str) -> Backend:
    """The gathering backend over Triton's stages wherever they run, the CPU's compiled ones, or CUDA's."""
    return gather.over_triton(paged._triton("triton")) if kind == TRITON else backends.load("gather", kind)


def gathering(
    kind: str, case: Case, q: torch.Tensor, ids: torch.Tensor, indptr: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, gathered.Gathered]:
    """(out, lse, the temporary) of the gathering attend over a scratch of zeros."""
    found = backend(kind)
    size = found.scratch_floats["attend"](q, case.cache, ids)
    scratch = torch.zeros(size, dtype=torch.float32, device=q.device)
    out, lse = make_outputs(q)
    for _ in range(2):  # what a launch leaves in the scratch must not disturb the next
        found.stages["attend"](q, case.cache, ids, indptr, out, lse, scratch)
    return out, lse, gathered.carved(q, case.cache, ids, scratch)


@pytest.fixture
def where(device: str) -> Callable[[str], str]:
    return lambda kind: device if kind == TRITON else kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "head_dim", "page_size", "group"),
    [("fp16", 128, 16, 1), ("bf16", 64, 16, 4), ("fp32", 64, 12, 3), ("fp16", 64, 1, 2), ("fp32", 128, 3, 1)],
)
def test_it_attends_as_in_place(
    kind: str, dtype: str, head_dim: int, page_size: int, group: int, where: Callable[[str], str]
) -> None:
    case = make_cache(HOSTILE_LENGTHS, page_size, 2, head_dim, DTYPES[dtype], 1, where(kind), num_workers=6)
    q = make_q(case, 2 * group, 2)
    indptr = make_select_indptr(case.cache, 2)
    ids = make_page_ids(case.cache, 2 * group, indptr, 3)
    out, lse, _ = gathering(kind, case, q, ids, indptr)
    oracle_out, oracle_lse = reference.attend(q, case.cache, ids, indptr)
    on_cpu = Case(case.cache, case.keys.cpu(), case.values.cpu(), case.new_indptr.cpu())
    eager_out, eager_lse = eager_attend(on_cpu, q.cpu(), ids.cpu(), indptr.cpu())
    assert_close(out, eager_out, oracle_out, q.dtype, "out")
    assert_close(lse, eager_lse, oracle_lse, q.dtype, "lse")


@pytest.mark.parametrize("kind", KINDS)
def test_the_temporary_holds_each_heads_pages_in_order(kind: str, where: Callable[[str], str]) -> None:
    case = make_cache((33, 0, 40), 16, 1, 64, torch.float32, 4, where(kind))
    q = make_q(case, 2, 5)
    indptr = make_select_indptr(case.cache, [2, 0, 3])
    ids = torch.tensor([[0, 2, 0, 1, 2], [0, 1, 0, 1, 2]], dtype=torch.int32, device=q.device)
    _, _, copy = gathering(kind, case, q, ids, indptr)
    assert copy.block_table.tolist() == list(range(10))
    # Requests of 2, 0 and 3 pages, two heads each: (request 0: head 0, head 1), (1: ..), (2: ..).
    assert copy.kv_indptr.tolist() == [0, 2, 4, 4, 4, 7, 10]
    # Request 0 has 33 tokens: its page 2 holds 1. Request 2 has 40: its page 2 holds 8.
    assert copy.last_page_len.tolist() == [1, 16, 0, 0, 8, 8]
    picked = [(0, 0), (0, 2), (0, 0), (0, 1), *[(2, page) for _ in range(2) for page in (0, 1, 2)]]
    for place, (request, page) in enumerate(picked):
        rows = case.tokens(request, page)
        count = rows.stop - rows.start
        assert torch.equal(copy.pool.k[place, 0, :count], case.keys[rows, 0])
        assert torch.equal(copy.pool.v[place, 0, :count], case.values[rows, 0])
        assert not copy.pool.k[place, 0, count:].any()  # nothing is written behind the last token


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_cannot_be_requests_are_refused(kind: str, where: Callable[[str], str]) -> None:
    case = make_cache((33,), 16, 1, 64, torch.float32, 4, where(kind))
    q = non_contiguous(make_q(case, 2, 5))
    indptr = make_select_indptr(case.cache, 2)
    with pytest.raises(ValueError, match="must be contiguous"):
        gathering(kind, case, q, make_page_ids(case.cache, 2, indptr, 3), indptr)
