# SPDX-License-Identifier: Apache-2.0
"""What an eviction costs beyond the unit that is evicted: its job waits again, and may evict others in turn.

Rules: a job evicts those of its own queue that are of a lower precedence. It is taken to evict the cheapest of these,
by lost work for what they are charged, until they are charged as much as the unit is. Where all of them are not charged
as much, it waits, which costs nothing. So where either would do, the low priority is evicted at once, and not the
middle one, which would then evict the low one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from dovetail.core.roster import Precedence

if TYPE_CHECKING:
    from dovetail.core.placing.victims import Unit

_EXACT = 1024
"""Costs are compared to 2^-10 ms."""


def follow(units: Iterable[Unit]) -> None:
    """Note with each unit the lost work that its eviction leads to."""
    queues: dict[str, dict[Precedence, list[Unit]]] = {}
    for unit in units:
        queues.setdefault(unit.queue, {}).setdefault(unit.precedence, []).append(unit)
    for levels in queues.values():
        lower: list[Unit] = []
        for precedence in sorted(levels) if len(levels) > 1 else ():
            if lower:
                lower.sort(key=lambda unit: (unit.lost_milli_ms * _EXACT // max(1, unit.rate_milli), unit.number))
                charged = list(accumulate(unit.rate_milli for unit in lower))
                lost = list(accumulate(unit.lost_milli_ms for unit in lower))
                for unit in levels[precedence]:
                    reach = bisect_left(charged, unit.rate_milli)
                    unit.follow_milli_ms = lost[reach] if unit.preempts and reach < len(lost) else 0
            lower += [unit for unit in levels[precedence] if not unit.elastic]
