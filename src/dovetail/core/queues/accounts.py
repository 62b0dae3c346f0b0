# SPDX-License-Identifier: Apache-2.0
"""The usage of each queue, and of each user in queues that divide by user.

Rules: usage is charged from the moment when a pod is placed. A queue that is read with its recorded usage continues
from there: the pods that ran on are charged for the time since the record. A queue without a record starts with the
mean usage of its siblings, so that deleting a queue gains nothing, and is charged for running pods from its creation
on. The queues above it include its usage from the moment when it was put below them: its creation, the time of its
record, or its move. So a scheduler that reads the records of all queues continues as if it had never stopped.
Users are arbitrary names, so their number is bounded: a user without running pods is forgotten when USERS_KEPT other
such users of the queue have used more. A forgotten user counts as one that has used nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import History, Queue, Usage
from dovetail.core.queues.usage import DecayedUsage, steady

AHEAD_MS = 300_000
"""Queues are compared by their usage this far ahead, at the present rate. (Kueue samples usage at this interval.)"""
USERS_KEPT = 500
"""Users kept in each queue, beside those with running pods. A Kubernetes object has room for that many."""
_USED_SOMETHING = 1_000
"""Usage below this, one GPU for one ms, is a rounding error of usage that has decayed."""
_FRACTION_BITS = 40
_MILLION = 1_000_000

QueueUser = tuple[str, str]
"""A leaf queue, and the user where the queue divides by user."""


class Accounts:
    """`recorded_until_ms` is by queue the time up to which its record included its usage when the queue was first read:
    its creation where it had no record. `linked_ms` is since when the queues above it include its usage."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._queues: dict[str, DecayedUsage] = {name: _unused(queue) for name, queue in tree.written.items()}
        self._users: dict[str, dict[str, DecayedUsage]] = {}
        self._idle: dict[str, dict[str, None]] = {}
        """By queue: the users without running pods."""
        self.recorded_until_ms: dict[str, int] = {}
        self.linked_ms: dict[str, int] = {}
        self.now_ms = 0

    def begin(self, queue: Queue) -> None:
        """Start the usage of a queue that is new."""
        usage, half_life_ms = queue.usage, max(1, queue.half_life_ms)
        if usage is None:
            self.recorded_until_ms[queue.name] = self.linked_ms[queue.name] = min(queue.created_ms, self.now_ms)
            self._queues[queue.name] = DecayedUsage(half_life_ms, self._as_siblings(queue), self.now_ms)
            return
        # A record from the future was written by hand, or by a clock that was wrong.
        as_of_ms = min(usage.as_of_ms, self.now_ms)
        self.recorded_until_ms[queue.name] = self.linked_ms[queue.name] = as_of_ms
        self._queues[queue.name] = DecayedUsage(half_life_ms, usage.used, as_of_ms, days=usage.days)
        self._users[queue.name] = {user: DecayedUsage(half_life_ms, used, as_of_ms) for user, used in usage.users}
        for ledger in self._all(queue.name):
            ledger.settle(self.now_ms)
        self._note_idle(queue.name)

    def _as_siblings(self, queue: Queue) -> int:
        names = [
            name for name in self._tree.children(queue.parent) if name != queue.name and name in self.recorded_until_ms
        ]
        others = [(self._tree.written[n], self._queues[n].at(self.now_ms)) for n in names if n in self._queues]
        ratios = [
            self._ratio(used, other.half_life_ms, other.weight) for other, used in others if used >= _USED_SOMETHING
        ]
        if not ratios or queue.weight <= 0:
            return 0
        return sum(ratios) // len(ratios) * steady(1, max(1, queue.half_life_ms)) * queue.weight >> _FRACTION_BITS

    def end(self, name: str) -> None:
        """Forget a queue that is gone."""
        self.recorded_until_ms.pop(name, None)
        self.linked_ms.pop(name, None)
        self._queues.pop(name, None)
        if name in self._tree.written:
            # `default` exists even where no object writes it.
            self._queues[name] = _unused(self._tree.written[name])
        self._users.pop(name, None)
        self._idle.pop(name, None)

    def moved(self, name: str) -> None:
        """The queue has another parent from now on."""
        self.linked_ms[name] = self.now_ms

    def set_half_life(self, queue: Queue) -> None:
        for ledger in self._all(queue.name):
            ledger.set_half_life(max(1, queue.half_life_ms), self.now_ms)

    def change(self, queue: str, user: str, delta: int) -> None:
        """Raise the rate of the queue, of the queues above it, and of its user by `delta`."""
        if not delta:
            return
        record = self._tree.written.get(queue)
        if record is None:
            return
        for name in self._tree.path(queue):
            self._queues[name].change(delta, self.now_ms)
        if record.by_user:
            self._user(queue, user).change(delta, self.now_ms)
            self._note(queue, user)

    def take_back(self, queue: str, user: str, rate: int, from_ms: int) -> None:
        """Take back what was charged to them since then."""
        self._charge_since(queue, user, -rate, from_ms)

    def charge_late(self, queue: str, user: str, rate: int, since_ms: int, begun: str = "") -> None:
        """Charge for a pod that ran since then and is counted from now on: add what the records of the queues do not
        include. If a queue has `begun`, add it only to that queue and those above it."""
        self._charge_since(queue, user, rate, since_ms, begun)

    def charge_more(self, queue: str, rate: int, ms: int, due_ms: int | None = None) -> None:
        """Charge the queue, and those above it, at this rate for so long, beside what its pods are charged. `due_ms`:
        another process has charged that at this time, so queues whose record is as late have it."""
        for name in self._tree.known_path(queue):
            if due_ms is None or self.recorded_until_ms.get(name, 0) < due_ms:
                self.of(name).charge(rate, self.now_ms - ms, self.now_ms, self.now_ms)

    def _charge_since(self, queue: str, user: str, rate: int, since_ms: int, begun: str = "") -> None:
        if since_ms >= self.now_ms:
            return
        path = self._tree.known_path(queue)
        if begun and begun not in path:
            return
        first, from_ms = path.index(begun) if begun else 0, since_ms
        for level, name in enumerate(path):
            from_ms = max(from_ms, self.recorded_until_ms.get(name, self.now_ms if rate > 0 else 0))
            if level >= first and from_ms < self.now_ms:
                self.of(name).charge(rate, from_ms, self.now_ms, self.now_ms)
                if name == queue and self._tree.written[name].by_user and (rate > 0 or self._has(name, user)):
                    self._user(name, user).charge(rate, from_ms, self.now_ms, self.now_ms)
                    self._note(name, user)
            from_ms = max(from_ms, self.linked_ms.get(name, 0))

    def of(self, name: str) -> DecayedUsage:
        """The usage of a queue. Raises KeyError where it does not exist."""
        return self._queues[name]

    def _has(self, queue: str, user: str) -> bool:
        return user in self._users.get(queue, ())

    def _user(self, queue: str, user: str) -> DecayedUsage:
        users = self._users.setdefault(queue, {})
        ledger = users.get(user)
        if ledger is None:
            half_life_ms = max(1, self._tree.written[queue].half_life_ms)
            ledger = users[user] = DecayedUsage(half_life_ms, as_of_ms=self.now_ms)
        return ledger

    def _note(self, queue: str, user: str) -> None:
        """Keep the list of idle users after a change of this user's rate."""
        idle = self._idle.setdefault(queue, {})
        if self._users[queue][user].rate:
            idle.pop(user, None)
        else:
            idle[user] = None

    def _note_idle(self, queue: str) -> None:
        for user in list(self._users[queue]):
            self._note(queue, user)

    def advance(self, now_ms: int) -> None:
        """Set the time."""
        self.now_ms = now_ms
        for queue, idle in self._idle.items():
            # To find the users with the least usage takes a look at all of them: so it waits until there are twice as
            # many as are kept.
            if len(idle) > 2 * USERS_KEPT:
                users = self._users[queue]
                for user, _ in most([(user, users[user].at(now_ms)) for user in idle])[USERS_KEPT:]:
                    del users[user], idle[user]

    def _all(self, queue: str) -> list[DecayedUsage]:
        return [self.of(queue), *self._users.get(queue, {}).values()]

    def share_ppm(self, name: str, whole: int) -> int:
        """The decayed usage of the queue as a part of the cluster, whose rate is `whole`; in millionths."""
        used = steady(whole, max(1, self._tree.written[name].half_life_ms))
        return self.of(name).at(self.now_ms) * _MILLION // used if used else 0

    def ratio(self, name: str, more: int = 0) -> int:
        """The usage of the queue `AHEAD_MS` from now and so much more (milli-GPU times ms), divided by its weight; a
        fraction of 40 bits."""
        queue = self._tree.written[name]
        return self._ratio(self.of(name).at(self.now_ms + AHEAD_MS) + more, queue.half_life_ms, queue.weight)

    def user_ratio(self, queue: str, user: str) -> int:
        """The same of a user."""
        ledger = self._users.get(queue, {}).get(user)
        if ledger is None:
            return 0
        return self._ratio(ledger.at(self.now_ms + AHEAD_MS), self._tree.written[queue].half_life_ms, 1)

    def _ratio(self, used: int, half_life_ms: int, weight: int) -> int:
        return (used << _FRACTION_BITS) // (steady(1, max(1, half_life_ms)) * max(1, weight))

    def users(self, queue: str, now_ms: int) -> tuple[tuple[str, int], ...]:
        """The usage of each user of the queue at that time."""
        return tuple((user, ledger.at(now_ms)) for user, ledger in sorted(self._users.get(queue, {}).items()))

    def histories(self) -> tuple[History, ...]:
        """The usage of all queues, as `restore` takes it."""
        found = []
        for name in self._tree.written:
            ledger = self.of(name)
            days, users = tuple(sorted(ledger.days.items())), self.users(name, ledger.as_of_ms)
            usage = Usage(ledger.as_of_ms, ledger.used, ledger.rate, days, users)
            found.append(History(name, self.recorded_until_ms.get(name), usage, self.linked_ms.get(name, 0)))
        return tuple(found)

    def restore(self, histories: Iterable[History]) -> None:
        """Continue from this usage. The present rates stay."""
        for history in histories:
            name, usage = history.queue, history.usage
            if history.recorded_until_ms is not None:
                self.recorded_until_ms[name], self.linked_ms[name] = history.recorded_until_ms, history.linked_ms
            half_life_ms = max(1, self._tree.written[name].half_life_ms)
            self._queues[name] = DecayedUsage(half_life_ms, usage.used, usage.as_of_ms, self.of(name).rate, usage.days)
            before = self._users.get(name, {})
            self._idle.pop(name, None)
            self._users[name] = {
                user: DecayedUsage(half_life_ms, used, usage.as_of_ms, before[user].rate if user in before else 0)
                for user, used in usage.users
            }
            self._note_idle(name)


def most(used: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Sort names by their usage, the most first."""
    return sorted(used, key=lambda one: (-one[1], one[0]))


def _unused(queue: Queue) -> DecayedUsage:
    return DecayedUsage(max(1, queue.half_life_ms))
