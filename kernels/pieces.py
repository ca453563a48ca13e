"""Equal pieces of one storage, handed out from a free list and counted by owner.

Pages of K and V are such pieces, and so are the blocks of a transposed summary. A request holds a list of
them in logical order; requests may share pieces, and one about to be written is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class Pieces:
    """`count` pieces called `noun` in messages; `copy(src, dst)` copies what lies in one to another."""

    def __init__(self, noun: str, count: int, copy: Callable[[int, int], None]) -> None:
        self.noun = noun
        self._copy = copy
        self._free = list(range(count - 1, -1, -1))
        self._owners = [0] * count

    @property
    def num_free(self) -> int:
        """Pieces nobody holds."""
        return len(self._free)

    @property
    def owners(self) -> tuple[int, ...]:
        """How many hold each piece."""
        return tuple(self._owners)

    def reorder_free(self, order: Sequence[int]) -> None:
        """Hand out the free pieces in this order from now on (a permutation of them, else ValueError)."""
        if sorted(order) != sorted(self._free):
            raise ValueError(f"order is not a permutation of the free {self.noun}s")
        self._free = list(reversed(order))

    def check_free(self, count: int) -> None:
        """Raise ValueError when fewer than `count` pieces are free."""
        if count > len(self._free):
            raise ValueError(f"{count} {self.noun}s wanted, {len(self._free)} of {len(self._owners)} free")

    def take(self, count: int) -> list[int]:
        """`count` free pieces, owned once, whatever lies in them; ValueError when too few are free."""
        self.check_free(count)
        taken = [self._free.pop() for _ in range(count)]
        for piece in taken:
            self._owners[piece] = 1
        return taken

    def share(self, pieces: Iterable[int]) -> None:
        """Own `pieces` once more."""
        for piece in pieces:
            self._owners[piece] += 1

    def release(self, pieces: Iterable[int]) -> None:
        """Own `pieces` once less; a piece nobody owns is free again."""
        for piece in pieces:
            self._owners[piece] -= 1
            if self._owners[piece] == 0:
                self._free.append(piece)

    def is_shared(self, piece: int) -> bool:
        """Whether more than one owner holds `piece`."""
        return self._owners[piece] > 1

    def most_needed(self, held: Sequence[int], wanted: int, first: int) -> int:
        """Free pieces that `hold` with these arguments may take."""
        copies = first < len(held) and self.is_shared(held[first])
        return wanted - len(held) + copies

    def hold(self, held: list[int], wanted: int, first: int) -> int:
        """Make `held` ready for writing from its piece `first` on, `wanted` pieces long at last.

        `first` is the last piece of `held` or one past it: a shared one is replaced by a copy, then new ones
        follow. Returns the index of the first piece that is another than before, len(held) when all stayed.
        """
        changed = len(held)
        if first < len(held) and self.is_shared(held[first]):
            (new,) = self.take(1)
            self._copy(held[first], new)
            self.release([held[first]])
            held[first], changed = new, first
        held += self.take(wanted - len(held))
        return changed

    def check_trim(self, held: Sequence[int], kept: int) -> None:
        """Raise ValueError when the last of `kept` pieces must be copied and dropping the rest frees none."""
        freed = sum(not self.is_shared(piece) for piece in held[kept:])
        if kept and self.is_shared(held[kept - 1]) and self.num_free + freed == 0:
            raise ValueError(f"a shared {self.noun} must be copied and no {self.noun} is free")

    def trim(self, held: list[int], kept: int) -> None:
        """Give back the pieces of `held` after the first `kept`."""
        self.release(held[kept:])
        del held[kept:]
