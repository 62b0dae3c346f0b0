# SPDX-License-Identifier: Apache-2.0
"""The state of the core between steps, and how each event changes it.

Rules: an event for an object replaces the record of that object. A pod that was decided and is not seen bound yet keeps
its place ("assumed") until it is seen bound, its bind failed, or it is gone. Everything here can be rebuilt from the
API server's objects: a restart loses no pod and allocates nothing twice. The GPUs of a bound pod are those that its
bind wrote; a pod without such a record gets what the others leave, and the same in whatever order the pods come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cluster import Cluster
from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.model import Pod
from dovetail.core.pipeline.equivalence import EquivalenceCache
from dovetail.core.pipeline.queue import SchedulingQueue
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.policy import Policy
from dovetail.core.preemption.moves import MovesUnderWay
from dovetail.core.queues.eviction_counts import EvictionCounts
from dovetail.core.queues.queue_order import QueueOrder
from dovetail.core.queues.run_times import RunTimes
from dovetail.core.queues.shares import Shares
from dovetail.core.queues.status import QueueStanding
from dovetail.core.queues.types import QUEUE_LABEL, Budget
from dovetail.core.reservations.expected_ends import ExpectedEnds
from dovetail.core.reservations.planner import ReservationPlanner
from dovetail.core.reservations.pledges import Pledges
from dovetail.core.reservations.precedence import ReservationPrecedence
from dovetail.core.reservations.table import Reservations
from dovetail.core.workloads.broken import BrokenGangs
from dovetail.core.workloads.index import LONE, Precedence, Rank, WorkloadIndex, startable
from dovetail.core.workloads.lifecycle import GangState

_RENEWED_MS = 1000
"""How often queues are compared again although nothing happened: what they used changes with time."""
_FAIR_SHARE_MS = 60_000
"""How often what is due to the queues is worked out again, while workloads wait."""


class State:
    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy = policy or Policy()
        self.cluster = cluster = Cluster(policy.scoring, policy.fabric)
        self.score_cache = ScoreCache(cluster, policy.scoring)
        self.workloads = WorkloadIndex(cluster)
        self.shares = Shares(cluster, self.workloads, policy)
        self.queue_order = QueueOrder(self.shares, self.workloads)
        self.queue = SchedulingQueue(self.queue_order)
        self.equivalence = EquivalenceCache()
        self.run_times = RunTimes()
        self.reservations = Reservations(cluster, self.workloads, self.equivalence, policy.eviction_deadline_ms)
        self.pledges = Pledges(self.reservations, cluster, self.workloads, self.shares)
        self.expected_ends = ExpectedEnds(cluster, self.shares, self.run_times)
        self.planner = ReservationPlanner(
            self.reservations, cluster, self.score_cache, self.expected_ends, policy.search_limit
        )
        self.precedences = ReservationPrecedence(
            self.reservations, cluster, self.score_cache, self.shares, self.queue_order, policy.reserve
        )
        self.budgets: dict[str, Budget] = {}
        self.eviction_counts = EvictionCounts()
        self.moves = MovesUnderWay(cluster, self.workloads)
        self.broken = BrokenGangs(self.workloads, cluster, policy.broken_deadline_ms)
        self.searches = 0
        """How many searches for victims there were in this step."""
        self._wakes: Counter[ClusterChange] = Counter()
        self._postponed: list[str] = []
        self.steps = 0
        self.now_ms = 0
        self._renewed_ms = 0
        self._fair_share_ms = 0

    @property
    def busy(self) -> bool:
        """Whether a further step without events would try something."""
        return bool(self.queue) or bool(self.cluster.changes)

    def next_wake_ms(self) -> int | None:
        """When a step is due even if nothing happens: a back-off or a deadline ends."""
        times = [until for nodes in self.cluster.avoided.values() for until in nodes.values()]
        times += self.workloads.lives.due_ms.values()
        times += [r.until_ms for r in self.cluster.rejections if self.now_ms < r.until_ms < FOR_EVER_MS]
        times += [at_ms for at_ms in (self.reservations.next_ms(), self.moves.next_ms()) if at_ms is not None]
        if self._divided():
            times.append(self._fair_share_ms + _FAIR_SHARE_MS)
        times += self._levels_ms()
        if any(self.equivalence.sought.values()):
            times.append(self.equivalence.again_ms)
        return min(times, default=None)

    def _levels_ms(self) -> Iterator[int]:
        """When running jobs reach a level of service at which waiting ones may come before them."""
        for queue in self.shares.attained.queues():
            due_ms = self.shares.attained.next_ms(queue, self.now_ms)
            if due_ms is not None and any(self.shares.pending(queue).values()):
                yield due_ms

    def _divided(self) -> bool:
        """Whether workloads wait where several queues divide the cluster."""
        return len(self.shares.tree.written) > 1 and any(self.queue.lengths())

    def apply(self, event: ev.Event) -> None:
        _HANDLERS[type(event)](self, event)

    def advance(self, now_ms: int) -> None:
        """Let time pass; it stands still while the clock goes back. Back-offs and deadlines end. Parked workloads are
        tried again if something has changed that may let them fit."""
        before_ms, self.now_ms = self.now_ms, max(self.now_ms, now_ms)
        cluster = self.cluster
        cluster.now_ms = cluster.claims.now_ms = self.now_ms
        for number in cluster.shapes.drain_forgotten():
            self.score_cache.forget(number)
            cluster.kubelets.forget(number)
        self.shares.advance(self.now_ms)
        if self.now_ms - self._renewed_ms >= _RENEWED_MS:
            self._renewed_ms = self.now_ms
            self.queue_order.renew()
        self._end_back_offs(before_ms)
        if self.moves.rooms:
            self.moves.advance(self.now_ms)
        for workload in self.workloads.lives.overdue(GangState.STARTING, self.now_ms):
            # What failed before its first pods were bound counts no more.
            self.equivalence.forget(workload)
            self._push(workload)
        for one in self.reservations:
            if any(before_ms < due_ms <= self.now_ms for due_ms in (one.expected.start_ms, one.deadline_ms)):
                self._push(one.workload)
        if any(self.equivalence.sought.values()) and self.now_ms >= self.equivalence.again_ms:
            cluster.changes.announce(ClusterChange.VICTIMS)
        if passed := self.shares.attained.turned(before_ms, self.now_ms):
            self._reorder(passed)
        if self._divided() and self.now_ms - self._fair_share_ms >= _FAIR_SHARE_MS:
            self._fair_share_ms = self.now_ms
            if self.shares.fair_share.drifted():
                cluster.changes.announce(ClusterChange.FAIR_SHARE)
        if cluster.changes:
            self._wakes.update(cluster.changes.take())
            self.equivalence.clear()
            self.precedences.clear()
            self.queue.wake()

    def _end_back_offs(self, before_ms: int) -> None:
        cluster = self.cluster
        if any(before_ms < rejection.until_ms <= self.now_ms for rejection in cluster.rejections):
            cluster.changes.announce(ClusterChange.BACK_OFF)
        for uid in [uid for uid, nodes in cluster.avoided.items() if min(nodes.values()) <= self.now_ms]:
            left = {node: until for node, until in cluster.avoided[uid].items() if until > self.now_ms}
            cluster.avoided[uid] = left
            if not left:
                del cluster.avoided[uid]
            cluster.changes.announce(ClusterChange.BACK_OFF)

    def _reorder(self, queues: Collection[str]) -> None:
        """Running jobs of these queues have reached another level of service: waiting ones may come before them."""
        moved = [workload for workload in self.queue.workloads() if self.queue_order.line(workload)[0] in queues]
        for workload in moved:
            self.touch(workload)
        if moved:
            self.cluster.changes.announce(ClusterChange.QUEUE)

    def drain_wakes(self) -> Counter[ClusterChange]:
        """How many changes of each kind, since the last call, led to a new try of the parked workloads."""
        wakes, self._wakes = self._wakes, Counter()
        return wakes

    def begin_step(self) -> None:
        """Reset what counts for one step: the searches, and the pods that run when it begins."""
        self.steps += 1
        self.searches = 0
        self.planner.begin_step()

    def postpone(self, workload: str) -> None:
        """Try the workload in the next step, since this one has no time for it."""
        self._postponed.append(workload)

    def resume(self) -> None:
        """The step is over."""
        self.queue.wake(self._postponed)
        self._postponed.clear()

    def touch(self, workload: str) -> None:
        """Something about the workload changed: try it in its turn, or forget it where it is no workload any more or
        nothing of it is pending."""
        self.equivalence.forget(workload)
        is_workload = workload.startswith(LONE) or self.workloads.top(workload) == workload
        if is_workload and self.workloads.waits(workload):
            self._push(workload)
        else:
            self.queue.forget(workload)
            self.reservations.release(workload)

    def _push(self, workload: str) -> None:
        self.queue.push(workload, self.rank(workload), self.queue_order.line(workload))

    def sync(self, pod: Pod) -> None:
        """Count the pod, as it is now, for its queue."""
        self.shares.sync(pod)
        self.queue_order.counted((pod,))

    def standings(self, now_ms: int) -> list[QueueStanding]:
        """The status of all queues, each before those below it."""
        heads, counts = self.queue.heads()
        waiting = {}
        with self.queue_order.looked_at() as order:
            for queue, jobs in order.below(counts).items():
                line = order.first_in(queue, heads)
                waiting[queue] = (heads[line[0]][line] if line is not None else "", jobs)
        return self.shares.standings(now_ms, waiting)

    def rank(self, workload: str) -> Rank:
        """Priority and age of a workload: the gang's where it has them, else its highest pod's and its oldest pod's."""
        gang = self.workloads.gangs.get(workload)
        created_ms = gang.created_ms if gang is not None else 0
        if not created_ms:
            created_ms = self.workloads.created_ms(workload)
        priority, lowness = self.precedence(workload)
        return Rank(priority, -lowness, created_ms)

    def precedence(self, workload: str) -> Precedence:
        """Priority, the gang's where it has one, else its highest pod's, and the level of its job, negative."""
        gang, first = self.workloads.gangs.get(workload), self.workloads.first(workload)
        priority = gang.priority if gang is not None else None
        if priority is None:
            priority = self.workloads.priority(workload)
        return priority, -self.shares.level(first) if first is not None else 0

    def _put_pod(self, event: ev.PodChanged) -> None:
        pod, cluster = event.pod, self.cluster
        old = self.workloads.pods.get(pod.uid)
        if old == pod:
            return
        if old is None and pod.managed:
            cluster.mix.see(pod)
        if old is None or old.request != pod.request:
            if old is not None:
                cluster.unplace_if_bound(old)
                self._release(old)
            cluster.shapes.retain(pod.request)
            if pod.managed:
                cluster.peers.retain(pod.request, cluster.placed())
        if pod.device_claims and (old is None or old.device_claims != pod.device_claims):
            if old is not None:
                cluster.claims.forget(old)
            cluster.claims.know(pod)
        self.workloads.put_pod(pod)
        if pod.node:
            self._hold(pod)
        nominated = pod.nominated_node and not pod.node and pod.uid not in cluster.placements
        if nominated and not (pod.managed and self.workloads.workload_of(pod) in self.reservations.by_workload):
            cluster.nominated[pod.uid] = pod
        elif cluster.nominated.pop(pod.uid, None) is not None:
            cluster.changes.announce(ClusterChange.NOMINATION)
        self.sync(pod)
        if pod.managed:
            workload = self.workloads.workload_of(pod)
            if old is not None and old.gang != pod.gang:
                self.touch(self.workloads.workload_of(old))
            if pod.gang and pod.node:
                self.workloads.note_start(workload)
            if pod.gang:
                self.broken.look(workload, self.now_ms)
            if not pod.node or (old is not None and startable(old)):
                self.touch(workload)

    def _release(self, pod: Pod) -> None:
        """Forget the request of a pod that is gone, unless other pods have the same."""
        if pod.managed:
            self.cluster.peers.release(pod.request)
        self.cluster.shapes.release(pod.request)

    def _hold(self, pod: Pod) -> None:
        """A bound pod holds resources on its node, whatever was decided for it."""
        cluster = self.cluster
        slot = cluster.nodes.slot_of(pod.node)
        placement = cluster.placements.get(pod.uid)
        if (
            placement is None
            or placement.slot != slot
            or placement.shape.request != cluster.shapes.without(pod.request, pod.by_claim).request
        ):
            picks = placement.picks if placement is not None else ()
            cluster.unplace(pod.uid)
            if placement is not None:
                cluster.leave(placement.slot)
            cluster.seat(pod, slot, picks)
            return
        contradicts = placement.contradicts(pod)
        if _seen_alike(placement.pod, pod):
            placement.pod = pod
        else:
            cluster.recount(placement, pod)
        if contradicts:
            cluster.unsettled[slot] = None

    def _remove_pod(self, event: ev.PodRemoved) -> None:
        cluster = self.cluster
        pod = self.workloads.pods.get(event.uid)
        if pod is None:
            return
        self.broken.ended(event.gang or pod.gang, event.succeeded, event.failed)
        if event.ended_ms:
            self.shares.ended(event.uid, event.ended_ms)
        if event.succeeded and pod.bound_ms:
            ran_ms = max(0, (event.ended_ms or self.now_ms) - pod.bound_ms)
            self.run_times.learn(pod.work.family, self.shares.queue_of(pod), ran_ms)
        self.workloads.remove_pod(event.uid)
        placement = cluster.placements.get(event.uid)
        cluster.unplace(event.uid)
        if placement is not None:
            cluster.mix.end(placement)
            cluster.leave(placement.slot)
        self._release(pod)
        cluster.claims.forget(pod)
        cluster.avoided.pop(event.uid, None)
        if cluster.nominated.pop(event.uid, None) is not None:
            cluster.changes.announce(ClusterChange.NOMINATION)
        self.sync(pod)
        workload = self.workloads.workload_of(pod)
        if pod.gang:
            self.workloads.note_start(workload)
            self.broken.look(workload, self.now_ms)
        self.touch(workload)

    def _put_gang(self, event: ev.GangChanged) -> None:
        before = self.workloads.top(event.gang.id)
        if self.workloads.put_gang(event.gang):
            workload = self.workloads.top(event.gang.id)
            # A gang may come after its pods, some of them bound.
            self.workloads.note_start(workload)
            self.broken.look(workload, self.now_ms)
            for touched in dict.fromkeys((before, workload)):
                self.touch(touched)

    def _remove_gang(self, event: ev.GangRemoved) -> None:
        workload = self.workloads.top(event.id)
        self.workloads.remove_gang(event.id)
        for gang_id in dict.fromkeys((workload, event.id)):
            self.touch(gang_id)

    def _bind_failed(self, event: ev.BindFailed) -> None:
        pod = self.workloads.pods.get(event.uid)
        if pod is None or pod.node:
            return
        placement = self.cluster.placements.get(event.uid)
        self.cluster.unplace(event.uid)
        if placement is not None:
            self.cluster.leave(placement.slot)
        self.cluster.avoided.setdefault(event.uid, {})[event.node] = event.retry_at_ms
        self.sync(pod)
        self.touch(self.workloads.workload_of(pod))

    def _put_queue(self, event: ev.QueueChanged) -> None:
        old = self.shares.tree.written.get(event.queue.name)
        self.shares.put_queue(event.queue)
        if old is None or replace(old, usage=None) != replace(event.queue, usage=None):
            self._queues_changed()

    def _remove_queue(self, event: ev.QueueRemoved) -> None:
        if event.name in self.shares.tree.written:
            self.shares.remove_queue(event.name)
            self._queues_changed()

    def _queues_changed(self) -> None:
        """All workloads may wait elsewhere in the order now, and may fit."""
        self.queue_order.renew()
        for workload in self.queue.workloads():
            self.touch(workload)
        self.cluster.changes.announce(ClusterChange.QUEUE)

    def _remove_node(self, event: ev.NodeRemoved) -> None:
        slot = self.cluster.nodes.slots.get(event.name)
        self.cluster.remove_node(event.name)
        if any(slot in one.slots for one in self.reservations):
            self.cluster.changes.announce(ClusterChange.RESERVATION)

    def _put_budget(self, event: ev.BudgetChanged) -> None:
        old = self.budgets.get(event.budget.key)
        self.budgets[event.budget.key] = event.budget
        if old is None or event.budget.allowed > old.allowed:
            self.cluster.changes.announce(ClusterChange.BUDGET)

    def _put_namespace(self, event: ev.NamespaceChanged) -> None:
        cluster, name = self.cluster, event.namespace.name
        before = cluster.peers.labels_of(name)
        cluster.peers.set_namespace(event.namespace, cluster.placed())
        now = cluster.peers.labels_of(name)
        if now == before:
            return
        # Which queue its pods are in, and which ones they may use, may have changed.
        self.shares.count_again()
        if now.get(QUEUE_LABEL) != before.get(QUEUE_LABEL):
            self._queues_changed()
        cluster.changes.announce(ClusterChange.NAMESPACE)

    def _put_claim(self, event: ev.ClaimChanged) -> None:
        if self.cluster.claims.put_claim(event.claim):
            self.cluster.changes.announce(ClusterChange.CLAIM)
            self.shares.claim_changed(event.claim.key, event.claim.owner_pod)

    def _remove_claim(self, event: ev.ClaimRemoved) -> None:
        if self.cluster.claims.remove_claim(event.key):
            self.cluster.changes.announce(ClusterChange.CLAIM)
        self.shares.claim_changed(event.key)

    def _remove_namespace(self, event: ev.NamespaceRemoved) -> None:
        if self.cluster.peers.forget_namespace(event.name, self.cluster.placed()):
            self.cluster.changes.announce(ClusterChange.NAMESPACE)


def _seen_alike(old: Pod, new: Pod) -> bool:
    """Whether the two are the same to other pods and to volumes."""
    return old.deleting == new.deleting and old.labels == new.labels and old.claims == new.claims


Handler = Callable[[State, Any], object]


def _announcing(change: ClusterChange, handler: Handler) -> Handler:
    """A handler whose event always changes something, or that returns whether it did."""

    def handle(state: State, event: ev.Event) -> None:
        if handler(state, event) is not False:
            state.cluster.changes.announce(change)

    return handle


_VOLUME, _DEVICES = ClusterChange.VOLUME, ClusterChange.DEVICES
_HANDLERS: dict[type, Handler] = {
    ev.NodeChanged: lambda state, event: state.cluster.put_node(event.node),
    ev.NodeRemoved: State._remove_node,
    ev.PodChanged: State._put_pod,
    ev.PodRemoved: State._remove_pod,
    ev.GangChanged: State._put_gang,
    ev.GangRemoved: State._remove_gang,
    ev.NamespaceChanged: State._put_namespace,
    ev.NamespaceRemoved: State._remove_namespace,
    ev.VolumeClaimChanged: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.put_claim(event.claim)),
    ev.VolumeClaimRemoved: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.claims.pop(event.key, None)),
    ev.VolumeChanged: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.put_volume(event.volume)),
    ev.VolumeRemoved: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.volumes.pop(event.name, None)),
    ev.StorageClassChanged: _announcing(
        _VOLUME, lambda state, event: state.cluster.volumes.put_class(event.storage_class)
    ),
    ev.StorageClassRemoved: _announcing(
        _VOLUME, lambda state, event: state.cluster.volumes.classes.pop(event.name, None)
    ),
    ev.SliceChanged: _announcing(_DEVICES, lambda state, event: state.cluster.claims.put_slice(event.slice)),
    ev.SliceRemoved: _announcing(_DEVICES, lambda state, event: state.cluster.claims.remove_slice(event.name)),
    ev.DeviceClassChanged: _announcing(
        _DEVICES, lambda state, event: state.cluster.claims.put_class(event.device_class)
    ),
    ev.DeviceClassRemoved: _announcing(_DEVICES, lambda state, event: state.cluster.claims.remove_class(event.name)),
    ev.ClaimChanged: State._put_claim,
    ev.ClaimRemoved: State._remove_claim,
    ev.QueueChanged: State._put_queue,
    ev.QueueRemoved: State._remove_queue,
    ev.BudgetChanged: State._put_budget,
    ev.BudgetRemoved: _announcing(ClusterChange.BUDGET, lambda state, event: state.budgets.pop(event.key, None)),
    ev.EvictionFailed: lambda state, event: state.reservations.eviction_failed(event.uid, event.message),
    ev.BindFailed: State._bind_failed,
    ev.PodRejected: lambda state, event: state.cluster.rejections.add(
        event.owner, event.node, event.reason, state.now_ms
    ),
}
