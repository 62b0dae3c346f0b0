# SPDX-License-Identifier: Apache-2.0
"""Node labels as columns: for each label key that is read, one integer per node slot.

A column is made at the first question about its key and kept up to date from then on, so a selector over 50,000 nodes
is one array comparison, and the domains of any topology key are the value ids of its column. All keys that no node has
ever had share one column: whoever makes up keys makes no columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.core.labels import holds
from dovetail.core.model import Requirement

ABSENT: Final = -1
Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64] | slice


class Column:
    """The values of one label key: `ids[slot]` is an index into `values`, or ABSENT."""

    __slots__ = ("_index", "ids", "values")

    def __init__(self, size: int, values: list[str | None]) -> None:
        self.values: list[str] = [value for value in dict.fromkeys(values) if value is not None]
        self._index: dict[str, int] = {value: i for i, value in enumerate(self.values)}
        self.ids: Ids = np.full(size, ABSENT, dtype=np.int32)
        if self.values:
            self.ids[: len(values)] = [ABSENT if value is None else self._index[value] for value in values]

    def set(self, slot: int, value: str | None) -> None:
        self.ids[slot] = ABSENT if value is None else self.intern(value)

    def intern(self, value: str) -> int:
        found = self._index.get(value)
        if found is None:
            found = self._index[value] = len(self.values)
            self.values.append(value)
        return found

    def id_of(self, value: str) -> int:
        """The id of a value, or one that no slot has."""
        return self._index.get(value, len(self.values))

    def resize(self, size: int) -> None:
        grown = np.full(size, ABSENT, dtype=np.int32)
        grown[: len(self.ids)] = self.ids
        self.ids = grown

    def mask(self, requirement: Requirement, index: Index) -> Mask:
        """Where the requirement holds, for the slots of `index`."""
        ids = self.ids[index]
        if requirement.operator == "In" and len(requirement.values) == 1:
            return np.asarray(ids == self.id_of(requirement.values[0]))
        # One answer per distinct value, and one more at the end, where ABSENT (-1) looks it up.
        if requirement.operator in ("In", "NotIn"):
            answers = np.full(len(self.values) + 1, requirement.operator == "NotIn", dtype=np.bool_)
            named = [number for value in requirement.values if (number := self._index.get(value)) is not None]
            answers[named] = requirement.operator == "In"
        else:
            answers = np.fromiter(
                [holds(requirement, value) for value in self.values] + [holds(requirement, None)], dtype=np.bool_
            )
        return np.asarray(answers[ids])


class Columns:
    """All columns of a node table. `labels[slot]` are the label sets that a new column is filled from."""

    __slots__ = ("_by_key", "_keys_seen", "_labels", "_nowhere", "_size")

    def __init__(self, size: int, labels: list[Mapping[str, str]]) -> None:
        self._size = size
        self._labels = labels
        self._by_key: dict[str, Column] = {}
        self._keys_seen: set[str] = set()
        self._nowhere = Column(size, [])

    def __getitem__(self, key: str) -> Column:
        column = self._by_key.get(key)
        if column is None:
            if key not in self._keys_seen:
                return self._nowhere
            column = self._by_key[key] = Column(self._size, [labels.get(key) for labels in self._labels])
        return column

    def update(self, slot: int) -> None:
        """The slot's label set was replaced."""
        labels = self._labels[slot]
        self._keys_seen.update(labels)
        for key, column in self._by_key.items():
            column.set(slot, labels.get(key))

    def resize(self, size: int) -> None:
        self._size = size
        self._nowhere.resize(size)
        for column in self._by_key.values():
            column.resize(size)
