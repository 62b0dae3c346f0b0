# SPDX-License-Identifier: Apache-2.0
"""Integers added up by key, as columns of numpy: of many rows, where an object for each would take most of the memory.

Rules
- Amounts of time fit: those of 100,000 GPUs for two years. Money does not, so it is never kept here.
- Rows that were added are merged once they outnumber the merged ones. So a row takes the same time however many there
  are, and there are never more than twice as many as keys, and those of the last addition.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = "NDArray[np.int64]"
Numbers: TypeAlias = "NDArray[np.uint64]"


class KeyedSums:
    """`width` integers for each key."""

    def __init__(self, width: int) -> None:
        self._keys: list[Integers] = [np.empty(0, np.int64)]
        self._values: list[Integers] = [np.empty((width, 0), np.int64)]

    def add(self, keys: Integers, values: Integers) -> None:
        """Add rows: a column of `values` for each key."""
        self._keys.append(keys)
        self._values.append(values)
        if sum(map(len, self._keys[1:])) > len(self._keys[0]):
            self.merged()

    def merged(self) -> tuple[Integers, Integers]:
        """The keys in their order, each once, and the sums of each."""
        if len(self._keys) > 1:
            keys, at = np.unique(np.concatenate(self._keys), return_inverse=True)
            values = np.concatenate(self._values, axis=1)
            sums = np.zeros((len(values), len(keys)), np.int64)
            for row, column in zip(sums, values, strict=True):
                np.add.at(row, at, column)
            self._keys, self._values = [keys], [sums]
        return self._keys[0], self._values[0]
