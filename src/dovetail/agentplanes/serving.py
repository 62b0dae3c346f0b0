# SPDX-License-Identifier: Apache-2.0
"""The process that serves the endpoints of a cluster's control planes, and carries their pods.

Rules
- A plane is served from when its AgentControlPlane has `backend: api` until that is deleted or has another backend.
  Then its pods on the host are deleted, and after that the endpoint with all that it has.
- Of several control planes of a namespace the oldest counts.
- What fails for one plane is tried again for that plane, and touches no other.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from dovetail import __runs__, __version__
from dovetail.agentplanes import metrics
from dovetail.agentplanes.carrier import CarriedPlane, PlaneCarrier
from dovetail.agentplanes.certificates import CertificateFiles, keep_fresh
from dovetail.agentplanes.credentials import SECRET, EndpointAddress, write_secret
from dovetail.agentplanes.endpoint import PlaneEndpoint
from dovetail.agentplanes.facts import CarryLimits, HostPod
from dovetail.agentplanes.host_namespace import HostNamespace
from dovetail.agentplanes.host_pod import HostTarget
from dovetail.agentplanes.pod_logs import PodLogs
from dovetail.agentplanes.probes import ServingProbes
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.planes.host import HostOptions, PlaneHost
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.kube import probe_server
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover_when_up
from dovetail.kube.api.errors import Forbidden, KubeError, NotFound
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import CONTROL_PLANES
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.leases import AgentControlPlane
from dovetail.kube.translate.lease_durations import time_ms
from dovetail.plane.broker import Broker, BrokerRefused

API_BACKEND = "api"
_CONNECTIONS = 64
_COLLECT_AFTER = 20_000
_FIRST_WAIT_S, _MOST_WAIT_S = 1.0, 60.0
_SECRET_EVERY_S = 300.0
_MOST_GRACE_S, _GRACE_MS, _HEARTBEAT_MS = 3600, 120_000, 10_000
_MEND = "bind the ClusterRole dovetail-agent-planes-namespace in its namespace (docs/how-to/agent-endpoints.md)"
_log = logging.getLogger("dovetail.agentplanes")
BrokerOf = Callable[[Client], Broker]


class ServeOptions(Struct, frozen=True):
    """The options of `dovetail plane serve`. `address` is HOST:PORT of the endpoints, `url` how agents reach it ("": as
    it listens). `plane` is NAMESPACE/NAME of the one plane to serve ("": all). `listen` is HOST:PORT of health and
    metrics, "" for none."""

    folder: Path
    address: str = "0.0.0.0:8443"
    url: str = ""
    certificate: CertificateFiles | None = None
    authority: str = ""
    plane: str = ""
    scheduler_name: str = "dovetail"
    listen: str = "0.0.0.0:10354"
    limits: CarryLimits = CarryLimits()


async def run(config: ClusterConfig, options: ServeOptions, broker_of: BrokerOf) -> None:
    """Serve until cancelled. Raises ApiError when the API server refuses the first contact, OSError when a port is
    taken, StoreUnreadable when the folder is in use."""
    gc.set_threshold(_COLLECT_AFTER)
    probes = ServingProbes(f"the API server at {config.server}")
    async with (
        Client(config, concurrency=_CONNECTIONS, user_agent="dovetail-agent-planes") as client,
        _listening(options, probes),
        _endpoints(options) as planes,
    ):
        _log.info("dovetail %s (%s), endpoints at %s", __version__, __runs__(), planes.url)
        await discover_when_up(client, _log)
        serving = PlanesServing(client, planes, broker_of(client), options)
        probes.follow(serving)
        async with asyncio.TaskGroup() as tasks:
            if options.certificate is not None and planes.ssl_context is not None:
                tasks.create_task(keep_fresh(options.certificate, planes.ssl_context))
            tasks.create_task(serving.run())


@asynccontextmanager
async def _listening(options: ServeOptions, probes: ServingProbes) -> AsyncIterator[None]:
    if not options.listen:
        yield
        return
    async with probe_server.opened(options.listen, probes.answers()):
        yield


@asynccontextmanager
async def _endpoints(options: ServeOptions) -> AsyncIterator[PlaneHost]:
    host, _, port = options.address.rpartition(":")
    context = options.certificate.context() if options.certificate is not None else None
    planes = PlaneHost(options.folder, HostOptions(host=host.strip("[]"), port=int(port), ssl_context=context))
    await planes.start()
    try:
        yield planes
    finally:
        await planes.stop()


class _Served:
    """A plane with the task that carries its pods."""

    def __init__(self, plane: CarriedPlane, task: asyncio.Task[None]) -> None:
        self.plane = plane
        self.task = task
        self.carrier: PlaneCarrier | None = None


class PlanesServing:
    """Serves and carries the planes of a cluster, in step with its AgentControlPlanes."""

    def __init__(self, client: Client, planes: PlaneHost, broker: Broker, options: ServeOptions) -> None:
        self._client = client
        self._planes = planes
        self._broker = broker
        self._options = options
        self._changed = asyncio.Event()
        self._served: dict[PlaneName, _Served] = {}
        resource = CONTROL_PLANES.inside(options.plane.partition("/")[0]) if options.plane else CONTROL_PLANES
        self.reflector = Reflector(client, resource, AgentControlPlane, self._take)
        planes.listeners.append(self._note)
        planes.logs = PodLogs(client, planes, self._host_pod).answer

    def _take(self, _: list[Change[AgentControlPlane]]) -> None:
        self._changed.set()

    def _note(self, name: PlaneName, _: StoreChange) -> None:
        served = self._served.get(name)
        if served is not None and served.carrier is not None:
            served.carrier.changed()

    def _host_pod(self, name: PlaneName, pod_uid: str) -> HostPod | None:
        served = self._served.get(name)
        return served.carrier.host.pods().get(pod_uid) if served is not None and served.carrier is not None else None

    @property
    def unready(self) -> str:
        """Why the process is not ready, "" when it is."""
        return "" if self.reflector.synced.is_set() else "waiting for the first list of AgentControlPlanes"

    def measure(self) -> None:
        """Bring the gauges up to date."""
        carriers = [one.carrier for one in self._served.values() if one.carrier is not None]
        metrics.PLANES.labels("served").set(len(self._served))
        metrics.PLANES.labels("open").set(self._planes.open_planes)
        metrics.PODS.set(sum(len(carrier.host.reflector.known) for carrier in carriers))
        metrics.REQUESTS.set(sum(carrier.open_requests for carrier in carriers))

    async def run(self) -> None:
        """Until cancelled; endpoints, pods and leases stay."""
        following = asyncio.create_task(self.reflector.run())
        try:
            await asyncio.wait(
                [following, asyncio.create_task(self.reflector.synced.wait())], return_when=asyncio.FIRST_COMPLETED
            )
            while not following.done():
                self._changed.clear()
                retry_s = await self._reconcile()
                waiting = [following, asyncio.create_task(self._changed.wait())]
                await asyncio.wait(waiting, timeout=retry_s, return_when=asyncio.FIRST_COMPLETED)
                waiting[1].cancel()
            following.result()
        finally:
            tasks = [following, *(served.task for served in self._served.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _reconcile(self) -> float | None:
        """Start, change and remove planes. Returns seconds until what failed is tried again."""
        if not self.reflector.served:
            # The definitions are not there, or not yet again: nothing follows from that.
            return None
        wanted = wanted_planes(self.reflector.known, self._options)
        retry_s = None
        for name in [*self._served.keys() - wanted.keys(), *self._strays(wanted)]:
            if not await self._remove(name):
                retry_s = _FIRST_WAIT_S
        for name, plane in wanted.items():
            served = self._served.get(name)
            if served is not None and served.plane != plane:
                await self._end(served)
                if served.plane.target.plane_uid != plane.target.plane_uid and not await self._remove(name):
                    retry_s = _FIRST_WAIT_S
                    continue
                served = None
            if served is None:
                self._start(name, plane)
        return retry_s

    def _strays(self, wanted: Mapping[PlaneName, CarriedPlane]) -> list[PlaneName]:
        """Planes of an earlier process that are not wanted any more."""
        mine = [name for name in self._planes.names if not self._options.plane or str(name) == self._options.plane]
        return [name for name in mine if name not in wanted and name not in self._served]

    def _start(self, name: PlaneName, plane: CarriedPlane) -> None:
        task = asyncio.create_task(self._serve(name, plane))
        self._served[name] = _Served(plane, task)

    async def _end(self, served: _Served) -> None:
        served.task.cancel()
        await asyncio.gather(served.task, return_exceptions=True)
        self._served.pop(served.plane.name, None)

    async def _remove(self, name: PlaneName) -> bool:
        """End the plane, first on the host; False if that has to be tried again."""
        served = self._served.get(name)
        if served is not None:
            await self._end(served)
        uid = self._planes.origin_of(name.namespace, name.name)
        if uid:
            try:
                await HostNamespace(self._client, name.namespace, uid, lambda: None).clear()
            except (NotFound, Forbidden) as error:
                # The namespace is gone, or we have no right in it any more.
                _log.warning("plane %s: its pods are left: %s", name, error)
            except KubeError as error:
                _log.warning("plane %s cannot be removed yet: %s", name, error)
                return False
        await self._planes.delete(name.namespace, name.name)
        _log.info("plane %s was removed", name)
        return True

    async def _serve(self, name: PlaneName, plane: CarriedPlane) -> None:
        """The endpoint of one plane, its Secret, and its carrier."""
        uid = plane.target.plane_uid
        before = self._planes.origin_of(name.namespace, name.name)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                if before not in (None, uid):
                    await HostNamespace(self._client, name.namespace, before or "", lambda: None).clear()
                await self._planes.create(name.namespace, name.name, uid)
                before = uid
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._keep_secret(name, uid))
                    tasks.create_task(self._carry(name, plane))
            except* (KubeError, BrokerRefused) as errors:
                error: BaseException = errors
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                mend = f": {_MEND}" if isinstance(error, Forbidden) else ""
                _log.warning("plane %s: %s%s; trying again in %.0f s", name, error, mend, wait_s)
            except* Exception:
                _log.exception("plane %s", name)
            metrics.ERRORS.inc()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    async def _keep_secret(self, name: PlaneName, uid: str) -> None:
        address = EndpointAddress(self._options.url or self._planes.url, self._options.authority)
        while True:
            if await write_secret(self._client, self._planes, name, uid, address):
                _log.info("plane %s: the Secret %s/%s was written", name, name.namespace, SECRET)
            await asyncio.sleep(_SECRET_EVERY_S)

    async def _carry(self, name: PlaneName, plane: CarriedPlane) -> None:
        carrier = PlaneCarrier(plane, PlaneEndpoint(self._planes, name), self._client, self._broker)
        served = self._served[name]
        served.carrier = carrier
        try:
            await carrier.run()
        finally:
            served.carrier = None


def wanted_planes(
    known: Mapping[tuple[str, str], AgentControlPlane], options: ServeOptions
) -> dict[PlaneName, CarriedPlane]:  # fmt: skip
    """The planes that are to be served. Of several in a namespace the oldest counts."""
    oldest: dict[str, AgentControlPlane] = {}
    for plane in known.values():
        meta = plane.metadata
        before = oldest.get(meta.namespace)
        if before is None or _age(plane) < _age(before):
            oldest[meta.namespace] = plane
    found: dict[PlaneName, CarriedPlane] = {}
    for plane in oldest.values():
        name = PlaneName(plane.metadata.namespace, plane.metadata.name)
        here = not options.plane or str(name) == options.plane
        if plane.spec.backend == API_BACKEND and plane.metadata.deletion_timestamp is None and here:
            found[name] = _carried(name, plane, options)
    return found


def _age(plane: AgentControlPlane) -> tuple[int, str]:
    return epoch_ms(plane.metadata.creation_timestamp), plane.metadata.name


def _carried(name: PlaneName, plane: AgentControlPlane, options: ServeOptions) -> CarriedPlane:
    grace_s = min(_MOST_GRACE_S, _ms(plane.spec.grace, _GRACE_MS) // 1000)
    heartbeat_ms = _ms(plane.spec.heartbeat, _HEARTBEAT_MS) or _HEARTBEAT_MS
    target = HostTarget(name.namespace, plane.metadata.uid, options.scheduler_name, grace_s)
    return CarriedPlane(name, target, options.limits, max(1000, heartbeat_ms))


def _ms(text: str, default: int) -> int:
    """The duration; the default for one that the scheduler reports as invalid."""
    try:
        return time_ms(text)
    except ValueError:
        return default
