# SPDX-License-Identifier: Apache-2.0
"""Parser of regular expressions in RE2 syntax.

Rules: the syntax is that of RE2 without the classes of Unicode scripts (\\p{Greek}). Backreferences and lookaround are
errors, as in RE2. \\d, \\s, \\w, \\b and the [:names:] match only ASCII. `$` is the end of the text without (?m).
Source: github.com/google/re2/wiki/Syntax; Go's regexp/syntax, flags Perl.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from msgspec import Struct

Holds = Callable[[str], bool]
"""Whether a character matches."""
_MAX_REPEAT: Final = 1000
_NESTING: Final = 50


class RegexError(ValueError):
    """An invalid pattern. The message is upstream's."""


class Char(Struct, frozen=True):
    holds: Holds


class Edge(Struct, frozen=True):
    """A position between characters: text_start, text_end, line_start, line_end, word (boundary) or inner (none)."""

    kind: str


class Sequence(Struct, frozen=True):
    parts: tuple[Tree, ...]


class Choice(Struct, frozen=True):
    options: tuple[Tree, ...]


class Repeat(Struct, frozen=True):
    """A repetition from `least` to `most` times (None: unlimited)."""

    of: Tree
    least: int
    most: int | None
    greedy: bool


Tree = Char | Edge | Sequence | Choice | Repeat


def _ranges(*pairs: str) -> Holds:
    return lambda char: any(pair[0] <= char <= pair[-1] for pair in pairs)


_DIGIT, _SPACE, _WORD = _ranges("09"), lambda char: char in "\t\n\f\r ", _ranges("09", "AZ", "az", "__")
is_word: Holds = _WORD
_PERL: dict[str, Holds] = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_POSIX: dict[str, Holds] = {
    "alnum": _ranges("09", "AZ", "az"), "alpha": _ranges("AZ", "az"), "ascii": _ranges("\0\x7f"),
    "blank": lambda char: char in "\t ", "cntrl": _ranges("\0\x1f", "\x7f"), "digit": _DIGIT, "graph": _ranges("!~"),
    "lower": _ranges("az"), "print": _ranges(" ~"), "punct": _ranges("!/", ":@", "[`", "{~"),
    "space": lambda char: char in "\t\n\v\f\r ", "upper": _ranges("AZ"), "word": _WORD,
    "xdigit": _ranges("09", "AF", "af"),
}  # fmt: skip
_SIMPLE = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CATEGORIES = frozenset(
    ("C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl", "No", "P",
     "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs")
)  # fmt: skip
_COUNT = re.compile(r"(?a)\{(0|[1-9]\d{0,8})(?:(,)(0|[1-9]\d{0,8})?)?\}")
_GROUP = re.compile(r"\(\?P?<([^>]*)>")
_FLAGS = re.compile(r"\(\?([imsU]*)(-[imsU]+)?([:)])")


_STRAYS = {"k": "\u212a", "s": "\u017f", "\xe5": "\u212b", "\u03c9": "\u2126", "\u03bc": "\xb5", "\u03c3": "\u03c2",
           "ss": "\u1e9e", "\u03b2": "\u03d0", "\u03b5": "\u03f5", "\u03b8": "\u03d1\u03f4", "\u03ba": "\u03f0",
           "\u03c0": "\u03d6", "\u03c1": "\u03f1", "\u03c6": "\u03d5"}  # fmt: skip
"""Characters that are not the upper or lower case of another, by the character that they fold to."""


def any_char(char: str) -> bool:
    return True


def _not_newline(char: str) -> bool:
    return char != "\n"


def _not(holds: Holds) -> Holds:
    return lambda char: not holds(char)


@lru_cache(maxsize=1024)
def _folded(char: str) -> frozenset[str]:
    """The characters that differ from `char` only in case."""
    folded = char.casefold()
    forms = {char, folded, folded.upper(), char.lower(), char.upper(), char.title(), *_STRAYS.get(folded, "")}
    return frozenset(form for form in forms if len(form) == 1 and form.casefold() == folded)


def _folding(holds: Holds) -> Holds:
    return lambda char: any(map(holds, _folded(char)))


def _category(name: str) -> Holds:
    if name == "Any":
        return any_char
    if name not in _CATEGORIES:
        raise RegexError(f"invalid character class range: `\\p{{{name}}}` (only general categories are supported here)")
    return lambda char: unicodedata.category(char).startswith(name)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._fold = self._multi = self._dotall = self._lazy = False
        self._depth = 0

    def parse(self) -> Tree:
        tree = self._choice()
        if self._at < len(self._text):
            raise self._error("unexpected )", self._text)
        return tree

    def _error(self, what: str, where: str) -> RegexError:
        return RegexError(f"error parsing regexp: {what}: `{where}`")

    def _sees(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _choice(self) -> Tree:
        options = [self._sequence()]
        while self._sees("|"):
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        repeated_at = -1
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            start = self._at
            repeat = self._repeat()
            if repeat is None:
                repeated_at = -1
                if self._sees("\\Q"):
                    parts.extend(self._quoted())
                elif (one := self._atom()) is not None:
                    parts.append(one)
                continue
            written = self._text[start : self._at]
            if repeated_at >= 0:
                raise self._error("invalid nested repetition operator", self._text[repeated_at : self._at])
            if not parts:
                raise self._error("missing argument to repetition operator", written)
            parts[-1] = Repeat(parts[-1], *repeat)
            repeated_at = start
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeat(self) -> tuple[int, int | None, bool] | None:
        """(least, most, greedy) of the repetition operator at this position, if there is one."""
        sign = self._text[self._at]
        if sign in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            self._at += 1
        elif sign == "{" and (count := _COUNT.match(self._text, self._at)):
            least = int(count[1])
            most = (int(count[3]) if count[3] else None) if count[2] else least
            if max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
                raise self._error("invalid repeat count", count[0])
            self._at = count.end()
        else:
            return None
        lazy = self._sees("?")
        self._at += lazy
        return least, most, lazy == self._lazy

    def _atom(self) -> Tree | None:
        char = self._text[self._at]
        match char:
            case "(":
                return self._group()
            case "[":
                return Char(self._set())
            case ".":
                self._at += 1
                return Char(any_char if self._dotall else _not_newline)
            case "^" | "$":
                self._at += 1
                place = "start" if char == "^" else "end"
                return Edge(f"line_{place}" if self._multi else f"text_{place}")
            case "\\":
                return self._escaped()
        self._at += 1
        return self._literal(char)

    def _literal(self, char: str) -> Char:
        if self._fold and len(_folded(char)) > 1:
            return Char(_folded(char).__contains__)
        return Char(char.__eq__)

    def _quoted(self) -> list[Char]:
        """The literal characters between \\Q and \\E."""
        end = self._text.find("\\E", self._at)
        quoted = self._text[self._at + 2 : end if end >= 0 else len(self._text)]
        self._at = end + 2 if end >= 0 else len(self._text)
        return list(map(self._literal, quoted))

    def _escaped(self) -> Tree:
        kind = self._text[self._at + 1 : self._at + 2]
        edges = {"A": "text_start", "z": "text_end", "b": "word", "B": "inner"}
        if kind in edges:
            self._at += 2
            return Edge(edges[kind])
        holds = self._class_escape()
        if holds is not None:
            return Char(holds)
        return self._literal(self._character())

    def _class_escape(self) -> Holds | None:
        """The class of an escape such as \\d or \\p{L}, if one is next."""
        kind = self._text[self._at + 1 : self._at + 2]
        if kind.lower() in _PERL:
            self._at += 2
            holds = _PERL[kind.lower()]
        elif kind in ("p", "P"):
            rest = self._text[self._at + 2 :]
            name = rest[1 : rest.find("}")] if rest.startswith("{") and "}" in rest else rest[:1]
            if not name or name == "{":
                raise self._error("invalid character class range", self._text[self._at :])
            self._at += 2 + (len(name) + 2 if rest[0] == "{" else 1)
            holds = _category(name.removeprefix("^"))
            holds = _not(holds) if name[0] == "^" else holds
        else:
            return None
        holds = _folding(holds) if self._fold else holds
        return holds if kind.islower() else _not(holds)

    def _character(self) -> str:
        """The character of an escape sequence."""
        start = self._at
        kind = self._text[start + 1 : start + 2]
        if not kind:
            raise self._error("trailing backslash at end of expression", "")
        octal = re.compile(r"[1-7][0-7]{1,2}|0[0-7]{0,2}").match(self._text, start + 1)
        digits = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})").match(self._text, start + 1)
        if octal:
            self._at = octal.end()
            return chr(int(octal[0], 8))
        if digits:
            self._at = digits.end()
            code = int(digits[1] or digits[2], 16)
            if code <= 0x10FFFF:
                return chr(code)
        elif kind in _SIMPLE or (ord(kind) < 0x80 and not kind.isalnum()):
            self._at += 2
            return _SIMPLE.get(kind, kind)
        raise self._error("invalid escape sequence", self._text[start : max(start + 2, self._at)])

    def _set(self) -> Holds:
        start = self._at
        self._at += 1
        negated = self._sees("^")
        self._at += negated
        items: list[Holds] = []
        first = True
        while first or not self._sees("]"):
            first = False
            if self._at >= len(self._text):
                raise self._error("missing closing ]", self._text[start:])
            items.append(self._set_item())
        self._at += 1
        union: Holds = lambda char: any(holds(char) for holds in items)  # noqa: E731
        union = _folding(union) if self._fold else union
        return _not(union) if negated else union

    def _set_item(self) -> Holds:
        if self._sees("[:") and (end := self._text.find(":]", self._at + 2)) >= 0:
            name = self._text[self._at + 2 : end]
            holds = _POSIX.get(name.removeprefix("^"))
            if holds is None:
                raise self._error("invalid character class range", self._text[self._at : end + 2])
            self._at = end + 2
            return _not(holds) if name.startswith("^") else holds
        if self._sees("\\") and (escaped := self._class_escape()) is not None:
            return escaped
        start = self._at
        low = high = self._set_character()
        if self._sees("-") and not self._text.startswith("]", self._at + 1) and self._at + 1 < len(self._text):
            self._at += 1
            high = self._set_character()
            if high < low:
                raise self._error("invalid character class range", self._text[start : self._at])
        return _ranges(low + high)

    def _set_character(self) -> str:
        if self._at >= len(self._text):
            raise self._error("missing closing ]", self._text)
        if self._sees("\\"):
            return self._character()
        self._at += 1
        return self._text[self._at - 1]

    def _group(self) -> Tree | None:
        flags = (self._fold, self._multi, self._dotall, self._lazy)
        start = self._at
        if self._sees("(?"):
            if named := _GROUP.match(self._text, self._at):
                name = named[1]
                if not re.fullmatch(r"\w+", name, re.ASCII):
                    raise self._error("invalid named capture", named[0])
                self._at = named.end()
            elif not (match := _FLAGS.match(self._text, self._at)) or match[0] == "(?)":
                raise self._error("invalid or unsupported Perl syntax", self._text[start : start + 3])
            else:
                self._set_flags(match[1], True)
                self._set_flags(match[2] or "", False)
                self._at = match.end()
                if match[3] == ")":
                    return None
        else:
            self._at += 1
        self._depth += 1
        if self._depth > _NESTING:
            raise self._error("expression nests too deeply", self._text)
        inside = self._choice()
        self._depth -= 1
        if not self._sees(")"):
            raise self._error("missing closing )", self._text)
        self._at += 1
        self._fold, self._multi, self._dotall, self._lazy = flags
        return inside

    def _set_flags(self, letters: str, value: bool) -> None:
        self._fold = value if "i" in letters else self._fold
        self._multi = value if "m" in letters else self._multi
        self._dotall = value if "s" in letters else self._dotall
        self._lazy = value if "U" in letters else self._lazy


def parse(pattern: str) -> Tree:
    """The tree of a pattern. Raises RegexError."""
    return _Parser(pattern).parse()
