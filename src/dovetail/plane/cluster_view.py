# SPDX-License-Identifier: Apache-2.0
"""What an agent knows of the objects of its plane, and the news in each change of them.

Rules
- Changes come from watches and from lists that were read beside them. Of one object only a newer version counts, and
  after a list no change that it already shows. Versions are compared as numbers, of one kind only; Kubernetes 1.35 made
  that part of the API.
- A lease that cannot be read is gone: what its scheduler decides about it cannot be known.
- A request that was granted is news after its lease, which is written before it: where the lease is not known yet, a
  list shows it, or that it is over (`unsettled`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from msgspec import Struct

from dovetail.core.bargaining.states import GpuLeaseState, RequestState
from dovetail.kube.api.decoding import BadObject, WatchEvent
from dovetail.kube.api.listing import Listing
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate import leases
from dovetail.kube.translate.agent_documents import cause_of, offers_of
from dovetail.kube.translate.lease_requests import lease_id
from dovetail.plane.broker import (
    Current,
    LeaseGone,
    LeaseNotice,
    Listed,
    Notice,
    RequestGone,
    RequestNotice,
)

log = logging.getLogger(__name__)
GRANTED = RequestState.GRANTED.value
ENDED = GpuLeaseState.ENDED.value
_ANSWER_REFUSED = ("OfferGone", "CounterOfferRefused")


class _Held(Struct, frozen=True):
    """A live lease as it was last read."""

    uid: str
    version: int
    status: wire.GPULeaseStatus | None
    notice: LeaseNotice


class PlaneView:
    """`plane` is its id. `control` is its AgentControlPlane, None where there is none."""

    def __init__(self, plane: str) -> None:
        self.namespace, _, self.name = plane.partition("/")
        self.control: wire.AgentControlPlane | None = None
        self._held: dict[str, _Held] = {}
        self._floor = 0
        """The version of the last list of leases."""
        self._requests: dict[str, RequestNotice] = {}

    @property
    def holds(self) -> bool:
        """Whether a lease is live, as far as is known."""
        return bool(self._held)

    def unsettled(self, news: Iterable[Notice]) -> bool:
        """Whether a request was granted whose lease is not known: only a list shows whether that is over."""
        return any(isinstance(one, RequestNotice) and one.state == GRANTED and one.id not in self._held for one in news)

    def all(self, at_ms: int) -> list[Notice]:
        """Everything, as after a list. All that was decided until `at_ms` is in it (0: not known)."""
        listed = Listed(frozenset(self._requests), frozenset(self._held))
        found: list[Notice] = [one.notice for one in self._held.values()]
        return [*found, *self._requests.values(), listed, *([Current(at_ms)] if at_ms else [])]

    def control_changed(self, events: Iterable[WatchEvent[wire.AgentControlPlane] | BadObject]) -> None:
        for event in events:
            if isinstance(event, BadObject):
                _report(event)
            else:
                self.control = event.object if event.type != "DELETED" else None

    def requests_listed(self, listing: Listing[wire.LeaseRequest]) -> None:
        for one in listing.bad:
            _report(one)
        self._requests = {notice.id: notice for notice in map(self._request, listing.objects.values()) if notice}

    def requests_changed(self, events: Iterable[WatchEvent[wire.LeaseRequest] | BadObject]) -> list[Notice]:
        found: list[Notice] = []
        for event in events:
            if isinstance(event, BadObject):
                _report(event)
                continue
            notice = self._request(event.object)
            if notice is None:
                continue
            if event.type == "DELETED":
                if self._requests.pop(notice.id, None) is not None:
                    found.append(RequestGone(notice.id))
            elif self._requests.get(notice.id) != notice:
                self._requests[notice.id] = notice
                found.append(notice)
        return found

    def _request(self, obj: wire.LeaseRequest) -> RequestNotice | None:
        """The news of a request of this plane."""
        if obj.spec.plane != self.name:
            return None
        id_, status = lease_id(obj.metadata), obj.status or wire.LeaseRequestStatus()
        refused = status.reason in _ANSWER_REFUSED
        return RequestNotice(
            id_, status.state, offers_of(status), epoch_ms(status.offers_until) or epoch_ms(status.tried),
            status.reason, status.message, epoch_ms(status.expected_start),
            status.message or status.reason if refused else "", status.observed_generation if refused else 0,
        )  # fmt: skip

    def leases_listed(self, listing: Listing[wire.GPULease]) -> list[Notice]:
        """A list that was read later than all that is known: what it lacks is gone."""
        found: list[Notice] = []
        for bad in listing.bad:
            found += self._unreadable(bad)
        there = {lease_id(obj.metadata) for obj in listing.objects.values()}
        version = _number(listing.resource_version)
        for id_ in [id_ for id_, held in self._held.items() if id_ not in there and held.version <= version]:
            found += self._gone(id_, self._held[id_].status)
        for obj in listing.objects.values():
            found += self._lease(obj)
        self._floor = max(self._floor, version)
        return found

    def leases_changed(self, events: Iterable[WatchEvent[wire.GPULease] | BadObject]) -> list[Notice]:
        found: list[Notice] = []
        for event in events:
            if isinstance(event, BadObject):
                found += self._unreadable(event)
            elif _number(event.object.metadata.resource_version) <= self._floor:
                continue
            elif event.type == "DELETED":
                found += self._gone(lease_id(event.object.metadata), event.object.status)
            else:
                found += self._lease(event.object)
        return found

    def _lease(self, obj: wire.GPULease) -> Iterator[Notice]:
        if obj.spec.plane != self.name:
            return
        meta, status = obj.metadata, obj.status or wire.GPULeaseStatus()
        id_, version = lease_id(meta), _number(meta.resource_version)
        before = self._held.get(id_)
        if before is not None and before.version >= version:
            return
        record, problem = leases.lease(obj)
        if problem is not None:
            log.warning("GPULease %s is not understood, and counts as lost: %s", id_, problem)
        if before is not None and before.uid != meta.uid:
            yield from self._gone(id_, before.status)
        if record is None:
            yield from self._gone(id_, status)
            return
        state = status.state or GpuLeaseState.ACTIVE.value
        notice = LeaseNotice(record, state, status.action, status.refused)
        self._held[id_] = _Held(meta.uid, version, status, notice)
        if before is None or before.notice != notice:
            yield notice

    def _gone(self, id_: str, status: wire.GPULeaseStatus | None) -> Iterator[Notice]:
        if self._held.pop(id_, None) is not None:
            yield LeaseGone(id_, cause_of(status))

    def _unreadable(self, bad: BadObject) -> Iterator[Notice]:
        _report(bad)
        if bad.key is not None:
            yield from self._gone("/".join(bad.key), None)


def _report(bad: BadObject) -> None:
    log.warning("%s %s cannot be read: %s", bad.resource, "/".join(bad.key or ("?",)), bad.problem)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
