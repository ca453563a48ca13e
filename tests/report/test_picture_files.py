"""picture_files.py: each figure a file that stands alone, and the kept ones are of the kept profiles."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
from everything import everything
from typer.testing import CliRunner

from profiles import profile, two_baselines
from questprof.cli import app
from questprof.errors import QuestprofError
from questprof.model import Shape
from questprof.report import render
from questprof.report.picture_files import picture_files, write_pictures
from questprof.store import seal

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def page() -> str:
    return render(everything(), plotlyjs="cdn")


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def marks(svg: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}use")
    return [(float(one.attrib["x"]), float(one.attrib["y"])) for one in found]


def test_every_figure_has_a_file_named_by_its_section(page: str) -> None:
    files = picture_files(page)
    assert len(files) == page.count('class="figure-data"')
    assert {"length-scan-1.svg", "plane-1.svg", "bytes-1.svg", "roofline-2.svg", "amdahl-1.svg"} <= set(files)
    assert "comparison-1.svg" in files  # of no profile alone
    assert "2-recall-1.svg" in files  # of the second profile
    assert "3-length-scan-1.svg" in files


def test_a_file_says_what_it_shows_and_where_that_comes_from(page: str) -> None:
    files = picture_files(page)
    for name, svg in files.items():
        root = ElementTree.fromstring(svg)
        assert root.find(f"{SVG}title").text  # type: ignore[union-attr]
        assert texts(svg)[0], name
    said = " ".join(texts(files["length-scan-1.svg"]))
    assert "batch 1, page 16" in texts(files["length-scan-1.svg"])[0]
    assert "measured: clock" in said
    assert " run.jsonl, " in said.rpartition("modelled: formula.")[2]


def test_colours_are_in_the_file_for_light_and_dark(page: str) -> None:
    svg = picture_files(page)["length-scan-1.svg"]
    used = set(re.findall(r"var\((--[a-z]+)\)", svg))
    light, dark = re.findall(r"svg{([^}]*)}", svg)
    assert used >= {"--paper", "--ink", "--dense", "--quest"}
    for name in used:
        assert f"{name}: " in light
        assert f"{name}: " in dark or name == "--grid"
    assert light != dark
    assert "prefers-color-scheme:dark" in svg


@pytest.mark.parametrize("text", ["</title><script>alert(1)</script>", "a\x00b\x1b", "$x$ & <b>"])
def test_a_hostile_name_stays_text(text: str) -> None:
    hostile = profile(*two_baselines(Shape(text, 4, 4, 128, kv_dtype="fp16")))
    for svg in picture_files(render([hostile], plotlyjs="cdn")).values():
        tags = {one.tag.removeprefix(SVG) for one in ElementTree.fromstring(svg).iter()}
        assert "script" not in tags
        assert "b" not in tags


def test_nothing_is_overwritten_unasked(page: str, tmp_path: Path) -> None:
    source, folder = tmp_path / "page.html", tmp_path / "pictures"
    source.write_text(page, encoding="utf-8")
    written = write_pictures(source, folder)
    assert {path.name for path in written} == set(picture_files(page))
    (folder / "plane-1.svg").write_text("mine")
    with pytest.raises(QuestprofError, match="exists"):
        write_pictures(source, folder)
    assert (folder / "plane-1.svg").read_text() == "mine"
    write_pictures(source, folder, force=True)
    assert (folder / "plane-1.svg").read_text() != "mine"
    with pytest.raises(QuestprofError, match="cannot write"):
        write_pictures(source, source)


def test_the_command_prints_the_page_and_its_pictures(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run = profile(*two_baselines())
    path.write_bytes(b"".join(map(seal, (run.header, *run.records))))
    arguments = ["report", str(path), "--plotlyjs", "cdn", "--pictures", str(tmp_path / "pictures")]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    printed = [Path(line) for line in found.output.split()]
    assert printed[0] == tmp_path / "run.html"
    assert printed[1:] == [tmp_path / "pictures" / "length-scan-1.svg"]
    assert printed[1].is_file()


def test_the_pictures_of_the_documentation_are_of_the_kept_profiles() -> None:
    """The same words and numbers, and marks at the same places but for the drawing library's rounding."""
    made = runpy.run_path(str(DOCS / "pictures" / "make.py"))["pictures"]()
    assert {path.name for path in (DOCS / "pictures").glob("*.svg")} == set(made)
    for name, svg in made.items():
        kept = (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert texts(kept) == texts(svg), name
        for one, other in zip(marks(kept), marks(svg), strict=True):
            assert one == pytest.approx(other, abs=0.2)


def test_every_picture_is_shown_and_every_shown_one_is_there() -> None:
    kept = {f"pictures/{path.name}" for path in (DOCS / "pictures").glob("*.svg")}
    assert set(re.findall(r"\]\((pictures/[^)]*)\)", (DOCS / "figures.md").read_text())) == kept
    readme = (DOCS.parent / "README.md").read_text()
    assert {one.removeprefix("docs/") for one in re.findall(r"\]\((docs/pictures/[^)]*)\)", readme)} <= kept


def test_a_folder_that_cannot_take_pictures_is_told_before_the_page_is_written(tmp_path: Path) -> None:
    path, taken = tmp_path / "run.jsonl", tmp_path / "taken"
    run = profile(*two_baselines())
    path.write_bytes(b"".join(map(seal, (run.header, *run.records))))
    taken.mkdir()
    (taken / "mine.svg").write_text("mine")
    for folder, said in ((taken, "exists"), (path, "no folder"), (Path(""), "no folder")):
        name = str(folder) if folder.name else ""
        found = CliRunner().invoke(app, ["report", str(path), "--plotlyjs", "cdn", "--pictures", name])
        assert found.exit_code != 0
        assert said in str(found.exception)
        assert not (tmp_path / "run.html").exists()
