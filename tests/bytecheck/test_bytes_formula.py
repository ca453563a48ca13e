"""The ledger of points that nobody counted."""

from __future__ import annotations

import pytest

from questprof.bytecheck.formula import NUM_WORKERS, STAGES, formula_rows, formula_table
from questprof.bytecheck.grid import Asked
from questprof.ledger import entries
from questprof.model import shape_presets

ASKED = Asked((shape_presets()["llama-2-7b"],), lengths=(32768,), page_sizes=(16,), budgets=(2048, 4096))


def test_rows_hold_the_ledger_and_equation_12() -> None:
    rows = formula_rows(ASKED)
    # 1/16 + 128/2048 and 1/16 + 256/2048; half of the summary where it is transposed.
    assert [row.read_ratio for row in rows] == pytest.approx([0.125, 0.1875, 0.09375, 0.15625])
    assert all(row.ledger == entries(row.point, NUM_WORKERS) for row in rows)


def test_the_table_has_a_row_a_point_and_a_column_a_stage() -> None:
    rows = formula_rows(ASKED)
    table = formula_table(rows)
    assert table.row_count == len(rows)
    names = [str(column.header) for column in table.columns]
    assert set(STAGES) <= set(names)
    dense = list(table.columns[names.index("dense")].cells)
    assert dense == ["512.1 MiB"] * 4  # 2 x 32 heads x 32768 x 256 B = 512 MiB, and tables
