# SPDX-License-Identifier: Apache-2.0
"""The work that an eviction loses beyond the evicted unit: its job waits again, and may evict others in turn.

Rules: a job may evict jobs of its own queue with a lower precedence, and jobs of other queues from which its queue may
then reclaim. It is assumed to evict the cheapest of these, by lost work per charge, until they are charged as much as
the unit is; its own queue first. If all of them are charged less, it waits, which loses nothing. So where both would
do, the low priority is evicted at once, and not the middle one, which would then evict the low one. And a queue that
holds more than its fair share is evicted from before a queue that would reclaim as much from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from dovetail.core.preemption.units import Unit
from dovetail.core.queues.reclaim import Reclaim
from dovetail.core.workloads.index import Precedence

_EXACT = 1024
"""Costs have 10 fractional bits of a ms."""
_MOST = 64
"""The most units of other queues that are examined for the second eviction."""


def _price(unit: Unit) -> tuple[int, int]:
    return unit.lost_milli_ms * _EXACT // max(1, unit.rate_milli), unit.number


def follow(units: Iterable[Unit]) -> None:
    """Set for each unit the work that its eviction would lose in its own queue."""
    queues: dict[str, dict[Precedence, list[Unit]]] = {}
    for unit in units:
        queues.setdefault(unit.queue, {}).setdefault(unit.precedence, []).append(unit)
    for levels in queues.values():
        lower: list[Unit] = []
        for precedence in sorted(levels) if len(levels) > 1 else ():
            if lower:
                lower.sort(key=_price)
                charged = list(accumulate(unit.rate_milli for unit in lower))
                lost = list(accumulate(unit.lost_milli_ms for unit in lower))
                for unit in levels[precedence]:
                    reach = bisect_left(charged, unit.rate_milli)
                    unit.follow_milli_ms = lost[reach] if unit.preempts and reach < len(lost) else 0
            lower += [unit for unit in levels[precedence] if not unit.elastic]


def follow_beyond(
    units: Sequence[Unit], queue: str, exceeds_due: Callable[[str], bool], amounts: Callable[[Unit], Mapping[str, int]],
    claim: Callable[[str, Mapping[str, int]], Reclaim | None],
) -> None:  # fmt: skip
    """Set the same for units that evict none of their own queue, but units of others. What is taken for a job of
    `queue` stays with `queue`. `exceeds_due` returns whether a queue holds more than its fair share: only from such
    queues, and only by others, is anything reclaimed. `amounts` returns what a unit counts, and `claim` what a queue
    may reclaim that has lost so much."""
    exceeding = {name: exceeds_due(name) for name in {unit.queue for unit in units} if name != queue}
    by_price = sorted([unit for unit in units if not unit.elastic and exceeding.get(unit.queue, False)], key=_price)
    if not by_price:
        return
    known: dict[tuple[str, tuple[tuple[str, int], ...], int], int] = {}
    for unit in units:
        if exceeding.get(unit.queue, True) or unit.follow_milli_ms or not unit.preempts:
            continue
        lost = amounts(unit)
        key = unit.queue, tuple(sorted(lost.items())), unit.rate_milli
        if key not in known:
            own = claim(unit.queue, lost)
            known[key] = _taken_back(unit, own, by_price, amounts) if own is not None else 0
        unit.follow_milli_ms = known[key]


def _taken_back(
    unit: Unit, claim: Reclaim, by_price: Sequence[Unit], amounts: Callable[[Unit], Mapping[str, int]]
) -> int:
    """The lost work of the units that the unit's job would evict under this claim; 0 where they are too few."""
    charged = lost = 0
    for other in by_price[:_MOST]:
        if claim.takes(other.queue, amounts(other), settled=other.settled, cheap=other.cheap):
            charged += other.rate_milli
            lost += other.lost_milli_ms + other.follow_milli_ms
            if charged >= unit.rate_milli:
                return lost
    return 0
