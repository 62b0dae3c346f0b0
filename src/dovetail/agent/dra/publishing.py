# SPDX-License-Identifier: Apache-2.0
"""Publishes the ResourceSlices of this node and restores them.

Rules
- All devices are one pool with the name of the node. Slices have fixed names, are owned by the Node, and deleted with
  it.
- A change of one slice is one write. If several change, are added or removed, all are written with the next generation,
  so that no allocator mixes generations. Unchanged slices are not written.
- Slices that are deleted (by the kubelet, while it does not see the driver) are written again. Slices of an earlier
  driver of the same name are deleted.
- An API server drops fields whose feature gates are off. Devices that would be wrong without them, unhealthy ones and
  partitions, are not published then; that is logged.
Source: dynamic-resource-allocation/resourceslice (1.37).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dovetail.core.dra.types import Slice
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import NODES, RESOURCE_SLICES
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.claims import ResourceSlice
from dovetail.kube.translate.slices import resource_slice

log = logging.getLogger(__name__)

LABELS = {"app.kubernetes.io/managed-by": "dovetail"}
_BACKOFF_S = 1.0
_BACKOFF_MAX_S = 60.0
_LONGEST_NAME = 253
_GATES = {"taints": "DRADeviceTaints", "consumesCounters": "DRAPartitionableDevices"}

Document = dict[str, Any]


class SlicePublisher:
    """The slices of `driver` on `node`. `settled` is set while they have the wanted contents."""

    def __init__(self, client: Client, driver: str, node: str) -> None:
        self.settled = asyncio.Event()
        self._client = client
        self._driver = driver
        self._node = node
        self._contents: Sequence[Document] = ()
        self._dirty = asyncio.Event()
        self._written: dict[str, str] = {}
        """The resourceVersions of the written slices."""
        self._dropped: set[str] = set()
        """The fields of devices that the server drops."""

    def want(self, contents: Sequence[Document]) -> None:
        """Set the wanted contents, see `slices.contents`."""
        if contents != self._contents:
            self._contents = contents
            self._wake()

    async def run(self) -> None:
        """Until cancelled."""
        watched = Reflector(self._client, RESOURCE_SLICES, ResourceSlice, self._seen, params=self._selected())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watched.run())
            tasks.create_task(self._keep())

    async def withdraw(self) -> None:
        """Delete all published slices, also of an earlier process. Raises ApiError."""
        for obj in await self._there():
            if obj.metadata.labels.items() >= LABELS.items():
                await self._delete(obj)

    async def _keep(self) -> None:
        backoff_s = _BACKOFF_S
        self._wake()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._sync()
            except KubeError as error:
                log.warning("ResourceSlices of %s: %s; trying again", self._driver, error)
                await asyncio.sleep(backoff_s * (0.5 + 0.5 * self._client.jitter()))
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                self._dirty.set()
                continue
            backoff_s = _BACKOFF_S
            if not self._dirty.is_set():
                self.settled.set()

    def _wake(self) -> None:
        self.settled.clear()
        self._dirty.set()

    def _seen(self, changes: list[Change[ResourceSlice]]) -> None:
        """Schedule a write if another client has changed a slice."""
        for change in changes:
            meta = change.object.metadata
            if change.kind == "deleted" or self._written.get(meta.name) != meta.resource_version:
                self._wake()

    def _selected(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.driver={self._driver},spec.nodeName={self._node}"}

    async def _there(self) -> tuple[ResourceSlice, ...]:
        listing = await list_all(self._client, RESOURCE_SLICES, ResourceSlice, params=self._selected())
        return tuple(listing.objects.values())

    async def _sync(self) -> None:
        node = await self._client.request("GET", NODES.path(name=self._node), decode=Node)
        there = {obj.metadata.name: obj for obj in await self._there()}
        generation = max((obj.spec.pool.generation for obj in there.values()), default=0)
        contents = list(self._kept())
        wanted = {self._name(i): each for i, each in enumerate(contents)}
        documents = {name: self._document(name, each, node, generation, len(wanted)) for name, each in wanted.items()}
        stale = [name for name, document in documents.items() if not _same(document, there.get(name))]
        obsolete = [obj for name, obj in there.items() if name not in wanted]
        if len(stale) + len(obsolete) > 1 or any(name not in there for name in stale):
            generation += 1
            stale = list(documents)
        for obj in obsolete:
            await self._delete(obj)
        for name in stale:
            document = self._document(name, wanted[name], node, generation, len(wanted))
            await self._write(name, document, there.get(name))

    def _kept(self) -> Iterator[Document]:
        """The contents without devices that would be wrong without the dropped fields."""
        for content in self._contents:
            if "sharedCounters" in content:
                if "consumesCounters" not in self._dropped:
                    yield content
                continue
            devices = [device for device in content["devices"] if not self._dropped & device.keys()]
            if devices:
                yield {"devices": devices}

    async def _write(self, name: str, document: Document, there: ResourceSlice | None) -> None:
        if there is None:
            path, method = RESOURCE_SLICES.path(), "POST"
        else:
            path, method = RESOURCE_SLICES.path(name=name), "PUT"
            document["metadata"]["resourceVersion"] = there.metadata.resource_version
        stored = await self._client.request(method, path, document, decode=ResourceSlice)
        self._written[name] = stored.metadata.resource_version
        if _record(document) != replace(resource_slice(stored), generation=0):
            self._miss(document, stored)

    def _miss(self, document: Document, stored: ResourceSlice) -> None:
        """Find the fields that the server has dropped, and schedule a write without the devices that need them."""
        kept = {device.name: device for device in stored.spec.devices}
        for device in document["spec"].get("devices", ()):
            found = kept.get(device["name"])
            for part, is_there in (
                ("taints", found is not None and bool(found.taints)),
                ("consumesCounters", found is not None and bool(found.consumes_counters)),
            ):
                if part in device and not is_there and part not in self._dropped:
                    log.error(
                        "the API server does not keep `%s` of devices: devices that need it are not published; switch "
                        "on its feature gate %s",
                        part,
                        _GATES[part],
                    )
                    self._dropped.add(part)
                    self._wake()

    async def _delete(self, obj: ResourceSlice) -> None:
        self._written.pop(obj.metadata.name, None)
        body = {"preconditions": {"uid": obj.metadata.uid}}
        try:
            await self._client.request("DELETE", RESOURCE_SLICES.path(name=obj.metadata.name), body)
        except NotFound:
            return

    def _name(self, number: int) -> str:
        """The name of a slice. Names sort like the contents: allocators take devices in the order of slice names."""
        start = f"{number:05}-{self._driver}-"
        return start + self._node[-(_LONGEST_NAME - len(start)) :].lstrip("-.")

    def _document(self, name: str, content: Document, node: Node, generation: int, count: int) -> Document:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid, "controller": True}
        pool = {"name": self._node, "generation": generation, "resourceSliceCount": count}
        return {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name, "labels": LABELS, "ownerReferences": [owner]},
            "spec": {"driver": self._driver, "nodeName": self._node, "pool": pool, **content},
        }


def _record(document: Document) -> Slice:
    return replace(resource_slice(msgspec.convert(document, ResourceSlice)), generation=0)


def _same(document: Document, there: ResourceSlice | None) -> bool:
    """Whether the slice has these contents, this generation and this owner."""
    if there is None or there.spec.pool.generation != document["spec"]["pool"]["generation"]:
        return False
    owners = [owner.uid for owner in there.metadata.owner_references]
    wanted = [owner["uid"] for owner in document["metadata"]["ownerReferences"]]
    return owners == wanted and _record(document) == replace(resource_slice(there), generation=0)
