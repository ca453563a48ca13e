from __future__ import annotations

import pytest

from questprof.counters.ncu_csv import Row, parse_raw
from questprof.errors import Exit, QuestprofError

READ = "dram__bytes_read.sum"
SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"
TIME = "gpu__time_duration.sum"
LABELS = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def table(*rows: tuple[str, ...], units=("byte", "ns"), metrics=(READ, TIME)) -> str:
    header = ("ID", "Process ID", LABELS, "Kernel Name", "Block Size", *metrics)
    lines = [header, ("", "", "", "", "", *units), *rows]
    return "\n".join(",".join('"' + cell.replace('"', '""') + '"' for cell in line) for line in lines) + "\n"


def row(number: int, *values: str, kernel="score_paired", label="") -> tuple[str, ...]:
    return (str(number), "7", label, kernel, "(64, 1, 1)", *values)


def test_rows_come_in_order_with_labels_and_base_units():
    text = "==PROF== Loaded report\n" + table(
        row(0, "67,141,632", "9.5", label='7  "questprof:score:none:none:none:none:none:none"  '),
        row(1, "12", "3", kernel="void a::b<int, 4>(float*, int)"),
    )
    assert parse_raw(text, (READ, TIME), "questprof") == [
        Row("score_paired", ("score",), {READ: 67141632.0, TIME: 9.5}),
        Row("void a::b<int, 4>(float*, int)", (), {READ: 12.0, TIME: 3.0}),
    ]


def test_columns_are_found_by_name_and_unwanted_ones_ignored():
    text = table(row(0, "odd", "5"), units=("parsec", "byte"), metrics=("unwanted", READ))
    assert parse_raw(text, (READ, "missing.sum"), "questprof")[0].metrics == {READ: 5.0}


@pytest.mark.parametrize(
    ("unit", "factor"), [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("Tbyte", 1e12)]
)
def test_scaled_units_are_scaled_back(unit, factor):
    (one,) = parse_raw(table(row(0, "1.5"), units=(unit,), metrics=(READ,)), (READ,), "questprof")
    assert one.metrics[READ] == 1.5 * factor


@pytest.mark.parametrize(
    ("metric", "unit"), [(READ, "furlong"), (READ, ""), (READ, "sector"), (SECTORS, "byte"), (TIME, "byte")]
)
def test_a_unit_that_is_unknown_or_of_something_else_is_refused(metric, unit):
    with pytest.raises(QuestprofError, match="unit") as caught:
        parse_raw(table(row(0, "1"), units=(unit,), metrics=(metric,)), (metric,), "questprof")
    assert caught.value.status == Exit.MACHINE


@pytest.mark.parametrize("cell", ["n/a", "", "(!) n/a", "nan"])
def test_what_the_chip_lacks_is_absent_never_zero(cell):
    (one,) = parse_raw(table(row(0, cell, "5")), (READ, TIME), "questprof")
    assert one.metrics == {TIME: 5.0}


@pytest.mark.parametrize("cell", ["-1", "inf", "many"])
def test_a_value_that_no_counter_has_is_refused(cell):
    with pytest.raises(QuestprofError, match="value"):
        parse_raw(table(row(0, cell, "5")), (READ,), "questprof")


@pytest.mark.parametrize("text", ["", "==ERROR== nothing\n", '"ID","Process ID"\n', '"ID","Kernel Name"\n'])
def test_output_without_a_table_is_refused(text):
    with pytest.raises(QuestprofError, match="no table"):
        parse_raw(text, (READ,), "questprof")


def test_a_table_without_units_is_refused():
    lines = table(row(0, "5", "6")).splitlines()
    with pytest.raises(QuestprofError, match="no units"):
        parse_raw("\n".join([lines[0], lines[2]]), (READ,), "questprof")


def test_labels_of_nested_ranges_and_other_domains_are_told_apart():
    label = '7  "questprof:quest:none:none"  "questprof:score:none:none"  "other:attend:none:none" '
    (one,) = parse_raw(table(row(0, "1", "2", label=label)), (READ,), "questprof")
    assert one.ranges == ("quest", "score")
