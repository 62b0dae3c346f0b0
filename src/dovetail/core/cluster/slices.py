# SPDX-License-Identifier: Apache-2.0
"""Which MIG instances of its node each placed pod has.

Rules: the instances are those that the node has; none is made for a pod. What was written down for a pod is taken again
if it is free, else what breaks into the fewest idle cards (`mig.static`). A node of which only the numbers of instances
are known, and no arrangement of them, is only counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from weakref import WeakValueDictionary

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig.geometry import Asked
from dovetail.core.devices.mig.static import Cards, cards_of
from dovetail.core.model import Instance

Used = tuple[int, ...]
"""The instances in use of each card, as bits in the order of the node's cards."""


@mypyc_attr(native_class=False)
class Opening:
    """`idle[slot]`: how many idle cards a pod that asks for certain instances would break into, as of the last refresh;
    another array when the table of the nodes grew."""

    __slots__ = ("__weakref__", "_amounts_seen", "_asked", "_slices", "idle")

    def __init__(self, slices: Slices, asked: Asked) -> None:
        self._slices = slices
        self._asked = asked
        self._amounts_seen = -1
        self.idle: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def refresh(self, nodes: Nodes) -> None:
        """Catch up with the cluster."""
        journal = nodes.amounts_journal
        if self._amounts_seen == journal.end:
            return
        start = len(journal.entries) - (journal.end - self._amounts_seen)
        if len(self.idle) != nodes.size:
            self.idle = np.zeros(nodes.size, dtype=np.int64)
            start = -1
        slots = journal.entries[start:] if start >= 0 else range(nodes.size)
        for slot in slots:
            self.idle[slot] = self._slices.opened(slot, self._asked)
        self._amounts_seen = journal.end


class Slices:
    """`used[slot]` of the nodes whose cards are known."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._cards: dict[int, Cards] = {}
        self._openings: WeakValueDictionary[Asked, Opening] = WeakValueDictionary()
        self.used: dict[int, Used] = {}

    def let_go(self, slot: int, placements: Iterable[Placement]) -> None:
        """Make every instance that the node has now free. These are the pods there, which have to hold theirs again."""
        record = self._nodes.records[slot]
        cards = record.mig if record is not None else ()
        self._cards.pop(slot, None)
        self.used.pop(slot, None)
        if cards:
            self._cards[slot] = cards_of(cards)
            self.used[slot] = (0,) * len(cards)
        for placement in placements:
            placement.slices = ()

    def cards(self, slot: int) -> Cards | None:
        """The cards in MIG mode of a node, where they are known."""
        return self._cards.get(slot)

    def hold(self, placement: Placement, shape: Shape) -> None:
        """Give a pod its instances; none where there are not so many free (the world may have decided so)."""
        slot = placement.slot
        used = self.used.get(slot)
        if used is None:
            return
        chosen = self._written(slot, placement, shape) if placement.pod.instances else None
        if chosen is None:
            chosen = self._cards[slot].choose(used, shape.slices)
        if chosen is not None:
            placement.slices = chosen
            self.used[slot] = tuple([held | more for held, more in zip(used, chosen, strict=True)])

    def honours(self, placement: Placement) -> bool:
        """Whether nothing is to be chosen for the pod: it gets no instances, or those that were written down for it."""
        shape = placement.shape
        if not shape.slices or placement.slot not in self.used:
            return True
        return bool(placement.pod.instances) and self._written(placement.slot, placement, shape) is not None

    def free(self, placement: Placement) -> None:
        if placement.slices:
            used = self.used[placement.slot]
            self.used[placement.slot] = tuple([held & ~own for held, own in zip(used, placement.slices, strict=True)])
            placement.slices = ()

    def hold_as_before(self, placement: Placement, own: Used) -> None:
        """Restore the instances of a placement that was released; no other has held them since."""
        slot = placement.slot
        placement.slices = own
        self.used[slot] = tuple([held | more for held, more in zip(self.used[slot], own, strict=True)])

    def hold_exactly(self, placements: Mapping[str, Placement], slices: Mapping[str, Used]) -> None:
        """Allocate these instances to the placed pods."""
        for placement in placements.values():
            self.free(placement)
        for uid, own in slices.items():
            slot = placements[uid].slot
            if own and slot in self.used:
                placements[uid].slices = own
                self.used[slot] = tuple(held | more for held, more in zip(self.used[slot], own, strict=True))

    def instances(self, placement: Placement) -> tuple[Instance, ...]:
        """What the pod has, by card and start."""
        cards = self._cards.get(placement.slot)
        if cards is None or not placement.slices:
            return ()
        return _named(cards, placement.slices)

    def opening(self, asked: Asked) -> Opening:
        """What is asked for by shapes of equal instances is worked out once for all of them."""
        opening = self._openings.get(asked)
        if opening is None:
            opening = self._openings[asked] = Opening(self, asked)
        return opening

    def opened(self, slot: int, asked: Asked) -> int:
        """How many idle cards a pod that asks for these instances would break into, where they are free."""
        cards = self._cards.get(slot)
        return _opened(cards, self.used[slot], asked) if cards is not None else 0

    def _written(self, slot: int, placement: Placement, shape: Shape) -> Used | None:
        """What was written down for the pod, if it is what it asks for and is free."""
        cards, written = self._cards[slot], placement.pod.instances
        chosen = dict.fromkeys(range(len(cards.cards)), 0)
        counts: dict[str, int] = {}
        for instance in written:
            for i, card in enumerate(cards.cards):
                profile = card.geometry.find(instance.profile) if card.gpu == instance.gpu else None
                if profile is not None and instance.start in card.geometry.profiles[profile].starts:
                    chosen[i] |= card.geometry.bit(profile, instance.start)
                    resource = card.geometry.profiles[profile].resource
                    counts[resource] = counts.get(resource, 0) + 1
        free = all(
            not own & ~(card.instances & ~held)
            for card, held, own in zip(cards.cards, self.used[slot], chosen.values(), strict=True)
        )
        return tuple(chosen.values()) if free and counts == dict(shape.slices) else None

    def check(self, held: dict[int, list[Used]]) -> list[str]:
        """Differences to what the pods on each slot have, in sentences."""
        wrong = []
        for slot, used in self.used.items():
            true = [0] * len(used)
            for own in held.get(slot, ()):
                for i, bits in enumerate(own):
                    if true[i] & bits:
                        wrong.append(f"an instance of card {i} of slot {slot} is allocated twice")
                    true[i] |= bits
            if tuple(true) != used:
                wrong.append(f"instances in use of slot {slot}: {used} but {true} is true")
        return wrong


@lru_cache(maxsize=65536)
def _opened(cards: Cards, used: Used, asked: Asked) -> int:
    chosen = cards.choose(used, asked) or ()
    return sum(1 for held, more in zip(used, chosen, strict=False) if more and not held)


@lru_cache(maxsize=65536)
def _named(cards: Cards, chosen: Used) -> tuple[Instance, ...]:
    return tuple(
        Instance(card.gpu, card.geometry.profiles[profile].name, start)
        for card, own in zip(cards.cards, chosen, strict=True)
        for profile, start in card.geometry.members(own)
    )
