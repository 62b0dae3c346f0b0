# SPDX-License-Identifier: Apache-2.0
"""The GPUs of all nodes over a day, in parts: each has all cells at its beginning, then what changed.

Rules
- A part is whole once it is closed, and is kept packed. It has about as many changes as nodes, at least LEAST_CHANGES:
  whoever shows a time reads one part, and a part costs at most about twice its changes.
- A node with another place or model is another node of the film: its cells before are of the old one.
- A film has MOST_BYTES, packed.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection

import msgspec
from msgspec import Struct

from dovetail.dashboard.gpu_cells import FREE, HELD, PART

LEAST_CHANGES = 2_000
MOST_BYTES = 256 << 20
_LEVEL = 5


class FilmNode(Struct, frozen=True):
    """A node of the film. `place` is as in GridNode."""

    node: str
    place: tuple[str, ...]
    model: str


class FilmPart(Struct, frozen=True, rename="camel"):
    """The cells of each node, by its number, "" where it is not there; then the changes: milliseconds after `start_ms`,
    number of the node, its cells from then on."""

    start_ms: int
    cells: list[str]
    changes: list[tuple[int, int, str]]


class FilmFull(Exception):
    """The film has as much as it may have."""


class GridFilm:
    """A film to which is added as time goes on. `gpus` and `used` are those of the last time."""

    def __init__(self) -> None:
        self.nodes: list[FilmNode] = []
        self.starts_ms: list[int] = []
        """Of the closed parts."""
        self.gpus = self.used = self.free = 0
        self._packed: list[bytes] = []
        self._packed_bytes = 0
        self._numbers: dict[FilmNode, int] = {}
        self._shown: dict[str, int] = {}
        """The number of each node that is there, by name."""
        self._cells: list[str] = []
        self._part: FilmPart | None = None

    @property
    def shown_names(self) -> Collection[str]:
        """The names of the nodes that are there."""
        return self._shown.keys()

    def show(self, at_ms: int, node: FilmNode, cells: str) -> None:
        """From now on the node has these cells. Raises FilmFull."""
        number = self._numbers.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
            self._cells.append("")
        if self._shown.get(node.node, number) != number:
            self.remove(at_ms, node.node)
        self._shown[node.node] = number
        self._change(at_ms, number, cells)

    def remove(self, at_ms: int, name: str) -> None:
        """The node is not there any more. Raises FilmFull."""
        if name in self._shown:
            self._change(at_ms, self._shown.pop(name), "")

    def part(self, number: int) -> bytes | None:
        """The JSON of a closed part, by gzip."""
        return self._packed[number] if 0 <= number < len(self._packed) else None

    def close_part(self) -> None:
        """What is there so far is a part. Raises FilmFull."""
        if self._part is None:
            return
        packed = gzip.compress(msgspec.json.encode(self._part), _LEVEL, mtime=0)
        if self._packed_bytes + len(packed) > MOST_BYTES:
            self._part = None
            raise FilmFull(f"the GPUs of the nodes over time have more than {MOST_BYTES >> 20} MiB")
        self._packed_bytes += len(packed)
        self._packed.append(packed)
        # Last, as another thread reads what it promises.
        self.starts_ms.append(self._part.start_ms)
        self._part = None

    def _change(self, at_ms: int, number: int, cells: str) -> None:
        before = self._cells[number]
        if before == cells:
            return
        if self._part is not None and len(self._part.changes) >= max(LEAST_CHANGES, len(self.nodes)):
            self.close_part()
        if self._part is None:
            self._part = FilmPart(at_ms, list(self._cells), [])
        self._part.changes.append((at_ms - self._part.start_ms, number, cells))
        self._cells[number] = cells
        self.gpus += len(cells) - len(before)
        self.used += _used(cells) - _used(before)
        self.free += cells.count(FREE) - before.count(FREE)


def _used(cells: str) -> int:
    return cells.count(HELD) + cells.count(PART)
