# SPDX-License-Identifier: Apache-2.0
"""All allocations that there are, found by trying everything: what may be allocated is stated once, over whole
assignments, and not step by step as a search does it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations, product

from dovetail.core.dra.types import Claim, ClaimSpec, Device, DeviceRequest, Slice, Value
from dovetail.core.labels import holds
from tests.core.dra.device_worlds import Plain, World

Place = tuple[str, str, str]
"""Driver, pool and name of a device."""
Choice = tuple[DeviceRequest, tuple[Place, ...]]
Assignment = tuple[tuple[Choice, ...], ...]
"""For each claim and request the alternative and its devices."""


class Oracle:
    """One node of a world, with the allocations that its claims have."""

    def __init__(self, world: World, node: str) -> None:
        record = world.nodes.records[world.nodes.slots[node]]
        assert record is not None
        self.node = record
        self.classes = world.claims.classes
        self.devices: dict[Place, Device] = {}
        self.counters: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
        self.everywhere: dict[Place, Device] = {}
        self.unknown = False
        """Some pool is not known as a whole: all of its devices cannot be had."""
        for pool in sorted({(s.driver, s.pool) for s in world.claims.slices.values()}):
            self._gather(pool, [s for s in world.claims.slices.values() if (s.driver, s.pool) == pool])
        self.whole: set[Place] = set()
        self.shares: dict[Place, list[dict[str, int]]] = defaultdict(list)
        for claim in world.claims.claims.values():
            self._count(claim, world)

    def _gather(self, pool: tuple[str, str], slices: list[Slice]) -> None:
        near = [s for s in slices if self._reaches(s)]
        if not near:
            return
        newest = max(s.generation for s in near)
        near = [s for s in near if s.generation == newest]
        whole = [s for s in slices if s.generation == newest]
        if len(near) != near[0].pool_slices:
            if any(s.generation > newest for s in slices):
                return
            if len(whole) != near[0].pool_slices:
                self.unknown = True
                return
        self.counters[pool] = {
            (each.name, counter): milli for s in whole for each in s.counter_sets for counter, milli in each.counters
        }
        for one in sorted(near, key=lambda s: s.name):
            for device in one.devices:
                if not one.per_device or self._here(device):
                    self.devices[*pool, device.name] = device
        for one in whole:
            for device in one.devices:
                self.everywhere[*pool, device.name] = device

    def _here(self, where: Slice | Device) -> bool:
        if where.node:
            return where.node == self.node.name
        return where.all_nodes or any(
            all(holds(r, dict(self.node.labels).get(r.key)) for r in term.expressions)
            for term in where.node_terms or ()
        )

    def _reaches(self, one: Slice) -> bool:
        return any(map(self._here, one.devices)) if one.per_device else self._here(one)

    def _count(self, claim: Claim, world: World) -> None:
        allocation = world.claims.allocation(claim.key)
        for grant in allocation.grants if allocation is not None else ():
            place = grant.driver, grant.pool, grant.device
            if grant.admin_access:
                continue
            if grant.share:
                self.shares[place].append(dict(grant.consumed))
            else:
                self.whole.add(place)

    def matches(self, request: DeviceRequest, place: Place) -> bool:
        selectors = (*self.classes[request.device_class].selectors, *request.selectors)
        device = self.devices[place]
        return (
            all(Plain(text).matches(device, place[0]) for text in selectors) and self.drawn(request, device) is not None
        )

    def drawn(self, request: DeviceRequest, device: Device) -> dict[str, int] | None:
        """What a request takes of the capacities (of the one that the random worlds have)."""
        asked = dict(request.amounts)
        if not asked.keys() <= dict(device.capacity).keys():
            return None
        taken = {}
        for name, capacity in device.capacity:
            policy = capacity.policy
            if policy is None:
                taken[name] = asked.get(name, capacity.milli)
            else:
                assert policy.least_milli and policy.step_milli and policy.most_milli
                steps = range(policy.least_milli, 100 * capacity.milli, policy.step_milli)
                taken[name] = next(step for step in steps if step >= asked[name]) if asked else policy.default_milli
                if taken[name] > policy.most_milli:
                    return None
            if taken[name] > capacity.milli:
                return None
        return taken

    def assignments(self, specs: tuple[ClaimSpec, ...]) -> Iterator[Assignment]:
        """Every allocation for the claims."""
        if self.unknown and any(r.mode == "All" for s in specs for rs in s.requests for r in rs):
            return
        requests = [alternatives for spec in specs for alternatives in spec.requests]
        for choices in product(*(self._choices(alternatives) for alternatives in requests)):
            dealt = iter(choices)
            found = tuple(tuple(next(dealt) for _ in spec.requests) for spec in specs)
            if self.is_legal(specs, found):
                yield found

    def _choices(self, alternatives: tuple[DeviceRequest, ...]) -> list[Choice]:
        found: list[Choice] = []
        for request in alternatives:
            means = [place for place in self.devices if self.matches(request, place)]
            if request.mode == "All":
                found += [(request, tuple(sorted(means)))] if means else []
            else:
                found += [(request, tuple(sorted(chosen))) for chosen in combinations(means, request.count)]
        return found

    def is_legal(self, specs: tuple[ClaimSpec, ...], found: Assignment) -> bool:
        return (
            all(sum(len(chosen) for _, chosen in claim) <= 32 for claim in found)
            and all(self._tolerated(request, place) for claim in found for request, chosen in claim for place in chosen)
            and self._apart(found)
            and self._within_counters(found)
            and self._within_capacity(found)
            and all(self._constrained(spec, claim) for spec, claim in zip(specs, found, strict=True))
        )

    def _tolerated(self, request: DeviceRequest, place: Place) -> bool:
        return all(
            taint.effect == "None"
            or any(one.key == taint.key and one.effect in ("", taint.effect) for one in request.tolerations)
            for taint in self.devices[place].taints
        )

    def _apart(self, found: Assignment) -> bool:
        """Whole devices go to one request; with admin access also to others, of other claims, before or after."""
        before: list[set[Place]] = [set() for _ in found]
        for number, claim in enumerate(found):
            for request, chosen in claim:
                for place in chosen:
                    if request.admin_access:
                        taken = place in before[number]
                    else:
                        taken = place in self.whole or any(place in own for own in before)
                    if taken:
                        return False
                before[number] |= {place for place in chosen if not self.devices[place].shareable}
        return True

    def _within_counters(self, found: Assignment) -> bool:
        used: Counter[tuple[str, str, str, str]] = Counter()

        def use(place: Place, device: Device) -> None:
            for consumption in device.consumes:
                for counter, milli in consumption.amounts:
                    used[*place[:2], consumption.counter_set, counter] += milli

        held = {place for place in self.everywhere if place in self.whole or self.shares.get(place)}
        for place in held:
            use(place, self.everywhere[place])
        begun = {place for place in held if self.shares.get(place)}
        chosen = [place for claim in found for _, places in claim for place in places]
        for place in chosen:
            device = self.devices[place]
            if not (device.shareable and place in begun):
                use(place, device)
            if device.shareable:
                begun.add(place)
        concerned = {place[:2] for place in chosen if self.devices[place].consumes}
        return all(
            used[*pool, *counter] <= milli for pool in concerned for counter, milli in self.counters[pool].items()
        )

    def _within_capacity(self, found: Assignment) -> bool:
        taken: dict[Place, Counter[str]] = defaultdict(Counter)
        for place, shares in self.shares.items():
            for share in shares:
                taken[place].update(share)
        for claim in found:
            for request, chosen in claim:
                for place in chosen:
                    if self.devices[place].shareable:
                        taken[place].update(self.drawn(request, self.devices[place]) or {})
        return all(
            taken[place][name] <= capacity.milli
            for place in taken
            if place in self.devices
            for name, capacity in self.devices[place].capacity
        )

    def _constrained(self, spec: ClaimSpec, claim: tuple[Choice, ...]) -> bool:
        for constraint in spec.constraints:
            values = [
                _values(self.devices[place], constraint.match or constraint.distinct)
                for request, chosen in claim
                if not constraint.requests or {request.name, request.name.split("/")[0]} & set(constraint.requests)
                for place in chosen
            ]
            if not all(values):
                return False
            if constraint.match and values and not frozenset.intersection(*values):
                return False
            if constraint.distinct and any(a & b for a, b in combinations(values, 2)):
                return False
        return True


def _values(device: Device, attribute: str) -> frozenset[Value]:
    value = dict(device.attributes).get(attribute)
    return frozenset(value if isinstance(value, tuple) else () if value is None else (value,))


def assignment_of(world: World, specs: tuple[ClaimSpec, ...], keys: tuple[str, ...]) -> Assignment:
    """What claims got, as an assignment."""
    found = []
    for spec, key in zip(specs, keys, strict=True):
        allocation = world.claims.allocation(key)
        assert allocation is not None
        own = []
        for alternatives in spec.requests:
            for request in alternatives:
                places = tuple(
                    sorted((g.driver, g.pool, g.device) for g in allocation.grants if g.request == request.name)
                )
                if places:
                    own.append((request, places))
        found.append(tuple(own))
    return tuple(found)
