# SPDX-License-Identifier: Apache-2.0
"""Which pods of this node still wait for their devices, and which devices were chosen for them.

Rules
- The kubelet's calls do not name the pod. The kubelet admits pods in the order of its watch, so the candidates are the
  pods of our own watch, in the order in which it first showed them bound. The scheduler keeps at most one pod in flight
  for a node, resource and size, so usually there is one candidate. Of several the first counts whose chosen devices are
  available.
- A pod is in flight until the kubelet has started it (Running, or with statuses of containers), until it has ended, or
  until each of its containers has its devices.
- The kubelet calls once for each container, so each call is for another container than the one before; after a restart
  the kubelet calls again.
- The kubelet's own watch can be ahead of ours, so a call can arrive before its pod. It waits for our watch, and after
  `_READ_AFTER_S` for a read of the node's pods, which has every pod that the kubelet can have seen; `wait_s` at most.
  So does a call for which all known candidates have unavailable devices.
- After the kubelet has lost its checkpoint, started pods without devices are candidates too, after all others.
This module has parts only; `plugin.offers` maps them to device ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct

from dovetail.agent.kubelet.bound_pods import BoundPod, bound_pod, started
from dovetail.agent.kubelet.container_networks import ContainerNetwork
from dovetail.agent.kubelet.podresources import PodDevices
from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import Key
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.pods_on_node import PodOnNode

log = logging.getLogger(__name__)

_WAIT_S = 2.0
_READ_AFTER_S = 0.2
"""How long the watch has to show a pod before the pods are read."""


class ConfirmedDevices(Struct, frozen=True):
    """The device ids that a pod has according to the kubelet."""

    pod: BoundPod
    resource: str
    ids: frozenset[str]


class Allocations:
    """The pods of the node `node_name`, kept up to date by `run`. `synced` is set once all are known."""

    def __init__(self, client: Client, node_name: str, *, wait_s: float = _WAIT_S) -> None:
        self._client = client
        self._params = {"fieldSelector": f"spec.nodeName={node_name}"}
        self._reflector = Reflector(client, PODS, PodOnNode, self.update, params=self._params)
        self._wait_s = wait_s
        self._ahead: dict[str, tuple[Key, int]] = {}
        """The pods, by uid, that a read has shown before the watch, with the version of the read."""
        self._pods: dict[str, BoundPod] = {}
        self._reading = asyncio.Lock()
        self._read_s = -math.inf
        """When the last read began that was answered, by the loop's clock."""
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
                self._pods[pod.metadata.uid] = bound_pod(pod, fresh=self.synced.is_set())
            else:
                self._pods[pod.metadata.uid].started |= started(pod)
        self._forget_ended()
        self._notify()

    def _forget_ended(self) -> None:
        """Forget the pods that a read has shown and that had ended before the watch could show them."""
        seen, known = _number(self._reflector.resource_version), self._reflector.known
        for uid, (key, as_of) in [*self._ahead.items()]:
            shown = key in known and known[key].metadata.uid == uid
            if shown or seen >= as_of:
                del self._ahead[uid]
                if not shown:
                    self._pods.pop(uid, None)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for callback in self._callbacks:
            callback()

    async def next(self, resource: str, size: int, fits: Callable[[BoundPod], bool]) -> BoundPod | None:
        """The pod for which the kubelet requests `size` devices now; None if no pod matches.

        `fits` returns whether the devices chosen for a pod are among those that the kubelet offers. A pod for which it
        is False is returned only if no other pod is in flight."""

        def found() -> BoundPod | None:
            return next(filter(fits, self._in_flight(resource, size)), None)

        await self._known(lambda: found() is not None)
        pod = found() or next(iter(self._in_flight(resource, size)), None)
        if pod is None:
            return next((pod for pod in self._without_devices(resource, size) if fits(pod)), None)
        pod.serve(resource, size)
        return pod

    async def pods_known(self, uids: Collection[str]) -> list[BoundPod]:
        """The pods with these uids, as soon as all are known, without those that are not on this node."""
        await self._known(lambda: all(uid in self._pods for uid in uids))
        return [self._pods[uid] for uid in uids if uid in self._pods]

    async def asker_known(self, resource: str, parts: Collection[str], preferred: BoundPod | None) -> None:
        """Return when `askers` has the pod for which Allocate is called now, or cannot have it."""

        def known() -> bool:
            pods = self._that_ask(resource, parts, preferred)
            return any(pod is preferred or pod.parts is None or {*parts} <= {*pod.parts} for pod in pods)

        await self._known(known)

    async def _known(self, known: Callable[[], bool]) -> None:
        """Return when it is so, or no pod that the kubelet can have seen makes it so; after `wait_s` at the latest."""
        asked_s = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_READ_AFTER_S):
                        await self._changes_until(known)
                if not known() and not await self._read(asked_s):
                    await self._changes_until(known)

    async def _changes_until(self, known: Callable[[], bool]) -> None:
        while not known():
            await self._changed.wait()

    async def _read(self, asked_s: float) -> bool:
        """Have the node's pods as they were at `asked_s` or later: one read at a time, for all calls from before it
        began. Returns whether the API server answered."""
        async with self._reading:
            if self._read_s < asked_s:
                began_s = asyncio.get_running_loop().time()
                if not await self._read_pods():
                    return False
                self._read_s = began_s
        return True

    async def _read_pods(self) -> bool:
        """Add the node's pods that the watch has not shown yet. Returns whether the API server answered."""
        try:
            listing = await list_all(self._client, PODS, PodOnNode, params=self._params)
        except KubeError as error:
            log.warning("the pods of the node cannot be read: %s", error)
            return False
        as_of = _number(listing.resource_version)
        if as_of > _number(self._reflector.resource_version):
            new = {key: pod for key, pod in listing.objects.items() if pod.metadata.uid not in self._pods}
            if new:
                self.update([Change("added", pod) for pod in new.values()])
            self._ahead |= {
                pod.metadata.uid: (key, as_of) for key, pod in new.items() if pod.metadata.uid in self._pods
            }
        return True

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
        only one; else it is one of those in flight, or a started pod whose devices the kubelet has lost."""
        size = len(parts)
        pods = self._that_ask(resource, parts, preferred)
        pods = pods or [pod for pod in self._without_devices(resource, size) if resource not in pod.allocated]
        chosen = [pod for pod in pods if pod.parts is not None and {*parts} <= {*pod.parts}]
        return [
            (pod, pod.networks[request.container])
            for pod in chosen[:1] or pods
            for request in pod.requests.get(resource, ())
            if request.size == size
        ]

    def _that_ask(self, resource: str, parts: Collection[str], preferred: BoundPod | None) -> list[BoundPod]:
        """`preferred`, unless it has ended, and the pods in flight."""
        pods = [] if preferred is None or self._pods.get(preferred.uid) is not preferred else [preferred]
        return pods + [pod for pod in self._in_flight(resource, len(parts)) if pod is not preferred]

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
    return _number(change.object.metadata.resource_version)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
