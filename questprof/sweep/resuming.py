"""Going on with a profile: whether the options are its own, and what of it is measured again.

Nothing here measures. A profile is rewritten beside itself and takes its own place when complete, so that a
kill leaves either the old one or the new one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from questprof.errors import QuestprofError
from questprof.files import cannot_write
from questprof.grid import Block
from questprof.model import Profile, Record
from questprof.store import lock, read_profile, seal
from questprof.units import count

FLAGS = ("--energy", "--append", "--cold-select", "--gather")
_NUMBERS = ("--samples", "--precision", "--max-samples", "--max-seconds", "--single-steps")
MEASURING = (*_NUMBERS, "--kernel", "--kernels", *FLAGS)
"""Options that change how or what of a point is measured, and not which points: they must agree."""
RESUMING = ("sweep", "bytes", "amdahl", "decide")
"""Commands with --resume."""
RETRIED = ("wrong", "oom", "unstable", "unavailable")
"""Statuses whose points `--retry` measures again."""
_HEADER_STARTS = (b'{"ceilings":', b'{"command":')


def measuring_options(command: str) -> tuple[tuple[str, str], ...]:
    """The options of MEASURING in a command line, with their values, sorted; a preset counts as one."""
    tokens = shlex.split(command)
    found = []
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        name, equals, value = token.partition("=")
        if name in (*MEASURING, "--preset"):
            found.append((name, "" if name in FLAGS else value if equals else following))
    return tuple(sorted(found))


def check_options(kept: Profile, command: str) -> None:
    """QuestprofError when `command` would measure otherwise than the profile's own did."""
    theirs, ours = measuring_options(kept.header.command), measuring_options(command)
    if theirs != ours:
        changed = sorted({name for name, _ in set(theirs) ^ set(ours)})
        raise QuestprofError(
            "cannot resume with other options",
            f"{', '.join(changed)} would differ between the points of one profile",
            _advice(kept),
        )


def _advice(kept: Profile) -> str:
    """How to go on with `kept`, or that nothing goes on with it."""
    started = f"it was started by: {kept.header.command}"
    verb = next(iter(shlex.split(kept.header.command)[1:]), "")
    if verb and verb not in RESUMING:
        return f"Name another file: questprof {verb} has no --resume; {started}"
    return f"Repeat its own command and options and add --resume; {started}"


def check_grid(kept: Profile, path: Path, blocks: Sequence[Block]) -> None:
    """QuestprofError when the profile holds points that `blocks` do not ask for."""
    asked = {point.point_id for block in blocks for point in block.points}
    check_points(kept, path, {record.point_id for record in kept.records} <= asked)


def check_points(kept: Profile, path: Path, asked_for: bool) -> None:
    """QuestprofError unless all points of the profile are `asked_for`."""
    if not asked_for:
        raise QuestprofError(
            f"cannot resume {path}",
            "it holds points that these options do not ask for",
            _advice(kept),
        )


def drop_a_start_without_header(path: Path) -> None:
    """Remove a profile whose run was killed before its first line was complete: it holds nothing."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            lock(file, path)
            data = file.read()
            torn = any(start.startswith(data) or data.startswith(start) for start in _HEADER_STARTS)
            if b"\n" not in data and torn:
                path.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error


def prepare(path: Path, blocks: Sequence[Block], *, skip_corrupt: bool, retry: bool) -> list[str]:
    """Leave corrupt lines (`skip_corrupt`) and what is to be timed again (`retry`) out of the profile.

    What was done, in words. With `retry` a block with a point of RETRIED goes as a whole, as its points are
    compared with each other within one loop. The file is rewritten only where something goes.
    """
    profile = read_profile(path, skip_corrupt=skip_corrupt)
    corrupt = [warning for warning in profile.warnings if " skipped: " in warning]
    again = _to_retry(profile.records, blocks) if retry else frozenset()
    kept = [record for record in profile.records if record.point_id not in again]
    dropped = len(profile.records) - len(kept)
    if corrupt or dropped:
        _rewrite(path, [seal(profile.header), *map(seal, kept)])
    said = [f"{warning}; its point is measured again" for warning in corrupt]
    return said + (
        [f"{count(dropped, 'record is', 'records are')} measured again (--retry)"] if dropped else []
    )


def _to_retry(records: Sequence[Record], blocks: Sequence[Block]) -> frozenset[str]:
    """Ids of all points of the blocks in which one is of RETRIED."""
    bad = {record.point_id for record in records if record.status in RETRIED}
    ids = [frozenset(point.point_id for point in block.points) for block in blocks]
    return frozenset().union(*(block for block in ids if block & bad))


def _rewrite(path: Path, lines: Sequence[bytes]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with path.open("ab") as held, partial.open("wb") as file:
            lock(held, path)
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
