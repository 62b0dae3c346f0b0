# SPDX-License-Identifier: Apache-2.0
"""The watches that the parts of the operator share: one reflector of each kind, whoever follows it.

Rules
- A kind is listed and watched once, however many parts subscribe to it. Pods are followed in Dovetail's two namespaces,
  and in each namespace that is asked for.
- Subscribers are called in the order in which they subscribed, with the changes of what they read: the heartbeat of a
  node is no change. One that comes later first gets all that is known.
- A kind that cannot be read (RBAC) has the server's text in `refusal`, and its subscribers are called with no change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.kube.api.client import Client
from dovetail.kube.api.decoding import Key, T
from dovetail.kube.api.errors import ApiError, KubeError
from dovetail.kube.api.reflector import Change, Reflector, ReflectorHandlers, log_error, whole
from dovetail.kube.api.resources import DAEMON_SETS, DEPLOYMENTS, GPU_NODES, NODES, PODS, Resource
from dovetail.operator.rendering.stack_objects import AGENT_NAMESPACE, SYSTEM_NAMESPACE
from dovetail.operator.watched.nodes import WatchedGPUNode, WatchedNode, kept_gpu_node, kept_node
from dovetail.operator.watched.outline import Outline
from dovetail.operator.watched.pods import WatchedOwner, WatchedPod, kept_foreign_pod, kept_pod

RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", False, "RuntimeClass")
_LOOK_S = 1.0


class SharedReflector(Reflector[T]):
    """A reflector with any number of subscribers. `refusal`: why it was not permitted to read the kind, "" where it
    was."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        kind: type[T],
        *,
        params: Mapping[str, str] | None = None,
        keep: Callable[[T], T] = whole,
    ) -> None:
        self.refusal = ""
        self._subscribers: list[tuple[Callable[[list[Change[T]]], None], Callable[[T], object] | None]] = []
        self._before: dict[Key, T] = {}
        """By key what was kept before the changes that are handed on next."""
        handlers = ReflectorHandlers(error=self._failed)
        super().__init__(client, resource, kind, self._changed, params=params, keep=keep, handlers=handlers)

    def subscribe(
        self, sink: Callable[[list[Change[T]]], None], *, reads: Callable[[T], object] | None = None
    ) -> None:  # fmt: skip
        """Call `sink` with every change from now on; of objects that change only with those of what it `reads`."""
        self._subscribers.append((sink, reads))
        if self.known:
            sink([Change("added", one) for one in self.known.values()])

    @property
    def settled(self) -> bool:
        """Whether it has been listed once, or is not served."""
        return self.synced.is_set() or not self.served

    @property
    def unread(self) -> str:
        """Why it has not been listed yet, "" where it has, or where nothing refused it."""
        return "" if self.settled else self.refusal

    def _put(self, key: Key, object: T, changes: list[Change[T]]) -> None:
        if key in self.known:
            self._before.setdefault(key, self.known[key])
        super()._put(key, object, changes)

    def _changed(self, changes: list[Change[T]]) -> None:
        before, self._before = self._before, {}
        for sink, reads in self._subscribers:
            if reads is None or not changes:
                sink(changes)
                continue
            seen = [one for one in changes if one.kind != "modified" or self._differs(one, before, reads)]
            if seen:
                sink(seen)

    def _differs(self, change: Change[T], before: Mapping[Key, T], reads: Callable[[T], object]) -> bool:
        meta = change.object.metadata
        key = meta.namespace, meta.name
        old, new = before.get(key), self.known.get(key)
        return old is None or new is None or reads(old) != reads(new)

    def _failed(self, error: KubeError) -> None:
        log_error(error)
        if isinstance(error, ApiError) and error.status in (401, 403):
            self.refusal = str(error)
            self._changed([])


class SharedWatches:
    """All of them. Each is run once, by `run` or before."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: asyncio.TaskGroup | None = None
        self.nodes = SharedReflector(client, NODES, WatchedNode, keep=kept_node)
        self.gpu_nodes = SharedReflector(client, GPU_NODES, WatchedGPUNode, keep=kept_gpu_node)
        self.daemon_sets = SharedReflector(client, DAEMON_SETS, WatchedOwner)
        self.deployments = SharedReflector(client, DEPLOYMENTS, WatchedOwner)
        self.runtime_classes = SharedReflector(client, RUNTIME_CLASSES, Outline)
        self._pods: dict[str, SharedReflector[WatchedPod]] = {}
        self.agent_pods, self.system_pods = self.pods(AGENT_NAMESPACE), self.pods(SYSTEM_NAMESPACE)

    def pods(self, namespace: str) -> SharedReflector[WatchedPod]:
        """The pods of a namespace, which is followed from now on."""
        found = self._pods.get(namespace)
        if found is None:
            keep = kept_pod if namespace in (AGENT_NAMESPACE, SYSTEM_NAMESPACE) else kept_foreign_pod
            params = {"fieldSelector": f"metadata.namespace={namespace}"}
            found = SharedReflector(self._client, PODS, WatchedPod, params=params, keep=keep)
            self._pods[namespace] = found
            if self._tasks is not None:
                self._tasks.create_task(found.run())
        return found

    @property
    def reflectors(self) -> tuple[SharedReflector[Any], ...]:
        """All but the RuntimeClasses, which a process follows also while it does not lead."""
        kinds: tuple[SharedReflector[Any], ...] = (self.nodes, self.gpu_nodes, self.daemon_sets, self.deployments)
        return *kinds, *self._pods.values()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for reflector in self.reflectors:
                tasks.create_task(reflector.run())


async def settled(*reflectors: SharedReflector[Any]) -> None:
    """Wait until each has been listed once, or is not served, which nothing announces."""
    for reflector in reflectors:
        while not reflector.settled:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await reflector.synced.wait()
