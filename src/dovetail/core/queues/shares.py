# SPDX-License-Identifier: Apache-2.0
"""What each queue holds, waits for and is due.

Rules: a placed pod of ours counts for its queue and for all above it, from the moment when it is placed until it is
gone, and is charged for that (`rates`). What is due is divided level by level, by what everybody holds and waits for;
pods of others are taken off what there is first. What follows from that for a queue is in `quota`.
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
from dovetail.core.queues.accounts import Accounts, Line
from dovetail.core.queues.attained import Attained
from dovetail.core.queues.fair_share import FairShare
from dovetail.core.queues.pending import PendingPods
from dovetail.core.queues.quota import Quota
from dovetail.core.queues.rates import ChargeRates
from dovetail.core.queues.status import QueueStanding, Standings
from dovetail.core.queues.totals import QueueTotals
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DEFAULT_QUEUE, QUEUE_LABEL, Amounts, History, Queue
from dovetail.core.workloads.index import Precedence, WorkloadIndex, startable


class _Held(Struct):
    """Pods that are counted alike: by queue, user, priority, amounts, and whether they must not be preempted. `rate` is
    what each is charged."""

    kind: tuple[str, str, int, Amounts, bool]
    rate: int


class Shares:
    def __init__(self, cluster: Cluster, workload_index: WorkloadIndex, policy: Policy) -> None:
        self._cluster = cluster
        self._workload_index = workload_index
        self.tree = Tree()
        self.accounts = Accounts(self.tree)
        self.attained = Attained()
        self.accounting = Accounting(cluster)
        self.rates = ChargeRates(policy.model_milli)
        self.totals = QueueTotals(self.tree)
        self.pending_pods = PendingPods(cluster, self.accounting, self.totals)
        self.fair_share = FairShare(
            self.tree, self.accounts, self.accounting, self.rates, self.totals, self.pending_pods, policy.history_milli
        )
        self.waiting: Callable[[], Mapping[str, tuple[str, int]]] = dict
        """The first waiting workload of each queue and of those below it, and how many wait."""
        self.pledged: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        """What queues will hold more, or less, once all decided evictions are done."""
        self.quota = Quota(self.tree, self.accounts, self.rates, self.totals, self.fair_share, lambda: self.pledged())
        self._standings = Standings(
            self.tree, self.accounts, self.attained, self.accounting, self.rates, self.totals, self.pending_pods,
            self.fair_share,
        )  # fmt: skip
        self._held: dict[str, _Held] = {}
        self._alike: dict[tuple[int, Amounts], _Held] = {}
        """What pods of a kind (`WorkloadIndex.kinds`) are counted as that have these amounts, since queues last
        changed."""
        self._rights: dict[tuple[str, str], bool] = {}
        """Which queues (and namespaces) it was asked about, since queues or namespaces last changed."""

    @property
    def now_ms(self) -> int:
        return self.accounts.now_ms

    # What is told.

    def put_queue(self, queue: Queue) -> None:
        """Insert or replace. Its usage counts when it is first told; one that was made again is another one."""
        self._rights.clear()
        if (known := self.tree.written.get(queue.name)) is not None and known.uid and known.uid != queue.uid:
            self.remove_queue(queue.name)
        old, new = self.tree.written.get(queue.name), queue.name not in self.accounts.told_ms
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
        self.fair_share.changed()
        self.quota.changed()
        self._alike.clear()

    def remove_queue(self, name: str) -> None:
        """Its pods run on, and count for `default`, no more for those above it."""
        self._recount(lambda: self._end(name))

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

    def count_again(self) -> None:
        """Which queues pods are in may have changed."""
        self._recount()

    def _recount(self, change: Callable[[], object] = lambda: None) -> None:
        """Count every pod anew after a change to what queues there are."""
        uids = [*self._held, *self.pending_pods.uids()]
        for uid in list(self._held):
            self._release(uid, self._held[uid])
        self.pending_pods.remove(self.pending_pods.uids())
        self.pending_pods.enter()
        change()
        self._rights.clear()
        for uid in uids:
            self._sync(uid, late=False)
        self.fair_share.changed()
        self.quota.changed()
        self._alike.clear()

    def sync(self, pod: Pod) -> None:
        """Count the pod as it is now: held, waiting, or gone where the workload_index does not have it."""
        if pod.device_claims:
            self._settle_claims(pod)
        self._sync(pod.uid)

    def claim_changed(self, key: str, owner: str = "") -> None:
        """There is another claim, or it has other devices: count those again that use it, and the pod for which it was
        made."""
        for uid in dict.fromkeys((*self._cluster.claims.users(key), owner)):
            if uid in self._workload_index.pods:
                self._sync(uid, late=False)

    def _settle_claims(self, pod: Pod) -> None:
        """A claim counts for one of its users; count those again whom what happened to this one concerns."""
        counted = self.accounting.counted_for
        for key in pod.device_claims:
            before, now = counted.get(key), self._counts_for(key)
            if now == before:
                continue
            if now:
                counted[key] = now
            else:
                counted.pop(key, None)
            for uid in (before, now):
                if uid and uid != pod.uid and uid in self._workload_index.pods:
                    self._sync(uid, late=False)

    def _counts_for(self, key: str) -> str:
        """The first of the claim's users that is placed, else the first that waits; "" for nobody."""
        users, pods = self._cluster.claims.users(key), self._workload_index.pods
        for uid in users:
            if uid in self._cluster.placements:
                return uid
        return next((uid for uid in users if uid in pods and startable(pods[uid])), "")

    def _sync(self, uid: str, late: bool = True) -> None:
        if self.accounting.behind:
            # First of all: it may count this pod anew, too.
            self._follow_capacity()
        known, placement = self._workload_index.pods.get(uid), self._cluster.placements.get(uid)
        held = self._held.get(uid)
        if known is None or placement is None:
            if held is not None:
                self._release(uid, held)
            self.attained.end(uid, self.now_ms)
            if known is not None and startable(known):
                self.pending_pods.put(known, self.queue_of(known))
            else:
                self.pending_pods.remove([uid])
            return
        kind = self._kind(known, self.accounting.held(placement))
        if held is None or held.kind != kind:
            if held is not None:
                self._release(uid, held)
            new = _Held(kind, self.rates.of(kind[3]))
            self._hold([uid], new)
            if late and held is None:
                self.accounts.charge_late(*kind[:2], new.rate, self._since(uid))
        if not self._attain([uid], self._held[uid]):
            self.attained.forget(uid)
        self.pending_pods.remove([uid])

    def placed(self, placements: Sequence[Placement]) -> None:
        """These pods, which waited, were placed."""
        if self.accounting.behind:
            self._follow_capacity()
        for placement in placements:
            if placement.pod.device_claims:
                self._settle_claims(placement.pod)
        uids, kinds = [placement.pod.uid for placement in placements], self._workload_index.kinds
        alike: dict[tuple[int, Amounts], list[str]] = {}
        some: list[str] = []
        last: tuple[int, Amounts] | None = None
        for uid, amounts in zip(uids, self.accounting.held_by(placements), strict=True):
            if last is None or amounts is not last[1] or kinds[uid] != last[0]:
                last = kinds[uid], amounts
                some = alike.setdefault(last, [])
            some.append(uid)
        for key, some in alike.items():
            held = self._alike.get(key)
            if held is None:
                if len(self._alike) >= 65_536:
                    self._alike.clear()
                kind = self._kind(self._workload_index.pods[some[0]], key[1])
                held = self._alike[key] = _Held(kind, self.rates.of(key[1]))
            self._hold(some, held)
            self._attain(some, held)
        self.pending_pods.remove(uids)

    def _kind(self, pod: Pod, amounts: Amounts) -> tuple[str, str, int, Amounts, bool]:
        """What a placed pod (as it is known now) is counted by."""
        if not pod.managed:
            return "", pod.user, pod.priority, amounts, False
        queue = self.queue_of(pod)
        return queue, pod.user, pod.priority, amounts, not self._preemptible(pod, queue)

    def ended(self, uid: str, ended_ms: int) -> None:
        """The pod, which is counted still, had ended at that time."""
        held = self._held.get(uid)
        if held is not None and 0 < ended_ms < self.now_ms:
            self.accounts.take_back(*held.kind[:2], held.rate, max(ended_ms, self._since(uid)))
            self.attained.end(uid, ended_ms)

    def advance(self, now_ms: int) -> None:
        """Time passes."""
        if now_ms != self.now_ms:
            self.pending_pods.enter()
        self.accounts.advance(now_ms)
        self.attained.tidy()
        self._follow_capacity()

    def _follow_capacity(self) -> None:
        """What pods are charged follows what there is."""
        if self.rates.follow(self.accounting.capacity()):
            self.fair_share.changed()
            self._alike.clear()
            counts = Counter(map(id, self._held.values()))
            for held in {id(one): one for one in self._held.values()}.values():
                rate = self.rates.of(held.kind[3])
                if rate != held.rate:
                    self.accounts.change(*held.kind[:2], counts[id(held)] * (rate - held.rate))
                    held.rate = rate
            for uid in self.attained.uids():
                # While all are counted anew some are not held yet.
                if uid in self._held:
                    self._attain([uid], self._held[uid])
        self.pending_pods.follow_demand()
        moved, self.accounting.moved = self.accounting.moved, []
        for uid in [uid for slot in moved for uid in self._cluster.on_slot.get(slot, ()) if uid in self._held]:
            # The model of the node, or the memory of its GPUs, is another one now.
            self._sync(uid, late=False)

    def _hold(self, uids: Sequence[str], held: _Held) -> None:
        """Enter pods that are alike."""
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
        """Note what the jobs of these pods have, where that counts."""
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
        """Since when a bound pod runs; now for one that is being bound."""
        pod = self._workload_index.pods.get(uid)
        return pod.bound_ms if pod is not None and pod.node and pod.bound_ms else self.now_ms

    # What is asked.

    def queue_of(self, pod: Pod) -> str:
        """The queue that the pod names, else its namespace's, else `default`. Of a pod that waits it may not exist. One
        that is bound counts for `default` where its queue does not exist or, unless it was placed for it, may not be
        used by it."""
        queue = pod.queue
        if not queue:
            labels = self._cluster.peers.labels.get(pod.namespace)
            queue = labels.get(QUEUE_LABEL, DEFAULT_QUEUE) if labels else DEFAULT_QUEUE
        if not pod.node or queue == DEFAULT_QUEUE:
            return queue
        if queue not in self.tree.queues or not (pod.recorded or self._may_use(queue, pod.namespace)):
            return DEFAULT_QUEUE
        return queue

    def _may_use(self, queue: str, namespace: str) -> bool:
        """Whether pods of the namespace may be placed for a queue that exists."""
        known = self._rights.get((queue, namespace))
        if known is None:
            labels = self._cluster.peers.labels_of(namespace)
            path = self.tree.path(queue) if self.tree.leaf(queue) else ()
            known = bool(path) and not [name for name in path if not self.tree.admits(name, namespace, labels)]
            self._rights[queue, namespace] = known
        return known

    def line_of(self, pod: Pod) -> Line:
        """Where the pod waits."""
        queue = self.queue_of(pod)
        record = self.tree.written.get(queue)
        return queue, pod.user if record is not None and record.by_user else ""

    def preemptible(self, pod: Pod) -> bool:
        """Whether the pod may be preempted: it says so itself, or its queue does."""
        return self._preemptible(pod, self.queue_of(pod))

    def _preemptible(self, pod: Pod, queue: str) -> bool:
        preemptible = pod.work.preemptible
        if preemptible is not None:
            return preemptible
        record = self.tree.written.get(queue)
        return record is None or record.preemptible

    def wanted(self, pods: Iterable[Pod]) -> dict[str, int]:
        """What pods that wait will be counted with at least, by the nodes as they were when time was last told."""
        return self.pending_pods.wanted(pods)

    def amounts(self, uid: str) -> Amounts:
        """What a placed pod is counted with."""
        held = self._held.get(uid)
        return held.kind[3] if held is not None else ()

    def rate(self, uid: str) -> int:
        """What a placed pod is charged, in milli-GPU."""
        held = self._held.get(uid)
        return held.rate if held is not None else 0

    def path(self, queue: str) -> tuple[str, ...]:
        """The queue and those above it; nothing where it does not exist."""
        return self.tree.known_path(queue)

    def allocated(self, queue: str) -> Mapping[str, int]:
        """What the queue holds, with those below it."""
        return self.totals.held(queue)

    def pending(self, queue: str) -> Mapping[str, int]:
        """What is waited for in the queue and below it."""
        return self.pending_pods.of(queue)

    def level(self, pod: Pod) -> int:
        """How much the job of the pod had (see `attained`); 0 where its queue does not order its jobs by that."""
        queue = self.queue_of(pod)
        record = self.tree.written.get(queue)
        if record is None or not record.least_served_first:
            return 0
        return self.attained.level(queue, self._workload_index.job_of(pod), self.now_ms)

    def holds_below(self, queue: str, precedence: Precedence) -> bool:
        """Whether there may be pods in the queue that are before nobody of this precedence."""
        priority, lowness = precedence
        lowest = min(self.totals.priorities.get(queue, ()), default=priority)
        return lowest < priority or (lowest == priority and -self.attained.highest(queue, self.now_ms) < lowness)

    def due(self, queue: str) -> Mapping[str, int]:
        """What a queue is due of each class that is divided, by what everybody holds and waits for now."""
        return self.fair_share.of(queue)

    def standings(self, now_ms: int) -> list[QueueStanding]:
        """How all queues stand, each before those below it."""
        return self._standings.at(max(now_ms, self.now_ms), self.waiting())

    def told(self) -> Iterator[Queue]:
        """The queues that were told, in order."""
        return (queue for name, queue in self.tree.written.items() if name in self.accounts.told_ms)

    def histories(self) -> tuple[History, ...]:
        """What every queue has used; `restore` takes it."""
        return tuple(
            replace(one, usage=replace(one.usage, jobs=self.attained.past(one.queue, self.now_ms)))
            for one in self.accounts.histories()
        )

    def restore(self, histories: Iterable[History]) -> None:
        """Go on from what was used; what is charged is what is placed now."""
        histories = list(histories)
        self.accounts.restore(histories)
        for history in histories:
            if self.tree.written[history.queue].least_served_first:
                self.attained.restore(history.queue, history.usage.jobs, history.usage.as_of_ms)
        self.fair_share.changed()


def _counted_by(queue: Queue) -> tuple[object, ...]:
    """On what it depends how pods are counted."""
    return queue.parent, queue.by_user, queue.least_served_first, queue.namespaces, queue.namespace_selector
