# SPDX-License-Identifier: Apache-2.0
"""Comments that suppress rules: `# dovetail: ignore G18 the tool pins its threads itself`.

A comment applies to the field that begins on its line, or on the next line if the comment has its own line, and to
everything inside that field. Above the first field of a document, it applies to the whole document. Commas separate
several rules. A reason is required.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

_COMMENT = re.compile(r"#\s*dovetail:\s*ignore\b(.*)$")
_SUPPRESSION = re.compile(r"\s*(G\d\d(?:\s*,\s*G\d\d)*)[\s:,-]*(.*)")
_NOTHING = re.compile(r"\s*(#.*|---.*|%.*)?$")


class Suppression(Struct, frozen=True):
    """A suppression of `rules` from line `first` to line `last` of the document's text, counted from 1, both included.
    `line` is that of the comment. `wrong` is the problem of an invalid comment."""

    rules: frozenset[str]
    reason: str
    line: int
    first: int
    last: int
    wrong: str = ""


class Silence:
    """The lines at which rules are silent, by suppressions: a look-up takes no longer if there are many of them."""

    def __init__(self, some: Iterable[Suppression]) -> None:
        lines: dict[str, list[tuple[int, int]]] = {}
        for one in some:
            for rule in one.rules:
                lines.setdefault(rule, []).append((one.first, one.last))
        self._firsts: dict[str, list[int]] = {}
        self._lasts: dict[str, list[int]] = {}
        for rule, ranges in lines.items():
            ranges.sort()
            self._firsts[rule] = [first for first, _ in ranges]
            # The last line of all ranges that begin so early: fields are nested or apart.
            self._lasts[rule] = list(accumulate((last for _, last in ranges), max))

    def covers(self, rule: str, line: int) -> bool:
        """Whether the rule is silent at the line of the document's text, from 1."""
        before = bisect_right(self._firsts.get(rule, ()), line)
        return before > 0 and self._lasts[rule][before - 1] >= line


def suppressions(text: str, known: Container[str]) -> Iterator[Suppression]:
    """The suppressions in a document's text. `known` are the ids of rules."""
    if "dovetail:" not in text:
        return
    lines = text.splitlines()
    content = [at for at, line in enumerate(lines) if not _NOTHING.match(line)]
    ends = _ends(lines, content)
    following = iter(content)
    first = next(following, len(lines))
    for at, line in enumerate(lines):
        while first < at:
            first = next(following, len(lines))
        found = _COMMENT.search(line)
        if found is None:
            continue
        parsed = _SUPPRESSION.fullmatch(found[1])
        if parsed is None:
            yield Suppression(frozenset(), "", at + 1, 0, -1, "write `# dovetail: ignore G18 why`, with the rule's id")
            continue
        rules = frozenset(re.findall(r"G\d\d", parsed[1]))
        wrong = "" if parsed[2].strip() else "write the reason after the id of the rule"
        wrong = next((f"there is no rule {rule}" for rule in sorted(rules) if rule not in known), wrong)
        whole = bool(content) and first == content[0] and _NOTHING.match(line) is not None
        last = len(lines) if whole else ends.get(first, first)
        yield Suppression(rules, parsed[2].strip(), at + 1, 1 if whole else first + 1, last, wrong)


def _ends(lines: Sequence[str], content: Sequence[int]) -> dict[int, int]:
    """By the index of the line at which a field begins, its last line, from 1, by the indentation of the lines."""
    found: dict[int, int] = {}
    open_: list[tuple[int, int, bool]] = []
    last = 0
    for at in content:
        indent, dashed = _indent(lines[at]), lines[at].lstrip().startswith("-")
        # A list may have the same indentation as its key.
        while open_ and not (open_[-1][1] < indent or (open_[-1][1] == indent and dashed and not open_[-1][2])):
            found[open_.pop()[0]] = last
        open_.append((at, indent, dashed))
        last = at + 1
    return found | {at: last for at, _, _ in open_}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
