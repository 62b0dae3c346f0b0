# SPDX-License-Identifier: Apache-2.0
"""A playground with GPU nodes and the walk on it, by a clock that the test holds. The test plays agent, scheduler and
kubelet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from dovetail.apiserver.changes import StoreChange
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.stack import GPUStack, StackMeta
from dovetail.operator import manifest_objects
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.nodes import NodeWalks
from dovetail.operator.nodes.validation import PRIORITY_CLASS, pod_name
from dovetail.operator.parts import SharedByParts
from dovetail.operator.watched.watches import SharedWatches, settled
from dovetail.playground import Fault, Playground
from tests.operator.nodes.facts_made import spec

Document = dict[str, Any]
GPU_NODES, PODS = "gpunodes.dovetail.dev", "pods"
DEVICES = "dovetail.dev/devices"
SYSTEM, AGENT = "dovetail-system", "dovetail-agent"
_HOUR_S = 3600


class WalkedWorld:
    """`writes` has what was written to Nodes, GPUNodes and pods by the walk: (time, collection, name)."""

    def __init__(self) -> None:
        self.now_s = 1_764_000_000.0
        self.playground = Playground(clock=lambda: self.now_s, history=20_000)
        self.writes: list[tuple[float, str, str]] = []
        self._acting = False
        self.leads = True
        self.walks: NodeWalks
        self.watches: SharedWatches
        self.reports = 0
        for definition in manifest_objects.definitions():
            self.playground.put(definition)
        for name in (SYSTEM, AGENT):
            self.playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": PRIORITY_CLASS}}
        self.playground.put(head | {"value": -1_000_000, "preemptionPolicy": "Never"})
        head = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        self.playground.put(head | {"handler": "nvidia"})
        self._put_daemon_set()
        for collection in ("nodes", GPU_NODES, PODS):
            self.playground.store.collection(collection).listeners.append(self._note(collection))

    def _note(self, collection: str) -> Any:
        def note(change: StoreChange) -> None:
            if not self._acting:
                self.writes.append((self.now_s, collection, change.object["metadata"]["name"]))

        return note

    @contextlib.contextmanager
    def acting(self) -> Any:
        """What is written inside is the test's own."""
        self._acting = True
        try:
            yield
        finally:
            self._acting = False

    def put(self, document: Document) -> Document:
        with self.acting():
            return self.playground.put(document)

    def _put_daemon_set(self) -> None:
        labels = {"app.kubernetes.io/name": "dovetail-agent"}
        self.playground.put(
            {
                "apiVersion": "apps/v1", "kind": "DaemonSet",
                "metadata": {"name": "dovetail-agent", "namespace": AGENT, "labels": labels},
                "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {}}},
            }
        )  # fmt: skip

    def node(self, name: str = "gpu-1", *, gpus: int = 0, ready: str = "True", boot: str = "a", **more: Any) -> None:
        """A GPU node; with `gpus` it offers them and has the labels of an agent."""
        labels = {"nvidia.com/gpu.present": "true"} | ({"nvidia.com/gpu.product": "H100"} if gpus else {})
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        old = self.get("nodes", "", name)
        spec_ = more.pop("spec", None) or (old["spec"] if old is not None and "spec" in old else {})
        self.put(
            {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": labels | more.pop("labels", {})}, "spec": spec_,
                "status": {
                    "allocatable": amounts, "nodeInfo": {"bootID": boot},
                    "conditions": [{"type": "Ready", "status": ready, "message": "kubelet"}],
                },
            }
        )  # fmt: skip

    def agent_pod(self, name: str = "gpu-1", *, ready: bool = True, **status: Any) -> None:
        at = self.time()
        labels = {"app.kubernetes.io/name": "dovetail-agent"}
        containers = [{"name": "agent", "ready": ready, "state": {"running": {"startedAt": at}}}]
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        head = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"agent-{name}", "namespace": AGENT, "labels": labels},
        }
        body = {"nodeName": name, "containers": [{"name": "agent", "image": "dovetail:1"}]}
        shown = {"phase": "Running", "conditions": conditions, "containerStatuses": containers} | status
        self.put(head | {"spec": body, "status": shown})

    def report(self, name: str = "gpu-1", *, gpus: int = 2, version: str = "0.1.0", **status: Any) -> None:
        """What an agent writes into its GPUNode."""
        node, old = self.get("nodes", "", name), self.get(GPU_NODES, "", name)
        assert node is not None
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        conditions = [
            {"type": "DriverReady", "status": "True", "reason": "NvmlAnswers"},
            {"type": "PluginRegistered", "status": "True", "reason": "Registered"},
        ]
        shown = {
            "observedTime": self.time(), "conditions": conditions, "driverVersion": "550.54.14",
            "gpus": [{"index": i, "uuid": f"GPU-{i}"} for i in range(gpus)],
            "agent": {"version": version, "honoursChoice": True},
        }  # fmt: skip
        readiness = (old or {}).get("status", {}).get("readiness")
        kept = {"readiness": readiness} if readiness else {}
        head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode"}
        # With its managed fields: what the walk owns stays its own.
        metadata = (old or {}).get("metadata", {}) | {"name": name, "ownerReferences": [owner]}
        self.put(head | {"metadata": metadata, "status": shown | kept | status})

    def job(self, name: str, node: str = "gpu-1", *, gpus: int = 2, chosen: str = "") -> None:
        limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
        annotations = {DEVICES: chosen} if chosen else {}
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}}
        body = {"nodeName": node, "containers": [{"name": "main", "image": "x", "resources": limits}]}
        self.put(head | {"spec": body, "status": {"phase": "Running", "startTime": self.time()}})

    def working(self, name: str = "gpu-1") -> None:
        """All but the validation is done."""
        self.node(name, gpus=2)
        self.agent_pod(name)
        self.report(name)

    def finish(self, name: str = "gpu-1", *, message: str = "visible devices: GPU-0", code: int = 0) -> None:
        """The validation pod of the node is placed, runs and ends."""
        pod = self.get(PODS, SYSTEM, pod_name(name))
        assert pod is not None
        state = {"exitCode": code, "reason": "Completed", "message": message, "finishedAt": self.time()}
        annotations = pod["metadata"]["annotations"] | {DEVICES: "0"}
        status = {"phase": "Failed" if code else "Succeeded"}
        containers = [{"name": "check", "state": {"terminated": state}}]
        with self.acting():
            placed = pod | {"metadata": pod["metadata"] | {"annotations": annotations}}
            placed = placed | {
                "spec": pod["spec"] | {"nodeName": name},
                "status": status | {"containerStatuses": containers},
            }
            self.playground.store.put_raw(PODS, placed)

    def get(self, collection: str, namespace: str, name: str) -> Document | None:
        return self.playground.store.get(collection, namespace, name)

    def trial(self, name: str = "gpu-1") -> Document | None:
        """The validation pod."""
        return self.get(PODS, SYSTEM, pod_name(name))

    def readiness(self, name: str = "gpu-1") -> Document:
        gpu_node = self.get(GPU_NODES, "", name) or {}
        found: Document = gpu_node.get("status", {}).get("readiness", {})
        return found

    def at(self, name: str = "gpu-1") -> tuple[str, str]:
        found = self.readiness(name)
        return found.get("step", ""), found.get("reason", "")

    def tainted(self, name: str = "gpu-1") -> bool:
        node = self.get("nodes", "", name)
        assert node is not None
        return any(one["key"] == "dovetail.dev/not-ready" for one in node["spec"].get("taints") or ())

    def time(self) -> str:
        return datetime.fromtimestamp(self.now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def stack(self, **fields: Any) -> None:
        """Another spec of the stack."""
        self.walks.follow(GPUStack(StackMeta(name="gpus", uid="u-1"), spec(**fields)))

    async def settle(self, passes: int = 3, *, after_s: float = 0) -> None:
        """Let time pass, and the walk do all that is due then."""
        self.now_s += after_s
        for _ in range(passes):
            await self.seen()
            await self.walks.step()
        await self.seen()

    async def seen(self) -> None:
        """Wait until the watches have all that is stored."""
        async with asyncio.timeout(20):
            while not all(self._in_step()):  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.002)

    def _in_step(self) -> Any:
        for collection, namespace, reflector in (
            ("nodes", "", self.watches.nodes),
            (GPU_NODES, "", self.watches.gpu_nodes),
            (PODS, AGENT, self.watches.agent_pods),
            (PODS, SYSTEM, self.watches.system_pods),
        ):
            stored = (one["metadata"] for one in self.playground.store.list(collection))
            wanted = {one["uid"]: one["resourceVersion"] for one in stored if one.get("namespace", "") == namespace}
            yield wanted == {one.metadata.uid: one.metadata.resource_version for one in reflector.known.values()}

    def fault(self, fault: Fault) -> None:
        self.playground.faults.add(fault)

    @contextlib.asynccontextmanager
    async def walking(self, *, alone: bool = True, **fields: Any) -> AsyncIterator[None]:
        """The walk follows the playground meanwhile; it acts in `settle` alone."""
        config = ClusterConfig(server=self.playground.url)
        async with LeaderClient(config, retries=0, leads=lambda: self.leads) as client:
            self.watches = SharedWatches(client)
            shared = SharedByParts(client, self.watches, OwnedObjects(client, self._reported), self._reported)
            self.walks = NodeWalks(shared, clock_ms=lambda: round(self.now_s * 1000), alone=alone)
            followed = (*self.watches.reflectors, self.watches.runtime_classes)
            followers = [asyncio.create_task(one.run()) for one in followed]
            await settled(*followed)
            self.stack(**fields)
            try:
                yield
            finally:
                for task in followers:
                    task.cancel()
                await asyncio.gather(*followers, return_exceptions=True)

    def _reported(self) -> None:
        self.reports += 1
