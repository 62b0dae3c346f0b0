# SPDX-License-Identifier: Apache-2.0
"""Carries the pods of one plane: reads the three sides, decides, and does what was decided, again and again.

Rules
- Everything is decided from what is there. So it can be killed between any two writes, and the next process goes on.
- One process at a time is the carrier of a plane.
- After an error it decides again, from what is there then, and waits longer each time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from msgspec import Struct

from dovetail.agentplanes import metrics
from dovetail.agentplanes.carry_actions import (
    Announce,
    BindOnEndpoint,
    CarryAction,
    CarryPlan,
    CreateOnHost,
    DeleteOnHost,
    GiveBack,
    Negotiate,
    RemoveFromEndpoint,
    Renew,
    ShowStatus,
    Withdraw,
)
from dovetail.agentplanes.decisions import decide
from dovetail.agentplanes.endpoint import EndpointWrite, PlaneEndpoint
from dovetail.agentplanes.facts import CarryLimits, HostRefusal, PlaneFacts
from dovetail.agentplanes.host_namespace import HostNamespace
from dovetail.agentplanes.host_pod import HostTarget
from dovetail.agentplanes.leases import PlaneLeases
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import text_at
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.apiserver.sqlite_log import StoreUnreadable
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError
from dovetail.plane.agent_plane import AgentPlane
from dovetail.plane.broker import Broker, BrokerRefused, BrokerUnavailable

_REFUSED_MS = 15_000
_EXPLAIN_S = 5.0
_REST = 20
"""How many times as long as a decision took the next one waits."""
_FIRST_WAIT_S, _MOST_WAIT_S = 0.2, 30.0
_log = logging.getLogger(__name__)


class CarriedPlane(Struct, frozen=True):
    """The plane that is carried. `heartbeat_ms` is how often its agent is to be heard."""

    name: PlaneName
    target: HostTarget
    limits: CarryLimits = CarryLimits()
    heartbeat_ms: int = 10_000


class PlaneCarrier:
    """The carrier of one plane. `changed` is called by whatever sees a change of the endpoint."""

    def __init__(self, plane: CarriedPlane, endpoint: PlaneEndpoint, client: Client, broker: Broker) -> None:
        self._plane = plane
        self._endpoint = endpoint
        self._broker = broker
        self._news = asyncio.Event()
        self.host = HostNamespace(client, plane.target.namespace, plane.target.plane_uid, self.changed)
        self._leases: PlaneLeases | None = None
        self._computing_s = 0.0
        self._refusals: dict[str, HostRefusal] = {}
        self._creations = float(plane.limits.creation_burst)
        self._filled_ms = broker.clock.now_ms()

    @property
    def open_requests(self) -> int:
        """Requests to the broker that have no outcome yet."""
        return sum(not one.failed for one in self._leases.requests.values()) if self._leases is not None else 0

    def changed(self) -> None:
        """Something has changed: decide again."""
        self._news.set()

    async def run(self) -> None:
        """Carry until cancelled; pods and leases stay. Raises BrokerRefused where the broker will never take a call."""
        name = self._plane.name
        async with AgentPlane(
            self._broker, f"{name.namespace}/{name.name}", heartbeat_ms=self._plane.heartbeat_ms, adopt=True, leave=True
        ) as agent:
            leases = self._leases = PlaneLeases(agent, self.changed)
            following = asyncio.create_task(self.host.reflector.run())
            explaining = asyncio.create_task(self._explain(leases))
            leases.start()
            try:
                await self._first_list(following)
                await self._carry(leases, following)
            finally:
                following.cancel()
                explaining.cancel()
                await asyncio.gather(following, explaining, return_exceptions=True)
                await leases.end()

    async def _first_list(self, following: asyncio.Task[None]) -> None:
        synced = asyncio.create_task(self.host.reflector.synced.wait())
        try:
            await asyncio.wait([synced, following], return_when=asyncio.FIRST_COMPLETED)
        finally:
            synced.cancel()

    async def _carry(self, leases: PlaneLeases, following: asyncio.Task[None]) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            self._news.clear()
            if following.done():
                following.result()
            if leases.failure is not None:
                raise leases.failure
            try:
                plan = await self._pass(leases)
                wait_s = _FIRST_WAIT_S
            except (ApiError, BrokerUnavailable, StoreUnreadable, Failure) as error:
                metrics.ERRORS.inc()
                _log.warning("plane %s: %s; trying again in %.1f s", self._plane.name, error, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _MOST_WAIT_S)
                continue
            # One plane has a part of the process at most, however often its agent writes.
            await asyncio.sleep(_REST * self._computing_s)
            await self._wait(plan.wake_ms)

    async def _pass(self, leases: PlaneLeases) -> CarryPlan:
        """Read, decide, act once."""
        pods, groups, config_maps = await self._endpoint.read()
        hosts = self.host.pods()
        now_ms = self._broker.clock.now_ms()
        known = {text_at(pod, "metadata.uid") for pod in pods}
        self._refusals = {uid: one for uid, one in self._refusals.items() if uid in known}
        begun_s = time.thread_time()
        plan = decide(
            PlaneFacts(
                now_ms, time.time(), self._plane.target, self._plane.limits, pods, groups,
                config_maps=config_maps, hosts=hosts, last=self.host.gone,
                leases=leases.facts(), leases_known=leases.known, negotiations=leases.requests,
                refusals=self._refusals, creations=self._room(now_ms),
            )
        )  # fmt: skip
        self._computing_s = time.thread_time() - begun_s
        await self._act(plan.actions, leases)
        # What is gone has been shown by now, or is in the next plan.
        named = {host.lease for host in hosts.values()} | {
            self.host.gone[uid].lease for uid in known & self.host.gone.keys()
        }
        leases.forget(frozenset(named), plan.unused)
        return plan

    async def _act(self, actions: Iterable[CarryAction], leases: PlaneLeases) -> None:
        """First the endpoint: an end is shown before anything is deleted on the host."""
        actions = list(actions)
        shown: list[EndpointWrite] = [
            one for one in actions if isinstance(one, ShowStatus | BindOnEndpoint | RemoveFromEndpoint | Announce)
        ]
        if shown:
            await self._endpoint.write(shown)
        for action in actions:
            metrics.ACTIONS.labels(type(action).__name__).inc()
            match action:
                case CreateOnHost():
                    await self._create(action)
                case DeleteOnHost():
                    await self.host.delete(action)
                case Negotiate():
                    leases.negotiate(action.key, action.pods)
                case Withdraw():
                    leases.withdraw(action.key)
                case Renew():
                    leases.renew(action.lease, action.duration_ms)
                case GiveBack():
                    leases.give_back(action.lease)
                case _:
                    pass

    async def _create(self, action: CreateOnHost) -> None:
        self._creations -= 1
        refused = await self.host.create(action)
        if refused:
            retry_ms = self._broker.clock.now_ms() + _REFUSED_MS
            self._refusals[action.pod_uid] = HostRefusal(refused, retry_ms)
            self.changed()
        else:
            self._refusals.pop(action.pod_uid, None)

    def _room(self, now_ms: int) -> int:
        """How many pods may be created now: a bucket that fills at a rate."""
        limits = self._plane.limits
        added = max(0, now_ms - self._filled_ms) / 1000 * limits.creations_per_s
        self._creations = min(limits.creation_burst, self._creations + added)
        self._filled_ms = now_ms
        return int(self._creations)

    async def _wait(self, wake_ms: int | None) -> None:
        """Until something has changed, or it is that time of the broker."""
        delay_ms = wake_ms - self._broker.clock.now_ms() if wake_ms is not None else None
        if delay_ms is not None and delay_ms <= 0:
            return
        news = asyncio.create_task(self._news.wait())
        waiting: list[asyncio.Task[object]] = [news]
        if delay_ms is not None:
            waiting.append(asyncio.create_task(self._broker.clock.sleep(delay_ms)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def _explain(self, leases: PlaneLeases) -> None:
        """Show why requests wait, now and then."""
        while True:
            await asyncio.sleep(_EXPLAIN_S)
            before = dict(leases.requests)
            if before:
                try:
                    await leases.explain()
                except BrokerRefused:
                    return
                if leases.requests != before:
                    self.changed()
