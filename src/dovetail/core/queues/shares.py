# SPDX-License-Identifier: Apache-2.0
"""What each queue holds, waits for and is due.

Rules: a placed pod that Dovetail schedules counts for its queue and for all queues above it, from the moment when it is
placed until it is gone, and is charged for that time (`rates`). What queues are due is divided level by level, by what
they hold and request; what other pods hold is taken off the capacity first. `quota` derives the rights of a queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement
from dovetail.core.model import Pod
from dovetail.core.policy import Policy
from dovetail.core.queues.accounting import Accounting
from dovetail.core.queues.accounts import Accounts
from dovetail.core.queues.attained import Attained
from dovetail.core.queues.budgets import QueueBudgets
from dovetail.core.queues.calendars import QueueCalendars, at_time
from dovetail.core.queues.claim_users import ClaimUsers
from dovetail.core.queues.fair_share import FairShare
from dovetail.core.queues.pending import PendingPods
from dovetail.core.queues.pod_queues import PodQueues
from dovetail.core.queues.quota import Quota
from dovetail.core.queues.rates import ChargeRates
from dovetail.core.queues.status import QueueSnapshot, QueueSnapshots
from dovetail.core.queues.totals import QueueTotals
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import Amounts, History, Queue
from dovetail.core.workloads.index import Precedence, WorkloadIndex, startable


class _Held(Struct):
    """Pods that count the same: by queue, user, priority, amounts, and whether they must not be preempted. Each is
    charged `rate`; nothing if it is not `charged`."""

    kind: tuple[str, str, int, Amounts, bool]
    rate: int
    charged: bool


class Shares:
    def __init__(self, cluster: Cluster, workload_index: WorkloadIndex, policy: Policy) -> None:
        self._cluster = cluster
        self._workload_index = workload_index
        self.tree = Tree()
        self.pod_queues = PodQueues(cluster.peers, self.tree)
        self.accounts = Accounts(self.tree)
        self.budgets = QueueBudgets(self.tree, self.accounts)
        self.calendars = QueueCalendars(self.tree)
        self.attained = Attained()
        self.accounting = Accounting(cluster)
        self._claim_users = ClaimUsers(cluster, workload_index, self.accounting.counted_for)
        self.rates = ChargeRates(policy.model_milli)
        self.totals = QueueTotals(self.tree)
        self.pending_pods = PendingPods(cluster, self.accounting, self.totals)
        self.fair_share = FairShare(
            self.tree, self.accounts, self.accounting, self.rates, self.totals, self.pending_pods, policy.history_milli
        )
        self.quota = Quota(self.tree, self.accounts, self.rates, self.totals, self.fair_share)
        self._queue_snapshots = QueueSnapshots(
            self.tree, self.accounts, self.attained, self.accounting, self.rates, self.totals, self.pending_pods,
            self.fair_share,
        )  # fmt: skip
        self.since_ms: dict[str, int] = {}
        """By pod that is bound within a lease since when its devices are charged as its own: the start of the lease, or
        its end once it is over."""
        self._held: dict[str, _Held] = {}
        self._by_kind: dict[tuple[int, Amounts], _Held] = {}
        """By the pods' kind (`WorkloadIndex.kinds`) and amounts, since the last change of queues."""

    @property
    def now_ms(self) -> int:
        return self.accounts.now_ms

    # Changes.

    def put_queue(self, queue: Queue) -> None:
        """Insert or replace a queue. Its recorded usage is read the first time only. A queue that was deleted and made
        again is a new one."""
        self.pod_queues.forget_rights()
        queue = at_time(queue, self.now_ms)
        if (known := self.tree.written.get(queue.name)) is not None and known.uid and known.uid != queue.uid:
            self.remove_queue(queue.name)
        old, new = self.tree.written.get(queue.name), queue.name not in self.accounts.recorded_until_ms
        if new:
            self._recount(lambda: self._begin(queue))
            for uid, held in self._held.items():
                self.accounts.charge_late(*held.kind[:2], held.rate, self._since(uid), queue.name)
        elif old is None or _counted_by(old) != _counted_by(queue):
            self._recount(lambda: self._replace(queue))
        else:
            self.tree.put(queue)
        if old is not None and not new and old.parent != queue.parent:
            self.accounts.moved(queue.name)
        if old is not None and not new and old.half_life_ms != queue.half_life_ms > 0:
            self.accounts.set_half_life(queue)
        if (old.calendar if old is not None else None) != queue.calendar:
            self.calendars.look(queue.name, self.now_ms)
        self.fair_share.changed()
        self.quota.changed()
        self._by_kind.clear()

    def remove_queue(self, name: str) -> None:
        """Remove a queue. Its pods run on, and count for `default`, and no more for the queues above it."""
        self._recount(lambda: self._end(name))
        self.calendars.look(name, self.now_ms)

    def _begin(self, queue: Queue) -> None:
        self.tree.put(queue)
        self.accounts.begin(queue)
        if queue.least_served_first and queue.usage is not None:
            self.attained.restore(queue.name, queue.usage.jobs, min(queue.usage.as_of_ms, self.now_ms))

    def _replace(self, queue: Queue) -> None:
        self.tree.put(queue)
        if not queue.least_served_first:
            self.attained.drop(queue.name)

    def _end(self, name: str) -> None:
        self.tree.remove(name)
        self.accounts.end(name)
        self.attained.drop(name)

    def follow_calendars(self) -> bool:
        """Give the queues the guarantees that they have by now. Returns whether any of these are others than before."""
        due = self.calendars.due(self.now_ms)
        for queue in due:
            self.put_queue(queue)
        return bool(due)

    def count_again(self) -> None:
        """Count all pods again: their queues may have changed."""
        self._recount()

    def _recount(self, change: Callable[[], object] = lambda: None) -> None:
        """Count every pod again after a change of the queues."""
        uids = [*self._held, *self.pending_pods.uids()]
        for uid in list(self._held):
            self._release(uid, self._held[uid])
        self.pending_pods.remove(self.pending_pods.uids())
        self.pending_pods.enter()
        change()
        self.pod_queues.forget_rights()
        for uid in uids:
            self._sync(uid, late=False)
        self.fair_share.changed()
        self.quota.changed()
        self._by_kind.clear()

    def sync(self, pod: Pod) -> None:
        """Count the pod as it is now: placed, waiting, or gone where the workload index does not have it."""
        if pod.device_claims:
            self._count_users(pod)
        self._sync(pod.uid)

    def claim_changed(self, key: str, owner: str = "") -> None:
        """A claim is new or has other devices: count its users again, and the pod for which it was made."""
        for uid in dict.fromkeys((*self._cluster.claims.users(key), owner)):
            if uid in self._workload_index.pods:
                self._sync(uid, late=False)

    def _count_users(self, pod: Pod) -> None:
        """Count those users of the pod's claims again for which a change of this pod matters."""
        for uid in self._claim_users.moved(pod):
            self._sync(uid, late=False)

    def _sync(self, uid: str, late: bool = True) -> None:
        if self.accounting.behind:
            # Before all else, since it may count this pod again.
            self._follow_capacity()
        known, placement = self._workload_index.pods.get(uid), self._cluster.placements.get(uid)
        held = self._held.get(uid)
        if known is None or placement is None:
            if held is not None:
                self._release(uid, held)
            self.attained.end(uid, self.now_ms)
            if known is not None and startable(known):
                self.pending_pods.put(known, self.pod_queues.of(known))
            else:
                self.pending_pods.remove([uid])
            return
        kind = self._kind(known, self.accounting.held(placement))
        if held is None or held.kind != kind or held.charged is known.offered:
            if held is not None:
                self._release(uid, held)
            new = self._new(kind, known)
            self._hold([uid], new)
            if late and held is None:
                self.accounts.charge_late(*kind[:2], new.rate, self._since(uid))
        if not self._attain([uid], self._held[uid]):
            self.attained.forget(uid)
        self.pending_pods.remove([uid])

    def placed(self, placements: Sequence[Placement]) -> None:
        """Count these pods, which waited, as placed."""
        if self.accounting.behind:
            self._follow_capacity()
        for placement in placements:
            if placement.pod.device_claims:
                self._count_users(placement.pod)
        uids, kinds = [placement.pod.uid for placement in placements], self._workload_index.kinds
        by_kind: dict[tuple[int, Amounts], list[str]] = {}
        some: list[str] = []
        last: tuple[int, Amounts] | None = None
        for uid, amounts in zip(uids, self.accounting.held_by(placements), strict=True):
            if last is None or amounts is not last[1] or kinds[uid] != last[0]:
                last = kinds[uid], amounts
                some = by_kind.setdefault(last, [])
            some.append(uid)
        for key, some in by_kind.items():
            held = self._by_kind.get(key)
            if held is None:
                if len(self._by_kind) >= 65_536:
                    self._by_kind.clear()
                pod = self._workload_index.pods[some[0]]
                held = self._by_kind[key] = self._new(self._kind(pod, key[1]), pod)
            self._hold(some, held)
            self._attain(some, held)
        self.pending_pods.remove(uids)

    def _kind(self, pod: Pod, amounts: Amounts) -> tuple[str, str, int, Amounts, bool]:
        """All by which a placed pod, as it is now, is counted."""
        if not pod.managed:
            return "", pod.user, pod.priority, amounts, False
        queue = self.pod_queues.of(pod)
        return queue, pod.user, pod.priority, amounts, not self.pod_queues.preemptible_in(pod, queue)

    def _new(self, kind: tuple[str, str, int, Amounts, bool], pod: Pod) -> _Held:
        return _Held(kind, 0 if pod.offered else self.rates.of(kind[3]), not pod.offered)

    def ended(self, uid: str, ended_ms: int) -> None:
        """The pod, which still counts, ended at that time: take back what it was charged since."""
        held = self._held.get(uid)
        if held is not None and 0 < ended_ms < self.now_ms:
            self.accounts.take_back(*held.kind[:2], held.rate, max(ended_ms, self._since(uid)))
            self.attained.end(uid, ended_ms)

    def advance(self, now_ms: int) -> None:
        """Set the time."""
        if now_ms != self.now_ms:
            self.pending_pods.enter()
        self.accounts.advance(now_ms)
        self.attained.tidy(now_ms)
        self._follow_capacity()

    def _follow_capacity(self) -> None:
        """Adjust the rates of the pods to the capacity."""
        if self.rates.follow(self.accounting.capacity()):
            self.fair_share.changed()
            self._by_kind.clear()
            counts = Counter(map(id, self._held.values()))
            for held in {id(one): one for one in self._held.values()}.values():
                rate = self.rates.of(held.kind[3]) if held.charged else 0
                if rate != held.rate:
                    self.accounts.change(*held.kind[:2], counts[id(held)] * (rate - held.rate))
                    held.rate = rate
            for uid in self.attained.uids():
                # During a recount some pods are not held yet.
                if uid in self._held:
                    self._attain([uid], self._held[uid])
        self.pending_pods.follow_demand()
        moved, self.accounting.moved = self.accounting.moved, []
        for uid in [uid for slot in moved for uid in self._cluster.on_slot.get(slot, ()) if uid in self._held]:
            # The GPU model of the node, or the memory of its GPUs, has changed.
            self._sync(uid, late=False)

    def _hold(self, uids: Sequence[str], held: _Held) -> None:
        """Count pods that count the same."""
        for uid in uids:
            self._held[uid] = held
        self._enter(held, len(uids))

    def _release(self, uid: str, held: _Held) -> None:
        del self._held[uid]
        self._enter(held, -1)

    def _enter(self, held: _Held, times: int) -> None:
        queue, user, priority, amounts, fixed = held.kind
        self.totals.hold(queue, priority, amounts, fixed, times)
        if not queue:
            self.fair_share.changed()
            return
        self.accounts.change(queue, user, times * held.rate)

    def _attain(self, uids: Iterable[str], held: _Held) -> bool:
        """Count the service of the jobs of these pods. Returns False where their queue does not order by it."""
        queue = self.tree.written.get(held.kind[0])
        if queue is None or not queue.least_served_first:
            return False
        for uid in uids:
            pod = self._workload_index.pods[uid]
            since_ms = pod.bound_ms if pod.node and pod.bound_ms else self.attained.since_ms(uid)
            since_ms = self.now_ms if since_ms is None else min(since_ms, self.now_ms)
            self.attained.put(uid, held.kind[0], self._workload_index.job_of(pod), held.rate, since_ms)
        return True

    def _since(self, uid: str) -> int:
        """The start of a bound pod; now for a pod that is being bound."""
        if (since_ms := self.since_ms.get(uid)) is not None:
            return since_ms
        pod = self._workload_index.pods.get(uid)
        return pod.bound_ms if pod is not None and pod.node and pod.bound_ms else self.now_ms

    # Queries.

    def wanted(self, pods: Iterable[Pod]) -> dict[str, int]:
        """The amounts that waiting pods will count at least, by the nodes at the last change of the time."""
        return self.pending_pods.wanted(pods)

    def wanted_next(self, workload: str) -> dict[str, int]:
        """As `wanted`, for the fewest pods of a workload that can start next."""
        return self.wanted(self._workload_index.next_pods(workload))

    def amounts(self, uid: str) -> Amounts:
        """The amounts that a placed pod counts; empty for any other pod."""
        held = self._held.get(uid)
        return held.kind[3] if held is not None else ()

    def rate(self, uid: str) -> int:
        """The rate of a placed pod, in milli-GPU; 0 for any other pod."""
        held = self._held.get(uid)
        return held.rate if held is not None else 0

    def path(self, queue: str) -> tuple[str, ...]:
        """The queue and those above it; empty where it does not exist."""
        return self.tree.known_path(queue)

    def allocated(self, queue: str) -> Mapping[str, int]:
        """The holdings of the queue and of those below it."""
        return self.totals.held(queue)

    def pending(self, queue: str) -> Mapping[str, int]:
        """The amounts of the pods that wait in the queue and below it."""
        return self.pending_pods.of(queue)

    def level(self, pod: Pod) -> int:
        """The level of service of the pod's job (see `attained`); 0 where its queue does not order by it."""
        queue = self.pod_queues.of(pod)
        record = self.tree.written.get(queue)
        if record is None or not record.least_served_first:
            return 0
        return self.attained.level(queue, self._workload_index.job_of(pod), self.now_ms)

    def holds_below(self, queue: str, precedence: Precedence) -> bool:
        """Whether the queue may hold pods that come after this precedence."""
        priority, lowness = precedence
        lowest = min(self.totals.priorities.get(queue, ()), default=priority)
        return lowest < priority or (lowest == priority and -self.attained.highest(queue, self.now_ms) < lowness)

    def due(self, queue: str) -> Mapping[str, int]:
        """The fair share of a queue now, by class."""
        return self.fair_share.of(queue)

    def queue_snapshots(self, now_ms: int, waiting: Mapping[str, tuple[str, int]]) -> list[QueueSnapshot]:
        """The status of all queues, each before those below it. waiting: by queue, the first workload that waits in it
        or below it, and the number of those that wait."""
        return self._queue_snapshots.at(max(now_ms, self.now_ms), waiting)

    def read_queues(self) -> Iterator[Queue]:
        """The queues that objects write, in the order in which they were first read."""
        return (queue for name, queue in self.tree.written.items() if name in self.accounts.recorded_until_ms)

    def histories(self) -> tuple[History, ...]:
        """The usage of every queue, as `restore` takes it."""
        return tuple(
            replace(one, usage=replace(one.usage, jobs=self.attained.past(one.queue, self.now_ms)))
            for one in self.accounts.histories()
        )

    def restore(self, histories: Iterable[History]) -> None:
        """Continue from this usage. The present rates stay."""
        histories = list(histories)
        self.accounts.restore(histories)
        for history in histories:
            if self.tree.written[history.queue].least_served_first:
                self.attained.restore(history.queue, history.usage.jobs, history.usage.as_of_ms)
        self.fair_share.changed()


def _counted_by(queue: Queue) -> tuple[object, ...]:
    """The fields of a queue by which its pods are counted."""
    return queue.parent, queue.by_user, queue.least_served_first, queue.namespaces, queue.namespace_selector
