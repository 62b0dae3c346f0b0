# SPDX-License-Identifier: Apache-2.0
"""Kubernetes manifests on disk: from files, folders and standard input to documents that know their place.

Rules
- A folder stands for the files that `folders` finds in it; a file that is named is read whatever it is called; "-" is
  standard input. What begins like gzip is unpacked.
- What is no regular file may never end, or wait for ever for a writer. It is refused, but for /dev/null and what the
  shell has opened for the command (/dev/stdin, /dev/fd/63 of `<(...)`), which is read up to a bound, as standard input.
- A file holds JSON, or YAML with any number of documents. The items of a List, of a PodList and so on are documents.
- `yaml_stream` reads YAML. As in Kubernetes, a field that is null is absent.
- The line of a field is known in YAML; of JSON, which programs write, only the place in the list.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from msgspec import Struct

from dovetail.core.json_text import JsonError, NestedTooDeeply, decode_json
from dovetail.kube.manifests.folders import SUFFIXES, Ignored, files_in
from dovetail.kube.manifests.yaml_stream import NodePlace, TextPlace, stream_documents
from dovetail.kube.yaml_text import OverBounds

STDIN = "-"
MOST_UNPACKED = 2**30
"""Bytes: a snapshot of 10,000 nodes has less; a few kB of gzip data can have a thousand times as many."""

_ENDING = "/dev/stdin", "/dev/fd/", "/proc/self/fd/", os.devnull
_GZIP = b"\x1f\x8b"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class ManifestError(Exception):
    """A file that cannot be read as a whole. `line` counts from 1; 0 where no line is to blame."""

    def __init__(self, message: str, file: str, line: int = 0) -> None:
        super().__init__(message, file, line)
        self.message = message
        self.file = file
        self.line = line

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


class BytesNotRead(ManifestError):
    """A file whose bytes the system does not give: without the right to it, lost, or a link that leads nowhere; a
    folder that cannot be listed."""


class Document(Struct, frozen=True):
    """One object. `path` leads to it inside its file, as in `items[2]`; `place` has the lines of its fields. A pod that
    was made for a workload is at the place of that one, `maker`, which has it at the path `template`."""

    file: str
    value: Any
    path: str = ""
    place: NodePlace | TextPlace | None = None
    maker: str = ""
    template: str = ""

    def line(self, field: str = "") -> int:
        """The line of the field, or of the longest part of its path that exists; 0 in a JSON file."""
        return self.place.inside(field).line if self.place is not None else 0


def read_documents(names: Iterable[str]) -> Iterator[Document]:
    """All documents, in order. Raises ManifestError."""
    for name in names:
        for file in files_named(name):
            yield from documents_in(file, content(file))


def documents_in(name: str, data: bytes) -> Iterator[Document]:
    """The documents of a text, which errors call by this name. Raises ManifestError."""
    try:
        yield from _documents(name, data)
    except yaml.YAMLError as error:
        raise not_yaml(error, name) from error


def files_named(name: str, ignored: Ignored | None = None) -> Iterator[str]:
    """The files of a name: itself, or those of a folder. Raises ManifestError for a folder without any."""
    if name == STDIN or not _is_folder(name):
        yield name
        return
    found = list(files_in(Path(name), ignored))
    if not found:
        out = ", or all are ignored or excluded" if ignored is not None else ""
        raise ManifestError(f"no file in this folder ends in {', '.join(SUFFIXES)}{out}", name)
    yield from found


def content(file: str | Path, most_bytes: int = MOST_UNPACKED) -> bytes:
    """What is in a file or, for "-", on standard input, unpacked. Raises ManifestError, also for gzip data that unpack
    to more bytes, and for more of what is no regular file."""
    try:
        data = _all_of(sys.stdin.buffer, STDIN, most_bytes) if file == STDIN else _read(str(file), most_bytes)
    except OSError as error:
        what = "listed" if _is_folder(str(file)) else "read"
        raise BytesNotRead(f"cannot be {what}: {error.strerror or error}", str(file)) from error
    return _unpacked(data, str(file), most_bytes) if data.startswith(_GZIP) else data


def _read(file: str, most_bytes: int) -> bytes:
    # Manifests are many and small: a buffer takes longer than all else.
    with FileIO(file, opener=_opened) as stream:
        number = stream.fileno()
        if not stat.S_ISREG(os.fstat(number).st_mode):
            if not file.startswith(_ENDING):
                raise ManifestError("is no regular file: pass it as standard input, with -", file)
            os.set_blocking(number, True)
            return _all_of(BufferedReader(stream), file, most_bytes)
        data = stream.readall()
    if data is None:
        raise BytesNotRead("cannot be read: it would wait for data", file)
    return data


def _opened(file: str, flags: int) -> int:
    """A named pipe without a writer does not block the command, whatever is behind the name by now."""
    return os.open(file, flags | os.O_NONBLOCK)


def _all_of(stream: BinaryIO | BufferedReader, file: str, most_bytes: int) -> bytes:
    data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ManifestError(f"more than {most_bytes >> 20} MiB is too large: split it", file)
    return data


def _is_folder(name: str) -> bool:
    """Whether it is one, as far as can be known: reading a file names the reason why not."""
    try:
        return Path(name).is_dir()
    except OSError:
        return False


def _unpacked(data: bytes, file: str, most_bytes: int) -> bytes:
    # Imported here: most files are not compressed.
    import gzip
    import zlib

    try:
        unpacked = gzip.GzipFile(fileobj=BytesIO(data)).read(most_bytes + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ManifestError(f"the gzip data is cut short or broken: {error}", file) from error
    if len(unpacked) > most_bytes:
        raise ManifestError(f"unpacks to more than {most_bytes >> 20} MiB: unpack and split it", file)
    return unpacked


def _documents(file: str, data: bytes) -> Iterator[Document]:
    try:
        yield from _flat(Document(file, _without_nulls(decode_json(data, object))))
        return
    except (NestedTooDeeply, RecursionError) as error:
        raise ManifestError("is nested too deeply", file) from error
    except JsonError:
        # It is YAML, or broken JSON: the YAML reader knows in which line.
        pass
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError(f"is not UTF-8 text: {error.reason}", file, line) from error
    for one in stream_documents(text):
        yield from _flat(Document(file, _without_nulls(one.value), place=one.place))


def _flat(document: Document) -> Iterator[Document]:
    """The document, or the items of the list that it is. Items of typed lists may lack apiVersion and kind."""
    value = document.value
    if value is None:
        return
    kind = str(value.get("kind", "")) if isinstance(value, dict) else ""
    items = value.get("items", [] if kind == "List" else None) if kind.endswith("List") else None
    if not isinstance(items, list):
        yield document
        return
    typed = {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for i, item in enumerate(items):
        inner = document.place.inside(f"items[{i}]") if document.place is not None else None
        path = f"{document.path}.items[{i}]" if document.path else f"items[{i}]"
        yield from _flat(Document(document.file, typed | item if isinstance(item, dict) else item, path, inner))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def not_yaml(error: yaml.YAMLError, file: str) -> ManifestError:
    """The message of the YAML reader, with the line."""
    line, message = 0, " ".join(str(error).split())
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        message = ", ".join(part for part in (error.problem, error.context) if part)
    return ManifestError(message if isinstance(error, OverBounds) else f"is not YAML or JSON: {message}", file, line)
