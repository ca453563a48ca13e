"""The host side of the CUDA stages, without a GPU: what they refuse, plan, pass on and launch."""

from __future__ import annotations

import ctypes
import re
from itertools import pairwise

import pytest
import torch
from cuda_launch import Launch, bare_cache, bare_tensors, launch_all, record, scratch_of
from hypothesis import given
from hypothesis import strategies as st
from questprof_kernels import append_cuda, cuda_arguments, cuda_stages
from questprof_kernels.cuda_module import FOLDER
from questprof_kernels.plan import MAX_SPLITS, SUMMARY_BLOCK_PAGES, BlockPlan, ceil_div, plan_blocks

WORKERS = 132  # of an H200
HALF, BF16 = torch.float16, torch.bfloat16


# Plans.


@st.composite
def plans(draw: st.DrawFn) -> tuple[BlockPlan, int]:
    """(a plan, the pages a request that it was made for)."""
    kv_heads, group = draw(st.integers(1, 64)), draw(st.integers(1, 8))
    pages = draw(st.integers(0, 1 << 14))
    plan = plan_blocks(
        num_qo_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        per_query_head=draw(st.booleans()),
        head_dim=draw(st.sampled_from([64, 128])),
        batch_size=draw(st.integers(0, 40)),
        pages_per_request=pages,
        num_workers=WORKERS,
        num_splits=draw(st.sampled_from([0, 0, 1, 7, 200])),
    )
    return plan, pages


@given(plans(), st.integers(0, 1 << 14))
def test_splits_share_the_pages_evenly_and_each_once(made: tuple[BlockPlan, int], pages: int) -> None:
    """As share_of of attention.cuh computes them."""
    plan, _ = made
    active = plan.active_splits(pages)
    bounds = [pages * split // active for split in range(active + 1)]
    sizes = [end - first for first, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, pages)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 0 or pages == 0
    assert 1 <= active <= plan.num_splits


@given(plans())
def test_the_scratch_holds_two_counters_and_eight_bytes_a_number(made: tuple[BlockPlan, int]) -> None:
    plan, _ = made
    splits, programs, batch = plan.grid
    assert splits == plan.num_splits
    assert batch >= 1
    assert plan.header_floats % 4 == 0  # words of 8 bytes, 16-byte aligned
    assert 2 * programs * batch <= plan.header_floats < 2 * programs * batch + 4
    words = splits * programs * batch * plan.heads_per_program * (plan.head_dim + 2)
    assert plan.scratch_floats == plan.header_floats + 2 * words


@given(st.integers(1, 64), st.integers(1, 8), st.booleans(), st.integers(0, 40), st.integers(0, 1 << 14))
def test_a_planned_launch_is_one_wave_or_does_not_split(
    kv_heads: int, group: int, per_query_head: bool, batch: int, pages: int
) -> None:
    plan = plan_blocks(
        num_qo_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        per_query_head=per_query_head,
        head_dim=128,
        batch_size=batch,
        pages_per_request=pages,
        num_workers=WORKERS,
    )
    splits, programs, requests = plan.grid
    assert programs * plan.heads_per_program == kv_heads * group
    a_worker = 1 if plan.heads_per_program > 1 else max(1, 16 // plan.num_warps)
    assert splits == 1 or splits * programs * requests <= a_worker * WORKERS
    assert splits <= max(1, min(MAX_SPLITS, ceil_div(pages, 4)))


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((HALF, HALF, 128, 16, 1), None),
        ((BF16, BF16, 64, 8, 8), None),
        ((BF16, BF16, 64, 48, 3), None),
        ((torch.float32, torch.float32, 128, 16, 1), "float32"),
        ((HALF, torch.float32, 128, 16, 1), "summary"),
        ((BF16, HALF, 128, 16, 1), "summary"),
        ((HALF, HALF, 96, 16, 1), "head_dim 96"),
        ((HALF, HALF, 128, 12, 1), "page_size 12"),
        ((HALF, HALF, 128, 4, 1), "page_size 4"),
        ((HALF, HALF, 128, 24, 1), "page_size 24"),
        ((HALF, HALF, 128, 16, 9), "9 query heads"),
    ],
)
def test_why_not(arguments: tuple[torch.dtype, torch.dtype, int, int, int], word: str | None) -> None:
    refusal = cuda_stages.why_not(*arguments)
    assert (refusal is None) == (word is None)
    assert word is None or word in str(refusal)


def test_rows_that_16_byte_loads_cannot_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch)
    cache = bare_cache([64])
    scores = torch.empty(8, cache.total_pages, device="meta")
    odd = torch.empty(1, 8, 132, dtype=HALF, device="meta")[:, :, :128]
    with pytest.raises(ValueError, match="16-byte aligned"):
        cuda_stages.score(odd, cache, scores)


def test_a_scratch_that_is_too_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch)
    cache = bare_cache([4096])
    t = bare_tensors(cache, 8, 64)
    short = scratch_of(cuda_stages.dense_plan(t.q, cache).scratch_floats - 1)
    with pytest.raises(ValueError, match="scratch"):
        cuda_stages.dense(t.q, cache, t.out, t.lse, short)


# Launches.


def launched(monkeypatch: pytest.MonkeyPatch, blocks_per_sm: int = 1) -> dict[str, Launch]:
    """One of every stage over 32768 tokens and a short request, 32 query heads, 8 KV heads; by kernel."""
    recorder = record(monkeypatch)
    recorder.blocks_per_sm = blocks_per_sm
    for layout in ("paired", "transposed"):
        launch_all(bare_cache([32768, 17], summary_layout=layout), 32, 128)
    return {launch.name: launch for launch in recorder.launches}


def test_grids_cover_requests_heads_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = launched(monkeypatch)
    assert by_name["select_kernel"].grid == (32, 2, 1)
    assert by_name["score_transposed"].grid == (32, 8, 2)  # 2048 pages are 32 blocks of 64
    paired = by_name["score_paired"]
    definitions = dict(paired.definitions)
    assert paired.grid[0] * paired.num_threads // 32 == 8  # a warp each KV head
    assert paired.grid[1] * definitions["TILE"] == 2048
    assert paired.grid[2] == 2
    # Runs of 8 of 1026 pages: of the mean, which may begin inside of one.
    assert by_name["append_pages_kernel"].grid == (8, 2, 130)
    assert by_name["attend_kernel"].grid[1:] == by_name["select_attend_kernel"].grid[1:] == (32, 2)
    assert by_name["dense_kernel"].grid[1:] == (8, 2)
    for launch in by_name.values():
        assert dict(launch.definitions)["WARPS"] * 32 == launch.num_threads or launch.source == "score.cu"


@pytest.mark.parametrize(
    ("num_pages", "num_selected", "num_warps", "slots"),
    [(2048, 128, 8, 8), (4096, 256, 8, 16), (2048, 512, 16, 4), (8192, 256, 16, 16), (16384, 256, 32, 16)],
)
def test_select_has_a_thread_for_each_wanted_page_and_few_warps(
    monkeypatch: pytest.MonkeyPatch, num_pages: int, num_selected: int, num_warps: int, slots: int
) -> None:
    recorder = record(monkeypatch)
    launch_all(bare_cache([num_pages * 16]), 32, num_selected)
    chosen = dict(next(launch for launch in recorder.launches if launch.name == "select_kernel").definitions)
    assert (chosen["WARPS"], chosen["SLOTS"]) == (num_warps, slots)
    assert chosen["REREAD"] == (num_pages > num_warps * 32 * slots)


def test_runs_of_more_new_tokens_than_a_grid_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record(monkeypatch)
    cache = bare_cache([8 * 65535 + 5], page_size=1, num_kv_heads=1)
    new = torch.empty(sum(cache.seq_lens), 1, 128, dtype=HALF, device="meta")
    new_indptr = torch.empty(2, dtype=torch.int32, device="meta")
    append_cuda.append(cache, new, new, new_indptr)
    assert recorder.launches[0].grid == (1, 1, 65535)


def test_only_the_fused_launch_starts_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for name, launch in launched(monkeypatch).items() if launch.dependent} == {
        "select_attend_kernel"
    }


def test_blocks_wait_only_where_all_are_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    for blocks_per_sm in (0, 1):
        by_name = launched(monkeypatch, blocks_per_sm)
        for name in ("attend_kernel", "select_attend_kernel", "dense_kernel"):
            assert by_name[name].arguments.blocks_stay == blocks_per_sm, name
        monkeypatch.undo()


def test_more_splits_than_may_wait_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record(monkeypatch)
    cache = bare_cache([32768], num_kv_heads=1)
    t = bare_tensors(cache, 1, 64)
    for num_splits in (32, 33):
        plan = cuda_stages.dense_plan(t.q, cache, num_splits=num_splits)
        cuda_stages.dense(t.q, cache, t.out, t.lse, scratch_of(plan.scratch_floats), plan=plan)
    assert [launch.arguments.blocks_stay for launch in recorder.launches] == [1, 0]


def test_strides_and_sizes_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record(monkeypatch)
    cache = bare_cache([4096, 100])
    t = bare_tensors(cache, 8, 64)
    q = torch.empty(8, 2, 256, dtype=HALF, device="meta").transpose(0, 1)[:, :, :128]
    out = torch.empty(2, 8, 136, dtype=HALF, device="meta")[:, :, :128]
    scores = torch.empty(8, 300, device="meta")
    ids = torch.empty(8, 80, dtype=torch.int32, device="meta")
    plan = cuda_stages.attend_plan(q, cache, ids)
    scratch = scratch_of(plan.scratch_floats)
    cuda_stages.score(q, cache, scores)
    cuda_stages.select_attend(scores, cache, t.select_indptr, ids, True, q, out, t.lse, scratch, 0.5)
    score, fused = (launch.arguments for launch in recorder.launches)
    assert (score.q_batch_stride, score.q_head_stride, score.scores_stride) == (256 // 8, 512 // 8, 300)
    assert score.num_kv_heads == cache.pool.num_kv_heads
    assert (fused.q_batch_stride, fused.q_head_stride) == (256 // 8, 512 // 8)
    assert (fused.out_batch_stride, fused.out_head_stride) == (8 * 136, 136)
    assert (fused.page_ids_stride, fused.scores_stride) == (80, 300)
    assert (fused.num_kv_heads, fused.take_tail) == (8, 1)
    assert (fused.num_splits, fused.num_programs) == (plan.grid[0], 8 * 2)
    assert fused.scale_log2 == pytest.approx(0.5 * cuda_stages.LOG2_E)


# The argument structures are written twice, here and in C: in the same order, with the same names and types.

C_TYPES = {
    "long long": ctypes.c_longlong,
    "int": ctypes.c_int,
    "u32": ctypes.c_uint,
    "unsigned short": ctypes.c_ushort,
    "float": ctypes.c_float,
}
RENAMED = {"block_table": {"block_table", "table"}}
"""Where the structures in Python and C may call one tensor differently."""


def c_fields(text: str, struct: str) -> list[tuple[str, type]]:
    """(name, ctypes type) of each field of `struct` in C++ source `text`, in order."""
    (body,) = re.findall(rf"struct {struct} \{{(.*?)\n\}};", text, flags=re.S)
    body = re.sub(r"//[^\n]*", "", body)
    fields = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        kind, name = re.fullmatch(r"(.*[\s*])(\w+)", declaration).groups()  # type: ignore[union-attr]
        fields.append((name, ctypes.c_void_p if "*" in kind else C_TYPES[kind.strip()]))
    return fields


def differences(python: type[ctypes.Structure], text: str, struct: str) -> list[str]:
    """Where the two structures differ."""
    ours, theirs = [(name, kind) for name, kind, *_ in python._fields_], c_fields(text, struct)
    found = [f"{len(ours)} fields in Python, {len(theirs)} in C"] if len(ours) != len(theirs) else []
    for (name, kind), (c_name, c_kind) in zip(ours, theirs, strict=False):
        if name not in RENAMED.get(c_name, {c_name}) or kind is not c_kind:
            found.append(f"{name} {kind.__name__} in Python, {c_name} {c_kind.__name__} in C")
    return found


STRUCTS = [
    ("append.cuh", "AppendArguments"),
    ("score.cu", "ScoreArguments"),
    ("select.cu", "SelectArguments"),
    ("attention.cuh", "AttentionArguments"),
]


@pytest.mark.parametrize(("file", "struct"), STRUCTS)
def test_argument_structures_are_those_of_the_kernels(file: str, struct: str) -> None:
    assert differences(getattr(cuda_arguments, struct), (FOLDER / file).read_text(), struct) == []


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("u32 q_batch_stride;", "int q_batch_stride;"),
        ("const int* kv_indptr;", "const int* indptr;"),
        ("const char* k;\n    const char* v;", "const char* v;\n    const char* k;"),
        ("int num_programs;", "int num_programs;\n    int another;"),
    ],
)
def test_a_structure_that_differs_is_found(written: str, instead: str) -> None:
    text = (FOLDER / "attention.cuh").read_text()
    assert written in text
    changed = text.replace(written, instead, 1)
    assert differences(cuda_arguments.AttentionArguments, changed, "AttentionArguments")


@pytest.mark.parametrize(
    ("file", "declared", "ours"),
    [
        ("attention.cuh", "constexpr int MOST_SPLITS", cuda_stages.MOST_WAITING_SPLITS),
        ("score.cu", "constexpr int PAGES", SUMMARY_BLOCK_PAGES),
    ],
)
def test_a_number_that_both_languages_hold_is_the_same(file: str, declared: str, ours: int) -> None:
    assert str(ours) in re.findall(rf"{declared} = (\w+);", (FOLDER / file).read_text())
