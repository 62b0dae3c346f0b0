# SPDX-License-Identifier: Apache-2.0
"""The planes and requests that there are, and how far the negotiation of each request is.

Rules: events only enter records here; `broker` reads what is new in the next step. Of a request one workload waits in
the queue: the placeholders of its first alternative. The others are tried when that one is refused. A plane has one
offer outstanding at a time, so what it can keep from others without a lease is bounded.
"""

from __future__ import annotations

from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.places import Places
from dovetail.core.bargaining.states import RequestState
from dovetail.core.bargaining.timers import Timers
from dovetail.core.bargaining.types import LEAVES, LeaseRequest, Plane, ServiceClass
from dovetail.core.queues.pod_queues import PodQueues
from dovetail.core.queues.tree import Tree


class Requests:
    """`planes` and `negotiations` by id, `by_workload` the requests whose workload waits in the queue, `offered` by
    plane the request with an offer outstanding. `news` are requests that are new, changed or answered, `gone` those
    that were removed, `moved` planes that are new, changed or gone. `timers` end offers, back-offs and waits for a
    start, `heartbeats` planes that are silent. `pod_queues` has the queue of the plane of each namespace."""

    def __init__(self, pod_queues: PodQueues) -> None:
        self._pod_queues = pod_queues
        self.planes: dict[str, Plane] = {}
        self.negotiations: dict[str, Negotiation] = {}
        self.by_plane: dict[str, dict[str, None]] = {}
        self.by_workload: dict[str, Negotiation] = {}
        self.offered: dict[str, str] = {}
        self.news: dict[str, LeaseRequest] = {}
        self.gone: dict[str, None] = {}
        self.moved: dict[str, None] = {}
        self.timers = Timers()
        self.heartbeats = Timers()
        self.places = Places()
        self.silent: dict[str, None] = {}
        """Planes whose heartbeats are missing."""

    def __bool__(self) -> bool:
        """Whether something is to be read in the next step."""
        return bool(self.news or self.gone or self.moved or self.places.freed)

    def put(self, request: LeaseRequest) -> None:
        """A request is new, has changed, or was answered. One that was removed just before starts again."""
        known = self.negotiations.get(request.id)
        if known is None or known.request != request or request.id in self.gone:
            self.news[request.id] = request

    def remove(self, request_id: str) -> None:
        self.news.pop(request_id, None)
        if request_id in self.negotiations:
            self.gone[request_id] = None

    def put_plane(self, plane: Plane) -> None:
        if self.planes.get(plane.id) != plane:
            self.planes[plane.id] = plane
            self._pod_queues.by_namespace[plane.namespace] = plane.leaf
            self.moved[plane.id] = None

    def remove_plane(self, plane_id: str) -> None:
        plane = self.planes.pop(plane_id, None)
        if plane is not None:
            if self._pod_queues.by_namespace.get(plane.namespace) == plane.leaf:
                del self._pod_queues.by_namespace[plane.namespace]
            self.heartbeats.drop(plane_id)
            self.silent.pop(plane_id, None)
            self.moved[plane_id] = None

    def queue_changed(self, name: str, tree: Tree) -> None:
        """A queue that planes may be below is another one."""
        for plane in self.planes.values():
            if plane.queue == name or name in tree.known_path(plane.queue):
                self.moved[plane.id] = None

    def heartbeat(self, plane_id: str, now_ms: int) -> None:
        """The plane is alive."""
        plane = self.planes.get(plane_id)
        if plane is None or not plane.heartbeat_ms:
            return
        if plane_id in self.silent:
            del self.silent[plane_id]
            self.moved[plane_id] = None
        self.heartbeats.put(plane_id, now_ms + 3 * plane.heartbeat_ms)

    def silence(self, plane_id: str) -> None:
        """Heartbeats of the plane are missing."""
        if plane_id in self.planes:
            self.heartbeats.drop(plane_id)
            self.silent[plane_id] = None
            self.moved[plane_id] = None

    def enter(self, request: LeaseRequest) -> Negotiation:
        """A request is new."""
        one = self.negotiations[request.id] = Negotiation(request, alternatives=request.alternatives)
        self.by_plane.setdefault(request.plane, {})[request.id] = None
        return one

    def restore(self, one: Negotiation) -> None:
        """Enter a request as far as it was."""
        request, waiting, number = one.request, one.waiting, one.number
        self.negotiations[request.id] = one
        self.by_plane.setdefault(request.plane, {})[request.id] = None
        if waiting:
            one.waiting = ""
            self.wait(one, waiting, number)

    def leave(self, one: Negotiation) -> None:
        """A request for which nothing waits and nothing is held is gone."""
        del self.negotiations[one.request.id]
        own = self.by_plane[one.request.plane]
        del own[one.request.id]
        if not own:
            del self.by_plane[one.request.plane]
        self.timers.drop(one.request.id)
        self.places.leave(one.request)

    def wait(self, one: Negotiation, workload: str, number: int) -> None:
        """This workload, of the alternative `number`, waits for the request; "" for none."""
        self.by_workload.pop(one.waiting, None)
        one.waiting, one.number = workload, number
        if workload:
            self.by_workload[workload] = one

    def scavenges(self, workload: str) -> bool:
        """Whether the workload waits for what is idle: nothing is held for it."""
        one = self.by_workload.get(workload)
        return one is not None and one.alternatives[one.number].service is ServiceClass.SCAVENGER

    def by_age(self, plane_id: str) -> list[Negotiation]:
        """The requests of a plane that are not settled, the oldest first. There may be very many: see `placed`."""
        own = [self.negotiations[request_id] for request_id in self.by_plane.get(plane_id, ())]
        return sorted([one for one in own if one.state not in (RequestState.GRANTED, RequestState.DENIED)], key=_age)

    def placed(self, plane_id: str) -> list[Negotiation]:
        """The requests of a plane that have a place, the oldest first."""
        return sorted([self.negotiations[request_id] for request_id in self.places.of(plane_id)], key=_age)

    def next_ms(self) -> int | None:
        """When something is due, although nothing happens."""
        times = [at_ms for at_ms in (self.timers.next_ms(), self.heartbeats.next_ms()) if at_ms is not None]
        return min(times, default=None)

    def plane_of(self, namespace: str) -> Plane | None:
        """The plane that a namespace belongs to."""
        leaf = self._pod_queues.by_namespace.get(namespace)
        return self.planes.get(leaf.removeprefix(LEAVES)) if leaf is not None else None


def _age(one: Negotiation) -> tuple[int, str]:
    return one.request.created_ms, one.request.id
