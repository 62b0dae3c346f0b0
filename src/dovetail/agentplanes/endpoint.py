# SPDX-License-Identifier: Apache-2.0
"""One side of the carrier: the endpoint of a plane, in this process.

Rules
- What is read is on disk: nothing on the host follows from a write that a crash could take back.
- What is written is on disk before `write` returns. A write that has no object any more, or that the plane has no room
  for, is left out: the next decision sees what is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dovetail.agentplanes import names
from dovetail.agentplanes.carry_actions import Announce, BindOnEndpoint, RemoveFromEndpoint, ShowStatus
from dovetail.agentplanes.endpoint_pod import ConfigMaps
from dovetail.agentplanes.wants import GroupMinima
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import Object, key_of, timestamp, value_at
from dovetail.apiserver.planes.host import PlaneHost
from dovetail.apiserver.planes.plane import CATALOGUE, PlaneApi
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.apiserver.resources import PODS
from dovetail.kube.translate.event_documents import event_name

EndpointWrite = ShowStatus | BindOnEndpoint | RemoveFromEndpoint | Announce
_GROUPS = "podgroups.scheduling.k8s.io"
_CONFIG_MAPS = "configmaps"
_EVENTS = CATALOGUE.of_collection("events")
_log = logging.getLogger(__name__)


class PlaneEndpoint:
    """The endpoint of a plane that the host serves."""

    def __init__(self, host: PlaneHost, name: PlaneName) -> None:
        self._host = host
        self._name = name

    async def read(self) -> tuple[list[Object], GroupMinima, ConfigMaps]:
        """The pods, how many pods each PodGroup needs, and the ConfigMaps. Raises KeyError if the plane is gone,
        StoreUnreadable, and a 503 Failure."""
        async with self._host.plane(self._name.namespace, self._name.name) as api:
            pods = api.store.list(PODS.collection)
            groups: dict[tuple[str, str], int] = {}
            for group in api.store.list(_GROUPS):
                least = value_at(group, "spec.schedulingPolicy.gang.minCount")
                groups[key_of(group)] = least if isinstance(least, int) else 1
            maps = {key_of(one): one for one in api.store.list(_CONFIG_MAPS)}
            await api.store.written()
        return pods, groups, maps

    async def write(self, actions: Sequence[EndpointWrite]) -> None:
        """Carry these out. Raises as `read`."""
        async with self._host.plane(self._name.namespace, self._name.name) as api:
            for action in actions:
                try:
                    _write(api, action)
                except Failure as failure:
                    _log.info("plane %s: %s: %s", self._name, type(action).__name__, failure)
            await api.store.written()


def _write(api: PlaneApi, action: EndpointWrite) -> None:
    namespace, name = action.key
    match action:
        case ShowStatus():
            new = {"metadata": {"name": name, "namespace": namespace, "uid": action.uid}, "status": action.status}
            before = api.writes.existing(PODS, action.key)
            kept = {field: value_at(before, f"metadata.{field}") for field in ("labels", "annotations", "finalizers")}
            new["metadata"] |= {field: value for field, value in kept.items() if value is not None}
            api.writes.update(PODS, action.key, new, "status")
        case BindOnEndpoint():
            metadata = {"name": name, "namespace": namespace, "uid": action.uid}
            api.writes.bind(PODS, action.key, {"metadata": metadata, "target": {"kind": "Node", "name": action.node}})
        case RemoveFromEndpoint():
            api.deletions.delete(
                PODS, action.key, {"gracePeriodSeconds": 0, "preconditions": {"uid": action.uid}}
            )  # fmt: skip
        case Announce():
            if _EVENTS is not None and api.writes.existing(PODS, action.key)["metadata"]["uid"] == action.uid:
                api.writes.create(_EVENTS, namespace, _event(action, timestamp(action.deadline_ms / 1000)))


def _event(action: Announce, at: str) -> Object:
    """The Event goes with its pod. Of one reason and deadline there is one, by its name."""
    namespace, name = action.key
    about = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": action.uid}
    digest = names.digest(action.uid, action.reason, str(action.deadline_ms))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(name, digest), "namespace": namespace, "ownerReferences": [about]},
        "involvedObject": about | {"namespace": namespace},
        "type": "Warning",
        "reason": action.reason,
        "message": action.message,
        "source": {"component": "dovetail"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
