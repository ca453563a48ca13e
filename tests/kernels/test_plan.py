"""Plans: every page and token is covered, programs fill the device, sizes fit together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from questprof_kernels import plan as plans

WORKERS = 132  # of an H200

SIZES = st.integers(0, 1 << 17)


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (12, 16), (128, 128), (129, 256)])
def test_next_power_of_2(n: int, power: int) -> None:
    assert plans.next_power_of_2(n) == power


@given(SIZES, st.integers(1, 128), st.integers(1, 64))
def test_score_programs_share_the_tiles(max_pages: int, heads: int, batch: int) -> None:
    plan = plans.plan_score(
        num_kv_heads=heads, head_dim=128, batch_size=batch, max_pages=max_pages, num_workers=WORKERS
    )
    tiles = plans.ceil_div(max_pages, plan.tile_pages)
    assert plan.grid[1:] == (heads, batch)
    assert 1 <= plan.grid[0] <= max(1, tiles)
    assert plan.tile_pages == plans.next_power_of_2(plan.tile_pages)


def test_score_fills_one_wave_and_no_more() -> None:
    # 32K tokens of Llama-2-7B: 2048 pages are 128 tiles of 16 a head; 8 * 132 // 32 = 33 programs: 4 each.
    long = plans.plan_score(num_kv_heads=32, head_dim=128, batch_size=1, max_pages=2048, num_workers=WORKERS)
    assert (long.tile_pages, long.grid) == (16, (32, 32, 1))
    # 512 tokens: 32 pages a head are too few for 16 a program.
    short = plans.plan_score(num_kv_heads=32, head_dim=128, batch_size=1, max_pages=32, num_workers=WORKERS)
    assert (short.tile_pages, short.grid) == (4, (8, 32, 1))


@given(SIZES, st.integers(1, 64), st.integers(1, 64), st.sampled_from([2, 4]))
def test_transposed_score_tiles_lie_in_one_block(
    max_pages: int, heads: int, batch: int, element_bytes: int
) -> None:
    plan = plans.plan_score_transposed(
        num_kv_heads=heads,
        batch_size=batch,
        max_pages=max_pages,
        num_workers=WORKERS,
        element_bytes=element_bytes,
    )
    assert plan.grid[1:] == (heads, batch)
    assert 1 <= plan.grid[0] <= max(1, plans.ceil_div(max_pages, plan.tile_pages))
    assert 32 <= plan.tile_pages * element_bytes <= 128  # a sector to a line of each row
    assert plans.SUMMARY_BLOCK_PAGES % plan.tile_pages == 0


def test_transposed_score_fills_one_wave() -> None:
    def planned(max_pages: int, kv_heads: int = 32) -> tuple[int, int, int]:
        plan = plans.plan_score_transposed(
            num_kv_heads=kv_heads, batch_size=1, max_pages=max_pages, num_workers=WORKERS
        )
        return plan.tile_pages, plan.num_warps, plan.grid[0]

    # 32K tokens of Llama-2-7B: 32 blocks a head; 2 * 132 // 32 = 8 programs of 4 tiles.
    assert planned(2048) == (64, 8, 8)
    # 8K: 8 blocks a head are 256 tiles, 16 halves 512 and 8 programs of 2.
    assert planned(512) == (32, 4, 8)
    # 2K: 16 pages a tile, 32 bytes of a row.
    assert planned(128) == (16, 2, 8)
    assert planned(2048, kv_heads=8) == (32, 4, 32)


@given(SIZES)
def test_select_keeps_usual_rows_in_one_block(max_pages: int) -> None:
    plan = plans.plan_select(num_qo_heads=32, batch_size=2, max_pages=max_pages)
    assert plan.block >= min(max_pages, 8192)
    assert plan.block == plans.next_power_of_2(plan.block)
    assert plan.block <= 32768  # ranks within a block share an int32
    assert plan.grid == (32, 2)


@given(
    st.sampled_from([(32, 32), (32, 8), (9, 3), (8, 1)]),
    st.booleans(),
    st.sampled_from([64, 128]),
    st.integers(1, 128),
    st.integers(1, 40),
    SIZES,
    st.sampled_from([2, 4]),
)
def test_attention_tiles_splits_and_scratch(
    heads: tuple[int, int],
    per_query_head: bool,
    head_dim: int,
    page_size: int,
    batch: int,
    pages: int,
    element_bytes: int,
) -> None:
    plan = plans.plan_attention(
        num_qo_heads=heads[0],
        num_kv_heads=heads[1],
        per_query_head=per_query_head,
        head_dim=head_dim,
        page_size=page_size,
        batch_size=batch,
        pages_per_request=pages,
        num_workers=WORKERS,
        element_bytes=element_bytes,
    )
    assert plan.heads_per_program * plan.grid[1] == heads[0]
    assert plan.grid == (plan.num_splits, heads[0] if per_query_head else heads[1], batch)
    assert plan.tile_tokens % plan.tile_rows == 0
    assert plan.tile_rows * head_dim * element_bytes == plan.num_warps * 32 * 16
    assert page_size <= plan.tile_slots < 2 * page_size
    assert 1 <= plan.num_splits <= max(1, pages)
    programs = plan.grid[1] * batch
    assert plan.num_splits == 1 or plan.num_splits * programs <= 2 * WORKERS
    partials = 0 if plan.num_splits == 1 else heads[0] * batch * plan.num_splits * (head_dim + 2)
    assert plan.scratch_floats - partials in range(plan.num_counters, plan.num_counters + 4)


@given(SIZES, st.integers(1, 128))
def test_active_splits_cover_the_pages_once(pages: int, num_splits: int) -> None:
    plan = plans.plan_attention(
        num_qo_heads=1,
        num_kv_heads=1,
        per_query_head=True,
        head_dim=128,
        page_size=16,
        batch_size=1,
        pages_per_request=pages,
        num_workers=WORKERS,
        num_splits=num_splits,
    )
    active = plan.active_splits(pages)
    a_split = plans.ceil_div(pages, num_splits)
    assert 1 <= active <= num_splits
    assert (active - 1) * a_split < max(1, pages) <= max(1, active * a_split)


def test_splits_do_not_depend_on_the_dtype() -> None:
    # A caller sizes the scratch without naming the dtype.
    def splits(element_bytes: int) -> int:
        return plans.plan_attention(
            num_qo_heads=32,
            num_kv_heads=8,
            per_query_head=False,
            head_dim=64,
            page_size=12,
            batch_size=1,
            pages_per_request=77,
            num_workers=WORKERS,
            element_bytes=element_bytes,
        ).num_splits

    assert splits(2) == splits(4) > 1


@given(st.integers(0, 5000), st.integers(1, 128), st.integers(0, 5000))
def test_append_covers_every_page_that_new_tokens_touch(new: int, page_size: int, older: int) -> None:
    total = plans.ceil_div(older + new, page_size)
    plan = plans.plan_append(
        num_kv_heads=3, page_size=page_size, batch_size=2, max_new_tokens=new, max_pages=total
    )
    first_run = older // page_size // plan.run_pages
    touched = plans.ceil_div(total, plan.run_pages) - first_run if new else 0
    assert plan.grid[0] >= max(1, touched)
    assert plan.grid[1:] == (3, 2)
    assert plan.run_pages in (1, 2, 4, 8, 16)
    assert plan.tile_slots <= max(1, 2 * min(new, page_size) - 1)


def test_a_program_of_append_writes_128_tokens_of_a_prefill_and_one_page_otherwise() -> None:
    def runs(new: int, page_size: int = 16) -> tuple[int, int, int, int]:
        plan = plans.plan_append(num_kv_heads=32, page_size=page_size, batch_size=1, max_new_tokens=new)
        return plan.tile_slots, plan.run_pages, plan.num_warps, plan.grid[0]

    assert runs(1) == (1, 1, 4, 1)
    assert runs(128) == (16, 1, 4, 9)
    assert runs(32768) == (16, 8, 1, 257)  # 2049 pages, the first and last in part
    assert runs(32768, 128) == (16, 1, 1, 257)
    assert runs(32768, 1) == (1, 16, 1, 2049)
    gathering = plans.plan_append(
        num_kv_heads=32, page_size=16, batch_size=1, max_new_tokens=32768, transposed=True
    )
    assert (gathering.run_pages, gathering.num_warps) == (8, 2)


def test_blocks_of_a_transposed_summary() -> None:
    assert plans.summary_blocks([]) == plans.summary_blocks([0, 0]) == 0
    assert plans.summary_blocks([1, 64, 65]) == 1 + 1 + 2


@pytest.mark.parametrize("batch_size", [0, 1])
def test_an_empty_batch_still_has_a_grid(batch_size: int) -> None:
    plan = plans.plan_append(num_kv_heads=1, page_size=16, batch_size=batch_size, max_new_tokens=0)
    assert plan.grid == (1, 1, 1)
