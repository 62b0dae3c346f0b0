# SPDX-License-Identifier: Apache-2.0
"""The operators of CEL and the conversions between types.

Rules: ints and uints have 64 bits. Overflow, division by zero and mixed types are errors (only comparisons mix number
types). `in` looks for an equal element in a list and for a key in a map.
Source: cel-go v0.29.2, common/types/{int,uint,double,string,bytes,bool,list,map}.go and common/stdlib/standard.go.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from kubecel import times
from kubecel.values import (
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    NO_OVERLOAD,
    Duration,
    Err,
    Map,
    Timestamp,
    UInt,
    Value,
    compare,
    equal,
    general,
    hold,
    key_of,
    shown,
    type_of,
)  # fmt: skip

_INT_OVERFLOW = Err("integer overflow")
_UINT_OVERFLOW = Err("unsigned integer overflow")


def _int(value: int) -> int | Err:
    return value if MIN_INT <= value <= MAX_INT else _INT_OVERFLOW


def _uint(value: int) -> UInt | Err:
    return UInt(value) if 0 <= value <= MAX_UINT else _UINT_OVERFLOW


def add(one: Value, other: Value) -> Value:
    kind = type(one)
    if kind is Duration or kind is Timestamp:
        return times.added(one, other)
    if kind is not type(other):
        return NO_OVERLOAD
    if kind is int:
        return _int(one + other)
    if kind is UInt:
        return _uint(one.n + other.n)
    if kind is float:
        return one + other
    if kind is str or kind is bytes or kind is list:
        hold(len(one) + len(other))
        return one + other
    return NO_OVERLOAD


def subtract(one: Value, other: Value) -> Value:
    kind = type(one)
    if kind is Duration or kind is Timestamp:
        return times.subtracted(one, other)
    return _numeric(one, other, lambda a, b: a - b, lambda a, b: a - b)


def multiply(one: Value, other: Value) -> Value:
    return _numeric(one, other, lambda a, b: a * b, lambda a, b: a * b)


def divide(one: Value, other: Value) -> Value:
    return _numeric(one, other, _quotient, _float_quotient)


def modulo(one: Value, other: Value) -> Value:
    return _numeric(one, other, _remainder)


def _numeric(
    one: Value,
    other: Value,
    whole: Callable[[int, int], int | Err],
    real: Callable[[float, float], float | Err] = lambda a, b: NO_OVERLOAD,
) -> Value:
    kind = type(one)
    if kind is not type(other) or kind not in (int, UInt, float):
        return NO_OVERLOAD
    if kind is float:
        return real(one, other)
    result = whole(one, other) if kind is int else whole(one.n, other.n)
    if type(result) is Err:
        return result
    return _int(result) if kind is int else _uint(result)  # type: ignore[arg-type]


def _quotient(a: int, b: int) -> int | Err:
    if b == 0:
        return Err("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int | Err:
    if b == 0:
        return Err("modulus by zero")
    if a == MIN_INT and b == -1:
        return _INT_OVERFLOW
    return abs(a) % abs(b) * (-1 if a < 0 else 1)


def _float_quotient(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if not a or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def negate(value: Value) -> Value:
    kind = type(value)
    if kind is int:
        return _int(-value)
    if kind is float:
        return -value
    return times.negated(value) if kind is Duration else NO_OVERLOAD


def logical_not(value: Value) -> Value:
    return not value if type(value) is bool else NO_OVERLOAD


def _relation(holds: Callable[[int], bool]) -> Callable[[Value, Value], Value]:
    def relation(one: Value, other: Value) -> Value:
        order = compare(one, other)
        return order if type(order) is Err else holds(order)  # type: ignore[arg-type]

    return relation


def contained(element: Value, container: Value) -> Value:
    if type(container) is Map:
        return element in container
    if type(container) is list:
        return any(equal(element, one) is True for one in container)
    return NO_OVERLOAD


def size_of(value: Value) -> Value:
    kind = type(value)
    if kind is Map:
        return len(value.entries)
    return len(value) if kind in (str, bytes, list) else NO_OVERLOAD


SINGLE: dict[str, Callable[..., Value]] = {
    "_+_": add, "_-_": subtract, "_*_": multiply, "_/_": divide, "_%_": modulo, "-_": negate, "!_": logical_not,
    "_<_": _relation(lambda order: order < 0), "_<=_": _relation(lambda order: order <= 0),
    "_>_": _relation(lambda order: order > 0), "_>=_": _relation(lambda order: order >= 0),
    "@in": contained, "size": size_of, "type": type_of, "dyn": lambda value: value,
}  # fmt: skip
"""Functions that check the types of their arguments themselves."""


def _no_conversion(value: Value, to: str) -> Err:
    return Err(f"type conversion error from '{type_of(value).name}' to '{to}'")


def _parsed_int(value: str, signed: bool) -> int | None:
    pattern = r"(?a)[+-]?\d{1,400}" if signed else r"(?a)\d{1,400}"
    return int(value) if re.fullmatch(pattern, value) else None


def to_int(value: Value) -> Value:
    kind = type(value)
    if kind is float:
        return int(value) if MIN_INT < value < 2.0**63 else _INT_OVERFLOW
    if kind is UInt:
        return _int(value.n)
    if kind is Duration:
        return value.ns
    if kind is Timestamp:
        return value.ns // 10**9
    if kind is str:
        number = _parsed_int(value, signed=True)
        return number if number is not None and MIN_INT <= number <= MAX_INT else _no_conversion(value, "int")
    return value


def to_uint(value: Value) -> Value:
    kind = type(value)
    if kind is float:
        return UInt(int(value)) if 0 <= value < 2.0**64 else _UINT_OVERFLOW
    if kind is int:
        return _uint(value)
    if kind is str:
        number = _parsed_int(value, signed=False)
        return UInt(number) if number is not None and number <= MAX_UINT else _no_conversion(value, "uint")
    return value


_DIGITS = r"\d+(?:_\d+)*"
_FLOAT = re.compile(rf"(?ai)[+-]?(?:(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:e[+-]?{_DIGITS})?|inf|infinity)|nan")
_HEX_FLOAT = re.compile(r"(?ai)[+-]?0x(?:[\da-f]+\.?[\da-f]*|\.[\da-f]+)p[+-]?\d+")


def to_double(value: Value) -> Value:
    if type(value) is not str:
        return float(value.n if type(value) is UInt else value)
    if _FLOAT.fullmatch(value):
        number = float(value)
        if not math.isinf(number) or "inf" in value.lower():
            return number
    elif _HEX_FLOAT.fullmatch(value):
        try:
            return float.fromhex(value)
        except OverflowError:
            pass
    return _no_conversion(value, "double")


def to_string(value: Value) -> Value:
    kind = type(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is UInt:
        return str(value.n)
    if kind is float:
        return general(value)
    if kind is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return Err("invalid UTF-8 in bytes, cannot convert to string")
    if kind is Duration:
        return times.duration_text(value)
    return times.timestamp_text(value) if kind is Timestamp else value


_TRUTHS = {**dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
           **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)}  # fmt: skip


def to_bool(value: Value) -> Value:
    return value if type(value) is bool else _TRUTHS.get(value, _no_conversion(value, "bool"))


def to_bytes(value: Value) -> Value:
    return value.encode() if type(value) is str else value


def to_duration(value: Value) -> Value:
    if type(value) is not str:
        return value
    duration = times.duration_of(value)
    return _no_conversion(value, "google.protobuf.Duration") if duration is None else duration


def to_timestamp(value: Value) -> Value:
    if type(value) is int:
        return times.timestamp_of_seconds(value)
    if type(value) is not str:
        return value
    timestamp = times.timestamp_of(value)
    return _no_conversion(value, "google.protobuf.Timestamp") if timestamp is None else timestamp


def inserted(into: Map, key: Value, value: Value) -> Value:
    """The same map with one more entry. Only transformMap() references its accumulator, so it changes in place."""
    if key in into:
        return Err(f"insert failed: key {shown(key)} already exists")
    into.entries[key_of(key)] = value
    return into


def merged(into: Map, other: Map) -> Value:
    """The first map with the entries of the other, as `inserted`."""
    # Keys of other types may equal each other: 1 and 1u.
    if not into.entries and {*map(type, other.entries)} <= {str, int}:
        into.entries.update(other.entries)
        return into
    for key, value in other.items():
        result = inserted(into, key, value)
        if type(result) is Err:
            return result
    return into


def zero(value: Value) -> bool:
    """Whether the value is zero for optional.ofNonZeroValue()."""
    kind = type(value)
    if kind in (bool, int, float, str, bytes, list) or value is None:
        return not value
    if kind is Map:
        return not value.entries
    if kind is UInt:
        return bool(value.n == 0)
    if kind is Timestamp:
        return bool(value.ns == times.FIRST_S * 10**9)
    return kind is Duration and bool(value.ns == 0)
