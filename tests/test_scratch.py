"""Scratch that launches share: whose is whose, and that it is zero at first."""

from dataclasses import replace

import torch

from questprof.backends import load
from questprof.scratch import Scratch

Q = torch.empty(1, 4, 64)
PLAIN = replace(load("questprof", "cpu"), scratch_floats={"attend": lambda q, *_: q.numel()})
WIDE = torch.empty(2, 4, 64)


def test_an_owner_meets_its_own_again_with_what_it_left() -> None:
    scratch = Scratch()
    first = scratch.of(PLAIN, "attend", Q)
    assert (first.dtype, first.shape) == (torch.float32, (256,))
    assert not first.any()
    first.fill_(7)
    assert scratch.of(PLAIN, "attend", Q) is first
    assert scratch.of(PLAIN, "attend", Q, owner="attend") is first


def test_nobody_meets_what_another_left() -> None:
    """Another owner, size (of another plan), backend or sharing has other numbers, all zero."""
    scratch = Scratch()
    scratch.of(PLAIN, "attend", Q).fill_(7)
    fused = scratch.of(PLAIN, "attend", Q, owner="select_attend")
    wide = scratch.of(PLAIN, "attend", WIDE)
    other = scratch.of(replace(PLAIN, name="other"), "attend", Q)
    assert [len(each) for each in (fused, wide, other)] == [256, 512, 256]
    for each in (fused, wide, other, Scratch().of(PLAIN, "attend", Q)):
        assert not each.any()


def test_a_stage_that_asks_for_none_is_given_one_number() -> None:
    nothing = replace(PLAIN, scratch_floats={"attend": lambda *_: 0})
    assert len(Scratch().of(nothing, "attend", Q)) == 1
    assert len(Scratch().of(PLAIN, "dense", Q)) == 1
