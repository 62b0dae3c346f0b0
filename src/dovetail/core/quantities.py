# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities as integers, rounded the way Kubernetes rounds them.

A quantity is a signed decimal with an SI suffix (n u m k M G T P E), a binary suffix (Ki Mi Gi Ti Pi Ei) or a decimal
exponent. `Quantity.Value()` and `MilliValue()` round away from zero: so do we. A quantity beyond 2^63 - 1 is that.
Source: k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, floor

from dovetail.core.bounded_cache import remembered

_SUFFIX: dict[str, Fraction] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9),
    "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30),
    "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_BINARY = [(suffix, int(_SUFFIX[suffix])) for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")]
# The length is bounded: int() refuses texts of thousands of digits with an error of its own.
_QUANTITY = re.compile(r"(?a)(?=.{1,64}\Z)([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
MAX_QUANTITY = 2**63 - 1
"""The largest that Kubernetes knows; what is larger counts as this."""
MAX_AMOUNT = 2**50
"""No pod and no node counts with more of a resource than this, in its unit (1 PiB, in bytes): what 8,000 pods hold of a
node, and what as many nodes have, stays within 64 bits, whatever their values."""


class QuantityError(ValueError):
    """The text is not a quantity; the message is what is wrong with it."""


@remembered(1024)
def parse(text: str) -> Fraction:
    """The exact value, as far as Kubernetes can hold it. Raises QuantityError."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is not a quantity such as 2, 500m, 1.5Gi or 1e3")
    number, exponent, suffix = match.groups()
    value = Fraction(number) * (Fraction(10) ** int(exponent[1:]) if exponent else _SUFFIX[suffix or ""])
    return max(min(value, Fraction(MAX_QUANTITY)), Fraction(-MAX_QUANTITY))


def units(text: str) -> int:
    """Whole units: bytes, counts. Raises QuantityError."""
    return _rounded(parse(text))


def milli(text: str) -> int:
    """Thousandths: milli-CPU. Raises QuantityError."""
    return max(min(_rounded(parse(text) * 1000), MAX_QUANTITY), -MAX_QUANTITY)


def amount(resource: str, text: str) -> int:
    """The integer for a resource in the core's unit: milli-CPU for `cpu`, whole units for everything else."""
    return milli(text) if resource == "cpu" else units(text)


def display(resource: str, value: int) -> str:
    """The short text a person expects: `1500` milli-CPU is `1500m`, 2147483648 bytes of memory are `2Gi`."""
    if resource == "cpu":
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for suffix, size in _BINARY:
            if abs(value) >= size:
                whole, tenth = divmod(abs(value) * 10 // size, 10)
                return f"{'-' if value < 0 else ''}{whole}{f'.{tenth}' if tenth else ''}{suffix}"
    return str(value)


def _rounded(value: Fraction) -> int:
    return ceil(value) if value > 0 else floor(value)
