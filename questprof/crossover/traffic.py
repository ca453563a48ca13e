"""What a crossover is worth on real traffic: which share of decode steps gains, and how much time they save.

Pure but for reading a file. A request of n input and m output tokens decodes at lengths n + 1 to n + m; its m
steps are taken at their middle, as times are close to straight lines over so few tokens.
"""

from __future__ import annotations

import csv
import json
import math
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, NamedTuple

from questprof.crossover.predict import Model
from questprof.errors import QuestprofError
from questprof.rows import Row

LENGTH_COLUMNS: Final = ("seq_len", "length", "context_length")
WEIGHT_COLUMNS: Final = ("weight", "steps")
INPUT_COLUMNS: Final = ("input_tokens", "input_length", "ContextTokens")
OUTPUT_COLUMNS: Final = ("output_tokens", "output_length", "GeneratedTokens")
NUM_QUANTILES: Final = 200
_FORMAT = (
    "Give a CSV with a header (or JSON lines): seq_len and optionally weight, the lengths at decode steps; "
    "or input_tokens and output_tokens, the sizes of requests."
)


@dataclass(frozen=True)
class Traffic:
    """Lengths at decode steps, in tokens, and how many steps each stands for."""

    name: str
    about: str
    source: str
    lengths: tuple[float, ...]
    steps: tuple[float, ...]


@dataclass(frozen=True)
class Coverage:
    """What one series says of one traffic. Shares are of 1; measured shares are of the lengths inside."""

    traffic: str
    num_lengths: int
    inside: float
    """Share of the decode steps at lengths between the shortest and the longest measured."""
    below: float
    above: float
    faster_requests: float | None
    """Share of the lengths inside (a request each) at which Quest is faster; None when none is inside."""
    faster_steps: float | None
    """The same, of the decode steps."""
    faster_time: float | None
    """The same, of the time that dense takes for them."""
    gain_always: float | None
    """Dense time over Quest time, summed over the steps inside: Quest at every length."""
    gain_chosen: float | None
    """Dense time over the smaller of the two: Quest where it is faster."""
    modelled_always: float | None
    """gain_always over all steps, with modelled times outside the lengths measured; None without a model."""
    modelled_chosen: float | None


def stored() -> Mapping[str, Traffic]:
    """The examples that come with the tool, by name; their source is in them."""
    return _stored()


@lru_cache(maxsize=1)
def _stored() -> dict[str, Traffic]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: _example(name, entry) for name, entry in table.items()}


def _example(name: str, entry: Mapping[str, Any]) -> Traffic:
    requests = entry.get("requests") or _log_normal(entry["median_input"], entry["sigma"], entry["output"])
    return _of_requests(name, entry["about"], entry["source"], requests)


def _log_normal(median_input: float, sigma: float, output: float) -> list[tuple[float, float]]:
    """Requests at the middles of NUM_QUANTILES equal shares of a log-normal distribution."""
    normal = NormalDist(math.log(median_input), sigma)
    shares = ((i + 0.5) / NUM_QUANTILES for i in range(NUM_QUANTILES))
    return [(math.exp(normal.inv_cdf(share)), output) for share in shares]


def _of_requests(name: str, about: str, source: str, requests: Iterable[Sequence[float]]) -> Traffic:
    """Input and output tokens to the middle of a request's decode steps: n + (m + 1) / 2, m times."""
    decoded = [(n + (m + 1) / 2, m) for n, m in requests if m > 0]
    return Traffic(name, about, source, tuple(at for at, _ in decoded), tuple(float(m) for _, m in decoded))


def read_traffic(name: str) -> Traffic:
    """A stored example by its name, or the file at that path.

    QuestprofError for an unknown name, a file that cannot be read, and rows that are no lengths.
    """
    if name in stored():
        return stored()[name]
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise QuestprofError(
            f"traffic {name!r}",
            f"no stored example has that name, and as a file it cannot be read ({reason})",
            f"Stored: {', '.join(stored())}. {_FORMAT}",
        ) from error
    rows = _table(path, text)
    columns = list(rows[0]) if rows else []
    length, weight, given, made = (
        next((c for c in columns if c in names), None)
        for names in (LENGTH_COLUMNS, WEIGHT_COLUMNS, INPUT_COLUMNS, OUTPUT_COLUMNS)
    )
    about = f"{len(rows)} rows of a file"
    if given and made:
        pairs = [(_number(path, i, row, given), _number(path, i, row, made)) for i, row in enumerate(rows, 1)]
        traffic = _of_requests(path.name, about, str(path), pairs)
    elif length:
        lengths = tuple(_number(path, i, row, length) for i, row in enumerate(rows, 1))
        steps = tuple(_number(path, i, row, weight) if weight else 1.0 for i, row in enumerate(rows, 1))
        traffic = Traffic(path.name, about, str(path), lengths, steps)
    else:
        raise QuestprofError(f"traffic {path}", f"its columns are {', '.join(columns) or 'none'}", _FORMAT)
    if not sum(traffic.steps):
        raise QuestprofError(f"traffic {path}", "it holds no decode step", _FORMAT)
    return traffic


def _table(path: Path, text: str) -> list[dict[str, Any]]:
    if not text.lstrip().startswith("{"):
        lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
        return list(csv.DictReader(lines, skipinitialspace=True))
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise QuestprofError(
            f"traffic {path}", f"it is neither CSV nor JSON lines ({error})", _FORMAT
        ) from error


def _number(path: Path, row_number: int, row: Mapping[str, Any], column: str) -> float:
    try:
        value = float(row[column])
    except (KeyError, TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise QuestprofError(
            f"traffic {path}, row {row_number}",
            f"{column} is {row.get(column)!r}, no number from 0 up",
            _FORMAT,
        )
    return value


def cover(
    rows: Iterable[Row], traffic: Traffic, model: Model | None = None, token_budget: int = 0
) -> Coverage:
    """What the rows of one series (one a length) say of `traffic`, each length as a batch of equal ones.

    Between measured lengths both times are straight in the logarithms; lengths within the budget count as
    they were measured. Outside them nothing is measured: only a `model` times those steps, apart.
    """
    found = [(r.seq_len, r.dense_us, r.quest_us) for r in rows if r.usable and r.dense_us and r.quest_us]
    curve = sorted(found)
    first, last = (curve[0][0], curve[-1][0]) if curve else (math.inf, math.inf)
    weighed = list(zip(traffic.lengths, traffic.steps, strict=True))
    inside = [_Cell(steps, *_interpolated(curve, at)) for at, steps in weighed if first <= at <= last]
    outside = [(at, steps) for at, steps in weighed if not first <= at <= last]
    cells = inside
    if model:
        cells = inside + [
            _Cell(steps, model.dense_us(at), model.quest_us(at, token_budget)) for at, steps in outside
        ]
    total = sum(traffic.steps)
    return Coverage(
        traffic.name,
        len(weighed),
        sum(cell.steps for cell in inside) / total,
        sum(steps for at, steps in outside if at < first) / total,
        sum(steps for at, steps in outside if at >= first) / total,
        _share([(1.0, cell.faster) for cell in inside]),
        _share([(cell.steps, cell.faster) for cell in inside]),
        _share([(cell.steps * cell.dense_us, cell.faster) for cell in inside]),
        *_gains(inside),
        *(_gains(cells) if model else (None, None)),
    )


class _Cell(NamedTuple):
    """Decode steps at one length, and the time of one by either side."""

    steps: float
    dense_us: float
    quest_us: float

    @property
    def faster(self) -> bool:
        return self.quest_us < self.dense_us


def _interpolated(curve: Sequence[tuple[int, float, float]], at: float) -> tuple[float, float]:
    """Dense and Quest time at a length within the curve."""
    right = min(max(1, bisect_right([length for length, _, _ in curve], at)), len(curve) - 1)
    low, high = curve[right - 1], curve[right]
    if low[0] == high[0]:
        return low[1], low[2]
    share = math.log(at / low[0]) / math.log(high[0] / low[0])
    dense, quest = (low[i] * (high[i] / low[i]) ** share for i in (1, 2))
    return dense, quest


def _share(weighed: Sequence[tuple[float, bool]]) -> float | None:
    total = sum(weight for weight, _ in weighed)
    return sum(weight for weight, holds in weighed if holds) / total if total else None


def _gains(cells: Sequence[_Cell]) -> tuple[float | None, float | None]:
    """Dense time over that of Quest always, and over that of the faster at each length."""
    dense = sum(cell.steps * cell.dense_us for cell in cells)
    if not dense:
        return None, None
    quest = sum(cell.steps * cell.quest_us for cell in cells)
    return dense / quest, dense / sum(cell.steps * min(cell.dense_us, cell.quest_us) for cell in cells)
