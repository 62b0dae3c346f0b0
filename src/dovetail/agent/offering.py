# SPDX-License-Identifier: Apache-2.0
"""Offers the host's GPUs to pods: the CDI specification, device plugins, the DRA driver, MPS.

Rules: the container runtime must be able to resolve every name that the kubelet receives, so the CDI specification is
written first. A GPU for which it cannot be written, or whose MIG layout is being changed, is offered as unhealthy. If
one part fails, the others go on; the failure is in `faults`, and the part is tried again at the next update.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.apis.serving import SocketError
from dovetail.agent.cdi import GPU_KIND, CdiError, CdiFolder, Edits
from dovetail.agent.checkpoint import CheckpointError
from dovetail.agent.config import Config
from dovetail.agent.dra.claim_networks import ClaimNetworks
from dovetail.agent.dra.driver import DraDriver, DriverError, Folders
from dovetail.agent.dra.partitions import Partitions
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.numa_guard import NumaGuard
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.kubelet.settling import BEGINS, Settling
from dovetail.agent.machine.driver_files import DriverFiles, DriverFilesError
from dovetail.agent.machine.host import Gpu, Host
from dovetail.agent.mps.clients import Mps
from dovetail.agent.options import AgentOptions
from dovetail.agent.plugin.job_network import JobNetwork
from dovetail.agent.plugin.nccl_conf import NcclFiles
from dovetail.agent.plugin.plugins import Counts, DevicePlugins
from dovetail.agent.publish.pod_events import PodEvent
from dovetail.kube.api.client import Client
from dovetail.kube.objects.topology import DeviceDifference

log = logging.getLogger(__name__)

_SPECIFICATION = "dovetail.dev-gpu"
_OURS = "nvidia.com/"
_QUIET_S, _DRAIN_S = 0.5, 5.0
"""The agent ends when no pod has waited for devices for _QUIET_S, and after _DRAIN_S at the latest."""
_FAILURES = (CdiError, CheckpointError, DriverError, SocketError, OSError)
Names = frozenset[tuple[str, str]]


class Offering:
    """`changed` is called when a new look is due, `registered` when the registered resources have changed or the
    kubelet has settled, `differed` with all pods that have other devices than the chosen ones, `notice`, which is set
    later, with what the owner of a pod is to read."""

    def __init__(
        self,
        options: AgentOptions,
        config: Config,
        client: Client,
        chosen: Allocations,
        partitions: Partitions,
        *,
        changed: Callable[[], None],
        registered: Callable[[], None],
        differed: Callable[[tuple[DeviceDifference, ...]], None],
    ) -> None:
        """Raises CheckpointError."""
        self.faults: dict[str, str] = {}
        self.notice: Callable[[PodEvent], None] | None = None
        self._options = options
        self._config = self._mps_config = config
        self._held_before: frozenset[str] | None = frozenset()
        """The devices that pods hold under names of an earlier configuration; None if there are none, empty if
        unknown."""
        self._host = Host()
        self._missing: tuple[str, ...] = ()
        self._kubelet = PodResources(options.pod_resources)
        self._changed = changed
        self._chosen = chosen
        chosen.on_change(self._pods_changed)
        self._cdi = CdiFolder(options.cdi_folder)
        self._files = DriverFiles(
            config.driver_root or options.driver_root,
            config.dev_root or options.dev_root,
            options.proc_root,
            options.sysfs_root,
            driver_root_on_host=options.driver_root_on_host,
            dev_root_on_host=options.dev_root_on_host,
        )
        self._mps = Mps(options.mps_folder, shm=options.mps_folder / "shm", changed=changed)
        self._plugins: DevicePlugins | None = None
        self._driver: DraDriver | None = None
        self.fencing: NumaGuard | None = None
        self.settling: Settling | None = None
        """The caller runs `fencing` and `settling` if they are set."""
        files = NcclFiles(options.state_folder / "nccl")
        network = JobNetwork(files, lambda: self._host, lambda: self._config, self._notify)
        if options.device_plugin:
            self._plugins = DevicePlugins(
                options.kubelet_folder / "device-plugins", config, chosen, self._edits, self._mps.client,
                pod_resources=self._kubelet, differences=differed, changed=registered,
            )  # fmt: skip
            self._plugins.join(network)
            self._plugins.dev_on_host = options.dev_root_on_host or options.dev_root
            self.settling = Settling(chosen, self._kubelet, self._plugins)
            self.settling.on_change(registered)
            # The kubelet can list the devices of its pods again.
            self.settling.on_change(changed)
            if options.fence:
                self.fencing = NumaGuard(client, options.node_name, chosen, self._kubelet, self._plugins, self.settling)
        if options.claims:
            folders = Folders(
                options.kubelet_folder / "plugins_registry",
                options.kubelet_folder / "plugins/dovetail.dev",
                options.cdi_folder,
            )
            self._driver = DraDriver(
                client, options.node_name, self._files, partitions, self._claims_held,
                folders=folders, partitionable=options.partitionable, changed=changed,
            )  # fmt: skip
            self._driver.join(ClaimNetworks(network, chosen))

    def _notify(self, event: PodEvent) -> None:
        if self.notice is not None:
            self.notice(event)

    def configure(self, config: Config) -> None:
        """Use this configuration from the next update on."""
        self._config, self._held_before = config, frozenset()
        if self._plugins is not None:
            self._plugins.configure(config)

    @property
    def registered(self) -> frozenset[str]:
        """The resources that are registered with the kubelet."""
        return self._plugins.registered if self._plugins is not None else frozenset()

    @property
    def unregistered(self) -> tuple[str, str] | None:
        """`DevicePlugins.unregistered`, or that the kubelet has not settled yet; None if no device plugin runs."""
        if self._plugins is None or self.settling is None:
            return None
        found = self._plugins.unregistered
        return found if any(found) or not self.settling.awaited else BEGINS

    @property
    def fences(self) -> bool:
        """Whether the NUMA guard puts up fences now."""
        return self.fencing is not None and self.settling is not None and self.settling.settled

    @property
    def offered(self) -> frozenset[str]:
        """The resources that have a healthy device."""
        offers = self._plugins.offered if self._plugins is not None else {}
        return frozenset(name for name, offer in offers.items() if any(one.healthy for one in offer.devices.values()))

    @property
    def counts(self) -> tuple[Counts | None, int]:
        """The counts of the device plugin, None if none runs; and how many pods had other devices than the chosen
        ones."""
        return (None, 0) if self._plugins is None else (self._plugins.counts, self._plugins.differed)

    @property
    def claims(self) -> tuple[bool | None, int]:
        """Whether the kubelet has registered the DRA driver, None if none runs; and the number of prepared claims."""
        return (None, 0) if self._driver is None else (self._driver.registered, self._driver.prepared)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Messages for the operator."""
        own = self._plugins.faults if self._plugins is not None else ()
        return (*(f"{part}: {why}" for part, why in sorted(self.faults.items())), *self._missing, *own)

    def restored(self, allocatable: wire.AllocatableResourcesResponse) -> wire.AllocatableResourcesResponse:
        """As `DevicePlugins.restored`."""
        return allocatable if self._plugins is None else self._plugins.restored(allocatable)

    async def update(self, host: Host, unhealthy: Collection[Unhealthy]) -> tuple[Unhealthy, ...]:
        """Offer the host's devices, and return all unhealthy ones, also those that containers could not use. If the
        GPUs of the host are unknown, only claims are unprepared, and all else stays as it is."""
        self._host = host
        held = await self._renamed(host) if host.known else []
        if host.known:
            self._mps_config = self._mps_config if held else self._config
            await self._try("MPS", self._mps.update(host, self._mps_config))
        found = (*unhealthy, *held, *self._described(host), *self._mps.unhealthy)
        if self._plugins is not None:
            await self._try("device plugin", self._plugins.update(host, found))
        if self._driver is not None:
            await self._try("claims", self._driver.update(host, found))
        return found

    async def _renamed(self, host: Host) -> list[Unhealthy]:
        """The GPUs that cannot be allocated because pods hold them under names of an earlier configuration; all GPUs
        while MPS waits for such pods."""
        if self._plugins is None or self._held_before is None:
            return []
        names = self._plugins.names(host)
        known = {uuid for gpu in host.gpus for uuid in (gpu.uuid, *(one.uuid for one in gpu.mig or ()))}
        with suppress(SocketError):
            pods = await self._kubelet.list()
            pairs = {(name, id) for pod in pods for one in pod.containers for name, ids in one.devices for id in ids}
            ids = {id.partition("::")[0] for name, id in pairs - names if name.startswith(_OURS)}
            self._held_before = frozenset(ids & known) or None
        if not self._held_before:
            # If the kubelet does not answer, the next update tries again.
            return []
        why = "a pod holds it under its name in the earlier configuration"
        if self._mps_config.sharing != self._config.sharing and _by_mps(self._mps_config, self._config):
            return [Unhealthy(uuid, "renamed", f"{why}, or MPS waits for one that does", 0) for uuid in sorted(known)]
        return [Unhealthy(uuid, "renamed", why, 0) for uuid in sorted(self._held_before)]

    def _pods_changed(self) -> None:
        if self._held_before:
            self._changed()

    async def _try(self, part: str, work: Awaitable[None]) -> None:
        try:
            await work
            self.faults.pop(part, None)
        except _FAILURES as error:
            self._fault(part, str(error))

    def _fault(self, part: str, why: str) -> None:
        if self.faults.get(part) != why:
            log.error("%s: %s", part, why)
        self.faults[part] = why

    def _described(self, host: Host) -> list[Unhealthy]:
        """Write the CDI specification, and return the devices that containers could not use as unhealthy."""
        devices: dict[str, Edits] = {}
        without: list[Unhealthy] = []
        for gpu in host.gpus:
            for uuid, edits in self._parts(gpu):
                try:
                    devices[uuid] = edits()
                except DriverFilesError as error:
                    without.append(Unhealthy(uuid, "device-node", str(error), 0))
        if not devices:
            return without
        lacking = self._files.lacks_channel(self._config.imex_channels) if self._config.imex_required else ""
        if lacking:
            without += [Unhealthy(uuid, "imex-channel", lacking, 0) for uuid in devices]
        missing = self._files.missing(host)
        for one in set(missing) - set(self._missing):
            log.warning("containers with GPUs: %s", one)
        self._missing = missing
        try:
            self._cdi.clean()
            self._cdi.write(_SPECIFICATION, GPU_KIND, devices, self._files.common(host, self._config.imex_channels))
            self.faults.pop("CDI", None)
        except CdiError as error:
            self._fault("CDI", str(error))
            without += [Unhealthy(uuid, "cdi", str(error), 0) for uuid in devices]
        return without

    def _parts(self, gpu: Gpu) -> Iterable[tuple[str, Callable[[], Edits]]]:
        yield gpu.uuid, partial(self._files.gpu, gpu)
        for instance in gpu.mig or ():
            yield instance.uuid, partial(self._files.instance, gpu, instance)

    def _edits(self, uuids: Sequence[str]) -> Edits:
        """The container edits for these GPUs and instances. Raises DriverFilesError."""
        edits = self._files.common(self._host, self._config.imex_channels)
        for gpu in self._host.gpus:
            for uuid, own in self._parts(gpu):
                if uuid in uuids:
                    edits += own()
        return edits

    async def held(self) -> frozenset[str]:
        """The uuids of the GPUs and MIG instances that pods hold; a replica counts as its GPU. Raises SocketError."""
        pods = await self._kubelet.list()
        ids = {id for pod in pods for one in pod.containers for _, ids in one.devices for id in ids}
        prepared = self._driver.in_use if self._driver is not None else frozenset()
        return frozenset(id.partition("::")[0] for id in ids) | prepared

    def claimed(self, claim: tuple[str, str], device: str) -> str | None:
        """As `DraDriver.claimed`; None without claims."""
        return self._driver.claimed(claim, device) if self._driver is not None else None

    @property
    def by_mps(self) -> frozenset[str]:
        """The resources that MPS shares."""
        shared = (one for one in self._mps_config.sharing.values() if one.strategy == "mps")
        return frozenset(one.renamed for one in shared)

    async def _claims_held(self) -> Names:
        """The claims (namespace, name) that pods of this node use. Raises SocketError."""
        return frozenset(claim for pod in await self._kubelet.list() for claim in pod.claims)

    async def close(self) -> None:
        """Withdraw the offer once the bound pods have their devices. Claims stay prepared, and the CDI specification
        stays."""
        if self._plugins is not None:
            await self._chosen.drained(self._plugins.resources, quiet_s=_QUIET_S, within_s=_DRAIN_S)
        for part in (self._plugins, self._driver, self._mps):
            if part is not None:
                with suppress(*_FAILURES):
                    await part.close()


def _by_mps(*configs: Config) -> bool:
    return any(shared.strategy == "mps" for config in configs for shared in config.sharing.values())
