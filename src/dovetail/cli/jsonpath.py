# SPDX-License-Identifier: Apache-2.0
"""The JSONPath templates of kubectl, over the JSON of an answer.

    {.jobs[*].job}                                      all names, separated by blanks
    {range .jobs[*]}{.job}{"\\t"}{.state}{"\\n"}{end}     a line for each
    {.jobs[?(@.state=="Waiting")].reason}               of those that wait
    {.jobs[0].labels.dovetail\\.dev/user}                a name with a dot in it

Rules
- Outside of braces stands text. Inside stands a path, a text in quotes, `range` and a path, or `end`. An expression
  without any brace is a path.
- A path is made of .name, ['name'], [3], [-1], [1:3], [*], .*, ..name and [?(@.path OP value)], where OP is ==, !=, <,
  <=, > or >= and the value is a number, a text in quotes, true, false or null; without OP it asks whether the path
  exists. It begins at the whole answer, inside of `range` at the current element; $ is always the whole.
- What does not exist is nothing, as in kubectl, but for the first name: an answer has it, or the path is wrong.
- Texts are printed as they are, with blanks for control characters; other values as JSON.
Source: https://kubernetes.io/docs/reference/kubectl/jsonpath/. Not known here: unions ['a','b'], steps [0:9:2].
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from dovetail.cli.output import printable
from dovetail.core.json_text import JsonError, decode_json

Json: TypeAlias = Any
Step: TypeAlias = Callable[[Json], list[Json]]
"""From a value to those that it leads to."""
Path: TypeAlias = Callable[[Json, Json], list[Json]]
"""From the whole answer and the current element to values."""
Part: TypeAlias = Callable[[Json, Json], str]
"""A part of a template: from the whole answer and the current element to text."""

_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_PARTS = re.compile(rf"""(?P<text>[^{{}}]+)|\{{(?P<inside>(?:[^{{}}"']|{_QUOTED})*)\}}""")
_STEPS = re.compile(
    rf"""(?P<deep>\.\.)?(?:
        \.?(?P<star>\*) | (?:(?<=\.\.)|\.)(?P<name>(?:[^\s.\[\](){{}}"'@=!<>,\\*]|\\.)+)
        | \[\s*(?:(?P<all>\*) | (?P<index>-?\d+) | (?P<first>-?\d*):(?P<last>-?\d*) | (?P<quoted>{_QUOTED})
            | \?\(\s*@(?P<path>(?:[^\s=!<>()"'\[\]]|\[[^\]]*\])*)\s*
                (?:(?P<compared>==|!=|<=|>=|<|>)\s*(?P<operand>{_QUOTED}|[^\s()"']+)\s*)?\)
        )\s*\]
    )""",
    re.VERBOSE,
)
_COMPARISONS: dict[str, Callable[[Json, Json], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class PathError(ValueError):
    """The expression cannot be read, or names what no answer has; the message has the place."""


class PathTemplate:
    """A template, read from its expression. Raises PathError."""

    def __init__(self, expression: str) -> None:
        text = expression if "{" in expression or "}" in expression else f"{{{expression}}}"
        self._parts = _parts(_tokens(text), inside=False)

    def text(self, answer: Json) -> str:
        """The text of an answer, which is made of what JSON has. Raises PathError."""
        return "".join(part(answer, answer) for part in self._parts)


def _tokens(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        match = _PARTS.match(text, at)
        if match is None:
            raise PathError(f"{text[at:]!r}: a brace or a quote has no second one")
        yield match
        at = match.end()


def _parts(tokens: Iterator[re.Match[str]], *, inside: bool) -> list[Part]:
    """The parts up to the end of the template, or of the range that is open."""
    found: list[Part] = []
    for token in tokens:
        word = (token["inside"] or "").strip()
        if token["text"]:
            found.append(_literal(token["text"]))
        elif word == "end":
            if not inside:
                raise PathError("{end} without a {range ...} before it")
            return found
        elif word.split(" ")[0] == "range":
            found.append(_range(_path(word.removeprefix("range").strip()), _parts(tokens, inside=True)))
        elif re.fullmatch(_QUOTED, word):
            found.append(_literal(_unquoted(word)))
        else:
            found.append(_values(_path(word)))
    if inside:
        raise PathError("{range ...} without an {end} after it")
    return found


def _literal(text: str) -> Part:
    return lambda whole, current: text


def _values(path: Path) -> Part:
    return lambda whole, current: " ".join(map(_shown, path(whole, current)))


def _range(path: Path, parts: list[Part]) -> Part:
    return lambda whole, current: "".join(part(whole, one) for one in path(whole, current) for part in parts)


def _shown(value: Json) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return printable(text)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])


def _path(text: str) -> Path:
    rest = text.removeprefix("$").removeprefix("@")
    if not text or (rest and rest[0] not in ".["):
        raise PathError(f"{text!r} is not a path such as .jobs[*].job")
    # A dot alone is the element itself.
    steps, from_whole = [] if rest == "." else list(_steps(rest, text)), text.startswith("$")
    begins = re.match(r"\.((?:[^\s.\[\\]|\\.)+)", rest)
    name = re.sub(r"\\(.)", r"\1", begins[1]) if begins is not None and begins[1] != "*" else ""

    def found(whole: Json, current: Json) -> list[Json]:
        value = whole if from_whole else current
        if name and value is whole and isinstance(whole, dict) and name not in whole:
            raise PathError(f"{text!r}: an answer has no {name!r}, it has {', '.join(whole)}")
        return _after(steps, value)

    return found


def _after(steps: list[Step], value: Json) -> list[Json]:
    """The values to which the steps lead from a value."""
    values = [value]
    for step in steps:
        values = [one for value in values for one in step(value)]
    return values


def _steps(rest: str, text: str) -> Iterator[Step]:
    """The steps of a path; `text` is the whole expression, for messages."""
    at = 0
    while at < len(rest):
        match = _STEPS.match(rest, at)
        if match is None:
            raise PathError(f"{text!r}: {rest[at:]!r} is not .name, ['name'], [0], [1:3], [*] or [?(@.name==1)]")
        at = match.end()
        if match["deep"]:
            yield _below
        yield _step(match, text)


def _step(match: re.Match[str], text: str) -> Step:
    if match["star"] or match["all"]:
        return _elements
    if match["name"]:
        return _named(re.sub(r"\\(.)", r"\1", match["name"]))
    if match["quoted"]:
        return _named(_unquoted(match["quoted"]))
    if match["index"]:
        index = int(match["index"])
        return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []
    if match["first"] is not None:
        first, last = (int(match[one]) if match[one] else None for one in ("first", "last"))
        return lambda value: value[first:last] if isinstance(value, list) else []
    return _filter(list(_steps(match["path"], text)), match["compared"], match["operand"])


def _named(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _filter(steps: list[Step], compared: str | None, operand: str | None) -> Step:
    if compared is None or operand is None:
        return lambda value: [one for one in _elements(value) if _after(steps, one)]
    holds, wanted = _COMPARISONS[compared], _operand(operand)

    def kept(one: Json) -> bool:
        try:
            return any(holds(found, wanted) for found in _after(steps, one))
        except TypeError:
            # A text is neither less nor more than a number.
            return False

    return lambda value: [one for one in _elements(value) if kept(one)]


def _operand(text: str) -> Json:
    if text[0] in "\"'":
        return _unquoted(text)
    try:
        value: Json = decode_json(text, object)
    except JsonError:
        raise PathError(f"{text!r} is not a number, a text in quotes, true, false or null") from None
    return value


def _elements(value: Json) -> list[Json]:
    """The elements of a list, or the values of an object."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _below(value: Json) -> list[Json]:
    """The value, and everything below it."""
    return [value, *(one for element in _elements(value) for one in _below(element))]
