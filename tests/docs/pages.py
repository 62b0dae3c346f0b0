# SPDX-License-Identifier: Apache-2.0
"""Markdown as these tests read it: fenced blocks, table rows, headings and links of one page.

Knows only what the pages use: fences of three backticks, maybe indented; tables with a head; links without titles.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from tests.paths import ROOT

REFUSED = "<!-- refused -->"
"""Stands before a block whose objects Dovetail does not take."""

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


class Block(Struct, frozen=True):
    """A fenced block. `before` is the last line of text in front of it."""

    page: str
    language: str
    text: str
    before: str

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """(command, what it printed), of a console block."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
        return found


class Row(Struct, frozen=True):
    """One row of a table. `code` has the code spans of each cell."""

    cells: tuple[str, ...]

    @property
    def code(self) -> list[list[str]]:
        return [_CODE.findall(cell) for cell in self.cells]


class Page(Struct, frozen=True):
    path: Path
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def blocks(self) -> list[Block]:
        found = []
        for match in _FENCE.finditer(self.text):
            before = self.text[: match.start()].rstrip().rpartition("\n")[2].strip()
            found.append(Block(self.name, match[2], textwrap.dedent(match[3]), before))
        return found

    @property
    def prose(self) -> str:
        """The text without its blocks."""
        return _FENCE.sub("", self.text)

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        """What a link can name after #, as GitHub makes it of the headings."""
        titles = (match[2] for match in _HEADING.finditer(self.prose))
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def section(self, title: str) -> Page:
        """The part below one heading, up to the next of the same or a higher rank."""
        start = next(match for match in _HEADING.finditer(self.text) if match[2] == title)
        ends = (m.start() for m in _HEADING.finditer(self.text, start.end()) if len(m[1]) <= len(start[1]))
        return Page(self.path, self.text[start.end() : next(ends, len(self.text))])

    def rows(self, head: str) -> list[Row]:
        """The rows of all tables whose first column has this heading."""
        return list(self._rows(head))

    def _rows(self, head: str) -> Iterator[Row]:
        inside = False
        for line in self.prose.splitlines():
            cells = tuple(cell.strip() for cell in line[1:-1].split("|")) if line[:1] == "|" else ()
            if not cells:
                inside = False
            elif cells[0] == head:
                inside = True
            elif inside and not set(line) <= set("|-: "):
                yield Row(cells)


@cache
def page(name: str) -> Page:
    return Page(ROOT / name, (ROOT / name).read_text())


AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def every_page() -> list[Page]:
    below = sorted((ROOT / "docs").rglob("*.md"))
    return [page(name) for name in (*AT_THE_ROOT, *(str(path.relative_to(ROOT)) for path in below))]
