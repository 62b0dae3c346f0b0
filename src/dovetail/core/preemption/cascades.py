# SPDX-License-Identifier: Apache-2.0
"""What an eviction costs beyond the unit that is evicted: its job waits again, and may evict others in turn.

Rules: a job evicts jobs of its own queue that are of a lower precedence, or jobs of other queues from which its queue
may then reclaim. It is taken to evict the cheapest of these, by lost work for what they are charged, until they are
charged as much as the unit is; its own queue first. Where all of them are not charged as much, it waits, which costs
nothing. So where either would do, the low priority is evicted at once, and not the middle one,
which would then evict the low one; and a queue that holds more than is due to it is evicted from before one that would
reclaim as much from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from dovetail.core.preemption.units import Unit
from dovetail.core.queues.reclaim import Reclaim
from dovetail.core.workloads.index import Precedence

_EXACT = 1024
"""Costs are compared to 2^-10 ms."""
_MOST = 64
"""Of how many units of other queues it is asked whether a job may evict them in turn."""


def _price(unit: Unit) -> tuple[int, int]:
    return unit.lost_milli_ms * _EXACT // max(1, unit.rate_milli), unit.number


def follow(units: Iterable[Unit]) -> None:
    """Note with each unit the lost work that its eviction leads to."""
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
    units: Sequence[Unit], queue: str, owes: Callable[[str], bool], amounts: Callable[[Unit], Mapping[str, int]],
    claim: Callable[[str, Mapping[str, int]], Reclaim | None],
) -> None:  # fmt: skip
    """Note the same of units that evict none of their own queue, but of others. What is taken for a job of `queue` its
    queue keeps. `owes` says whether a queue holds more than is due to it: only from these is taken back, and only by
    others. `amounts` are what a unit is counted with, `claim` is what a queue may take back that has lost so much."""
    owing = {name: owes(name) for name in {unit.queue for unit in units} if name != queue}
    by_price = sorted([unit for unit in units if not unit.elastic and owing.get(unit.queue, False)], key=_price)
    if not by_price:
        return
    known: dict[tuple[str, tuple[tuple[str, int], ...], int], int] = {}
    for unit in units:
        if owing.get(unit.queue, True) or unit.follow_milli_ms or not unit.preempts:
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
    """The work that those lose who give way to the unit's job under this claim, 0 where they are too few."""
    charged = lost = 0
    for other in by_price[:_MOST]:
        if claim.takes(other.queue, amounts(other), settled=other.settled, cheap=other.cheap):
            charged += other.rate_milli
            lost += other.lost_milli_ms + other.follow_milli_ms
            if charged >= unit.rate_milli:
                return lost
    return 0
