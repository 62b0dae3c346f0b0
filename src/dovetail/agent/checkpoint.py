# SPDX-License-Identifier: Apache-2.0
"""A value that survives whatever ends the process: one file, always whole, the old content or the new.

Rules: the new content is written beside the old, forced to disk, and takes its name in one step; then the folder is
forced to disk too. What is read was written so, or is refused: a checksum tells.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
_VERSION = 1


def replace_file(path: Path, data: bytes) -> None:
    """The file is whole at every moment, the old one or the new. Raises OSError; then the old one is still there."""
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
    """The file cannot be read or written; the text says which, why, and what to do."""


class _File(msgspec.Struct, frozen=True):
    version: int
    checksum: int
    content: msgspec.Raw


class Checkpoint(Generic[T]):
    """A value of type `kind`, kept at `path`."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)

    def read(self) -> T | None:
        """The value last written; None where none ever was. Raises CheckpointError."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from error
        try:
            file = msgspec.json.decode(data, type=_File)
            if file.version != _VERSION:
                raise CheckpointError(f"{self._path} is of version {file.version}, this release reads {_VERSION}")
            if file.checksum != zlib.crc32(file.content):
                raise CheckpointError(f"{self._path} was changed by somebody else: its checksum is wrong; {_REMOVE}")
            return self._decoder.decode(file.content)
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"{self._path} is no checkpoint: {error}; {_REMOVE}") from error

    def write(self, value: T) -> None:
        """Raises CheckpointError; then the old value is still there."""
        content = msgspec.json.encode(value)
        try:
            replace_file(self._path, msgspec.json.encode(_File(_VERSION, zlib.crc32(content), msgspec.Raw(content))))
        except OSError as error:
            raise CheckpointError(f"cannot write {self._path}: {error.strerror}") from error


_REMOVE = "drain the node and remove the file to begin anew"
