# SPDX-License-Identifier: Apache-2.0
"""The devices that ResourceSlices offer on each node, and which of them are taken.

Rules: nodes of one kind that have the same devices taken have one number, so that equal questions are answered once.
An event only marks slots; numbers are brought up to date when they are read (`catch_up`).
Source: kube-scheduler's plugin dynamicresources, dynamic-resource-allocation/structured (1.37).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.selection import matches_terms
from dovetail.core.dra.allocations import Pool, Pools, enter
from dovetail.core.dra.capacity import Draw
from dovetail.core.dra.kinds import DeviceKind, Kinds
from dovetail.core.dra.pools import PoolHere, PoolId, PoolOffer, pools_on
from dovetail.core.dra.taken import Taken
from dovetail.core.dra.types import Allocation, Device, Slice
from dovetail.core.model import NodeTerm


class OfferStock(NamedTuple):
    """What a node has, and what of it is taken. Equivalent stocks have one number, 0 where there is nothing."""

    kind: DeviceKind
    taken: Taken
    number: int


class OfferPlace(Struct):
    """What is offered on a slot's node. `offers[bit]` are its devices."""

    name: str
    pools: tuple[PoolHere, ...]
    offers: list[tuple[PoolId, PoolOffer]]
    bits: dict[tuple[PoolId, str], int]
    stock: OfferStock


class Offers:
    """`slices` by name. The node table's `device_numbers[slot]` is the number of what is free."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.slices: dict[str, Slice] = {}
        self.kinds = Kinds()
        self.places: dict[int, OfferPlace] = {}
        self._pools: Pools = {}
        self._on_node: dict[str, dict[PoolId, int]] = {}
        """How many slices of each pool are a node's own."""
        self._wide: dict[PoolId, int] = {}
        """How many slices of each pool are not one node's."""
        self._unbuilt: dict[int, None] = {}
        self._unsettled: dict[int, None] = {}
        self._version = self.kinds.version
        self._numbers: dict[tuple[int, Taken], int] = {}
        self._numbered = 0
        self._nothing = OfferStock(self.kinds.of((), None), Taken(), 0)

    @property
    def wide(self) -> bool:
        """Whether there are devices that are not one node's."""
        return bool(self._wide)

    def put(self, one: Slice) -> bool:
        """Insert or replace."""
        if self.slices.get(one.name) == one:
            return False
        self.remove(one.name)
        self.slices[one.name] = one
        pool = one.driver, one.pool
        self._pools.setdefault(pool, Pool()).slices[one.name] = one
        where = self._where(one)
        where[pool] = where.get(pool, 0) + 1
        self._rebuild(one)
        return True

    def remove(self, name: str) -> bool:
        one = self.slices.pop(name, None)
        if one is None:
            return False
        pool, where = (one.driver, one.pool), self._where(one)
        del self._pools[pool].slices[name]
        where[pool] -= 1
        if not where[pool]:
            del where[pool]
        if one.node and not where:
            del self._on_node[one.node]
        self._rebuild(one)
        return True

    def has(self, node: str, driver: str) -> bool:
        """Whether the node has slices of its own by this driver."""
        return any(pool[0] == driver for pool in self._on_node.get(node, ()))

    def _where(self, one: Slice) -> dict[PoolId, int]:
        return self._on_node.setdefault(one.node, {}) if one.node else self._wide

    def _rebuild(self, one: Slice) -> None:
        """The slots that such a slice reaches, or reached, are to be worked out anew; so are those that know its pool,
        which may have become complete, or outdated."""
        pool = one.driver, one.pool
        if pool in self._wide or not one.node:
            slots = [slot for slot, record in enumerate(self._nodes.records) if record is not None]
        else:
            names = dict.fromkeys((one.node, *(each.node for each in self._pools[pool].slices.values())))
            slots = [self._nodes.slots[name] for name in names if name in self._nodes.slots]
        self._unbuilt.update(dict.fromkeys(slots))
        self._nodes.amounts_journal.extend(slots)
        self._nodes.devices_journal.extend(slots)

    def node_changed(self, slot: int) -> bool:
        """The node's record, labels or layout changed, or it is gone, or another one has the slot."""
        self._unbuilt[slot] = None
        self._nodes.amounts_journal.add(slot)
        return bool(self._wide) or self._nodes.names[slot] in self._on_node

    def stock(self, slot: int) -> OfferStock:
        place = self.places.get(slot)
        return place.stock if place is not None else self._nothing

    def device(self, pool: PoolId, name: str) -> Device | None:
        """The device of that name, as the newest slice of its pool has it."""
        known = self._pools.get(pool)
        slices = sorted(known.slices.values(), key=lambda one: -one.generation) if known is not None else ()
        return next((device for one in slices for device in one.devices if device.name == name), None)

    def settle(self, slot: int, stock: OfferStock) -> None:
        """What is held there now is known: it need not be counted."""
        self.places[slot].stock = stock
        self._nodes.device_numbers[slot] = stock.number

    def enter(self, allocation: Allocation | None, sign: int, settled: int = -1) -> None:
        """Enter an allocation into the books, or take it out. Of the slot `settled` the caller sees to the number."""
        for pool in enter(self._pools, allocation, sign):
            for slot in pool.slots:
                if slot != settled:
                    self._unsettled[slot] = None
                    self._nodes.amounts_journal.add(slot)

    def catch_up(self) -> bool:
        """Bring places and numbers up to date. True where kinds are new, and answers about them of no use any more."""
        renewed = self._version != self.kinds.version
        if renewed:
            self._version = self.kinds.version
            self.forget_numbers()
            self._nothing = OfferStock(self.kinds.of((), None), Taken(), 0)
            for slot, place in self.places.items():
                place.stock = self._new_stock(slot, place.pools)
                self._unsettled[slot] = None
        while self._unbuilt:
            slot = self._unbuilt.popitem()[0]
            self._build(slot)
            self._unsettled[slot] = None
        while self._unsettled:
            self._settle(self._unsettled.popitem()[0])
        return renewed

    def forget_numbers(self) -> None:
        """Give new numbers from here on: whoever knows answers by number forgets them too."""
        self._numbers.clear()

    def _build(self, slot: int) -> None:
        place = self.places.pop(slot, None)
        for pool in place.pools if place is not None else ():
            self._pools[pool.id].slots.discard(slot)
        nodes, record = self._nodes, self._nodes.records[slot]
        if record is None:
            return

        def reaches(terms: tuple[NodeTerm, ...]) -> bool:
            return bool(matches_terms(nodes, terms, slice(slot, slot + 1))[0])

        known = dict.fromkeys((*self._on_node.get(record.name, ()), *self._wide))
        pools = pools_on(record.name, reaches, [tuple(self._pools[pool].slices.values()) for pool in known])
        if not pools:
            return
        offers = [(pool.id, offer) for pool in pools for offer in pool.offers]
        bits = {(pool, offer.device.name): bit for bit, (pool, offer) in enumerate(offers)}
        self.places[slot] = OfferPlace(record.name, pools, offers, bits, self._new_stock(slot, pools))
        for pool in pools:
            self._pools[pool.id].slots.add(slot)

    def _new_stock(self, slot: int, pools: tuple[PoolHere, ...]) -> OfferStock:
        """A state that is yet to be settled."""
        record = self._nodes.records[slot]
        return OfferStock(self.kinds.of(pools, record.layout if record is not None else None), Taken(), 0)

    def _settle(self, slot: int) -> None:
        place = self.places.get(slot)
        if place is None:
            self._nodes.device_numbers[slot] = 0
            return
        place.stock = self.numbered(place.stock.kind, self._taken(place))
        self._nodes.device_numbers[slot] = place.stock.number

    def _taken(self, place: OfferPlace) -> Taken:
        whole = 0
        shares: dict[int, Draw] = {}
        foreign: list[int] = []
        for number, pool in enumerate(place.pools):
            taken = self._pools[pool.id].taken
            for name, use in taken.items():
                bit = place.bits.get((pool.id, name))
                if bit is not None and use.whole:
                    whole |= 1 << bit
                if bit is not None and use.shares:
                    shares[bit] = use.drawn(pool.id[0], place.offers[bit][1].device)
            first = place.stock.kind.pools[number].counters.start
            index = {counter: first + i for i, (counter, _) in enumerate(pool.counters)} if pool.elsewhere else {}
            for name, uses in pool.elsewhere:
                if name in taken:
                    foreign = foreign or [0] * len(place.stock.kind.counters)
                    for counter, milli in uses:
                        foreign[index[counter]] += milli
        return Taken(whole, tuple(sorted(shares.items())), tuple(foreign))

    def numbered(self, kind: DeviceKind, taken: Taken) -> OfferStock:
        number = self._numbers.get((kind.number, taken))
        if number is None:
            self._numbered += 1
            number = self._numbers[kind.number, taken] = self._numbered
        return OfferStock(kind, taken, number)

    def differences(self, true: Pools) -> list[str]:
        """To what is really held; each in a sentence."""
        wrong = []
        for pool in self._pools.keys() | true.keys():
            kept, counted = (books.get(pool, Pool()).holders() for books in (self._pools, true))
            if kept != counted:
                wrong.append(f"devices of pool {pool}: {kept}, but {counted} is true")
        for slot, place in self.places.items():
            taken, number = self._taken(place), self._nodes.device_numbers[slot]
            if (place.stock.taken, place.stock.number) != (taken, number):
                wrong.append(f"devices of slot {slot}: {place.stock} with number {number}, but {taken} is true")
        return wrong
