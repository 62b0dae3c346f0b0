# SPDX-License-Identifier: Apache-2.0
"""A small kubelet on real sockets: device plugins register with it, and it allocates their devices to pods.

    kubelet = FakeKubelet(folder)
    await kubelet.start()                 # wipes the sockets in folder/device-plugins, as kubelets do
    await kubelet.devices("nvidia.com/gpu", 8)
    allocated = await kubelet.admit(pod)      # {container: {resource: ids}}; raises Rejected
    kubelet.remove(uid)
    await kubelet.restart()               # `kill=True`: kubelet.sock stays behind

The rules are those of pkg/kubelet/cm/devicemanager of Kubernetes 1.37 (manager.go: devicesToAllocate, Allocate,
PluginConnected, PluginDisconnected; plugin/v1beta1). Where Go takes the order of a map, a seeded generator shuffles.
There is no topology manager: `mask` is the affinity that it would have stored, None for none.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable
from operator import methodcaller
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from msgspec import Struct, field

from dovetail.agent.apis import deviceplugin_pb2 as plugin
from dovetail.agent.apis import podresources_pb2 as resources
from dovetail.agent.apis.serving import serve, service
from tests.bound import bound
from tests.patience import PATIENCE_S

Pod = dict[str, Any]
CHECKPOINT = "kubelet_internal_checkpoint"


_serialized = methodcaller("SerializeToString")


class Rejected(Exception):
    """The pod is not admitted; the text is the kubelet's."""


class CallFailed(Exception):
    """The plugin did not answer, or with an error."""


class Endpoint(Struct):
    resource: str
    path: Path
    channel: grpc.aio.Channel
    options: plugin.DevicePluginOptions
    task: asyncio.Task[None] | None = None

    async def call(self, method: str, request: Message, reply: type[Message]) -> Any:
        ask = self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=_serialized,
            response_deserializer=reply.FromString,
        )
        try:
            return await ask(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            raise CallFailed(error.details()) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise CallFailed("the connection was closed") from None


class Allocation(Struct):
    """What a container has of a resource, and what the plugin answered."""

    ids: frozenset[str]
    answer: plugin.ContainerAllocateResponse


class Books(Struct):
    """What a kubelet keeps in its checkpoint: by pod uid, container and resource. `pods` are the active ones."""

    pods: dict[str, Pod] = field(default_factory=dict)
    allocations: dict[str, dict[str, dict[str, Allocation]]] = field(default_factory=dict)

    def of(self, resource: str) -> set[str]:
        return {
            id
            for containers in self.allocations.values()
            for held in containers.values()
            for id in (held[resource].ids if resource in held else ())
        }


class FakeKubelet:
    """`folder`/device-plugins and `folder`/pod-resources are the kubelet's folders. `lists` counts the device lists
    that came, `preferences` are the questions and answers of GetPreferredAllocation."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.plugins = folder / "device-plugins"
        self.socket = self.plugins / "kubelet.sock"
        self.pod_resources = folder / "pod-resources" / "kubelet.sock"
        self.books = Books()
        self.registrations: list[plugin.RegisterRequest] = []
        self.lists = 0
        self.preferences: list[tuple[str, frozenset[str], frozenset[str], int, tuple[str, ...]]] = []
        self.allocate_s: list[float] = []
        self.without_pod_resources = False
        self._chance = random.Random(seed)
        self._servers: list[grpc.aio.Server] = []
        self._healthy: dict[str, set[str]] = {}
        self._unhealthy: dict[str, set[str]] = {}
        self._all: dict[str, dict[str, plugin.Device]] = {}
        self._allocated: dict[str, set[str]] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._store: dict[str, dict[Path, Endpoint]] = {}
        self._reuse: dict[str, dict[str, set[str]]] = {}
        self._changed = asyncio.Event()
        self._admitting = asyncio.Lock()

    async def start(self) -> None:
        self.plugins.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.iterdir():
            if path.is_socket():
                path.unlink()
        self._allocated = {r: self.books.of(r) for r in self._resources_in_books()}
        registration = service("v1beta1.Registration", {"Register": (plugin.RegisterRequest, self._register)})
        lister = service(
            "v1.PodResourcesLister",
            {
                "List": (resources.ListPodResourcesRequest, self._list),
                "Get": (resources.GetPodResourcesRequest, self._get),
                "GetAllocatableResources": (resources.AllocatableResourcesRequest, self._allocatable),
            },
        )
        self._servers = [await serve(self.socket, registration)]
        if not self.without_pod_resources:
            self._servers.append(await serve(self.pod_resources, lister))

    async def stop(self, *, kill: bool = False) -> None:
        """`kill`: nothing is cleaned up: kubelet.sock stays, and no process listens at it."""
        for endpoint in [one for ones in self._store.values() for one in ones.values()]:
            assert endpoint.task is not None
            endpoint.task.cancel()
            await asyncio.gather(endpoint.task, return_exceptions=True)
            await endpoint.channel.close()
        for server in self._servers:
            await server.stop(grace=0)
        self._servers = []
        for state in (self._healthy, self._unhealthy, self._all, self._endpoints, self._store, self._reuse):
            state.clear()
        self.socket.unlink(missing_ok=True)
        if kill:
            left_behind(self.socket)

    async def restart(self, *, kill: bool = False) -> None:
        await self.stop(kill=kill)
        await self.start()

    # Registration.

    async def _register(self, request: plugin.RegisterRequest, context: Any) -> plugin.Empty:
        self.registrations.append(request)
        if request.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, f"unsupported version {request.version}")
        path = self.plugins / request.endpoint
        channel = grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")])
        endpoint = Endpoint(request.resource_name, path, channel, plugin.DevicePluginOptions())
        try:
            endpoint.options = await endpoint.call("GetDevicePluginOptions", plugin.Empty(), plugin.DevicePluginOptions)
        except CallFailed as error:
            await channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}")
        store = self._store.setdefault(request.resource_name, {})
        if path in store:
            await channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, f"device plugin already connected: {path}")
        self._endpoints[request.resource_name] = store[path] = endpoint
        endpoint.task = asyncio.create_task(self._run(endpoint))
        return plugin.Empty()

    async def _run(self, endpoint: Endpoint) -> None:
        watch = endpoint.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=_serialized,
            response_deserializer=plugin.ListAndWatchResponse.FromString,
        )
        try:
            async for answer in watch(plugin.Empty()):
                self._listed(endpoint.resource, answer.devices)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            if endpoint.task is not None and endpoint.task.cancelling():
                raise
        self._disconnected(endpoint)
        await endpoint.channel.close()

    def _listed(self, resource: str, devices: Iterable[plugin.Device]) -> None:
        self._all[resource] = {device.ID: device for device in devices}
        self._healthy[resource] = {id for id, device in self._all[resource].items() if device.health == "Healthy"}
        self._unhealthy[resource] = {*self._all[resource]} - self._healthy[resource]
        self.lists += 1
        self._write_checkpoint()
        self._wake()

    def _disconnected(self, endpoint: Endpoint) -> None:
        store = self._store.get(endpoint.resource, {})
        if store.get(endpoint.path) is not endpoint:
            return
        del store[endpoint.path]
        if store:
            self._endpoints[endpoint.resource] = next(iter(store.values()))
        else:
            del self._store[endpoint.resource]
            self._unhealthy.setdefault(endpoint.resource, set()).update(self._healthy.get(endpoint.resource, ()))
            self._healthy[endpoint.resource] = set()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # What tests look at.

    def capacity(self, resource: str) -> tuple[int, int]:
        """All devices, and the healthy ones."""
        healthy = len(self._healthy.get(resource, ()))
        return healthy + len(self._unhealthy.get(resource, ())), healthy

    def listed(self, resource: str) -> dict[str, plugin.Device]:
        """The last list, by id."""
        return self._all.get(resource, {})

    async def until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits for what the lists and endpoints lead to."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    async def devices(self, resource: str, healthy: int) -> None:
        """Waits until the resource has so many healthy devices."""
        await self.until(lambda: self.capacity(resource)[1] == healthy)

    def connected(self, resource: str) -> int:
        return len(self._store.get(resource, {}))

    def held(self, resource: str) -> dict[str, set[str]]:
        """The ids by uid, over all containers, those that have ended too."""
        return {
            uid: {id for held in containers.values() if resource in held for id in held[resource].ids}
            for uid, containers in self.books.allocations.items()
        }

    # Admission.

    async def admit(self, pod: Pod, mask: frozenset[int] | None = None) -> dict[str, dict[str, Allocation]]:
        """The devices of each container. Raises Rejected: then the pod holds nothing."""
        async with self._admitting:
            uid = pod["metadata"]["uid"]
            self.books.pods[uid] = pod
            self._reuse = {uid: {}}
            try:
                for container in pod["spec"].get("initContainers", []):
                    await self._allocate(uid, container, mask)
                    passing = container.get("restartPolicy") != "Always"
                    self._after(uid, container["name"], keep=passing)
                for container in pod["spec"]["containers"]:
                    await self._allocate(uid, container, mask)
                    self._after(uid, container["name"], keep=False)
            except Rejected:
                self.remove(uid)
                raise
            return self.books.allocations.get(uid, {})

    def remove(self, uid: str) -> None:
        """The pod has ended."""
        self.books.pods.pop(uid, None)
        self.books.allocations.pop(uid, None)
        self._allocated = {resource: self.books.of(resource) for resource in self._resources_in_books()}
        self._write_checkpoint()

    def _resources_in_books(self) -> set[str]:
        return {name for containers in self.books.allocations.values() for held in containers.values() for name in held}

    def _after(self, uid: str, container: str, *, keep: bool) -> None:
        for resource, allocation in self.books.allocations.get(uid, {}).get(container, {}).items():
            reuse = self._reuse[uid].setdefault(resource, set())
            if keep:
                reuse |= allocation.ids
            else:
                reuse -= allocation.ids

    async def _allocate(self, uid: str, container: dict[str, Any], mask: frozenset[int] | None) -> None:
        limits = container.get("resources", {}).get("limits", {})
        wanted = [(name, int(amount)) for name, amount in limits.items() if "/" in name]
        self._chance.shuffle(wanted)
        for resource, needed in wanted:
            ids = await self._to_allocate(uid, container["name"], resource, needed, mask)
            if not ids:
                continue
            endpoint = self._endpoints.get(resource)
            request = plugin.AllocateRequest()
            request.container_requests.add(devices_ids=self._shuffled(ids))
            clock = asyncio.get_running_loop().time
            began_s = clock()
            try:
                assert endpoint is not None
                answer = await endpoint.call("Allocate", request, plugin.AllocateResponse)
            except CallFailed as error:
                self._allocated = {name: self.books.of(name) for name in self._resources_in_books()}
                raise Rejected(f"Allocate failed due to {error}, which is unexpected") from None
            self.allocate_s.append(clock() - began_s)
            held = self.books.allocations.setdefault(uid, {}).setdefault(container["name"], {})
            held[resource] = Allocation(frozenset(ids), answer.container_responses[0])
            self._write_checkpoint()

    async def _to_allocate(
        self, uid: str, container: str, resource: str, required: int, mask: frozenset[int] | None
    ) -> set[str]:
        already = self.books.allocations.get(uid, {}).get(container, {}).get(resource)
        if already is not None and len(already.ids) != required:
            raise Rejected(f"container {container} changed request for resource {resource}")
        if resource not in self._healthy:
            raise Rejected(f"cannot allocate unregistered device {resource}")
        if not self._healthy[resource]:
            raise Rejected(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if already is not None:
            if not already.ids <= self._healthy[resource]:
                raise Rejected(f"previously allocated devices are no longer healthy; {resource}")
            return set()
        taken: set[str] = set()
        in_use = self._allocated.setdefault(resource, set())

        def take(ids: Iterable[str]) -> bool:
            for id in self._shuffled({*ids} - taken):
                if len(taken) == required:
                    break
                in_use.add(id)
                taken.add(id)
            return len(taken) == required

        if take(self._reuse[uid].get(resource, ())):
            return taken
        available = self._healthy[resource] - in_use
        if len(available) < required - len(taken):
            raise Rejected(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {required - len(taken)}, Available: {len(available)}"
            )
        aligned, unaligned, without = self._by_affinity(resource, available, mask)
        if required - len(taken) < len(aligned):
            preferred = await self._preferred(resource, aligned | taken, taken, required)
            take(preferred & aligned) or take(aligned)
            return taken
        if take(aligned):
            return taken
        preferred = await self._preferred(resource, available | taken, taken, required)
        take(preferred & available) or take(unaligned) or take(without)
        return taken

    def _by_affinity(
        self, resource: str, available: set[str], mask: frozenset[int] | None
    ) -> tuple[set[str], set[str], set[str]]:
        nodes = {id: {node.ID for node in self._all[resource][id].topology.nodes} for id in available}
        if mask is None or not any(device.topology.nodes for device in self._all[resource].values()):
            return set(), set(), available
        aligned = {id for id in available if nodes[id] & mask}
        without = {id for id in available if not nodes[id]}
        return aligned, available - aligned - without, without

    async def _preferred(self, resource: str, available: set[str], must: set[str], size: int) -> set[str]:
        endpoint = self._endpoints[resource]
        if not endpoint.options.get_preferred_allocation_available:
            return set()
        request = plugin.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=self._shuffled(available),
            must_include_deviceIDs=self._shuffled(must),
            allocation_size=size,
        )
        try:
            answer = await endpoint.call("GetPreferredAllocation", request, plugin.PreferredAllocationResponse)
        except CallFailed as error:
            self._allocated = {name: self.books.of(name) for name in self._resources_in_books()}
            raise Rejected(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from None
        ids = tuple(answer.container_responses[0].deviceIDs)
        self.preferences.append((resource, frozenset(available), frozenset(must), size, ids))
        return {*ids}

    def _shuffled(self, ids: Iterable[str]) -> list[str]:
        listed = sorted(ids)
        self._chance.shuffle(listed)
        return listed

    # What a kubelet reports.

    def _write_checkpoint(self) -> None:
        entries = []
        for uid, containers in self.books.allocations.items():
            for name, held in containers.items():
                for resource, allocation in held.items():
                    by_node: dict[str, list[str]] = {}
                    for id in sorted(allocation.ids):
                        device = self._all.get(resource, {}).get(id)
                        for node in [str(one.ID) for one in device.topology.nodes] if device is not None else []:
                            by_node.setdefault(node, []).append(id)
                    nodes = by_node or {"-1": sorted(allocation.ids)}
                    entry = {"PodUID": uid, "ContainerName": name, "ResourceName": resource, "DeviceIDs": nodes}
                    entries.append(entry | {"AllocResp": ""})
        registered = {resource: sorted(ids) for resource, ids in self._healthy.items()}
        data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
        new = self.plugins / f".{CHECKPOINT}"
        new.write_text(json.dumps({"Data": data, "Checksum": 0}))
        new.replace(self.plugins / CHECKPOINT)

    def _pod(self, pod: Pod) -> resources.PodResources:
        meta = pod["metadata"]
        found = resources.PodResources(name=meta["name"], namespace=meta.get("namespace", "default"))
        shown = [one for one in pod["spec"].get("initContainers", []) if one.get("restartPolicy") == "Always"]
        for container in [*shown, *pod["spec"]["containers"]]:
            one = found.containers.add(name=container["name"])
            held = self.books.allocations.get(meta["uid"], {}).get(container["name"], {})
            for resource, allocation in held.items():
                for id in sorted(allocation.ids):
                    one.devices.add(resource_name=resource, device_ids=[id])
        return found

    async def _list(self, request: Message, context: Any) -> resources.ListPodResourcesResponse:
        return resources.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self.books.pods.values()])

    async def _get(self, request: resources.GetPodResourcesRequest, context: Any) -> resources.GetPodResourcesResponse:
        for pod in self.books.pods.values():
            meta = pod["metadata"]
            if (meta.get("namespace", "default"), meta["name"]) == (request.pod_namespace, request.pod_name):
                return resources.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError

    async def _allocatable(self, request: Message, context: Any) -> resources.AllocatableResourcesResponse:
        answer = resources.AllocatableResourcesResponse()
        for resource, ids in self._healthy.items():
            for id in sorted(ids):
                entry = answer.devices.add(resource_name=resource, device_ids=[id])
                for node in self._all[resource][id].topology.nodes:
                    entry.topology.nodes.add(ID=node.ID)
        return answer


def left_behind(path: Path) -> None:
    """A socket file at which no process listens."""
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def pod(
    name: str,
    limits: dict[str, int],
    *,
    devices: str = "",
    uid: str = "",
    node: str = "n1",
    init: dict[str, int] | None = None,
    containers: Iterable[dict[str, int]] = (),
    recorded: bool = True,
) -> Pod:
    """A bound pod: the first container asks for `limits`, an init container for `init`, further ones for `containers`.
    `devices` is what was chosen for it, and `recorded` by the scheduler."""

    def container(name: str, amounts: dict[str, int]) -> dict[str, Any]:
        quantities = {resource: str(amount) for resource, amount in amounts.items()}
        return {"name": name, "image": "i", "resources": {"limits": quantities, "requests": dict(quantities)}}

    uid = uid or f"uid-{name}"
    written = bound(uid, devices) if recorded else {"dovetail.dev/devices": devices}
    annotations = written if devices else {}
    spec: dict[str, Any] = {
        "nodeName": node,
        "containers": [container(f"c{i}", amounts) for i, amounts in enumerate([limits, *containers])],
    }
    if init is not None:
        spec["initContainers"] = [container("init", init)]
    meta = {"name": name, "namespace": "default", "uid": uid, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


async def following(kubelet: FakeKubelet) -> AsyncIterator[FakeKubelet]:
    """For fixtures: started, and stopped in the end."""
    await kubelet.start()
    yield kubelet
    await kubelet.stop()
