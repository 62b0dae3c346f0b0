# SPDX-License-Identifier: Apache-2.0
"""Files of manifests: commands read them whole, change their text, and write them or show a diff."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.lint.source import MAX_BYTES, SourceDocument, Unreadable, decoded, documents, too_large
from dovetail.kube.manifests.documents import STDIN, BytesNotRead, ManifestError, content, files_named
from dovetail.kube.manifests.folders import Ignored

_BOM = b"\xef\xbb\xbf"
_GZIPPED = ".gz"


class File(Struct, frozen=True):
    """A file of manifests. `data` are its bytes. If it could not be read, `error` is set and `documents` is empty; with
    `is_lost`, nobody knows its bytes."""

    name: str
    data: bytes
    documents: tuple[SourceDocument, ...]
    error: Unreadable | None = None
    is_lost: bool = False

    def rewritten(self, text: str) -> File:
        """The file with another text; nothing is written. A file that could not be read is returned unchanged."""
        if self.error is not None:
            return self
        bom = _BOM if self.data.startswith(_BOM) else b""
        return replace(self, data=bom + text.encode(), documents=tuple(documents(self.name, text)))


def shown_name(name: str) -> str:
    """The name of a file as text, which JSON and XML need: bytes that are no UTF-8 as in `\\xff`."""
    return os.fsencode(name).decode(errors="backslashreplace")


def names(paths: Iterable[str], ignored: Ignored | None = None) -> list[str]:
    """The names of the files, each once. Raises ClickException for a folder without manifests."""
    try:
        found = dict.fromkeys(file for path in paths for file in files_named(path, ignored))
        return [file for file in found if file == STDIN or ignored is None or not ignored.excludes(file)]
    except ManifestError as error:
        raise click.ClickException(str(error)) from error


def read(name: str) -> File:
    """The file; its `error` is set if it cannot be read."""
    data = b""
    try:
        size = Path(name).stat().st_size if name != STDIN else 0
        if size > MAX_BYTES:
            # Among manifests are sets of data, which may be larger than the memory.
            data = _beginning(name)
            raise too_large(size)
        data = content(name, MAX_BYTES)
        return File(name, data, tuple(documents(name, decoded(data))))
    except ManifestError as error:
        return File(name, data, (), Unreadable(error.message, error.line), isinstance(error, BytesNotRead))
    except Unreadable as error:
        return File(name, data, (), error)
    except OSError as error:
        return File(name, data, (), Unreadable(f"cannot be read: {error.strerror or error}"), is_lost=True)


def _beginning(name: str) -> bytes:
    with Path(name).open("rb") as stream:
        return stream.read(MAX_BYTES)


def written(old: File, new: File) -> File:
    """Write `new` to the file on disk, or to standard output if `old` came from standard input, and return it. Raises
    ClickException."""
    if old.name == STDIN:
        click.echo(new.data, nl=False)
    elif new.data != old.data and old.name.endswith(_GZIPPED):
        raise click.ClickException(f"{old.name}: compressed files are not changed: decompress it first")
    elif new.data != old.data:
        replace_file(Path(old.name), new.data)
    return new


def replace_file(path: Path, data: bytes) -> None:
    """Make or replace the file atomically: if the write fails, the file stays as it was. What is no regular file, such
    as /dev/stdout, is written to, but for a named pipe that nobody reads. Raises ClickException."""
    # Imported here: most runs write nothing.
    import tempfile

    try:
        if path.exists() and not path.is_file():
            _write_to(path, data)
            return
        real = path.resolve()
        with tempfile.NamedTemporaryFile(dir=real.parent, prefix=f".{real.name}.", delete=False) as stream:
            temporary = Path(stream.name)
            try:
                stream.write(data)
                # Of a full disk the buffer would hear only after the old file is gone.
                stream.flush()
                temporary.chmod(real.stat().st_mode & 0o7777 if real.exists() else 0o666 & ~_umask())
                temporary.replace(real)
            except BaseException:
                temporary.unlink()
                raise
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error


def _write_to(path: Path, data: bytes) -> None:
    """Write to what is no regular file. Raises ClickException, also for a named pipe, or a socket, for whose reader the
    command would wait for ever; OSError."""
    import errno

    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise click.ClickException(f"cannot write {path}: it is no regular file, and nobody reads it") from error
        raise
    os.set_blocking(number, True)
    with os.fdopen(number, "wb") as stream:
        stream.write(data)


def _umask() -> int:
    """The permissions that new files do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def diff(old: File, new: File) -> Iterator[str]:
    """The lines of a unified diff, with their line ends; none if nothing changed."""
    if old.data != new.data:
        before, after = (each.data.decode("utf-8-sig").splitlines(keepends=True) for each in (old, new))
        name = old.name.removeprefix("/")
        for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def show_diffs(files: Iterable[File], changed: Iterable[File]) -> None:
    """Print a unified diff of each file that changed."""
    for old, new in zip(files, changed, strict=True):
        for line in diff(old, new):
            click.echo(line, nl=False)
