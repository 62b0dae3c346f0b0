# SPDX-License-Identifier: Apache-2.0
"""Which pods of this node still wait for their devices, and which devices were chosen for them.

Rules
- The kubelet asks for devices without saying for whom. It admits pods in the order of its watch, so the pods of our own
  watch are candidates in the order in which that first showed them bound; the scheduler keeps at most one pod in flight
  for a node, resource and size, so usually there is one. Of several counts the first whose choice can be had.
- A pod is in flight until the kubelet shows it at work (Running, or with statuses of containers), until it ended, or
  until each of its containers has been given what it asks for. Inside a pod the kubelet serves the init containers
  first, in the order of the spec.
- What was chosen is the annotation dovetail.dev/devices: indices of cards ("0,1"), or MIG instances ("0/1g.5gb@6").
  Parts are kept as written there. A value that is no such list is a fault, and the pod counts as one without a choice.
  It is `recorded` where the scheduler's record of the pod (`kube.translate.bound`) says the same: only then its books
  have it.
- A resource that a container has through a claim (`extendedResourceClaimStatus`) is not asked for here.
- A request is for another container than the one before, since the kubelet asks once for each; after a restart of the
  kubelet it asks again. A request that comes before its pod does waits for the watch, `wait_s` at most; so does one
  for which only pods are known whose choice cannot be had, for it may be another's, and these at work by now.
- After the kubelet has lost its books, pods that are at work without devices are candidates, too, behind all others.
Does not know: devices; which part is which id is `plugin.offers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct, field

from dovetail.agent.kubelet.podresources import PodDevices
from dovetail.kube.api.client import Client
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import PODS
from dovetail.kube.nodes import instances
from dovetail.kube.objects.base import Quantity
from dovetail.kube.objects.pods import SIDECAR, Container, Pod
from dovetail.kube.translate.annotations import DEVICES
from dovetail.kube.translate.bound import read

_CARD = re.compile(r"0|[1-9][0-9]?")
_WAIT_S = 2.0


class ContainerRequest(Struct, frozen=True):
    """What a container wants of a resource. `listed`: PodResources tells of it, which it does not of init containers
    that end."""

    container: str
    size: int
    listed: bool


class BoundPod(Struct):
    """A pod of this node. `parts` are what was chosen, None where nobody chose; `fault` says what is wrong with the
    annotation, `recorded` whether the scheduler knows of the choice. `asks` are all requests by resource, `open` those
    that are not served yet; `given` are the parts that Allocate handed over, `held` the ids that PodResources tells of.
    `fresh`: it came after this process had registered what it offers."""

    namespace: str
    name: str
    uid: str
    written: str
    parts: tuple[str, ...] | None
    fault: str
    recorded: bool
    asks: dict[str, tuple[ContainerRequest, ...]]
    open: dict[str, list[ContainerRequest]]
    at_work: bool
    fresh: bool
    given: dict[str, set[str]] = field(default_factory=dict)
    held: dict[str, frozenset[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def wants(self, resource: str, size: int) -> bool:
        return any(ask.size == size for ask in self.open.get(resource, ()))

    def serve(self, resource: str, size: int) -> None:
        """One of its containers that wants so many is being served."""
        self.open[resource].remove(next(ask for ask in self.open[resource] if ask.size == size))

    def unconfirmed(self, resource: str) -> bool:
        """Whether it was given the resource, or must have been, and PodResources has not shown that yet."""
        asks = self.asks.get(resource, ())
        given = self.at_work or resource in self.given
        return given and resource not in self.held and any(ask.listed for ask in asks)

    def passing(self, resource: str) -> bool:
        """Whether a container that ends, and is not listed then, has a part of it."""
        return not all(ask.listed for ask in self.asks.get(resource, ()))


class ConfirmedDevices(Struct, frozen=True):
    """What the kubelet says that a pod has."""

    pod: BoundPod
    resource: str
    ids: frozenset[str]


class Allocations:
    """The pods of the node `node_name`, kept up to date by `run`. `synced` is set once they are known."""

    def __init__(self, client: Client, node_name: str, *, wait_s: float = _WAIT_S) -> None:
        params = {"fieldSelector": f"spec.nodeName={node_name}"}
        self._reflector = Reflector(client, PODS, Pod, self.tell, params=params)
        self._wait_s = wait_s
        self._pods: dict[str, BoundPod] = {}
        self._news = asyncio.Event()
        self._hear: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Follow the node's pods until cancelled."""
        await self._reflector.run()

    @property
    def synced(self) -> asyncio.Event:
        return self._reflector.synced

    @property
    def pods(self) -> Iterable[BoundPod]:
        """Those that have not ended, in the order in which they were first seen."""
        return self._pods.values()

    def pod(self, uid: str) -> BoundPod | None:
        return self._pods.get(uid)

    def on_change(self, hear: Callable[[], None]) -> None:
        """`hear` is called after every change of the pods, and of what they were given."""
        self._hear.append(hear)

    def tell(self, changes: list[Change[Pod]]) -> None:
        """What changed in the node's pods."""
        # A list comes in no order; the version of a pod that waits is that of its binding.
        for change in sorted(changes, key=_version):
            pod = change.object
            ended = change.kind == "deleted" or pod.status.phase in ("Succeeded", "Failed")
            if ended:
                self._pods.pop(pod.metadata.uid, None)
            elif pod.metadata.uid not in self._pods:
                self._pods[pod.metadata.uid] = _bound(pod, fresh=self.synced.is_set())
            else:
                self._pods[pod.metadata.uid].at_work |= _at_work(pod)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
        for hear in self._hear:
            hear()

    async def next(self, resource: str, size: int, fits: Callable[[BoundPod], bool]) -> BoundPod | None:
        """The pod for which the kubelet asks for `size` devices now; None where there is no such.

        `fits` says whether what was chosen for a pod can be had of what the kubelet offers. A pod whose choice cannot
        be had is named only where nothing else asks."""
        pod: BoundPod | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                while (pod := next(filter(fits, self._in_flight(resource, size)), None)) is None:
                    await self._news.wait()
        pod = pod or next(iter(self._in_flight(resource, size)), None)
        if pod is None:
            return next((pod for pod in self._bereft(resource, size) if fits(pod)), None)
        pod.serve(resource, size)
        return pod

    async def drained(self, resources: Collection[str], *, quiet_s: float, within_s: float) -> None:
        """Until no pod has waited for one of the resources for `quiet_s`; `within_s` at most. The kubelet asks which
        devices to take and then hands them over: who stops listening in between fails the pod for good."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    news = self._news
                    if any(not pod.at_work and pod.open.get(one) for pod in self._pods.values() for one in resources):
                        await news.wait()
                        continue
                    try:
                        async with asyncio.timeout(quiet_s):
                            await news.wait()
                    except TimeoutError:
                        return

    def _in_flight(self, resource: str, size: int) -> list[BoundPod]:
        return [pod for pod in self._pods.values() if not pod.at_work and pod.wants(resource, size)]

    def _bereft(self, resource: str, size: int) -> Iterable[BoundPod]:
        """Pods at work that hold nothing of what they ask for."""
        for pod in self._pods.values():
            asks = pod.asks.get(resource, ())
            if pod.at_work and pod.parts and not pod.held.get(resource) and any(ask.size == size for ask in asks):
                yield pod

    def promised(self, resource: str, to_others_than: BoundPod | None) -> frozenset[str]:
        """The parts that were chosen for pods in flight."""
        waiting = (pod for pod in self._pods.values() if not pod.at_work and pod.open.get(resource))
        return frozenset(part for pod in waiting if pod is not to_others_than for part in pod.parts or ())

    def gave(self, resource: str, parts: tuple[str, ...], asked: BoundPod | None) -> BoundPod | None:
        """Devices were handed over: the pod they are for, as far as can be told. `asked` is the pod that these devices
        were named for before."""
        pod = asked
        if pod is None:
            asking = self._in_flight(resource, len(parts))
            fitting = [pod for pod in asking if pod.parts is None or {*parts} <= {*pod.parts}]
            pod = next(iter(fitting or asking), None)
            if pod is not None:
                pod.serve(resource, len(parts))
        if pod is not None:
            pod.given.setdefault(resource, set()).update(parts)
            self._wake()
        return pod

    def begin_anew(self) -> None:
        """The kubelet has begun anew: pods that it had not admitted by then it asks for again."""
        for pod in self._pods.values():
            pod.fresh = False
            if not pod.at_work:
                left = {resource: list(asks) for resource, asks in pod.asks.items() if resource not in pod.held}
                pod.open, pod.given = left, {}

    def confirm(self, resources: Iterable[str], listed: Iterable[PodDevices], *, first: bool) -> list[ConfirmedDevices]:
        """What PodResources tells of these resources; the answer is what was not known before. `first`: nobody has
        looked since this process, or the kubelet, began.

        An entry bears a name, not a uid: it may be that of an earlier pod of the name as long as its successor was
        given nothing."""
        entries = {(one.namespace, one.name): one for one in listed}
        confirmed: list[ConfirmedDevices] = []
        resources = frozenset(resources)
        for pod in self._pods.values():
            if first:
                pod.held.clear()
            entry = entries.get((pod.namespace, pod.name))
            if entry is None:
                continue
            for resource in sorted(resources & pod.asks.keys()):
                if not (first or pod.unconfirmed(resource)):
                    continue
                having = {one.name for one in entry.containers if one.ids(resource)}
                wanting = {ask.container for ask in pod.asks[resource] if ask.listed}
                if wanting and wanting <= having:
                    pod.held[resource] = entry.ids(resource)
                    pod.open.pop(resource, None)
                    confirmed.append(ConfirmedDevices(pod, resource, pod.held[resource]))
                elif first and having:
                    pod.open[resource] = [ask for ask in pod.asks[resource] if ask.container in wanting - having]
        return confirmed


def _version(change: Change[Pod]) -> int:
    version = change.object.metadata.resource_version
    return int(version) if version.isdecimal() else 0


def _at_work(pod: Pod) -> bool:
    statuses = pod.status.container_statuses or pod.status.init_container_statuses
    return pod.status.phase == "Running" or bool(statuses)


def _bound(pod: Pod, *, fresh: bool) -> BoundPod:
    meta, claims = pod.metadata, pod.status.extended_resource_claim_status
    mapped = {(one.container_name, one.resource_name) for one in (claims.request_mappings or () if claims else ())}
    asks: dict[str, list[ContainerRequest]] = {}
    # The kubelet serves init containers first.
    for containers, init in ((pod.spec.init_containers, True), (pod.spec.containers, False)):
        for one in containers:
            listed = not init or one.restart_policy == SIDECAR
            for resource, size in _amounts(one):
                if (one.name, resource) not in mapped:
                    asks.setdefault(resource, []).append(ContainerRequest(one.name, size, listed))
    written = meta.annotations.get(DEVICES, "")
    parts = parts_of(written) if written else None
    fault = f"{written!r} is no list of devices, as in 0,1 or 0/1g.5gb@6" if written and parts is None else ""
    frozen = {resource: tuple(found) for resource, found in asks.items()}
    recorded = read(pod).bound.devices == written
    return BoundPod(
        meta.namespace, meta.name, meta.uid, written, parts, fault, recorded, frozen, asks, _at_work(pod), fresh
    )


def _amounts(container: Container) -> Iterable[tuple[str, int]]:
    """Whole numbers of what is no resource of Kubernetes itself; what breaks that rule the API server refuses."""
    for resource, amount in container.resources.limits.items():
        size = _whole(amount)
        if "/" in resource and size > 0:
            yield resource, size


def _whole(amount: Quantity) -> int:
    text = str(amount)
    return int(text) if text.isdecimal() else 0


def parts_of(written: str) -> tuple[str, ...] | None:
    """The devices that the annotation names, one by one; None where it is no list of different ones."""
    parts = tuple(written.split(","))
    named = [part for part in parts if "/" in part]
    valid = all(_CARD.fullmatch(part) for part in parts if "/" not in part)
    return parts if valid and len({*parts}) == len(parts) and all(map(instances.written, named)) else None
