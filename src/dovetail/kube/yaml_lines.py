# SPDX-License-Identifier: Apache-2.0
"""The values of YAML texts that are written line by line, as nearly all manifests are, at a tenth of PyYAML's cost.

Rules
- A text is read if it has these forms only: one document of block mappings and lists; keys that are texts, and values,
  on one line, plain or in quotes without escapes; flow collections on one line; comments; literal texts (`|`).
- All other texts, right or wrong, are left to PyYAML, which finds their errors: this reader knows none. Where it
  answers, the value and the positions are PyYAML's.
- What a line means is remembered: most lines of a manifest are in others, too.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from dovetail.kube.json_values import copied_json
from dovetail.kube.yaml_scalars import NotSimple, value_of

Place = tuple[int, int, bool]
"""Line and column, from 0, at which a key or item begins, and whether its value is a literal text."""
Places = dict[tuple[int, str | int], Place]
"""By the identity of the mapping or list that holds it, and its key or index there."""
_Line = tuple[int, int, tuple[int, ...], int, str | None, Any]
"""Kind, column of its first character, columns of its dashes, column after them, key, and value: of a flow collection
with the column at which it begins, of a literal text the end of `|-`."""

UNREAD: Final = object()
"""In place of the value of a text that this reader leaves to PyYAML."""

_SCALAR: Final = 0
_OPEN: Final = 1
_FLAT: Final = 2
_NESTED: Final = 3
_LITERAL: Final = 4
_BLANK: Final = 5
_BEGIN: Final = 6
_OTHER: Final = 7
"""Kinds of lines: with a value; with the value in the next lines, or null; with a flow collection, of scalars only or
not; with the beginning of a literal text; empty or a comment; `---`; and what this reader leaves to PyYAML."""

_MOST_LEVELS: Final = 50
_MOST_FLOW_LEVELS: Final = 10
_MOST_DASHES: Final = 5
_LONGEST_KEY: Final = 128
"""Characters. YAML wants `?` before a key of more than 1024."""
_LONGEST_LINE: Final = 256
"""Characters of a line that is remembered."""

_WORD = r"[^ \-?:,\[\]{}#&*!|>'\"%@`]"
_PLAIN = rf"((?:{_WORD}|-(?=[^ ]))(?:[^ :#]++|:(?=[^ ])|(?<! )#| ++(?=[^ #:]|:[^ ]))*+)"
_ENDS = r" ,?:#\[\]{}"
_PLAIN_IN_FLOW = rf"((?:{_WORD}|-(?=[^{_ENDS}]))(?:[^{_ENDS}]++|:(?=[^{_ENDS}])|(?<! )#| ++(?=[^{_ENDS}]))*+)"
_QUOTED = r"'((?:[^']|'')*+)'|\"([^\"\\]*+)\""
_LINE = re.compile(
    rf"((?:-(?: ++|$)){{,{_MOST_DASHES}}}+)(?:(?:{_PLAIN}|{_QUOTED}):(?= |$))?+ *+"
    rf"(?:{_PLAIN}|{_QUOTED}|\|([+-]?)(?= |$)|([\[{{].*))?+ *+(?:(?<= )#.*)?"
)
_FLOW_KEY = re.compile(rf"(?:{_PLAIN_IN_FLOW}(?=: )|{_QUOTED}(?=:)):")
_FLOW_VALUE = re.compile(rf" *+(?:{_PLAIN_IN_FLOW}|{_QUOTED}|(?=([\[{{])))?+")
_AFTER_FLOW = re.compile(r" *(?: #.*)?")
_DASHES = re.compile(r"---(?: *| +#.*)")
_NOTHING: Final[_Line] = (_BLANK, 0, (), 0, None, None)
_FIRST: Final[_Line] = (_BEGIN, 0, (), 0, None, None)
_NOT_READ: Final[_Line] = (_OTHER, 0, (), 0, None, None)


def read_lines(text: str, places: Places | None = None) -> Any:
    """The value of a text, as the only item of a list; UNREAD if this reader leaves it to PyYAML. Where all in the list
    begins is added to `places`."""
    lines = text.split("\n")
    line_of = _remembered if max(map(len, lines)) <= _LONGEST_LINE else _line
    root: list[Any] = []
    # The innermost open collection, its column, and of a mapping the last key. `is_open`: its last value may come yet.
    box: Any = root
    level, last, is_open, begun = -1, "", False, False
    outer: list[tuple[int, Any]] = []
    number, next_number = -1, 0
    for kind, column, dashes, after, key, value in map(line_of, lines):
        number += 1
        if kind >= _BLANK or number < next_number:
            if kind == _BLANK or number < next_number:
                continue
            if kind != _BEGIN or begun or root:
                return UNREAD
            begun = True
            continue
        if column > level or (is_open and dashes and column == level and type(box) is dict):
            inner: Any = [] if dashes else {}
            if type(box) is dict:
                if not is_open:
                    return UNREAD
                box[last] = inner
            else:
                if is_open:
                    box.pop()
                elif outer or root:
                    return UNREAD
                box.append(inner)
                if places is not None:
                    places[id(box), len(box) - 1] = (number, column, False)
            outer.append((level, box))
            if len(outer) > _MOST_LEVELS:
                return UNREAD
            level, box = column, inner
        else:
            while column < level:
                level, box = outer.pop()
            if column != level:
                return UNREAD
            if not dashes and type(box) is list:
                # A list may be as far in as the key that has it.
                level, box = outer.pop()
            if column != level or (type(box) is list) != bool(dashes):
                return UNREAD
        if kind >= _FLAT:
            if kind == _LITERAL:
                # Its lines are further in than the collection in which it is.
                value, next_number = _literal(lines, number + 1, dashes[-1] if key is None else after, value)
                if next_number == 0:
                    return UNREAD
            elif places is not None:
                value = _flow(lines[number], value[0], 0, places, number)[0]
            else:
                value = value[1].copy() if kind == _FLAT else copied_json(value[1])
        if dashes:
            for next_column in dashes[1:]:
                inner = []
                box.append(inner)
                if places is not None:
                    places[id(box), len(box) - 1] = (number, next_column, False)
                outer.append((level, box))
                level, box = next_column, inner
            inner = value if key is None else {}
            box.append(inner)
            if places is not None:
                places[id(box), len(box) - 1] = (number, after, key is None and kind == _LITERAL)
            if key is not None:
                outer.append((level, box))
                level, box = after, inner
        if key is not None:
            if key in box:
                return UNREAD
            box[key] = value
            last = key
            if places is not None:
                places[id(box), key] = (number, after, kind == _LITERAL)
        is_open = kind == _OPEN
    return root if root else UNREAD


def _line(line: str) -> _Line:
    if not line.isprintable():
        # Tabs, rare breaks of lines, and what has no width.
        return _NOT_READ
    words = line.lstrip(" ")
    if not words or words[0] == "#":
        return _NOTHING
    column = len(line) - len(words)
    found = _LINE.fullmatch(words)
    if found is None or (column == 0 and words.startswith(("---", "..."))):
        return _FIRST if column == 0 and _DASHES.fullmatch(words) else _NOT_READ
    dashed, plain_key, single_key, double_key, plain, single, double, literal, flow = found.groups()
    dashes: tuple[int, ...] = ()
    if dashed:
        dashes = tuple([column + at for at, one in enumerate(dashed) if one == "-"])
    elif plain_key is None and single_key is None and double_key is None:
        return _NOT_READ
    after = column + len(dashed)
    kind = _SCALAR
    value: Any = None
    try:
        key = _key(plain_key, single_key, double_key)
        if plain is not None:
            value = value_of(plain)
        elif single is not None or double is not None:
            value = _unquoted(single, double)
        elif literal is not None:
            kind, value = _LITERAL, literal
        elif flow is not None:
            begin = column + found.start(9)
            value, end = _flow(line, begin, 0)
            if _AFTER_FLOW.fullmatch(line, end) is None:
                return _NOT_READ
            inside = value.values() if type(value) is dict else value
            kind = _NESTED if any(type(one) is dict or type(one) is list for one in inside) else _FLAT
            value = begin, value
        else:
            kind = _OPEN
            if key is None:
                # Without a value, an item is where its dash ends.
                after = dashes[-1] + 1
    except NotSimple:
        return _NOT_READ
    return kind, column, dashes, after, key, value


_remembered = lru_cache(maxsize=4096)(_line)


def _key(plain: str | None, single: str | None, double: str | None) -> str | None:
    """The key of a line, None without one. Raises NotSimple."""
    if plain is None and single is None and double is None:
        return None
    key = _unquoted(single, double) if plain is None else plain
    if len(key) > _LONGEST_KEY or (plain is not None and value_of(plain) is not plain):
        raise NotSimple
    return key


def _unquoted(single: str | None, double: str | None) -> str:
    return single.replace("''", "'") if single is not None else double or ""


def _flow(line: str, at: int, levels: int, places: Places | None = None, number: int = 0) -> tuple[Any, int]:
    """The flow collection that begins there in a line, and where it ends. Raises NotSimple."""
    if levels == _MOST_FLOW_LEVELS:
        raise NotSimple
    is_map = line[at] == "{"
    box: Any = {} if is_map else []
    end = "}" if is_map else "]"
    at = _past_spaces(line, at + 1)
    while line[at : at + 1] != end:
        slot: str | int = 0 if is_map else len(box)
        begin = at
        if is_map:
            found = _FLOW_KEY.match(line, at)
            if found is None:
                raise NotSimple
            slot, at = _key(*found.groups()) or "", found.end()
            if slot in box:
                raise NotSimple
        found = _FLOW_VALUE.match(line, at)
        assert found is not None, "it matches nothing, too"
        plain, single, double, inner = found.groups()
        at = found.end()
        value: Any = None
        if plain is not None:
            value = value_of(plain)
        elif inner is not None:
            value, at = _flow(line, at, levels + 1, places, number)
        elif single is not None or double is not None:
            value = _unquoted(single, double)
        elif not is_map:
            raise NotSimple
        if is_map:
            box[slot] = value
        else:
            box.append(value)
        if places is not None:
            places[id(box), slot] = (number, begin, False)
        at = _past_spaces(line, at)
        if line[at : at + 1] == ",":
            at = _past_spaces(line, at + 1)
        elif line[at : at + 1] != end:
            raise NotSimple
    return box, at + 1


def _past_spaces(line: str, at: int) -> int:
    while line[at : at + 1] == " ":
        at += 1
    return at


def _literal(lines: list[str], first: int, parent: int, chomp: str) -> tuple[str, int]:
    """The literal text that begins in this line, and the number of the line after it; 0 if it is left to PyYAML."""
    at, end = first, len(lines)
    while at < end and not lines[at].lstrip(" "):
        at += 1
    if at == end:
        return "", 0
    indent = len(lines[at]) - len(lines[at].lstrip(" "))
    if indent <= parent or lines[at][indent] == "\t" or any(len(line) > indent for line in lines[first:at]):
        return "", 0
    before = " " * indent
    texts = [""] * (at - first)
    while at < end:
        line = lines[at]
        if line.startswith(before):
            texts.append(line[indent:])
        elif line.lstrip(" "):
            break
        else:
            texts.append("")
        at += 1
    if not "".join(texts).replace("\t", "").isprintable():
        return "", 0
    if at == end and lines[-1]:
        # The text has no break at its end.
        return ("\n".join(texts), at) if lines[-1].strip(" ") else ("", 0)
    if at == end:
        texts.pop()
    most = len(texts)
    while not texts[-1]:
        texts.pop()
    breaks = 1 if chomp == "" else 0 if chomp == "-" else 1 + most - len(texts)
    return "\n".join(texts) + "\n" * breaks, at
