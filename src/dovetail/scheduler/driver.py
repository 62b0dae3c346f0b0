# SPDX-License-Identifier: Apache-2.0
"""The main loop: events from the informers go into the core, its decisions go to the binder and the reporter.

Rules
- One step is small, so that binds already decided go out while the core decides the rest.
- A process that does not lead keeps its state up to date and decides nothing.
- A step runs when something changed (changes in short succession are batched, see `kube.api.watch`), when the core has
  work left, or at the time that the core has set. The time is that of the driver's clock.
- The core is called through `CoreCalls`, if there are observers. Between two calls it may replace the state by an
  equivalent one.
- Devices are written with the bind only where the core chose particular ones: on nodes whose layout is known, and for a
  share of one device.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import cycle
from dovetail.core.decisions import (
    Bind,
    Decision,
    Drain,
    EndLease,
    Evict,
    GrantLease,
    Hold,
    LeaseStatus,
    MakeOffers,
    Release,
    RequestStatus,
    RevokeLease,
    Unnominate,
)
from dovetail.core.devices.collectives import AllReduce
from dovetail.core.dra.extended import claim_key
from dovetail.core.events import (
    BindFailed,
    Event,
    GangRemoved,
    LeaseChanged,
    LeaseRequestChanged,
    LeaseRequestRemoved,
    PlaneRemoved,
    PodChanged,
    PodRejected,
    PodRemoved,
)
from dovetail.core.model import Pod
from dovetail.core.placing.collective import of_placements
from dovetail.core.reasons import Reason
from dovetail.core.state import State
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import Client
from dovetail.kube.gangs.dialects import COMPOSITE, NATIVE
from dovetail.kube.informers import Informers
from dovetail.recording.calls import CoreCalls
from dovetail.scheduler import metrics, nominations, wire
from dovetail.scheduler.binder import Binder
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.events import EventKind, Events, SchedulerRun
from dovetail.scheduler.lease_writer import LeaseWriter
from dovetail.scheduler.messages import bound_text, refusal_text
from dovetail.scheduler.mig_repartitioner import MigRepartitioner
from dovetail.scheduler.nominations import Nominations
from dovetail.scheduler.preemptions import Preemptions
from dovetail.scheduler.reporter import Reporter, StepReport

_LONGEST_WAIT_S = 5.0
_GROUP_CONDITIONS = {
    NATIVE.id_prefix: "PodGroupInitiallyScheduled",
    COMPOSITE.id_prefix: "CompositePodGroupInitiallyScheduled",
}
"""The upstream condition types. The objects of the other dialects belong to their own controllers."""
_CONDITION = "condition/"
"""The reporter's key for the condition of a pod begins so; the pod's uid follows."""


class _GangStart(Struct, frozen=True):
    """The step that decided the start of a gang, the fabric level that holds it, and its expected all-reduce."""

    step: int
    level: str
    all_reduce: AllReduce | None


class Core(Protocol):
    """The module `cycle`, or what calls it and passes each call on to observers."""

    def step(self, state: State, events: Iterable[Event], now_ms: int) -> list[Decision]: ...

    def apply_events(self, state: State, events: Iterable[Event], now_ms: int) -> None: ...


class Driver:
    def __init__(
        self,
        state: State,
        mirror: Informers,
        client: Client,
        clock: Clock,
        *,
        leads: Callable[[], bool],
        run: SchedulerRun,
        calls: CoreCalls | None = None,
        divider: MigRepartitioner | None = None,
    ) -> None:
        self.state = state
        self.last_step_s: float | None = None
        """The time.monotonic() of the last pass of the loop; None before the first."""
        self._mirror = mirror
        self._clock = clock
        self._leads = leads
        self._calls = calls
        self._core: Core = cycle if calls is None else calls
        self._divider = divider
        self.binder = Binder(
            client, clock, mirror, may_write=leads, failed=self._failed, bound=self._bound, run_id=run.id,
            forbidden=self._forbidden,
        )  # fmt: skip
        self.reporter = Reporter(client, self.binder.idle, leads)
        self._events = Events(self.reporter, clock, run)
        self._preemptions = Preemptions(
            client, clock, mirror, self._events, Nominations(mirror, self.reporter, run.id),
            may_write=leads, spawn=self._spawn,
        )  # fmt: skip
        self.leases = LeaseWriter(client, clock, mirror, state=lambda: self.state, may_write=leads, spawn=self._spawn)
        self._tasks: asyncio.TaskGroup
        self._ended = False
        self._starting: dict[str, _GangStart] = {}
        """Gangs with decided binds that have not started yet."""
        self._has_led = False

    @property
    def decides(self) -> bool:
        """Whether this process leads and has made its first step as leader, after which its data is complete."""
        return self._has_led and self._leads()

    @property
    def differences(self) -> int:
        """The number of pods known to have other devices than were chosen for them."""
        return len(self._mirror.feed.device_differences)

    @property
    def changed_records(self) -> int:
        """The number of bound pods with a record that was changed after the bind."""
        return len(self._mirror.feed.memory.changed)

    async def run(self) -> None:
        """Decide until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await self._loop()
            finally:
                self._ended = True

    async def _loop(self) -> None:
        wait_s = 0.0
        while True:
            events = await self._mirror.events(wait_s)
            if self._calls is not None:
                self.state = self._calls.renewed(self.state)
            if not self._leads():
                self._core.apply_events(self.state, events, self._clock.now_ms())
                self.last_step_s = time.monotonic()
                wait_s = _LONGEST_WAIT_S
                continue
            if not self._has_led:
                events += self._charged_by_others()
            with metrics.STEP_SECONDS.time():
                decisions = self._core.step(self.state, events, self._clock.now_ms())
            metrics.log.debug("step %d: %d events, %d decisions", self.state.steps, len(events), len(decisions))
            self.last_step_s = time.monotonic()
            for kind, times in Counter(map(type, decisions)).items():
                metrics.count(metrics.DECISIONS, kind.__name__.lower(), times=times)
            for change, times in self.state.drain_wakes().items():
                metrics.count(metrics.WAKEUPS, change.value, times=times)
            for event in events:
                if isinstance(event, LeaseRequestChanged):
                    self.leases.answered(event.request)
            for decision in decisions:
                self._carry_out(decision)
            self._note(events)
            wait_s = 0.0
            if not self.state.busy:
                wake_ms = self.state.next_wake_ms()
                due_s = _LONGEST_WAIT_S if wake_ms is None else max(0.05, (wake_ms - self._clock.now_ms()) / 1000)
                wait_s = min(due_s, _LONGEST_WAIT_S)

    def _charged_by_others(self) -> list[Event]:
        """What the leader before charged for leases, which this process has not: a follower sees no lease begin."""
        feed, tree, known = self._mirror.feed, self.state.shares.tree, self._mirror.queues.known
        above = {name for plane in self.state.requests.planes.values() for name in tree.known_path(plane.queue)}
        from_below = sorted(above, key=lambda name: (-len(tree.known_path(name)), name))
        return (
            feed.records.usages(known["", name] for name in from_below if ("", name) in known) + feed.leases.leading()
        )

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Bind():
                self._bind(decision)
                if decision.gang and not self.state.workloads.has_started(decision.gang):
                    self._starting[decision.gang] = self._gang_start(decision)
            case Hold():
                self._report_hold(decision)
            case Release():
                self._preemptions.release(decision)
            case Evict():
                self._preemptions.evict(decision)
            case Drain():
                self._preemptions.drain(decision)
            case Unnominate():
                self._preemptions.give_up(decision)
            case MakeOffers() | RequestStatus() | GrantLease() | LeaseStatus() | RevokeLease() | EndLease():
                self.leases.put(decision)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        """Work that ends with this process. What the last writes at shutdown would begin is left to the next one."""
        if self._ended:
            work.close()
        else:
            self._tasks.create_task(work)

    def _bind(self, bind: Bind) -> None:
        """Pass a bind to the binder, after older reports of the pod are withdrawn: an "unschedulable" condition or a
        nomination must not be written after the bind. The record holds the values in force now, however long the bind
        takes."""
        feed, cluster = self._mirror.feed, self.state.cluster
        if self._divider is not None:
            self._divider.propose(bind.uid, None)
        placement, pod = cluster.placements.get(bind.uid), self.state.workloads.pods[bind.uid]
        chosen = placement is not None and (placement.share_bits or cluster.nodes.layout(placement.slot) is not None)
        if not chosen and not pod.lease:
            # The core counted the devices and chose no particular ones. Those of a lease are particular everywhere: by
            # them a scheduler that starts knows that the pod is inside.
            bind = replace(bind, devices=())
        queue = self.state.shares.pod_queues.of(pod)
        record = feed.decided(bind.uid, queue, bind.node, wire.devices(bind))
        if record is None:
            return
        late = [key for key in (_CONDITION + bind.uid, nominations.KEY + bind.uid) if self.reporter.writes(key)]
        if not late:
            self.binder.put(bind, pod, record)
            return

        async def when_withdrawn() -> None:
            for key in late:
                await self.reporter.withdraw(key)
            self.binder.put(bind, pod, record)

        self._tasks.create_task(when_withdrawn())

    def _forbidden(self, uid: str) -> str:
        """Why a pod of a lease must not be bound any more, "" if it may: the lease may be over by now."""
        pod = self.state.workloads.pods.get(uid)
        if pod is None:
            return ""
        live = self.state.leases.live.get(pod.lease)
        if live is None or live.lease.fence != pod.fence or self._clock.now_ms() >= self.state.leases.end_ms(pod.lease):
            return f"the lease {pod.lease} with the fence {pod.fence} is over"
        return ""

    def _gang_start(self, bind: Bind) -> _GangStart:
        known = self._starting.get(bind.gang)
        if known is not None and known.step == bind.step:
            return known
        members, placements = self.state.workloads.members(bind.gang), self.state.cluster.placements
        placed = [placements[pod.uid] for pod in members if pod.uid in placements]
        return _GangStart(bind.step, bind.level, of_placements(self.state.cluster, placed))

    def _bound(self, bind: Bind, target: Pod) -> None:
        pod = target.key
        known = self.state.workloads.pods.get(bind.uid)
        if known is not None and known.created_ms:
            waited_ms = max(0, self._clock.now_ms() - known.created_ms)
            metrics.waited(self.state.shares.pod_queues.of(known)).observe(waited_ms / 1000)
        if (asked := self.state.headrooms.scale_ups.pop(bind.uid, None)) is not None:
            took_ms = max(0, self._clock.now_ms() - asked.asked_ms)
            metrics.SCALE_UP_SECONDS.labels("kept" if asked.promised else "none").observe(took_ms / 1000)
            kept = "kept" if took_ms <= asked.within_ms else "broken"
            metrics.SCALE_UPS.labels(kept if asked.promised else "none").inc()
        if metrics.log.isEnabledFor(logging.INFO):
            fields = {"pod": pod, "node": bind.node, "devices": bind.devices, "step": bind.step}
            metrics.log.info("bound %s to %s, as step %d decided", pod, bind.node, bind.step, extra={"fields": fields})
        start = self._starting.get(bind.gang)
        all_reduce = start.all_reduce if start is not None else None
        placed = bound_text(bind, pod, all_reduce, assumed=bool(bind.mbps) and self._assumed(bind.node))
        self._events.put(target, EventKind.BOUND, placed, step=bind.step)

    def _assumed(self, node: str) -> bool:
        """Whether the wiring of the node's GPUs is known from their product alone."""
        nodes = self.state.cluster.nodes
        slot = nodes.slots.get(node)
        layout = nodes.layout(slot) if slot is not None else None
        return layout is not None and layout.assumed

    def _failed(self, failed: BindFailed, target: Pod | None) -> None:
        self._mirror.put([failed, *self._mirror.feed.not_bound(failed.uid)])
        self._preemptions.bind_failed(failed.uid)
        if target is not None:
            self._events.put(target, EventKind.BIND_FAILED, f"binding failed: {failed.message}")

    def _let_go(self, uid: str) -> None:
        """Release the devices of a waiting pod that will not become ready."""
        pod = self.state.workloads.pods.get(uid)
        stuck = self.state.cluster.claims.stuck(pod) if pod is not None and pod.device_claims else []
        if pod is not None and stuck:
            self._tasks.create_task(self.binder.let_go(stuck, uid, claim_key(pod)))

    def _note(self, events: list[Event]) -> None:
        """Process the events that the core has consumed: count rejections, report started gangs, end nominations. The
        first call as leader looks at all pods, as the previous leader may have nominated some."""
        if not self._has_led:
            for pod in self.state.workloads.pods.values():
                self._preemptions.seen(pod)
            self.leases.begin()
        for event in events:
            match event:
                case PodChanged(pod):
                    if self._has_led and (pod.node or pod.nominated_node):
                        self._preemptions.seen(pod)
                    if pod.gang and pod.node and self._starting:
                        self._note_start(pod)
                case PodRemoved(uid):
                    self._preemptions.gone(uid)
                case LeaseChanged(lease):
                    self.leases.read(lease.id)
                case LeaseRequestRemoved(id_):
                    self.leases.request_gone(id_)
                case PlaneRemoved(id_):
                    self.leases.plane_gone(id_)
                case PodRejected():
                    metrics.count(metrics.REJECTIONS, event.reason, event.owner.partition("/")[0])
                    metrics.log.warning("the kubelet of %s rejected a pod: %s", event.node, event.reason)
                case GangRemoved(gang_id):
                    self._starting.pop(gang_id, None)
        self._has_led = True

    def _note_start(self, pod: Pod) -> None:
        """Report a gang as started once its pods are seen bound, after any number of attempts."""
        workload_index = self.state.workloads
        workload = workload_index.workload_of(pod)
        if workload not in self._starting or not workload_index.has_started(workload):
            return
        start = self._starting.pop(workload)
        where = f" inside one {start.level}" if start.level else ""
        expected = f"; {start.all_reduce}" if start.all_reduce is not None else ""
        count = sum(1 for member in workload_index.members(workload) if member.node)
        for gang_id in workload_index.tree(workload):
            self._group(gang_id, True, "Scheduled", f"{count} pods were bound{where}{expected}")

    def _report_hold(self, hold: Hold) -> None:
        refusal = hold.refusal
        metrics.count(metrics.REFUSALS, refusal.reason.code, refusal.when.value)
        if refusal.reason in (Reason.GATED, Reason.DELETING):
            # The API server reports these states itself; the scheduler does not consider such pods.
            return
        message = refusal_text(refusal, self._clock.now_ms())
        if self._divider is not None and hold.uids:
            self._divider.propose(hold.uids[0], refusal.repartition)
        for uid in hold.uids:
            target = self._mirror.feed.reported(uid)
            if target is None:
                continue
            self._let_go(uid)
            metrics.log.debug("%s waits: %s", target.key, message)
            body = wire.unschedulable(uid, "Unschedulable", message, self._clock.now_ms())
            path = kinds.PODS.path(target.namespace, target.name, "status")
            self.reporter.put(_CONDITION + uid, StepReport("condition", "PATCH", path, body))
            self._events.put(target, EventKind.HELD, message, step=hold.step)
        if not self.state.workloads.has_started(hold.gang):
            for gang_id in self.state.workloads.tree(hold.gang):
                self._group(gang_id, False, "Unschedulable", message)

    def _group(self, gang_id: str, status: bool, reason: str, message: str) -> None:
        ref = self._mirror.feed.gangs.ref(gang_id)
        condition = _GROUP_CONDITIONS.get(ref.dialect.id_prefix) if ref is not None else None
        if ref is None or condition is None:
            return
        body = wire.group_condition(condition, status, reason, message, self._clock.now_ms())
        path = self._mirror.resource_of(ref.dialect).path(ref.namespace, ref.name, "status")
        self.reporter.put(f"group/{gang_id}", StepReport("group", "PATCH", path, body))
