# SPDX-License-Identifier: Apache-2.0
"""Which pods of this node still wait for their devices, and which devices were chosen for them.

Rules
- The kubelet's calls do not name the pod. The kubelet admits pods in the order of its watch, so the candidates are the
  pods of our own watch, in the order in which it first showed them bound. The scheduler keeps at most one pod in flight
  for a node, resource and size, so usually there is one candidate. Of several the first counts whose chosen devices are
  available.
- A pod is in flight until the kubelet has started it (Running, or with statuses of containers), until it has ended, or
  until each of its containers has its devices. Inside a pod the kubelet serves the init containers first, in the order
  of the spec.
- The chosen devices are in the annotation dovetail.dev/devices: indices of GPUs ("0,1"), or MIG instances
  ("0/1g.5gb@6"). An entry is called a part, and is kept as written. A value that is not such a list is a fault; the pod
  then counts as one without chosen devices. The choice is `recorded` if the scheduler's record of the pod
  (`kube.translate.bound`) has the same value: only then the scheduler's accounting has it.
- A resource that a container has through a claim (`extendedResourceClaimStatus`) is not requested here.
- The kubelet calls once for each container, so each call is for another container than the one before; after a restart
  the kubelet calls again. A call that arrives before its pod waits for the watch, `wait_s` at most. So does a call for
  which all known candidates have unavailable devices: it may be for a pod that the watch has not shown yet.
- After the kubelet has lost its checkpoint, started pods without devices are candidates too, after all others.
This module has parts only; `plugin.offers` maps them to device ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct, field

from dovetail.agent.kubelet.container_networks import ContainerNetwork, networks_of
from dovetail.agent.kubelet.podresources import PodDevices
from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import Key
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import PODS
from dovetail.kube.nodes import instances
from dovetail.kube.objects.base import Quantity
from dovetail.kube.objects.pods import SIDECAR, Container
from dovetail.kube.objects.pods_on_node import PodOnNode
from dovetail.kube.translate.annotations import DEVICES
from dovetail.kube.translate.bound import read

_CARD = re.compile(r"0|[1-9][0-9]?")
_WAIT_S = 2.0


class ContainerRequest(Struct, frozen=True):
    """How many devices of a resource a container requests. `listed`: PodResources lists the container; it does not list
    init containers that end."""

    container: str
    size: int
    listed: bool


class BoundPod(Struct):
    """A pod of this node.

    written, parts: the annotation dovetail.dev/devices, and its parts; None if no devices were chosen.
    fault: what is wrong with the annotation, "" if nothing is.
    recorded: the scheduler's record of the pod has the same choice.
    requests, open: all requests by resource, and those that are not served yet.
    started: the kubelet has started it.
    fresh: it was bound after the kubelet had registered this process.
    networks: by the name of a container what it can use of the network.
    allocated: by resource the parts that Allocate returned.
    held: by resource the ids that PodResources lists."""

    namespace: str
    name: str
    uid: str
    written: str
    parts: tuple[str, ...] | None
    fault: str
    recorded: bool
    requests: dict[str, tuple[ContainerRequest, ...]]
    open: dict[str, list[ContainerRequest]]
    started: bool
    fresh: bool
    networks: dict[str, ContainerNetwork] = field(default_factory=dict)
    allocated: dict[str, set[str]] = field(default_factory=dict)
    held: dict[str, frozenset[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def wants(self, resource: str, size: int) -> bool:
        return any(request.size == size for request in self.open.get(resource, ()))

    def serve(self, resource: str, size: int) -> None:
        """Remove one open request of this size: it is being served."""
        self.open[resource].remove(next(request for request in self.open[resource] if request.size == size))

    def unconfirmed(self, resource: str) -> bool:
        """Whether it must have devices of the resource that PodResources has not shown yet."""
        served = self.started or resource in self.allocated
        listed = any(request.listed for request in self.requests.get(resource, ()))
        return served and listed and resource not in self.held

    def passing(self, resource: str) -> bool:
        """Whether an init container that ends, and is then no longer listed, has devices of the resource."""
        return not all(request.listed for request in self.requests.get(resource, ()))


class ConfirmedDevices(Struct, frozen=True):
    """The device ids that a pod has according to the kubelet."""

    pod: BoundPod
    resource: str
    ids: frozenset[str]


class Allocations:
    """The pods of the node `node_name`, kept up to date by `run`. `synced` is set once all are known."""

    def __init__(self, client: Client, node_name: str, *, wait_s: float = _WAIT_S) -> None:
        params = {"fieldSelector": f"spec.nodeName={node_name}"}
        self._reflector = Reflector(client, PODS, PodOnNode, self.update, params=params)
        self._wait_s = wait_s
        self._pods: dict[str, BoundPod] = {}
        self._changed = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Follow the node's pods until cancelled."""
        await self._reflector.run()

    @property
    def synced(self) -> asyncio.Event:
        return self._reflector.synced

    @property
    def objects(self) -> Mapping[Key, PodOnNode]:
        """The pods of the node by namespace and name, also those that have ended."""
        return self._reflector.known

    @property
    def pods(self) -> Iterable[BoundPod]:
        """The pods that have not ended, in the order in which they were first seen."""
        return self._pods.values()

    def pod(self, uid: str) -> BoundPod | None:
        return self._pods.get(uid)

    def on_change(self, callback: Callable[[], None]) -> None:
        """`callback` is called after every change of the pods, and of the devices allocated to them."""
        self._callbacks.append(callback)

    def update(self, changes: list[Change[PodOnNode]]) -> None:
        """Apply changes of the node's pods."""
        # A list has no order; the resourceVersion of a pod that waits is that of its binding.
        for change in sorted(changes, key=_version):
            pod = change.object
            ended = change.kind == "deleted" or pod.status.phase in ("Succeeded", "Failed")
            if ended:
                self._pods.pop(pod.metadata.uid, None)
            elif pod.metadata.uid not in self._pods:
                self._pods[pod.metadata.uid] = _bound(pod, fresh=self.synced.is_set())
            else:
                self._pods[pod.metadata.uid].started |= _started(pod)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for callback in self._callbacks:
            callback()

    async def next(self, resource: str, size: int, fits: Callable[[BoundPod], bool]) -> BoundPod | None:
        """The pod for which the kubelet requests `size` devices now; None if no pod matches.

        `fits` returns whether the devices chosen for a pod are among those that the kubelet offers. A pod for which it
        is False is returned only if no other pod is in flight."""
        pod: BoundPod | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                while (pod := next(filter(fits, self._in_flight(resource, size)), None)) is None:
                    await self._changed.wait()
        pod = pod or next(iter(self._in_flight(resource, size)), None)
        if pod is None:
            return next((pod for pod in self._without_devices(resource, size) if fits(pod)), None)
        pod.serve(resource, size)
        return pod

    async def drained(self, resources: Collection[str], *, quiet_s: float, within_s: float) -> None:
        """Return when no pod has waited for one of the resources for `quiet_s`, and after `within_s` at the latest. The
        kubelet calls GetPreferredAllocation and then Allocate: a plugin that ends between the two fails the pod for
        good."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    changed = self._changed
                    if any(not pod.started and pod.open.get(one) for pod in self._pods.values() for one in resources):
                        await changed.wait()
                        continue
                    try:
                        async with asyncio.timeout(quiet_s):
                            await changed.wait()
                    except TimeoutError:
                        return

    def _in_flight(self, resource: str, size: int) -> list[BoundPod]:
        return [pod for pod in self._pods.values() if not pod.started and pod.wants(resource, size)]

    def _without_devices(self, resource: str, size: int) -> Iterable[BoundPod]:
        """Started pods that request such devices and hold none."""
        for pod in self._pods.values():
            requests = pod.requests.get(resource, ())
            if pod.started and pod.parts and not pod.held.get(resource) and any(one.size == size for one in requests):
                yield pod

    def promised(self, resource: str, besides: BoundPod | None) -> frozenset[str]:
        """The parts that were chosen for pods in flight, without those of the pod `besides`."""
        waiting = (pod for pod in self._pods.values() if not pod.started and pod.open.get(resource))
        return frozenset(part for pod in waiting if pod is not besides for part in pod.parts or ())

    def allocated(self, resource: str, parts: tuple[str, ...], preferred: BoundPod | None) -> BoundPod | None:
        """Record that Allocate returned these parts, and return their pod; None if no pod matches. `preferred` is the
        pod for which GetPreferredAllocation returned the same devices before."""
        pod = preferred
        if pod is None:
            candidates = self._in_flight(resource, len(parts))
            fitting = [pod for pod in candidates if pod.parts is None or {*parts} <= {*pod.parts}]
            pod = next(iter(fitting or candidates), None)
            if pod is not None:
                pod.serve(resource, len(parts))
        if pod is not None:
            pod.allocated.setdefault(resource, set()).update(parts)
            self._notify()
        return pod

    def askers(
        self, resource: str, parts: Collection[str], preferred: BoundPod | None
    ) -> list[tuple[BoundPod, ContainerNetwork]]:
        """The containers for one of which Allocate is called now with these parts, with their pods. `preferred` is the
        pod for which GetPreferredAllocation returned the same devices before. A pod for which they were chosen is the
        only one; else it is one of those in flight."""
        size = len(parts)
        pods = [] if preferred is None else [preferred]
        pods += [pod for pod in self._in_flight(resource, size) if pod is not preferred]
        chosen = [pod for pod in pods if pod.parts is not None and {*parts} <= {*pod.parts}]
        return [
            (pod, pod.networks[request.container])
            for pod in chosen[:1] or pods
            for request in pod.requests.get(resource, ())
            if request.size == size
        ]

    def kubelet_restarted(self) -> None:
        """Reset the pods that the kubelet had not started: it will call for them again."""
        for pod in self._pods.values():
            pod.fresh = False
            if not pod.started:
                pod.open = {name: list(requests) for name, requests in pod.requests.items() if name not in pod.held}
                pod.allocated = {}

    def confirm(self, resources: Iterable[str], listed: Iterable[PodDevices], *, first: bool) -> list[ConfirmedDevices]:
        """Apply what PodResources lists of these resources, and return what was not known before. `first`: this is the
        first list since this process, or the kubelet, started.

        An entry has a name and no uid: while the pod has no devices it may be of an earlier pod of that name."""
        entries = {(one.namespace, one.name): one for one in listed}
        confirmed: list[ConfirmedDevices] = []
        resources = frozenset(resources)
        for pod in self._pods.values():
            if first:
                pod.held.clear()
            entry = entries.get((pod.namespace, pod.name))
            if entry is None:
                continue
            for resource in sorted(resources & pod.requests.keys()):
                if not (first or pod.unconfirmed(resource)):
                    continue
                having = {one.name for one in entry.containers if one.ids(resource)}
                wanting = {request.container for request in pod.requests[resource] if request.listed}
                if wanting and wanting <= having:
                    pod.held[resource] = entry.ids(resource)
                    pod.open.pop(resource, None)
                    confirmed.append(ConfirmedDevices(pod, resource, pod.held[resource]))
                elif first and having:
                    pod.open[resource] = [one for one in pod.requests[resource] if one.container in wanting - having]
        return confirmed


def _version(change: Change[PodOnNode]) -> int:
    version = change.object.metadata.resource_version
    return int(version) if version.isdecimal() else 0


def _started(pod: PodOnNode) -> bool:
    statuses = pod.status.container_statuses or pod.status.init_container_statuses
    return pod.status.phase == "Running" or bool(statuses)


def _bound(pod: PodOnNode, *, fresh: bool) -> BoundPod:
    meta, claims = pod.metadata, pod.status.extended_resource_claim_status
    mapped = {(one.container_name, one.resource_name) for one in (claims.request_mappings or () if claims else ())}
    requests: dict[str, list[ContainerRequest]] = {}
    # The kubelet serves init containers first.
    for containers, init in ((pod.spec.init_containers, True), (pod.spec.containers, False)):
        for one in containers:
            listed = not init or one.restart_policy == SIDECAR
            for resource, size in _amounts(one):
                if (one.name, resource) not in mapped:
                    requests.setdefault(resource, []).append(ContainerRequest(one.name, size, listed))
    written = meta.annotations.get(DEVICES, "")
    parts = parts_of(written) if written else None
    fault = f"{written!r} is not a list of devices such as 0,1 or 0/1g.5gb@6" if written and parts is None else ""
    frozen = {resource: tuple(found) for resource, found in requests.items()}
    recorded = read(pod).bound.devices == written
    return BoundPod(
        meta.namespace, meta.name, meta.uid, written, parts, fault, recorded, frozen, requests, _started(pod), fresh,
        networks_of(pod),
    )  # fmt: skip


def _amounts(container: Container) -> Iterable[tuple[str, int]]:
    """(resource, number) of each extended resource. The API server refuses amounts that are not whole numbers."""
    for resource, amount in container.resources.limits.items():
        size = _whole(amount)
        if "/" in resource and size > 0:
            yield resource, size


def _whole(amount: Quantity) -> int:
    text = str(amount)
    return int(text) if text.isdecimal() else 0


def parts_of(written: str) -> tuple[str, ...] | None:
    """The parts that the annotation lists; None if it is not a list of different devices."""
    parts = tuple(written.split(","))
    named = [part for part in parts if "/" in part]
    valid = all(_CARD.fullmatch(part) for part in parts if "/" not in part)
    return parts if valid and len({*parts}) == len(parts) and all(map(instances.written, named)) else None
