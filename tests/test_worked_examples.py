"""The examples worked by hand in the article, each with its arithmetic, through equations, oracle and cache.

They are small enough to follow with a pencil: a page in two dimensions, a recall failure among four pages,
two decode steps over two pages, and the bytes and times of section 2.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from questprof_kernels import reference
from questprof_kernels.paged_cache import PagedCache, PagePool

from questprof.equations import (
    eq01_box,
    eq02_dim_bounds,
    eq03_page_bound,
    eq04_bound_slack,
    eq05_worked_page,
    eq08_append_key,
    eq09_dense_bytes,
    eq10_index_bytes,
    eq11_selected_bytes,
    eq12_read_ratio,
    eq13_time_ratio,
    eq14_update_tail,
)
from questprof.ledger import counted_bytes, entries, read_ratio, resident_bytes
from questprof.model import Point, Shape, shape_presets

MIB = 2**20


# The 2-D page, section 1.1.
#
#   keys (1, 4), (3, -2), (-1, 1): m = (-1, -2), M = (3, 4); q = (2, -1)
#   u = (max(2 x -1, 2 x 3), max(-1 x -2, -1 x 4)) = (6, 2), U = 8
#   dots 2 - 4 = -2, 6 + 2 = 8, -2 - 1 = -3: the bound is reached, slack 0


def test_the_page_whose_bound_is_reached() -> None:
    keys, q = [(1.0, 4.0), (3.0, -2.0), (-1.0, 1.0)], (2.0, -1.0)
    m, M = eq01_box(keys)
    assert m.tolist() == [-1.0, -2.0]
    assert M.tolist() == [3.0, 4.0]
    assert eq02_dim_bounds(q, m, M).tolist() == [6.0, 2.0]
    assert eq03_page_bound(q, m, M) == 8.0
    assert (np.array(keys) @ np.array(q)).tolist() == [-2.0, 8.0, -3.0]
    assert eq04_bound_slack(q, keys) == 0.0
    assert eq05_worked_page() == (q, tuple(keys), (-1.0, -2.0), (3.0, 4.0), 8.0, (-2.0, 8.0, -3.0))


# The same box over other keys: (3, 4), (-1, -2) have dots 6 - 4 = 2 and -2 + 2 = 0.
# The bound stays 8: its corner (3, -2) takes 3 from one key and -2 from the other. Slack 8 - 2 = 6.


def test_the_page_whose_bound_is_loose() -> None:
    keys, q = [(3.0, 4.0), (-1.0, -2.0)], (2.0, -1.0)
    m, M = eq01_box(keys)
    assert (m.tolist(), M.tolist()) == ([-1.0, -2.0], [3.0, 4.0])
    assert eq03_page_bound(q, m, M) == 8.0
    assert (np.array(keys) @ np.array(q)).tolist() == [2.0, 0.0]
    assert eq04_bound_slack(q, keys) == 6.0


# Four pages, section 1.1: the bounds hold and yet the best page is missed.
#
#   page           A   B   C   D
#   largest dot   10   3   2   1
#   bound         10  14  12   4      K = 2 takes B and C; K = 3 takes A as well
#
# With q = (2, -1) and pages of two keys. A page whose keys are (a, b) and (c, d) is bounded by
# 2 max(a, c) - min(b, d):
#   A (5, 0), (0, 5):    dots 10, -5           bound 2 x 5 - 0 = 10
#   B (6, 9), (0.5, -2): dots 12 - 9 = 3, 3    bound 2 x 6 + 2 = 14
#   C (5, 8), (0, -2):   dots 10 - 8 = 2, 2    bound 2 x 5 + 2 = 12
#   D (1, 1), (-1, -2):  dots 2 - 1 = 1, 0     bound 2 x 1 + 2 = 4

FOUR_PAGES = {
    "A": [(5.0, 0.0), (0.0, 5.0)],
    "B": [(6.0, 9.0), (0.5, -2.0)],
    "C": [(5.0, 8.0), (0.0, -2.0)],
    "D": [(1.0, 1.0), (-1.0, -2.0)],
}
FOUR_QUERY = (2.0, -1.0)


def fill(cache: PagedCache, request: int, tokens: list[tuple[float, float]], start: int = 0) -> None:
    """Put keys and values (10 x key) at positions start.. by hand; the boxes grow key by key, eq. (8)."""
    pool = cache.pool
    for position, key in enumerate(map(torch.tensor, tokens), start=start):
        page, slot = cache.physical_pages(request)[position // pool.page_size], position % pool.page_size
        pool.k[page, 0, slot], pool.v[page, 0, slot] = key, 10 * key
        box = pool.summary.data[page, 0]
        m, M = eq08_append_key(box[0].numpy(), box[1].numpy(), key.numpy())
        box[0], box[1] = torch.from_numpy(m), torch.from_numpy(M)


def hand_cache(num_tokens: int, page_size: int, num_pages: int) -> PagedCache:
    """One request, one KV head, two dimensions; NaN in every empty slot, pages handed out backwards."""
    pool = PagePool(num_pages, 1, page_size, 2, torch.float32)
    pool.reorder_free(list(range(num_pages - 1, -1, -1)))
    pool.k.fill_(math.nan)
    pool.v.fill_(math.nan)
    cache = PagedCache(pool, 1, num_pages)
    cache.extend([num_tokens])
    return cache


def one_query(*q: float) -> torch.Tensor:
    return torch.tensor([[q]])


def test_a_budget_of_two_misses_the_best_page_and_three_find_it() -> None:
    cache = hand_cache(8, page_size=2, num_pages=4)
    fill(cache, 0, [key for page in FOUR_PAGES.values() for key in page])
    scores = reference.score(one_query(*FOUR_QUERY), cache)
    assert scores.tolist() == [[10.0, 14.0, 12.0, 4.0]]
    dots = [max(2 * a - b for a, b in keys) for keys in FOUR_PAGES.values()]
    assert dots == [10.0, 3.0, 2.0, 1.0]
    picks = {k: reference.select(scores, cache, [0, k], take_tail=False) for k in (1, 2, 3, 4)}
    names = {k: "".join("ABCD"[page] for page in ids[0].tolist()) for k, ids in picks.items()}
    assert names == {1: "B", 2: "BC", 3: "ABC", 4: "ABCD"}
    # Policy `quest` gives one of its pages to the tail, D: then even three pages miss A.
    kept = reference.select(scores, cache, [0, 3], take_tail=True)
    assert kept.tolist() == [[1, 2, 3]]


def test_a_budget_of_two_loses_the_mass_of_the_best_page() -> None:
    cache = hand_cache(8, page_size=2, num_pages=4)
    fill(cache, 0, [key for page in FOUR_PAGES.values() for key in page])
    q = one_query(*FOUR_QUERY)
    _, everything = reference.dense(q, cache, softmax_scale=1.0)
    _, without_a = reference.attend(q, cache, torch.tensor([[1, 2]]), [0, 2], softmax_scale=1.0)
    # Logits 10, -5 | 3, 3 | 2, 2 | 1, 0: what B and C hold of exp(10) + exp(-5) + 2 exp(3) + ... + 1.
    total = sum(map(math.exp, (10, -5, 3, 3, 2, 2, 1, 0)))
    mass = (2 * math.exp(3) + 2 * math.exp(2)) / total
    assert math.exp(without_a.item() - everything.item()) == pytest.approx(mass, rel=1e-12)
    assert mass < 0.003


# Figure 2: pages of three slots, A full, B with two keys; one page is attended a step.
#
#   A (1, 1), (3, -2), (-1, 0): m_A = (-1, -2), M_A = (3, 1)
#   B (1, 2), (0, 4):           m_B = (0, 2),   M_B = (1, 4)
#   step t,   q = (2, -1): U_A = 2 x 3 + 2 = 8,  U_B = 2 x 1 - 2 = 0   -> A
#   append (-2, 5) to B:        m_B = (-2, 2),  M_B = (1, 5)
#   step t+1, q = (0, 1):  U_A = 1,              U_B = 5               -> B
#   without the append:    U_A = 1,              U_B = 4               -> B all the same

FIGURE_A = [(1.0, 1.0), (3.0, -2.0), (-1.0, 0.0)]
FIGURE_B = [(1.0, 2.0), (0.0, 4.0)]


def figure_cache() -> PagedCache:
    cache = hand_cache(5, page_size=3, num_pages=3)
    fill(cache, 0, FIGURE_A + FIGURE_B)
    return cache


def boxes(cache: PagedCache) -> list[list[list[float]]]:
    """[[m_A, M_A], [m_B, M_B]] as stored."""
    m, M = reference.stored_boxes(cache, 0, 0)
    return [[low, high] for low, high in zip(m.tolist(), M.tolist(), strict=True)]


def pick_one(cache: PagedCache, q: torch.Tensor) -> tuple[list[float], int]:
    """(bounds of the pages, the page picked) for K = 1 with all pages competing."""
    scores = reference.score(q, cache)
    return scores[0].tolist(), int(reference.select(scores, cache, [0, 1], take_tail=False))


def test_figure_2_step_by_step() -> None:
    cache = figure_cache()
    assert boxes(cache) == [[[-1.0, -2.0], [3.0, 1.0]], [[0.0, 2.0], [1.0, 4.0]]]
    assert pick_one(cache, one_query(2.0, -1.0)) == ([8.0, 0.0], 0)
    page_a = cache.physical_pages(0)[0]
    kept = [
        t.clone() for t in (cache.pool.k[page_a], cache.pool.v[page_a], cache.pool.summary.data[page_a, 0])
    ]

    cache.extend([1])
    fill(cache, 0, [(-2.0, 5.0)], start=5)

    assert boxes(cache)[1] == [[-2.0, 2.0], [1.0, 5.0]]
    assert torch.equal(
        torch.stack(reference.boxes(cache, 0, 0)), torch.stack(reference.stored_boxes(cache, 0, 0))
    )
    now = (cache.pool.k[page_a], cache.pool.v[page_a], cache.pool.summary.data[page_a, 0])
    assert all(torch.equal(old, new) for old, new in zip(kept, now, strict=True))
    assert pick_one(cache, one_query(0.0, 1.0)) == ([1.0, 5.0], 1)


def test_figure_2_without_the_append_turns_to_b_too() -> None:
    assert pick_one(figure_cache(), one_query(0.0, 1.0)) == ([1.0, 4.0], 1)


def test_figure_2_by_the_equations_alone() -> None:
    box = None
    for key in FIGURE_B:
        box = eq14_update_tail(box, key)
    assert box is not None
    assert eq03_page_bound((2.0, -1.0), *box) == 0.0
    assert eq03_page_bound((0.0, 1.0), *box) == 4.0
    m, M = eq14_update_tail(box, (-2.0, 5.0))
    assert (m.tolist(), M.tolist()) == ([-2.0, 2.0], [1.0, 5.0])
    assert eq03_page_bound((0.0, 1.0), m, M) == 5.0
    assert eq03_page_bound((2.0, -1.0), *eq01_box(FIGURE_A)) == 8.0
    assert eq03_page_bound((0.0, 1.0), *eq01_box(FIGURE_A)) == 1.0


def test_figure_2_attends_the_valid_tokens_of_the_page_it_picks() -> None:
    cache = figure_cache()
    out, lse = reference.attend(one_query(0.0, 1.0), cache, torch.tensor([[1]]), [0, 1], softmax_scale=1.0)
    # Page B, keys (1, 2), (0, 4), logits 2 and 4; values 10 x key; its third slot is NaN and unread.
    weight = math.exp(2) / (math.exp(2) + math.exp(4))
    assert out[0, 0].tolist() == pytest.approx([10 * weight, 20 * weight + 40 * (1 - weight)])
    assert lse.item() == pytest.approx(math.log(math.exp(2) + math.exp(4)))


# Bytes, section 2: L = 65536, S = 16, B = 4096 tokens, one KV head of 128 fp16 elements, M = 256 B.
#
#   P = 65536 / 16 = 4096, K = 4096 / 16 = 256
#   dense     2 x 256 x 65536    = 32 MiB
#   index     2 x 256 x 4096     =  2 MiB
#   selected  2 x 256 x 256 x 16 =  2 MiB      together 4 MiB = 1/8
#   4096 *pages* instead of tokens would read everything: rho = 1/16 + 1


def one_head(**sizes: int) -> Point:
    return Point(Shape("one head", 1, 1, 128, "fp16"), **sizes)


def test_an_eighth_of_the_bytes_at_64k() -> None:
    point = one_head(seq_len=65536, page_size=16, token_budget=4096)
    assert (point.num_pages, point.num_selected) == ((4096,), (256,))
    assert eq09_dense_bytes(256, 65536) == 32 * MIB
    assert eq10_index_bytes(256, 4096) == 2 * MIB
    assert eq11_selected_bytes(256, 256, 16) == 2 * MIB
    assert eq12_read_ratio(16, 256, 4096) == 1 / 16 + 4096 / 65536 == 1 / 8
    ledger = entries(point, num_workers=132)
    expected = {"dense": 32 * MIB, "score": 2 * MIB, "attend": 2 * MIB, "quest": 4 * MIB}
    assert counted_bytes(ledger) == expected
    assert read_ratio(ledger) == 1 / 8


def test_a_budget_counts_tokens_not_pages() -> None:
    point = one_head(seq_len=65536, page_size=16, token_budget=4096 * 16)
    assert point.num_selected == (4096,)
    assert read_ratio(entries(point, num_workers=132)) == 1 + 1 / 16


# Page sizes at a fixed budget B = 2048: K = 256, 128, 64; index 1/8, 1/16, 1/32; selected always B / L.


@pytest.mark.parametrize(("page_size", "num_selected"), [(8, 256), (16, 128), (32, 64)])
@pytest.mark.parametrize("seq_len", [8192, 32768])
def test_page_sizes_at_one_budget(page_size: int, num_selected: int, seq_len: int) -> None:
    point = one_head(seq_len=seq_len, page_size=page_size, token_budget=2048)
    assert point.num_selected == (num_selected,)
    counted = counted_bytes(entries(point, num_workers=132))
    assert counted["score"] / counted["dense"] == 1 / page_size
    assert counted["attend"] / counted["dense"] == 2048 / seq_len
    assert eq12_read_ratio(page_size, num_selected, seq_len // page_size) == 1 / page_size + 2048 / seq_len


# The whole cache of Llama-2-7B at 32K in fp16: 2 x 32768 x 32 heads x 128 x 2 B x 32 layers = 16 GiB.
# Its summary holds 2 / S of the K elements, 12.5 % at S = 16 and 3.125 % at S = 64: 1/S of K and V together.


@pytest.mark.parametrize(("page_size", "share_of_k"), [(16, 0.125), (64, 0.03125)])
def test_resident_bytes_of_a_whole_model(page_size: int, share_of_k: float) -> None:
    resident = resident_bytes(Point(shape_presets()["llama-2-7b"], 32768, page_size))
    assert resident.cache_bytes == 16 * 2**30
    assert resident.summary_bytes == share_of_k * resident.cache_bytes / 2


# Times, section 2: attention 60 % of the step, 7.03 times faster: 0.4 + 0.6 / 7.03 = 0.485, 1 / 0.485 = 2.06;
# at 40 %: 1 / (0.6 + 0.4 / 7.03) = 1.52.


def test_a_faster_attention_is_a_smaller_gain_for_the_step() -> None:
    assert eq13_time_ratio(0.6, 7.03) == pytest.approx(0.485, abs=5e-4)
    assert 1 / eq13_time_ratio(0.6, 7.03) == pytest.approx(2.06, abs=5e-3)
    assert 1 / eq13_time_ratio(0.4, 7.03) == pytest.approx(1.52, abs=5e-3)


# A ragged batch, section 2.1: 4096 and 256 pages with 256 and 32 selected.
# Padded to the longest, the short request scans 3840 pages and attends 224 pages in vain.


def test_ragged_requests_pay_for_their_own_pages() -> None:
    ragged = one_head(
        seq_len=65536, page_size=16, batch_size=2, seq_lens=(65536, 4096), token_budgets=(4096, 512)
    )
    padded = one_head(seq_len=65536, page_size=16, batch_size=2, token_budget=4096)
    assert (ragged.num_pages, ragged.num_selected) == ((4096, 256), (256, 32))
    own, waste = (counted_bytes(entries(point, num_workers=132)) for point in (ragged, padded))
    assert waste["score"] - own["score"] == eq10_index_bytes(256, 3840)
    assert waste["attend"] - own["attend"] == eq11_selected_bytes(256, 224, 16)


# A GQA group, section 2.1: 8 query heads pick 64 pages each, the union reads up to 512; one shared set 64.


def test_a_group_reads_the_union_of_its_pages() -> None:
    point = Point(Shape("group", 8, 1, 128, "fp16"), 65536, 16, 64 * 16)
    most, shared = (counted_bytes(entries(point, 132, union_ratio=u))["attend"] for u in (None, 1.0))
    assert most == eq11_selected_bytes(256, 512, 16)
    assert shared == eq11_selected_bytes(256, 64, 16)
