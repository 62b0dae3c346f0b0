# SPDX-License-Identifier: Apache-2.0
"""The agent's process: it discovers the machine, offers its devices, and publishes the node.

Rules: a look (one discovery) follows every change (health, MIG), and comes at least every five minutes. A failure is
logged, the look is repeated every half minute, and the process goes on. Until the first complete look (`known`) there
is a look every second, and nothing is published or offered. Before devices are offered, unfinished changes of an
earlier process are finished or undone, and the health of all GPUs is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import time
from collections.abc import AsyncIterator, Collection, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dovetail.agent.apis.serving import SocketError
from dovetail.agent.config import Config
from dovetail.agent.config_watch import Configuring
from dovetail.agent.dra.partitions import NvmlPartitions
from dovetail.agent.exporter.accounting import PodAccounting
from dovetail.agent.exporter.expected import ExpectedGpus
from dovetail.agent.exporter.health_samples import health_samples
from dovetail.agent.exporter.owners import TIMEOUT_S, OwnerReader
from dovetail.agent.exporter.reading import Sample
from dovetail.agent.health import watched, xids
from dovetail.agent.health.checks import Checks
from dovetail.agent.health.exit_test import ExitTest
from dovetail.agent.health.gpu_events import GpuEvent, GpuEvents
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.health.states import DeviceHealth, device_health, node_quarantine
from dovetail.agent.health.watch import HealthReport, HealthWatch
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.machine.host import Sight
from dovetail.agent.machine.known import KnownHost
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.machine.reader import MachineReader
from dovetail.agent.metrics import AgentMetrics, Looks
from dovetail.agent.mig.layouts import Layouts, read_layouts
from dovetail.agent.mig.manager import MigManager
from dovetail.agent.mig.requests import MigRequests
from dovetail.agent.offering import Offering
from dovetail.agent.options import AgentOptions
from dovetail.agent.publish.gpunode import RENEW_S
from dovetail.agent.publish.gpunode_status import NodeHealth
from dovetail.agent.publish.pod_events import PodEvents
from dovetail.agent.publish.publisher import NodeFacts, Publisher
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.topology import DeviceDifference

if TYPE_CHECKING:
    from dovetail.agent.exporter.exporting import Exporting

log = logging.getLogger(__name__)

_AGAIN_S = 30.0
_FIRST_S = 1.0
_CHECK_S = 15.0


async def run(cluster: ClusterConfig, options: AgentOptions) -> None:
    """Run the agent until cancelled. Raises AgentConfigError, MigLayoutError, ManifestError, WatchedError or
    XidActionsError for wrong input, CheckpointError if a checkpoint of an earlier process cannot be read, OSError if a
    port is taken."""
    layouts = read_layouts(options.mig_layouts) if options.mig_layouts is not None else Layouts()
    table = xids.read(options.xid_actions) if options.xid_actions is not None else xids.default()
    counting = watched.watched(os.environ, table)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(cluster, concurrency=8, user_agent="dovetail-agent"))
        configuring = Configuring(client, options.node_name, options.config) if options.config is not None else None
        config = await configuring.first() if configuring is not None else Config()
        for note in config.notes:
            log.warning("%s", note)
        if config.mps_root is not None:
            options = replace(options, mps_folder=config.mps_root)
        agent = Agent(cluster, client, options, config, configuring, layouts, counting)
        if options.listen:
            # Imported only here: its library takes memory.
            from dovetail.agent.endpoints import serving

            await stack.enter_async_context(serving(options.listen, agent.vitals))
        await agent.run()


class Agent:
    """The parts of the agent, wired together. Raises CheckpointError."""

    def __init__(
        self,
        cluster: ClusterConfig,
        client: Client,
        options: AgentOptions,
        config: Config,
        configuring: Configuring | None,
        layouts: Layouts,
        counting: watched.Watched,
    ) -> None:
        self._options = options
        self._configuring = configuring
        self._nvml = Nvml()
        self._reader = MachineReader(options.sysfs_root, options.proc_root, options.mig_observer)
        self._known = KnownHost()
        self._reported = HealthReport()
        self._lacking: tuple[Unhealthy, ...] = ()
        self._differences: tuple[DeviceDifference, ...] = ()
        self._due = asyncio.Event()
        self._health_known = asyncio.Event()
        self._may_publish = asyncio.Event()
        self._complete = asyncio.Event()
        self._looking = asyncio.Lock()
        self._looks = Looks(ended_s=time.monotonic())
        self._expected = ExpectedGpus(options.state_folder / "expected-gpus.json", options.expected_gpus)
        self._chosen = Allocations(client, options.node_name)
        self._offering = Offering(
            options, config, client, self._chosen, NvmlPartitions(self._nvml, self._reader.observed),
            changed=self._due.set, registered=lambda: self._publisher.notify(), differed=self._differed,
        )  # fmt: skip
        self._publisher = Publisher(
            cluster, client, options, config, self._reader.sysfs, self._seen, self._offering.restored
        )
        self._owners = OwnerReader(
            PodResources(options.pod_resources, TIMEOUT_S),
            lambda: self._chosen.objects,
            lambda: self._known.host,
            lambda: self._offering.by_mps,
            self._offering.claimed,
        )
        self._accounting = PodAccounting(
            lambda: self._owners.pods, options.proc_root, changed=lambda: self._publisher.notify()
        )
        self._exporting = self._exporter(counting.table)
        self._events = PodEvents(
            client, options.node_name, counting.table, self._owners, lambda: self._accounting.foreign
        )
        self._offering.notice = self._events.report
        self._health = HealthWatch(
            self._health_changed,
            checkpoint=options.state_folder / "health.json",
            holders=self._held,
            watched=counting,
            events=GpuEvents(
                options.sysfs_root,
                open_library=self._exporting.open_anew if self._exporting is not None else Nvml,
            ),
            clean_s=options.clean_period,
            exit_test=ExitTest(tuple(shlex.split(options.exit_test)), options.exit_test_timeout)
            if options.exit_test
            else None,
            proc=options.proc_root,
        )
        self._health.on_event = self._gpu_event
        self._mig: MigManager | None = None
        self._dividing: MigRequests | None = None
        if options.mig:
            self._mig = MigManager(
                self._nvml,
                lambda: self._known.newest,
                self._held,
                self._look,
                options.state_folder / "mig.json",
                layouts,
            )
            self._dividing = MigRequests(
                client, options.node_name, self._mig, self._publisher.notify, self._exclusive_nvml
            )
        if options.topology_objects:
            self._chosen.on_change(self._publisher.notify)

    def _exporter(self, table: xids.XidTable) -> Exporting | None:
        """Raises CounterListError."""
        if not self._options.exporter:
            return None
        # Imported only here: its libraries take memory.
        from dovetail.agent.exporter.exporter import Parts
        from dovetail.agent.exporter.exporting import Exporting

        return Exporting(self._options, Parts(self._owners, self._accounting, self._samples), table)

    def _samples(self) -> Iterator[Sample]:
        return health_samples(self._known.host, self._device_health(), self._expected)

    async def run(self) -> None:
        """Run until cancelled. The watch of the node's pods ends last: some pods may still wait for their devices."""
        async with asyncio.TaskGroup() as following:
            chosen = following.create_task(self._chosen.run())
            try:
                await self._work()
            finally:
                await self._publisher.end()
                await self._offering.close()
                chosen.cancel()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.begin())
            if self._configuring is not None:
                tasks.create_task(self._configuring.run(self._configure, self._publisher.notify))
            tasks.create_task(self._publish())
            tasks.create_task(self._events.run())
            if self._exporting is not None:
                tasks.create_task(self._exporting.run())
                tasks.create_task(self._check(self._exporting))
            recovered = self._mig is None or await self._recover(self._mig)
            tasks.create_task(self._health.run())
            tasks.create_task(self._keep_looking())
            await self._complete.wait()
            if self._mig is not None and not recovered:
                await self._recover(self._mig)
            for part in (self._dividing, self._offering.settling, self._offering.fencing):
                if part is not None:
                    tasks.create_task(part.run())

    def _configure(self, config: Config) -> None:
        self._offering.configure(config)
        self._publisher.configure(config)
        self._due.set()

    async def _check(self, exporting: Exporting) -> None:
        """Check the values of the GPUs, and, also if nobody scrapes, which pods use them."""
        checks = Checks(self._options.expected_gpus)
        while True:
            await asyncio.sleep(_CHECK_S)
            await self._health_known.wait()
            readings, sees = await exporting.readings(), self._accounting.sees_host
            if sees and (owners := await self._owners()) is not None:
                self._accounting(readings, owners)
            newest = self._known.newest
            found = len(newest.gpus) if newest.sight != "none" else None
            self._health.take(checks.look(readings, found, time.time_ns() // 1_000_000, sees_processes=sees))
            self._publisher.idle(exporting.idle())

    async def _publish(self) -> None:
        await self._may_publish.wait()
        await self._publisher.run()

    async def _recover(self, mig: MigManager) -> bool:
        """Finish or undo interrupted MIG changes, once NVML answers, while nothing else of this process has it open.
        False if NVML does not answer for long; the other parts do not wait for that."""
        while await self._discover() == "none" and self._known.publishable == "nothing":  # noqa: ASYNC110 - no event
            await asyncio.sleep(_FIRST_S)
        try:
            async with self._exclusive_nvml():
                outcome = await mig.recover()
        except (NvmlError, OSError) as error:
            log.warning("interrupted MIG changes of an earlier process cannot be finished yet: %s", error)
            return False
        if outcome is not None:
            log.warning("%s: %s", outcome.state, outcome.message)
        return True

    @contextlib.asynccontextmanager
    async def _exclusive_nvml(self) -> AsyncIterator[None]:
        """Meanwhile only the caller has the library open: some modes cannot be changed otherwise. Raises NvmlError."""
        async with contextlib.AsyncExitStack() as paused:
            await paused.enter_async_context(self._health.paused())
            if self._exporting is not None:
                await paused.enter_async_context(self._exporting.paused())
            with self._nvml:
                yield

    async def _keep_looking(self) -> None:
        while True:
            self._due.clear()
            await self._look()
            self._allow_publishing()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._due.wait()

    @property
    def _pause_s(self) -> float:
        """The time in seconds until the next look, if nothing changes before."""
        if self._known.publishable == "nothing":
            return _FIRST_S
        fine = self._known.host.sight != "none" and not self._offering.faults
        return RENEW_S if fine else _AGAIN_S

    def _allow_publishing(self) -> None:
        if self._known.publishable != "nothing":
            self._may_publish.set()
        if self._known.publishable == "all":
            self._complete.set()

    async def _look(self) -> None:
        """Discover, offer and publish. Nothing is offered before the machine and the health of its GPUs are known."""
        async with self._looking:
            await self._discover()
            if self._health_known.is_set() and self._known.publishable != "nothing":
                await self._offer()

    async def _discover(self) -> Sight:
        """Discover the machine, and return which of its GPUs were read."""
        before, began_s = self._known.host, time.monotonic()
        found = await asyncio.to_thread(self._reader.read)
        ended_s = time.monotonic()
        self._looks = Looks(self._looks.count + 1, ended_s - began_s, ended_s)
        self._known.look(found, self._health.answered)
        if found.unread != before.unread:
            for one in found.unread:
                log.warning("%s cannot be read: %s", one.what, one.why)
        return found.sight

    async def _offer(self) -> None:
        changing = self._mig.changing if self._mig is not None else frozenset()
        parts = [
            Unhealthy(uuid, "mig-layout", "its MIG layout is being changed", 0)
            for gpu in self._known.host.gpus
            if gpu.uuid in changing
            for uuid in (gpu.uuid, *(one.uuid for one in gpu.mig or ()))
        ]
        self._lacking = await self._offering.update(
            self._known.host, (*self._reported.unhealthy, *self._known.unhealthy, *parts)
        )
        self._publisher.notify()

    def _health_changed(self, reported: HealthReport) -> None:
        self._reported = reported
        self._health_known.set()
        self._due.set()

    def _gpu_event(self, event: GpuEvent) -> None:
        self._events.occurred(event)
        if self._exporting is not None:
            self._exporting.event(event)

    def _differed(self, differences: tuple[DeviceDifference, ...]) -> None:
        self._differences = differences
        self._publisher.notify()

    def _seen(self) -> NodeFacts:
        return NodeFacts(
            self._known.host,
            self._lacking,
            self._offering.offered,
            self._offering.registered,
            self._differences,
            (
                *self._offering.sentences,
                *self._health.faults,
                *self._expected.faults,
                *(self._exporting.faults if self._exporting is not None else ()),
                *((self._configuring.fault,) if self._configuring is not None and self._configuring.fault else ()),
                *(f"the events of {uuid} cannot be watched: {why}" for uuid, why in self._health.unwatched),
            ),
            self._dividing.state if self._dividing is not None else None,
            self._offering.fences,
            self._offering.unregistered,
            NodeHealth(
                self._device_health(),
                tuple(f"{one.code}: {one.message}" for one in self._reported.findings if not one.uuid),
                node_quarantine(self._lacking),
                self._accounting.foreign,
                self._exporting.idle() if self._exporting is not None else {},
                self._accounting.own,
            ),
        )

    def _device_health(self) -> dict[str, DeviceHealth]:
        return device_health(self._known.host, self._lacking, self._reported.findings, self._reported.held)

    def vitals(self) -> AgentMetrics:
        """The values of probes and metrics now."""
        claims, prepared = self._offering.claims
        counts, differed = self._offering.counts
        return AgentMetrics(
            time.monotonic() - self._looks.ended_s,
            self._looks,
            self._known.publishable != "nothing",
            self._publisher.published,
            self._seen(),
            claims,
            prepared,
            counts,
            differed,
        )

    async def _held(self) -> Collection[str]:
        """The uuids that pods hold. Raises OSError if the kubelet does not answer."""
        try:
            return await self._offering.held()
        except SocketError as error:
            raise OSError(str(error)) from error
