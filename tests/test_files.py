"""Outputs: replaced as a whole, behind links, never a device; errors in words."""

import errno
import os
from pathlib import Path

import pytest

from questprof.errors import Exit, QuestprofError
from questprof.files import cannot_write, check_appendable, check_writable, output_exists, write_whole
from questprof.store import ProfileWriter


def test_a_device_a_pipe_or_a_folder_is_no_output(tmp_path):
    """Replacing one by a file would be worse than an error."""
    os.mkfifo(tmp_path / "pipe")
    for place, what in (
        (Path("/dev/null"), "a device or a pipe"),
        (tmp_path / "pipe", "pipe"),
        (tmp_path, "a folder"),
    ):
        for use in (check_writable, lambda path: ProfileWriter(path, force=True)):
            with pytest.raises(QuestprofError, match=what):
                use(place)
    assert Path("/dev/null").is_char_device()


def test_text_can_be_added_to_all_but_a_folder(tmp_path):
    """A job's summary may be a device or a pipe; checking opens none, and makes nothing."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("kept\n")
    for place in (Path("/dev/stdout"), tmp_path / "pipe", tmp_path / "file", tmp_path / "new" / "s.md"):
        check_appendable(place)
    assert (tmp_path / "file").read_text() == "kept\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]
    with pytest.raises(QuestprofError, match="it is a folder"):
        check_appendable(tmp_path)
    with pytest.raises(QuestprofError, match="cannot write"):
        check_appendable(tmp_path / "file" / "s.md")


def test_what_may_not_be_written_to_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(QuestprofError, match="Permission denied"):
        check_appendable(tmp_path / "file")


def test_checking_makes_no_folder(tmp_path):
    """A folder that can be made is fine; one below a file is not."""
    check_writable(tmp_path / "new" / "deep" / "file")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(QuestprofError, match="cannot write"):
        check_writable(tmp_path / "file" / "deep" / "file")


def test_a_file_is_replaced_as_a_whole_and_behind_its_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_device_takes_what_is_written_and_stays_one():
    write_whole(Path("/dev/null"), b"text")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left"):
        write_whole(Path("/dev/full"), b"text")
    assert Path("/dev/full").is_char_device()


def test_want_of_room_is_the_machines_fault():
    full = cannot_write(Path("a"), OSError(errno.ENOSPC, "No space left on device"))
    assert (full.status, "Make room" in full.fix) == (Exit.MACHINE, True)
    assert cannot_write(Path("a"), OSError(errno.EACCES, "Permission denied")).status == Exit.USAGE


def test_a_folder_in_the_place_of_an_output_is_not_to_be_forced(tmp_path):
    """`--force` replaces files alone, so that it is no advice for a folder."""
    (tmp_path / "file").write_text("")
    assert "--force" in output_exists(tmp_path / "file").fix
    refused = output_exists(tmp_path)
    assert (refused.why, refused.status) == ("it is a folder", Exit.USAGE)
    assert "--force" not in refused.fix
