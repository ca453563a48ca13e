"""law.py: the hand calculation of equation (13)."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from questprof.amdahl.law import explain, hand_calculation, most_speedup
from questprof.errors import Exit, QuestprofError


def test_the_articles_hand_calculations() -> None:
    """0.4 + 0.6 / 7.03 = 0.4 + 0.08535 = 0.48535, 1 / 0.48535 = 2.060; 0.6 + 0.4 / 7.03 = 0.6569, 1.522."""
    found = hand_calculation(0.6, 7.03)
    assert round(found.time_ratio, 4) == 0.4853
    assert round(found.speedup, 2) == 2.06
    assert round(hand_calculation(0.4, 7.03).speedup, 2) == 1.52
    assert found.most_speedup == pytest.approx(2.5)


def test_the_words_hold_the_arithmetic() -> None:
    text = "\n".join(explain(hand_calculation(0.6, 7.03)))
    for piece in ("60.0%", "0.6 / 7.03 = 0.0853", "0.4 + 0.6 / 7.03 = 0.4853", "2.06x", "2.50x"):
        assert piece in text, piece


def test_a_slower_attention_and_a_step_of_attention_alone() -> None:
    slower = hand_calculation(0.5, 0.5)
    assert slower.speedup == pytest.approx(1 / 1.5)
    alone = hand_calculation(1.0, 4.0)
    assert alone.speedup == pytest.approx(4.0)
    assert alone.most_speedup is None
    assert "nothing would be left" in "\n".join(explain(alone))


@pytest.mark.parametrize(("share", "speedup"), [(-0.1, 2), (1.1, 2), (0.5, 0), (0.5, -1), (float("nan"), 2)])
def test_what_cannot_be_is_refused(share: float, speedup: float) -> None:
    with pytest.raises(QuestprofError):
        hand_calculation(share, speedup)


@pytest.mark.parametrize(
    ("share", "speedup", "said"),
    [
        (0.6, "inf", r"1 / \(1 - 0.6\) = 2.50x"),
        (0.6, "1e400", r"1 / \(1 - 0.6\) = 2.50x"),
        (1.0, "inf", "no bound"),
        (0.0, "inf", "= 1.00x"),
        (0.6, "1e-320", "would never end"),
    ],
)
def test_an_endless_speed_up_is_refused_with_its_bound(share: float, speedup: str, said: str) -> None:
    with pytest.raises(QuestprofError, match=said) as error:
        hand_calculation(share, float(speedup))
    assert error.value.status == Exit.USAGE


@given(share=st.floats(0, 0.99), speedup=st.floats(1, 1e6))
def test_the_step_lies_between_no_gain_and_the_bound(share: float, speedup: float) -> None:
    found = hand_calculation(share, speedup)
    bound = most_speedup(share)
    assert bound is not None
    assert 1 - 1e-9 <= found.speedup <= bound * (1 + 1e-9)


@given(share=st.floats(0, 0.99))
def test_an_endless_attention_speed_up_reaches_the_bound(share: float) -> None:
    assert hand_calculation(share, 1e12).speedup == pytest.approx(1 / (1 - share))


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        (1e-308, "1 / 6e+307 = 1.7e-308x"),
        (1e-3, "1 / 600.4000 = 0.0017x"),
        (1e12, "1 / 0.4000 = 2.50x"),
    ],
)
def test_figures_beyond_all_reading_are_told_in_powers_of_ten(speedup: float, said: str) -> None:
    """0.4 + 0.6 / s: 6e307, 600.4, 0.4."""
    lines = explain(hand_calculation(0.6, speedup))
    assert any(said in line for line in lines), lines
    assert max(map(len, lines)) < 200


def test_a_share_of_nearly_all_is_shown_with_the_digits_it_needs() -> None:
    """1e-5 + 0.99999e-5 = 1.99999e-5, and 1 / 1.99999e-5 = 50000.25."""
    text = "\n".join(explain(hand_calculation(0.99999, 1e5)))
    for piece in (
        "Attention takes 99.999% of a dense step, everything else 0.001%.",
        "1e-05 + 0.99999 / 100000 = 0.0000199999.",
        "1 / 0.0000199999 = 50000.25x",
        "1 / 1e-05 = 100000.00x",
    ):
        assert piece in text, piece


@given(share=st.floats(1e-9, 1 - 1e-9), speedup=st.floats(1e-2, 1e6))
def test_the_arithmetic_that_is_shown_is_right(share: float, speedup: float) -> None:
    """The sum of the figures shown is the ratio shown, its inverse the speed-up shown, to the last digit."""
    said = explain(hand_calculation(share, speedup))
    taken, left = (float(one) for one in re.findall(r"([\d.]+)%", said[0]))
    assert taken + left == pytest.approx(100, rel=1e-3)
    assert taken > 0
    assert left > 0
    shown = re.fullmatch(r"Time ratio, eq. \(13\): (\S+) \+ (\S+) / (\S+) = (\S+)\.", said[2])
    assert shown
    rest, part, times, ratio = map(Decimal, shown.groups())
    assert abs(rest + part / times - ratio) <= Decimal(1).scaleb(int(ratio.as_tuple().exponent))
    inverse = re.fullmatch(r"Speed-up of the step: 1 / (\S+) = (\S+)x\.", said[3])
    assert inverse
    assert Decimal(inverse[1]) == ratio
    assert abs(1 / ratio - Decimal(inverse[2])) <= Decimal("0.005000001")


def test_a_share_of_nearly_all_has_a_bound_that_can_be_read() -> None:
    lines = explain(hand_calculation(1 - 2**-53, 2.0))
    assert any("= 9e+15x" in line for line in lines), lines
