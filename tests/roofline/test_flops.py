"""Operations of each stage: worked by hand, and against a count of every product, sum and comparison."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from questprof.model import Point, Shape
from questprof.roofline.flops import stage_flops

TOY = Shape("toy", num_qo_heads=4, num_kv_heads=2, head_dim=8)


def test_each_stage_worked_by_hand() -> None:
    """40 tokens, pages of 16: P = 3, the tail holds 8. Budget 32: K = 2, the tail among them.

    dense: 4 heads x 40 tokens x (2 x 8 for q.k + 2 x 8 for p.v) = 4 x 40 x 32 = 5120.
    attend: 2 x 16 - 8 empty slots = 24 tokens: 4 x 24 x 32 = 3072.
    score: 4 heads x 3 pages x (8 + 8 products, 8 maxima, 8 sums) = 384.
    append: token 40 is slot 7 of its page: 2 KV heads x (8 minima + 8 maxima) = 32.
    """
    assert stage_flops(Point(TOY, 40, token_budget=32)) == {
        "dense": 5120,
        "score": 384,
        "select": 0,
        "attend": 3072,
        "quest": 3456,
        "append": 32,
        "append_kv": 0,
    }


def test_the_articles_shape() -> None:
    """llama-2-7b, 64k, budget 4096: 32 heads x 128 dims. dense 4 x 4096 x 65536 = 2^30 operations, over
    2 x 32 x 256 B x 65536 = 2^30 bytes in fp16: one operation a byte. score over its pages: the same ratio.
    """
    shape = Shape("llama-2-7b", num_qo_heads=32, num_kv_heads=32, head_dim=128)
    flops = stage_flops(Point(shape, 65536, token_budget=4096))
    assert flops["dense"] == 1 << 30
    assert flops["score"] == (1 << 30) // 16
    assert flops["attend"] == (1 << 30) // 16
    halved = stage_flops(Point(shape, 65536, token_budget=4096, summary_layout="transposed"))
    assert halved["score"] == flops["score"] // 2


def test_a_token_that_opens_its_page_widens_no_box() -> None:
    """17 tokens: the newest is slot 0 of page 1. 16: slot 15. A batch adds up; empty requests append none."""
    assert stage_flops(Point(TOY, 17))["append"] == 0
    assert stage_flops(Point(TOY, 16))["append"] == 32
    ragged = Point(TOY, 40, seq_lens=(40, 17, 0, 16), token_budgets=(32,) * 4)
    assert stage_flops(ragged)["append"] == 64


def test_an_open_policy_may_leave_the_tail_out() -> None:
    """Two full pages of 16, whichever they are: 32 tokens. At a budget beyond the length: all 40."""
    assert stage_flops(Point(TOY, 40, token_budget=32, policy="quest-open"))["attend"] == 4 * 32 * 32
    assert stage_flops(Point(TOY, 40, token_budget=64, policy="quest-open"))["attend"] == 5120


@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=3),
    size=st.sampled_from([1, 5, 16]),
    budget=st.integers(16, 80),
    policy=st.sampled_from(["quest", "quest-open"]),
)
def test_attend_never_computes_more_than_dense(
    lengths: list[int], size: int, budget: int, policy: str
) -> None:
    point = Point(
        TOY,
        max(lengths),
        page_size=size,
        seq_lens=tuple(lengths),
        token_budgets=(budget,) * len(lengths),
        policy=policy,
    )
    flops = stage_flops(point)
    assert 0 <= flops["attend"] <= flops["dense"]
    if all(budget >= length for length in lengths):
        assert flops["attend"] == flops["dense"]
    assert flops["quest"] == flops["score"] + flops["attend"]
    heads_dims = TOY.num_qo_heads * TOY.head_dim
    pages = sum(-(-length // size) for length in lengths)
    assert flops["score"] == 4 * heads_dims * pages
