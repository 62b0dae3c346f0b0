# SPDX-License-Identifier: Apache-2.0
"""Assembles the operator and runs it until it is stopped or loses the lease."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail import __runs__, __version__
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import Served, discover_when_up
from dovetail.kube.api.lease import Elector, LeaseLock
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import GPU_STACKS
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import manifest_objects, metrics
from dovetail.operator.apply import Applier
from dovetail.operator.coexistence.takeovers import Takeovers
from dovetail.operator.definitions import Definitions
from dovetail.operator.found import Found
from dovetail.operator.gpu_search import GpuSearches
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient, NotLeading
from dovetail.operator.lease_note import NOTE, REMEDY, LeaseNote
from dovetail.operator.nodes import NodeWalks
from dovetail.operator.own_image import own_image
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.reconciler import Reconciler, Workshop, counting
from dovetail.operator.rendering.stack_objects import SYSTEM_NAMESPACE, Desired, desired
from dovetail.operator.rollout import Rollouts
from dovetail.operator.surroundings import Surroundings
from dovetail.operator.views import HISTORY, VIEWS, ApiRegistration
from dovetail.operator.watched.watches import SharedReflector, SharedWatches

if TYPE_CHECKING:
    from dovetail.operator.endpoints import OperatorEndpoints

LEASE_NAME = "dovetail-operator"
LABEL = {"app.kubernetes.io/name": "dovetail-operator"}
_NOT_PERMITTED = "not permitted to read GPUStacks"
_LOOK_S = 1.0
Render = Callable[[GPUStack, Found, str], Desired]
PartsOf = Callable[[SharedByParts], tuple[StackPart, ...]]
"""From what they share, the parts that are run."""


class LeaseLost(Exception):
    """Another process leads now, or may lead. This process must end and restart with a clean state."""


class OperatorOptions(Struct, frozen=True):
    """The options of `dovetail operator`. `listen` is HOST:PORT of the health and metrics endpoints, "" for none.
    `image`: the image that scheduler and agents run unless the GPUStack names one; "" is that of `pod`, the operator's
    own (NAMESPACE/NAME), and without that the one of this release."""

    leader_elect: bool = True
    lease_namespace: str = SYSTEM_NAMESPACE
    lease_name: str = LEASE_NAME
    identity: str = field(default_factory=socket.gethostname)
    listen: str = "0.0.0.0:10353"
    image: str = ""
    pod: str = ""


def parts(shared: SharedByParts) -> tuple[StackPart, ...]:
    """The parts of `dovetail operator`, in the order in which they are asked."""
    walks = NodeWalks(shared, alone=False)
    registrations = (ApiRegistration(shared, one) for one in (VIEWS, HISTORY))
    return Takeovers(shared, walks.kept_off), GpuSearches(shared), walks, Rollouts(shared), *registrations


async def run(
    config: ClusterConfig, options: OperatorOptions, *, render: Render = desired, parts_of: PartsOf = parts
) -> None:  # fmt: skip
    """Keep what GPUStacks describe until cancelled. Raises LeaseLost, ApiError when the API server refuses the
    first contact, OSError when the endpoint's port is taken."""
    async with (
        Client(config, user_agent="dovetail-operator") as elections,
        LeaderClient(config) as client,
        _listening(options, client) as endpoints,
    ):
        metrics.log.info("dovetail %s (%s), reading the cluster at %s", __version__, __runs__(), config.server)
        served = await discover_when_up(client, metrics.log)
        image = options.image or await own_image(client, options.pod, f"dovetail:{__version__}")
        operator = Operator(client, elections, replace(options, image=image), served, render, parts_of)
        if endpoints is not None:
            endpoints.follow(operator.reflectors, operator.unready)
        await operator.run()


class Operator:
    """One process: the watches, the loops of the stacks, and the election."""

    def __init__(
        self,
        client: LeaderClient,
        elections: Client,
        options: OperatorOptions,
        served: Served,
        render: Render,
        parts_of: PartsOf,
    ) -> None:
        self._options = options
        self._loops: dict[str, Reconciler] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._lost = asyncio.Event()
        self._leading = asyncio.Event()
        lock = LeaseLock(options.lease_namespace, options.lease_name, LABEL, {NOTE: ""})
        self._note = LeaseNote(elections, lock)
        self._elector = Elector(
            elections,
            lock,
            options.identity,
            on_started_leading=self._started_leading,
            on_stopped_leading=self._lost.set,
        )
        client.leads = self._leads
        inventory = OwnedObjects(client, self._wake)
        self._watches = SharedWatches(client)
        self._stacks = SharedReflector(client, GPU_STACKS, GPUStack)
        self._stacks.subscribe(self._stacks_changed)
        self._definitions = Definitions(client, manifest_objects.definitions(), self._wake)
        self._surroundings = Surroundings(
            client, served, self._watches.runtime_classes, self._wake, self._definitions.wake
        )  # fmt: skip
        self._parts = parts_of(SharedByParts(client, self._watches, inventory, self._wake))
        self._shop = Workshop(
            client, self._stacks, inventory, Applier(client, inventory),
            lambda stack: render(stack, self._surroundings.found(self._parts), options.image),
            self._parts, lambda: self._definitions.refusal,
        )  # fmt: skip
        self.reflectors = (self._stacks, *self._surroundings.reflectors, *inventory.reflectors.values())

    def unready(self) -> str:
        """Why this process is not ready; "" when it is."""
        if text := self._stacks.unread:
            return f"{_NOT_PERMITTED}: {text}; {REMEDY}"
        waiting = [
            str(r.resource)
            for r in self.reflectors
            if not r.synced.is_set() and self._shop.inventory.unread(r.resource) is None
        ]
        return f"waiting for the first list of {', '.join(waiting)}" if waiting else ""

    async def run(self) -> None:
        """Run until cancelled. Raises LeaseLost."""
        metrics.LEADER.set(0)
        try:
            # The election ends last: the writes at shutdown need the lease.
            async with asyncio.TaskGroup() as election, asyncio.TaskGroup() as tasks:
                for work in (self._stacks.run, self._surroundings.run, self._shop.inventory.run):
                    tasks.create_task(work())
                await self._read_stacks()
                await self._shop.inventory.synced()
                for reflector in self._surroundings.reflectors:
                    await reflector.synced.wait()
                gc.collect()
                gc.freeze()
                metrics.log.info("in step with the cluster: %d GPUStacks", len(self._stacks.known))
                if self._options.leader_elect:
                    # Not earlier: a process that cannot read the cluster must not hold the lease.
                    election.create_task(self._elector.run())
                    tasks.create_task(_end_when(self._lost))
                else:
                    self._started_leading()
                await self._leading.wait()
                await self._definitions.examine()
                tasks.create_task(self._definitions.run())
                tasks.create_task(self._watches.run())
                for part in self._parts:
                    tasks.create_task(part.run())
                self._tasks = tasks
                self._start_loops()
        except* NotLeading:
            raise LeaseLost("the lease was lost before a write; ending") from None
        finally:
            if self._options.leader_elect:
                await asyncio.shield(self._elector.release())

    async def _read_stacks(self) -> None:
        """Wait for the first list of GPUStacks. Without the right to it, that is noted where people look."""
        while not self._stacks.settled:
            if (text := self._stacks.unread) and self._options.leader_elect:
                await self._note.put(f"{_NOT_PERMITTED}: {text}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._stacks.synced.wait()

    def _leads(self) -> bool:
        return self._elector.is_leader if self._options.leader_elect else True

    def _started_leading(self) -> None:
        metrics.log.info("leading: %s", self._elector.identity)
        metrics.LEADER.set(1)
        self._leading.set()

    def _stacks_changed(self, _: list[Change[GPUStack]]) -> None:
        if counting(self._stacks.known.values()) is None:
            for part in self._parts:
                part.follow(None)
        self._start_loops()
        self._wake()

    def _start_loops(self) -> None:
        if self._tasks is None:
            return
        for _, name in self._stacks.known:
            if name not in self._loops:
                self._loops[name] = Reconciler(name, self._shop)
                self._tasks.create_task(self._keep(name))

    async def _keep(self, name: str) -> None:
        try:
            await self._loops[name].run()
        finally:
            del self._loops[name]
        # It may have been made again while its loop ended.
        self._start_loops()

    def _wake(self) -> None:
        for loop in self._loops.values():
            loop.wake()


async def _end_when(lost: asyncio.Event) -> None:
    await lost.wait()
    raise LeaseLost("the lease was lost; ending so that the next start begins with a clean state")


@asynccontextmanager
async def _listening(options: OperatorOptions, client: Client) -> AsyncIterator[OperatorEndpoints | None]:
    """Serve health and metrics until the end of the block, if enabled. Raises OSError."""
    if not options.listen:
        yield None
        return
    # Imported only if needed, as in the scheduler.
    from dovetail.kube import probe_server
    from dovetail.operator.endpoints import OperatorEndpoints

    endpoints = OperatorEndpoints(f"the API server at {client.config.server}")
    async with probe_server.opened(options.listen, endpoints.answers()):
        yield endpoints
