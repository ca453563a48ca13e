"""Traffic: the lengths at which requests decode, from a file or a stored example.

Pure but for reading a file. A request of n input and m output tokens decodes at lengths n + 1 to n + m; its m
steps are taken at their middle, as times are close to straight lines over so few tokens.
"""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from questprof.errors import QuestprofError
from questprof.units import count

LENGTH_COLUMNS: Final = ("seq_len", "length", "context_length")
WEIGHT_COLUMNS: Final = ("weight", "steps")
INPUT_COLUMNS: Final = ("input_tokens", "input_length", "ContextTokens")
OUTPUT_COLUMNS: Final = ("output_tokens", "output_length", "GeneratedTokens")
NUM_QUANTILES: Final = 200
LARGEST: Final = 1e15
"""Largest length or weight that is taken: sums of more are not exact, and no traffic has it."""
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
    return _of_rows(path, _table(path, text))


def _of_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Traffic:
    """Lengths or requests, by the columns of the first row."""
    if not rows:
        raise QuestprofError(f"traffic {path}", "it holds no row", _FORMAT)
    columns = list(rows[0])
    length, weight, given, made = (
        next((c for c in columns if c in names), None)
        for names in (LENGTH_COLUMNS, WEIGHT_COLUMNS, INPUT_COLUMNS, OUTPUT_COLUMNS)
    )
    about = f"{count(len(rows), 'row')} of a file"
    if given and made:
        pairs = [(_number(path, i, row, given), _number(path, i, row, made)) for i, row in enumerate(rows, 1)]
        traffic = _of_requests(path.name, about, str(path), pairs)
    elif length:
        lengths = tuple(_number(path, i, row, length) for i, row in enumerate(rows, 1))
        steps = tuple(_number(path, i, row, weight) if weight else 1.0 for i, row in enumerate(rows, 1))
        traffic = Traffic(path.name, about, str(path), lengths, steps)
    else:
        named = ", ".join(str(column)[:40] for column in columns[:10])
        raise QuestprofError(f"traffic {path}", f"its columns are {named}: no lengths", _FORMAT)
    if not sum(traffic.steps):
        raise QuestprofError(f"traffic {path}", "it holds no decode step", _FORMAT)
    return traffic


def _table(path: Path, text: str) -> list[dict[str, Any]]:
    """The rows of CSV or JSON lines; QuestprofError for other JSON and for a column that is there twice."""
    try:
        if not text.lstrip().startswith(("{", "[")):
            return _csv(text)
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
        if not all(isinstance(row, dict) for row in found):
            raise ValueError("a line is no JSON object")
    except (ValueError, RecursionError, csv.Error) as error:
        raise QuestprofError(
            f"traffic {path}", f"it is neither CSV nor JSON lines ({error})", _FORMAT
        ) from error
    return found


def _csv(text: str) -> list[dict[str, Any]]:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    reader = csv.DictReader(lines, skipinitialspace=True)
    columns = list(reader.fieldnames or ())
    if len(set(columns)) < len(columns):
        raise ValueError("a column is there twice")
    return list(reader)


def _number(path: Path, row_number: int, row: Mapping[str, Any], column: str) -> float:
    given = row.get(column)
    try:
        value = math.nan if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= LARGEST:
        raise QuestprofError(
            f"traffic {path}, row {row_number}",
            f"{column} is {repr(given)[:40]}, no number from 0 to {LARGEST:.0e}",
            _FORMAT,
        )
    return value
