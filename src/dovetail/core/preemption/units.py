# SPDX-License-Identifier: Apache-2.0
"""What can be taken away as a whole, and what sets of that are compared by. `victims` says what runs is cut into."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dovetail.core.queues.reclaim import LONG_SETTLED
from dovetail.core.workloads.index import Precedence

_PODS_BITS, _ELASTIC_BITS = 32, 128


class Unit(Struct, eq=False):
    """Pods that are evicted together. `slots` are their nodes, pod by pod, `started_ms` when the last of them started.
    `pool` is what it is to spare of (`Victims.spare`), -1 for whole workloads. It holds the units with the numbers
    `covers`. `settled` and `cheap` are what `queues.reclaim` asks for, `rate_milli` is what it is
    charged, `preempts` whether its pods may evict others, and `follow_milli_ms` the work that these would lose. `core`
    is what is left of one that holds others once as many of these as may are gone, by resource class."""

    number: int
    workload: str
    queue: str
    precedence: Precedence
    uids: tuple[str, ...]
    slots: tuple[int, ...]
    lost_milli_ms: int
    started_ms: int
    pool: int = -1
    covers: tuple[int, ...] = ()
    settled: int = LONG_SETTLED
    cheap: bool = False
    rate_milli: int = 0
    preempts: bool = True
    follow_milli_ms: int = 0
    core: dict[str, int] = {}

    @property
    def elastic(self) -> bool:
        """Whether the rest of its gang goes on."""
        return self.pool >= 0

    @property
    def weight(self) -> int:
        """What sets of units are compared by, added up: the lost work of whole workloads, with what their jobs evict in
        turn, then that of what is to spare, then the number of pods."""
        own = self.lost_milli_ms << (_ELASTIC_BITS if self.pool < 0 else _PODS_BITS)
        return (self.follow_milli_ms << _ELASTIC_BITS) + own + len(self.uids)

    @property
    def order(self) -> tuple[bool, int, int, int, int]:
        """What is to spare and evicts no others first, then the least lost work, then the youngest, then the first."""
        whole_milli_ms = self.follow_milli_ms if self.elastic else self.follow_milli_ms + self.lost_milli_ms
        return (
            bool(whole_milli_ms) or not self.elastic,
            whole_milli_ms,
            self.lost_milli_ms,
            -self.started_ms,
            self.number,
        )


def uncovered(units: Iterable[Unit]) -> list[Unit]:
    """The units without those that others of them hold."""
    units = list(units)
    covered = {number for unit in units for number in unit.covers}
    return [unit for unit in units if unit.number not in covered]


def weight(units: Iterable[Unit]) -> int:
    """What a set of units is compared by."""
    return sum(unit.weight for unit in uncovered(units))
