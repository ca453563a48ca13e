from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import save_tokenizer, token_ids
from transformers import AutoTokenizer

from questprof.capture.demo import ALICE, ALICE_SHA256
from questprof.capture.text import Document, Text, find_span, read_documents, tokenize
from questprof.errors import QuestprofError


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def _text(tokenizer: object, *contents: str, max_tokens: int = 1000) -> Text:
    documents = [Document(f"d{i}.txt", f"d{i}", content) for i, content in enumerate(contents)]
    return tokenize(documents, tokenizer, max_tokens)


def test_a_text_is_its_bytes_and_nothing_else(tokenizer: object) -> None:
    text = _text(tokenizer, "Grün,\r\nja")
    assert list(text.ids) == token_ids("Grün,\r\nja")
    assert text.sha256 == hashlib.sha256("Grün,\r\nja".encode()).hexdigest()


def test_documents_follow_each_other_and_are_cut(tokenizer: object) -> None:
    text = _text(tokenizer, "one ", "two ", "three", max_tokens=6)
    assert list(text.ids) == token_ids("one tw")
    assert text.documents == (("d0", 0, 3), ("d1", 4, 5))
    assert text.name == "d0.txt, d1.txt, d2.txt"
    assert text.sha256 == hashlib.sha256(b"one two three").hexdigest()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a=2:4", ("a", 2, 4)),
        ("a= 0 : 0 ", ("a", 0, 0)),
        ("needle=two", ("needle", 4, 6)),
        ("equation=x=1", ("equation", 9, 11)),
        ("across=e tw", ("across", 2, 5)),
    ],
)
def test_spans(tokenizer: object, given: str, expected: tuple[str, int, int]) -> None:
    text = _text(tokenizer, "one ", "two, x=1, ten ten")
    assert find_span(given, text, "--evidence") == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("two", "no name and span"),
        ("=two", "no name and span"),
        ("a=", "no name and span"),
        ("a=3:20", r"tokens 3:20 are not within 0:11"),
        ("a=4:3", r"tokens 4:3"),
        ("a=four", "does not have these words"),
        ("a=one", "has these words 2 times"),
        ("a=late", "past the 12 tokens"),
        ("a=th", "past the 12 tokens"),
    ],
)
def test_spans_that_cannot_be_are_said(tokenizer: object, given: str, why: str) -> None:
    text = _text(tokenizer, "one two onethree late", max_tokens=12)
    with pytest.raises(QuestprofError, match=why):
        find_span(given, text, "--evidence")


@given(before=st.text(max_size=20), words=st.text(min_size=1, max_size=9), after=st.text(max_size=20))
def test_words_are_found_at_their_own_bytes(tokenizer: object, before: str, words: str, after: str) -> None:
    """A token is a byte: the span's tokens are the words' UTF-8 bytes."""
    content = before + words + after
    text = _text(tokenizer, content)
    if content.count(words) != 1 or ":" in words:
        return
    _, first, last = find_span(f"name={words}", text, "--evidence")
    assert content.encode()[first : last + 1] == words.encode()


def test_files_that_are_no_text_are_said(tmp_path: Path) -> None:
    with pytest.raises(QuestprofError, match="cannot read"):
        read_documents([tmp_path / "absent"])
    (tmp_path / "blank").write_text(" \n")
    with pytest.raises(QuestprofError, match="is empty"):
        read_documents([tmp_path / "blank"])
    (tmp_path / "latin").write_bytes("Gr\xfcn".encode("latin1"))
    with pytest.raises(QuestprofError, match=r"no UTF-8 text: byte 2 cannot be decoded"):
        read_documents([tmp_path / "latin"])


def test_the_demo_text_is_the_one_that_is_documented() -> None:
    assert hashlib.sha256(ALICE.read_bytes()).hexdigest() == ALICE_SHA256
    document = read_documents([ALICE])[0].content
    assert document.split("\n", 6)[4].strip() == "ALICE'S ADVENTURES IN WONDERLAND"
    assert document.endswith("THE END\n")
