# SPDX-License-Identifier: Apache-2.0
"""Whatever concerns pods with certain labels, found by the labels of a pod.

A selector is kept by one requirement that a pod has to meet: a value that it must have, or a key. So a pod is held
against those that may pick it, however many there are; only selectors without a label that a pod must have are held
against all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from dovetail.core.model import LabelSelector, Requirement

T = TypeVar("T", bound=Hashable)
_MOST_VALUES = 64


class ByLabel(Generic[T]):
    def __init__(self) -> None:
        self._by_value: dict[tuple[str, str], dict[T, None]] = {}
        self._by_key: dict[str, dict[T, None]] = {}
        self._others: dict[T, None] = {}

    def put(self, thing: T, selector: LabelSelector | None) -> None:
        """The thing concerns pods that the selector matches; None matches nothing."""
        if selector is None:
            return
        best = _most_selective(selector)
        if best is None:
            self._others[thing] = None
        elif best.operator == "In" and len(best.values) <= _MOST_VALUES:
            for value in best.values:
                self._by_value.setdefault((best.key, value), {})[thing] = None
        else:
            self._by_key.setdefault(best.key, {})[thing] = None

    def drop(self, thing: T, selector: LabelSelector | None) -> None:
        """It was put with this selector."""
        if selector is None:
            return
        best = _most_selective(selector)
        if best is None:
            del self._others[thing]
        elif best.operator == "In" and len(best.values) <= _MOST_VALUES:
            for value in dict.fromkeys(best.values):
                _drop(self._by_value, (best.key, value), thing)
        else:
            _drop(self._by_key, best.key, thing)

    def about(self, labels: Iterable[tuple[str, str]]) -> Iterator[T]:
        """Everything that may concern a pod with these labels, each once."""
        for label in labels:
            yield from self._by_value.get(label, ())
            yield from self._by_key.get(label[0], ())
        yield from self._others


def _most_selective(selector: LabelSelector) -> Requirement | None:
    """The requirement that fewest pods meet, as far as it shows; None where there is no label that a pod must have."""
    must = [one for one in selector.requirements if one.operator not in ("NotIn", "DoesNotExist")]
    return min(must, key=lambda one: len(one.values) if one.operator == "In" else _MOST_VALUES + 1, default=None)


K = TypeVar("K", bound=Hashable)


def _drop(table: dict[K, dict[T, None]], key: K, thing: T) -> None:
    things = table[key]
    del things[thing]
    if not things:
        del table[key]
