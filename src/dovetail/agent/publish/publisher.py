# SPDX-License-Identifier: Apache-2.0
"""Publishes this node: its GPUNode and, if enabled, feature labels and a NodeResourceTopology.

Rules
- The objects are written when something has changed, and at least every five minutes, with the kubelet's configuration
  read again. If the API server does not answer, the write is repeated with growing pauses.
- If another manager writes the same labels or the same object, the agent reports that and does not write them.
- While the device plugin is being registered nothing is written for ten seconds at most: a scheduler would take the
  missing devices for gone.
- Only the condition that the kubelet does not have the plugin is written at once, and all else stays: pods that are
  bound meanwhile would be rejected. That is so at the start of this process, before its end, and after a restart of the
  kubelet until it has settled, ten seconds at most (see `settling`).
- If no GPU of the machine has answered yet, only the GPUNode is written: that the GPUs do not answer, with their last
  published description.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection

from msgspec import Struct

from dovetail import __version__
from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.apis.serving import SocketError
from dovetail.agent.config import Config
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.kubelet.settling import BEGINS
from dovetail.agent.kubelet.state import (
    KubeletConfig,
    KubeletConfigError,
    read_file,
    read_kubelet_config,
    read_node,
    state_of,
)
from dovetail.agent.machine.host import Host, Unread
from dovetail.agent.machine.sysfs import Sysfs, SysfsError
from dovetail.agent.options import AgentOptions
from dovetail.agent.publish.gpunode import RENEW_S, GPUNodeWriter
from dovetail.agent.publish.gpunode_status import NodeHealth, PluginState, carried, plugin_condition, status_of
from dovetail.agent.publish.labels import NodeLabels, labels_of, pci_of
from dovetail.agent.publish.zones import NodeZones, zones_of_node
from dovetail.core.model import GPU
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.objects.topology import AgentState, DeviceDifference, GpuSharing, KubeletState, MigState

log = logging.getLogger(__name__)

_AGAIN_S, _AGAIN_MAX_S = 2.0, 60.0
_REGISTRATION_S, _REGISTRATION_MAX_S = 0.2, 10.0
_SETTLE_S = 0.05
_AT_ONCE_S = 2.0


class NodeFacts(Struct, frozen=True):
    """All that is published.

    offered, registered: the resources of the device plugin, and those of them that the kubelet has.
    unregistered: why the kubelet does not have all of them (see `DevicePlugins`), None if no device plugin runs.
    faults: messages for the operator.
    unhealthy: the unhealthy GPUs and MIG instances.
    fences: whether the NUMA guard puts up fences now."""

    host: Host
    unhealthy: tuple[Unhealthy, ...] = ()
    offered: frozenset[str] = frozenset()
    registered: frozenset[str] = frozenset()
    differences: tuple[DeviceDifference, ...] = ()
    faults: tuple[str, ...] = ()
    mig: MigState | None = None
    fences: bool = False
    unregistered: tuple[str, str] | None = None
    health: NodeHealth = NodeHealth()


class Publisher:
    """`facts` returns what is to be published, `restored` corrects an answer of the kubelet (`DevicePlugins.restored`).
    `notify` is called when something has changed."""

    def __init__(
        self,
        cluster: ClusterConfig,
        client: Client,
        options: AgentOptions,
        config: Config,
        sysfs: Callable[[], Sysfs],
        facts: Callable[[], NodeFacts],
        restored: Callable[[wire.AllocatableResourcesResponse], wire.AllocatableResourcesResponse],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._options = options
        self._config = config
        self._sysfs = sysfs
        self._facts = facts
        self._restored = restored
        self._due = asyncio.Event()
        self._writer = GPUNodeWriter(client, options.node_name)
        self._labels = NodeLabels(client, options.node_name)
        self._pod_resources = PodResources(options.pod_resources)
        self._zones = NodeZones(client, options.node_name)
        self._kubelet_read_s = float("-inf")
        self._version = ""
        self._kubelet: KubeletConfig | None = None
        self._reported: dict[str, str] = {}
        self._incomplete_since_s: float | None = None
        self.published = False
        """Whether the GPUNode has been written."""

    def configure(self, config: Config) -> None:
        """Use this configuration from the next write on."""
        self._config = config

    def notify(self) -> None:
        """Publish soon: something has changed."""
        self._due.set()

    def idle(self, idle: Collection[str]) -> None:
        """These pods (uid) are idle now: publish soon if one that was published as idle is not any more."""
        if not self._writer.idle <= set(idle):
            self._due.set()

    async def begin(self) -> None:
        """Write that the kubelet does not have the device plugin yet."""
        await self._without_plugin("AgentBegins", "the agent starts, and has not registered its devices yet")

    async def end(self) -> None:
        """Write that the device plugin is about to end."""
        await self._without_plugin("AgentEnds", "the agent has stopped; if it was removed for good, delete this object")

    async def _without_plugin(self, reason: str, message: str) -> None:
        if self._options.device_plugin:
            with contextlib.suppress(KubeError, TimeoutError):
                async with asyncio.timeout(_AT_ONCE_S):
                    await self._writer.amend(plugin_condition(reason, message))

    async def run(self) -> None:
        """Until cancelled."""
        again_s = _AGAIN_S
        while True:
            # Changes that come together are written together.
            await asyncio.sleep(_SETTLE_S)
            self._due.clear()
            try:
                wait_s = await self._publish()
                again_s = _AGAIN_S
            except KubeError as error:
                log.warning("this node cannot be published: %s; next attempt in %g s", error, again_s)
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, _AGAIN_MAX_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._due.wait()

    async def _publish(self) -> float:
        """Write the objects, and return after how many seconds to do so again. Nothing is written for a while if the
        kubelet does not show the devices of the device plugin yet."""
        facts, sysfs = self._facts(), self._sysfs()
        plugin = plugin_condition(*facts.unregistered) if facts.unregistered is not None else None
        if plugin is not None and plugin.status == "False":
            amended = await self._writer.amend(plugin)
            if amended and facts.unregistered == BEGINS:
                return RENEW_S
        allocatable, pods = await self._pod_resources_answers()
        complete = self._is_complete(facts, allocatable)
        if not complete and time.monotonic() - (self._incomplete_since_s or 0) < _REGISTRATION_MAX_S:
            return _REGISTRATION_S
        kubelet, unread = await self._kubelet_state(facts, sysfs, allocatable)
        sharing = None
        if shared := self._config.sharing.get(GPU):
            sharing = GpuSharing(
                shared.strategy, shared.replicas, shared.fail_requests_greater_than_one, shared.renamed
            )
        unhealthy: dict[str, str] = {}
        for one in facts.unhealthy:
            unhealthy[one.uuid] = "; ".join(filter(None, (unhealthy.get(one.uuid), f"{one.code}: {one.message}")))
        status = status_of(
            facts.host,
            kubelet=kubelet,
            unread=(*unread, *(Unread("agent", fault) for fault in facts.faults)),
            unhealthy=unhealthy,
            agent=AgentState(__version__, honours_choice=bool(facts.registered), fences=facts.fences),
            plugin=PluginState(plugin, sharing, facts.differences),
            mig=facts.mig,
            health=facts.health,
        )
        if not facts.host.known:
            await self._writer.write(carried(status, await self._writer.before()))
            self.published = True
            return RENEW_S
        await self._writer.write(status)
        self.published = True
        if self._options.labels:
            why = await self._labels.write(labels_of(facts.host, self._config, pci_of(sysfs)))
            self._report("feature labels are not written", why)
        if self._options.topology_objects:
            await self._publish_zones(sysfs, allocatable, pods)
        return RENEW_S if complete else _REGISTRATION_MAX_S

    def _is_complete(self, facts: NodeFacts, allocatable: wire.AllocatableResourcesResponse | None) -> bool:
        """Whether the kubelet has registered and lists all resources of the device plugin."""
        listed = {device.resource_name for device in allocatable.devices} if allocatable is not None else frozenset()
        if facts.offered <= listed and facts.offered <= facts.registered:
            self._incomplete_since_s = None
            return True
        self._incomplete_since_s = self._incomplete_since_s or time.monotonic()
        return False

    async def _pod_resources_answers(
        self,
    ) -> tuple[wire.AllocatableResourcesResponse | None, wire.ListPodResourcesResponse | None]:
        try:
            allocatable = await self._pod_resources.allocatable_response()
            answers = self._restored(allocatable), await self._pod_resources.list_response()
        except SocketError as error:
            self._report("the kubelet's allocations cannot be read", str(error))
            return None, None
        self._report("the kubelet's allocations cannot be read", "")
        return answers

    async def _kubelet_state(
        self, facts: NodeFacts, sysfs: Sysfs, allocatable: wire.AllocatableResourcesResponse | None
    ) -> tuple[KubeletState | None, tuple[Unread, ...]]:
        """The state of the kubelet. Its configuration is read every RENEW_S."""
        if time.monotonic() - self._kubelet_read_s >= RENEW_S:
            try:
                await self._read_kubelet()
                self._kubelet_read_s = time.monotonic()
                self._report("the kubelet's configuration cannot be read", "")
            except (KubeError, KubeletConfigError) as error:
                self._report("the kubelet's configuration cannot be read", str(error))
                return None, (Unread("kubelet", str(error)),)
        assert self._kubelet is not None
        return state_of(self._version, self._kubelet, sysfs, allocatable, facts.registered)

    async def _read_kubelet(self) -> None:
        node = await read_node(self._client, self._options.node_name)
        self._version = node.version
        if self._options.kubelet_config is not None:
            self._kubelet = read_file(self._options.kubelet_config)
        else:
            folder = self._options.kubelet_folder
            self._kubelet = await read_kubelet_config(self._cluster, node.url, self._options.node_name, folder)

    async def _publish_zones(
        self,
        sysfs: Sysfs,
        allocatable: wire.AllocatableResourcesResponse | None,
        pods: wire.ListPodResourcesResponse | None,
    ) -> None:
        if allocatable is None or pods is None:
            return
        config = self._kubelet or KubeletConfig(topology_manager_policy="", topology_manager_scope="")
        policy, scope = config.topology_manager_policy, config.topology_manager_scope
        try:
            zones = zones_of_node(self._options.node_name, sysfs.numa_nodes, policy, scope, allocatable, pods)
            self._report("no NodeResourceTopology is written", await self._zones.write(zones))
        except SysfsError as error:
            self._report("no NodeResourceTopology is written", str(error))
        except NotFound:
            self._report("no NodeResourceTopology is written", "the cluster does not have this kind of object")

    def _report(self, what: str, why: str) -> None:
        """Log a failure once for each reason; "" if it is over."""
        if why and self._reported.get(what) != why:
            log.warning("%s: %s", what, why)
        self._reported[what] = why
