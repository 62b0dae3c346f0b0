# SPDX-License-Identifier: Apache-2.0
"""The memory of shared GPUs that is kept for the instance that is awake.

Rules
- An inference engine that can sleep holds little memory of its GPUs while it sleeps, and more by its `extra` while it
  is awake. Each instance has its asleep memory for itself.
- Instances of one turn group on one GPU take turns to be awake: the GPU keeps one room for all of them, as large as
  the largest extra. So whichever of them is awake has its memory, and several have it together while their extras
  fit into that room.
- Instances of two groups take no turns with each other: each group has a room of its own.
- A room that all others leave is as large as the rest needs, and no room is kept for none.
"""

from __future__ import annotations

from bisect import insort

import numpy as np
from numpy.typing import NDArray


class AwakeRooms:
    """The extras of the placed instances by group, slot and GPU, in the units of `Nodes.gpu_whole`."""

    __slots__ = ("_extras",)

    def __init__(self) -> None:
        self._extras: dict[str, dict[tuple[int, int], list[int]]] = {}

    def room(self, group: str, slot: int, gpu: int) -> int:
        """The room that the group has on this GPU."""
        extras = self._extras.get(group, {}).get((slot, gpu))
        return extras[-1] if extras else 0

    def add(self, group: str, slot: int, gpu: int, extra: int) -> int:
        """Count an instance. Returns by how much its group's room has grown."""
        extras = self._extras.setdefault(group, {}).setdefault((slot, gpu), [])
        before = extras[-1] if extras else 0
        insort(extras, extra)
        return extras[-1] - before

    def remove(self, group: str, slot: int, gpu: int, extra: int) -> int:
        """Count an instance no more that was counted. Returns by how much its group's room has shrunk."""
        by_gpu = self._extras[group]
        extras = by_gpu[slot, gpu]
        before = extras[-1]
        extras.remove(extra)
        if extras:
            return before - extras[-1]
        del by_gpu[slot, gpu]
        if not by_gpu:
            del self._extras[group]
        return before

    def rooms(self, group: str, gpus: int, size: int) -> NDArray[np.int64]:
        """The group's rooms by GPU and slot."""
        found = np.zeros((gpus, size), dtype=np.int64)
        for (slot, gpu), extras in self._extras.get(group, {}).items():
            found[gpu, slot] = extras[-1]
        return found
