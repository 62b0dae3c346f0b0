# SPDX-License-Identifier: Apache-2.0
"""What nodes can allocate for claims: whether the devices that are left suffice, and how good they would be.

Rules: claims that want the same are one ask, and nodes of one kind with equal devices taken have one number (see
`offers`): an ask is answered once for each number. Answers are forgotten when a class or a kind of nodes changes.
Sources: kube-scheduler's plugin dynamicresources, dynamic-resource-allocation/structured (1.37).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Index, Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.offers import Offers, OfferStock
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.choose import PERMILLE
from dovetail.core.dra.allocate import AllocationOutcome, allocate
from dovetail.core.dra.asks import Ask, Asks, DeviceView, RequestFault
from dovetail.core.dra.pools import PoolId, PoolOffer
from dovetail.core.dra.taken import Taken
from dovetail.core.dra.types import ClaimSpec, Device

MOST_TIMES = 4096
"""Pods of one shape on one node are counted up to this number."""
_REMEMBERED = 65_536
_CLOSE_BITS = 16


class ClaimAnswer(Struct, frozen=True):
    """Whether the node can allocate what a shape wants. `spare` is what it leaves or, of partitions, loses
    (`allocate.Outcome`; less is better), `close` how close its GPUs would be, in thousandths. `error` is true where
    upstream would give up on the pod and not on the node alone."""

    fits: bool
    detail: str = ""
    spare: int = 0
    close: int = PERMILLE
    error: bool = False


class AllocationMemo(NamedTuple):
    """What was allocated for an ask, and what is left afterwards."""

    outcome: AllocationOutcome
    after: OfferStock
    answer: ClaimAnswer


class ClaimAnswers:
    """`asks` knows what claims want, `offers` which devices nodes have and what of them is taken."""

    def __init__(self, nodes: Nodes, asks: Asks, offers: Offers) -> None:
        self._nodes = nodes
        self._asks = asks
        self._offers = offers
        self._memos: dict[tuple[int, int], AllocationMemo] = {}
        self._known: dict[int, dict[int, int]] = {}
        """The results of `of_slots`, by ask and number: spare devices and closeness in one integer, -1 where nothing
        fits."""

    def own(self, slots: Iterable[int]) -> dict[int, list[tuple[str, Device]]]:
        """The devices that these nodes are offered alone, each by its driver, for those that are offered any."""
        self.catch_up()
        found = {}
        for slot in slots:
            place = self._offers.places.get(slot)
            if place is not None and (devices := [(pool[0], one.device) for pool, one in place.offers if one.node]):
                found[slot] = devices
        return found

    def view(self, slot: int, wants: tuple[ClaimSpec, ...]) -> tuple[DeviceView, Sequence[tuple[PoolId, PoolOffer]]]:
        """What of these claims the node could give if nothing were allocated, and the devices by their bits."""
        ask = self._ask(wants)
        place = self._offers.places.get(slot)
        return self._asks.view(ask, self._offers.stock(slot).kind), place.offers if place is not None else ()

    def of(self, slot: int, shape: Shape) -> ClaimAnswer:
        """Whether the node can allocate what the shape wants."""
        ask = self._ask(shape.wants)
        return self._answer(slot, ask, self._offers.stock(slot))

    def of_unused(self, slot: int, shape: Shape) -> ClaimAnswer:
        """Whether the node could allocate what the shape wants if nothing were allocated."""
        ask = self._ask(shape.wants)
        return self._answer(slot, ask, self._offers.numbered(self._offers.stock(slot).kind, Taken()))

    def _answer(self, slot: int, ask: Ask, stock: OfferStock) -> ClaimAnswer:
        memo = self._memo(ask, stock)
        fault = memo.outcome.fault
        if fault is None or fault.device < 0:
            return memo.answer
        pool, offer = self._offers.places[slot].offers[fault.device]
        detail = f"{fault.text}{pool[0]}/{pool[1]}/{offer.device.name}{fault.rest}"
        return replace(memo.answer, detail=detail)

    def of_slots(self, index: Index, shape: Shape) -> tuple[Mask, NDArray[np.int64], NDArray[np.int64]]:
        """(whether it fits, and where it does `spare`, `close`) for the slots of the index."""
        ask = self._ask(shape.wants)
        known = self._known.setdefault(ask.number, {})
        numbers = self._nodes.device_numbers[index].tolist()
        found = [known.get(number) for number in numbers]
        if None in found:
            slots = range(*index.indices(self._nodes.size)) if isinstance(index, slice) else index.tolist()
            for number, slot in dict(zip(numbers, slots, strict=True)).items():
                if number not in known:
                    answer = self._memo(ask, self._offers.stock(slot)).answer
                    known[number] = answer.spare << _CLOSE_BITS | answer.close if answer.fits else -1
            found = [known[number] for number in numbers]
        packed = np.array(found, dtype=np.int64)
        return packed >= 0, packed >> _CLOSE_BITS, packed & (1 << _CLOSE_BITS) - 1

    def times(self, slot: int, shape: Shape, most: int) -> int:
        """How many pods of the shape the node can allocate for, one after the other, at most `most`; more than
        MOST_TIMES are as many."""
        ask = self._ask(shape.wants)
        stock, times = self._offers.stock(slot), 0
        while times < min(most, MOST_TIMES):
            memo = self._memo(ask, stock)
            if memo.outcome.picks is None:
                break
            stock, times = memo.after, times + 1
        return times

    def outcome(self, slot: int, wants: tuple[ClaimSpec, ...]) -> AllocationMemo:
        """What the node would allocate for these claims."""
        return self._memo(self._ask(wants), self._offers.stock(slot))

    def _ask(self, specs: tuple[ClaimSpec, ...]) -> Ask:
        ask = self._asks.of(specs)
        self.catch_up()
        return ask

    def catch_up(self) -> None:
        """Take up what has changed in the offers."""
        if len(self._memos) >= _REMEMBERED:
            self.forget()
            self._offers.forget_numbers()
        if self._offers.catch_up():
            self.forget()

    def forget(self) -> None:
        """Forget all answers: what classes select has changed."""
        self._memos.clear()
        self._known.clear()

    def _memo(self, ask: Ask, stock: OfferStock) -> AllocationMemo:
        memo = self._memos.get((ask.number, stock.number))
        if memo is None:
            outcome = allocate(self._asks.view(ask, stock.kind), stock.taken)
            after = self._offers.numbered(stock.kind, outcome.after) if outcome.picks is not None else stock
            fault = outcome.fault or RequestFault(outcome.detail)
            answer = ClaimAnswer(
                outcome.picks is not None,
                fault.text + fault.rest,
                outcome.spare,
                outcome.close,
                outcome.fault is not None,
            )
            memo = self._memos[ask.number, stock.number] = AllocationMemo(outcome, after, answer)
        return memo
