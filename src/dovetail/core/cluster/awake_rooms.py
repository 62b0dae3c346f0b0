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
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


class AwakeRooms:
    """The extras of the placed instances by group, slot and GPU, in the units of `Nodes.gpu_whole`."""

    __slots__ = ("_extras",)

    def __init__(self) -> None:
        self._extras: dict[str, dict[int, dict[int, list[int]]]] = {}

    def room(self, group: str, slot: int, gpu: int) -> int:
        """The room that the group has on this GPU."""
        extras = self._extras.get(group, {}).get(slot, {}).get(gpu)
        return extras[-1] if extras else 0

    def add(self, group: str, slot: int, gpu: int, extra: int) -> int:
        """Count an instance. Returns by how much its group's room has grown."""
        extras = self._extras.setdefault(group, {}).setdefault(slot, {}).setdefault(gpu, [])
        before = extras[-1] if extras else 0
        insort(extras, extra)
        return extras[-1] - before

    def remove(self, group: str, slot: int, gpu: int, extra: int) -> int:
        """Count an instance no more that was counted. Returns by how much its group's room has shrunk."""
        by_slot = self._extras[group]
        by_gpu = by_slot[slot]
        extras = by_gpu[gpu]
        before = extras[-1]
        extras.remove(extra)
        if extras:
            return before - extras[-1]
        del by_gpu[gpu]
        if not by_gpu:
            del by_slot[slot]
        if not by_slot:
            del self._extras[group]
        return before

    def all_rooms(self) -> Iterator[tuple[str, int, int, int]]:
        """Every room there is: its group, slot and GPU, and how large it is."""
        for group, by_slot in self._extras.items():
            for slot, by_gpu in by_slot.items():
                for gpu, extras in by_gpu.items():
                    yield group, slot, gpu, extras[-1]

    def rooms(self, group: str, gpus: int, slots: range | Sequence[int]) -> NDArray[np.int64]:
        """The group's rooms by GPU, and by slot in the order of these."""
        found = np.zeros((gpus, len(slots)), dtype=np.int64)
        by_slot = self._extras.get(group, {})
        there: Iterable[tuple[int, int]] = enumerate(slots)
        if isinstance(slots, range) and len(by_slot) < len(slots):
            there = [(slots.index(slot), slot) for slot in by_slot if slot in slots]
        for column, slot in there:
            for gpu, extras in by_slot.get(slot, {}).items():
                found[gpu, column] = extras[-1]
        return found
