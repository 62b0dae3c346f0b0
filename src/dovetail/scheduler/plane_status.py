# SPDX-License-Identifier: Apache-2.0
"""The status of control planes: whether each can have leases, what it has and used, and when it was last heard.

Rules
- A heartbeat is acknowledged once all that was decided about its namespace is written: `lastHeartbeat` is when, by the
  scheduler's clock, and `renewTime` the time in the heartbeat, as the agent wrote it. So what an agent reads after that
  has all that was decided until `lastHeartbeat`, and it knows that this was after it sent that heartbeat.
- That happens four times within the shortest grace of its live leases, as the agent counts on its leases no longer
  than that without it; without leases every minute. Each heartbeat that comes less often than that is acknowledged, and
  the first one of each process.
- Of several control planes in a namespace one counts; the others are Ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dovetail.core.bargaining.negotiating import takes_planes
from dovetail.core.bargaining.types import Plane
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.state import State
from dovetail.kube.api.resources import CONTROL_PLANES
from dovetail.kube.informers import Informers
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.lease_documents import Acknowledged, PlaneReport, acknowledged, plane_status
from dovetail.kube.translate.lease_records import SILENT
from dovetail.kube.translate.lease_requests import lease_id
from dovetail.scheduler.queue_status import StatusDue

_HEARD_MS = 60_000
READY, INVALID, IGNORED = "Ready", "Invalid", "Ignored"


class PlaneStatuses:
    """Called with the snapshots of all queues by name and the time. `pending`: whether something that was decided about
    a namespace is not written yet. `over`: whether leases of a plane are over whose objects wait for its status."""

    def __init__(
        self, mirror: Informers, state: Callable[[], State], pending: Callable[[str], bool], over: Callable[[str], bool]
    ) -> None:
        self._mirror = mirror
        self._state = state
        self._pending = pending
        self._over = over
        self._heard: dict[str, Acknowledged] = {}
        """The heartbeat of each plane that is in its status, or is to be."""
        self._holders: dict[str, str] = {}
        """The process that sent it."""

    def __call__(self, snapshots: dict[str, QueueSnapshot], now_ms: int) -> Iterator[StatusDue]:
        """The status of each control plane."""
        state, known = self._state(), self._mirror.control_planes.known
        ids = {lease_id(obj.metadata) for obj in known.values()}
        self._heard = {id_: heard for id_, heard in self._heard.items() if id_ in ids}
        self._holders = {id_: holder for id_, holder in self._holders.items() if id_ in ids}
        for obj in known.values():
            meta = obj.metadata
            if self._pending(meta.namespace):
                # What is charged may not be in the API yet: after a restart nobody would know what for.
                continue
            report = self._report(state, obj, snapshots, now_ms)
            status = plane_status(report, now_ms, obj.status)
            path = CONTROL_PLANES.path(meta.namespace, meta.name, "status")
            charged = report.snapshot is not None and bool(report.snapshot.rate_milli)
            id_ = lease_id(meta)
            key = meta.namespace, meta.name
            yield StatusDue(key, path, meta.uid, now_ms, status, _own(status), (), charged, self._over(id_))

    def _report(
        self, state: State, obj: wire.AgentControlPlane, snapshots: dict[str, QueueSnapshot], now_ms: int
    ) -> PlaneReport:
        id_ = lease_id(obj.metadata)
        plane = state.requests.planes.get(id_)
        if plane is None or plane.uid != obj.metadata.uid:
            return PlaneReport(IGNORED, "an older control plane of the namespace counts")
        phase, message = _phase(state, plane)
        requests = len(state.requests.by_age(id_))
        leases = len(state.leases.by_plane.get(id_, ()))
        heard = self._acknowledged(state, obj, plane, now_ms)
        return PlaneReport(phase, message, leases, requests, heard, snapshots.get(plane.leaf))

    def _acknowledged(
        self, state: State, obj: wire.AgentControlPlane, plane: Plane, now_ms: int
    ) -> Acknowledged | None:
        """The heartbeat that is to be in the status."""
        heard = self._mirror.feed.leases.heard(plane.id)
        last = self._heard.get(plane.id) or acknowledged(obj.status)
        if heard is None or heard.renew_time is None:
            return last
        graces = [state.leases.live[one].lease.grace_ms for one in state.leases.by_plane.get(plane.id, ())]
        every_ms = min([_HEARD_MS, *[grace_ms // 4 for grace_ms in graces]])
        renewed_ms = epoch_ms(heard.renew_time)
        new = last is None or plane.id not in self._heard or self._holders.get(plane.id) != heard.holder_identity
        if new or (last is not None and abs(renewed_ms - last.renewed_ms) >= every_ms):
            self._heard[plane.id] = last = Acknowledged(renewed_ms, now_ms)
            self._holders[plane.id] = heard.holder_identity
        return last


def _phase(state: State, plane: Plane) -> tuple[str, str]:
    """The phase of a plane that counts, and why it is not Ready."""
    if plane.problem is not None:
        return INVALID, str(plane.problem)
    if not takes_planes(state, plane):
        return INVALID, f"the queue {plane.queue!r} does not exist or takes no control planes (spec.planes)"
    if plane.id in state.requests.silent:
        return SILENT, f"no heartbeat for {3 * plane.heartbeat_ms // 1000} s"
    return READY, ""


def _own(status: dict[str, Any]) -> dict[str, Any]:
    """The status without the parts that change with time alone."""
    conditions = [{k: v for k, v in one.items() if k != "lastTransitionTime"} for one in status["conditions"]]
    usage = status.get("usage", {}).get("rate")
    return status | {"usage": usage, "conditions": conditions}
