# SPDX-License-Identifier: Apache-2.0
"""What each queue holds, wants, is due and has used.

Rules: a placed pod of ours counts for its queue and for all above it, from the moment when it is placed until it is
gone. It is charged its dominant share: the largest of its parts of the cluster's CPU, memory and GPUs, in milli-GPU of
the cluster (milli-CPU where there are no GPUs). What is due is divided level by level, by what everybody holds and
waits for; pods of others are taken off what there is first. Guarantees and limits always win over history.
Usage that a queue had before it was told, and pods that ran before they were told, are charged for the time that the
queue's record does not know yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dovetail.core.cluster import Cluster
from dovetail.core.model import Pod, Problem
from dovetail.core.policy import Policy
from dovetail.core.roster import Roster, startable
from dovetail.core.sharing.division import Claimant, divide
from dovetail.core.sharing.ledger import Ledger, steady
from dovetail.core.sharing.meter import Meter
from dovetail.core.sharing.records import (
    CPU,
    DEFAULT_QUEUE,
    GPU,
    MEMORY,
    QUEUE_LABEL,
    Amounts,
    Queue,
    Usage,
)
from dovetail.core.sharing.tree import Tree

DIVIDED = {CPU: 1, MEMORY: 1, GPU: 1000}
"""The classes that are divided, with their grains: whole GPUs."""
AHEAD_MS = 300_000
"""How far ahead what a queue holds now is projected where queues are compared (the interval of Kueue's samples)."""
_DIVIDED_AGAIN_MS = 60_000
"""What is due changes with what was used, too, slowly."""
_MILLI = 1000
_MILLION = 1_000_000
_FRACTION_BITS = 40

Line = tuple[str, str]
"""A queue without queues below it, and a user where it tells them apart."""


@dataclass(slots=True)
class _Held:
    """A pod that is counted: `rate` is what it is charged, `fixed` whether it must not be preempted."""

    queue: str
    user: str
    priority: int
    amounts: Amounts
    rate: int
    fixed: bool

    def alike(self, other: _Held) -> bool:
        """Whether the books are the same with either."""
        mine = self.queue, self.user, self.priority, self.amounts, self.fixed
        return mine == (other.queue, other.user, other.priority, other.amounts, other.fixed)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a queue stands. Amounts are by class. `due` is its part of the division now, `borrowed` what it holds beyond
    its guarantee. `share_ppm` is the part of the cluster that it used (decayed), `weight_ppm` its weight among its
    siblings. `credit` is what is due to it by weight less what it used, in milli-GPU times ms. `days` and `users` are
    as in Usage. `warning` is what is wrong with it although it can be used. `head` is the root that is tried first of
    those that wait in it and below it."""

    name: str
    parent: str
    leaf: bool
    allocated: Amounts
    guarantee: Amounts
    limit: Amounts
    due: Amounts
    borrowed: Amounts
    pending: Amounts
    pending_jobs: int
    used: int
    share_ppm: int
    weight_ppm: int
    credit: int
    rate_milli: int
    days: tuple[tuple[int, int], ...]
    users: tuple[tuple[str, int], ...]
    as_of_ms: int
    problem: Problem | None
    warning: str
    head: str


class Shares:
    def __init__(self, cluster: Cluster, roster: Roster, policy: Policy) -> None:
        self.tree = Tree()
        self._cluster = cluster
        self._roster = roster
        self._history_milli = policy.history_milli
        self._model_milli = dict(policy.model_milli)
        self.meter = Meter(cluster)
        self._held: dict[str, _Held] = {}
        self._waiting: dict[str, tuple[str, Amounts]] = {}
        self._allocated: dict[str, dict[str, int]] = {}
        self._fixed: dict[str, dict[str, int]] = {}
        self._pending: dict[str, dict[str, int]] = {}
        self._strangers: dict[str, int] = {}
        self._priorities: dict[str, Counter[int]] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._users: dict[Line, Ledger] = {}
        self._told_ms: dict[str, int] = {}
        """Until when the record of a queue knows its usage: what ran after that is charged when it is told."""
        self._due: dict[str, dict[str, int]] | None = None
        self._due_ms = 0
        self._rated: tuple[int, int, int] = (0, 0, 0)
        self.now_ms = 0
        self.waiting_order: Callable[[], list[tuple[str, str]]] = list
        """Who waits, in order: roots and their queues."""

    # What is told.

    def put_queue(self, queue: Queue) -> None:
        """Insert or replace. Its usage counts when it is first told."""
        old = self.tree.queues.get(queue.name)
        new = queue.name not in self._told_ms
        self.tree.put(queue)
        self._due = None
        if new:
            self._begin(queue)
        elif old is not None and old.half_life_ms != queue.half_life_ms and queue.half_life_ms > 0:
            for ledger in (self._ledger(queue.name), *(self._users[line] for line in self._lines(queue.name))):
                ledger.set_half_life(queue.half_life_ms, self.now_ms)
        if new or old is None or (old.parent, old.by_user, old.preemptible) != (
            queue.parent, queue.by_user, queue.preemptible,
        ):  # fmt: skip
            self.count_again()

    def _begin(self, queue: Queue) -> None:
        usage = queue.usage or Usage(0)
        as_of_ms = min(usage.as_of_ms, self.now_ms)
        self._told_ms[queue.name] = as_of_ms
        half_life_ms = max(1, queue.half_life_ms)
        if queue.usage is None:
            used = self._as_siblings(queue, half_life_ms)
            self._ledgers[queue.name] = Ledger(half_life_ms, used, self.now_ms)
        else:
            self._ledgers[queue.name] = Ledger(half_life_ms, usage.used, as_of_ms, days=usage.days)
        for user, used in usage.users:
            self._users[queue.name, user] = Ledger(half_life_ms, used, as_of_ms)
        for ledger in (self._ledgers[queue.name], *(self._users[line] for line in self._lines(queue.name))):
            ledger.settle(self.now_ms)
        for uid, held in self._held.items():
            if queue.name in self._path(held.queue):
                self._charge_late(uid, held, queue.name)

    def _as_siblings(self, queue: Queue, half_life_ms: int) -> int:
        """Who comes without a past has the mean of its siblings, so that nobody gains by beginning anew."""
        others = [
            self.tree.queues[name]
            for name in self.tree.children(queue.parent)
            if name != queue.name and name in self._ledgers and (self._ledgers[name].used or self._ledgers[name].rate)
        ]
        if not others or queue.weight <= 0:
            return 0
        ratios = [self._ratio(self._ledgers[o.name].at(self.now_ms), o.half_life_ms, o.weight) for o in others]
        return sum(ratios) // len(ratios) * steady(1, half_life_ms) * queue.weight >> _FRACTION_BITS

    def remove_queue(self, name: str) -> None:
        """Its pods run on and count for those above it no more."""
        self.tree.remove(name)
        self._told_ms.pop(name, None)
        self._ledgers.pop(name, None)
        for line in self._lines(name):
            del self._users[line]
        self.count_again()

    def count_again(self) -> None:
        """Count every pod anew: what queue it is in, or what it counts for, may have changed."""
        self._due = None
        for uid in [*self._held, *self._waiting]:
            pod = self._roster.pods.get(uid)
            if pod is not None:
                self.sync(pod)

    def sync(self, pod: Pod) -> None:
        """Count the pod as it is now: held, waiting, or gone where the roster does not have it."""
        uid = pod.uid
        before = self._request(uid)
        self._sync(uid)
        if before != self._request(uid):
            self._due = None

    def _request(self, uid: str) -> tuple[str, list[int]] | None:
        """What the pod makes its queue hold or ask for, of what is divided."""
        held = self._held.get(uid)
        queue, amounts = (held.queue, held.amounts) if held is not None else self._waiting.get(uid, ("", ()))
        return (queue, [amount for name, amount in amounts if name in DIVIDED]) if amounts else None

    def _sync(self, uid: str) -> None:
        placement = self._cluster.placements.get(uid)
        known = self._roster.pods.get(uid)
        held, waiting = self._held.get(uid), self._waiting.get(uid)
        if known is None or placement is None:
            if held is not None:
                self._release(uid, held)
        else:
            queue = self.queue_of(known) if known.managed else ""
            amounts = self.meter.held(placement)
            fixed = known.managed and not self.preemptible(known)
            new = _Held(queue, known.user, known.priority, amounts, self._rate(amounts), fixed)
            if held is None or not held.alike(new):
                if held is not None:
                    self._release(uid, held)
                self._hold(uid, new, late=held is None)
        if known is not None and placement is None and startable(known):
            request = self.queue_of(known), self.meter.wanted(self._cluster.shape_of(known))
            if waiting != request:
                self._unwait(uid)
                self._waiting[uid] = request
                self._add(self._pending, request[0], request[1], 1)
        elif waiting is not None:
            self._unwait(uid)

    def ended(self, uid: str, ended_ms: int) -> None:
        """The pod, which is counted still, had ended at that time."""
        held = self._held.get(uid)
        if held is not None and 0 < ended_ms < self.now_ms:
            for ledger in self._ledgers_of(held):
                ledger.charge(-held.rate, max(ended_ms, self._since(uid)), self.now_ms, self.now_ms)

    def advance(self, now_ms: int) -> None:
        """Time passes; what pods are charged follows what there is."""
        self.now_ms = now_ms
        capacity = self.meter.capacity()
        rated = capacity.get(CPU, 0), capacity.get(MEMORY, 0), capacity.get(GPU, 0)
        if rated != self._rated:
            self._rated, self._due = rated, None
            for held in self._held.values():
                rate = self._rate(held.amounts)
                if rate != held.rate:
                    for ledger in self._ledgers_of(held):
                        ledger.change(rate - held.rate, now_ms)
                    held.rate = rate

    def _hold(self, uid: str, held: _Held, late: bool) -> None:
        self._held[uid] = held
        if held.queue:
            self._add(self._allocated, held.queue, held.amounts, 1)
            if held.fixed:
                self._add(self._fixed, held.queue, held.amounts, 1)
            self._priorities.setdefault(held.queue, Counter())[held.priority] += 1
        else:
            _add(self._strangers, held.amounts, 1)
        for ledger in self._ledgers_of(held):
            ledger.change(held.rate, self.now_ms)
        if late:
            for name in self._path(held.queue):
                self._charge_late(uid, held, name)

    def _release(self, uid: str, held: _Held) -> None:
        for ledger in self._ledgers_of(held):
            ledger.change(-held.rate, self.now_ms)
        del self._held[uid]
        if held.queue:
            self._add(self._allocated, held.queue, held.amounts, -1)
            if held.fixed:
                self._add(self._fixed, held.queue, held.amounts, -1)
            pods = self._priorities[held.queue]
            pods[held.priority] -= 1
            if not pods[held.priority]:
                del pods[held.priority]
        else:
            _add(self._strangers, held.amounts, -1)

    def _unwait(self, uid: str) -> None:
        request = self._waiting.pop(uid, None)
        if request is not None:
            self._add(self._pending, request[0], request[1], -1)

    def _add(self, books: dict[str, dict[str, int]], queue: str, amounts: Amounts, sign: int) -> None:
        for name in self._path(queue):
            _add(books.setdefault(name, {}), amounts, sign)

    def _charge_late(self, uid: str, held: _Held, name: str) -> None:
        """What the pod used of the queue before it was told, as far as the queue's record does not know it."""
        since_ms = max(self._since(uid), self._told_ms.get(name, self.now_ms))
        if since_ms < self.now_ms:
            ledgers = [self._ledger(name)]
            if name == held.queue and self.tree.queues[name].by_user:
                ledgers.append(self._user(name, held.user))
            for ledger in ledgers:
                ledger.charge(held.rate, since_ms, self.now_ms, self.now_ms)

    def _since(self, uid: str) -> int:
        """Since when a bound pod runs; now for one that is being bound."""
        pod = self._roster.pods.get(uid)
        return pod.bound_ms if pod is not None and pod.node and pod.bound_ms else self.now_ms

    def _ledgers_of(self, held: _Held) -> Iterator[Ledger]:
        for name in self._path(held.queue):
            yield self._ledger(name)
        if held.queue in self.tree.queues and self.tree.queues[held.queue].by_user:
            yield self._user(held.queue, held.user)

    def _ledger(self, name: str) -> Ledger:
        ledger = self._ledgers.get(name)
        if ledger is None:
            ledger = self._ledgers[name] = Ledger(max(1, self.tree.queues[name].half_life_ms), as_of_ms=self.now_ms)
        return ledger

    def _user(self, queue: str, user: str) -> Ledger:
        ledger = self._users.get((queue, user))
        if ledger is None:
            half_life_ms = max(1, self.tree.queues[queue].half_life_ms)
            ledger = self._users[queue, user] = Ledger(half_life_ms, as_of_ms=self.now_ms)
        return ledger

    def _lines(self, queue: str) -> list[Line]:
        return [line for line in self._users if line[0] == queue]

    def _path(self, queue: str) -> tuple[str, ...]:
        return self.tree.path(queue) if queue in self.tree.queues else ()

    def _rate(self, amounts: Amounts) -> int:
        """The dominant share, in milli-GPU of the cluster; rounded up, so that nothing is for nothing."""
        cpu, memory, gpu = self._rated
        whole = gpu or cpu
        rate = 0
        for name, amount in amounts:
            there = {CPU: cpu, MEMORY: memory, GPU: gpu}.get(name, 0)
            if there:
                rate = max(rate, -(-amount * whole // there))
        return rate * self._model_factor(amounts) // _MILLI if self._model_milli else rate

    def _model_factor(self, amounts: Amounts) -> int:
        models = (self._model_milli.get(name.partition("/")[2]) for name, _ in amounts if "/" in name)
        return next((milli for milli in models if milli is not None), _MILLI)

    # What is asked.

    def queue_of(self, pod: Pod) -> str:
        """The queue that the pod names, else its namespace's, else `default`; it may not exist."""
        if pod.queue:
            return pod.queue
        labels = self._cluster.peers.labels_of(pod.namespace)
        return labels.get(QUEUE_LABEL, DEFAULT_QUEUE) if labels else DEFAULT_QUEUE

    def line_of(self, pod: Pod) -> Line:
        """Where the pod waits."""
        queue = self.queue_of(pod)
        record = self.tree.queues.get(queue)
        return queue, pod.user if record is not None and record.by_user else ""

    def preemptible(self, pod: Pod) -> bool:
        """Whether the pod may be made to give way: it says so itself, or its queue does."""
        if pod.work.preemptible is not None:
            return pod.work.preemptible
        queue = self.tree.queues.get(self.queue_of(pod))
        return queue is None or queue.preemptible

    def wanted(self, pods: Iterable[Pod]) -> dict[str, int]:
        """What pods that wait will be counted with, wherever they go."""
        found: dict[str, int] = {}
        for pod in pods:
            _add(found, self.meter.wanted(self._cluster.shape_of(pod)), 1)
        return found

    def amounts(self, uid: str) -> Mapping[str, int]:
        """What a placed pod is counted with."""
        held = self._held.get(uid)
        return dict(held.amounts) if held is not None else {}

    def rate(self, uid: str) -> int:
        """What a placed pod is charged, in milli-GPU."""
        held = self._held.get(uid)
        return held.rate if held is not None else 0

    def allocated(self, queue: str) -> Mapping[str, int]:
        return self._allocated.get(queue, {})

    def holds_below(self, queue: str, priority: int) -> bool:
        """Whether pods of a lower priority are placed in the queue."""
        return any(own < priority for own in self._priorities.get(queue, ()))

    def others_hold(self, queue: str) -> bool:
        """Whether pods are placed for other queues."""
        return any(pods and name != queue for name, pods in self._priorities.items())

    def limited(self, queue: str) -> bool:
        """Whether there is anything that pods of the queue could go beyond."""
        return any(self.tree.queues[name].limit or name in self._told_ms for name in self._path(queue))

    def beyond_limit(self, queue: str, more: Mapping[str, int]) -> tuple[str, str, int, int] | None:
        """The first limit that would be broken on the way up: queue, class, what it would hold, and the limit."""
        for name in self._path(queue):
            held = self._allocated.get(name, {})
            for resource, most in self.tree.queues[name].limit:
                wanted = more.get(resource, 0)
                if wanted and held.get(resource, 0) + wanted > most:
                    return name, resource, held.get(resource, 0) + wanted, most
        return None

    def beyond_guarantee(self, queue: str, more: Mapping[str, int]) -> tuple[str, str, int, int] | None:
        """As `beyond_limit`, for what must not be preempted: it has to stay within the guarantees. A queue that nobody
        wrote guarantees whatever there is; one above the leaf that names no guarantee leaves it to those below."""
        for name in self._path(queue):
            record = self.tree.queues[name]
            guarantee = dict(record.guarantee)
            if name not in self._told_ms or (not guarantee and name != queue):
                continue
            held = self._fixed.get(name, {})
            for resource in guarantee or DIVIDED:
                wanted = more.get(resource, 0)
                if wanted and held.get(resource, 0) + wanted > guarantee.get(resource, 0):
                    return name, resource, held.get(resource, 0) + wanted, guarantee.get(resource, 0)
        return None

    def due(self, queue: str) -> Mapping[str, int]:
        """What a queue is due of each class that is divided, by what everybody holds and waits for now."""
        if self._due is None or self.now_ms - self._due_ms >= _DIVIDED_AGAIN_MS:
            self._due, self._due_ms = self._divide(), self.now_ms
        return self._due.get(queue, {})

    def _divide(self) -> dict[str, dict[str, int]]:
        due: dict[str, dict[str, int]] = {}
        capacity = self.meter.capacity()
        queues = self.tree.queues
        usage = {name: self.share_ppm(name) for name in queues} if len(queues) > 1 else {}
        for parent in ("", *self.tree.in_order()):
            names = [name for name in self.tree.children(parent) if self.tree.problem(name) is None]
            for resource, grain in DIVIDED.items() if names else ():
                if parent:
                    total = due[parent][resource] if parent in due else 0
                else:
                    total = max(0, capacity.get(resource, 0) - self._strangers.get(resource, 0))
                parts = divide(
                    total, [self._claimant(name, resource, usage.get(name, 0)) for name in names],
                    self._history_milli, grain,
                )  # fmt: skip
                for name, part in zip(names, parts, strict=True):
                    due.setdefault(name, {})[resource] = part
        return due

    def _claimant(self, name: str, resource: str, usage_ppm: int) -> Claimant:
        queue = self.tree.queues[name]
        request = self._allocated.get(name, {}).get(resource, 0) + self._pending.get(name, {}).get(resource, 0)
        return Claimant(
            name, dict(queue.guarantee).get(resource, 0), dict(queue.limit).get(resource), queue.weight, request,
            usage_ppm, queue.priority, queue.created_ms,
        )  # fmt: skip

    def share_ppm(self, name: str) -> int:
        """The part of the cluster that the queue used, decayed, in millionths."""
        queue, ledger = self.tree.queues[name], self._ledger(name)
        whole = steady(self._rated[2] or self._rated[0], max(1, queue.half_life_ms))
        return ledger.at(self.now_ms) * _MILLION // whole if whole else 0

    def standing_class(self, queue: str, more: Mapping[str, int]) -> int:
        """0 where the queue stays within its guarantee with so much more, 1 where within what is due, else 2."""
        held, guarantee = self._allocated.get(queue, {}), self.tree.queues[queue].guarantee
        named = [(amount, resource) for resource, amount in guarantee if more.get(resource, 0)]
        if named and all(held.get(resource, 0) + more[resource] <= amount for amount, resource in named):
            return 0
        due = self.due(queue)
        within = all(
            held.get(resource, 0) + more[resource] <= due.get(resource, 0) for resource in DIVIDED if more.get(resource)
        )
        return 1 if within else 2

    def within_guarantee(self, queue: str, more: Mapping[str, int]) -> bool:
        """Whether all queues on the way up stay within their guarantees, of those that name one."""
        path = self._path(queue)
        guaranteed = [name for name in path if self.tree.queues[name].guarantee]
        return bool(guaranteed) and all(self.standing_class(name, more) == 0 for name in guaranteed)

    def key(self, queue: str, more: Mapping[str, int]) -> tuple[int, int, int, int]:
        """The place of a queue among its siblings if so much more is to be placed for it next: the least comes first."""
        record = self.tree.queues[queue]
        return self.standing_class(queue, more), -record.priority, self.ratio(queue), record.created_ms

    def ratio(self, queue: str) -> int:
        """What the queue used by its weight, with what it holds projected ahead, as a fraction of 40 bits."""
        record = self.tree.queues[queue]
        used = self._ledger(queue).at(self.now_ms + AHEAD_MS)
        return self._ratio(used, record.half_life_ms, record.weight)

    def user_ratio(self, queue: str, user: str) -> int:
        return self._ratio(self._user(queue, user).at(self.now_ms + AHEAD_MS), self.tree.queues[queue].half_life_ms, 1)

    def _ratio(self, used: int, half_life_ms: int, weight: int) -> int:
        return (used << _FRACTION_BITS) // (steady(1, max(1, half_life_ms)) * max(1, weight))

    def claim_back(self, queue: str, amounts: Mapping[str, int]) -> ClaimBack | None:
        """What a queue may take from others for so much more; None where that is not due to it."""
        path = self._path(queue)
        if not path or any(self.standing_class(name, amounts) == 2 for name in path):
            return None
        return ClaimBack(self, queue, amounts)

    def standings(self, now_ms: int) -> list[Standing]:
        """All queues, each before those below it."""
        heads: dict[str, str] = {}
        for root, queue in self.waiting_order():
            for name in self._path(queue):
                heads.setdefault(name, root)
        return [
            self._standing(name, max(now_ms, self.now_ms), heads.get(name, "")) for name in self.tree.in_order()
        ]

    def _standing(self, name: str, now_ms: int, head: str) -> Standing:
        queue, ledger = self.tree.queues[name], self._ledger(name)
        siblings = [self.tree.queues[other] for other in self.tree.children(queue.parent)]
        weights = sum(max(0, other.weight) for other in siblings) or 1
        weight_ppm = max(0, queue.weight) * _MILLION // weights
        held, guarantee = self._allocated.get(name, {}), dict(queue.guarantee)
        whole = self._rated[2] or self._rated[0]
        due_rate = whole
        for above in self._path(name):
            record = self.tree.queues[above]
            total = sum(max(0, self.tree.queues[o].weight) for o in self.tree.children(record.parent)) or 1
            due_rate = due_rate * max(0, record.weight) // total
        return Standing(
            name=name,
            parent=queue.parent,
            leaf=self.tree.leaf(name),
            allocated=_sorted(held),
            guarantee=queue.guarantee,
            limit=queue.limit,
            due=_sorted(self.due(name)),
            borrowed=_sorted({r: max(0, amount - guarantee.get(r, 0)) for r, amount in held.items()}),
            pending=_sorted(self._pending.get(name, {})),
            pending_jobs=self._jobs(name),
            used=ledger.at(now_ms),
            share_ppm=self.share_ppm(name),
            weight_ppm=weight_ppm,
            credit=ledger.credit(due_rate, now_ms),
            rate_milli=ledger.rate,
            days=self._days(ledger, now_ms),
            users=tuple((user, self._users[name, user].at(now_ms)) for _, user in sorted(self._lines(name))),
            as_of_ms=now_ms,
            problem=self.tree.problem(name),
            warning=self.tree.capacity_problem(name, self.meter.capacity()),
            head=head,
        )

    def _days(self, ledger: Ledger, now_ms: int) -> tuple[tuple[int, int], ...]:
        shown = Ledger(ledger.half_life_ms, ledger.used, ledger.as_of_ms, ledger.rate, ledger.days.items())
        shown.settle(now_ms)
        return tuple(sorted(shown.days.items()))

    def _jobs(self, queue: str) -> int:
        """How many jobs wait in the queue and below it."""
        pods = (self._roster.pods[uid] for uid, (own, _) in self._waiting.items() if queue in self._path(own))
        return len({self._roster.root_of(pod) for pod in pods})

    def told(self) -> Iterator[Queue]:
        """The queues that were told, in order."""
        return (queue for name, queue in self.tree.queues.items() if name in self._told_ms)

    def history(self) -> tuple[tuple[str, Usage], ...]:
        """What every queue has used; a checkpoint keeps it."""
        return tuple((name, self._usage(name)) for name in self.tree.queues)

    def _usage(self, name: str) -> Usage:
        ledger = self._ledger(name)
        users = tuple((user, self._users[name, user].at(ledger.as_of_ms)) for _, user in sorted(self._lines(name)))
        return Usage(ledger.as_of_ms, ledger.used, ledger.rate, tuple(sorted(ledger.days.items())), users)

    def restore_history(self, history: Iterable[tuple[str, Usage]]) -> None:
        """Go on from what was used; the rates are those of the pods that are placed now."""
        for name, usage in history:
            if name not in self.tree.queues:
                continue
            rate, half_life_ms = self._ledger(name).rate, max(1, self.tree.queues[name].half_life_ms)
            self._ledgers[name] = Ledger(half_life_ms, usage.used, usage.as_of_ms, rate, usage.days)
            for user, used in usage.users:
                rate = self._user(name, user).rate
                self._users[name, user] = Ledger(half_life_ms, used, usage.as_of_ms, rate)


class ClaimBack:
    """What one job may take back from other queues, one victim after another."""

    def __init__(self, shares: Shares, queue: str, amounts: Mapping[str, int]) -> None:
        self._shares = shares
        self._path = shares.tree.path(queue)
        self._amounts = amounts
        self._taken: dict[str, dict[str, int]] = {}

    def takes(self, queue: str, amounts: Mapping[str, int]) -> bool:
        """Whether a victim of the queue may be taken: from where the two part down to the queue, each holds more than
        is due to it, or more than its guarantee where the job stays within its own, of something that the job wants.
        If so, it counts as taken."""
        shares, tree = self._shares, self._shares.tree
        if queue not in tree.queues or queue == self._path[0]:
            return False
        theirs = [name for name in tree.path(queue) if name not in self._path]
        if not theirs:
            return False
        own = next(name for name in self._path if tree.queues[name].parent == tree.queues[theirs[-1]].parent)
        guaranteed = shares.standing_class(own, self._amounts) == 0
        for name in theirs:
            if not self._above(name, shares.due(name)) and not (
                guaranteed and self._above(name, dict(tree.queues[name].guarantee))
            ):
                return False
        for name in theirs:
            _add(self._taken.setdefault(name, {}), tuple(amounts.items()), 1)
        return True

    def _above(self, name: str, level: Mapping[str, int]) -> bool:
        held, taken = self._shares.allocated(name), self._taken.get(name, {})
        return any(
            held.get(resource, 0) - taken.get(resource, 0) > level.get(resource, 0)
            for resource in DIVIDED
            if self._amounts.get(resource, 0)
        )


def _add(books: dict[str, int], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts:
        books[name] = books.get(name, 0) + sign * amount


def _sorted(amounts: Mapping[str, int]) -> Amounts:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
