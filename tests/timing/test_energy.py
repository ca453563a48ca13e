"""Joules a launch and a token, by hand; the table that shows them."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from profiles import SHAPE, dense, quest
from questprof.model import Energy
from questprof.sweep.display import energy_table, print_energy
from questprof.timing.energy import stage_energies


def test_joules_a_launch_and_a_token() -> None:
    """600 J over 1.5 s are 400 W; 10,000 launches, 0.06 J each; 32 layers / 4 requests: 8 x 0.06 = 0.48."""
    energy = {"quest": Energy(600.0, 1.5, 10_000)}
    record = replace(quest(8192, (1.0, 1.0, 1.0), batch_size=4), energy=energy)
    (found,) = stage_energies([dense(8192, 4.0), record])
    assert SHAPE.num_layers == 32
    assert found.joules_per_launch == pytest.approx(0.06)
    assert found.joules_per_token == pytest.approx(0.48)
    assert found.watts == pytest.approx(400)
    console = Console(file=io.StringIO(), width=100)
    print_energy(console, [record])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    shown = next(line for line in lines if "quest" in line and "8k" in line)
    assert shown.split() == ["8k", "1k", "questprof", "quest", "60", "480", "400"]
    assert "idle power included" in lines[-1]


def test_without_energy_there_is_no_table() -> None:
    assert energy_table([dense(8192, 4.0)]) is None
