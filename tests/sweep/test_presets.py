"""Presets: the project's can all be run, a user's go by the same rules, mistakes are named."""

from pathlib import Path

import pytest

from questprof.errors import QuestprofError
from questprof.sweep.presets import list_presets, load_preset, read_presets

ALLOWED = ("shape", "kernel", "lengths", "page_sizes", "budgets", "batch", "samples", "append", "seed")


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_list_stands_for_commas_and_repeated_options_stay_lists(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "[a]\nabout = 'x'\nshape = 'llama-3.1-8b'\nlengths = ['8k', '32k']\npage-sizes = [8, 16]\n"
        "samples = 5\nappend = true\nkernel = ['n=m:s', 'o=m:t']\n",
    )
    assert load_preset(f"{path}:a", ALLOWED) == {
        "shape": ["llama-3.1-8b"],
        "lengths": "8k,32k",
        "page_sizes": "8,16",
        "samples": 5,
        "append": True,
        "kernel": ["n=m:s", "o=m:t"],
    }


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("[a]\n", "b", "Choose among a"),
        ("[a]\nlength = '8k'\n", "a", "unknown option 'length'"),
        ("[a]\nlengths = {x = 1}\n", "a", "lengths is"),
        ("[a]\nlengths = []\n", "a", "lengths is"),
        ("lengths = '8k'\n", "a", "stands in no table"),
        ("[a\n", "a", "cannot read presets"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(QuestprofError, match=says):
        load_preset(f"{_file(tmp_path, text)}:{name}", ALLOWED)


def test_a_missing_file_and_an_unknown_preset() -> None:
    with pytest.raises(QuestprofError, match="cannot read presets"):
        load_preset("no/such.toml:a", ALLOWED)
    with pytest.raises(QuestprofError, match="Choose among quick"):
        load_preset("magic", ALLOWED)


def test_every_preset_is_listed_with_its_options() -> None:
    said = list_presets()
    for name, preset in read_presets().items():
        assert name in said
        assert str(preset["about"]) in said
    assert "--budgets 1024,all" in said
    assert len(said.splitlines()) < 30
