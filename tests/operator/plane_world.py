# SPDX-License-Identifier: Apache-2.0
"""The operator on a real control plane with kube-scheduler: nodes, what kubelets would do for their pods, and every
change of a pod in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from dovetail.kube.api.client import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import ApiError, Conflict, NotFound
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import GPU_NODES, GPU_STACKS, NODES, PODS
from dovetail.operator.run import OperatorOptions, run
from dovetail.operator.watched.pods import WatchedPod
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

Document = dict[str, Any]
SYSTEM, AGENTS = "dovetail-system", "dovetail-agent"
STACK = "dovetail"
_POLL_S = 0.2
_ENDS_S = 0.3
"""How long a pod takes to end."""


class Kubelets:
    """Pods that are bound run and are ready, but for those of an image in `missing`; pods that are deleted end a moment
    later. Agents report in the GPUNode that they run. `seen` is called with every change of a pod, in order."""

    def __init__(self, client: Client, seen: Callable[[Change[WatchedPod]], None]) -> None:
        self.missing: set[str] = set()
        self._client, self._seen = client, seen
        self._tasks: asyncio.TaskGroup | None = None
        self._begun: set[tuple[str, str]] = set()
        self.pods = Reflector(client, PODS, WatchedPod, self._changed)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await self.pods.run()

    def _changed(self, changes: list[Change[WatchedPod]]) -> None:
        assert self._tasks is not None
        for change in changes:
            self._seen(change)
            meta = change.object.metadata
            act = "end" if meta.deletion_timestamp else "start" if change.object.spec.node_name else ""
            if change.kind != "deleted" and act and (meta.uid, act) not in self._begun:
                self._begun.add((meta.uid, act))
                self._tasks.create_task(self._end(change.object) if act == "end" else self._start(change.object))

    async def _start(self, pod: WatchedPod) -> None:
        meta, waiting = pod.metadata, False
        while any(one.image in self.missing for one in pod.spec.containers):
            if not waiting:
                waiting = True
                await self._report(pod, [], _states(pod, {"waiting": {"reason": "ImagePullBackOff"}}))
            await asyncio.sleep(0.1)
            if self.pods.known.get((meta.namespace, meta.name)) is None:
                return
        ready = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady")]
        await self._report(pod, ready, _states(pod, {"running": {}}), phase="Running")
        if meta.namespace == AGENTS and pod.daemon_set:
            await self._report_gpus(pod.spec.node_name)

    async def _report_gpus(self, node: str) -> None:
        kind = {"apiVersion": GPU_NODES.api_version, "kind": GPU_NODES.kind, "metadata": {"name": node}}
        params: dict[str, str | int] = {"fieldManager": "dovetail-agent", "force": "true"}
        for path, body in (
            (GPU_NODES.path(name=node), kind),
            (GPU_NODES.path(name=node, subresource="status"), kind | {"status": {"observedTime": now()}}),
        ):
            await self._client.request("PATCH", path, body, params=params, content_type=APPLY_PATCH)

    async def _report(
        self, pod: WatchedPod, conditions: list[Document], containers: list[Document], phase: str = "Pending"
    ) -> None:
        path = PODS.path(pod.metadata.namespace, pod.metadata.name, "status")
        for one in conditions:
            one["lastTransitionTime"] = now()
        status = {
            "phase": phase, "startTime": now(), "conditions": conditions, "containerStatuses": containers,
        }  # fmt: skip
        with suppress(ApiError):
            body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
            await self._client.request("PATCH", path, body, content_type=STRATEGIC_PATCH)

    async def _end(self, pod: WatchedPod) -> None:
        await asyncio.sleep(_ENDS_S)
        meta = pod.metadata
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}
        with suppress(NotFound):
            await self._client.request("DELETE", PODS.path(meta.namespace, meta.name), body)


def _states(pod: WatchedPod, state: Document) -> list[Document]:
    running = "running" in state
    return [
        {
            "name": one.name, "image": one.image, "imageID": "", "ready": running, "started": running,
            "restartCount": 0, "state": {"running": {"startedAt": now()}} if running else state,
        }
        for one in pod.spec.containers
    ]  # fmt: skip


@asynccontextmanager
async def meanwhile(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """These run during the block."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def now() -> str:
    """The time as the API has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PlaneWorld:
    """A plane with the operator's rights and limits. The pods of its nodes run while `kubelets` does.

    pods   what is there of pods, by (namespace, name)
    """

    def __init__(self, plane: Plane, client: Client) -> None:
        self.plane, self.client = plane, client
        self.watchers: list[Callable[[Change[WatchedPod]], None]] = []
        self.kubelets = Kubelets(client, lambda change: [one(change) for one in self.watchers])
        self.running: list[asyncio.Task[None]] = []

    async def get(self, path: str) -> Document:
        found = await self.client.request("GET", path, decode=dict[str, Any])
        assert found is not None
        return found

    async def create(self, path: str, document: Document) -> Document:
        found = await self.client.request("POST", path, document, decode=dict[str, Any])
        assert found is not None
        return found

    async def patch(self, path: str, body: Document) -> None:
        await self.client.request("PATCH", path, body, content_type=MERGE_PATCH)

    async def node(self, name: str, labels: dict[str, str], gpus: int = 8) -> None:
        """A Node that is ready."""
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels}}
        document = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
        await self.create(NODES.path(), document)

    async def labels(self, node: str) -> dict[str, str]:
        found: dict[str, str] = (await self.get(NODES.path(name=node)))["metadata"]["labels"]
        return found

    async def label(self, node: str, **labels: str | None) -> None:
        await self.patch(NODES.path(name=node), {"metadata": {"labels": labels}})

    async def stack(self, **spec: Any) -> None:
        """Make the GPUStack, or replace its spec, whatever the operator writes meanwhile."""
        path = GPU_STACKS.path(name=STACK)
        while True:
            try:
                found = await self.get(path)
                await self.client.request("PUT", path, found | {"spec": spec})
                return
            except NotFound:
                document = {"apiVersion": GPU_STACKS.api_version, "kind": GPU_STACKS.kind, "metadata": {"name": STACK}}
                await self.create(GPU_STACKS.path(), document | {"spec": spec})
                return
            except Conflict:
                continue

    async def uninstall(self) -> None:
        """Delete the GPUStack, and wait until the operator lets it go."""
        await self.client.request("DELETE", GPU_STACKS.path(name=STACK))
        await self.until(self._gone)

    async def _gone(self) -> bool:
        return not (await self.get(GPU_STACKS.path()))["items"]

    async def status(self) -> Document:
        """Of the GPUStack; empty while it is of an older spec."""
        try:
            found = await self.get(GPU_STACKS.path(name=STACK))
        except NotFound:
            return {}
        status: Document = found.get("status", {})
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}

    def pods(self) -> dict[str, set[str]]:
        """By node the DaemonSets with a pod there that does not end."""
        found: dict[str, set[str]] = {}
        for pod in self.kubelets.pods.known.values():
            if pod.daemon_set and pod.spec.node_name and not pod.metadata.deletion_timestamp:
                found.setdefault(pod.spec.node_name, set()).add(pod.daemon_set)
        return found

    def ready(self) -> bool:
        """Whether all pods of DaemonSets are ready, and none ends."""
        return all(pod.ready for pod in self.kubelets.pods.known.values() if pod.daemon_set)

    async def until(self, condition: Callable[[], Awaitable[object] | object], within_s: float = PATIENCE_S) -> None:
        """Wait for what nothing announces; fails with what there is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    found = condition()
                    if await found if isinstance(found, Awaitable) else found:
                        return
                    for task in self.running:
                        if task.done():
                            task.result()
                    await asyncio.sleep(_POLL_S)
        raise AssertionError(f"not within {within_s:g} s; pods {self.pods()}, status {await self.status()}")

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """The operator with the rights of its own ServiceAccount."""
        config = load_config(str(self.plane.service_account_kubeconfig(SYSTEM, "dovetail-operator")))
        options = OperatorOptions(listen="", image="dovetail:1", leader_elect=False)
        task = asyncio.create_task(run(config, options))
        self.running.append(task)
        try:
            yield
        finally:
            self.running.remove(task)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
