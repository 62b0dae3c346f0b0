# SPDX-License-Identifier: Apache-2.0
"""Comments that suppress rules: `# dovetail: ignore G18 the tool pins its threads itself`.

A comment applies to the field that begins on its line, or on the next line if the comment has its own line, and to
everything inside that field. Above the first field of a document, it applies to the whole document. Commas separate
several rules. A reason is required.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

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


def suppressions(text: str, known: Container[str]) -> Iterator[Suppression]:
    """The suppressions in a document's text. `known` are the ids of rules."""
    if "dovetail:" not in text:
        return
    lines = text.splitlines()
    content = [at for at, line in enumerate(lines) if not _NOTHING.match(line)]
    for at, line in enumerate(lines):
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
        first = next((here for here in content if here >= at), len(lines))
        whole = bool(content) and first == content[0] and _NOTHING.match(line) is not None
        last = len(lines) if whole else _last(lines, content, first)
        yield Suppression(rules, parsed[2].strip(), at + 1, 1 if whole else first + 1, last, wrong)


def _last(lines: list[str], content: list[int], first: int) -> int:
    """The last line, from 1, of the field that begins at index `first`, by the indentation of the lines."""
    if first >= len(lines):
        return first
    indent, dashed = _indent(lines[first]), lines[first].lstrip().startswith("-")
    last = first
    for at in content:
        if at <= first:
            continue
        # A list may have the same indentation as its key.
        inside = _indent(lines[at]) > indent or (
            not dashed and _indent(lines[at]) == indent and lines[at].lstrip().startswith("-")
        )
        if not inside:
            break
        last = at
    return last + 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
