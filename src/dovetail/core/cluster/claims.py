# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and DeviceClasses: what is allocated. What can be allocated on which node is in `claim_answers`.

Rules: a claim with an allocation in its status holds these devices. What was decided here (`hold`) is assumed until the
claim shows an allocation, of the same devices or others, or it is released (`release`). What is allocated,
and where it can be used, is written as the upstream scheduler does it. What nodes offer is in `offers`.
Sources: kube-scheduler's plugin dynamicresources, dynamic-resource-allocation/structured (1.37).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.claim_answers import ClaimAnswers
from dovetail.core.cluster.columns import Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.offers import Offers
from dovetail.core.cluster.selection import matches_terms
from dovetail.core.cluster.shapes import Classes, Shape
from dovetail.core.decisions import ClaimGrant, ClaimToMake
from dovetail.core.dra.allocations import Pools, enter
from dovetail.core.dra.asks import Asks
from dovetail.core.dra.extended import IMPLICIT, claim_for, claim_key
from dovetail.core.dra.grants import allocation
from dovetail.core.dra.joins import PCIE_ROOT, joins_devices
from dovetail.core.dra.selectors import Compile
from dovetail.core.dra.types import SHARED, Allocation, Claim, ClaimSpec, DeviceClass, Slice
from dovetail.core.model import Pod
from dovetail.core.reasons import Reason, Refusal, When

MOST_CONSUMERS = 256
"""Consumers of one claim (resource.k8s.io: ResourceClaimReservedForMaxSize)."""
BINDING_TIMEOUT_MS = 600_000
"""How long devices may take to become ready (bindingTimeout of kube-scheduler's DynamicResourcesArgs)."""
_FEW = 1024


class Claims:
    """`claims` by key, `slices` and `classes` by name, as they were reported. The node table's `device_numbers[slot]`
    is the number of what is free there."""

    def __init__(self, nodes: Nodes, compile: Compile) -> None:
        self._nodes = nodes
        self.now_ms = 0
        self.claims: dict[str, Claim] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.offers = Offers(nodes)
        self._asks = Asks(self.offers.kinds, self.classes, compile)
        self._assumed: dict[str, Allocation] = {}
        self._unmade: set[str] = set()
        """Those of the assumed ones whose claim is made with the bind: that an older one goes means nothing."""
        self._extended: dict[str, DeviceClass | None] = {}
        """The result of `extended`."""
        self._users: dict[str, dict[str, None]] = {}
        self._joining: set[str] = set()
        """The claims that join devices by their PCIe root."""
        self.answers = ClaimAnswers(nodes, self._asks, self.offers)

    # What the API server has.

    @property
    def slices(self) -> dict[str, Slice]:
        return self.offers.slices

    def put_slice(self, one: Slice) -> bool:
        """Insert or replace."""
        return self.offers.put(one)

    def remove_slice(self, name: str) -> bool:
        return self.offers.remove(name)

    def node_changed(self, slot: int) -> bool:
        """The node's record, labels or layout changed, or it is gone, or another one has the slot."""
        return self.offers.node_changed(slot)

    def put_class(self, found: DeviceClass) -> bool:
        if self.classes.get(found.name) == found:
            return False
        self.classes[found.name] = found
        self._classes_changed()
        return True

    def remove_class(self, name: str) -> bool:
        if self.classes.pop(name, None) is None:
            return False
        self._classes_changed()
        return True

    def _classes_changed(self) -> None:
        self._extended.clear()
        self._asks.forget()
        self.answers.forget()
        self._nodes.amounts_journal.extend(self.offers.places)
        self._nodes.devices_journal.extend(self.offers.places)

    def put_claim(self, claim: Claim) -> bool:
        """Insert or replace. An allocation in the status replaces the assumed one."""
        old = self.claims.get(claim.key)
        if old == claim:
            return False
        held = self.allocation(claim.key)
        self.claims[claim.key] = claim
        self._note_joins(claim.key, joins_devices(claim.spec))
        another = old is not None and old.uid != claim.uid and claim.key not in self._unmade
        if claim.allocation is not None or another:
            self._forget_assumed(claim.key)
        now = self.allocation(claim.key)
        if held != now:
            self.offers.enter(held, -1)
            self.offers.enter(now, 1)
        if old is None or len(claim.reserved_for) < len(old.reserved_for):
            return True
        # An allocation as it was assumed changes nothing, nor do more consumers.
        bare, old_bare = (replace(one, allocation=None, reserved_for=()) for one in (claim, old))
        return held != now or bare != old_bare

    def remove_claim(self, key: str) -> bool:
        held = self.allocation(key)
        if self.claims.pop(key, None) is None:
            return False
        self._note_joins(key, False)
        if key in self._unmade:
            return False
        self._assumed.pop(key, None)
        self.offers.enter(held, -1)
        return held is not None

    def _note_joins(self, key: str, joins: bool) -> None:
        """Whether the claim joins devices. What others get depends on whether any does."""
        if joins:
            self._joining.add(key)
        else:
            self._joining.discard(key)
        if self._asks.joined != bool(self._joining):
            self._asks.joined = bool(self._joining)
            if self._asks.joined:
                self.offers.kinds.read((), (PCIE_ROOT,))
            self._nodes.amounts_journal.extend(self.offers.places)

    def _forget_assumed(self, key: str) -> None:
        self._assumed.pop(key, None)
        self._unmade.discard(key)

    def know(self, pod: Pod) -> None:
        """The pod uses its claims."""
        for key in pod.device_claims:
            self._users.setdefault(key, {})[pod.uid] = None

    def forget(self, pod: Pod) -> None:
        """The pod is gone."""
        for key in pod.device_claims:
            users = self._users.get(key)
            if users is not None:
                users.pop(pod.uid, None)
                if not users:
                    del self._users[key]

    def users(self, key: str) -> Iterable[str]:
        """The uids of the pods that use a claim, in the order in which they became known."""
        return self._users.get(key, ())

    # What a pod's claims allow.

    def allocation(self, key: str) -> Allocation | None:
        """The allocation of a claim, from its status or assumed."""
        claim = self.claims.get(key)
        return claim.allocation if claim is not None and claim.allocation is not None else self._assumed.get(key)

    def _unallocated(self, pod: Pod) -> list[tuple[str, Claim]]:
        """The pod's claims without an allocation, by key; claims that are not known are left out."""
        claims, assumed = self.claims, self._assumed
        return [
            (key, claim)
            for key in _once(pod.device_claims)
            if (claim := claims.get(key)) is not None and claim.allocation is None and key not in assumed
        ]

    def wanted(self, pod: Pod) -> tuple[ClaimSpec, ...]:
        """What is to be allocated with the pod: the specs of its claims that have nothing yet."""
        return tuple([claim.spec for _, claim in self._unallocated(pod)])

    def specs(self, pod: Pod) -> list[tuple[str, ClaimSpec]]:
        """As `wanted`, each with the key of its claim."""
        return [(key, claim.spec) for key, claim in self._unallocated(pod)]

    def refusal(self, pod: Pod) -> Refusal | None:
        """Why the pod cannot go to any node whatever, or None."""
        for key in self._keys(pod):
            claim = self.claims.get(key)
            name = key.partition("/")[2]
            if claim is None:
                return Refusal(Reason.DEVICE_CLAIM, When.NOT_YET, f"resourceclaim {name!r} does not exist")
            if claim.deleting:
                return Refusal(Reason.DEVICE_CLAIM, When.NOT_YET, f"resourceclaim {name!r} is being deleted")
            if claim.problem is not None:
                return Refusal(Reason.DEVICE_CLAIM_INVALID, When.NEVER, f"resourceclaim {name!r}: {claim.problem}")
            if claim.owner_pod != pod.uid and (key in pod.own_device_claims or key not in pod.device_claims):
                detail = f"resourceclaim {name!r} was not created for this pod"
                return Refusal(Reason.DEVICE_CLAIM_TAKEN, When.NEVER, detail)
            if len(claim.reserved_for) >= MOST_CONSUMERS and pod.uid not in claim.reserved_for:
                detail = f"resourceclaim {name!r} is reserved for {len(claim.reserved_for)} others"
                return Refusal(Reason.DEVICE_CLAIM_TAKEN, When.NOT_YET, detail)
            if why := self._stuck(claim):
                return Refusal(Reason.DEVICE_CLAIM_STUCK, When.NOT_YET, f"resourceclaim {name!r}: {why}")
            if self.allocation(key) is None:
                ask = self._asks.of((claim.spec,))
                if ask.missing:
                    return Refusal(Reason.DEVICE_CLAIM, When.NOT_YET, f"resourceclaim {name!r}, {ask.missing}")
                if ask.broken:
                    detail = f"resourceclaim {name!r}, {ask.broken}"
                    return Refusal(Reason.DEVICE_CLAIM_INVALID, When.NEVER, detail)
        return None

    def _stuck(self, claim: Claim) -> str:
        """Why the devices that the claim has will not become ready, "" where they are or may. They are waited for from
        when they were allocated on, by any scheduler. Source: isClaimReadyForBinding and isClaimTimeout (1.37)."""
        if claim.allocation is None:
            return ""
        if not claim.failed and claim.unready_ms and self.now_ms - claim.unready_ms > BINDING_TIMEOUT_MS:
            return f"its devices did not become ready within {BINDING_TIMEOUT_MS // 1000} s"
        return claim.failed

    def stuck(self, pod: Pod) -> list[str]:
        """The claims of a pod that waits whose devices will not become ready, by key."""
        found = ((key, self.claims.get(key)) for key in self._keys(pod))
        return [key for key, claim in found if claim is not None and self._stuck(claim)]

    def alone(self, pod: Pod) -> bool:
        """Whether the pod's shape has all about its claims: nothing is allocated yet, nobody else uses them, and what
        is allocated on one node changes nothing on others."""
        if self.offers.wide or pod.by_claim or self.made(pod):
            return False
        for key in pod.device_claims:
            claim = self.claims.get(key)
            if claim is None or claim.allocation is not None or key in self._assumed:
                return False
            if claim.owner_pod != pod.uid and self._users.get(key, {}).keys() != {pod.uid}:
                return False
        return True

    def shared(self, pod: Pod) -> bool:
        """Whether something is to be allocated with the pod that others use, too: once for all of them."""
        return any(
            claim.owner_pod != pod.uid and len(self._users.get(key, ())) > 1 for key, claim in self._unallocated(pod)
        )

    def reach(self, pod: Pod) -> Mask:
        """The nodes where the devices that its claims have can be used. Once a pod is reported to have resources by a
        claim, that cannot be taken back: a kubelet that has some would look for the claim all the same."""
        mask = np.ones(self._nodes.size, dtype=np.bool_)
        for name in pod.by_claim:
            mask &= self._nodes.allocatable[self._nodes.column(name)] == 0
        for key in self._keys(pod):
            allocation = self.allocation(key)
            if allocation is None:
                continue
            if allocation.node:
                only = np.zeros(self._nodes.size, dtype=np.bool_)
                slot = self._nodes.slots.get(allocation.node)
                if slot is not None:
                    only[slot] = True
                mask &= only
            else:
                mask &= matches_terms(self._nodes, allocation.node_terms, slice(0, self._nodes.size))
        return mask

    def hold(self, slot: int, pod: Pod, shape: Shape) -> tuple[ClaimGrant, ...]:
        """Allocate what the shape wants, which is what the pod `wanted`; nothing where it does not fit. It is held
        until the API server reports it or it is released. The caller notes in the journal that its slot changed."""
        memo = self.answers.outcome(slot, shape.wants)
        picks = memo.outcome.picks
        if picks is None:
            return ()
        place = self.offers.places.get(slot)
        name, offers = (place.name, place.offers) if place is not None else (SHARED, [])
        grants = []
        unallocated = self._unallocated(pod)
        if len(unallocated) < len(picks):
            key = claim_key(pod)
            unallocated.append((key, Claim(f"{pod.uid}/extended", pod.namespace, key, shape.wants[-1])))
            self._unmade.add(key)
        for (key, claim), own in zip(unallocated, picks, strict=True):
            granted = self._assumed[key] = allocation(claim, name, offers, own)
            self.offers.enter(granted, 1, settled=slot)
            grants.append(ClaimGrant(key, granted))
        if place is not None:
            self.offers.settle(slot, memo.after)
        return tuple(grants)

    def assume(self, grants: Iterable[ClaimGrant], to_make: str = "") -> None:
        """Hold what was decided, for claims that have nothing yet, and for the one that is made with the bind."""
        for grant in grants:
            if (grant.claim in self.claims or grant.claim == to_make) and self.allocation(grant.claim) is None:
                if grant.claim == to_make:
                    self._unmade.add(to_make)
                self._assumed[grant.claim] = grant.allocation
                self.offers.enter(grant.allocation, 1)

    def release(self, grants: Iterable[ClaimGrant]) -> None:
        """Give back what was only assumed."""
        for grant in grants:
            if self._assumed.get(grant.claim) == grant.allocation:
                self._forget_assumed(grant.claim)
                self.offers.enter(grant.allocation, -1)

    def vacate(self, pod: Pod) -> list[Allocation]:
        """As if the claims that this pod alone uses were released: those that the API server reports as allocated, too.
        `occupy` takes the answer."""
        alone = [key for key in self.named(pod) if all(uid == pod.uid for uid in self.users(key))]
        claims = [claim for key in alone if (claim := self.claims.get(key)) is not None]
        vacated = [claim.allocation for claim in claims if claim.allocation is not None]
        for held in vacated:
            self.offers.enter(held, -1)
        return vacated

    def occupy(self, allocations: Iterable[Allocation]) -> None:
        """Undo `vacate`."""
        for held in allocations:
            self.offers.enter(held, 1)

    def check(self) -> list[str]:
        """Recount the books from the claims; each difference in a sentence, none where they are right."""
        self.answers.catch_up()
        true: Pools = {}
        for key in self.claims.keys() | self._assumed.keys():
            enter(true, self.allocation(key), 1)
        return self.offers.differences(true)

    # Extended resources.

    def extended(self, resource: str) -> DeviceClass | None:
        """The class whose devices stand in for an extended resource: of several the newest, then the first by name."""
        if resource.startswith(IMPLICIT):
            return self.classes.get(resource.removeprefix(IMPLICIT))
        if resource not in self._extended:
            if len(self._extended) >= _FEW:
                self._extended.clear()
            found = [one for one in self.classes.values() if one.extended_resource == resource]
            self._extended[resource] = min(found, key=lambda one: (-one.created_ms, one.name), default=None)
        return self._extended[resource]

    def classes_for(self, pod: Pod) -> Classes:
        """The classes whose devices may stand in for resources of a pod that waits. A pod that asks for what no claim
        promises, a part of a GPU, isolation or NVLinks, has GPUs that are counted."""
        request = pod.request
        if request.gpu_milli or request.gpu_memory_mib or request.isolation or request.nvlink_required:
            return ()
        found = [(name, self.extended(name)) for name, _ in request.resources]
        return tuple((name, one.name) for name, one in found if one is not None)

    def to_make(self, pod: Pod, resources: tuple[str, ...]) -> ClaimToMake:
        """The claim for these resources of the pod."""
        classes = {name: one for name, one in self.classes_for(pod) if name in resources}
        return ClaimToMake(claim_key(pod), *claim_for(pod.containers, classes))

    def made(self, pod: Pod) -> bool:
        """Whether the claim of its extended resources has devices already, as an earlier try left it."""
        claim = self.claims.get(claim_key(pod)) if pod.containers and self.classes_for(pod) else None
        return claim is not None and claim.allocation is not None

    def named(self, pod: Pod) -> Collection[str]:
        """The claims of a pod that is placed: those that it names, and the one of its extended resources."""
        return _once((*pod.device_claims, claim_key(pod)) if pod.by_claim else pod.device_claims)

    def _keys(self, pod: Pod) -> Collection[str]:
        """The claims that a pod that waits names, and the one that an earlier try left."""
        return _once((*pod.device_claims, claim_key(pod)) if self.made(pod) else pod.device_claims)


def _once(keys: tuple[str, ...]) -> Collection[str]:
    """Each once, in their order; mostly it is one."""
    return dict.fromkeys(keys) if len(keys) > 1 else keys
