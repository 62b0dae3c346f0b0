# SPDX-License-Identifier: Apache-2.0
"""What the cluster is told of this node: its GPUNode, and where wished for, feature labels and a NodeResourceTopology.

Rules: it is told when something has changed, and at the latest every five minutes, when the kubelet is asked anew what
it manages. Who else writes the same labels or the same object is said, and then left alone. Where the API server does
not answer it is tried again, ever later. While the device plugin is being registered it is waited for, ten seconds at
most, since a scheduler would believe what is still missing; but that the kubelet does not have the plugin is told at
once, beside what was told before: pods that are bound meanwhile would be rejected. So it is when this process begins
and before it ends, and until a kubelet that has begun anew has settled, ten seconds at most (see `settling`). Of a
machine whose GPUs nobody has seen yet the GPUNode alone tells, and only that they do not answer: what was told of them
before stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from msgspec import Struct

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
from dovetail.agent.publish.gpunode import RENEW_S, GPUNodeWriter, carried, plugin_condition, status_of
from dovetail.agent.publish.labels import NodeLabels, labels_of, pci_of
from dovetail.agent.publish.zones import NodeZones, zones_of_node
from dovetail.core.model import GPU
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.objects.topology import DeviceDifference, GpuSharing, KubeletState, MigState

log = logging.getLogger(__name__)

_AGAIN_S, _AGAIN_MAX_S = 2.0, 60.0
_REGISTRATION_S, _REGISTRATION_MAX_S = 0.2, 10.0
_SETTLE_S = 0.05
_AT_ONCE_S = 2.0


class NodeFacts(Struct, frozen=True):
    """All that there is to tell. `offered` are the resources of the device plugin, `registered` those of them that the
    kubelet has, `unregistered` is why it does not have all (see `DevicePlugins`), None where no device plugin is run;
    `faults` are what an operator should know."""

    host: Host
    ill: tuple[Unhealthy, ...] = ()
    offered: frozenset[str] = frozenset()
    registered: frozenset[str] = frozenset()
    differences: tuple[DeviceDifference, ...] = ()
    faults: tuple[str, ...] = ()
    mig: MigState | None = None
    fences: bool = False
    unregistered: tuple[str, str] | None = None


class Publisher:
    """`seen` gives what is to be told, `restored` corrects what the kubelet tells (`DevicePlugins.restored`); `tell`
    says that something has changed."""

    def __init__(
        self,
        cluster: ClusterConfig,
        client: Client,
        options: AgentOptions,
        config: Config,
        sysfs: Callable[[], Sysfs],
        seen: Callable[[], NodeFacts],
        restored: Callable[[wire.AllocatableResourcesResponse], wire.AllocatableResourcesResponse],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._options = options
        self._config = config
        self._sysfs = sysfs
        self._seen = seen
        self._restored = restored
        self._due = asyncio.Event()
        self._writer = GPUNodeWriter(client, options.node_name)
        self._labels = NodeLabels(client, options.node_name)
        self._pod_resources = PodResources(options.pod_resources)
        self._zones = NodeZones(client, options.node_name)
        self._asked_s = float("-inf")
        self._version = ""
        self._kubelet: KubeletConfig | None = None
        self._said: dict[str, str] = {}
        self._incomplete_since_s: float | None = None
        self.told = False
        """Whether the GPUNode has been written."""

    def configure(self, config: Config) -> None:
        """What is told from now on is by this."""
        self._config = config

    def tell(self) -> None:
        self._due.set()

    async def begin(self) -> None:
        """Tell that the kubelet has no device plugin yet, if anybody has told otherwise."""
        await self._without_plugin("AgentBegins", "the agent begins, and has offered nothing yet")

    async def end(self) -> None:
        """Tell that the device plugin is about to go."""
        await self._without_plugin("AgentEnds", "the agent ends; where it was removed for good, delete this object")

    async def _without_plugin(self, reason: str, message: str) -> None:
        if self._options.device_plugin:
            with contextlib.suppress(KubeError, TimeoutError):
                async with asyncio.timeout(_AT_ONCE_S):
                    await self._writer.amend(plugin_condition(reason, message))

    async def run(self) -> None:
        """Until cancelled."""
        again_s = _AGAIN_S
        while True:
            # What changes together is told together.
            await asyncio.sleep(_SETTLE_S)
            self._due.clear()
            try:
                wait_s = await self._tell()
                again_s = _AGAIN_S
            except KubeError as error:
                log.warning("the cluster cannot be told of this node: %s; again in %g s", error, again_s)
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, _AGAIN_MAX_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._due.wait()

    async def _tell(self) -> float:
        """In how many seconds to look again, if nothing happens before. Nothing is told for a while where the kubelet
        does not show yet what the device plugin offers."""
        seen, sysfs = self._seen(), self._sysfs()
        plugin = plugin_condition(*seen.unregistered) if seen.unregistered is not None else None
        if plugin is not None and plugin.status == "False":
            amended = await self._writer.amend(plugin)
            if amended and seen.unregistered == BEGINS:
                return RENEW_S
        allocatable, pods = await self._kubelet_tells()
        complete = self._is_complete(seen, allocatable)
        if not complete and time.monotonic() - (self._incomplete_since_s or 0) < _REGISTRATION_MAX_S:
            return _REGISTRATION_S
        kubelet, unread = await self._managed(seen, sysfs, allocatable)
        shared = self._config.sharing.get(GPU)
        ill: dict[str, str] = {}
        for one in seen.ill:
            ill[one.uuid] = "; ".join(filter(None, (ill.get(one.uuid), f"{one.code}: {one.message}")))
        status = status_of(
            seen.host,
            kubelet=kubelet,
            unread=(*unread, *(Unread("agent", fault) for fault in seen.faults)),
            ill=ill,
            honours_choice=bool(seen.registered),
            fences=seen.fences,
            sharing=None if shared is None else GpuSharing(
                shared.strategy, shared.replicas, shared.fail_requests_greater_than_one, shared.renamed
            ),
            differences=seen.differences,
            mig=seen.mig,
            plugin=plugin,
        )  # fmt: skip
        if not seen.host.known:
            await self._writer.write(carried(status, await self._writer.before()))
            self.told = True
            return RENEW_S
        await self._writer.write(status)
        self.told = True
        if self._options.labels:
            why = await self._labels.write(labels_of(seen.host, self._config, pci_of(sysfs)))
            self._say("feature labels are not written", why)
        if self._options.topology_objects:
            await self._tell_zones(sysfs, allocatable, pods)
        return RENEW_S if complete else _REGISTRATION_MAX_S

    def _is_complete(self, seen: NodeFacts, allocatable: wire.AllocatableResourcesResponse | None) -> bool:
        listed = {device.resource_name for device in allocatable.devices} if allocatable is not None else frozenset()
        if seen.offered <= listed and seen.offered <= seen.registered:
            self._incomplete_since_s = None
            return True
        self._incomplete_since_s = self._incomplete_since_s or time.monotonic()
        return False

    async def _kubelet_tells(
        self,
    ) -> tuple[wire.AllocatableResourcesResponse | None, wire.ListPodResourcesResponse | None]:
        try:
            told = await self._pod_resources.allocatable_response()
            answer = self._restored(told), await self._pod_resources.list_response()
        except SocketError as error:
            self._say("the kubelet does not tell what it has given away", str(error))
            return None, None
        self._say("the kubelet does not tell what it has given away", "")
        return answer

    async def _managed(
        self, seen: NodeFacts, sysfs: Sysfs, allocatable: wire.AllocatableResourcesResponse | None
    ) -> tuple[KubeletState | None, tuple[Unread, ...]]:
        """What the kubelet manages; it is asked for its configuration now and then."""
        if time.monotonic() - self._asked_s >= RENEW_S:
            try:
                await self._ask()
                self._asked_s = time.monotonic()
                self._say("the kubelet's configuration is not known", "")
            except (KubeError, KubeletConfigError) as error:
                self._say("the kubelet's configuration is not known", str(error))
                return None, (Unread("kubelet", str(error)),)
        assert self._kubelet is not None
        return state_of(self._version, self._kubelet, sysfs, allocatable, seen.registered)

    async def _ask(self) -> None:
        node = await read_node(self._client, self._options.node_name)
        self._version = node.version
        if self._options.kubelet_config is not None:
            self._kubelet = read_file(self._options.kubelet_config)
        else:
            folder = self._options.kubelet_folder
            self._kubelet = await read_kubelet_config(self._cluster, node.url, self._options.node_name, folder)

    async def _tell_zones(
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
            told = zones_of_node(self._options.node_name, sysfs.numa_nodes, policy, scope, allocatable, pods)
            self._say("no NodeResourceTopology is written", await self._zones.write(told))
        except SysfsError as error:
            self._say("no NodeResourceTopology is written", str(error))
        except NotFound:
            self._say("no NodeResourceTopology is written", "the cluster does not have this kind of object")

    def _say(self, what: str, why: str) -> None:
        """Once for each change."""
        if why and self._said.get(what) != why:
            log.warning("%s: %s", what, why)
        self._said[what] = why
