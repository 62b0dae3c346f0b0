# SPDX-License-Identifier: Apache-2.0
"""All device plugins of a node: what is offered, who is asked which devices to take, and what came of it.

Rules: each resource is registered by itself; a change of the host or of the health of a device reaches the kubelet at
once. A pod whose chosen devices cannot be had is served with others, which is said and counted, never refused here: the
read-back tells the scheduler what it has.
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
from dovetail.agent.kubelet.allocations import Allocations, BoundPod
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin import preferred_allocation
from dovetail.agent.plugin.folder import PluginFolder
from dovetail.agent.plugin.offers import ResourceOffer, offers
from dovetail.agent.plugin.preferred_allocation import CannotPrefer
from dovetail.agent.plugin.readback import ReadBack
from dovetail.agent.plugin.registration import KUBELET, Registration, clear_stale, identity
from dovetail.agent.plugin.server import Answers, PluginServer, RequestRefused
from dovetail.core.devices.layout import Layout
from dovetail.kube.objects.topology import DeviceDifference

log = logging.getLogger(__name__)


class Counts(Struct):
    """Since the process began. `allocated` are calls of Allocate that handed something over, `chosen` answers that
    named what was chosen, `unchosen` those for pods for which nobody chose, or that nobody knows, `unmet` those where
    what was chosen could not be had."""

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
    """`folder` is the kubelet's for device plugins. `gpu_edits` says what GPUs and instances need in a container (for
    `passDeviceSpecs`), `mps` what replicas of a resource that is shared by MPS need; both by uuid. `differences` is
    called with all differences between chosen and given whenever they change, `registering` before a resource is
    registered, with whether the kubelet is another one than before, and `has_registered` when the kubelet has it.
    `changed` is called when a resource was registered or is no more."""

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
        self._socket: tuple[int, int] | None = None
        self._config, self._chosen = config, chosen
        self._folder = PluginFolder(folder)
        self._kubelet = pod_resources or PodResources()
        self._answers = Answers(config, gpu_edits, mps)
        self._readback = ReadBack(chosen, self._kubelet, lambda: self.offered, differences)
        self._registrations: dict[str, Registration] = {}
        self._ours: set[str] = set()
        self._faults: tuple[str, ...] = ()
        self._layout: Layout | None = None
        self._named: dict[str, tuple[frozenset[str], BoundPod | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._fence: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """What an operator should know, as sentences; empty where all is well."""
        blind = f"{self._folder.path} is not watched: {self._folder.fault}" if self._folder.fault else ""
        registrations = (one.fault for one in self._registrations.values())
        return tuple(fault for fault in (*self._faults, blind, *registrations, *self._readback.faults) if fault)

    @property
    def differences(self) -> tuple[DeviceDifference, ...]:
        """Between what was chosen for the pods of the node and what they have."""
        return self._readback.differences

    @property
    def differed(self) -> int:
        """How many pods had other devices than were chosen for them, since the process began."""
        return self._readback.count

    @property
    def registered(self) -> frozenset[str]:
        """The resources that the kubelet has from us at this moment."""
        return frozenset(self._ours)

    @property
    def unregistered(self) -> tuple[str, str]:
        """Why the kubelet does not have all healthy devices that are offered, as a reason of the condition
        PluginRegistered and in words; "" and "" where it has."""
        if self._reading is None:
            return "AgentBegins", "the agent begins, and has offered nothing yet"
        lacking = [
            (
                one.hindrance,
                one.fault or f"{resource} is not registered with the kubelet, which has left or begins anew",
            )
            for resource, one in sorted(self._registrations.items())
            if resource not in self._ours and any(device.healthy for device in one.offered.devices.values())
        ]
        return min(lacking, default=("", ""))

    @property
    def offered(self) -> dict[str, ResourceOffer]:
        """What is offered, by resource, whether the kubelet knows it or not."""
        return {resource: one.offered for resource, one in self._registrations.items()}

    @property
    def resources(self) -> Collection[str]:
        """What is offered, by name."""
        return self._registrations.keys()

    async def update(self, host: Host, ill: Collection[Unhealthy]) -> None:
        """Offer what the host has now. What the kubelet knows already it is told before this returns."""
        if self._reading is None:
            clear_stale(self._folder.path)
            self._folder.open()
            self._reading = asyncio.create_task(self._readback.run())
        sick = frozenset(illness.uuid for illness in ill)
        found, faults = offers(host, self._config, sick, self.offered)
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
        # What a device is called may have changed.
        self._readback.compare()

    def configure(self, config: Config) -> None:
        """This counts from the next update on."""
        self._config = self._answers.config = config

    def names(self, host: Host) -> frozenset[tuple[str, str]]:
        """What the host would be offered as: resources with the ids of devices."""
        found, _ = offers(host, self._config, (), {})
        return frozenset((resource, id) for resource, offer in found.items() for id in offer.devices)

    async def close(self) -> None:
        """Withdraws everything."""
        await asyncio.gather(*(one.close() for one in self._registrations.values()))
        self._registrations.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
            self._folder.close()

    def fence(self, parts: Sequence[str]) -> None:
        """Tell the kubelet the NUMA nodes of these parts alone, of the resources that they are of, until this is called
        with others; () for all."""
        self._fence = tuple(parts)
        for one in self._registrations.values():
            one.fence(frozenset(one.offered.own(parts)))

    def fenced(self, told: wire.AllocatableResourcesResponse) -> bool:
        """Whether the kubelet has heard what `fence` said last. `told` is what it tells."""
        numa = {(one.resource_name, id) for one in told.devices for id in one.device_ids if one.topology.nodes}
        for resource, offer in self.offered.items():
            parts = offer.own(self._fence)
            healthy = [device for device in offer.devices.values() if device.healthy and device.numa is not None]
            shown = {device.id for device in healthy if (resource, device.id) in numa}
            if parts and shown != {device.id for device in healthy if device.part in parts}:
                return False
        return True

    def restored(self, told: wire.AllocatableResourcesResponse) -> wire.AllocatableResourcesResponse:
        """What the kubelet tells, with the NUMA nodes of our devices also where a fence hides them from it."""
        offers, found = self.offered, wire.AllocatableResourcesResponse()
        found.CopyFrom(told)
        del found.devices[:]
        for one in told.devices:
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
        named, pod = self._named.get(offer.resource, (frozenset(), None))
        parts = tuple(offer.part(id) or "" for id in ids)
        self._chosen.allocated(offer.resource, parts, pod if named == {*ids} else None)
        self._readback.allocated(ids)

    async def _prefer(
        self, offer: ResourceOffer, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        """The ids that the kubelet should take. Raises Refused."""
        free = {*available}
        if not len({*must}) <= size <= len(free | {*must}):
            raise RequestRefused(f"{size} of {len(free)} devices, {len(must)} of them included, cannot be had")

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
            ids = await asyncio.to_thread(self._unchosen, offer, free, must, size, pod)
        self._named[offer.resource] = (frozenset(ids), pod)
        return ids

    def _unmet(self, pod: BoundPod, why: str) -> None:
        self.counts.unmet += 1
        log.warning("pod %s is not given what was chosen for it: its annotation dovetail.dev/devices %s", pod, why)

    def _unchosen(
        self, offer: ResourceOffer, free: Collection[str], must: Sequence[str], size: int, pod: BoundPod | None
    ) -> Sequence[str]:
        packed = self._config.shared_devices_allocation_policy == "packed"
        promised = self._chosen.promised(offer.resource, pod)
        try:
            return preferred_allocation.of_all(
                offer, free, must, size, packed=packed, promised=promised, layout=self._layout
            )
        except CannotPrefer:
            # The list has just changed under the kubelet; it still has to be answered with as many as it asked for.
            return [*must, *sorted({*free} - {*must})[: size - len({*must})]]
