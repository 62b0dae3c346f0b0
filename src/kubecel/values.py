# SPDX-License-Identifier: Apache-2.0
"""The values of CEL at run time, their equality and order.

Rules: an int is an int, a string a str, a list a list, null is None. This module defines the types that Python lacks:
unsigned ints, maps in which `1`, `1u` and `true` are three keys, optionals, timestamps and durations. An error is a
value too, because `&&` and `||` discard errors that do not affect the result. Numbers of the three types compare by
numeric value. Values of other different types are not equal. Comparing a Quantity, Semver, address or URL with a value
of another type is an error.
Source: cel-go v0.29.2, common/types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from kubecel import types
from kubecel.types import Type

Value = Any
"""Any CEL value."""
MIN_INT, MAX_INT, MAX_UINT = -(2**63), 2**63 - 1, 2**64 - 1


LARGEST = 1_000_000
"""Limit of the characters or elements of one value. `x + x` may cost 1 at any size, so only this stops its doubling."""
LONGEST_NUMBER = 256
"""Limit of the characters of a quantity or version, because comparing two costs 1 at any length."""


class Abort(Exception):
    """Ends the whole evaluation, even within `&&` and `||`: the cost is too high, or upstream would panic."""


TOO_LARGE = "operation cancelled: a value became too large"


def hold(length: int) -> None:
    """Raises Abort if a value of that length (characters or elements) would be too large."""
    if length > LARGEST:
        raise Abort(TOO_LARGE)


class Err(Struct, frozen=True):
    """The error that an expression evaluated to."""

    text: str


NO_OVERLOAD = Err("no such overload")


class UInt(Struct, frozen=True):
    n: int


class Duration(Struct, frozen=True):
    """`ns` fits a signed 64 bit integer."""

    ns: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """`ns` since 1970 UTC. `offset_s` is the original zone; comparisons ignore it."""

    ns: int
    offset_s: int = field(default=0, compare=False)


class Optional(Struct, eq=False):
    value: Value


NONE = Optional(None)
"""optional.none(), the only optional without a value."""
MISSING = object()
"""The result of a lookup that found nothing."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A map key that Python treats as equal to an int (true, 1u, 1.0) or cannot hash."""

    type: str
    hashed: Value
    value: Value = field(compare=False)


class Map:
    """`entries` are by the key that `key_of` returns. `default`, if there is one, is the value of missing keys. The
    keys of a `named` map are strings, and lookups use only strings."""

    __slots__ = ("default", "entries", "named")

    def __init__(self, entries: dict[Value, Value], default: Value = MISSING, named: bool = False) -> None:
        self.entries = entries
        self.default = default
        self.named = named

    def find(self, key: Value) -> Value:
        """The value, or MISSING. A number matches an equal key of another number type."""
        if type(key) is str:
            return self.entries.get(key, self.default)
        if self.named or not self.entries:
            return self.default
        found = self.entries.get(key_of(key), MISSING)
        if found is not MISSING:
            return found
        if type(key) in (int, UInt, float):
            for other in equal_keys(key):
                found = self.entries.get(key_of(other), MISSING)
                if found is not MISSING:
                    return found
        return self.default

    def __contains__(self, key: Value) -> bool:
        return Map(self.entries, named=self.named).find(key) is not MISSING

    def keys(self) -> Iterator[Value]:
        return (key.value if type(key) is _Key else key for key in self.entries)

    def items(self) -> Iterator[tuple[Value, Value]]:
        return zip(self.keys(), self.entries.values(), strict=True)


def key_of(key: Value) -> Value:
    """The representation of the key in `Map.entries`."""
    kind = type(key)
    if kind is str or kind is int:
        return key
    if kind is bytes or kind.__name__ in _UNHASHABLE:
        raise Abort(f"internal error: runtime error: hash of unhashable type {type_of(key).name}")
    hashed = id(key) if kind in (list, Map, Optional) else key
    return _Key(kind.__name__, hashed, key)


_UNHASHABLE = frozenset(("Semver",))


def equal_keys(key: Value) -> list[Value]:
    """The ints and uints of other types that equal an int, uint or double."""
    if type(key) is float:
        if not key.is_integer():
            return []
        whole = int(key)
        signed = [whole] if MIN_INT < whole <= MAX_INT else []
        return signed + ([UInt(whole)] if 0 <= whole <= MAX_UINT else [])
    if type(key) is int:
        return [UInt(key)] if key >= 0 else []
    return [key.n] if key.n <= MAX_INT else []


def type_of(value: Value) -> Type:
    """The type of the value, without parameters."""
    return _TYPES[type(value)]


_TYPES: dict[type, Type] = {
    bool: types.BOOL, int: types.INT, UInt: types.UINT, float: types.DOUBLE, str: types.STRING, bytes: types.BYTES,
    type(None): types.NULL, list: Type(types.LIST), Map: Type(types.MAP), Optional: Type(types.OPTIONAL),
    Timestamp: types.TIMESTAMP, Duration: types.DURATION, Type: types.TYPE, Err: types.ERROR,
}  # fmt: skip


def register(kind: type, type_: Type) -> None:
    """Register the CEL type of a Python class, for modules that define classes of values."""
    _TYPES[kind] = type_


def size(value: Value) -> int:
    """The size of the value for the cost model: elements, characters or bytes, else 1."""
    kind = type(value)
    if kind is str or kind is bytes or kind is list:
        return len(value)
    if kind is Map:
        return len(value.entries)
    if kind is Optional and value is not NONE:
        return size(value.value)
    return int(value.size) if hasattr(value, "size") else 1


def number(value: Value) -> int | float | None:
    """The number in an int, uint or double, else None."""
    kind = type(value)
    return value if kind is int or kind is float else value.n if kind is UInt else None


def equal(one: Value, other: Value) -> bool | Err:
    """`==` of the language."""
    kind = type(one)
    if kind is str or kind is bool or kind is bytes:
        return kind is type(other) and bool(one == other)
    if one is None or other is None:
        return one is other
    if kind is int or kind is float or kind is UInt:
        return _numbers_equal(number(one), number(other))
    if kind is list:
        return type(other) is list and len(one) == len(other) and _none_differs(zip(one, other, strict=True))
    if kind is Map:
        if type(other) is not Map or len(one.entries) != len(other.entries):
            return False
        pairs = [(value, other.find(key)) for key, value in one.items()]
        return all(value is not MISSING for _, value in pairs) and _none_differs(pairs)
    if kind is Optional:
        if type(other) is not Optional or one is NONE or other is NONE:
            return one is other
        return equal(one.value, other.value)
    if kind is Type:
        return type(other) is Type and one.name == other.name
    if kind is Err:
        return one  # type: ignore[no-any-return]
    if kind is Timestamp or kind is Duration:
        return kind is type(other) and bool(one == other)
    result: bool | Err = one.equals(other)
    return result


def _none_differs(pairs: Any) -> bool:
    # As upstream: elements that cannot be compared do not make two lists or maps unequal.
    return all(equal(one, other) is not False for one, other in pairs)


def _numbers_equal(one: int | float | None, other: int | float | None) -> bool:
    if one is None or other is None:
        return False
    if type(one) is type(other):
        return one == other
    return _as_compared(one, other) == _as_compared(other, one)


def _as_compared(one: int | float, other: int | float) -> int | float:
    """An int compared with a double is converted to the nearest double, if the double is within the range of the
    int."""
    if type(one) is int and type(other) is float and MIN_INT <= other <= MAX_UINT:
        return float(one)
    return one


def compare(one: Value, other: Value) -> int | Err:
    """-1, 0 or 1 for values of an ordered type, else an error."""
    kind = type(one)
    if kind is int or kind is float or kind is UInt:
        left, right = number(one), number(other)
        if left is None or right is None:
            return NO_OVERLOAD
        if left != left or right != right:
            return Err("NaN values cannot be ordered")
        left, right = _as_compared(left, right), _as_compared(right, left)
        return (left > right) - (left < right)
    if kind is not type(other):
        return NO_OVERLOAD
    if kind is str or kind is bool or kind is bytes:
        return int(one > other) - int(one < other)
    if kind is Timestamp or kind is Duration:
        return int(one.ns > other.ns) - int(one.ns < other.ns)
    return NO_OVERLOAD


def is_ordered(value: Value) -> bool:
    """Whether the type of the value is ordered."""
    return type(value) in (int, UInt, float, str, bool, bytes, Timestamp, Duration)


def shortest(value: float) -> str:
    """The shortest decimal that parses to the same double, without exponent."""
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    digits = repr(value)
    if "e" in digits:
        mantissa, exponent = digits.split("e")
        decimals = max(0, len(mantissa.partition(".")[2]) - int(exponent))
        return f"{value:.{decimals}f}"
    return digits.removesuffix(".0")


def general(value: float) -> str:
    """As Go's %g: the shortest decimal, with an exponent below 1e-4 and from 1e6 on."""
    if math.isinf(value) or math.isnan(value):
        return shortest(value)
    if value and not 1e-4 <= abs(value) < 1e6:
        digits = len(repr(value).partition("e")[0].replace("-", "").replace(".", "").strip("0"))
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent):+03d}"
    return shortest(value)


def shown(value: Value) -> str:
    """A value as in upstream's error messages. A long or nested value is shown as its type only."""
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is UInt:
        return str(value.n)
    if type(value) is float:
        return general(value)
    short = type(value) in (int, Type) or (type(value) is str and len(value) < 100)
    return str(value) if short else type_of(value).name
