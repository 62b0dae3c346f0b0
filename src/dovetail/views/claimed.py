# SPDX-License-Identifier: Apache-2.0
"""The devices of a node for one request of a claim: which are available, and why the others are not.

Rules: a device is refused by the first rule that applies: its pool, a selector, a taint, claims that hold it, counters
of its pool, capacities of a shared device, constraints of the claim. Requests are compiled, and compared with the
devices of a node, by the allocator's own parts (`core.dra`). Whether the claim fits as a whole is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

import kubecel
from dovetail.core.cluster import Cluster
from dovetail.core.cluster.selection import matches_terms
from dovetail.core.dra.asks import Alternative, Asks, RequestOption
from dovetail.core.dra.kinds import DeviceKind, Kinds
from dovetail.core.dra.pools import PoolHere, PoolId, PoolOffer, pools_on, uses_of
from dovetail.core.dra.types import SHARED, Allocation, ClaimSpec, Device, DeviceTaint, Grant, Slice
from dovetail.core.model import NodeTerm
from dovetail.views.holders import device_of
from dovetail.views.leased import key_of

DeviceId = tuple[PoolId, str]


class ClaimedView(Struct, frozen=True):
    """A device of a node for one request. `matches`: the request selects such devices; `free`: the request alone could
    get it now. `rule` is why it is refused or, if it is free, what the constraints of the claim compare; else "".
    `users` are the claims that hold it, with their pods."""

    device: str
    request: str
    rule: str
    users: tuple[str, ...] = ()
    matches: bool = False
    free: bool = False


class Claimed:
    """The devices of a cluster, and the claims that hold them, at this moment."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kinds = Kinds()
        self._asks = Asks(self._kinds, cluster.claims.classes, kubecel.compile)
        self._pools: dict[PoolId, list[Slice]] = {}
        self._reaching: dict[str, dict[PoolId, None]] = {}
        """Pools by the node of their slices; SHARED for slices that belong to no single node."""
        for one in cluster.claims.slices.values():
            self._pools.setdefault((one.driver, one.pool), []).append(one)
            self._reaching.setdefault(one.node, {})[one.driver, one.pool] = None
        self._grants: dict[DeviceId, list[tuple[Grant, str]]] = {}
        for user, allocation in self._allocations():
            for grant in allocation.grants:
                if not grant.admin_access:
                    self._grants.setdefault(((grant.driver, grant.pool), grant.device), []).append((grant, user))

    def _allocations(self) -> Iterator[tuple[str, Allocation]]:
        """The allocation of every claim, from its status or as decided, with the text for the claim and its pods."""
        claims, placements = self._cluster.claims.claims, self._cluster.placements.values()
        allocations = {grant.claim: grant.allocation for placement in placements for grant in placement.grants}
        allocations |= {key: claim.allocation for key, claim in claims.items() if claim.allocation is not None}
        pods: dict[str, list[str]] = {}
        for placement in placements:
            for key in dict.fromkeys((*placement.pod.device_claims, *(grant.claim for grant in placement.grants))):
                pods.setdefault(key, []).append(key_of(placement.pod))
        for key, allocation in allocations.items():
            users = f" (pod {', '.join(pods[key])})" if key in pods else ""
            yield f"claim {key}{users}", allocation

    def seen(self, slot: int, specs: Sequence[ClaimSpec]) -> list[ClaimedView]:
        """All devices of the node for each request of these claims, with all alternatives."""
        record = self._cluster.nodes.records[slot]
        if record is None:
            return []

        def reaches(terms: tuple[NodeTerm, ...]) -> bool:
            return bool(matches_terms(self._cluster.nodes, terms, slice(slot, slot + 1))[0])

        near = self._reaching.get(record.name, {}) | self._reaching.get(SHARED, {})
        pools = pools_on(record.name, reaches, [tuple(self._pools[pool]) for pool in near])
        ask = self._asks.of(tuple(specs))
        kind = self._kinds.of(pools, record.layout)
        view = self._asks.view(ask, kind)
        found = [
            ClaimedView(f"{pool.id[0]}/{pool.id[1]}", "", "its pool is incomplete" if pool.incomplete else pool.invalid)
            for pool in pools
            if pool.incomplete or pool.invalid
        ]
        for spec, compiled, requests in zip(specs, ask.claims, view.claims, strict=True):
            for alternatives, options in zip(compiled.requests, requests, strict=True):
                for alternative, option in zip(alternatives, options, strict=True):
                    found += self._of_option(pools, kind, alternative, option, spec)
        return found

    def _of_option(
        self,
        pools: Sequence[PoolHere],
        kind: DeviceKind,
        alternative: Alternative,
        option: RequestOption,
        spec: ClaimSpec,
    ) -> Iterator[ClaimedView]:
        bit = 0
        for pool in pools:
            left = self._left(pool)
            for offer in pool.offers:
                name = device_of(*pool.id, offer.device.name)
                matches = bool(option.matching >> bit & 1)
                rule = self._unsuitable(kind, alternative, option, bit, offer)
                users: tuple[str, ...] = ()
                if not rule and not option.request.admin_access:
                    rule, users = self._in_use(pool, offer, option.draws[bit], left)
                free = not rule
                if free:
                    rule = _constrained(spec, option, offer.device)
                yield ClaimedView(name, option.request.name, rule, users, matches, free)
                bit += 1

    def _unsuitable(
        self, kind: DeviceKind, alternative: Alternative, option: RequestOption, bit: int, offer: PoolOffer
    ) -> str:
        """Why the request does not select the device, held or not; "" if it does."""
        fault = option.faults.get(bit)
        if fault is not None:
            return f"{fault.text}{offer.device.name}{fault.rest}"
        if not option.matching >> bit & 1:
            for where, test in alternative.tests:
                if test.of(kind.profiles[bit]) is False:
                    return f"{where} does not match"
            return "lacks the requested capacity" if offer.here else "is not for this node"
        if not option.fitting >> bit & 1:
            taints = ", ".join(map(_taint, offer.device.taints))
            return f"has a taint that is not tolerated: {taints}"
        return ""

    def _in_use(
        self, pool: PoolHere, offer: PoolOffer, draw: Sequence[int], left: dict[tuple[str, str], int]
    ) -> tuple[str, tuple[str, ...]]:
        device = offer.device
        grants = self._grants.get((pool.id, device.name), [])
        users = tuple(dict.fromkeys(user for _, user in grants))
        if any(not grant.share for grant, _ in grants):
            return "is in use", users
        if grants:
            for (name, capacity), wanted in zip(device.capacity, draw, strict=True):
                rest = capacity.milli - sum(dict(grant.consumed).get(name, 0) for grant, _ in grants)
                if wanted > rest:
                    return f"needs {_amount(wanted)} of its {name}, {_amount(rest)} is left", users
            return "", ()
        for counter, wanted in uses_of(device):
            if left[counter] < wanted:
                rule = f"needs {_amount(wanted)} of {'/'.join(counter)}, {_amount(left[counter])} is left"
                return rule, self._users_of(pool, counter)
        return "", ()

    def _left(self, pool: PoolHere) -> dict[tuple[str, str], int]:
        """What is left of the counters of a pool."""
        left = dict(pool.counters)
        for name, uses in self._consuming(pool):
            if (pool.id, name) in self._grants:
                for counter, milli in uses:
                    left[counter] -= milli
        return left

    def _users_of(self, pool: PoolHere, counter: tuple[str, str]) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                user
                for name, uses in self._consuming(pool)
                if counter in dict(uses)
                for _, user in self._grants.get((pool.id, name), ())
            )
        )

    @staticmethod
    def _consuming(pool: PoolHere) -> Iterator[tuple[str, tuple[tuple[tuple[str, str], int], ...]]]:
        for offer in pool.offers:
            yield offer.device.name, uses_of(offer.device)
        yield from pool.elsewhere


def _constrained(spec: ClaimSpec, option: RequestOption, device: Device) -> str:
    """The attributes of a free device that the constraints of the claim compare."""
    attributes, compared = dict(device.attributes), []
    for number in option.rules:
        one = spec.constraints[number]
        name = one.match or one.distinct
        value = attributes.get(name)
        state = "is missing" if value is None else f"is {value}"
        compared.append(f"{'matchAttribute' if one.match else 'distinctAttribute'} {name} {state}")
    return f"is free, but for the constraint of the claim: {', '.join(compared)}" if compared else ""


def _taint(taint: DeviceTaint) -> str:
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def _amount(milli: int) -> str:
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli / 1000:g}"
