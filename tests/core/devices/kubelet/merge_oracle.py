# SPDX-License-Identifier: Apache-2.0
"""The Topology Manager as upstream writes it: every combination of hints, compared one by one."""

from itertools import product

from dovetail.core.devices.kubelet.hints import Hint, Hints, ids_of
from dovetail.core.devices.kubelet.inventory import Inventory


def merge(inventory: Inventory, hints: list[Hints]) -> tuple[Hint, bool]:
    everything = sum(1 << numa for numa in inventory.numa)
    single = inventory.topology_policy == "single-numa-node"
    lists: list[list[Hint]] = []
    for offered in hints:
        if not offered:
            lists.append([Hint(None, True)])
        for found in offered.values():
            lists.append([Hint(None, True)] if found is None else found or [Hint(None, False)])
    if single:
        lists = [
            [h for h in offered if h.preferred and (h.mask is None or h.mask.bit_count() == 1)] for offered in lists
        ]
    wanted = 0
    for offered in lists:
        masks = [hint.mask for hint in offered if hint.mask is not None]
        if masks:
            wanted = max(wanted, min(mask.bit_count() for mask in masks))
    best: Hint | None = None
    for combination in product(*lists):
        mask, preferred = everything, True
        first: int | None = None
        for hint in combination:
            if hint.mask is not None:
                first = hint.mask if first is None else first
                mask &= hint.mask
                preferred = preferred and hint.mask == first
            preferred = preferred and hint.preferred
        best = compare(inventory, single, wanted, best, Hint(mask, preferred))
    best = best or Hint(everything, False)
    if single and best.mask == everything:
        best = Hint(None, best.preferred)
    return best, inventory.topology_policy == "best-effort" or best.preferred


def compare(inventory: Inventory, single: bool, wanted: int, current: Hint | None, candidate: Hint) -> Hint | None:
    if not candidate.mask:
        return current
    if current is None:
        return candidate
    assert current.mask is not None
    if current.preferred != candidate.preferred:
        return current if current.preferred else candidate
    if current.preferred:
        return fitter(inventory, single, current, candidate)
    now, then = current.mask.bit_count(), candidate.mask.bit_count()
    if now > wanted:
        return fitter(inventory, single, current, candidate)
    if now == wanted:
        return fitter(inventory, single, current, candidate) if then == wanted else current
    if then > wanted:
        return current
    if then == wanted or then > now:
        return candidate
    if then < now:
        return current
    return fitter(inventory, single, current, candidate)


def fitter(inventory: Inventory, single: bool, current: Hint, candidate: Hint) -> Hint:
    one, other = current.mask, candidate.mask
    assert one is not None and other is not None
    if one == other:
        return current
    if one.bit_count() != other.bit_count():
        return current if one.bit_count() < other.bit_count() else candidate
    if inventory.prefer_closest_numa and not single:
        near, far = average(inventory, one), average(inventory, other)
        if near != far:
            return current if near < far else candidate
    return current if one < other else candidate


def average(inventory: Inventory, mask: int) -> float:
    rows = dict(zip(inventory.numa, inventory.distances, strict=True))
    ids = ids_of(mask)
    return sum(float(rows[i][j]) for i in ids for j in ids) / float(len(ids) ** 2)
