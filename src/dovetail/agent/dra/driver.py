# SPDX-License-Identifier: Apache-2.0
"""The DRA driver of this node: publishes its devices, and prepares claims for the kubelet.

Rules
- The kubelet finds the driver by a socket in its plugin folder. If another driver of the same name answers there, this
  one does not start: both would prepare the same devices.
- Devices are published once the kubelet has registered the driver: an earlier pod would wait a minute or more until the
  kubelet tries again. Slices of an earlier process stay until the machine is discovered.
- Each preparation reads the claim from the API server. Its allocation counts, and only if its uid is that of the
  kubelet's call. A failure is the answer for this claim only, and the kubelet calls again.
- Claims are prepared one after another. Blocking work runs in a thread.
- Claims that ended while the agent was not running are unprepared at its start, and when another claim needs their
  devices.
Source: k8s.io/kubelet/pkg/apis/dra/v1, pluginregistration/v1 (1.37).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from msgspec import Struct

from dovetail.agent.apis import dra_pb2 as dra
from dovetail.agent.apis import registration_pb2 as registration
from dovetail.agent.apis.serving import answers, serve, service
from dovetail.agent.cdi import CdiFolder
from dovetail.agent.dra.claim_networks import ClaimNetworks, Devices
from dovetail.agent.dra.configs import ClaimError, ConfiguredClaim, interval
from dovetail.agent.dra.health import SERVICE as HEALTH_SERVICE
from dovetail.agent.dra.health import Health
from dovetail.agent.dra.offer import Offered, offered
from dovetail.agent.dra.partitions import Partitions
from dovetail.agent.dra.prepared import FAILURES, Prepared, PreparedRecord, TakenDevice, WantedClaim, cdi_id
from dovetail.agent.dra.publishing import SlicePublisher
from dovetail.agent.dra.slices import contents
from dovetail.agent.dra.timeslices import set_slice
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.machine.driver_files import DriverFiles
from dovetail.agent.machine.host import Host
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.resources import RESOURCE_CLAIMS
from dovetail.kube.threads import run_to_end
from dovetail.kube.translate.problems import nearest

log = logging.getLogger(__name__)

NAME = "gpu.nvidia.com"
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_NVIDIA_SMI = ("nvidia-smi",)
"""The command that sets time slices."""
VERSIONS = ("v1.DRAPlugin", HEALTH_SERVICE)
_AGAIN_S = 10.0
_AGAIN_MAX_S = 300.0

T = TypeVar("T")
Names = Collection[tuple[str, str]]
Context = grpc.aio.ServicerContext[Any, Any]


class DriverError(Exception):
    """The driver cannot be started; the message has the reason and the remedy."""


class Folders(Struct, frozen=True):
    """`registry` is the kubelet's folder for plugin sockets. `plugin` is this driver's own folder, with its socket and
    its records, and must survive a reboot. `cdi` is read by the container runtime."""

    registry: Path = Path("/var/lib/kubelet/plugins_registry")
    plugin: Path = Path("/var/lib/kubelet/plugins/dovetail.dev")
    cdi: Path = Path("/var/run/cdi")


class DraDriver:
    """`held` returns the claims (namespace, name) that pods on this node use according to the kubelet. `changed` is
    called when MIG instances were created or destroyed. With `partitionable` instances are created for claims."""

    def __init__(
        self,
        client: Client,
        node: str,
        files: DriverFiles,
        partitions: Partitions,
        held: Callable[[], Awaitable[Names]],
        *,
        folders: Folders = Folders(),
        partitionable: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises CheckpointError."""
        self._client = client
        self._node = node
        self._held = held
        self._folders = folders
        self._partitionable = partitionable
        self._changed = changed
        checkpoint, slice_of = folders.plugin / "claims.json", partial(set_slice, _NVIDIA_SMI)
        self._prepared = Prepared(checkpoint, CdiFolder(folders.cdi), files, partitions, slice_of)
        self._publisher = SlicePublisher(client, NAME, node)
        self._known = asyncio.Event()
        """Set once the kubelet has registered the driver."""
        self._found = asyncio.Event()
        """Set once the machine is discovered."""
        self._health = Health(node)
        self._networks: ClaimNetworks | None = None
        self._devices: dict[str, Offered] = {}
        self._busy = asyncio.Lock()
        self._running: AsyncExitStack | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, networks: ClaimNetworks) -> None:
        """From now on containers with whole GPUs get what these add."""
        self._networks = networks

    @property
    def in_use(self) -> frozenset[str]:
        """The uuids of the GPUs and MIG instances that are prepared for claims, and of the instances' GPUs."""
        devices = [device for record in self._prepared.records.values() for device in record.devices]
        return frozenset(uuid for each in devices for uuid in (each.gpu, each.uuid) if uuid)

    def claimed(self, claim: tuple[str, str], device: str) -> str | None:
        """The uuid of the device of a prepared claim (namespace, name); "" with admin access, None if the claim or its
        device is not known."""
        for record in self._prepared.records.values():
            for each in record.devices if (record.namespace, record.name) == claim else ():
                if each.name == device:
                    return "" if each.admin else each.uuid or (None if each.profile else each.gpu)
        return None

    @property
    def registered(self) -> bool:
        """Whether the kubelet has registered the driver since it was started."""
        return self._known.is_set()

    @property
    def prepared(self) -> int:
        """The number of prepared claims."""
        return sum(record.complete for record in self._prepared.records.values())

    @property
    def settled(self) -> asyncio.Event:
        """Set while the published slices are up to date."""
        return self._publisher.settled

    async def update(self, host: Host, unhealthy: tuple[Unhealthy, ...] = ()) -> None:
        """Set the devices and the unhealthy ones. The first call starts the driver; it raises DriverError, SocketError
        or CdiError if that fails."""
        async with self._busy:
            self._prepared.host = host
            await run_to_end(self._prepared.finish if self._running is not None else self._prepared.recover)
            devices = offered(host, self._partitionable, self._prepared.made)
        self._devices = {device.name: device for device in devices}
        if host.known:
            self._publisher.want(contents(host, devices, NAME, unhealthy))
            self._found.set()
        self._health.update(devices, unhealthy)
        if self._running is None:
            await self._start()

    async def close(self) -> None:
        """Stop serving. Claims stay prepared and slices published: the next process continues with them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._running is not None:
            await self._running.aclose()
            self._running = None

    async def _start(self) -> None:
        for other in self._folders.registry.glob(f"{NAME}*.sock"):
            if other != self._registry and answers(other):
                raise DriverError(
                    f"another driver serves {NAME} on this node ({other}): switch off its devices or dovetail's"
                )
        async with AsyncExitStack() as stack:
            plugin = service(
                SERVICE,
                {
                    "NodePrepareResources": (dra.NodePrepareResourcesRequest, self._prepare_all),
                    "NodeUnprepareResources": (dra.NodeUnprepareResourcesRequest, self._unprepare_all),
                },
            )
            stack.push_async_callback((await serve(self._endpoint, plugin, self._health.handler)).stop, None)
            found = service(
                "pluginregistration.Registration",
                {
                    "GetInfo": (registration.InfoRequest, self._info),
                    "NotifyRegistrationStatus": (registration.RegistrationStatus, self._registered),
                },
            )
            # Last, since the kubelet calls as soon as it sees this one.
            stack.push_async_callback((await serve(self._registry, found)).stop, None)
            self._running = stack.pop_all()
        for work in (self._publish(), self._tidy()):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _publish(self) -> None:
        await self._known.wait()
        await self._found.wait()
        await self._publisher.run()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the DRA driver has ended", exc_info=error)

    @property
    def _endpoint(self) -> Path:
        return self._folders.plugin / f"{NAME}.sock"

    @property
    def _registry(self) -> Path:
        return self._folders.registry / f"{NAME}-dovetail-reg.sock"

    async def _info(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin", name=NAME, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    async def _registered(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        if request.plugin_registered:
            self._known.set()
            log.info("the kubelet has registered the DRA driver %s", NAME)
        else:
            log.error("the kubelet has refused the DRA driver %s: %s", NAME, request.error)
        return registration.RegistrationStatusResponse()

    async def _prepare_all(
        self, request: dra.NodePrepareResourcesRequest, context: Context
    ) -> dra.NodePrepareResourcesResponse:
        reply = dra.NodePrepareResourcesResponse()
        found: dict[str, tuple[ConfiguredClaim, tuple[WantedClaim, ...]]] = {}
        for claim in request.claims:
            answer = reply.claims[claim.uid]
            try:
                read = await self._read(claim)
                found[claim.uid] = read, self._wanted(read)
            except Exception as error:
                answer.error = self._failure(claim, error)
        for claim in request.claims:
            if claim.uid not in found:
                continue
            answer = reply.claims[claim.uid]
            try:
                wanted = await self._with_network(*found[claim.uid], found.values())
                answer.devices.extend(self._answer(await self._prepare(claim, wanted)))
            except Exception as error:
                answer.error = self._failure(claim, error)
        return reply

    async def _with_network(
        self,
        claim: ConfiguredClaim,
        wanted: tuple[WantedClaim, ...],
        called: Iterable[tuple[ConfiguredClaim, tuple[WantedClaim, ...]]],
    ) -> tuple[WantedClaim, ...]:
        """The devices with what their containers get for their network. `called` are the claims of this call. For a
        claim that stays as it was prepared nothing is worked out, and no Event is written."""
        if self._networks is None or await self._do(partial(self._prepared.keeps, claim.metadata.uid, wanted)):
            return wanted
        claims: dict[tuple[str, str], Devices] = {
            (record.namespace, record.name): record.devices for record in self._prepared.records.values()
        }
        claims |= {(one.metadata.namespace, one.metadata.name): devices for one, devices in called}
        return await self._networks.joined(claim, wanted, claims)

    async def _unprepare_all(
        self, request: dra.NodeUnprepareResourcesRequest, context: Context
    ) -> dra.NodeUnprepareResourcesResponse:
        reply = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer = reply.claims[claim.uid]
            try:
                await self._unprepare(claim.uid)
            except Exception as error:
                answer.error = self._failure(claim, error)
        return reply

    def _failure(self, claim: dra.Claim, error: Exception) -> str:
        known = isinstance(error, (*FAILURES, KubeError))
        log.warning("claim %s/%s: %s", claim.namespace, claim.name, error, exc_info=None if known else error)
        return str(error) if known else f"{type(error).__name__}: {error}; see the log of the agent"

    async def _prepare(self, asked: dra.Claim, wanted: tuple[WantedClaim, ...]) -> PreparedRecord:
        for _ in range(2):
            try:
                return await self._do(partial(self._prepared.prepare, asked.uid, asked.namespace, asked.name, wanted))
            except TakenDevice as error:
                if not await self._drop_ended({error.by}):
                    raise
        raise ClaimError("its devices were taken twice by claims that had ended")

    async def _unprepare(self, uid: str) -> None:
        await self._do(partial(self._prepared.unprepare, uid))

    async def _do(self, work: Callable[[], T]) -> T:
        """Run one at a time, in a thread. The kubelet may close the call meanwhile: other work begins after it."""
        async with self._busy:
            made = self._prepared.made
            try:
                return await run_to_end(work)
            finally:
                if self._prepared.made != made:
                    self._changed()

    async def _read(self, asked: dra.Claim) -> ConfiguredClaim:
        path = RESOURCE_CLAIMS.path(asked.namespace, asked.name)
        try:
            claim = await self._client.request("GET", path, decode=ConfiguredClaim)
        except NotFound:
            raise ClaimError("the claim does not exist any more") from None
        if claim.metadata.uid != asked.uid:
            raise ClaimError(f"the claim was created again: its uid is {claim.metadata.uid}, not {asked.uid}")
        return claim

    def _wanted(self, claim: ConfiguredClaim) -> tuple[WantedClaim, ...]:
        """The devices of the allocation that are of this driver. Raises ClaimError."""
        if claim.status.allocation is None:
            raise ClaimError("the claim has no allocation")
        devices = claim.status.allocation.devices
        found = []
        for number, result in enumerate(devices.results):
            if result.driver != NAME:
                continue
            at = f"status.allocation.devices.results[{number}]"
            if result.pool != self._node:
                raise ClaimError(f"{at}.pool: {result.pool!r} is not the pool of this node, {self._node!r}")
            device = self._devices.get(result.device)
            if device is None:
                known = nearest(result.device, self._devices)
                rule = f"nearest device: {known}" if known else "it has none"
                raise ClaimError(f"{at}.device: {result.device!r} is not offered by this node now; {rule}")
            kind = "gpu" if device.partition is None else "mig"
            sliced = interval(NAME, kind, result.request, devices.config)
            found.append(WantedClaim(device, result.request, result.share_id, result.admin_access, sliced))
        if not found:
            raise ClaimError(f"no device of {NAME} is allocated to the claim")
        return tuple(found)

    def _answer(self, record: PreparedRecord) -> list[dra.Device]:
        return [
            dra.Device(
                # Alternatives are named request/alternative; the kubelet needs the request.
                request_names=[device.request.partition("/")[0]],
                pool_name=self._node,
                device_name=device.name,
                cdi_device_ids=[cdi_id(record.uid, device.name)],
                share_id=device.share or None,
            )
            for device in record.devices
        ]

    async def _tidy(self) -> None:
        """Unprepare all ended claims of the records once; repeated until it succeeds."""
        again_s = _AGAIN_S
        while True:
            try:
                await self._drop_ended(set(self._prepared.records))
                return
            except Exception as error:
                log.warning("ended claims cannot be unprepared: %s; trying again", error)
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _AGAIN_MAX_S)

    async def _drop_ended(self, uids: Collection[str]) -> bool:
        """Unprepare the claims that are deleted or no longer allocated, and that no pod uses here. Returns whether
        there were any."""
        ended = [record for uid in uids if (record := self._prepared.records.get(uid)) and await self._ended_at(record)]
        held = await self._held() if ended else ()
        dropped = False
        for record in ended:
            if (record.namespace, record.name) not in held:
                log.info("claim %s/%s (%s) has ended", record.namespace, record.name, record.uid)
                await self._unprepare(record.uid)
                dropped = True
        return dropped

    async def _ended_at(self, record: PreparedRecord) -> bool:
        path = RESOURCE_CLAIMS.path(record.namespace, record.name)
        try:
            claim = await self._client.request("GET", path, decode=ConfiguredClaim)
        except NotFound:
            return True
        return claim.metadata.uid != record.uid or claim.status.allocation is None
