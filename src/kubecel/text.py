# SPDX-License-Identifier: Apache-2.0
"""The functions on strings and the formatting of values.

Rules: offsets count characters. Case conversion is limited to ASCII. format() supports %s %d %f %e %b %o %x %X and %%,
with a precision for %f and %e (default 6).
Source: cel-go v0.29.2, ext/strings.go and ext/formatting.go (version 2 of the library, as Kubernetes has it).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator

from kubecel import times
from kubecel.types import Type
from kubecel.values import (
    Duration,
    Err,
    Map,
    Timestamp,
    UInt,
    Value,
    hold,
    number,
    shortest,
    shown,
    type_of,
)  # fmt: skip


def _out_of_range(at: int) -> Err:
    return Err(f"index out of range: {at}")


def char_at(text: str, at: int) -> Value:
    return text[at : at + 1] if 0 <= at <= len(text) else _out_of_range(at)


def index_of(text: str, part: str, offset: int = 0) -> Value:
    if offset < 0:
        return _out_of_range(offset)
    return min(offset, len(text)) if not part else text.find(part, offset)


def last_index_of(text: str, part: str, offset: int | None = None) -> Value:
    if offset is None:
        return text.rfind(part)
    if offset < 0:
        return _out_of_range(offset)
    if not part:
        return min(offset, len(text))
    return -1 if offset >= len(text) else text.rfind(part, 0, offset + len(part))


_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {code + 32: code for code in _ASCII_LOWER}


def replace(text: str, old: str, new: str, count: int = -1) -> Value:
    places = text.count(old) if old else len(text) + 1
    replaced = places if count < 0 else min(count, places)
    hold(len(text) + replaced * (len(new) - len(old)))
    return text.replace(old, new, count)


def split(text: str, separator: str, count: int = -1) -> Value:
    if count == 0:
        return []
    if separator:
        return text.split(separator, count - 1 if count > 0 else -1)
    if count < 0 or count >= len(text):
        return list(text)
    return [*text[: count - 1], text[count - 1 :]]


def substring(text: str, start: int, end: int | None = None) -> Value:
    if end is not None and start > end:
        return Err(f"invalid substring range. start: {start}, end: {end}")
    for at in (start, len(text) if end is None else end):
        if not 0 <= at <= len(text):
            return _out_of_range(at)
    return text[start:end]


_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def join(parts: list[Value], separator: str = "") -> Value:
    for part in parts:
        if type(part) is not str:
            return Err(f"join: invalid input: {shown(part)}")
    hold(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


_QUOTES = str.maketrans({
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
})  # fmt: skip


def quote(text: str) -> str:
    return f'"{text.translate(_QUOTES)}"'


class FormatError(Exception):
    """A clause of format() is invalid; the message has the reason."""


_CLAUSE = re.compile(r"(?s)%(%|(?:\.(\d*))?(.?))")
CLAUSES: dict[str, tuple[frozenset[str], str]] = {
    "d": (frozenset(("int", "uint")), "decimal clause can only be used on integers"),
    "f": (frozenset(("double", "string")), "fixed-point clause can only be used on doubles"),
    "e": (frozenset(("double", "string")), "scientific clause can only be used on doubles"),
    "b": (frozenset(("int", "uint", "bool")), "only integers and bools can be formatted as binary"),
    "o": (frozenset(("int", "uint")), "octal clause can only be used on integers"),
    "x": (frozenset(("int", "uint", "string", "bytes")), "only integers, byte buffers, and strings can be hex"),
    "X": (frozenset(("int", "uint", "string", "bytes")), "only integers, byte buffers, and strings can be hex"),
    "s": (frozenset(("list", "map", "int", "uint", "double", "bool", "string", "bytes", "null_type", "type",
                     "google.protobuf.Timestamp", "google.protobuf.Duration")),
          "string clause can only be used on strings, bools, bytes, numbers, maps, lists, types and times"),
}  # fmt: skip
"""The type names that each clause accepts, and the error message for other types."""


def formatted(text: str, count: int, write: Callable[[int, str, int | None], str]) -> str:
    """The text with its clauses replaced by the results of `write` (argument, clause, precision).

    `count` is the number of arguments. Raises FormatError, and Abort if the result is too long.
    """
    return "".join(_held(_pieces(text, count, write)))


def _held(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of a text. Raises Abort as soon as the text is too long."""
    length = 0
    for piece in pieces:
        length += len(piece)
        hold(length)
        yield piece


def _pieces(text: str, count: int, write: Callable[[int, str, int | None], str]) -> Iterator[str]:
    at, argument = 0, 0
    for match in _CLAUSE.finditer(text):
        yield text[at : match.start()]
        at = match.end()
        if match[1] == "%":
            yield "%"
            continue
        if argument >= count:
            raise FormatError(f"index {argument} out of range")
        if not match[3]:
            raise FormatError("unexpected end of string")
        if match[3] not in CLAUSES or match[2] == "" or len(match[2] or "") > 6:
            raise FormatError(f'could not parse formatting clause: unrecognized formatting clause "{match[3]}"')
        yield write(argument, match[3], None if match[2] is None else int(match[2]))
        argument += 1
    yield text[at:]


def format_(text: str, arguments: list[Value]) -> Value:
    try:
        return formatted(text, len(arguments), lambda i, clause, width: _clause(arguments[i], clause, width))
    except FormatError as error:
        return Err(str(error))


def _clause(value: Value, clause: str, precision: int | None) -> str:
    kinds, reason = CLAUSES[clause]
    if type_of(value).name not in kinds:
        raise FormatError(f"error during formatting: {reason}, was given {type_of(value).name}")
    if clause == "s":
        return _string(value)
    if clause in "fe":
        return _real(value, clause, 6 if precision is None else precision, reason)
    if type(value) is str or type(value) is bytes:
        digits = (value.encode() if isinstance(value, str) else value).hex()
    else:
        whole = number(value) if type(value) is not bool else int(value)
        digits = format(whole, clause.lower())
    return digits.upper() if clause == "X" else digits


def _real(value: Value, clause: str, precision: int, reason: str) -> str:
    if type(value) is str:
        if value not in ("NaN", "Infinity", "-Infinity"):
            raise FormatError(f"error during formatting: {reason}, was given string")
        value = float(value)
    if precision > 1000:
        raise FormatError(f"could not parse formatting clause: precision {precision} is too large")
    # Upstream uses the precision of %e as a width.
    width = precision if clause == "e" else 0
    if math.isnan(value) or math.isinf(value):
        return ("NaN" if math.isnan(value) else "∞" if value > 0 else "-∞").rjust(width)
    if clause == "f":
        return f"{value + 0.0:,.{precision}f}"
    mantissa, exponent = f"{value + 0.0:.6e}".split("e")
    # As in the English locale: a multiplication by ten with a superscript exponent.
    power = f"{int(exponent):+03d}".replace("+", "").translate(_SUPERSCRIPT)
    return f"{mantissa}\u00d710{power}".rjust(width)


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _string(value: Value) -> str:
    kind = type(value)
    if kind is list:
        return f"[{', '.join(_held(map(_literal, value)))}]"
    if kind is Map:
        return f"{{{', '.join(f'{key}:{one}' for key, one in sorted(_entries(value)))}}}"
    if kind is bytes:
        try:
            return str(value.decode())
        except UnicodeDecodeError:
            raise FormatError("error during formatting: could not convert argument to string") from None
    if kind is Duration:
        return times.duration_text(value)
    if kind is Timestamp:
        return times.timestamp_text(value)
    if kind is Type:
        return str(value.name)
    if kind is str:
        return str(value)
    return "null" if value is None else shown(value)


def _entries(value: Map) -> list[tuple[str, str]]:
    for key, _ in value.items():
        if type(key) not in (str, bool, int, UInt):
            raise FormatError(f"no formatting function for map key of type {type_of(key).name}")
    return [(_literal(key), _literal(one)) for key, one in value.items()]


def _literal(value: Value) -> str:
    """The value as a literal of the language, for elements of a list or map."""
    kind = type(value)
    if kind is str:
        return quote(value)
    if kind is bytes:
        return f"b{quote(_string(value))}"
    if kind is float:
        written = shortest(value) if math.isinf(value) or math.isnan(value) else f"{value:.6f}"
        return f'"{written}"' if math.isinf(value) or math.isnan(value) else written
    if kind is Duration:
        return f'duration("{times.duration_text(value)}")'
    if kind is Timestamp:
        return f'timestamp("{times.timestamp_text(value)}")'
    if type_of(value).name not in CLAUSES["s"][0]:
        raise FormatError(f"no formatting function for {type_of(value).name}")
    return _string(value)


OVERLOADS: dict[str, Callable[..., Value]] = {
    "contains_string": lambda text, part: part in text,
    "starts_with_string": lambda text, part: text.startswith(part),
    "ends_with_string": lambda text, part: text.endswith(part),
    "string_char_at_int": char_at,
    "string_index_of_string": index_of, "string_index_of_string_int": index_of,
    "string_last_index_of_string": last_index_of, "string_last_index_of_string_int": last_index_of,
    "string_lower_ascii": lambda text: text.translate(_ASCII_LOWER),
    "string_upper_ascii": lambda text: text.translate(_ASCII_UPPER),
    "string_replace_string_string": replace, "string_replace_string_string_int": replace,
    "string_split_string": split, "string_split_string_int": split,
    "string_substring_int": substring, "string_substring_int_int": substring,
    "string_trim": lambda text: text.strip(_SPACE),
    "list_join": join, "list_join_string": join,
    "string_format": format_, "strings_quote": quote,
}  # fmt: skip
