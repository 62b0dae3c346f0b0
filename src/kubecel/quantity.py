# SPDX-License-Identifier: Apache-2.0
"""Quantities, such as the capacities of devices.

Rules: values are exact. Fractions finer than a billionth are rounded away from zero. With a binary suffix the value is
capped at 2^63-1. A quantity converts to an integer (`asInteger`) only if upstream stores it in 64 bits with a decimal
scale of 0 or more: "1.0" and "1000m" do not.
Source: k8s.io/apimachinery/pkg/api/resource (1.37), k8s.io/apiserver/pkg/cel/library/quantity.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from kubecel import types
from kubecel.values import (
    LONGEST_NUMBER,
    MAX_INT,
    MIN_INT,
    NO_OVERLOAD,
    TOO_LARGE,
    Abort,
    Err,
    Value,
    register,
)

_NUMBER = re.compile(r"(?a)([+-]?)(0*)(\d*)(?:\.(\d*))?([eEinumkKMGTP]*[+-]?\d*)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FACTORS: Final = 18
_LARGEST_EXPONENT: Final = 1000
_BAD_FORMAT = Err("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
_BAD_NUMBER = Err("unable to parse numeric part of quantity")
_BAD_SUFFIX = Err("unable to parse quantity's suffix")


class Quantity(Struct, frozen=True, eq=False):
    """`value` times ten to the power of `scale`. `fast`: upstream stores it as 64 bits and a scale. `computed`: it is
    the result of a calculation, which upstream cannot compare by `==` with a parsed quantity."""

    value: int
    scale: int
    fast: bool = True
    computed: bool = False

    def equals(self, other: Value) -> bool | Err:
        if type(other) is not Quantity or other.computed:
            return NO_OVERLOAD
        return compared(self, other) == 0


register(Quantity, types.QUANTITY)


def of_milli(milli: int) -> Quantity:
    """The quantity of `milli` thousandths."""
    return Quantity(milli, -3) if milli % 1000 else Quantity(milli // 1000, 0)


def of_text(text: str) -> Quantity | Err:
    if len(text) > LONGEST_NUMBER:
        raise Abort(TOO_LARGE)
    match = _NUMBER.fullmatch(text)
    if not text or match is None:
        return _BAD_FORMAT
    sign, whole, decimals, suffix = match[1], match[3] or "0", match[4] or "", match[5]
    empty = not match[2] and not match[3] and not decimals
    if suffix in _BINARY:
        return _binary(sign, whole, decimals, _BINARY[suffix], empty)
    if suffix in _DECIMAL:
        exponent = _DECIMAL[suffix]
    elif re.fullmatch(r"(?a)[eE][+-]?\d{1,9}", suffix):
        exponent = int(suffix[1:])
        if abs(exponent) > _LARGEST_EXPONENT:
            return _BAD_SUFFIX
    else:
        return _BAD_SUFFIX
    value, scale = int(f"{sign}{whole}{decimals}"), exponent - len(decimals)
    if len(whole) + len(decimals) <= _FACTORS and scale >= -9:
        return Quantity(value, scale)
    # Upstream accepts a missing number above, where the value fits 64 bits.
    return _BAD_NUMBER if empty else _rounded(value, scale)


def _binary(sign: str, whole: str, decimals: str, power: int, empty: bool) -> Quantity | Err:
    value = int(f"{sign}{whole}{decimals}") << power
    if not decimals and abs(value) <= MAX_INT and 15 - len(whole) - int(power * 3 / 10) - 1 >= 0:
        return Quantity(value, 0)
    if empty:
        return _BAD_NUMBER
    rounded = _rounded(value, -len(decimals))
    return rounded if _order(rounded, MAX_INT) <= 0 <= _order(rounded, -MAX_INT) else Quantity(
        MAX_INT if value > 0 else -MAX_INT, 0, fast=False
    )  # fmt: skip


def _rounded(value: int, scale: int) -> Quantity:
    if not value:
        return Quantity(0, scale, fast=False)
    unit = 10 ** abs(-9 - scale)
    value = value * unit if scale >= -9 else -(-abs(value) // unit) * (-1 if value < 0 else 1)
    return Quantity(value, -9, fast=False)


def _order(one: Quantity, whole: int) -> int:
    return compared(one, Quantity(whole, 0))


def compared(one: Quantity, other: Quantity) -> int:
    scale = min(one.scale, other.scale)
    a: int = one.value * 10 ** (one.scale - scale)
    b: int = other.value * 10 ** (other.scale - scale)
    return (a > b) - (a < b)


def _fits(value: int) -> bool:
    return MIN_INT <= value <= MAX_INT


def _sum(one: Quantity, other: Quantity, sign: int) -> Quantity:
    if one.fast and other.fast:
        # In Go the negation of the minimum int64 is itself.
        value = sign * other.value if sign * other.value <= MAX_INT else MIN_INT
        total = _aligned_sum(one, Quantity(value, other.scale))
        if total.fast:
            return total
    total = _aligned_sum(one, Quantity(sign * other.value, other.scale))
    return Quantity(total.value, total.scale, fast=False, computed=True)


def _aligned_sum(one: Quantity, other: Quantity) -> Quantity:
    """The sum, `fast` if all intermediate values fit 64 bits. Upstream ignores a zero operand and its scale."""
    if not other.value:
        return Quantity(one.value, one.scale, computed=True)
    if not one.value:
        return Quantity(other.value, other.scale, computed=True)
    scale = min(one.scale, other.scale)
    a, b = one.value * 10 ** (one.scale - scale), other.value * 10 ** (other.scale - scale)
    return Quantity(a + b, scale, all(map(_fits, (a, b, a + b))), computed=True)


def _as_integer(quantity: Quantity) -> int | None:
    if not quantity.fast or quantity.scale < 0:
        return None
    value = int(quantity.value * 10**quantity.scale)
    return value if _fits(value) else None


def _integer_or_error(quantity: Quantity) -> Value:
    value = _as_integer(quantity)
    return Err("cannot convert value to integer") if value is None else value


def _approximate(quantity: Quantity) -> float:
    try:
        return float(quantity.value) * float(f"1e{quantity.scale}") if quantity.scale else float(quantity.value)
    except OverflowError:
        return float("inf") if quantity.value > 0 else float("-inf")


OVERLOADS: dict[str, Callable[..., Value]] = {
    "string_to_quantity": of_text,
    "is_quantity_string": lambda text: type(of_text(text)) is Quantity,
    "quantity_sign": lambda one: (one.value > 0) - (one.value < 0),
    "quantity_is_greater_than": lambda one, other: compared(one, other) > 0,
    "quantity_is_less_than": lambda one, other: compared(one, other) < 0,
    "quantity_compare_to": compared,
    "quantity_get_float": _approximate,
    "quantity_get_int": _integer_or_error,
    "quantity_is_integer": lambda one: _as_integer(one) is not None,
    "quantity_add": lambda one, other: _sum(one, other, 1),
    "quantity_add_int": lambda one, other: _sum(one, Quantity(other, 0), 1),
    "quantity_sub": lambda one, other: _sum(one, other, -1),
    "quantity_sub_int": lambda one, other: _sum(one, Quantity(other, 0), -1),
}  # fmt: skip
