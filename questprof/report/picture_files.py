"""Each figure of a page as an SVG file of its own: for a README, a paper or slides.

Such a file stands alone, so that it carries what the page has around the figure: the title, the caption with
the source of its numbers, the profile and the device, and the page's colours for light and dark.
"""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from questprof.errors import QuestprofError
from questprof.files import cannot_write, output_exists, write_whole
from questprof.printable import printable
from questprof.report.static import FIGURE, svg
from questprof.report.static_axes import WIDTH

_TOKEN: Final = re.compile(
    r'<article [^>]*data-source="(?P<source>[^"]*)"'
    r'|<section id="(?:p(?P<part>\d+)-)?(?P<section>[a-z-]+)"'
    r"|<h[23][^>]*>(?P<heading>.*?)</h[23]>"
    rf"|{FIGURE.pattern}",
    re.DOTALL,
)
"""What a figure's place on a page is told by, and the figure itself."""
_CAPTION: Final = re.compile(r"<figcaption>(.*?)</figcaption>", re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_LINE_HEIGHT: Final = 13
_TITLE_COLUMNS, _CAPTION_COLUMNS = 105, 150
"""Characters a line, of 11 and of 8.5 px."""


def picture_files(page: str) -> dict[str, str]:
    """File names and SVG texts of the figures of `page` (HTML of `render`), in its order.

    A name is the section's with a number, for the second profile and those after it with the profile's before
    it. A figure without a mark has no file.
    """
    themes = _themes()
    files: dict[str, str] = {}
    counts: Counter[str] = Counter()
    source = stem = title = ""
    for found in _TOKEN.finditer(page):
        if found["source"] is not None:
            source = f" {_text(found['source'])}."
        elif found["section"]:
            stem = "-".join(part for part in (found["part"], found["section"]) if part not in (None, "1"))
        elif found["heading"]:
            title = _text(found["heading"])
        elif drawn := svg(json.loads(found["json"]), f"s{len(files)}", html.escape(title)):
            caption = _CAPTION.search(page, found.end())
            counts[stem] += 1
            said = (_text(caption[1]) if caption else "") + source
            files[f"{stem}-{counts[stem]}.svg"] = _alone(drawn, title, said, *themes)
    return files


def check_folder(folder: Path, force: bool = False) -> None:
    """QuestprofError where pictures cannot go into `folder`, or would replace some there, unless `force`."""
    if not folder.name or (folder.exists() and not folder.is_dir()):
        raise QuestprofError(
            f"--pictures {str(folder)!r}", "it is no folder", "Name one, new or there already."
        )
    if not force and folder.is_dir():
        for existing in sorted(folder.glob("*.svg"))[:1]:
            raise output_exists(existing)


def write_pictures(page: Path, folder: Path, force: bool = False) -> list[Path]:
    """Write the figures of the page at `page` into `folder`, which is made for one alone; their paths.

    QuestprofError when a file exists that would change, unless `force`, and when one cannot be written.
    """
    files = {folder / name: text for name, text in picture_files(page.read_text(encoding="utf-8")).items()}
    for path in files:
        if path.exists() and not force:
            raise output_exists(path)
    try:
        if files:
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            write_whole(path, text.encode())
    except OSError as error:
        raise cannot_write(folder, error) from error
    return list(files)


def _text(markup: str) -> str:
    """One line of text without tags and without what XML forbids."""
    said = html.unescape(_TAG.sub(" ", markup))
    return " ".join(printable(said, " ").split())


def _themes() -> tuple[str, str]:
    """The variables of the page's style, light and dark."""
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    blocks = [" ".join(re.findall(r"--[a-z-]+: [^;]+;", block)) for block in re.findall(r"{([^{}]*)}", style)]
    light, dark = [block for block in blocks if "--paper" in block][:2]
    return light, dark


def _alone(drawn: str, title: str, caption: str, light: str, dark: str) -> str:
    """The picture `drawn` between its title and its caption, on paper of the theme's colour."""
    box = re.search(r'viewBox="0 0 \d+ (\d+)"', drawn)
    assert box is not None
    titles, notes = textwrap.wrap(title, _TITLE_COLUMNS), textwrap.wrap(caption, _CAPTION_COLUMNS)
    top = (len(titles) + 1) * _LINE_HEIGHT
    bottom = top + int(box[1])
    height = bottom + (len(notes) + 1) * _LINE_HEIGHT
    texts = _texts(titles, "title", _LINE_HEIGHT + 4) + _texts(notes, "note", bottom + _LINE_HEIGHT)
    style = (
        f"svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
        "path{stroke-linejoin:round}text{font:8.5px system-ui,sans-serif;fill:var(--ink)}"
        ".tick,.note{fill:var(--muted)}"
        ".tick,.middle{text-anchor:middle}.side{text-anchor:end}.title{font-size:11px;font-weight:600}"
    )
    body = drawn.replace("<svg ", f'<svg y="{top}" width="{WIDTH}" height="{box[1]}" ', 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{html.escape(title)}</title><style>{style}</style>"
        f'<rect width="{WIDTH}" height="{height}" fill="var(--paper)"/>'
        f"{texts}{body}</svg>\n"
    )


def _texts(lines: Sequence[str], kind: str, first: int) -> str:
    """Lines of text of the class `kind`, the first at y `first`."""
    return "".join(
        f'<text class="{kind}" x="14" y="{first + i * _LINE_HEIGHT}">{html.escape(line)}</text>'
        for i, line in enumerate(lines)
    )
