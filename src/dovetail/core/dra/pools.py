# SPDX-License-Identifier: Apache-2.0
"""The devices that a pool offers to one node.

Rules: of the slices that are for the node, those of the newest generation count. A pool that lacks slices is
incomplete; if a newer generation has begun on other nodes, the slices of the node are outdated, and there is no pool.
Duplicate names, and counters that are consumed but not defined, make a pool invalid. Nothing is allocated from
incomplete and invalid pools. The devices of a slice come in its order, slices in the order of their names, pools in the
order of their drivers and names, and pools with binding conditions last.
Source: dynamic-resource-allocation/structured, GatherPools (1.37).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from dovetail.core.dra.types import SHARED, CounterSet, Device, Slice
from dovetail.core.model import NodeTerm

PoolId = tuple[str, str]
"""Driver and name of the pool."""
Uses = tuple[tuple[tuple[str, str], int], ...]
"""What a device consumes of counters: ((counter set, counter), milli), sorted."""
Reaches = Callable[[tuple[NodeTerm, ...]], bool]
"""Returns whether node terms match the node."""


class PoolOffer(Struct, frozen=True, eq=False):
    """A device and its slice. `here` is false where the slice is for the node and the device itself is not: it is never
    allocated there, but selectors are tried on it. `node` and `node_terms` are where an allocation of it can be
    used."""

    device: Device
    here: bool
    node: str
    node_terms: tuple[NodeTerm, ...] | None


class PoolHere(Struct, frozen=True, eq=False):
    """`elsewhere` are devices of the pool that are for other nodes alone, and what they consume of its counters."""

    id: PoolId
    incomplete: bool = False
    invalid: str = ""
    offers: tuple[PoolOffer, ...] = ()
    counters: tuple[tuple[tuple[str, str], int], ...] = ()
    elsewhere: tuple[tuple[str, Uses], ...] = ()


def pools_on(name: str, reaches: Reaches, pools: Iterable[Sequence[Slice]]) -> tuple[PoolHere, ...]:
    """The offer of each of the pools to the node `name`, in the order in which devices are taken. A pool is the slices
    of one driver and pool name, of any generation."""
    here = [pool for slices in pools if (pool := _pool_on(name, reaches, slices)) is not None]
    return tuple(sorted(here, key=lambda pool: (_has_conditions(pool), pool.id)))


def _pool_on(name: str, reaches: Reaches, slices: Sequence[Slice]) -> PoolHere | None:
    ordered = sorted(slices, key=lambda s: s.name)
    near = [one for one in ordered if _slice_reaches(one, name, reaches)]
    if not near:
        return None
    generation = max(one.generation for one in near)
    near = [one for one in near if one.generation == generation]
    # A node's own slices come first, and the first has the number of slices.
    wanted = min(near, key=lambda s: s.node == SHARED).pool_slices
    whole, own = near, (near[0].driver, near[0].pool)
    if len(near) != wanted:
        if any(one.generation > generation for one in ordered):
            return None
        whole = [one for one in ordered if one.generation == generation]
        if len(whole) != wanted:
            return PoolHere(own, incomplete=True)
    sets = [counter_set for one in whole for counter_set in one.counter_sets]
    targeting = [one for one in near if not one.counter_sets]
    reaching = {one.name for one in near}
    others = [one for one in whole if not one.counter_sets and one.name not in reaching]
    invalid = _invalid(whole, sets, targeting, others)
    if invalid:
        return PoolHere(own, invalid=invalid)
    return PoolHere(
        id=own,
        offers=tuple(_offer(one, device, name, reaches) for one in targeting for device in one.devices),
        counters=tuple(((each.name, counter), milli) for each in sets for counter, milli in each.counters),
        elsewhere=tuple((d.name, uses_of(d)) for one in others for d in one.devices if d.consumes),
    )


def _invalid(whole: list[Slice], sets: list[CounterSet], targeting: list[Slice], others: list[Slice]) -> str:
    """The reason why nothing is allocated from the pool; "" where it is valid."""
    for one in whole:
        if one.problem is not None:
            return f"{one.name}: {one.problem}"
    if (twice := _repeated(d.name for one in targeting for d in one.devices)) is not None:
        return f"duplicate device name {twice}"
    if (twice := _repeated(each.name for each in sets)) is not None:
        return f"duplicate counter set name {twice}"
    known = {each.name: {counter for counter, _ in each.counters} for each in sets}
    for device in (d for one in (*targeting, *others) for d in one.devices):
        for use in device.consumes:
            if use.counter_set not in known:
                return f"counter set {use.counter_set} not found"
            for counter, _ in use.amounts:
                if counter not in known[use.counter_set]:
                    return f"counter {counter} not found in counter set {use.counter_set}"
    return ""


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


def uses_of(device: Device) -> Uses:
    """What the device consumes of each counter."""
    uses: Counter[tuple[str, str]] = Counter()
    for use in device.consumes:
        for counter, milli in use.amounts:
            uses[use.counter_set, counter] += milli
    return tuple(sorted(uses.items()))


def _offer(one: Slice, device: Device, name: str, reaches: Reaches) -> PoolOffer:
    if not one.per_device:
        return PoolOffer(device, True, one.node, one.node_terms)
    here = _node_matches(device.node, device.all_nodes, device.node_terms, name, reaches)
    return PoolOffer(device, here, device.node, device.node_terms)


def _slice_reaches(one: Slice, name: str, reaches: Reaches) -> bool:
    if one.per_device:
        return any(_node_matches(d.node, d.all_nodes, d.node_terms, name, reaches) for d in one.devices)
    return _node_matches(one.node, one.all_nodes, one.node_terms, name, reaches)


def _node_matches(node: str, all_nodes: bool, terms: tuple[NodeTerm, ...] | None, name: str, reaches: Reaches) -> bool:
    if node:
        return node == name
    return all_nodes or (terms is not None and reaches(terms))


def _has_conditions(pool: PoolHere) -> bool:
    return any(offer.device.conditions for offer in pool.offers)
