# SPDX-License-Identifier: Apache-2.0
"""The engine of the operator on a store, without HTTP, watches or clocks: each pass sees all that is stored.

What is stored can be copied between two writes, so that a kill at each write costs only what comes after it.
`test_kills_of_all_objects.py` shows that this comes to the same objects as the operator over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web
from msgspec import Struct

from dovetail.apiserver.admission import stored_form
from dovetail.apiserver.budgets import Budgets
from dovetail.apiserver.connections import WatchConnections
from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import Key
from dovetail.apiserver.resources import Catalogue
from dovetail.apiserver.server import ApiServer, target_of
from dovetail.apiserver.store import Store
from dovetail.apiserver.watches import Watches
from dovetail.apiserver.writes import Writes
from dovetail.kube.api.client import JSON, Attempts, Params
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.errors import reply_error
from dovetail.kube.api.reflector import Reflector
from dovetail.kube.api.resources import GPU_STACKS
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import manifest_objects
from dovetail.operator.apply import Applier
from dovetail.operator.found import Found
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.live import LiveObject
from dovetail.operator.reconciler import Reconciler, Workshop
from dovetail.operator.rendering.stack_objects import MANAGED_BY, Desired, desired
from tests.operator.stack_world import STACKS, Document, comparable

T = TypeVar("T")
NOW_S = 1_800_000_000.0
IMAGE = "dovetail:1"
FOUND = Found(Served(frozenset((one.api_version, one.plural) for one in Catalogue(()).resources)))
_PASSES_MOST = 20


class StoreCopy(Struct, frozen=True):
    """What is stored at a moment; objects are never changed in place."""

    version: int
    collections: Mapping[str, Mapping[Key, Document]]

    @classmethod
    def of(cls, store: Store) -> StoreCopy:
        return cls(store.version, {one.name: dict(one.objects) for one in store.collections})


class Killed(Exception):
    """The process has ended."""


class Cluster:
    """A store, and the API server's rules on it. With `kills_after` the process ends after so many writes."""

    def __init__(self, copy: StoreCopy | None = None) -> None:
        self.store, catalogue = Store(clock=lambda: NOW_S), Catalogue(())
        if copy is not None:
            self.store.version = copy.version
            for name, objects in copy.collections.items():
                self.store.collection(name).objects = dict(objects)
        deletions = Deletions(self.store, catalogue, lambda: NOW_S)
        writes = Writes(self.store, deletions, lambda: NOW_S)
        budgets = Budgets(self.store, deletions, lambda: NOW_S)
        watches = cast(Watches, None)
        self._server = ApiServer(
            self.store, catalogue, writes, deletions, budgets, WatchConnections(), lambda: NOW_S, watches
        )  # fmt: skip
        self._deletions, self._catalogue, self._writes = deletions, catalogue, writes
        self.written: Callable[[], None] = lambda: None
        """Called after each write of the operator."""

    def copy(self) -> StoreCopy:
        return StoreCopy.of(self.store)

    def put(self, document: Document) -> None:
        """Make it, or change its spec."""
        resource = self._catalogue.of_kind(document["apiVersion"], document["kind"])
        assert resource is not None
        document = stored_form(resource, document)
        meta = document["metadata"]
        namespace = meta.get("namespace", "")
        old = self.store.get(resource.collection, namespace, meta["name"])
        if old is None:
            self._writes.create(resource, namespace, document)
        else:
            self._writes.update(resource, (namespace, meta["name"]), old | {"spec": document["spec"]}, "")

    def delete(self, collection: str, name: str) -> None:
        resource = self._catalogue.of_collection(collection)
        assert resource is not None
        self._deletions.delete(resource, ("", name), {})

    def answer(self, method: str, path: str, body: bytes, query: Mapping[str, Any], content_type: str) -> bytes:
        """Raises ApiError."""
        target = target_of(self._catalogue, path)
        texts = {name: str(value) for name, value in query.items()}
        request = SimpleNamespace(method=method, query=texts, headers={}, content_type=content_type)
        before = self.store.version
        try:
            if target is None:
                raise Failure(404, "NotFound", path)
            _, document = self._server._answer(cast(web.BaseRequest, request), target, body)
        except Failure as failure:
            body = msgspec.json.encode(failure.status)
            raise reply_error(failure.code, {}, body, f"{method} {path}", harmless=True) from None
        if method != "GET" and self.store.version != before:
            self.written()
        return msgspec.json.encode(document)


class StoreClient(LeaderClient):
    """Asks the cluster directly."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(ClusterConfig(server="http://store"), leads=lambda: True)
        self._cluster = cluster

    async def fetch(
        self, method: str, path: str, body: object = None, *, params: Params = None, content_type: str = JSON,
        accept: str = JSON, attempts: Attempts = Attempts(), most_bytes: int = 0,
    ) -> bytes:  # fmt: skip
        self.permit(method)
        payload = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self._cluster.answer(method, path, payload, cast(Mapping[str, Any], params or {}), content_type)


@cache
def _rendered(spec: bytes, name: str, uid: str, image: str) -> Desired:
    """Rendering is pure, and the same for all processes."""
    head = msgspec.convert({"metadata": {"name": name, "uid": uid}}, GPUStack)
    return desired(msgspec.structs.replace(head, spec=msgspec.json.decode(spec, type=type(head.spec))), FOUND, image)


def render(stack: GPUStack) -> Desired:
    return _rendered(msgspec.json.encode(stack.spec), stack.metadata.name, stack.metadata.uid, IMAGE)


class Process:
    """One process of the operator: its engine, with what it remembers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        client = StoreClient(cluster)
        self._stacks = Reflector(client, GPU_STACKS, GPUStack, lambda _: None)
        self._inventory = OwnedObjects(client, lambda: None)
        for reflector in self._inventory.reflectors.values():
            reflector.synced.set()
        shop = Workshop(client, self._stacks, self._inventory, Applier(client, self._inventory), render, ())
        self._engine = Reconciler("gpus", shop)
        self._seen: dict[str, tuple[int, int]] = {}

    async def run(self) -> int:
        """Pass after pass until nothing changes any more. Returns the number of passes."""
        for number in range(1, _PASSES_MOST):
            self._see()
            version = self._cluster.store.version
            await self._engine.reconcile()
            if self._cluster.store.version == version:
                return number
        raise AssertionError("it comes to no end")

    def _see(self) -> None:
        """What all watches would show."""
        store = self._cluster.store
        stacks = (msgspec.convert(one, GPUStack) for one in store.list(STACKS))
        self._stacks.known = {("", one.metadata.name): one for one in stacks}
        key, value = MANAGED_BY
        for resource, reflector in self._inventory.reflectors.items():
            name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
            known = {}
            for place, one in store.collection(name).objects.items():
                if one["metadata"].get("labels", {}).get(key) != value:
                    continue
                old = reflector.known.get(place)
                same = old is not None and old.metadata.resource_version == one["metadata"]["resourceVersion"]
                known[place] = old if same and old is not None else msgspec.convert(one, LiveObject)
            reflector.known = known
        self._inventory._noted.clear()


def new_cluster() -> Cluster:
    """With the definitions and namespaces that an installation of the operator makes."""
    cluster = Cluster()
    for definition in manifest_objects.definitions():
        cluster.put(definition)
    for name in ("dovetail-system", "dovetail-agent"):
        cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return cluster


def contents(store: Store, without: Sequence[str] = ()) -> dict[str, Document]:
    """All objects by name, without what differs from run to run."""
    return {
        f"{collection.name} {'/'.join(key)}": comparable(one)
        for collection in store.collections
        if collection.name not in without
        for key, one in collection.objects.items()
    }
