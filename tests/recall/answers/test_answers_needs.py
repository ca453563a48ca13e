"""Needed budgets and the suggested table: counted by hand, and promises that hold for any needs."""

from __future__ import annotations

import random
from dataclasses import replace
from dataclasses import replace as changed

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as struct_replace
from planted_recall import Planted

from questprof.errors import QuestprofError
from questprof.recall.answers.evaluation import Evaluation, evaluations
from questprof.recall.answers.needs import long_queries, needs, reaching
from questprof.recall.answers.suggestion import DENSE_RATIO, cheapest, layer_table, suggest, suggestions


def one(planted: Planted) -> Evaluation:
    (found,) = evaluations(planted.profile())
    return found


@pytest.mark.parametrize(("share", "value"), [(0.9, 9), (0.91, 10), (0.5, 5), (1.0, 10), (0.05, 1)])
def test_reaching_is_the_least_value_that_enough_do_not_exceed(share: float, value: int) -> None:
    """Of 1 to 10 nine tenths are at most 9; a little more asks for 10."""
    assert reaching([7, 3, 10, 1, 9, 2, 8, 4, 6, 5], share) == value


def test_short_contexts_do_not_count() -> None:
    """Contexts of 100, 199, 200 and 400 tokens: half of the longest is 200."""
    assert long_queries((99, 198, 199, 399)) == (2, 3)


def test_needs_of_a_layer_counted_by_hand() -> None:
    """Head 0 needs 2 pages, head 1 4 pages, head 2 its query's number of pages, 1 to 16.

    The 48 pairs are 16 x 2, 16 x 4 and 1..16 once each. At most 4: 16 + 16 + 4 = 36, a half (24) of them at
    most 3 would be 16 + 3 = 19, so that the median, of values 24 and 25, is 4. Nine tenths are 43.2 pairs:
    at most 11 are 32 + 11 = 43, too few; at most 12 are 44. Head 2 alone needs 15 (14.4 of 16 queries).
    """

    def needed(layer: int, head: int, share: int, query: int) -> int:
        return (2, 4, query + 1)[head]

    (first, second) = needs(one(replace(Planted(), needed=needed)), 16, 0.95)
    assert (first.layer, second.layer) == (0, 1)
    assert (first.median_tokens, first.most_tokens) == (4 * 16, 12 * 16)
    assert (first.worst_head, first.worst_tokens) == (2, 15 * 16)
    assert first.oracle_tokens == 2 * 16


def test_a_table_of_two_layers_by_hand() -> None:
    """P = 16. Layer 0 needs 12 pages: 1/16 + 12/16 = 0.8125 is dense. Layer 1 needs 4: 1/16 + 4/16 = 0.3125.

    Mean of the read ratios: (1 + 0.3125) / 2. One budget for both is 12 pages, 0.8125.
    """
    evaluation = one(replace(Planted(), needed=lambda layer, head, share, query: (12, 4)[layer]))
    found = suggest(evaluation, 16)
    assert (found.dense_layers, found.budgets) == ((0,), {1: 64})
    assert found.read_ratio == pytest.approx(0.65625)
    assert (found.uniform_tokens, found.uniform_ratio) == (192, pytest.approx(0.8125))
    table = layer_table([evaluation], 16)
    assert (table.dense_layers, table.budgets) == ((0,), {"1": 64})
    assert table.source
    assert (table.source.shortest_context, table.source.longest_context) == (241, 256)


def test_heads_that_the_budget_leaves_below_are_named() -> None:
    """Head 2 needs 9 pages at 4 of 16 queries, else 2: 44 of 48 pairs do with 2, head 2 keeps it for 12 /
    16."""
    found = suggest(
        one(replace(Planted(), needed=lambda layer, head, share, query: 9 if head == 2 and query < 4 else 2)),
        16,
    )
    assert found.budgets == {0: 32, 1: 32}
    assert [layer.heads_left for layer in found.layers] == [(2,), (2,)]
    assert found.layers[0].kept == pytest.approx(44 / 48)


@given(seed=st.integers(0, 1 << 30), pairs=st.sampled_from((0.5, 0.8, 0.9, 1.0)))
def test_the_table_keeps_its_promise_on_the_rows_it_was_made_from(seed: int, pairs: float) -> None:
    """Counted again from the stored pages, without the code under test; and no smaller budget would do."""
    evaluation = one(replace(Planted(), needed=random_needs(seed)))
    found = suggest(evaluation, 16, 0.95, pairs)
    for layer in found.layers:
        rows = [row for row in evaluation.pages[16].pages if row.layer == layer.need.layer]
        pages = [count for row in rows for count in row.needed_quest[1]]
        budget = layer.need.most_tokens // 16
        assert sum(count <= budget for count in pages) >= pairs * len(pages) - 1e-9
        assert sum(count <= budget - 1 for count in pages) < pairs * len(pages)
        assert layer.dense == (1 / 16 + budget / 16 >= DENSE_RATIO)
        assert layer.kept >= pairs - 1e-9
        assert budget * 16 <= found.uniform_tokens


@given(seed=st.integers(0, 1 << 30))
def test_more_mass_and_more_pairs_never_need_less(seed: int) -> None:
    evaluation = one(replace(Planted(), needed=random_needs(seed)))
    for low, high in ((0.9, 0.95), (0.95, 0.99)):
        for less, more in zip(needs(evaluation, 16, low), needs(evaluation, 16, high), strict=True):
            assert less.most_tokens <= more.most_tokens
            assert less.median_tokens <= less.most_tokens
            assert less.most_tokens <= max(less.worst_tokens, less.most_tokens)
    for layer in range(2):
        tokens = [needs(evaluation, 16, 0.95, pairs)[layer].most_tokens for pairs in (0.5, 0.8, 0.9, 1.0)]
        assert tokens == sorted(tokens)


def random_needs(seed: int):
    """Pages of 1 to 16 for each of two layers, more for a larger share, as masses that grow ask for."""
    rng = random.Random(seed)
    drawn = {
        (lay, head, q): sorted(rng.choices(range(1, 17), k=3))
        for lay in (0, 1)
        for head in (0, 1, 2)
        for q in range(16)
    }
    return lambda layer, head, share, query: drawn[layer, head, query][share]


def test_the_cheapest_page_size_is_that_of_the_least_bytes() -> None:
    """2 pages suffice: 1/8 + 2/32 = 0.1875 in pages of 8, 1/16 + 2/16 = 0.1875 in pages of 16: a tie."""
    found = suggestions(one(replace(Planted(), page_sizes=(8, 16), needed=lambda *_: 2)))
    assert [s.read_ratio for s in found] == pytest.approx([0.1875, 0.1875])
    assert cheapest(found).page_size == 16


def test_one_table_for_several_traces_keeps_the_promise_on_each() -> None:
    """Layer 0 needs 5 pages in one trace and 2 in the other, layer 1 3 and 11: 80 and 160 tokens. 11 are
    dense."""
    first = replace(Planted(), needed=lambda layer, head, share, query: (5, 3)[layer])
    second = replace(Planted(), needed=lambda layer, head, share, query: (2, 10)[layer], trace_id="b")
    both = evaluations(first.profile(second))
    table = layer_table(both, 16)
    assert (table.dense_layers, table.budgets) == ((), {"0": 80, "1": 160})
    third = replace(Planted(), needed=lambda *_: 11, trace_id="c")
    assert layer_table(evaluations(first.profile(third)), 16).dense_layers == (0, 1)


def test_traces_of_short_contexts_do_not_count_and_other_models_are_refused() -> None:
    """64 tokens of context beside 256: all 4 of its pages would be no need of the long ones."""
    short = replace(Planted(), positions=(62, 63), needed=lambda *_: 4, trace_id="b")
    (long_one, brief) = evaluations(replace(Planted(), needed=lambda *_: 2).profile(short))
    assert layer_table([long_one, brief], 16).budgets == {"0": 32, "1": 32}
    with pytest.raises(QuestprofError, match="evaluated with pages of 8"):
        layer_table([long_one], 8)
    other = changed(long_one, trace=struct_replace(long_one.trace, model="another"))
    with pytest.raises(QuestprofError, match="made-up, another"):
        layer_table([long_one, other], 16)
