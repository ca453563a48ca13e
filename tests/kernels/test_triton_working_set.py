"""Passes over a working set on a GPU: every pass touches every word once, whatever the order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from questprof_kernels import working_set

WALK = working_set.Walk("small tiles", 64, 4, 2)


def words(count: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-(1 << 30), 1 << 30, (count,), generator=generator).to(torch.int32).to(device)


def checksum(buffer: torch.Tensor, num_passes: int) -> int:
    """Exclusive or of (word + pass) over words and passes, in int32."""
    numbers = buffer.cpu().numpy().astype(np.int32)
    parts = [np.bitwise_xor.reduce(numbers + np.int32(number)) for number in range(num_passes)]
    return int(np.bitwise_xor.reduce(np.array(parts, np.int32)))


def folded(out: torch.Tensor) -> int:
    return int(np.bitwise_xor.reduce(out.cpu().numpy()))


@pytest.mark.parametrize(("count", "num_passes"), [(4, 1), (64, 3), (68, 2), (1000, 5), (2368, 4)])
@pytest.mark.parametrize("programs", [1, 3, 7])
def test_every_pass_reads_every_word_once(count: int, num_passes: int, programs: int, device: str) -> None:
    """2368 words are 37 tiles: as many as the order is turned by, so that it does not turn at all."""
    buffer = words(count, device)
    out = torch.full((programs,), -1, dtype=torch.int32, device=device)
    working_set.read_passes(buffer, out, num_passes, WALK)
    assert folded(out) == checksum(buffer, num_passes)


def test_a_changed_word_changes_the_checksum(device: str) -> None:
    buffer = words(1000, device)
    out = torch.empty(4, dtype=torch.int32, device=device)
    for place in (0, 63, 64, 999):
        buffer[place] += 1
        working_set.read_passes(buffer, out, 1, WALK)
        assert folded(out) == checksum(buffer, 1)


@pytest.mark.parametrize("walk", working_set.WALKS, ids=lambda walk: walk.name)
def test_every_listed_walk_reads_and_copies(walk: working_set.Walk, device: str) -> None:
    source = words(2 * walk.tile_words + 8, device)
    programs = working_set.num_programs(source, 2, walk)
    out = torch.empty(programs, dtype=torch.int32, device=device)
    working_set.read_passes(source, out, 2, walk)
    assert folded(out) == checksum(source, 2)
    target = torch.zeros_like(source)
    working_set.copy_passes(source, target, 2, walk)
    assert torch.equal(source, target)


def test_small_sets_keep_all_workers_busy(device: str) -> None:
    """One tile, 1000 passes: the programs share the passes."""
    from questprof_kernels.paged_cache import default_num_workers

    buffer = words(64, device)
    workers = default_num_workers(buffer.device)
    assert working_set.num_programs(buffer, 1, WALK) == 1
    assert working_set.num_programs(buffer, 1000, WALK) == min(1000, 2 * workers)


def test_a_program_a_tile_takes_each_tile_of_each_pass(device: str) -> None:
    """1000 words are 16 tiles of 64, the last of 40 words; 3 passes: 48 programs of one tile each."""
    walk = working_set.Walk("small tiles, a program each", 64, 4, 0)
    buffer = words(1000, device)
    assert working_set.num_programs(buffer, 3, walk) == 48
    out = torch.full((48,), -1, dtype=torch.int32, device=device)
    working_set.read_passes(buffer, out, 3, walk)
    numbers = buffer.cpu().numpy()
    tiles = [numbers[64 * i : 64 * i + 64] for i in range(16)]
    # Pass 1 is turned by 37 tiles, pass 2 by 74: by 5 and by 10 of 16.
    turned = [tiles[(i + turn) % 16] + np.int32(p) for p, turn in enumerate((0, 5, 10)) for i in range(16)]
    assert out.tolist() == [int(np.bitwise_xor.reduce(tile)) for tile in turned]
    target = torch.zeros_like(buffer)
    working_set.copy_passes(buffer, target, 3, walk)
    assert torch.equal(target, buffer)


def test_wrong_arguments_are_refused(device: str) -> None:
    buffer, out = words(64, device), torch.zeros(2, dtype=torch.int32, device=device)
    for bad in (buffer[:3], buffer[::2], buffer[:0]):
        with pytest.raises(ValueError, match="must be"):
            working_set.read_passes(bad, out, 1)
    for wrong in (out.float(), out[:0]):
        with pytest.raises(ValueError, match="must be"):
            working_set.read_passes(buffer, wrong, 1)
    for passes in (0, 1 << 31):
        with pytest.raises(ValueError, match="passes"):
            working_set.read_passes(buffer, out, passes)
    with pytest.raises(ValueError, match="equally large"):
        working_set.copy_passes(buffer, buffer[:32], 1)


def test_a_launch_of_nothing_touches_nothing(device: str) -> None:
    buffer = words(64, device)
    before = buffer.clone()
    assert working_set.launch_empty() is None
    assert torch.equal(buffer, before)
