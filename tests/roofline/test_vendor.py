"""The vendors' table: every entry sourced and plausible, every other device unknown."""

import tomllib
from pathlib import Path

import pytest

import questprof
from questprof.roofline.vendor import vendor
from questprof.roofs import MemoryBus

TABLE = tomllib.loads((Path(questprof.__file__).parent / "roofline" / "devices.toml").read_text())["device"]


def test_an_h200() -> None:
    found = vendor("NVIDIA H200")
    assert found is not None
    assert found.gb_s == 4800
    assert found.tflop_s["fp16"] == found.tflop_s["bf16"] == 989
    assert "H200" in found.source


@pytest.mark.parametrize("name", ["NVIDIA H200 MIG 1g.18gb", "nvidia h200", "NVIDIA H2000", "", "NVIDIA B9"])
def test_a_similar_name_is_not_that_device(name: str) -> None:
    assert vendor(name) is None


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["names"][0])
def test_entries_are_whole_and_plausible(entry: dict) -> None:
    assert set(entry) == {"names", "gb_s", "tflop_s", "source"}
    assert len(entry["source"]) > 10
    rates = entry["tflop_s"]
    assert rates["fp32"] < rates["fp16"]
    assert 20 < 1e3 * rates["fp16"] / entry["gb_s"] < 500  # operations a byte at the ridge
    if "tf32" in rates:
        assert rates["tf32"] == pytest.approx(rates["fp16"] / 2, rel=0.02)


def test_no_device_has_two_entries() -> None:
    names = [name for entry in TABLE for name in entry["names"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("bits", "mhz", "name"),
    [
        (5120, 1215, "NVIDIA A100-SXM4-40GB"),
        (384, 10501, "NVIDIA GeForce RTX 4090"),
        (192, 6251, "NVIDIA L4"),
    ],
)
def test_bus_width_times_clock_is_the_printed_bandwidth(bits: int, mhz: int, name: str) -> None:
    """Two transfers a clock: 2 x 1215e6 x 5120 / 8 = 1555e9 B/s."""
    found = vendor(name)
    assert found is not None
    assert MemoryBus(bits, mhz).gb_s == pytest.approx(found.gb_s, rel=0.005)
