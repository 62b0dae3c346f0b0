# SPDX-License-Identifier: Apache-2.0
"""How fast the network above the nodes is, as the cluster's Fabric states it, and which parts of it are slow.

Rules
- A job whose narrowest level is L sends through the switches of L and of every narrower level: the slowest counts.
- A slow part is a node (level ""), or a domain of a level whose links to the rest are slow. It counts until its time;
  after that nothing is known of it, and it is used as before.
- Slow parts forbid nothing: they are used last by what needs several nodes (`placing.gangs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.fabric import Fabric
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.fabric import FABRIC_NAME, FabricSpeeds, SlowPart

_Slots = NDArray[np.int64]
_FOR_EVER_MS = 2**62


class LinkSpeeds:
    """`record` is that of the cluster's Fabric, None where there is none."""

    def __init__(self, nodes: Nodes, fabric: Fabric) -> None:
        self._nodes = nodes
        self._fabric = fabric
        self.record: FabricSpeeds | None = None
        self._fast: Sequence[_Slots] = ()
        """The last answer of `without_slow`, for the nodes as they were in `_fast_of`, until `_fast_until_ms`."""
        self._fast_of: tuple[FabricSpeeds, int, int] | None = None
        self._fast_until_ms = 0

    def put(self, record: FabricSpeeds) -> None:
        if record.name == FABRIC_NAME:
            self.record = record

    def remove(self, name: str) -> None:
        if name == FABRIC_NAME:
            self.record = None

    def most_mbps(self, level: str) -> int:
        """What a node can send, at most, inside a domain of the level ("": between all nodes); 0 where not known."""
        if self.record is None:
            return 0
        crossed = self._crossed(level)
        return min((one.mbps for one in self.record.levels if one.mbps and one.key in crossed), default=0)

    def hop_ns(self, level: str) -> int | None:
        """The latency of one hop inside a domain of the level; None where the Fabric has none."""
        levels = self.record.levels if self.record is not None else ()
        return next((one.latency_ns for one in levels if one.key == level and one.latency_ns), None)

    def slow(self, now_ms: int) -> Iterator[SlowPart]:
        """The parts that are slow at this time."""
        if self.record is not None:
            yield from (one for one in self.record.slow if one.until_ms > now_ms)

    def without_slow(self, now_ms: int) -> Sequence[_Slots]:
        """Slots to try before all: those outside of slow nodes and domains, then those that are no slow nodes. Empty
        where nothing is slow."""
        if self.record is None or not self.record.slow:
            return ()
        asked = self.record, self._fabric.version, self._nodes.used
        known = self._fast_of
        same = known is not None and known[0] is asked[0] and known[1:] == asked[1:]
        if not same or now_ms >= self._fast_until_ms:
            slow = list(self.slow(now_ms))
            self._fast, self._fast_of = self._outside(slow), asked
            self._fast_until_ms = min((one.until_ms for one in slow), default=_FOR_EVER_MS)
        return self._fast

    def _outside(self, slow: Sequence[SlowPart]) -> Sequence[_Slots]:
        every = np.ones(self._nodes.used, dtype=np.bool_)
        nodes, domains = every.copy(), every.copy()
        fabric = self._fabric
        known = set(fabric.levels).intersection([one.level for one in slow])
        numbers = {(key, fabric.name(key, i)): i for key in known for i in range(fabric.count(key))}
        for one in slow:
            if one.level:
                if (number := numbers.get((one.level, one.name))) is not None:
                    domains[fabric.slots(one.level, number)] = False
            elif (slot := self._nodes.slots.get(one.name)) is not None:
                nodes[slot] = False
        both = nodes & domains
        masks = [both] if not both.all() else []
        if not nodes.all() and not np.array_equal(both, nodes):
            masks.append(nodes)
        return [np.flatnonzero(mask) for mask in masks]

    def _crossed(self, level: str) -> tuple[str, ...]:
        levels = self._fabric.levels
        if not level:
            return (*levels, "")
        return levels[levels.index(level) :] if level in levels else (level,)
