# SPDX-License-Identifier: Apache-2.0
"""The allocation of a pod's claims on a node, or the reason why there is none.

Rules: if any of the free devices will do, the best linked ones are looked up; else they are searched for (`search`).
If our search takes too long, the one in upstream's order may find an allocation sooner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.choose import PERMILLE, choices
from dovetail.core.dra.asks import DeviceView, RequestFault
from dovetail.core.dra.joins import free_pairs, in_pairs
from dovetail.core.dra.kinds import DeviceKind, bits
from dovetail.core.dra.search import DeviceSearch, SearchEnded, lost_pairs
from dovetail.core.dra.taken import Pick, Taken


class AllocationOutcome(NamedTuple):
    """`picks` are by claim. `spare` is the number of matching devices that are left; if it takes partitions alone, what
    their cards lose, in % of an idle card's worth. `close` is how close the GPUs are, in thousandths of the best that
    the node can provide. `after` is what is allocated then. Where the claims do not fit, `fault` is the error that
    ended the search, and `detail` is any other reason."""

    picks: tuple[tuple[Pick, ...], ...] | None
    after: Taken
    spare: int = 0
    close: int = PERMILLE
    fault: RequestFault | None = None
    detail: str = ""


def allocate(view: DeviceView, taken: Taken) -> AllocationOutcome:
    """The allocation of the view's claims beside `taken`."""
    if view.fault is not None:
        return AllocationOutcome(None, taken, fault=view.fault)
    if view.plain and not any(view.plain >> bit & 1 for bit, _ in taken.shares):
        return _plain(view, taken)
    try:
        search = _search(view, taken)
    except SearchEnded as ended:
        return AllocationOutcome(None, taken, fault=ended.fault)
    if search is None:
        return AllocationOutcome(None, taken, detail=_why_not(view, taken))
    return AllocationOutcome(
        tuple(map(tuple, search.picks)), search.after(), search.spare(), closeness(view.kind, search.gpus)
    )


def _search(view: DeviceView, taken: Taken) -> DeviceSearch | None:
    """The search that found an allocation; None where there is none. Raises SearchEnded."""
    first = DeviceSearch(view, taken, as_upstream=True) if view.ordered else None
    if first is not None and not first.run():
        return None
    ours = DeviceSearch(view, taken)
    try:
        # A request that cannot be served alone cannot be served beside others.
        alone = (DeviceSearch(view, taken, only=place) for place in ours.order if len(ours.order) > 1)
        return ours if all(one.run() for one in alone) and ours.run() else None
    except SearchEnded:
        if first is None:
            first = DeviceSearch(view, taken, as_upstream=True)
            return first if first.run() else None
        return first


def closeness(kind: DeviceKind, gpus: int) -> int:
    """The bandwidth between these GPUs of the layout, in thousandths of the best that as many GPUs can have."""
    if kind.layout is None or gpus.bit_count() < 2:
        return PERMILLE
    sets = sets_of(kind.layout)
    return PERMILLE * int(sets.mbps[gpus]) // max(sets.ideal_mbps[gpus.bit_count()], 1)


def _plain(view: DeviceView, taken: Taken) -> AllocationOutcome:
    """Any `count` of the free devices will do: allocate the best ones, in the order of the requests."""
    kind, free, count = view.kind, view.plain & ~taken.whole, view.count
    if free.bit_count() < count:
        return AllocationOutcome(
            None, taken, detail=f"{count} wanted, {free.bit_count()} of {view.plain.bit_count()} free"
        )
    chosen = 0
    if kind.layout is not None and free & ~kind.whole_gpus == 0:
        own = kind.gpus_of(bits(free))
        gpus = _joinable(view, taken, own) if view.joins else choices(kind.layout).choose(own, count)
        chosen = sum(1 << bit for bit in bits(free) if gpus >> kind.gpus[bit] & 1)
    rest = free & ~chosen
    while chosen.bit_count() < count:
        losing, beside = in_pairs([*free_pairs(view.joins, taken.whole | chosen)])
        best = rest & ~beside or rest & ~losing or rest
        chosen |= best & -best
        rest = free & ~chosen
    dealt = iter(bits(chosen))
    picks = tuple(
        tuple(Pick(one.request, next(dealt), None) for (one,) in requests for _ in range(one.count))
        for requests in view.claims
    )
    after = taken._replace(whole=taken.whole | chosen)
    return AllocationOutcome(picks, after, (free ^ chosen).bit_count(), closeness(kind, kind.gpus_of(bits(chosen))))


def _joinable(view: DeviceView, taken: Taken, free: int) -> int:
    """The best of the `free` GPUs of the layout, as the search orders sets."""
    assert view.kind.layout is not None
    sets = sets_of(view.kind.layout)
    masks = sets.masks[(sets.size == view.count) & (sets.masks & ~free == 0)]
    lost = lost_pairs(view, masks, taken.whole)
    order = np.lexsort((masks, -sets.worth[free ^ masks], -sets.quality[masks], lost, -sets.mbps[masks]))
    return int(masks[order[0]])


def _why_not(view: DeviceView, taken: Taken) -> str:
    """The first request of which no alternative has enough devices, with the numbers."""
    for requests in view.claims:
        for options in requests:
            free = [option.fitting & (~taken.whole if not option.request.admin_access else -1) for option in options]
            if all(
                mask.bit_count() < max(one.count, 1) or (one.every and mask != one.matching)
                for one, mask in zip(options, free, strict=True)
            ):
                one, left = options[-1], free[-1].bit_count()
                wanted = f"all {one.count}" if one.every else str(one.count)
                return f"request {one.request.name}: {wanted} wanted, {left} of {one.matching.bit_count()} free"
    if any(pool.invalid for pool in view.kind.pools):
        return "invalid resource pools were encountered"
    return "no choice of the free devices satisfies all requests"
