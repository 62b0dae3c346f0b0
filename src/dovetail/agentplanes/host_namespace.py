# SPDX-License-Identifier: Apache-2.0
"""One side of the carrier: the pods of one plane in its namespace on the host."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import field

from dovetail.agentplanes import names
from dovetail.agentplanes.carry_actions import CreateOnHost, DeleteOnHost
from dovetail.agentplanes.facts import HostPod
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound, TooManyRequests
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.base import ObjectMeta, Wire

_MOST_GONE = 1000
_UNSEEN_S = 60.0
"""A pod that was created and that the watch has not shown for so long is gone."""
_FENCE = re.compile(r"[0-9]{1,18}")


class CarriedSpec(Wire, frozen=True):
    node_name: str = ""


class CarriedPod(Wire, frozen=True):
    """A pod as it is read back: its status is shown to the agent, so it is kept as it came."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CarriedSpec = CarriedSpec()
    status: dict[str, Any] = field(default_factory=dict)


class HostNamespace:
    """The pods of the plane with this uid. `changed` is called when something of them has changed."""

    def __init__(self, client: Client, namespace: str, plane_uid: str, changed: Callable[[], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._plane_uid = plane_uid
        self._changed = changed
        self._made: dict[str, tuple[float, HostPod]] = {}
        """By the uid of the endpoint's pod: created at that moment, and not seen yet."""
        self.gone: OrderedDict[str, HostPod] = OrderedDict()
        """The last states of pods that are gone."""
        self.reflector = Reflector(
            client, PODS.inside(namespace), CarriedPod, self._take, params={"labelSelector": self._selector}
        )

    @property
    def _selector(self) -> str:
        return f"{names.PLANE_UID}={self._plane_uid}"

    def pods(self) -> Mapping[str, HostPod]:
        """By the uid of the endpoint's pod. Pods with our labels that others made are not among them."""
        late_s = time.monotonic() - _UNSEEN_S
        self._made = {uid: made for uid, made in self._made.items() if made[0] > late_s}
        found = {uid: host for uid, (_, host) in self._made.items()}
        for pod in self.reflector.known.values():
            host = host_pod_of(pod, self._plane_uid)
            if host is not None:
                found[host.pod_uid] = host
        return found

    async def create(self, action: CreateOnHost) -> str:
        """Create the pod; "" once it is there, else why the host refuses it. Raises ApiError: that is not known."""
        document = action.document
        path = PODS.path(self._namespace)
        try:
            made = await self._client.request("POST", path, document, decode=CarriedPod)
        except AlreadyExists:
            return ""
        except ApiError as error:
            if 400 <= error.status < 500 and not isinstance(error, TooManyRequests):
                return error.message
            raise
        host = host_pod_of(made, self._plane_uid)
        if host is not None:
            self._made[host.pod_uid] = time.monotonic(), host
            self.gone.pop(host.pod_uid, None)
        return ""

    async def delete(self, action: DeleteOnHost) -> None:
        """Delete the pod, unless another one has its name. Raises ApiError."""
        options = {"gracePeriodSeconds": action.grace_s, "preconditions": {"uid": action.uid}}
        with suppress(NotFound, Conflict):
            await self._client.fetch("DELETE", PODS.path(self._namespace, action.name), options)

    async def clear(self) -> None:
        """Delete all pods of the plane. Raises ApiError."""
        listed = await list_all(
            self._client, PODS.inside(self._namespace), CarriedPod, params={"labelSelector": self._selector}
        )
        for pod in listed.objects.values():
            host = host_pod_of(pod, self._plane_uid)
            if host is not None and not host.deleting:
                await self.delete(DeleteOnHost(host.name, host.uid, 0))

    def _take(self, changes: list[Change[CarriedPod]]) -> None:
        for change in changes:
            host = host_pod_of(change.object, self._plane_uid)
            if host is None:
                continue
            self._made.pop(host.pod_uid, None)
            if change.kind == "deleted":
                self.gone[host.pod_uid] = host
                while len(self.gone) > _MOST_GONE:
                    self.gone.popitem(last=False)
        self._changed()


def host_pod_of(pod: CarriedPod, plane_uid: str) -> HostPod | None:
    """The facts of it; None for a pod that is none of this plane's, whatever its labels are."""
    metadata, status = pod.metadata, pod.status
    pod_uid = metadata.labels.get(names.POD_UID, "")
    if not metadata.name.endswith(f"-{names.digest(plane_uid, pod_uid)}"):
        return None
    fence = metadata.annotations.get(names.FENCE, "")
    return HostPod(
        metadata.name,
        metadata.uid,
        pod_uid,
        str(status.get("phase") or "Pending"),
        pod.spec.node_name,
        metadata.deletion_timestamp is not None,
        metadata.annotations.get(names.LEASE, ""),
        int(fence) if _FENCE.fullmatch(fence) else 0,
        metadata.labels.get(names.GANG, ""),
        status,
    )
