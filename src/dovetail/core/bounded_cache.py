# SPDX-License-Identifier: Apache-2.0
"""Answers that are remembered by what they depend on, so many bytes of that in all: what users write has any length.

Rules: bytes are those of the arguments as `weight` counts them; an answer takes about as much again. There are two
generations: when the young one has half of the bytes it becomes the old one, and the one that was old is forgotten, so
what is asked for stays. What would take a sixteenth of all bytes is not remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
_NOT_KNOWN: Any = object()
_OBJECT, _ITEM = 56, 8
"""Bytes of an object without its content, and of an item of one."""


class Remembered(Generic[T]):
    """A function of hashable positional arguments that remembers."""

    __slots__ = ("_left", "_make", "_most", "_old", "_young")

    def __init__(self, kib: int, make: Callable[..., T]) -> None:
        self._make = make
        self._most = kib * 1024 // 2
        self._left = self._most
        self._young: dict[Any, T] = {}
        self._old: dict[Any, T] = {}

    def __call__(self, *key: Any) -> T:
        # Keys are long: each look-up hashes one.
        young: T = self._young.get(key, _NOT_KNOWN)
        if young is not _NOT_KNOWN:
            return young
        found: T = self._old.get(key, _NOT_KNOWN)
        if found is _NOT_KNOWN:
            found = self._make(*key)
        size = weight(key)
        if size > self._most // 8:
            return found
        if size > self._left:
            self._old, self._young, self._left = self._young, {}, self._most
        self._left -= size
        self._young[key] = found
        return found

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __bool__(self) -> bool:
        """It is a function, also while it remembers nothing."""
        return True


def remembered(kib: int) -> Callable[[Callable[..., T]], Remembered[T]]:
    """The function remembers so much."""

    def of(make: Callable[..., T]) -> Remembered[T]:
        return Remembered(kib, make)

    return of


def same(one: T) -> T:
    """One object for all equal ones, where it is remembered."""
    return one


def weight(value: Any) -> int:
    """About how many bytes of memory it takes."""
    kind = type(value)
    if kind is str or kind is bytes:
        return _OBJECT + len(value)
    if kind is tuple or kind is frozenset:
        found = _OBJECT
        for one in value:
            found += _ITEM + weight(one)
        return found
    if kind is int or kind is bool or value is None:
        return 0
    if isinstance(value, Struct):
        found = _OBJECT
        for field in value.__struct_fields__:
            found += _ITEM + weight(getattr(value, field))
        return found
    if isinstance(value, tuple):
        found = _OBJECT
        for one in value:
            found += _ITEM + weight(one)
        return found
    return _OBJECT
