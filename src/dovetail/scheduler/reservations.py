# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims of a bind: allocated and reserved for the pod before it, released when the bind fails.

Rules
- A claim without allocation gets the finalizer first, then allocation and reservation in one status update. Any other
  claim gets the reservation alone. Nothing is written twice, so every step may be repeated, and a claim that was
  reserved before a crash is recognized.
- The first write uses the version of the claim known when the bind was decided. After a conflict the claim is read
  again. The write is retried while it is the same claim and its allocation is unchanged, absent or ours; else the bind
  fails.
- A claim is written as protobuf if a patch would change its opaque parameters (see `wire_protobuf`).
- Pods that share a claim are reserved in turn; the first one writes the allocation for all.
- The claim for a pod's extended resources is created first, under its own name; one left by an earlier attempt is
  reused. Then the pod's status maps containers to the requests of the claim. To release this claim is to delete it.
- A release removes the pod from the consumers; the release of the last consumer also removes the allocation, as in the
  claim controller.
- Devices with binding conditions are awaited for ten minutes from their allocation; a failure condition fails the bind
  at once.
Source: plugins/dynamicresources (PreBind, Unreserve, isClaimReadyForBinding), controller/resourceclaim (syncClaim).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, field

from dovetail.core.cluster.claims import BINDING_TIMEOUT_MS
from dovetail.core.decisions import Bind, ClaimToMake
from dovetail.core.dra.types import Allocation
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import MERGE_PATCH, STRATEGIC_PATCH, Attempts, Client
from dovetail.kube.api.errors import AlreadyExists, ApiError, Conflict, Invalid, KubeError, NotFound
from dovetail.kube.informers import Informers
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.claims import AllocationResult, DeviceClass, DeviceResult, DeviceStatus, ResourceClaim
from dovetail.scheduler import metrics, wire, wire_claims
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.wire_protobuf import CONTENT_TYPE, with_consumer, with_finalizer

_TRIES = 5
_NOT_ACCEPTABLE = 406


class NotReady(Exception):
    """The chosen node cannot be used for the bind; the message is the reason."""


class _InFlight(Struct):
    """A claim of pods that are being bound: its latest known version, and the allocation decided for it."""

    claim: ResourceClaim | None
    allocation: Allocation | None = None
    pods: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class DeviceReservations:
    """Call `expect` for each bind when it is decided, and `forget` when it has ended, with any result."""

    def __init__(self, client: Client, clock: Clock, mirror: Informers, check_leader: Callable[[], None]) -> None:
        self._client = client
        self._clock = clock
        self._mirror = mirror
        self._check_leader = check_leader
        self._in_flight: dict[str, _InFlight] = {}

    def expect(self, bind: Bind) -> None:
        for key in _claims_of(bind):
            known = self._in_flight.get(key)
            if known is None:
                claim = self._mirror.device_claims.known.get(_named(key))
                if _is_made(bind, key) and claim is not None and not _owned(claim, bind.uid):
                    claim = None
                known = self._in_flight[key] = _InFlight(claim)
            known.pods += 1
        for grant in bind.claims:
            self._in_flight[grant.claim].allocation = grant.allocation

    def forget(self, bind: Bind) -> None:
        for key in _claims_of(bind):
            known = self._in_flight[key]
            known.pods -= 1
            if not known.pods:
                del self._in_flight[key]

    def waits(self, bind: Bind) -> bool:
        """Whether a driver must prepare devices before the pod can be bound."""
        for known in (self._in_flight[key] for key in _claims_of(bind)):
            granted = known.allocation.grants if known.allocation is not None else ()
            if any(grant.conditions for grant in granted):
                return True
            if any(result.binding_conditions for result in _results(known.claim)):
                return True
        return False

    async def reserve(self, bind: Bind, pod: str, uid: str) -> None:
        """Allocate and reserve all claims of the pod. Raises NotReady and KubeError; the caller then releases the
        claims reserved so far."""
        for key in _claims_of(bind):
            known = self._in_flight[key]
            async with known.turn:
                if bind.made is not None and _is_made(bind, key):
                    known.claim = await self._make(bind.made, pod, uid)
                await self._reserve(key, known, pod, uid)
        if bind.made is not None:
            namespace, name = _named(bind.made.claim)
            self._check_leader()
            body, path = wire.extended_claim(uid, name, bind.made.uses), kinds.PODS.path(namespace, pod, "status")
            await self._client.request("PATCH", path, body, content_type=STRATEGIC_PATCH)

    async def _make(self, made: ClaimToMake, pod: str, uid: str) -> ResourceClaim:
        """Create the claim for the extended resources of the pod, or read the existing one. Raises NotReady where that
        one cannot be used."""
        self._check_leader()
        path, body = kinds.RESOURCE_CLAIMS.path(_named(made.claim)[0]), wire_claims.extended(made, pod, uid)
        try:
            return await self._client.request(
                "POST", path, body, decode=ResourceClaim, attempts=Attempts(idempotent=True)
            )
        except AlreadyExists:
            found = await self._get(made.claim)
        if not _owned(found, uid):
            raise NotReady(f"the resourceclaim {made.claim} is not the pod's")
        asked = [(r.name, r.exactly) for r in found.spec.devices.requests or ()]
        has = [(name, one.device_class_name, one.count) for name, one in asked if one is not None]
        if has != [(one.name, one.device_class, one.count) for (one,) in made.spec.requests]:
            await self._delete(found)
            raise NotReady(f"the resourceclaim {made.claim} was made for other devices and is made anew")
        return found

    async def _reserve(self, key: str, known: _InFlight, pod: str, uid: str) -> None:
        decided = known.claim
        if decided is None:
            raise NotReady(f"the resourceclaim {key} was deleted")
        if decided.status.allocation is None and known.allocation is None:
            # The bind of another pod has just allocated it, and the watch has not delivered the change yet.
            decided = known.claim = await self._get(key)
        claim = decided
        for _ in range(_TRIES):
            if claim.metadata.deletion_timestamp is not None:
                raise NotReady(f"the resourceclaim {key} is being deleted")
            if any(consumer.uid == uid for consumer in claim.status.reserved_for):
                return
            self._check_leader()
            try:
                try:
                    if claim.status.allocation is None and wire_claims.FINALIZER not in claim.metadata.finalizers:
                        claim = _same(key, await self._protect(claim), decided, known.allocation)
                    known.claim = await self._write(key, claim, known.allocation, pod, uid)
                    _same(key, known.claim, decided, known.allocation)
                    return
                except Conflict:
                    claim = known.claim = _same(key, await self._get(key), decided, known.allocation)
            except NotFound:
                raise NotReady(f"the resourceclaim {key} was deleted") from None
        raise NotReady(f"the resourceclaim {key} is changed by others all the time")

    async def _protect(self, claim: ResourceClaim) -> ResourceClaim:
        patch = wire_claims.with_finalizer(claim.metadata)
        return await self._add(_path(claim), patch, lambda stored: with_finalizer(stored, wire_claims.FINALIZER))

    async def _write(
        self, key: str, claim: ResourceClaim, granted: Allocation | None, pod: str, uid: str
    ) -> ResourceClaim:
        path = f"{_path(claim)}/status"
        if claim.status.allocation is not None:
            patch = wire_claims.reserved(claim, pod, uid, None)
            return await self._add(path, patch, lambda stored: with_consumer(stored, pod, uid))
        if granted is None:
            raise NotReady(f"nothing is allocated for the resourceclaim {key}")
        allocation = wire_claims.allocation(claim, granted, self._class, self._clock.now_ms())
        return await self._patch(path, wire_claims.reserved(claim, pod, uid, allocation), STRATEGIC_PATCH)

    async def _add(self, path: str, patch: bytes, add: Callable[[bytes], bytes]) -> ResourceClaim:
        """Patch a claim. Where a patch would change an immutable field, append to the stored protobuf instead."""
        try:
            return await self._patch(path, patch, STRATEGIC_PATCH)
        except Invalid as refusal:
            try:
                stored = await self._client.fetch("GET", path.removesuffix("/status"), accept=CONTENT_TYPE)
            except ApiError as error:
                raise refusal if error.status == _NOT_ACCEPTABLE else error from None
            return await self._client.request("PUT", path, add(stored), decode=ResourceClaim, content_type=CONTENT_TYPE)

    async def _patch(self, path: str, body: bytes, content_type: str = MERGE_PATCH) -> ResourceClaim:
        return await self._client.request("PATCH", path, body, decode=ResourceClaim, content_type=content_type)

    async def _get(self, key: str) -> ResourceClaim:
        return await self._client.request("GET", kinds.RESOURCE_CLAIMS.path(*_named(key)), decode=ResourceClaim)

    def _class(self, name: str) -> DeviceClass | None:
        return self._mirror.device_classes.known.get(("", name))

    def unmet(self, bind: Bind) -> list[str]:
        """The binding conditions that are not true yet. Raises NotReady where one cannot become true."""
        return [what for key in _claims_of(bind) for what in self._unmet(key, _is_made(bind, key))]

    def _unmet(self, key: str, made: bool) -> Iterator[str]:
        # The watched version may be older than our own write.
        claim = self._mirror.device_claims.known.get(_named(key))
        written = self._in_flight[key].claim
        if claim is None or written is None or claim.metadata.uid != written.metadata.uid:
            if made:
                # The watch has not delivered it yet.
                yield f"resourceclaim {key}"
                return
            raise NotReady(f"the resourceclaim {key} was deleted")
        statuses = {(s.driver, s.pool, s.device, s.share_id): s for s in claim.status.devices}
        for result in _results(written):
            status = statuses.get((result.driver, result.pool, result.device, result.share_id), DeviceStatus())
            states = {condition.type: condition for condition in status.conditions or ()}
            for name in result.binding_failure_conditions if result.binding_conditions else ():
                if name in states and states[name].status == "True":
                    raise NotReady(f"device {result.device} of {key}: {name}: {states[name].message}")
            for name in result.binding_conditions:
                if name not in states or states[name].status != "True":
                    what = f"{name} of device {result.device} of {key}"
                    if self._overdue(written):
                        raise NotReady(f"not within {BINDING_TIMEOUT_MS // 1000} s of the allocation: {what}")
                    yield what

    def _overdue(self, claim: ResourceClaim) -> bool:
        """Whether the time for the binding conditions, counted from the allocation, has passed."""
        stamp = claim.status.allocation.allocation_timestamp if claim.status.allocation is not None else None
        return stamp is not None and self._clock.now_ms() - epoch_ms(stamp) > BINDING_TIMEOUT_MS

    async def let_go(self, keys: Iterable[str], uid: str, made: str) -> None:
        """Remove the allocation of these claims, as their devices will not become ready, unless they are reserved for
        another pod. The claim `made` for the pod's extended resources is deleted. Source: PostFilter of the plugin
        dynamicresources."""
        for key in keys:
            claim = self._mirror.device_claims.known.get(_named(key))
            if claim is None or key in self._in_flight:
                continue
            if claim.status.allocation is None or any(one.uid != uid for one in claim.status.reserved_for):
                continue
            self._check_leader()
            try:
                if key == made:
                    await self._delete(claim)
                else:
                    await self._patch(f"{_path(claim)}/status", wire_claims.released(claim, uid))
            except KubeError as error:
                metrics.log.warning("the resourceclaim %s keeps devices that do not become ready: %s", key, error)

    async def give_back(self, bind: Bind, uid: str) -> None:
        """Remove the pod from the consumers of its claims. A claim that cannot be written now stays reserved for the
        pod, and its next bind uses it."""
        for key in _claims_of(bind):
            known = self._in_flight[key]
            async with known.turn:
                try:
                    if not _is_made(bind, key):
                        await self._give_back(key, known, uid)
                    elif known.claim is not None:
                        await self._delete(known.claim)
                except KubeError as error:
                    metrics.log.warning("the resourceclaim %s stays reserved: %s", key, error)

    async def _give_back(self, key: str, known: _InFlight, uid: str) -> None:
        path = kinds.RESOURCE_CLAIMS.path(*_named(key))
        claim = known.claim
        for _ in range(_TRIES):
            if claim is None or all(consumer.uid != uid for consumer in claim.status.reserved_for):
                return
            self._check_leader()
            try:
                known.claim = await self._patch(f"{path}/status", wire_claims.released(claim, uid))
                return
            except NotFound:
                return
            except Conflict:
                claim = known.claim = await self._get(key)

    async def _delete(self, claim: ResourceClaim) -> None:
        path = _path(claim)
        self._check_leader()
        try:
            for _ in range(_TRIES):
                try:
                    if wire_claims.FINALIZER in claim.metadata.finalizers:
                        claim = await self._patch(path, wire_claims.without_finalizer(claim.metadata))
                    break
                except Conflict:
                    now = await self._get(f"{claim.metadata.namespace}/{claim.metadata.name}")
                    if now.metadata.uid != claim.metadata.uid:
                        return
                    claim = now
            await self._client.request("DELETE", path, {"preconditions": {"uid": claim.metadata.uid}})
        except NotFound:
            return


def _claims_of(bind: Bind) -> tuple[str, ...]:
    """The keys of all claims to reserve for the pod."""
    return bind.reserve if bind.made is None else (*bind.reserve, bind.made.claim)


def _is_made(bind: Bind, key: str) -> bool:
    """Whether this is the claim for the pod's extended resources."""
    return bind.made is not None and bind.made.claim == key


def _owned(claim: ResourceClaim, pod_uid: str) -> bool:
    return any(owner.uid == pod_uid and owner.controller for owner in claim.metadata.owner_references)


def _same(key: str, claim: ResourceClaim, decided: ResourceClaim, granted: Allocation | None) -> ResourceClaim:
    """The claim, if it is still the one of the decision. Raises NotReady where it has changed."""
    if claim.metadata.uid != decided.metadata.uid:
        raise NotReady(f"the resourceclaim {key} was deleted and made again")
    now = claim.status.allocation
    if now == decided.status.allocation if granted is None else now is None or _is(now, granted):
        return claim
    what = "was released" if now is None else "was allocated by somebody else"
    raise NotReady(f"the resourceclaim {key} {what} in the meantime")


def _path(claim: ResourceClaim) -> str:
    return kinds.RESOURCE_CLAIMS.path(claim.metadata.namespace, claim.metadata.name)


def _named(key: str) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return namespace, name


def _results(claim: ResourceClaim | None) -> tuple[DeviceResult, ...]:
    allocation = claim.status.allocation if claim is not None else None
    return allocation.devices.results if allocation is not None else ()


def _is(allocation: AllocationResult, granted: Allocation) -> bool:
    """Whether the allocation equals our decision: an earlier write may have succeeded and its answer been lost."""
    mine = [(g.request, g.driver, g.pool, g.device, g.share) for g in granted.grants]
    return mine == [(r.request, r.driver, r.pool, r.device, r.share_id) for r in allocation.devices.results]
