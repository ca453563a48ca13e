"""Writes traces layer by layer, complete or not at all."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from msgspec.structs import replace

from questprof.capture.captured import Array, LayerCapture
from questprof.capture.header import CaptureHeader, check_header, file_header
from questprof.errors import Exit, QuestprofError
from questprof.files import cannot_write, check_writable, output_exists


class CaptureWriter:
    """Writes a trace layer by layer beside `path` and moves it there when complete; a context manager.

    Holds one layer at most. `header.layers` and `header.sha256` follow from what is written. Leaving by an
    error leaves nothing behind; what a killed process left of the same trace, the next one removes.
    """

    def __init__(self, path: Path, header: CaptureHeader, *, force: bool = False) -> None:
        """QuestprofError where `path` exists without `force`, cannot be written, or lacks room."""
        self._path, self._force = path, force
        self.header = replace(header, layers=(), sha256=())
        check_header(self.header)
        if path.exists() and not force:
            raise output_exists(path)
        check_writable(path)
        self._check_room()
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_stale_parts(path)
            self._file = self._part.open("wb")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.write(bytes(self.header.data_offset))
        except OSError as error:
            self._part.unlink(missing_ok=True)
            raise cannot_write(path, error) from error

    def write(self, number: int, layer: LayerCapture) -> None:
        """Append the model's layer `number`, above all written before.

        ValueError for a layer out of turn or of another shape; QuestprofError for values that are not
        finite and when the disk is full.
        """
        header = self.header
        if not (header.layers or (-1,))[-1] < number < header.num_layers:
            raise ValueError(f"layer {number} after {header.layers} of {header.num_layers}")
        digests = []
        for name, shape in header.shapes().items():
            tensor = np.ascontiguousarray(_checked(getattr(layer, name), shape, f"layers.{number}.{name}"))
            data = tensor.astype("<f4", copy=False).data
            digests.append(hashlib.sha256(data).hexdigest())
            try:
                self._file.write(data)
            except OSError as error:
                raise self._full(error) from error
        self.header = replace(header, layers=(*header.layers, number), sha256=(*header.sha256, *digests))

    def __enter__(self) -> CaptureWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            with suppress(OSError):  # closing flushes: a full disk, which was said before, would speak again
                self._file.close()
            self._part.unlink(missing_ok=True)

    def _finish(self) -> None:
        if not self.header.layers:
            raise ValueError("no layer was written")
        try:
            self._file.seek(0)
            self._file.write(file_header(self.header))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._full(error) from error
        if self._path.exists() and not self._force:
            raise output_exists(self._path)
        os.replace(self._part, self._path)

    def _check_room(self) -> None:
        needed = self.header.data_offset + self.header.num_layers * self.header.layer_bytes
        there = next(folder for folder in self._path.absolute().parents if folder.exists())
        free = shutil.disk_usage(there).free
        if needed > free:
            raise QuestprofError(
                f"no room for {self._path}",
                f"the trace has {needed / 1e6:.0f} MB, the disk has {free / 1e6:.0f} MB left",
                "Make room, name another disk, or lower --max-tokens.",
                Exit.MACHINE,
            )

    def _full(self, error: OSError) -> QuestprofError:
        return QuestprofError(
            f"cannot write {self._path} to its end",
            str(error.strerror or error),
            "Make room, name another disk, or lower --max-tokens. Nothing was left behind.",
            Exit.MACHINE,
        )


def remove_stale_parts(path: Path) -> None:
    """Remove what processes that are gone left of the trace at `path`.

    Gone: no process here has the number in the name, and nothing, in another container or on another
    machine, holds the file's lock. What cannot be removed stays.
    """
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        number = part.name.removesuffix(".part").rpartition(".")[2]
        if part.name != f".{path.name}.{number}.part" or not number.isdecimal() or _runs(int(number)):
            continue
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _checked(tensor: Array | None, shape: tuple[int, ...], name: str) -> Array:
    if tensor is None:
        raise ValueError(f"{name} is missing")
    if tensor.dtype != np.float32 or tensor.shape != shape:
        raise ValueError(f"{name} is {tensor.dtype} {tensor.shape}, not float32 {shape}")
    if not np.isfinite(tensor).all():
        raise QuestprofError(
            f"{name} has values that are not finite",
            "the model's weights are damaged, or overflow on this text",
            "Check the model's files and what it generates.",
        )
    return tensor
