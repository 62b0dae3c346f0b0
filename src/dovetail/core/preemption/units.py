# SPDX-License-Identifier: Apache-2.0
"""Units of eviction, and how sets of them are compared. `victims` divides the running pods into units."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dovetail.core.queues.reclaim import LONG_SETTLED
from dovetail.core.workloads.index import Precedence

_PODS_BITS, _ELASTIC_BITS = 32, 128


class Unit(Struct, eq=False):
    """Pods that are evicted together. `slots` are their nodes, pod by pod, `started_ms` is the start of the last of
    them. `pool` is the pool that it counts for (`Victims.spare`), -1 for a whole workload. It contains the units with
    the numbers `covers`. `settled` and `cheap` are read by `queues.reclaim`. `rate_milli` is its charge, `preempts`
    whether its pods may evict others, `follow_milli_ms` the work that these would lose. `core` is for a unit that
    contains others: its amounts, by resource class, once as many of these as the pools allow are gone."""

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
        """Whether the rest of its gang runs on."""
        return self.pool >= 0

    @property
    def weight(self) -> int:
        """The weight by which sets of units are compared, added up: the lost work of whole workloads and of what their
        jobs evict in turn, then the lost work of elastic units, then the number of pods."""
        own = self.lost_milli_ms << (_ELASTIC_BITS if self.pool < 0 else _PODS_BITS)
        return (self.follow_milli_ms << _ELASTIC_BITS) + own + len(self.uids)

    @property
    def order(self) -> tuple[bool, int, int, int, int]:
        """Elastic units that lead to no further loss first, then the least lost work, then the youngest."""
        whole_milli_ms = self.follow_milli_ms if self.elastic else self.follow_milli_ms + self.lost_milli_ms
        return (
            bool(whole_milli_ms) or not self.elastic,
            whole_milli_ms,
            self.lost_milli_ms,
            -self.started_ms,
            self.number,
        )


def uncovered(units: Iterable[Unit]) -> list[Unit]:
    """The units that no other of them contains."""
    units = list(units)
    covered = {number for unit in units for number in unit.covers}
    return [unit for unit in units if unit.number not in covered]


def weight(units: Iterable[Unit]) -> int:
    """The weight of a set of units."""
    return sum(unit.weight for unit in uncovered(units))
