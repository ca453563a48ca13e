"""The streaming reader touches every word exactly once: its checksums are exact."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
from questprof_kernels import streaming


def checksum(words: torch.Tensor) -> int:
    return functools.reduce(operator.xor, words.cpu().view(torch.int32).flatten().tolist(), 0)


@pytest.mark.parametrize("reader", streaming.READERS, ids=lambda reader: reader.name)
def test_every_reader_reads_every_word(reader: streaming.Reader, device: str) -> None:
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(-(1 << 31), 1 << 31, (40_004,), generator=generator).to(torch.int32).to(device)
    out = torch.full((streaming.out_size(words, reader),), float("nan"), device=device)
    streaming.read(words, out, reader)
    assert checksum(out) == checksum(words)


@pytest.mark.parametrize(("num_words", "programs"), [(4, 1), (4096, 2), (4100, 1), (40_000, 3)])
def test_checksums_of_every_word(num_words: int, programs: int, device: str) -> None:
    generator = torch.Generator().manual_seed(num_words)
    words = torch.randint(-(1 << 31), 1 << 31, (num_words,), generator=generator).to(torch.int32).to(device)
    out = torch.full((programs,), float("nan"), device=device)
    streaming.read(words, out)
    assert checksum(out) == checksum(words)


def test_any_shape_and_dtype_and_the_default_size(device: str) -> None:
    buffer = torch.randn((3, 8, 1024), generator=torch.Generator().manual_seed(1)).half().to(device)
    out = torch.empty(streaming.out_size(buffer), dtype=torch.int32, device=device)
    assert len(out) == 3  # 48 KiB are three tiles of 16 KiB
    streaming.read(buffer, out)
    assert checksum(out) == checksum(buffer)


def test_wrong_arguments_are_refused(device: str) -> None:
    buffer, out = torch.zeros(64, device=device), torch.zeros(2, device=device)
    for bad in [(buffer[:3], out), (buffer[::2], out), (buffer, out.half()), (buffer, out[:0])]:
        with pytest.raises(ValueError, match="must be"):
            streaming.read(*bad)
