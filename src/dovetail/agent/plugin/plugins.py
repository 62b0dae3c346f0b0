# SPDX-License-Identifier: Apache-2.0
"""All device plugins of a node: offers, preferred allocations, and the read-back of what pods have.

Rules: each resource is registered separately. A change of the host or of a device's health is sent to the kubelet at
once. A pod whose chosen devices are not available gets others; that is logged and counted, and the pod is never refused
here. The read-back reports to the scheduler which devices it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec import Struct

from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.cdi import Edits
from dovetail.agent.config import Config
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.bound_pods import BoundPod
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin import preferred_allocation, rdma
from dovetail.agent.plugin.folder import PluginFolder
from dovetail.agent.plugin.job_network import JobNetwork
from dovetail.agent.plugin.offers import ResourceOffer, offers
from dovetail.agent.plugin.preferred_allocation import CannotPrefer
from dovetail.agent.plugin.readback import ReadBack
from dovetail.agent.plugin.registration import KUBELET, Registration, clear_stale, identity
from dovetail.agent.plugin.server import Answers, PluginServer, RequestRefused
from dovetail.core.devices.layout import Layout
from dovetail.kube.objects.topology import DeviceDifference

log = logging.getLogger(__name__)


class Counts(Struct):
    """Counts since the process started. `allocated`: calls of Allocate that returned devices. Preferred allocations:
    `chosen` with the chosen devices, `unchosen` for unknown pods or without chosen devices, `unmet` if the chosen
    devices were not available."""

    registrations: int = 0
    allocated: int = 0
    chosen: int = 0
    unchosen: int = 0
    unmet: int = 0


def _nobody(differences: tuple[DeviceDifference, ...]) -> None:
    return


def _no_matter() -> None:
    return


class DevicePlugins:
    """`folder` is the kubelet's folder for device plugins. `gpu_edits` returns the container edits for GPUs and
    instances (for `passDeviceSpecs`), `mps` those for replicas of a resource that is shared by MPS; both take uuids.

    Callbacks: `differences` with all differences between chosen and allocated devices, whenever they change;
    `registering` before a registration, with whether the kubelet has restarted; `has_registered` after a registration;
    `changed` after a registration or its end.

    `dev_on_host`: the folder /dev as the container runtime sees it, for RDMA devices."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        chosen: Allocations,
        gpu_edits: Callable[[Sequence[str]], Edits],
        mps: Callable[[str, Sequence[str]], Edits],
        *,
        pod_resources: PodResources | None = None,
        differences: Callable[[tuple[DeviceDifference, ...]], None] = _nobody,
        changed: Callable[[], None] = _no_matter,
    ) -> None:
        self._changed = changed
        self.counts = Counts()
        self.registering: Callable[[bool], None] = lambda anew: None
        self.has_registered: Callable[[], None] = _no_matter
        self.dev_on_host = rdma.DEV
        self._socket: tuple[int, int] | None = None
        self._config, self._chosen = config, chosen
        self._folder = PluginFolder(folder)
        self._kubelet = pod_resources or PodResources()
        self._answers = Answers(config, gpu_edits, mps)
        self._readback = ReadBack(chosen, self._kubelet, lambda: self._gpu_offers, differences)
        self._registrations: dict[str, Registration] = {}
        self._ours: set[str] = set()
        self._faults: tuple[str, ...] = ()
        self._layout: Layout | None = None
        self._named: dict[str, tuple[frozenset[str], BoundPod | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._fence: tuple[str, ...] = ()

    def join(self, network: JobNetwork) -> None:
        """From now on containers with whole GPUs get its edits."""

        async def edits(offer: ResourceOffer, uuids: Sequence[str]) -> Edits:
            if not network.wanted:
                return Edits()
            named, pod = self._named.get(offer.resource, (frozenset(), None))
            asked = offer.resource, [offer.part(uuid) or "" for uuid in uuids], pod if named == {*uuids} else None
            await self._chosen.asker_known(*asked)
            return network.edits(uuids, self._chosen.askers(*asked))

        self._answers.network = edits
        self._readback.confirmed = network.confirmed

    @property
    def faults(self) -> tuple[str, ...]:
        """Messages for the operator; empty if all is well."""
        blind = f"{self._folder.path} is not watched: {self._folder.fault}" if self._folder.fault else ""
        registrations = (one.fault for one in self._registrations.values())
        return tuple(fault for fault in (*self._faults, blind, *registrations, *self._readback.faults) if fault)

    @property
    def differences(self) -> tuple[DeviceDifference, ...]:
        """The differences between the devices chosen for the node's pods and those that they have."""
        return self._readback.differences

    @property
    def differed(self) -> int:
        """How many pods had other devices than the chosen ones since the process started."""
        return self._readback.count

    @property
    def registered(self) -> frozenset[str]:
        """The resources that are registered with the kubelet now."""
        return frozenset(self._ours)

    @property
    def unregistered(self) -> tuple[str, str]:
        """Why the kubelet does not have all healthy devices: a reason of the condition PluginRegistered, and its
        message; "" and "" if it has."""
        if self._reading is None:
            return "AgentBegins", "the agent starts, and has not registered its devices yet"
        lacking = [
            (
                one.hindrance,
                one.fault or f"{resource} is not registered with the kubelet, which has stopped or restarts",
            )
            for resource, one in sorted(self._registrations.items())
            if resource not in self._ours and any(device.healthy for device in one.offered.devices.values())
        ]
        return min(lacking, default=("", ""))

    @property
    def offered(self) -> dict[str, ResourceOffer]:
        """The offers by resource, registered or not."""
        return {resource: one.offered for resource, one in self._registrations.items()}

    @property
    def _gpu_offers(self) -> dict[str, ResourceOffer]:
        return {resource: offer for resource, offer in self.offered.items() if offer.of_gpus}

    @property
    def resources(self) -> Collection[str]:
        """The names of the offered resources of GPUs."""
        return self._gpu_offers.keys()

    async def update(self, host: Host, unhealthy: Collection[Unhealthy]) -> None:
        """Offer the devices of this host. Registered resources are sent to the kubelet before this returns."""
        if self._reading is None:
            clear_stale(self._folder.path)
            self._folder.open()
            self._reading = asyncio.create_task(self._readback.run())
        uuids = frozenset(fault.uuid for fault in unhealthy)
        found, faults = offers(host, self._config, uuids, self._gpu_offers)
        found |= rdma.rdma_offers(host, self._config, self.dev_on_host)
        for fault in faults:
            if fault not in self._faults:
                log.warning("%s", fault)
        self._faults, self._layout = faults, preferred_allocation.layout_of(host)
        for resource, offer in found.items():
            known = self._registrations.get(resource)
            if known is not None:
                known.offer(offer)
                continue
            self._registrations[resource] = Registration(
                self._folder, offer, self._kubelet, self._ours, self._server, self._on_registered, self._changed
            )
            self._registrations[resource].start()
        gone = [self._registrations.pop(resource) for resource in {*self._registrations} - {*found}]
        await asyncio.gather(*(one.close() for one in gone))
        # Names of devices may have changed.
        self._readback.compare()

    def configure(self, config: Config) -> None:
        """Use this configuration from the next update on."""
        self._config = self._answers.config = config

    def names(self, host: Host) -> frozenset[tuple[str, str]]:
        """All (resource, device id) that the host would be offered as."""
        found, _ = offers(host, self._config, (), {})
        return frozenset((resource, id) for resource, offer in found.items() for id in offer.devices)

    async def close(self) -> None:
        """Withdraw all resources."""
        await asyncio.gather(*(one.close() for one in self._registrations.values()))
        self._registrations.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
            self._folder.close()

    def fence(self, parts: Sequence[str]) -> None:
        """Send the kubelet NUMA nodes only for these parts, for their resources, until the next call; () for all."""
        self._fence = tuple(parts)
        for one in self._registrations.values():
            one.fence(frozenset(one.offered.own(parts)))

    def fenced(self, allocatable: wire.AllocatableResourcesResponse) -> bool:
        """Whether the kubelet's answer `allocatable` shows the last fence."""
        numa = {(one.resource_name, id) for one in allocatable.devices for id in one.device_ids if one.topology.nodes}
        for resource, offer in self.offered.items():
            parts = offer.own(self._fence)
            healthy = [device for device in offer.devices.values() if device.healthy and device.numa is not None]
            shown = {device.id for device in healthy if (resource, device.id) in numa}
            if parts and shown != {device.id for device in healthy if device.part in parts}:
                return False
        return True

    def restored(self, allocatable: wire.AllocatableResourcesResponse) -> wire.AllocatableResourcesResponse:
        """The kubelet's answer with the NUMA nodes of our devices that a fence hides."""
        offers, found = self.offered, wire.AllocatableResourcesResponse()
        found.CopyFrom(allocatable)
        del found.devices[:]
        for one in allocatable.devices:
            devices = offers[one.resource_name].devices if one.resource_name in offers else {}
            for id in one.device_ids:
                entry = found.devices.add(resource_name=one.resource_name, device_ids=[id])
                if id not in devices and one.HasField("topology"):
                    entry.topology.CopyFrom(one.topology)
                elif id in devices and (numa := devices[id].numa) is not None:
                    entry.topology.nodes.add(ID=numa)
        return found

    def _server(self, path: Path, offer: ResourceOffer) -> PluginServer:
        socket = identity(self._folder.path / KUBELET)
        anew, self._socket = socket != self._socket, socket
        self.registering(anew)
        return PluginServer(path, offer, self._answers, self._prefer, self._on_allocated, self._folder.wake)

    def _on_registered(self) -> None:
        self.counts.registrations += 1
        self._readback.registered()
        self.has_registered()
        self._changed()

    def _on_allocated(self, offer: ResourceOffer, ids: tuple[str, ...]) -> None:
        self.counts.allocated += 1
        if not offer.of_gpus:
            return
        # Once: the kubelet calls for the same devices again without a preference, where it has no choice left.
        named, pod = self._named.pop(offer.resource, (frozenset(), None))
        parts = tuple(offer.part(id) or "" for id in ids)
        self._chosen.allocated(offer.resource, parts, pod if named == {*ids} else None)
        self._readback.allocated(ids)

    async def _prefer(
        self, offer: ResourceOffer, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        """The ids that the kubelet should take. Raises RequestRefused."""
        free = {*available}
        if not len({*must}) <= size <= len(free | {*must}):
            raise RequestRefused(f"{size} of {len(free)} devices, {len(must)} of them included, cannot be had")
        if not offer.of_gpus:
            return [*must, *sorted(free - {*must}, key=int)[: size - len({*must})]]

        def of_chosen(pod: BoundPod) -> list[str]:
            had = pod.allocated.get(offer.resource, ())
            return preferred_allocation.of_chosen(
                offer, pod.parts or (), free, must, size, had=had, layout=self._layout
            )

        def fits(pod: BoundPod) -> bool:
            try:
                return pod.parts is None or bool(of_chosen(pod))
            except CannotPrefer:
                return False

        pod = await self._chosen.next(offer.resource, size, fits)
        ids: Sequence[str] = ()
        if pod is not None and pod.parts is not None:
            try:
                ids = await asyncio.to_thread(of_chosen, pod)
                self.counts.chosen += 1
            except CannotPrefer as error:
                self._unmet(pod, str(error))
        elif pod is not None and pod.fault:
            self._unmet(pod, pod.fault)
        else:
            self.counts.unchosen += 1
        if not ids:
            # Read here: the pods of the node change in this thread.
            promised = self._chosen.promised(offer.resource, pod)
            ids = await asyncio.to_thread(self._unchosen, offer, free, must, size, promised)
        self._named[offer.resource] = (frozenset(ids), pod)
        return ids

    def _unmet(self, pod: BoundPod, why: str) -> None:
        self.counts.unmet += 1
        log.warning("pod %s does not get the devices chosen for it: its annotation dovetail.dev/devices %s", pod, why)

    def _unchosen(
        self, offer: ResourceOffer, free: Collection[str], must: Sequence[str], size: int, promised: Collection[str]
    ) -> Sequence[str]:
        packed = self._config.shared_devices_allocation_policy == "packed"
        try:
            return preferred_allocation.of_all(
                offer, free, must, size, packed=packed, promised=promised, layout=self._layout
            )
        except CannotPrefer:
            # The offer has changed since the kubelet's call; the answer must still have the requested number.
            return [*must, *sorted({*free} - {*must})[: size - len({*must})]]
