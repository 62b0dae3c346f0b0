# SPDX-License-Identifier: Apache-2.0
"""Repeats: asks the instances of a namespace what they do, decides whose turn it is (`core.turns`), and calls them.

Rules
- One process gives the turns of a namespace: it holds a Lease, and asks before each act whether it still does.
- Nothing wakes before every instance that makes room for it has reported that it sleeps. What is not known to sleep
  counts as awake: an engine that starts, switches, does not answer or refuses.
- Each step is written on the pod before and after it, so another process goes on where this one ended. An engine that
  was left half awake is put to sleep.
- A failed switch is tried again after `_PAUSE_S`. An instance that cannot wake goes back to sleep, and its request
  is withdrawn: it has to ask again.
- One call that takes long keeps no other instance from its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack

from msgspec import Struct

from dovetail.core.turns import EngineState, TurnDecision, TurnTaker, turns
from dovetail.kube import probe_server
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.lease import Elector, LeaseLock
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.base import time_text
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import PREFIX, TURN, WAKE_WANTED
from dovetail.sleeping import metrics
from dovetail.sleeping.calls import EngineClient, EngineRefuses
from dovetail.sleeping.followed_pods import FollowedPods
from dovetail.sleeping.instances import Sleeper, TurnRecord, TurnStep, Unusable, sleepers_of

LEASE_NAME = "dovetail-turns"
_AGENT = "dovetail-turns"
_PAUSE_S = 30.0
_SILENT_S = 30.0
_STARTS_WITHIN_S = 1800.0
_WANTED = PREFIX + WAKE_WANTED


class TurnOptions(Struct, frozen=True):
    """The namespace, how long an instance is awake at least, the time between two passes, and HOST:PORT of the metrics
    ("" for none)."""

    namespace: str
    least_awake_ms: int = 60_000
    every_s: float = 2.0
    listen: str = ""


class InstanceTurn(Struct, frozen=True, rename="camel"):
    """An instance: where it is, its memory of each GPU, what it does, since when it wants to be awake (epoch ms, 0: it
    does not), and why it waits, or cannot be used."""

    name: str
    node: str
    gpus: tuple[str, ...]
    engine: str
    state: str
    awake_mib: int
    asleep_mib: int
    wanted_ms: int
    because: str


class NoInstance(Exception):
    """The pod takes no turns, or cannot sleep now; the text has the reason."""


async def read_turns(config: ClusterConfig, options: TurnOptions) -> tuple[InstanceTurn, ...]:
    """What the instances of the namespace do now. Changes nothing. Raises KubeError."""
    async with Client(config, user_agent=_AGENT) as client:
        giver = TurnGiver(client, FollowedPods(client, options.namespace), options, lambda: False)
        await giver.once()
        return giver.shown


async def ask_to_wake(config: ClusterConfig, namespace: str, name: str) -> None:
    """Write on the pod that it wants to be awake. Raises KubeError, NoInstance."""
    async with Client(config, user_agent=_AGENT) as client:
        await _found(client, namespace, name)
        await _annotate(client, namespace, name, {_WANTED: time_text(round(time.time() * 1000))})


async def put_to_sleep(config: ClusterConfig, namespace: str, name: str) -> None:
    """Put one instance to sleep now. Raises KubeError, EngineRefuses, NoInstance, also for one that starts or
    wakes."""
    async with Client(config, user_agent=_AGENT) as client:
        one = await _found(client, namespace, name)
        if one.record.step in (TurnStep.START, TurnStep.WAKING):
            raise NoInstance(f"{namespace}/{name} starts or wakes now: try again when it is awake")
        await EngineClient(client, namespace).switch(one, one.engine.sleep, asleep=True)
        record = TurnRecord(TurnStep.ASLEEP, round(time.time() * 1000))
        await _annotate(client, namespace, name, {TURN: record.text, _WANTED: None})


async def run(config: ClusterConfig, options: TurnOptions) -> None:
    """Give the turns until cancelled. Raises OSError if the port is taken."""
    async with AsyncExitStack() as stack:
        if options.listen:
            await stack.enter_async_context(probe_server.opened(options.listen, probe_server.plain_answers()))
        client = await stack.enter_async_context(Client(config, user_agent=_AGENT))
        pods = FollowedPods(client, options.namespace)

        def leads() -> None:
            pods.refresh()
            metrics.LEADS.set(1)

        elector = Elector(
            client, LeaseLock(options.namespace, LEASE_NAME), _AGENT,
            on_started_leading=leads, on_stopped_leading=lambda: metrics.LEADS.set(0),
        )  # fmt: skip
        giver = TurnGiver(client, pods, options, lambda: elector.is_leader)
        tasks = [asyncio.create_task(elector.run()), asyncio.create_task(pods.run())]
        try:
            while True:
                if elector.is_leader:
                    await _pass(giver)
                await asyncio.sleep(options.every_s)
        finally:
            await giver.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await elector.release()


class TurnGiver:
    """`leads` answers whether this process may act; `clock_ms` is the time of day, `monotonic_s` a clock that never
    goes back."""

    def __init__(
        self, client: Client, pods: FollowedPods, options: TurnOptions, leads: Callable[[], bool],
        clock_ms: Callable[[], int] = lambda: round(time.time() * 1000),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._client = client
        self._pods = pods
        self._engines = EngineClient(client, options.namespace)
        self._options = options
        self._leads = leads
        self._clock_ms = clock_ms
        self._monotonic_s = monotonic_s
        self._switching: dict[str, asyncio.Task[None]] = {}
        self._silent_s: dict[str, float] = {}
        """Since when an engine does not answer, by pod uid."""
        self._failed_s: dict[str, float] = {}
        self._awake_ms: dict[str, int] = {}
        """Since when an engine is seen awake: its record may be refused."""
        self.shown: tuple[InstanceTurn, ...] = ()
        """What the last pass found."""

    async def once(self) -> None:
        """One pass. Raises KubeError when the pods cannot be read."""
        # What ends from here on was not ended in what is read.
        self._switching = {uid: task for uid, task in self._switching.items() if not task.done()}
        found, unusable = sleepers_of(await self._pods.read())
        self._forget({one.uid for one in found})
        states = dict(zip([one.uid for one in found], await asyncio.gather(*map(self._state, found)), strict=True))
        now_ms = self._clock_ms()
        takers = [self._taker(one, states[one.uid], now_ms) for one in found]
        decided = turns(takers, now_ms, self._options.least_awake_ms)
        self._show(found, takers, unusable, decided)
        if not self._leads():
            return
        by_name = {one.name: one for one in found}
        for name in decided.sleep:
            self._begin(by_name[name], self._sleep(by_name[name]))
        for name in decided.wake:
            one = by_name[name]
            starts = states[one.uid] is EngineState.NOT_STARTED
            self._begin(one, self._start(one) if starts else self._wake(one))
        for one in found:
            if one.uid not in self._switching:
                await self._settle(one, states[one.uid])

    async def settled(self) -> None:
        """Wait until no switch is under way."""
        await asyncio.gather(*self._switching.values())

    async def stop(self) -> None:
        """Cancel what is under way: the records on the pods have what was begun."""
        for task in self._switching.values():
            task.cancel()
        await asyncio.gather(*self._switching.values(), return_exceptions=True)

    async def _state(self, one: Sleeper) -> EngineState:
        step, now_s = one.record.step, self._monotonic_s()
        if one.uid in self._switching:
            return EngineState.SWITCHING
        if not one.running:
            waits = one.gated and step is not TurnStep.START and (one.gate_waits or step is TurnStep.NONE)
            return EngineState.NOT_STARTED if waits else self._silence(one, now_s)
        try:
            sleeps = await self._engines.sleeps(one)
        except EngineRefuses:
            return self._silence(one, now_s)
        self._silent_s.pop(one.uid, None)
        if now_s - self._failed_s.get(one.uid, -_PAUSE_S) < _PAUSE_S and not (sleeps and step is TurnStep.ASLEEP):
            return EngineState.LOST
        if sleeps is None:
            sleeps = step in (TurnStep.ASLEEP, TurnStep.WAKING)
        if not sleeps:
            return EngineState.AWAKE
        # Some of its memory may be there again, although it reports that it sleeps.
        return EngineState.SWITCHING if step is TurnStep.WAKING else EngineState.ASLEEP

    def _silence(self, one: Sleeper, now_s: float) -> EngineState:
        since_s = self._silent_s.setdefault(one.uid, now_s)
        starts = one.record.step in (TurnStep.NONE, TurnStep.START)
        lost = now_s - since_s > (_STARTS_WITHIN_S if starts else _SILENT_S)
        return EngineState.LOST if lost else EngineState.SWITCHING

    def _taker(self, one: Sleeper, state: EngineState, now_ms: int) -> TurnTaker:
        seen_ms = self._awake_ms.setdefault(one.uid, now_ms) if state is EngineState.AWAKE else 0
        awake_ms = one.record.at_ms if one.record.step is TurnStep.AWAKE else seen_ms
        if state is not EngineState.AWAKE:
            self._awake_ms.pop(one.uid, None)
        if one.record.step is TurnStep.FALLING_ASLEEP:
            awake_ms = 0
        wanted_ms = one.wanted_ms
        if state is EngineState.NOT_STARTED:
            wanted_ms = wanted_ms or max(one.created_ms, 1)
        slept = one.record.step is TurnStep.ASLEEP and one.uid in self._silent_s
        return TurnTaker(one.name, one.gpus, one.extra_mib, state, awake_ms, wanted_ms, slept)

    def _begin(self, one: Sleeper, work: Coroutine[object, object, None]) -> None:
        self._switching[one.uid] = asyncio.create_task(work)

    def _forget(self, uids: set[str]) -> None:
        """Keep nothing about pods that are gone."""
        for uid in self._switching.keys() - uids:
            self._switching.pop(uid).cancel()
        for known in (self._silent_s, self._failed_s, self._awake_ms):
            for uid in known.keys() - uids:
                known.pop(uid)

    async def _start(self, one: Sleeper) -> None:
        try:
            await self._record(one, TurnStep.START)
        except (EngineRefuses, KubeError) as error:
            self._failed(one, "start", error)
        else:
            metrics.SWITCHES.labels("start").inc()

    async def _sleep(self, one: Sleeper) -> None:
        try:
            await self._record(one, TurnStep.FALLING_ASLEEP)
            await self._engines.switch(one, one.engine.sleep, asleep=True)
            await self._record(one, TurnStep.ASLEEP)
        except (EngineRefuses, KubeError) as error:
            self._failed(one, "sleep", error)
        else:
            metrics.SWITCHES.labels("sleep").inc()

    async def _wake(self, one: Sleeper) -> None:
        try:
            await self._record(one, TurnStep.WAKING)
            await self._engines.switch(one, one.engine.wake, asleep=False)
            await self._record(one, TurnStep.AWAKE, {_WANTED: None})
        except (EngineRefuses, KubeError) as error:
            self._failed(one, "wake", error)
            await self._back_to_sleep(one)
        else:
            metrics.SWITCHES.labels("wake").inc()

    async def _back_to_sleep(self, one: Sleeper) -> None:
        """What could not wake whole may hold a part of its memory."""
        try:
            self._check_lead()
            await self._engines.switch(one, one.engine.sleep, asleep=True)
            await self._record(one, TurnStep.ASLEEP, {_WANTED: None})
        except (EngineRefuses, KubeError) as error:
            self._failed(one, "sleep", error)

    async def _settle(self, one: Sleeper, state: EngineState) -> None:
        """Write down what an engine did by itself, and end a switch that another process began."""
        step = one.record.step
        half_awake = step is TurnStep.WAKING and state is EngineState.SWITCHING and one.running
        # Of an engine that does not report it, it is not known whether it fell asleep.
        unknown = step is TurnStep.FALLING_ASLEEP and state is EngineState.AWAKE and not one.engine.state_path
        if (half_awake and one.uid not in self._silent_s) or unknown:
            self._begin(one, self._back_to_sleep(one))
            return
        try:
            if state is EngineState.AWAKE and step not in (TurnStep.AWAKE, TurnStep.FALLING_ASLEEP):
                await self._record(one, TurnStep.AWAKE, {_WANTED: None})
            elif state is EngineState.AWAKE and one.wanted_ms:
                await self._annotate(one, {_WANTED: None})
            elif state is EngineState.ASLEEP and step is not TurnStep.ASLEEP:
                await self._record(one, TurnStep.ASLEEP)
        except (EngineRefuses, KubeError) as error:
            metrics.log.warning("%s: its turn could not be written down: %s", one.name, error)

    async def _record(self, one: Sleeper, step: TurnStep, more: Mapping[str, str | None] | None = None) -> None:
        await self._annotate(one, {TURN: TurnRecord(step, self._clock_ms()).text, **(more or {})})

    async def _annotate(self, one: Sleeper, values: Mapping[str, str | None]) -> None:
        self._check_lead()
        self._pods.note(await _annotate(self._client, self._options.namespace, one.name, values, one.uid))

    def _check_lead(self) -> None:
        if not self._leads():
            raise EngineRefuses("this process does not give the turns any more")

    def _failed(self, one: Sleeper, to: str, error: Exception) -> None:
        self._failed_s[one.uid] = self._monotonic_s()
        metrics.FAILURES.labels(to).inc()
        metrics.log.warning("%s did not %s: %s", one.name, to, error)

    def _show(
        self, found: list[Sleeper], takers: list[TurnTaker], unusable: Iterable[Unusable], decided: TurnDecision
    ) -> None:  # fmt: skip
        reasons = {one.name: f"{one.because}: {', '.join(one.behind)}" for one in decided.waits}
        self.shown = tuple(
            InstanceTurn(
                one.name, one.node, one.gpus, one.engine_name, taker.state.value, one.awake_mib, one.asleep_mib,
                taker.wanted_ms, reasons.get(one.name, ""),
            )
            for one, taker in zip(found, takers, strict=True)
        ) + tuple(InstanceTurn(one.name, "", (), "", "unusable", 0, 0, 0, one.because) for one in unusable)  # fmt: skip
        counts = Counter(one.state for one in takers)
        for state in EngineState:
            metrics.INSTANCES.labels(state.value).set(counts[state])
        asked = [taker.wanted_ms for taker in takers if taker.name in reasons]
        metrics.LONGEST_WAIT.set(max(0, self._clock_ms() - min(asked)) / 1000 if asked else 0)


async def _pass(giver: TurnGiver) -> None:
    try:
        await giver.once()
    except KubeError as error:
        metrics.log.warning("the pods cannot be read: %s", error)


async def _found(client: Client, namespace: str, name: str) -> Sleeper:
    pod = await client.request("GET", PODS.path(namespace, name), decode=Pod)
    found, unusable = sleepers_of([pod])
    if not found:
        why = (
            unusable[0].because
            if unusable
            else "it is on no node, or was placed without dovetail.dev/gpu-memory-asleep"
        )
        raise NoInstance(f"{namespace}/{name} takes no turns: {why}")
    return found[0]


async def _annotate(client: Client, namespace: str, name: str, values: Mapping[str, str | None], uid: str = "") -> Pod:
    # With its uid the write is refused for another pod of the name.
    metadata = {"annotations": dict(values)} | ({"uid": uid} if uid else {})
    path = PODS.path(namespace, name)
    return await client.request("PATCH", path, {"metadata": metadata}, decode=Pod, content_type=MERGE_PATCH)
