# SPDX-License-Identifier: Apache-2.0
"""The state of the core between steps, and what changes in it with time. How events change it is in `event_handlers`.

Rules: a pod that was decided and is not seen bound yet keeps its place ("assumed") until it is seen bound, its bind
failed, or it is gone. Everything here can be rebuilt from the API server's objects: a restart loses no pod and
allocates nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from dovetail.core.bargaining.leases import Leases
from dovetail.core.bargaining.requests import Requests
from dovetail.core.cluster import Cluster
from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.headroom.inputs import Sources
from dovetail.core.headroom.lending import Lending
from dovetail.core.headroom.table import HeadroomTable
from dovetail.core.model import Pod
from dovetail.core.pipeline.equivalence import EquivalenceCache
from dovetail.core.pipeline.queue import SchedulingQueue
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.policy import Policy
from dovetail.core.preemption.drains import DrainsUnderWay
from dovetail.core.preemption.moves import MovesUnderWay
from dovetail.core.queues.eviction_counts import EvictionCounts
from dovetail.core.queues.queue_order import QueueOrder
from dovetail.core.queues.run_times import RunTimes
from dovetail.core.queues.shares import Shares
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import Budget
from dovetail.core.reservations.expected_ends import ExpectedEnds
from dovetail.core.reservations.planner import ReservationPlanner
from dovetail.core.reservations.pledges import Pledges
from dovetail.core.reservations.precedence import ReservationPrecedence
from dovetail.core.reservations.table import Reservations
from dovetail.core.workloads.broken import BrokenGangs
from dovetail.core.workloads.index import LONE, Precedence, Rank, WorkloadIndex
from dovetail.core.workloads.lifecycle import GangState

_RENEWED_MS = 1000
"""How often queues are compared again although nothing happened: what they used changes with time."""
_FAIR_SHARE_MS = 60_000
"""How often what is due to the queues is worked out again, while workloads wait."""


class State:
    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy = policy or Policy()
        self.cluster = cluster = Cluster(
            policy.scoring, policy.fabric, (policy.quarantine_milli, policy.quarantine_nodes)
        )
        self.score_cache = ScoreCache(cluster, policy.scoring)
        self.workloads = WorkloadIndex(cluster)
        cluster.spares.top = self.workloads.top
        self.shares = Shares(cluster, self.workloads, policy)
        self.requests = Requests(self.shares.pod_queues)
        self.queue_order = QueueOrder(self.shares, self.workloads, self.requests)
        self.queue = SchedulingQueue(self.queue_order)
        self.equivalence = EquivalenceCache()
        self.run_times = RunTimes()
        self.leases = Leases()
        self.lending = Lending(self.shares, self.leases)
        self.reservations = Reservations(cluster, self.workloads, self.equivalence, policy.eviction_deadline_ms)
        self.headrooms = HeadroomTable(Sources(cluster, self.workloads, self.reservations, self.leases))
        self.pledges = Pledges(self.reservations, cluster, self.workloads, self.shares)
        self.expected_ends = ExpectedEnds(cluster, self.shares, self.run_times, self.leases)
        cluster.maintenances.run_ms = self.expected_ends.run_ms
        self.planner = ReservationPlanner(
            self.reservations, cluster, self.score_cache, self.expected_ends, policy.search_limit
        )
        self.precedences = ReservationPrecedence(
            self.reservations, cluster, self.score_cache, self.shares, self.queue_order, policy.reserve
        )
        self.budgets: dict[str, Budget] = {}
        self.eviction_counts = EvictionCounts()
        self.moves = MovesUnderWay(cluster, self.workloads)
        self.drains = DrainsUnderWay(cluster, self.workloads, self.shares)
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
        return bool(self.queue) or bool(self.cluster.changes) or bool(self.requests) or bool(self.leases)

    @property
    def renewals_ms(self) -> tuple[int, int]:
        """When queues were compared again, and what is due to them was worked out again, as time passes."""
        return self._renewed_ms, self._fair_share_ms

    @renewals_ms.setter
    def renewals_ms(self, value: tuple[int, int]) -> None:
        self._renewed_ms, self._fair_share_ms = value

    def promised_slots(self) -> frozenset[int]:
        """The nodes that waiting pods are promised: they are nominated there, or a reservation has them. Only asked
        where spares are held."""
        cluster = self.cluster
        if not cluster.spares.rules:
            return frozenset()
        slots = cluster.nodes.slots
        nominated = [slots[pod.nominated_node] for pod in cluster.nominated.values() if pod.nominated_node in slots]
        held = self.reservations.held_slots()
        return held.union(nominated) if nominated else held

    def queues_changed(self) -> None:
        """All workloads may wait elsewhere in the order now, and may fit."""
        self.queue_order.renew()
        self.headrooms.unsettle()
        for workload in self.queue.workloads():
            self.touch(workload)
        self.cluster.changes.announce(ClusterChange.QUEUE)

    def next_wake_ms(self) -> int | None:
        """When a step is due even if nothing happens: a back-off or a deadline ends."""
        times = [until for nodes in self.cluster.avoided.values() for until in nodes.values()]
        times += self.workloads.lives.due_ms.values()
        times += [r.until_ms for r in self.cluster.rejections if self.now_ms < r.until_ms < FOR_EVER_MS]
        due_ms = (
            self.reservations.next_ms(),
            self.moves.next_ms(),
            self.requests.next_ms(),
            self.leases.next_ms(),
            self.drains.next_ms(),
            self.shares.budgets.next_ms,
            self.shares.calendars.next_ms,
            self.headrooms.next_ms(),
        )
        times += [at_ms for at_ms in due_ms if at_ms is not None]
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
        if self.shares.follow_calendars():
            self.queues_changed()
        if self.shares.budgets.settle():
            self.shares.fair_share.changed()
            self.queues_changed()
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
            self.headrooms.changed = True
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
        moved = [workload for workload in self.queue.workloads() if self.queue_order.queue_user(workload)[0] in queues]
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
        self.lending.renew(self.budgets.values())

    def postpone(self, workload: str) -> None:
        """Try the workload in the next step, since this one has no time for it."""
        self._postponed.append(workload)

    def resume(self) -> None:
        """The step is over. What was granted or withdrawn in the meantime waits no more."""
        self.queue.wake([workload for workload in self._postponed if self.queue.parked(workload)])
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
        self.queue.push(workload, self.rank(workload), self.queue_order.queue_user(workload))

    def sync(self, pod: Pod) -> None:
        """Count the pod, as it is now, for its queue."""
        self.shares.sync(pod)
        self.queue_order.counted((pod,))

    def queue_snapshots(self, now_ms: int) -> list[QueueSnapshot]:
        """The status of all queues, each before those below it."""
        heads, counts = self.queue.heads()
        waiting = {}
        with self.queue_order.read_only() as order:
            for queue, jobs in order.below(counts).items():
                queue_user = order.first_in(queue, heads)
                waiting[queue] = (heads[queue_user[0]][queue_user] if queue_user is not None else "", jobs)
        return self.shares.queue_snapshots(now_ms, waiting)

    def rank(self, workload: str) -> Rank:
        """Priority and age of a workload: the gang's where it has them, else its highest pod's and its oldest pod's."""
        gang = self.workloads.gangs.get(workload)
        created_ms = gang.created_ms if gang is not None else 0
        if not created_ms:
            created_ms = self.workloads.created_ms(workload)
        priority, lowness = self.precedence(workload)
        return priority, -lowness, created_ms

    def precedence(self, workload: str) -> Precedence:
        """Priority, the gang's where it has one, else its highest pod's, and the level of its job, negative."""
        gang, first = self.workloads.gangs.get(workload), self.workloads.first(workload)
        priority = gang.priority if gang is not None else None
        if priority is None:
            priority = self.workloads.priority(workload)
        return priority, -self.shares.level(first) if first is not None else 0
