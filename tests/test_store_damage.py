"""Damaged profiles: any byte altered, any end cut off. A clean error or a warning, whole records kept.

Over the repository's own profiles and a generated one, through `read_profile` and the commands that read.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from profiles import profile, two_baselines
from questprof.cli import app
from questprof.errors import Exit, QuestprofError
from questprof.model import Profile, Record
from questprof.store import ProfileWriter, read_profile, seal

KEPT = sorted(Path(__file__).parents[1].joinpath("profiles").glob("*/*.jsonl"))
RUNNER = CliRunner()
_EVERY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _generated() -> bytes:
    found = profile(*two_baselines())
    return b"".join([seal(found.header), *map(seal, found.records)])


CONTENTS = {path.stem: path.read_bytes() for path in KEPT} | {"generated": _generated()}
NAMES = st.sampled_from(sorted(CONTENTS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.jsonl"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Profile]:
    """Every content, read undamaged."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for name, content in CONTENTS.items():
        file = folder / f"{name}.jsonl"
        file.write_bytes(content)
        found[name] = read_profile(file)
    return found


def _read(path: Path, content: bytes, **options: Any) -> Profile | QuestprofError:
    """The profile, or the error a user would see; anything else fails the test."""
    path.write_bytes(content)
    try:
        return read_profile(path, **options)
    except QuestprofError as error:
        return error


def test_there_are_kept_profiles() -> None:
    assert len(KEPT) > 5


def _altered(data: st.DataObject, content: bytes) -> tuple[int, bytes]:
    at = data.draw(st.integers(0, len(content) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != content[at]))
    return at, content[:at] + bytes([value]) + content[at + 1 :]


@_EVERY
@given(name=NAMES, data=st.data())
def test_any_altered_byte_is_an_error_that_names_its_line(
    path: Path, whole: dict[str, Profile], name: str, data: st.DataObject
) -> None:
    content = CONTENTS[name]
    at, damaged = _altered(data, content)
    line = content.count(b"\n", 0, at) + 1
    found = _read(path, damaged)
    if at == len(content) - 1:  # the last newline: that line counts as torn
        assert isinstance(found, Profile)
        assert found.records == whole[name].records[:-1]
        assert "torn" in found.warnings[0]
    else:
        assert isinstance(found, QuestprofError)
        assert found.status == Exit.USAGE
        assert f"line {line}" in str(found) or line == 1


@_EVERY
@given(name=NAMES, data=st.data())
def test_skipping_keeps_every_whole_record_and_nothing_else(
    path: Path, whole: dict[str, Profile], name: str, data: st.DataObject
) -> None:
    content = CONTENTS[name]
    at, damaged = _altered(data, content)
    line = content.count(b"\n", 0, at) + 1
    found = _read(path, damaged, skip_corrupt=True)
    records = whole[name].records
    if line == 1:
        assert isinstance(found, QuestprofError)
        return
    assert isinstance(found, Profile)
    lost = {line - 2, line - 1} if content[at : at + 1] == b"\n" else {line - 2}
    assert found.records == tuple(r for number, r in enumerate(records) if number not in lost)
    assert found.header == whole[name].header
    assert found.warnings


@_EVERY
@given(name=NAMES, data=st.data())
def test_any_prefix_keeps_its_whole_records(
    path: Path, whole: dict[str, Profile], name: str, data: st.DataObject
) -> None:
    content = CONTENTS[name]
    length = data.draw(st.integers(0, len(content)) | st.integers(max(0, len(content) - 3000), len(content)))
    found = _read(path, content[:length])
    lines = content.count(b"\n", 0, length)
    if not lines:
        assert isinstance(found, QuestprofError)
        assert "no questprof profile" in str(found)
        return
    assert isinstance(found, Profile)
    assert found.records == whole[name].records[: lines - 1]
    assert bool(found.warnings) == (content[length - 1 : length] != b"\n")


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_line_ends_and_marks_of_an_editor_change_nothing(
    path: Path, whole: dict[str, Profile], mark: bytes
) -> None:
    """Bytes that stand around a line and not in it; within one, each is an altered byte as any other."""
    lines = CONTENTS["generated"].split(b"\n")
    found = _read(path, mark + b"\r\n".join(lines))
    assert isinstance(found, Profile)
    assert (found.header, found.records) == (whole["generated"].header, whole["generated"].records)
    assert not found.warnings
    for stray in (b"\r", codecs.BOM_UTF8):
        inside = b"\n".join([lines[0], lines[1][:50] + stray + lines[1][50:], *lines[2:]])
        assert "line 2 is corrupt" in str(_read(path, inside))
    torn = _read(path, mark + b"\r\n".join(lines)[:-1])
    assert isinstance(torn, Profile)
    assert torn.records == found.records[:-1]


def test_such_a_profile_is_resumed(path: Path, whole: dict[str, Profile]) -> None:
    *first, _ = CONTENTS["generated"].removesuffix(b"\n").split(b"\n")
    path.write_bytes(codecs.BOM_UTF8 + b"".join(line + b"\r\n" for line in first))
    with ProfileWriter(path, resume=True) as writer:
        writer.begin(whole["generated"].header)
        writer.append(whole["generated"].records[-1])
    assert read_profile(path).records == whole["generated"].records


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_text_of_another_encoding_is_named(path: Path, encoding: str) -> None:
    error = _read(path, ("\ufeff" + CONTENTS["generated"].decode()).encode(encoding))
    assert isinstance(error, QuestprofError)
    assert encoding[:6].upper() in error.why
    assert error.status == Exit.USAGE


def test_every_byte_of_a_short_profile_matters(path: Path) -> None:
    """All bytes in turn, in two ways that damage happens: a bit flipped, and a line broken."""
    content = b"".join(line + b"\n" for line in _generated().split(b"\n")[:2])
    for at in range(len(content) - 1):
        for value in {content[at] ^ 1, 10} - {content[at]}:
            damaged = content[:at] + bytes([value]) + content[at + 1 :]
            assert isinstance(_read(path, damaged), QuestprofError), (at, value)


@_EVERY
@given(junk=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_file_at_all_gives_a_traceback(path: Path, junk: bytes) -> None:
    assert isinstance(_read(path, junk), QuestprofError)
    header = _generated().split(b"\n")[0] + b"\n"
    found = _read(path, header + junk + b"\n")
    assert isinstance(found, QuestprofError) or not found.records


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"schema_version":1e400}',
        b'{"schema_version":-1}',
        b'{"schema_version":99999999999999999999}',
        b'{"schema_version":"1"}',
        b'{"schema_version":1,"crc32":99999999999999999999999999}',
        b'{"schema_version":1,"x":"\xff\xfe"}',
    ],
)
def test_hostile_first_lines(path: Path, line: bytes) -> None:
    assert isinstance(_read(path, line + b"\n"), QuestprofError)


def _damages(content: bytes) -> Iterator[bytes]:
    """A few of each kind: altered in the header, in a record, at a newline; cut short."""
    second = content.index(b"\n") + 1
    for at in (5, second - 1, second + 200, len(content) - 40):
        yield content[:at] + b"#" + content[at + 1 :]
    for length in (0, 100, second, len(content) // 2, len(content) - 1):
        yield content[:length]


@pytest.mark.parametrize(
    "arguments", [["report", "{path}", "-o", "{page}", "--force"], ["compare", "{path}", "{path}"]]
)
@pytest.mark.parametrize("skip", [[], ["--skip-corrupt"]])
def test_commands_end_cleanly_on_damage(path: Path, arguments: list[str], skip: list[str]) -> None:
    page = path.with_suffix(".html")
    for content in (CONTENTS["generated"], CONTENTS["length-scan"]):
        for damaged in _damages(content):
            path.write_bytes(damaged)
            done = RUNNER.invoke(app, [a.format(path=path, page=page) for a in arguments] + skip)
            assert done.exception is None or isinstance(done.exception, QuestprofError | SystemExit), damaged[
                :80
            ]
            if isinstance(done.exception, QuestprofError):
                assert done.exception.status == Exit.USAGE
            else:
                assert "Traceback" not in done.output


def test_resuming_a_damaged_profile_touches_nothing(path: Path) -> None:
    content = CONTENTS["generated"]
    for damaged in (content[:300] + b"#" + content[301:], content[:2000] + b"#" + content[2001:]):
        path.write_bytes(damaged)
        with pytest.raises(QuestprofError):
            ProfileWriter(path, resume=True)
        assert path.read_bytes() == damaged


def test_resuming_any_prefix_loses_no_whole_record_and_doubles_none(
    path: Path, whole: dict[str, Profile]
) -> None:
    content, records = CONTENTS["generated"], whole["generated"].records
    header = whole["generated"].header
    ends = [at + 1 for at, byte in enumerate(content) if byte == 10]
    for length in (at + more for at in ends[:-1] for more in (-1, 0, 1, 300) if at + more >= ends[0]):
        path.write_bytes(content[:length])
        with ProfileWriter(path, resume=True) as writer:
            writer.begin(header)
            assert writer.kept is not None
            for record in _missing(records, writer.kept.records):
                writer.append(record)
        assert path.read_bytes() == content


def _missing(records: tuple[Record, ...], kept: tuple[Record, ...]) -> tuple[Record, ...]:
    done = {record.point_id for record in kept}
    return tuple(record for record in records if record.point_id not in done)
