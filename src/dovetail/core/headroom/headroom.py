# SPDX-License-Identifier: Apache-2.0
"""Headroom of one workload: what is stated, and where it lies."""

from __future__ import annotations

from msgspec import Struct

InstanceSlots = tuple[int, ...]
"""The slots of the pods of one instance, in the order of its pods."""


class Headroom(Struct, frozen=True):
    """Headroom of the workload `key`, of `queue` and `priority`: its pods state `stated` instances and a promise of
    `within_ms`. `due` of them are covered by the guarantee of the queue, and `places` are those that there is room
    for: the difference is lacking. `lack` is why nothing can be kept at all, "" where that is not so."""

    key: str
    queue: str
    priority: int
    stated: int
    within_ms: int
    due: int = 0
    places: tuple[InstanceSlots, ...] = ()
    lack: str = ""

    @property
    def slots(self) -> frozenset[int]:
        """All slots on which it lies."""
        return frozenset([slot for place in self.places for slot in place])
