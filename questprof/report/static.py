"""Pictures for readers without scripts: each figure of the page as SVG, made by matplotlib, in a <noscript>.

Figures are found in the rendered HTML of a section, so that a section needs nothing for it. Colours become
the page's CSS variables: a picture follows the theme and the print style as the text around it does.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from questprof.report.static_axes import COLOURS, WIDTH, draw, picture_height, shown

MOST_PICTURES: Final = 40
"""Pictures a page: each takes a few hundredths of a second and 10 KB, and the tables hold every number."""
MOST_MARKS: Final = 20_000
"""Marks of a figure that is drawn without a script."""
FIGURE: Final = re.compile(
    r'(?:aria-label="(?P<label>[^"]*)"></div>\s*)?'
    r'<script type="application/json" class="figure-data">(?P<json>.*?)</script>',
    re.DOTALL,
)


class Pictures:
    """Adds pictures to the sections of one page, MOST_PICTURES at most."""

    def __init__(self) -> None:
        self.drawn = 0
        self.left_out = 0
        """Figures that have no picture: there were too many, or matplotlib is not installed."""

    def add(self, section: str) -> str:
        """`section` (HTML) with a picture in a <noscript> behind the data of each of its figures."""
        return FIGURE.sub(self._with_picture, section)

    def _with_picture(self, found: re.Match[str]) -> str:
        spec = json.loads(found["json"])
        marks = sum(len(trace.get("x") or ()) for trace in spec["data"])
        wanted = spec.get("picture", True) and marks <= MOST_MARKS
        fits = wanted and self.drawn < MOST_PICTURES and _has_matplotlib()
        picture = svg(spec, f"s{self.drawn}", (found["label"] or "Figure").partition(".")[0]) if fits else ""
        self.drawn += bool(picture)
        self.left_out += not fits
        return f"{found[0]}<noscript>{picture}</noscript>" if picture else found[0]


def svg(spec: Mapping[str, Any], salt: str, label: str) -> str:
    """A figure (plotly's `data` and `layout`, `meta` of page.js) as an <svg>; '' with nothing to draw.

    `salt` sets its ids apart from those of other pictures; `label` is HTML.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import RendererSVG

    traces = shown(spec)
    if not traces:
        return ""
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt, "hatch.linewidth": 0.6}):
        renderer = RendererSVG(WIDTH, picture_height(traces), out, metadata={"Date": None})
        draw(renderer, spec, traces)
        renderer.finalize()
    return _small(out.getvalue(), salt, label)


@lru_cache(maxsize=1)
def _has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


_MARKS: Final = re.compile(r'<g(?P<clip> clip-path="[^"]*")?>(?P<marks>(?:<use [^>]*/>)+)</g>')
_ID: Final = re.compile(r' id="([a-z0-9]+)"')
_STYLE: Final = re.compile(r' style="[^"]*"')
_ATTRIBUTE: Final = re.compile(r' (d|x|y|style)="([^"]*)"')
_DIGITS: Final = re.compile(r"(\d+\.\d)\d*")
_DOWN: Final = re.compile(r"M(\S+) (\S+) \1 ([^ M]+)(?=M|$)")
_ACROSS: Final = re.compile(r"M(\S+) (\S+) (\S+) \2(?=M|$)")
_COMMAND: Final = re.compile(r"\s*([MLCz])\s*")
_CLEANING: Final = (
    (re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"\s*\n\s*"), " "),
    (re.compile(r'<g id="[^"]*"'), "<g"),
    (re.compile(r"> <"), "><"),
    (re.compile(r"xlink:href"), "href"),
    (re.compile(r"<g/>"), ""),
)
"""What a picture does not need: metadata, line breaks, unused ids and names."""


def _shortened(found: re.Match[str]) -> str:
    """An attribute without what means nothing: spaces, defaults, digits beyond a tenth of a pixel."""
    name, value = found.groups()
    if name == "style":
        value = value.replace("; ", ";").replace(": ", ":").replace("stroke-dashoffset:0;", "")
    else:
        value = _DIGITS.sub(_tenths, value)
    if name == "d":
        value = _COMMAND.sub(r"\1", value)
        if "C" not in value:  # behind a move, points are lines unsaid
            value = _DOWN.sub(r"M\1 \2V\3", value.replace("L", " "))
            value = _ACROSS.sub(r"M\1 \2H\3", value)
    return f' {name}="{value.strip()}"'


def _tenths(found: re.Match[str]) -> str:
    return found[1].removesuffix(".0")


def _small(text: str, salt: str, label: str) -> str:
    """Matplotlib's file as an element of the page, whose ids begin with `salt`."""
    head, _, body = text.partition("</defs>")  # behind the style of all lines, which is the page's
    for pattern, replacement in _CLEANING:
        body = pattern.sub(replacement, body)
    body = _MARKS.sub(_styled_once, _ATTRIBUTE.sub(_shortened, body))
    for role, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{role})")
    for number, name in enumerate(dict.fromkeys(_ID.findall(body))):
        body = body.replace(name, f"{salt}-{number}")
    box = re.search(r'viewBox="([^"]*)"', head)
    assert box is not None
    return f'<svg class="picture" role="img" aria-label="{label}" viewBox="{box[1]}">{body}'


def _styled_once(found: re.Match[str]) -> str:
    """A curve's marks with their style on the group in place of on each."""
    style = _STYLE.search(found["marks"])
    return f"<g{found['clip'] or ''}{style[0] if style else ''}>{_STYLE.sub('', found['marks'])}</g>"
