"""questprof: will Quest pay off on this GPU, with this model's shape, at these lengths, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from questprof.model import Profile

__version__ = "0.1.0"


def load(path: str | Path, *, skip_corrupt: bool = False) -> Profile:
    """The profile at `path`, typed; `Profile.to_dataframe()` makes it flat. Needs no torch.

    A torn last line is left out and said in `Profile.warnings`. QuestprofError for what is no profile and for
    a corrupt line, which `skip_corrupt` leaves out with a warning instead.
    """
    from pathlib import Path

    from questprof.store import read_profile

    return read_profile(Path(path), skip_corrupt=skip_corrupt)
