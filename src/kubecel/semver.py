# SPDX-License-Identifier: Apache-2.0
"""Semantic versions, as drivers and firmware have.

Rules: "major.minor.patch" with pre-release and build parts. Build parts do not affect the order. Normalizing removes a
leading "v" and leading zeros, and pads to three numbers.
Source: semver.org, github.com/blang/semver/v4, k8s.io/apiserver/pkg/cel/library/semverlib.go (1.37).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from kubecel import types
from kubecel.values import (
    LONGEST_NUMBER,
    MAX_INT,
    MAX_UINT,
    NO_OVERLOAD,
    TOO_LARGE,
    Abort,
    Err,
    Value,
    register,
)

_NUMBER = r"(0|[1-9][0-9]*|)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([^+]*))?(?:\+(.*))?", re.DOTALL)
_PART = re.compile(r"[0-9A-Za-z-]+")
_DIGITS = frozenset("0123456789")

Part = tuple[bool, int, str]
"""A pre-release identifier: (whether it is alphanumeric, its number, its text). Numbers order before text."""


class Semver(Struct, frozen=True, eq=False):
    """A version. `order` is the sort key."""

    numbers: tuple[int, int, int]
    order: tuple[tuple[int, int, int], bool, tuple[Part, ...]]

    def equals(self, other: Value) -> bool | Err:
        return self.order == other.order if type(other) is Semver else NO_OVERLOAD


register(Semver, types.SEMVER)


@lru_cache(maxsize=4096)
def of_text(text: str) -> Semver | Err:
    if len(text) > LONGEST_NUMBER:
        raise Abort(TOO_LARGE)
    if not text:
        return Err("Version string empty")
    match = _VERSION.fullmatch(text)
    if match is None or not all(match.group(1, 2, 3)):
        pieces = text.split(".", 2)
        return Err("No Major.Minor.Patch elements found" if len(pieces) < 3 else f"Invalid version {text!r}")
    major, minor, patch = (int(match[i]) if len(match[i]) <= 20 else MAX_UINT + 1 for i in (1, 2, 3))
    if max(major, minor, patch) > MAX_UINT:
        return Err(f'strconv.ParseUint: parsing "{text}": value out of range')
    parts: list[Part] = []
    for one in match[4].split(".") if match[4] is not None else ():
        if not _PART.fullmatch(one):
            return Err(f'Invalid character(s) found in prerelease "{one}"' if one else "Prerelease is empty")
        if not _DIGITS.issuperset(one):
            parts.append((True, 0, one))
        elif (one != "0" and one[0] == "0") or len(one) > 20 or int(one) > MAX_UINT:
            return Err(f'Numeric PreRelease version must not contain leading zeroes "{one}"')
        else:
            parts.append((False, int(one), ""))
    for one in match[5].split(".") if match[5] is not None else ():
        if not _PART.fullmatch(one):
            return Err(f'Invalid character(s) found in build meta data "{one}"' if one else "Build meta data is empty")
    numbers = (major, minor, patch)
    return Semver(numbers, (numbers, not parts, tuple(parts)))


def normalized(text: str, normalize: bool = True) -> Semver | Err:
    """The version of a text. With `normalize` the text may lack parts or begin with "v"."""
    if not normalize:
        return of_text(text)
    parts = text.removeprefix("v").split(".", 2)
    for i, one in enumerate(parts):
        if len(one) > 1:
            stripped = one.lstrip("0")
            parts[i] = stripped if stripped[:1] and stripped[0] in _DIGITS else "0" + stripped
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        return Err("short version cannot contain PreRelease/Build meta data")
    return of_text(".".join(parts + ["0"] * (3 - len(parts))))


def _compared(one: Semver, other: Semver) -> int:
    return (one.order > other.order) - (one.order < other.order)


def _signed(number: int) -> int:
    # As Go converts a uint64 to an int64.
    return number if number <= MAX_INT else number - 2**64


OVERLOADS: dict[str, Callable[..., Value]] = {
    "string_to_semver": of_text,
    "string_bool_to_semver": normalized,
    "is_semver_string": lambda text: type(of_text(text)) is Semver,
    "is_semver_string_bool": lambda text, normalize: type(normalized(text, normalize)) is Semver,
    "semver_is_greater_than": lambda one, other: one.order > other.order,
    "semver_is_less_than": lambda one, other: one.order < other.order,
    "semver_compare_to": _compared,
    "semver_major": lambda one: _signed(one.numbers[0]),
    "semver_minor": lambda one: _signed(one.numbers[1]),
    "semver_patch": lambda one: _signed(one.numbers[2]),
}
