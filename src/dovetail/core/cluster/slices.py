# SPDX-License-Identifier: Apache-2.0
"""Which MIG instances of its node each placed pod has.

Rules: the instances are those that the node has; none is made for a pod. What was written down for a pod is taken again
if it is free, else what breaks into the fewest idle cards (`mig.static`). A node of which only the numbers of instances
are known, and no arrangement of them, is only counted. Nodes with equal cards that are equally used have one number:
they answer alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.mig.static import Cards, cards_of
from dovetail.core.model import Instance

Used = tuple[int, ...]
"""The instances in use of each card, as bits in the order of the node's cards."""
_REMEMBERED = 65_536


class Slices:
    """`used[slot]` of the nodes whose cards are known. The node table's `slice_numbers[slot]` says the same in one
    number, 0 where nothing is known."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._cards: dict[int, Cards] = {}
        self.used: dict[int, Used] = {}
        self._numbers: dict[tuple[Cards, Used], int] = {}
        self._states: dict[int, tuple[Cards, Used]] = {}
        self._opened: dict[tuple[int, int], int] = {}

    def open(self, slot: int) -> None:
        """Begin anew, with every instance of the node free."""
        record = self._nodes.records[slot]
        cards = record.mig if record is not None else ()
        self._cards.pop(slot, None)
        self.used.pop(slot, None)
        self._nodes.slice_numbers[slot] = 0
        if cards:
            self._cards[slot] = cards_of(cards)
            self._put(slot, (0,) * len(cards))

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
            self._put(slot, tuple([held | more for held, more in zip(used, chosen, strict=True)]))

    def free(self, placement: Placement) -> None:
        if placement.slices:
            used = self.used[placement.slot]
            left = tuple(held & ~own for held, own in zip(used, placement.slices, strict=True))
            self._put(placement.slot, left)
            placement.slices = ()

    def hold_exactly(self, placements: Mapping[str, Placement], slices: Mapping[str, Used]) -> None:
        """Give every placed pod the instances of its node that it is told to have."""
        for placement in placements.values():
            self.free(placement)
        for uid, own in slices.items():
            slot = placements[uid].slot
            if own and slot in self.used:
                placements[uid].slices = own
                self._put(slot, tuple(held | more for held, more in zip(self.used[slot], own, strict=True)))

    def instances(self, placement: Placement) -> tuple[Instance, ...]:
        """What the pod has, by card and start."""
        cards = self._cards.get(placement.slot)
        if cards is None or not placement.slices:
            return ()
        return _named(cards, placement.slices)

    def opened(self, index: Index, shape: Shape) -> NDArray[np.int64]:
        """How many idle cards a pod of the shape would break into on each slot, where its instances are free."""
        numbers = self._nodes.slice_numbers[index].tolist()
        return np.array([self._opens(number, shape) if number else 0 for number in numbers], dtype=np.int64)

    def _opens(self, number: int, shape: Shape) -> int:
        key = number, shape.id
        opened = self._opened.get(key)
        if opened is None:
            if len(self._opened) >= _REMEMBERED:
                self._opened.clear()
            cards, used = self._states[number]
            chosen = cards.choose(used, shape.slices) or ()
            opened = sum(1 for held, more in zip(used, chosen, strict=False) if more and not held)
            self._opened[key] = opened
        return opened

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

    def _put(self, slot: int, used: Used) -> None:
        self.used[slot] = used
        state = self._cards[slot], used
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._numbers) + 1
            self._states[number] = state
        self._nodes.slice_numbers[slot] = number

    def check(self, held: dict[int, list[Used]]) -> list[str]:
        """Differences to what the pods on each slot have, in sentences."""
        wrong = []
        for slot, used in self.used.items():
            true = [0] * len(used)
            for own in held.get(slot, ()):
                for i, bits in enumerate(own):
                    if true[i] & bits:
                        wrong.append(f"an instance of card {i} of slot {slot} is given out twice")
                    true[i] |= bits
            if tuple(true) != used:
                wrong.append(f"instances in use of slot {slot}: {used} but {true} is true")
        return wrong


@lru_cache(maxsize=65536)
def _named(cards: Cards, chosen: Used) -> tuple[Instance, ...]:
    return tuple(
        Instance(card.gpu, card.geometry.profiles[profile].name, start)
        for card, own in zip(cards.cards, chosen, strict=True)
        for profile, start in card.geometry.members(own)
    )
