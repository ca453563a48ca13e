"""isolated.py: attention timed alone, of the same heads, requests and budget, in equation (13)."""

from __future__ import annotations

from typing import Any

import pytest
from amdahl_steps import SHAPE, dense, pair_profile, quest

import profiles
from questprof.amdahl.finding import amdahl, as_document
from questprof.amdahl.isolated import Isolated
from questprof.amdahl.tables import checks
from questprof.model import Record


def alone(budget: int = 2048, **more: Any) -> tuple[Record, Record]:
    """Dense 100 us, Quest 2 + 3 + 5 = 10 us: 10 times as fast."""
    swept = profiles.quest(32768, (2.0, 3.0, 5.0), budget=budget, shape=SHAPE, **more)
    return profiles.dense(32768, 100.0, shape=SHAPE), swept


def found(*records: Record) -> dict[str, Isolated]:
    told = amdahl(pair_profile(dense(), quest(), *records))
    assert told is not None
    return dict(told.isolated)


def test_a_sweep_beside_the_steps() -> None:
    """f = 0.45: 1 / (0.55 + 0.45 / 10) = 1.681, where s = 6 within the step gives 1.6."""
    (one,) = found(*alone()).values()
    assert one.attention_speedup == pytest.approx(10)
    assert one.predicted_speedup == pytest.approx(1 / 0.595)


def test_other_rows_say_nothing() -> None:
    assert found() == {}
    assert found(*alone(budget=1024)) == {}
    assert found(*alone(batch_size=2)) == {}
    assert found(*alone(summary_layout="transposed")) == {}
    assert found(*alone(status="unstable")) == {}


def test_it_has_columns_where_it_exists() -> None:
    with_sweep = amdahl(pair_profile(dense(), quest(), *alone()))
    without = amdahl(pair_profile())
    assert with_sweep is not None
    assert without is not None
    assert checks(with_sweep).rows[0][-2:] == ("10.00x", "1.68x")
    assert checks(with_sweep).heads[-2:] == ("s alone", "(13) with it")
    assert "s alone" not in checks(without).heads
    assert all(len(row) == len(checks(without).heads) for row in checks(without).rows)
    assert as_document(with_sweep)["pairs"][0]["isolated"]["attention_speedup"] == pytest.approx(10)
    assert as_document(without)["pairs"][0]["isolated"] is None
