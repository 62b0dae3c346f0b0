# SPDX-License-Identifier: Apache-2.0
"""Which requests of a plane are negotiated, and which are beyond the number that it may have at a time.

Rules: a request keeps its place until it is settled, backs off, or may only start later. A place that is free goes to
the oldest request that is beyond. So whatever a plane asks for, what happens to it concerns only as many of its
requests as it has places.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from dovetail.core.bargaining.negotiation import PlacesRecord
from dovetail.core.bargaining.types import LeaseRequest

_STALE = 64
"""The number of outdated entries that a heap may have, beside twice the number of requests that are beyond."""


class Places:
    """By plane. `freed` are planes with a place that became free while requests were beyond."""

    def __init__(self) -> None:
        self.freed: dict[str, None] = {}
        self._taken: dict[str, dict[str, None]] = {}
        self._beyond: dict[str, dict[str, int]] = {}
        """When each was created."""
        self._by_age: dict[str, list[tuple[int, str]]] = {}
        """Heaps of those that are beyond. Outdated entries stay until they come up."""

    def open(self, plane_id: str) -> bool:
        """Let a plane have places. False where it has them already."""
        if plane_id in self._taken:
            return False
        self._taken[plane_id] = {}
        return True

    def close(self, plane_id: str) -> None:
        """The plane is gone."""
        for by_plane in (self._taken, self._beyond, self._by_age, self.freed):
            by_plane.pop(plane_id, None)

    def take(self, request: LeaseRequest, most: int) -> bool:
        """Whether the request has a place, or gets one of `most`. Else it is beyond."""
        taken = self._taken.setdefault(request.plane, {})
        if request.id in taken:
            return True
        if len(taken) < most:
            taken[request.id] = None
            self._beyond.get(request.plane, {}).pop(request.id, None)
            return True
        beyond = self._beyond.setdefault(request.plane, {})
        if request.id not in beyond:
            beyond[request.id] = request.created_ms
            heap = self._by_age.setdefault(request.plane, [])
            heapq.heappush(heap, (request.created_ms, request.id))
            if len(heap) > _STALE + 2 * len(beyond):
                heap[:] = [(created_ms, request_id) for request_id, created_ms in beyond.items()]
                heapq.heapify(heap)
        return False

    def leave(self, request: LeaseRequest) -> None:
        """The request needs no place."""
        beyond = self._beyond.get(request.plane, {})
        beyond.pop(request.id, None)
        taken = self._taken.get(request.plane, {})
        if request.id in taken:
            del taken[request.id]
            if beyond:
                self.freed[request.plane] = None

    def of(self, plane_id: str) -> tuple[str, ...]:
        """The requests of the plane that have a place."""
        return tuple(self._taken.get(plane_id, ()))

    def next(self, plane_id: str, most: int) -> str | None:
        """The oldest request that is beyond, which is not beyond any more; None while all of `most` places are taken,
        or where there is none."""
        beyond, heap = self._beyond.get(plane_id, {}), self._by_age.get(plane_id, [])
        while beyond and heap and len(self._taken.get(plane_id, ())) < most:
            created_ms, request_id = heapq.heappop(heap)
            if beyond.get(request_id) == created_ms:
                del beyond[request_id]
                return request_id
        return None

    def records(self) -> tuple[PlacesRecord, ...]:
        """All of them, as `restore` takes them."""
        return tuple([
            PlacesRecord(plane_id, tuple(taken), tuple(self._beyond.get(plane_id, {}).items()))
            for plane_id, taken in self._taken.items()
        ])  # fmt: skip

    def restore(self, records: Iterable[PlacesRecord]) -> None:
        for one in records:
            self._taken[one.plane] = dict.fromkeys(one.taken)
            self._beyond[one.plane] = dict(one.beyond)
            self._by_age[one.plane] = sorted([(created_ms, request_id) for request_id, created_ms in one.beyond])
