# SPDX-License-Identifier: Apache-2.0
"""Changes of the objects of leases as events of the core.

Rules
- Of the control planes of a namespace the oldest is reported, the others are not. When it goes, the next one takes its
  place, which is another plane.
- A request that is granted is settled: it is reported as removed, and its lease goes on alone. So is one whose lease
  was read, also after the end of that lease: the watch of requests may be late, and a request leads to one lease. While
  a GPULease of its name exists that another request led to, a request has a Problem.
- The usage of a plane is read when the plane is first reported, and by a process that begins to lead: later writes of
  its status are no event.
- A lease is reported when it is first read, also one that has ended by then; what the scheduler itself writes later is
  no event. It is removed when its object is gone or has ended. A lease that the core has ended is none from then on,
  also where it is read for the first time after that: it was charged.
- An action is reported once; a heartbeat when its time has moved on.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseRequest, Plane
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate import lease_requests, leases
from dovetail.kube.translate.lease_requests import lease_id
from dovetail.kube.translate.standalone import AnyChange, Find

HEARTBEAT = "dovetail.dev/heartbeat"
"""The label of Leases (coordination.k8s.io) that are read: each node and each leader renews one, too."""
SILENT = "Silent"
"""The phase of a plane whose heartbeats are missing."""
_MOST_OVER = _MOST_SETTLED = 10_000


class LeaseObjects(Struct, frozen=True):
    """The objects of leases, in the order in which they were first read."""

    planes: tuple[wire.AgentControlPlane, ...] = ()
    requests: tuple[wire.LeaseRequest, ...] = ()
    leases: tuple[wire.GPULease, ...] = ()


class LeaseRecords:
    """Each method takes the changes of one resource and returns their events, in order. `find` receives the findings of
    an object ("GPULease NAMESPACE/NAME"): one that the scheduler cannot have written."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self.follows = True
        """Whether heartbeats are read: else none are expected, and a plane is silent if its status reports that."""
        self._planes: dict[str, dict[str, wire.AgentControlPlane]] = {}
        self._counting: dict[str, Plane] = {}
        self._requests: dict[str, wire.LeaseRequest] = {}
        self._reported: dict[str, LeaseRequest] = {}
        self._leases: dict[str, wire.GPULease] = {}
        self._live: dict[str, int] = {}
        """The fences of those that were reported and not removed."""
        self._over: dict[tuple[str, int], None] = {}
        """Leases that the core has ended, by id and fence: the last ones, as objects go some seconds later."""
        self._settled: dict[tuple[str, str], None] = {}
        """Requests, by id and uid, whose lease was read and is gone: the last ones, until they are gone, too."""
        self._actions: dict[str, tuple[str, int]] = {}
        self._heard: dict[str, wire.HeartbeatSpec] = {}

    def planes(self, changes: Iterable[AnyChange[wire.AgentControlPlane]]) -> list[ev.Event]:
        events: list[ev.Event] = []
        for change in changes:
            meta = change.object.metadata
            there = self._planes.setdefault(meta.namespace, {})
            if change.kind == "deleted":
                there.pop(meta.name, None)
            else:
                there[meta.name] = change.object
            counting = leases.counting(there)
            if counting is None:
                del self._planes[meta.namespace]
            about = f"AgentControlPlane {lease_id(meta)}"
            self._find(about, leases.usage(change.object)[1] if change.kind != "deleted" else ())
            record = leases.plane(counting) if counting is not None else None
            silent = False
            if record is not None and counting is not None and not self.follows:
                silent = counting.status is not None and counting.status.phase == SILENT
                record = record if silent else replace(record, heartbeat_ms=0)
            events += self._count(meta.namespace, record)
            if record is not None and silent:
                events.append(ev.PlaneSilent(record.id))
        return events

    def _count(self, namespace: str, plane: Plane | None) -> list[ev.Event]:
        """This plane counts in the namespace now."""
        before, events = self._counting.get(namespace), list[ev.Event]()
        same = before is not None and plane is not None and (plane.id, plane.uid) == (before.id, before.uid)
        if plane is not None and before is not None and same:
            plane = replace(plane, usage=before.usage)
        if before == plane:
            return []
        if before is not None and not same:
            events.append(ev.PlaneRemoved(before.id))
            del self._counting[namespace]
        if plane is not None:
            self._counting[namespace] = plane
            events.append(ev.PlaneChanged(plane))
        return events

    def leading(self) -> list[ev.Event]:
        """What another process has charged while this one followed it: the usage of planes as their status has it now,
        and the leases that are over."""
        events: list[ev.Event] = []
        for namespace, plane in self._counting.items():
            written = self._planes[namespace][plane.id.partition("/")[2]]
            now = replace(plane, usage=leases.usage(written)[0])
            if now != plane:
                self._counting[namespace] = now
                events.append(ev.PlaneChanged(now))
        past = map(leases.past, self._leases.values())
        return events + [one for one in past if one is not None]

    def requests(self, changes: Iterable[AnyChange[wire.LeaseRequest]]) -> list[ev.Event]:
        events: list[ev.Event] = []
        for change in changes:
            id_ = lease_id(change.object.metadata)
            if change.kind == "deleted":
                self._requests.pop(id_, None)
                self._settled.pop((id_, change.object.metadata.uid), None)
            else:
                self._requests[id_] = change.object
            events += self._report(id_)
        return events

    def _report(self, id_: str) -> list[ev.Event]:
        obj, before = self._requests.get(id_), self._reported.get(id_)
        record = None
        if obj is not None and (id_, obj.metadata.uid) not in self._settled:
            record = lease_requests.request(obj, self._leases.get(id_))
        if record == before:
            return []
        if record is None:
            del self._reported[id_]
            return [ev.LeaseRequestRemoved(id_)]
        self._reported[id_] = record
        return [ev.LeaseRequestChanged(record)]

    def leases(self, changes: Iterable[AnyChange[wire.GPULease]]) -> list[ev.Event]:
        events: list[ev.Event] = []
        for change in changes:
            obj, meta = change.object, change.object.metadata
            id_ = lease_id(meta)
            over = (id_, obj.spec.fence) in self._over
            record, problem = leases.lease(obj) if change.kind != "deleted" and not over else (None, None)
            if id_ not in self._leases and not over and (past := leases.past(obj)) is not None:
                events.append(past)
            self._find(f"GPULease {id_}", (LayoutFinding("GPULease", id_, problem),) if problem is not None else ())
            if record is None:
                if id_ in self._live:
                    events.append(ev.LeaseRemoved(id_, self._live.pop(id_)))
            elif id_ not in self._live:
                self._live[id_] = record.fence
                events.append(ev.LeaseChanged(record))
            if change.kind == "deleted":
                self._leases.pop(id_, None)
                self._actions.pop(id_, None)
                self._settle(id_, obj.spec.request_uid)
            else:
                self._leases[id_] = obj
                events += self._action(id_, obj)
            events += self._report(id_)
        return events

    def _settle(self, id_: str, request_uid: str) -> None:
        """The lease that this request led to is gone."""
        if request_uid:
            self._settled[id_, request_uid] = None
        if len(self._settled) > _MOST_SETTLED:
            del self._settled[next(iter(self._settled))]

    def over(self, id_: str, fence: int) -> None:
        """The core has ended this lease."""
        self._over[id_, fence] = None
        if len(self._over) > _MOST_OVER:
            del self._over[next(iter(self._over))]

    @property
    def objects(self) -> LeaseObjects:
        """All objects as they were last read."""
        planes = [one for there in self._planes.values() for one in there.values()]
        return LeaseObjects(tuple(planes), tuple(self._requests.values()), tuple(self._leases.values()))

    def again(self, id_: str) -> list[ev.Event]:
        """The request starts again, if it is still reported."""
        record = self._reported.get(id_)
        return [ev.LeaseRequestRemoved(id_), ev.LeaseRequestChanged(record)] if record is not None else []

    def heard(self, plane_id: str) -> wire.HeartbeatSpec | None:
        """The last heartbeat of a plane, which its agent wrote."""
        return self._heard.get(plane_id)

    def _action(self, id_: str, obj: wire.GPULease) -> list[ev.Event]:
        asked = leases.action(obj)
        if asked is None or self._actions.get(id_) == (obj.metadata.uid, asked.number):
            return []
        self._actions[id_] = (obj.metadata.uid, asked.number)
        return [ev.LeaseActed(asked)]

    def heartbeats(self, changes: Iterable[AnyChange[wire.Heartbeat]]) -> list[ev.Event]:
        """Of Leases (coordination.k8s.io) those count that have the name of the plane of their namespace."""
        events: list[ev.Event] = []
        for change in changes:
            meta, spec = change.object.metadata, change.object.spec
            id_, plane = lease_id(meta), self._counting.get(meta.namespace)
            if change.kind == "deleted":
                self._heard.pop(id_, None)
            elif plane is not None and plane.id == id_ and spec.renew_time is not None and self._heard.get(id_) != spec:
                self._heard[id_] = spec
                events.append(ev.PlaneHeartbeat(id_))
        return events
