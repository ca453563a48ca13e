"""display.py: on a terminal nothing is wider than it, and no figure is cut; a pipe gets whole lines."""

from __future__ import annotations

import io

import pytest
from amdahl_steps import dense, pair_profile, quest
from rich.console import Console

from questprof.amdahl.display import blocks, print_amdahl
from questprof.amdahl.finding import SOURCES, Amdahl, amdahl
from questprof.amdahl.tables import Table, tables


@pytest.fixture(scope="module")
def found() -> Amdahl:
    point = {"seq_len": 16384}
    result = amdahl(pair_profile(dense(), quest(), dense(point=point), quest(us=900.0, point=point)), [65536])
    assert result is not None
    return result


def printed(found: Amdahl, width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_amdahl(console, found)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_gets_no_line_that_is_wider(found: Amdahl, width: int) -> None:
    lines = printed(found, width, terminal=True).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for table in tables(found):
        for row in table.rows:
            for cell in row[1:]:
                assert set(cell.split()) <= set(words), (table.title, cell)
    assert SOURCES in " ".join(line.strip() for line in lines)


def test_a_pipe_gets_sentences_and_rows_in_one_line(found: Amdahl) -> None:
    lines = printed(found, 160, terminal=False).splitlines()
    assert SOURCES in lines
    for _, sentences in found.headlines:
        assert set(sentences) <= set(lines)


def test_columns_fall_into_blocks_that_name_their_rows() -> None:
    """30 wide: 10 for the name, so 19 for columns of 8, 8 and 3 with a space each: two, then one."""
    table = Table(
        "t", "s", ("step", "12345678", "12345678", "abc def"), (("a long name of it", "1", "2", "3"),)
    )
    assert list(blocks(table, 30)) == [([0, 1, 2], [10, 8, 8]), ([0, 3], [10, 3])]
