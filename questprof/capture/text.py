"""Texts as the model sees them: token ids, and spans of tokens by name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from questprof.capture.header import Span
from questprof.errors import QuestprofError

_TOKENS = re.compile(r"\s*([0-9]+)\s*:\s*([0-9]+)\s*")


@dataclass(frozen=True)
class Document:
    """One file: its name, its name without ending, its text as it is (line ends too)."""

    name: str
    stem: str
    content: str


@dataclass(frozen=True)
class Text:
    """One or more documents in a row, tokenized one by one without BOS or chat template, cut at a length.

    `offsets` are characters of `content`, [first, end) a token; None from a tokenizer that gives none.
    """

    name: str
    content: str
    sha256: str
    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...] | None
    documents: tuple[Span, ...]


def read_documents(paths: Sequence[Path]) -> tuple[Document, ...]:
    """The files' texts; QuestprofError for one that cannot be read, is not UTF-8 or has no text."""
    return tuple(Document(path.name, path.stem, _read(path)) for path in paths)


def tokenize(documents: Sequence[Document], tokenizer: Any, max_tokens: int) -> Text:
    """At most `max_tokens` tokens of the documents. `sha256` is of the files' bytes one after the other."""
    ids: list[int] = []
    offsets: list[tuple[int, int]] | None = []
    spans: list[Span] = []
    shift = 0
    for document in documents:
        if len(ids) < max_tokens:
            new, places = _tokenize(document.content, tokenizer)
            first, ids = len(ids), (ids + new)[:max_tokens]
            offsets = None if places is None or offsets is None else [*offsets, *_shifted(places, shift)]
            spans.append((document.stem, first, len(ids) - 1))
        shift += len(document.content)
    content = "".join(document.content for document in documents)
    return Text(
        name=", ".join(document.name for document in documents),
        content=content,
        sha256=hashlib.sha256(content.encode()).hexdigest(),
        ids=tuple(ids),
        offsets=None if offsets is None else tuple(offsets[: len(ids)]),
        documents=tuple(spans),
    )


def find_span(given: str, text: Text, option: str) -> Span:
    """`NAME=first:last` in tokens, both included, or `NAME=words of the text`, as (name, first, last).

    QuestprofError for another form, a span past the tokens kept, words that the text does not have or has
    more than once.
    """
    name, equals, value = given.partition("=")
    if not (name and equals and value):
        raise QuestprofError(
            f"{option} {given!r}",
            "it has no name and span",
            f"Write {option} NAME=10:20 or {option} 'NAME=words'.",
        )
    match = _TOKENS.fullmatch(value)
    first, last = (int(match[1]), int(match[2])) if match else _find_words(value, text, f"{option} {given!r}")
    if not first <= last < len(text.ids):
        raise QuestprofError(
            f"{option} {given!r}",
            f"tokens {first}:{last} are not within 0:{len(text.ids) - 1}",
            "Name tokens inside the trace (both ends count), or raise --max-tokens.",
        )
    return name, first, last


def _find_words(words: str, text: Text, what: str) -> tuple[int, int]:
    count = text.content.count(words)
    if count != 1:
        raise QuestprofError(
            what,
            "the text does not have these words" if not count else f"the text has these words {count} times",
            "Copy words that it has once, or name tokens: NAME=first:last.",
        )
    if text.offsets is None:
        raise QuestprofError(
            what, "this model's tokenizer does not tell where its tokens lie", "Name tokens: NAME=first:last."
        )
    start = text.content.index(words)
    end = start + len(words)
    tokens = [i for i, (a, b) in enumerate(text.offsets) if a < end and b > start]
    if not tokens or text.offsets[tokens[-1]][1] < end:
        raise QuestprofError(
            what,
            f"these words are past the {len(text.ids)} tokens of the trace",
            "Raise --max-tokens, or name words before.",
        )
    return tokens[0], tokens[-1]


def _read(path: Path) -> str:
    try:
        content = path.read_bytes().decode()
    except OSError as error:
        raise QuestprofError(
            f"cannot read {path}", str(error.strerror or error), "Name a text file (UTF-8)."
        ) from error
    except UnicodeDecodeError as error:
        raise QuestprofError(
            f"{path} is no UTF-8 text",
            f"byte {error.start} cannot be decoded",
            "Convert it, for instance with iconv -f latin1 -t utf-8.",
        ) from error
    if not content.strip():
        raise QuestprofError(f"{path} is empty", "it has no text", "Name a file with text.")
    return content


def _tokenize(content: str, tokenizer: Any) -> tuple[list[int], list[tuple[int, int]] | None]:
    if not tokenizer.is_fast:
        return list(tokenizer(content, add_special_tokens=False)["input_ids"]), None
    encoded = tokenizer(content, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoded["input_ids"]), [tuple(place) for place in encoded["offset_mapping"]]


def _shifted(places: list[tuple[int, int]], shift: int) -> list[tuple[int, int]]:
    return [(a + shift, b + shift) for a, b in places]
