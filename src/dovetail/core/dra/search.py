# SPDX-License-Identifier: Apache-2.0
"""The search for devices of a node for the claims of a pod: for all claims, or for none.

Rules: an allocation is found exactly where upstream's search finds one; which one is our choice. Requests are served in
their order, and alternatives in theirs. Of several GPUs the best linked ones are taken, with those that the pod already
has; then the devices that leave most for later: those by which the fewest pairs are lost that claims could join by
their PCIe root (`joins`); the partition by which its card loses least (`partitions`; where that is not known, the one
that costs the fewest of the largest ones), or a share of the shared device that has least left.
Devices with binding conditions come last. The search is exact up to MOST_STEPS tried devices; upstream stops after a
time.

Where selectors fail on some devices, or constraints apply to a request for all devices, upstream's result depends on
the order in which it tries them: then its order decides whether there is an allocation.
Source: dynamic-resource-allocation/structured, allocateOne and allocateDevice (1.37).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.dra.asks import MOST_RESULTS, DeviceView, RequestFault, RequestOption
from dovetail.core.dra.capacity import Draw
from dovetail.core.dra.joins import free_pairs, in_pairs, lost_by
from dovetail.core.dra.kinds import bits
from dovetail.core.dra.taken import Pick, Taken, added, counters_left
from dovetail.core.dra.types import DeviceRequest

MOST_STEPS = 50_000
_PERCENT = 100


class SearchEnded(Exception):
    """The search ended for this reason. Whether there is an allocation is not known, or does not matter."""

    def __init__(self, fault: RequestFault) -> None:
        self.fault = fault


_TOO_LONG = RequestFault(f"the search for devices was stopped after {MOST_STEPS} tries; an allocation may exist")


class _Undo(NamedTuple):
    claim: int
    bit: int
    met: list[int | None]
    share: Draw | None
    counters: bool
    own: int


class DeviceSearch:
    """One search, for all requests or for `only` one (the indices of claim and request). `as_upstream` tries devices in
    their order, and ends (`SearchEnded`) where upstream would."""

    def __init__(
        self, view: DeviceView, taken: Taken, as_upstream: bool = False, only: tuple[int, int] | None = None
    ) -> None:
        kind = view.kind
        self.view = view
        self.kind = kind
        self.taken = taken
        self.as_upstream = as_upstream
        self.steps = 0
        self.picks: list[list[Pick]] = [[] for _ in view.claims]
        self.gpus = 0
        self.whole = 0
        """The devices that the pod takes whole, including those by admin access, which others may hold as well."""
        self.own = [0 for _ in view.claims]
        self.shares = dict(taken.shares)
        self.met: list[list[int | None]] = [[None] * len(rules) for rules in view.rules]
        self.left = counters_left(kind, taken)
        overdrawn = [any(self.left[i] < 0 for i in pool.counters) for pool in kind.pools]
        self.blocked = sum(1 << bit for bit in bits(kind.partitioned) if overdrawn[kind.pool_of[bit]])
        every = [(claim, request) for claim, requests in enumerate(view.claims) for request in range(len(requests))]
        self.order = every if only is None else [only]
        self.dead: set[object] = set()
        """The states from which the remaining requests could not be served."""

    def run(self) -> bool:
        """Search. Returns whether there is an allocation, which is then in `picks`."""
        return self._serve(0)

    def _serve(self, place: int) -> bool:
        if place == len(self.order):
            return True
        claim, request = self.order[place]
        held = (
            place,
            tuple(self.own),
            tuple(sorted(self.shares.items())),
            tuple(self.met[claim]),
            len(self.picks[claim]),
        )
        if held in self.dead:
            return False
        for option in self.view.claims[claim][request]:
            if option.count and option.count <= MOST_RESULTS - len(self.picks[claim]):
                for _ in self._sets(claim, option):
                    if self._serve(place + 1):
                        return True
        self.dead.add(held)
        return False

    def _sets(self, claim: int, option: RequestOption) -> Iterator[None]:
        """Take one set of devices after another; each is returned before the next one is taken."""
        if option.every:
            yield from self._exactly(claim, option, list(bits(option.matching)))
        elif self.as_upstream:
            faults = sum(1 << bit for bit in option.faults)
            yield from self._some(claim, option, option.count, list(bits(option.matching | faults)))
        else:
            able = [bit for bit in bits(option.fitting) if self._is_able(option, bit)]
            if len(able) >= option.count:
                if self.kind.layout is not None and all(self._is_gpu(bit) for bit in able):
                    yield from self._linked(claim, option, able)
                else:
                    yield from self._some(claim, option, option.count, self._preferred(able))

    def _exactly(self, claim: int, option: RequestOption, devices: list[int]) -> Iterator[None]:
        undos = []
        for bit in devices:
            undo = self._take(claim, option, bit)
            if undo is None:
                break
            undos.append(undo)
        else:
            yield
        for undo in reversed(undos):
            self._give_back(undo)

    def _some(self, claim: int, option: RequestOption, count: int, devices: list[int]) -> Iterator[None]:
        """Take sets of `count` of these devices, in their order."""
        tried = set()
        for i, bit in enumerate(devices):
            if len(devices) - i < count and not self.as_upstream:
                return
            equivalence = self._equivalence(bit)
            if equivalence in tried:
                continue
            undo = self._take(claim, option, bit)
            if undo is not None:
                if count == 1:
                    yield
                else:
                    rest = devices[i + 1 :]
                    yield from self._some(claim, option, count - 1, rest if self.as_upstream else self._preferred(rest))
                self._give_back(undo)
            tried.add(equivalence)

    def _linked(self, claim: int, option: RequestOption, devices: list[int]) -> Iterator[None]:
        """Take sets of whole GPUs, the best ones first."""
        assert self.kind.layout is not None
        sets = sets_of(self.kind.layout)
        device = {self.kind.gpus[bit]: bit for bit in devices}
        free = sum(1 << gpu for gpu in device)
        masks = sets.masks[(sets.size == option.count) & (sets.masks & ~free == 0)]
        conditional = np.zeros_like(masks)
        for gpu, bit in device.items():
            if self.kind.conditional >> bit & 1:
                conditional += masks >> gpu & 1
        lost = lost_pairs(self.view, masks, self.taken.whole | self.whole)
        mbps, quality = sets.mbps[masks | self.gpus], sets.quality[masks | self.gpus]
        order = np.lexsort((masks, -sets.worth[free ^ masks], -quality, lost, -mbps, conditional))
        tried = set()
        for mask in masks[order].tolist():
            chosen = [device[gpu] for gpu in bits(mask)]
            equivalence = tuple(sorted(self._equivalence(bit) for bit in chosen))
            if equivalence not in tried:
                yield from self._exactly(claim, option, chosen)
                tried.add(equivalence)

    def _equivalence(self, bit: int) -> tuple[int, ...]:
        """A key that is equal for devices that are equivalent for all requests that remain."""
        own = [mask >> bit & 1 for mask in self.own]
        held = self.taken.whole >> bit & 1
        return (self.view.equivalence[bit], held, self.whole >> bit & 1, *own, *self.shares.get(bit, (-1,)))

    def _is_gpu(self, bit: int) -> bool:
        return bool((self.kind.whole_gpus & ~self.kind.shareable) >> bit & 1)

    def _take(self, claim: int, option: RequestOption, bit: int) -> _Undo | None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise SearchEnded(_TOO_LONG)
        kind, request = self.kind, option.request
        if not self._is_free(claim, request, bit):
            return None
        if self.as_upstream and not option.every and (fault := option.faults.get(bit)) is not None:
            raise SearchEnded(fault)
        shareable = bool(kind.shareable >> bit & 1)
        counters = bool(kind.uses[bit]) and not self._is_shared(bit)
        if (counters and not self._has_counters(bit)) or not option.fitting >> bit & 1:
            return None
        met = self._meet(claim, option, bit)
        if met is None:
            if self.as_upstream and option.every:
                where = f"request {request.name}: cannot add device "
                raise SearchEnded(RequestFault(where, bit, " because a claim constraint would not be satisfied"))
            return None
        if not self._has_capacity(option, bit):
            return None
        draw, before = option.draws[bit], self.shares.get(bit)
        undo = _Undo(claim, bit, self.met[claim], before, counters, self.own[claim])
        self.met[claim] = met
        if shareable:
            self.shares[bit] = added(before, draw)
        else:
            self.own[claim] |= 1 << bit
            self.whole = self._held_whole()
        if counters:
            for counter, milli in kind.uses[bit]:
                self.left[counter] -= milli
        self.picks[claim].append(Pick(request, bit, draw if shareable else None))
        self._note_gpus()
        return undo

    def _give_back(self, undo: _Undo) -> None:
        self.picks[undo.claim].pop()
        if undo.counters:
            for counter, milli in self.kind.uses[undo.bit]:
                self.left[counter] += milli
        self.own[undo.claim] = undo.own
        self.whole = self._held_whole()
        if undo.share is None:
            self.shares.pop(undo.bit, None)
        else:
            self.shares[undo.bit] = undo.share
        self.met[undo.claim] = undo.met
        self._note_gpus()

    def _held_whole(self) -> int:
        whole = 0
        for own in self.own:
            whole |= own
        return whole

    def _note_gpus(self) -> None:
        self.gpus = self.kind.gpus_of(pick.bit for picks in self.picks for pick in picks)

    def _is_free(self, claim: int, request: DeviceRequest, bit: int) -> bool:
        """Admin access shares devices with all but its own claim; the pod's other claims do not get them."""
        if request.admin_access:
            return not self.own[claim] >> bit & 1
        return not (self.taken.whole | self.whole) >> bit & 1

    def _is_shared(self, bit: int) -> bool:
        """Whether a share of it is allocated: its counters are then consumed already."""
        return bool(self.kind.shareable >> bit & 1) and bit in self.shares

    def _has_counters(self, bit: int) -> bool:
        return not self.blocked >> bit & 1 and all(self.left[i] >= milli for i, milli in self.kind.uses[bit])

    def _has_capacity(self, option: RequestOption, bit: int) -> bool:
        before = self.shares.get(bit)
        if before is None:
            return True
        capacity = self.kind.profiles[bit].device.capacity
        return all(
            held + drawn <= one.milli for held, drawn, (_, one) in zip(before, option.draws[bit], capacity, strict=True)
        )

    def _meet(self, claim: int, option: RequestOption, bit: int) -> list[int | None] | None:
        """The state of the constraints once the device is added; None where one is violated."""
        met = self.met[claim]
        if option.rules:
            met = met.copy()
        for number in option.rules:
            rule, before = self.view.rules[claim][number], met[number]
            value = self.kind.compared(rule.attribute)[bit]
            if value is None:
                return None
            if before is None:
                met[number] = value
            elif rule.distinct:
                if before & value:
                    return None
                met[number] = before | value
            else:
                met[number] = before & value
                if not before & value:
                    return None
        return met

    def _is_able(self, option: RequestOption, bit: int) -> bool:
        """Whether another request could get the device now."""
        if not option.request.admin_access and (self.taken.whole | self.whole) >> bit & 1:
            return False
        return (self._is_shared(bit) or self._has_counters(bit)) and self._has_capacity(option, bit)

    def _preferred(self, devices: list[int]) -> list[int]:
        """The devices in the order in which they are best allocated."""
        kind = self.kind
        fitting, sizes = 0, list[int]()
        if not kind.cards:
            parts = bits(kind.partitioned & ~(self.taken.whole | self.whole))
            fitting = sum(1 << bit for bit in parts if self._has_counters(bit))
            sizes = sorted({kind.sizes[bit] for bit in bits(kind.partitioned)}, reverse=True)

        losing, beside = in_pairs([*free_pairs(self.view.joins, self.taken.whole | self.whole)])

        def key(bit: int) -> tuple[int, int, tuple[int, ...], int, int, int]:
            left = 0
            if kind.shareable >> bit & 1:
                held = self.shares.get(bit, ())
                left = sum(one.milli for _, one in kind.profiles[bit].device.capacity) - sum(held)
            losses = self._losses(bit, fitting, sizes)
            joined = (losing >> bit & 1) + (beside >> bit & 1)
            return kind.conditional >> bit & 1, joined, losses, not self._is_shared(bit), left, bit

        return sorted(devices, key=key)

    def _losses(self, bit: int, fitting: int, sizes: list[int]) -> tuple[int, ...]:
        """The loss of worth of its card once this partition is taken. Where that is not known: by size, the largest
        first, the number of partitions that are no longer available."""
        kind = self.kind
        if not kind.uses[bit] or self._is_shared(bit):
            return ()
        if kind.cards:
            loss = kind.cards[bit].loss(self.taken.whole | self.whole, bit)
            return () if loss is None else (loss,)
        taken = dict(kind.uses[bit])
        lost = dict.fromkeys(sizes, 0)
        for other in bits(kind.neighbours[bit] & fitting):
            if other == bit or any(self.left[i] - taken.get(i, 0) < milli for i, milli in kind.uses[other]):
                lost[kind.sizes[other]] += 1
        return tuple(lost.values())

    def after(self) -> Taken:
        """What is allocated with the picks. Admin access allocates nothing."""
        whole, shares = self.taken.whole, dict(self.taken.shares)
        for picks in self.picks:
            for request, bit, draw in picks:
                if not request.admin_access:
                    if draw is None:
                        whole |= 1 << bit
                    else:
                        shares[bit] = added(shares.get(bit), draw)
        return Taken(whole, tuple(sorted(shares.items())), self.taken.foreign)

    def spare(self) -> int:
        """See `AllocationOutcome`."""
        picked = [pick.bit for picks in self.picks for pick in picks]
        if picked and all(bit in self.kind.cards for bit in picked):
            return self._lost_percent(picked)
        options = [one for requests in self.view.claims for options in requests for one in options]
        able = 0
        for option in options:
            for bit in bits(option.fitting & ~able):
                able |= self._is_able(option, bit) << bit
        return able.bit_count()

    def _lost_percent(self, picked: list[int]) -> int:
        taken, lost = self.taken.whole, 0
        for bit in picked:
            card = self.kind.cards[bit]
            lost += _PERCENT * (card.loss(taken, bit) or 0) // max(card.most, 1)
            taken |= 1 << bit
        return lost


def lost_pairs(view: DeviceView, masks: NDArray[np.int64], taken: int) -> NDArray[np.int64]:
    """`lost_by` for sets of GPUs of the view's layout, beside the `taken` devices."""
    return lost_by(masks, free_pairs(view.joins, taken), lambda own: view.kind.gpus_of(bits(own)))
