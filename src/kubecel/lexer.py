# SPDX-License-Identifier: Apache-2.0
"""Lexer: splits the text of an expression into tokens.

Rules: the longest token wins. White space and `//` comments separate tokens. Escapes are those of CEL (\\n, \\x41,
\\u0041, \\U00000041, \\101); a raw string has none. In bytes literals \\x and octal escapes are single bytes.
Source: cel-go v0.29.2, parser/gen/CEL.g4 and parser/unescape.go.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kubecel.errors import SelectorError

_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_STRING = "|".join((
    r'[rR](?:"""[\s\S]*?"""|' + r"'''[\s\S]*?'''" + r'|"[^"\n\r]*"|' + r"'[^'\n\r]*')",
    rf'"""(?:{_ESCAPE}|[^\\])*?"""',
    rf"'''(?:{_ESCAPE}|[^\\])*?'''",
    rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
    rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
))  # fmt: skip
_TOKEN = re.compile(
    rf"""(?a)(?P<space>(?:[\t \r\n\f]|//[^\n]*)+)
    |(?P<bytes>[bB](?:{_STRING}))|(?P<string>{_STRING})
    |(?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<uint>(?:0x[0-9a-fA-F]+|\d+)[uU])|(?P<int>0x[0-9a-fA-F]+|\d+)
    |(?P<name>[A-Za-z_]\w*)|`(?P<quoted>[\w.\-/\ ]+)`
    |(?P<sign>==|!=|<=|>=|&&|\|\||[\[\]{{}}().,\-!?:+*/%<>])""",
    re.VERBOSE,
)
_WORDS = frozenset(("in", "true", "false", "null"))
_SIMPLE = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_ESCAPED = re.compile(_ESCAPE)


class Token(NamedTuple):
    """`kind` is bytes, string, double, uint, int, name, quoted or end. For operators, punctuation and the keywords in,
    true, false and null it is the text itself. `at` is the offset in the expression."""

    kind: str
    text: str
    at: int


def position(expression: str, at: int) -> str:
    """The offset as line and column, both from 1."""
    before = expression[:at]
    return f"<input>:{before.count(chr(10)) + 1}:{at - before.rfind(chr(10))}"


def syntax_error(expression: str, at: int, reason: str) -> SelectorError:
    return SelectorError(f"compilation failed: ERROR: {position(expression, at)}: {reason}")


def tokens(expression: str) -> list[Token]:
    """All tokens, followed by one of the kind `end`. Raises SelectorError."""
    found = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            raise syntax_error(expression, at, f"Syntax error: token recognition error at: '{expression[at]}'")
        kind, text = match.lastgroup, match[match.lastgroup]
        if kind != "space":
            found.append(Token(text if kind == "sign" or (kind == "name" and text in _WORDS) else kind, text, at))
        at = match.end()
    found.append(Token("end", "<EOF>", at))
    return found


def string_value(text: str) -> str:
    """The value of a string token. Raises ValueError."""
    return _unescaped(text, as_bytes=False)


def bytes_value(text: str) -> bytes:
    """The value of a bytes token. Raises ValueError."""
    # The surrogates U+DC80 to U+DCFF represent single bytes in the str.
    return _unescaped(text[1:], as_bytes=True).encode("utf-8", "surrogateescape")


def _unescaped(text: str, as_bytes: bool) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = text[0] in "rR"
    text = text[raw:]
    text = text[3:-3] if len(text) >= 6 and text[:3] in ('"""', "'''") else text[1:-1]
    if raw or "\\" not in text:
        return text
    return _ESCAPED.sub(lambda match: _character(match[0][1:], as_bytes), text)


def _character(escape: str, as_bytes: bool) -> str:
    kind = escape[0]
    if kind in "uU" and as_bytes:
        raise ValueError("unable to unescape string")
    if kind in "xXuU":
        number = int(escape[1:], 16)
    elif kind in "0123":
        number = int(escape, 8)
    else:
        return _SIMPLE.get(kind, kind)
    return _one_byte(number) if as_bytes else _code_point(number)


def _code_point(number: int) -> str:
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise ValueError("invalid unicode code point")
    return chr(number)


def _one_byte(number: int) -> str:
    return chr(number) if number < 0x80 else chr(0xDC00 + number)
