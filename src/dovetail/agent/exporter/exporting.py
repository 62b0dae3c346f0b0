# SPDX-License-Identifier: Apache-2.0
"""The exporter as a part of the agent: its threads, its port, and its faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec.structs import replace

from dovetail.agent.exporter import use_hours
from dovetail.agent.exporter.counter_list import default, read_counter_list
from dovetail.agent.exporter.counters import Counters
from dovetail.agent.exporter.dcgm import Dcgm
from dovetail.agent.exporter.exporter import Exporter, Parts
from dovetail.agent.exporter.host_use import HostUse
from dovetail.agent.exporter.reading import GpuReading
from dovetail.agent.exporter.sampler import Sampler
from dovetail.agent.exporter.server import ExporterServer
from dovetail.agent.exporter.shared_nvml import SharedNvml
from dovetail.agent.exporter.shared_use import SharedUse
from dovetail.agent.exporter.use_hours import UseHours
from dovetail.agent.exporter.xid_counts import XidCounts
from dovetail.agent.health.checks import KINDS
from dovetail.agent.health.gpu_events import GpuEvent
from dovetail.agent.health.xids import XidTable
from dovetail.agent.machine.nvml import Nvml
from dovetail.agent.options import AgentOptions
from dovetail.kube.threads import run_to_end


class Exporting:
    """`table` has the actions of XIDs. `opened` is called with the port. Raises CounterListError."""

    def __init__(
        self, options: AgentOptions, parts: Parts, table: XidTable, opened: Callable[[int], None] = lambda _: None
    ) -> None:
        counters = options.exporter_counters
        kinds = read_counter_list(counters) if counters is not None else default()
        self._library = SharedNvml()
        dcgm = Dcgm(options.exporter_dcgm) if options.exporter_dcgm else None
        # The checks of health and the use by pods need their values also where they are not exported.
        needed = KINDS | use_hours.KINDS
        read = {**{name: kind for name, kind in default().items() if name in needed}, **kinds}
        counted = Counters(options.state_folder / "counters.json")
        shared, host = SharedUse(options.proc_root), HostUse(options.sysfs_root / "fs" / "cgroup")
        self._use = UseHours(options.state_folder / "use.json", options.node_name, shared=shared, host=host)
        self._sampler = Sampler(self._library, read.values(), counted, self._use, dcgm)
        self._xids = XidCounts(options.state_folder / "xids.json", table)
        joined = replace(parts, samples=lambda: (*parts.samples(), *self._xids.samples()), owned=self._use.owned)
        self._exporter = Exporter(
            self._sampler, kinds, options.node_name, joined, job_labels=options.exporter_job_labels
        )
        self._server = ExporterServer(options.exporter, self._exporter, self._use, opened)

    @property
    def faults(self) -> tuple[str, ...]:
        """Sentences for an operator."""
        own = (self._server.fault, self._exporter.fault)
        return (*(fault for fault in own if fault), *self._sampler.faults, *self._xids.faults)

    def idle(self) -> dict[str, int]:
        """The pods (uid) that use none of their GPUs, and since when, in epoch ms."""
        return self._use.idle()

    def event(self, event: GpuEvent) -> None:
        """Count an event of a GPU, if it is an XID."""
        self._xids.event(event)

    async def readings(self) -> tuple[GpuReading, ...]:
        """The newest readings of the GPUs."""
        return tuple(one.reading for one in await self._sampler.read(float("-inf")))

    async def run(self) -> None:
        """Read and serve until cancelled."""
        self._sampler.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._server.run())
                tasks.create_task(self._exporter.follow_owners())
        finally:
            self._xids.write()
            await asyncio.to_thread(self._sampler.stop)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep NVML closed for the block."""
        try:
            await run_to_end(self._library.pause)
            yield
        finally:
            self._library.resume()

    def open_anew(self) -> Nvml:
        """For a part that opens NVML anew to find GPUs that have come back: the library is closed here before."""
        self._library.close()
        return Nvml()
