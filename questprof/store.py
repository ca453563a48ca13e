"""Profiles on disk: JSON Lines, line 1 the header, then one record a line, each sealed with a crc32.

A record is appended and fsynced as it is measured, so a killed run loses at most the line it was
writing. The seal is the last field of the line and covers every byte before it.
"""

from __future__ import annotations

import codecs
import fcntl
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec
from msgspec.structs import replace

from questprof.collecting import uncollected
from questprof.errors import UPDATE, Exit, QuestprofError
from questprof.files import cannot_write, check_regular, output_exists
from questprof.model import SCHEMA_VERSION, Environment, Header, Profile, Record, validate_shape
from questprof.structs import Struct, canonical_json, hash_text
from questprof.unchecked import without_unchecked
from questprof.units import count

_SEAL = re.compile(rb',"crc32":(\d+)\}$')
_UNREADABLE = (ValueError, msgspec.DecodeError, RecursionError)
"""What a line that is no record raises; the last when it nests too deep."""
_decode_header = msgspec.json.Decoder(Header).decode
_decode_record = msgspec.json.Decoder(Record).decode


class _Version(msgspec.Struct):
    schema_version: int


class _SecondHeaderError(Exception):
    """What a line is that begins another profile behind the first."""


class _Written(msgspec.Struct):
    """Of a record its point as it stands in the file."""

    point: msgspec.Raw


_decode_written = msgspec.json.Decoder(_Written).decode


def seal(value: Struct) -> bytes:
    """One line: the canonical JSON of `value` with its crc32 as last field, and a newline."""
    _refuse_non_finite(msgspec.to_builtins(value), type(value).__name__)
    body = canonical_json(value)
    return body[:-1] + b',"crc32":%d}\n' % zlib.crc32(body)


def unseal(line: bytes) -> bytes:
    """The JSON of a sealed line; ValueError when the seal is missing or does not fit."""
    match = _SEAL.match(line, max(0, line.rfind(b',"crc32":')))
    if not match:
        raise ValueError("it has no crc32 at its end (cut short, or rewritten by another program)")
    body = line[: match.start()] + b"}"
    if zlib.crc32(body) != int(match[1]):
        raise ValueError("its crc32 does not fit (altered after it was written)")
    return body


class ProfileWriter:
    """Appends records to one profile, which it locks; use as a context manager, `begin` first.

    `resume` keeps what is there (and cuts off a torn last line); `force` starts over; with neither,
    an existing file is an error. `kept` is the profile found on resume.
    """

    def __init__(self, path: Path, *, force: bool = False, resume: bool = False) -> None:
        self.path = path
        self.kept: Profile | None = None
        check_regular(path)
        if path.exists() and not (force or resume):
            raise output_exists(path)
        if resume and path.exists():
            self.kept = read_profile(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise cannot_write(path, error) from error
        lock(self._file, path)

    def begin(self, header: Header) -> Header:
        """Write `header`, or on resume keep the one there; the header that counts.

        Raises QuestprofError, with the file as it was, when the kept profile is of another environment.
        """
        if self.kept is None:
            self._cut(0)
            self._write(seal(header))
            return header
        theirs, ours = self.kept.header.environment, header.environment
        if theirs.env_id != ours.env_id:
            raise other_environment(self.path, theirs, ours)
        data = self.path.read_bytes()
        self._cut(data.rfind(b"\n") + 1)
        return self.kept.header

    def append(self, record: Record) -> None:
        """Write one record and force it to the disk."""
        self.extend([record])

    def extend(self, records: Iterable[Record]) -> None:
        """Write the records of one loop in one go and force them to the disk.

        QuestprofError when they do not fit: what was complete before stays, and `resume` cuts off the rest.
        """
        self._write(b"".join(map(seal, records)))

    def __enter__(self) -> ProfileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        empty = not os.fstat(self._file.fileno()).st_size
        if error is not None and empty:  # not even a header: nothing to go on with, and nothing to overwrite
            self.path.unlink(missing_ok=True)
        self._file.close()

    def _cut(self, size: int) -> None:
        try:
            self._file.truncate(size)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise QuestprofError(
                f"cannot write {self.path} further",
                str(error.strerror or error),
                "What was complete before is kept: make room, then repeat the command with "
                f"-o {self.path} --resume.",
                Exit.MACHINE,
            ) from error


def lock(file: IO[bytes], path: Path) -> None:
    """Let one process write `path`, open as `file`, until it is closed: two would tear each other's lines."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise QuestprofError(
            f"cannot write {path}",
            "another questprof is writing it",
            "Wait until it has ended, or name another file.",
        ) from error


def read_profile(path: Path, *, skip_corrupt: bool = False) -> Profile:
    """The profile at `path`.

    A torn last line is a warning. A corrupt line elsewhere raises QuestprofError naming its number, or is a
    warning with `skip_corrupt`; a line with a sample that no clock reads is one. A newer schema, a second
    header and an unreadable file raise too. Every record has the id that its point has now, whatever the file
    says, and times whose results nobody checked are left out with a warning: what is read is the same for all
    commands.
    Line ends may be CRLF, and a byte-order mark of UTF-8 may stand first.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise QuestprofError(
            f"cannot read {path}", str(error.strerror or error), "Name a profile written by questprof sweep."
        ) from error
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # its first bytes are UTF-16's mark too
        raise not_a_profile(path, "it is text in UTF-32, and no copy")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise not_a_profile(path, "it is text in UTF-16, as `>` of PowerShell writes it, and no copy")
    # What editors and checkouts add around a line is not what its crc32 seals.
    lines = [line.removesuffix(b"\r") for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n")]
    torn = lines.pop()
    if not lines:
        raise not_a_profile(path, "it has no complete first line")
    header = _read_header(path, lines[0])
    with uncollected():
        records, warnings = _sort_out(path, _read_records(lines[1:]), skip_corrupt)
    if torn:
        warnings.append(
            f"{path}: the last line is torn (the run was killed while writing it) and is left out"
        )
    return Profile(header, tuple(records), tuple(warnings), path.name)


def _sort_out(
    path: Path, outcomes: Iterable[tuple[int, Record | Exception]], skip_corrupt: bool
) -> tuple[list[Record], list[str]]:
    """The records of the lines, and what there is to say of the others."""
    records, warnings, unchecked = list[Record](), list[str](), 0
    for number, outcome in outcomes:
        if isinstance(outcome, _SecondHeaderError):
            raise QuestprofError(
                f"{path}, line {number}",
                "a second profile begins there: files were joined, and two runs are not one",
                f"Part them: head -n {number - 1} and tail -n +{number} of it.",
            )
        if isinstance(outcome, Record):
            records.append(without_unchecked(outcome))
            unchecked += records[-1] is not outcome
        elif skip_corrupt:
            warnings.append(f"{path}: line {number} skipped: {outcome}")
        else:
            raise QuestprofError(
                f"{path}, line {number} is corrupt",
                str(outcome),
                "Restore it, or read the rest: report, compare, predict and export take --skip-corrupt.",
            )
    if unchecked:
        of_all = f"{unchecked} of {count(len(records), 'record')}"
        hold = "holds" if unchecked == 1 else "hold"
        warnings.append(
            f"{path}: {of_all} {hold} times and no check of what was timed: these times are left out"
        )
    return records, warnings


def other_environment(path: Path, theirs: Environment, ours: Environment) -> QuestprofError:
    """The error for a profile that was measured elsewhere than here."""
    return QuestprofError(
        f"cannot resume {path}",
        f"it was measured in another environment ({differences(theirs, ours)})",
        "Write to a new file, or start over with --force.",
    )


def not_a_profile(path: Path, why: str) -> QuestprofError:
    """The error for a file that is no profile."""
    return QuestprofError(f"{path} is no questprof profile", why, "Name a .jsonl file written by questprof.")


def differences(one: Struct, other: Struct) -> str:
    """The fields in which two structs differ, `field: a -> b`, comma-separated."""
    pairs = [
        (name, getattr(one, name), getattr(other, name))
        for name in one.__struct_fields__
        if name != "memory_bytes"
    ]
    return ", ".join(f"{name}: {a!r} -> {b!r}" for name, a, b in pairs if a != b)


def _read_header(path: Path, line: bytes) -> Header:
    try:
        version = msgspec.json.decode(line, type=_Version).schema_version
    except _UNREADABLE as error:
        raise not_a_profile(path, f"line 1 is no header ({error})") from error
    if version > SCHEMA_VERSION:
        raise QuestprofError(
            f"{path} has schema version {version}",
            f"this questprof reads up to version {SCHEMA_VERSION}",
            UPDATE,
        )
    try:
        return _decode_header(unseal(line))
    except _UNREADABLE as error:
        raise not_a_profile(path, f"line 1 is corrupt: {error}") from error


def _read_records(lines: list[bytes]) -> Iterator[tuple[int, Record | Exception]]:
    for number, line in enumerate(lines, start=2):
        try:
            body = unseal(line)
            yield number, _valid(_decode_record(body), body)
        except (QuestprofError, *_UNREADABLE) as error:
            yield number, _SecondHeaderError() if _is_header(line) else error


def _is_header(line: bytes) -> bool:
    """Whether a profile begins with `line`, whole and of any version."""
    try:
        return msgspec.json.decode(unseal(line), type=_Version).schema_version > 0
    except _UNREADABLE:
        return False


def _valid(record: Record, body: bytes) -> Record:
    """`record` with the id of its point; `body` is its JSON.

    QuestprofError or ValueError when its shape or a sample cannot be, or its id is another point's. An id is
    of a point's JSON, which wrote some defaults out that are left out now: both are right.
    """
    validate_shape(record.point.shape)
    point_id = record.point.point_id
    if record.point_id == point_id:
        return record
    written = msgspec.json.decode(_decode_written(body).point)
    if record.point_id != hash_text(msgspec.json.encode(written, order="sorted")):
        raise ValueError(f"its point_id {record.point_id} is not that of its point")
    return replace(record, point_id=point_id)


def _refuse_non_finite(value: Any, where: str) -> None:
    """Raise ValueError for a NaN or infinity anywhere in `value` (JSON would store null)."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}: only finite numbers are stored")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_non_finite(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{where}[{index}]")
