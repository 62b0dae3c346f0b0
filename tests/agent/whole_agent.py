# SPDX-License-Identifier: Apache-2.0
"""The whole agent of a node: on a stand-in machine, beside a fake kubelet, at a real API server.

`Seat` is the node; `agent()` runs its agent until the block ends. `statuses` has every version of the GPUNode's status
at the API server, without times, `labels` every version of the Node's labels, and `lists` every list of healthy devices
that the agent sent to the kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dovetail.agent.apis import deviceplugin_pb2 as plugin
from dovetail.agent.options import AgentOptions
from dovetail.agent.run import run
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.decoding import Identified
from dovetail.kube.api.errors import NotFound
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import GPU_NODES, NODES, PODS
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.topology import PLUGIN_REGISTERED, Condition, GPUNode
from tests.agent.agents import until
from tests.agent.fake_kubelet import Allocation, FakeKubelet, Pod
from tests.patience import PATIENCE_S
from tools.standin import Standin

KUBELET_CONFIG = "{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration}\n"


class Listening(FakeKubelet):
    """Notes how many healthy devices each list had."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.heard: list[int] = []

    def _listed(self, resource: str, devices: Iterable[plugin.Device]) -> None:
        devices = list(devices)
        self.heard.append(sum(device.health == "Healthy" for device in devices))
        super()._listed(resource, devices)


class Seat:
    def __init__(self, cluster: ClusterConfig, machine: Standin, name: str, **options: Any) -> None:
        self.cluster, self.machine, self.name = cluster, machine, name
        # The paths of sockets are limited to 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="dovetail-")
        folder = Path(self._folder.name)
        self.kubelet = Listening(folder / "kubelet")
        self.plugin: list[str] = []
        """The reasons of the condition PluginRegistered."""
        self.statuses: list[dict[str, Any]] = []
        """All else."""
        self.fences: list[bool] = []
        """Whether the scheduler may put up fences, in each status with a registered plugin."""
        self.labels: list[dict[str, str]] = []
        (folder / "kubelet.yaml").write_text(KUBELET_CONFIG)
        self.options = AgentOptions(
            name,
            **{
                "labels": True,
                "clean_period": 0.0,
                "kubelet_config": folder / "kubelet.yaml",
                "kubelet_folder": folder / "kubelet",
                "state_folder": folder / "state",
                "cdi_folder": folder / "cdi",
                "mps_folder": folder / "mps",
                "sysfs_root": machine.sysfs,
                "proc_root": machine.proc,
                "dev_root": machine.dev,
                "driver_root": machine.driver_root,
                **options,
            },
        )

    async def __aenter__(self) -> Seat:
        await self.kubelet.start()
        self._client = await Client(self.cluster).__aenter__()
        status = {"nodeInfo": {"kubeletVersion": "v1.37.1"}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}, "status": status}
        await self._client.request("POST", NODES.path(), node)
        own = {"fieldSelector": f"metadata.name={self.name}"}
        follow = (
            Reflector(self._client, NODES, Node, self._node, params=own),
            Reflector(self._client, GPU_NODES, GPUNode, self._gpu_node, params=own),
        )
        self._following = [asyncio.create_task(one.run()) for one in follow]
        for one in follow:
            await one.synced.wait()
        return self

    async def __aexit__(self, *error: object) -> None:
        for one in self._following:
            one.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        for path in (NODES.path(name=self.name), GPU_NODES.path(name=self.name)):
            with contextlib.suppress(NotFound):
                await self._client.request("DELETE", path)
        await self._client.__aexit__(None, None, None)
        await self.kubelet.stop()
        self._folder.cleanup()

    def _node(self, changes: list[Change[Node]]) -> None:
        for change in changes:
            labels = dict(change.object.metadata.labels)
            labels.pop("nvidia.com/gfd.timestamp", None)
            if change.kind != "deleted" and labels not in self.labels[-1:]:
                self.labels.append(labels)

    def _gpu_node(self, changes: list[Change[GPUNode]]) -> None:
        for change in changes:
            status = replace(change.object.status, observed_time=None)
            for one in status.conditions:
                if one.type == PLUGIN_REGISTERED and one.reason not in self.plugin[-1:]:
                    self.plugin.append(one.reason)
                if one.type == PLUGIN_REGISTERED and one.status == "True" and status.agent is not None:
                    self.fences.append(status.agent.fences)
            conditions = tuple(_beside_the_plugin(status.conditions))
            found = msgspec.to_builtins(replace(status, conditions=conditions))
            if change.kind != "deleted" and found not in self.statuses[-1:]:
                self.statuses.append(found)

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(run(self.cluster, self.options))
        try:
            yield task
        finally:
            if not task.cancelling():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                # Why it ended by itself, if it did.
                await task

    async def offers(self, healthy: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the kubelet has so many healthy devices from the agent, and the plugin is registered."""

        def so() -> bool:
            had = [*self.kubelet._healthy.values()]
            agent = (self.statuses[-1] if self.statuses else {}).get("agent") or {}
            known = bool(agent.get("honoursChoice")) and self.plugin[-1:] == ["Registered"]
            return sum(map(len, had)) == healthy and known

        await until(so, timeout_s)

    def forget(self) -> None:
        """From now on only what is new is noted, the last of each aside."""
        self.statuses, self.labels, self.plugin = self.statuses[-1:], self.labels[-1:], self.plugin[-1:]
        self.fences, self.kubelet.heard = [], []

    async def bind(self, pod: Pod) -> None:
        """Create the pod, bound to this node."""
        meta = pod["metadata"]
        made = await self._client.request(
            "POST",
            PODS.path(meta["namespace"]),
            {**pod, "spec": {**pod["spec"], "nodeName": self.name}},
            decode=Identified,
        )
        meta["uid"] = made.metadata.uid

    async def runs(self, pod: Pod) -> dict[str, dict[str, Allocation]]:
        """Bind the pod to this node, and run it; returns the devices of each container."""
        await self.bind(pod)
        meta = pod["metadata"]
        allocated = await self.kubelet.admit(pod)
        path = PODS.path(meta["namespace"], meta["name"], "status")
        await self._client.request("PATCH", path, {"status": {"phase": "Running"}}, content_type=MERGE_PATCH)
        return allocated

    async def ends(self, pod: Pod) -> None:
        """Remove the pod from the kubelet and from the API server."""
        meta = pod["metadata"]
        self.kubelet.remove(meta["uid"])
        await self._client.request("DELETE", PODS.path(meta["namespace"], meta["name"]), {"gracePeriodSeconds": 0})


def _beside_the_plugin(conditions: Iterable[Condition]) -> Iterator[Condition]:
    for one in conditions:
        if one.reason == "PluginNotRegistered":
            yield Condition(one.type, "True", "AllRead")
        elif one.type != PLUGIN_REGISTERED:
            yield replace(one, last_transition_time=None)
