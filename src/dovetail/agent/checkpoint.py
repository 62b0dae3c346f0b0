# SPDX-License-Identifier: Apache-2.0
"""A checkpoint file: a value that survives any end of the process, always whole, the old content or the new.

Rules: the new content is written to a file beside the old one, synced to disk, and renamed; then the folder is synced.
A checksum detects files that were changed otherwise; they are refused.

If losing a part is better than ending, `rescue` reads what is left of a damaged file and sets the file aside, and
`write(over=True)` overwrites the old file if the disk has no space for a new one.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dovetail.core.json_text import JsonError, decode_json

T = TypeVar("T")
_VERSION = 1


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file atomically. Raises OSError; then the old file is unchanged."""
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


class CheckpointError(Exception):
    """The file cannot be read or written; the message names the file, the reason and the remedy."""


class _File(msgspec.Struct, frozen=True):
    version: int
    checksum: int
    content: msgspec.Raw


class CheckpointFile(Generic[T]):
    """A value of type `kind`, kept at `path`."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._kind = kind

    def read(self) -> T | None:
        """The last written value; None if there is none. Raises CheckpointError."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from error
        try:
            file = decode_json(data, _File)
            if file.version != _VERSION:
                raise CheckpointError(f"{self._path} is of version {file.version}, this release reads {_VERSION}")
            if file.checksum != zlib.crc32(file.content):
                raise CheckpointError(f"{self._path} was changed by another program: its checksum is wrong; {_REMOVE}")
            return decode_json(file.content, self._kind)
        except JsonError as error:
            raise CheckpointError(f"{self._path} is not a checkpoint: {error}; {_REMOVE}") from error

    def rescue(self) -> tuple[T | None, str]:
        """The last written value, and what is wrong with the file, "" if nothing is. A damaged file is set aside; its
        value is returned if it can be decoded."""
        try:
            return self.read(), ""
        except CheckpointError as error:
            aside = self._path.with_name(f"{self._path.name}.damaged")
            wrong = str(error).removesuffix(f"; {_REMOVE}")
            try:
                left = self._left()
                self._path.replace(aside)
            except OSError:
                return None, wrong
            return left, f"{wrong}; it was set aside as {aside.name}"

    def _left(self) -> T | None:
        """Raises OSError."""
        try:
            file = decode_json(self._path.read_bytes(), _File)
            return decode_json(file.content, self._kind) if file.version == _VERSION else None
        except JsonError:
            return None

    def write(self, value: T, *, over: bool = False) -> None:
        """Write the value. Raises CheckpointError; then the old value is still there. With `over` the old file is
        overwritten if no new one can be written; a failure can then damage it."""
        content = msgspec.json.encode(value)
        data = msgspec.json.encode(_File(_VERSION, zlib.crc32(content), msgspec.Raw(content)))
        try:
            try:
                replace_file(self._path, data)
            except OSError:
                if not over:
                    raise
                _write_over(self._path, data)
        except OSError as error:
            raise CheckpointError(f"cannot write {self._path}: {error.strerror}") from error


def _write_over(path: Path, data: bytes) -> None:
    """Raises OSError."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


_REMOVE = "drain the node and remove the file"
