# SPDX-License-Identifier: Apache-2.0
"""The ledgers of queues, and of users in queues that tell them apart.

Rules: a ledger is charged from the moment when a pod is placed. A queue that is told with its usage goes on from there:
pods that ran on since then are charged for the time between. One without a past begins with the mean of its siblings,
so that nobody gains by beginning anew, and is charged for pods that run from when it was made on. For those above it a
queue counts since it is below them, as far as that is known: since it was made, since its usage was written down, or
since it was put there. So what is read from the records of all queues is what a scheduler knows that never ended.
A user to whom nothing is charged is forgotten where USERS_KEPT others of the queue have used more: users are names that
anybody can make up. Who was forgotten counts as one who has used nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import History, Queue, Usage
from dovetail.core.queues.usage import DecayedUsage, steady

AHEAD_MS = 300_000
"""How far ahead what a queue holds now is projected where queues are compared (the interval of Kueue's samples)."""
USERS_KEPT = 500
"""Of a queue, beside those to whom something is charged; an object holds them with ease."""
_USED_SOMETHING = 1_000
"""Less than a GPU in a ms is what rounding leaves of a past that has faded away."""
_FRACTION_BITS = 40
_MILLION = 1_000_000

Line = tuple[str, str]
"""A queue without queues below it, and a user where it tells them apart."""


class Accounts:
    """`told_ms` is until when the record of a queue knew its usage when it was first told, by its name: until it was
    made where there was none. `linked_ms` is since when it counts for those above it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._queues: dict[str, DecayedUsage] = {name: _unused(queue) for name, queue in tree.written.items()}
        self._users: dict[str, dict[str, DecayedUsage]] = {}
        self._idle: dict[str, dict[str, None]] = {}
        """By queue the users to whom nothing is charged."""
        self.told_ms: dict[str, int] = {}
        self.linked_ms: dict[str, int] = {}
        self.now_ms = 0

    def begin(self, queue: Queue) -> None:
        """A queue is told for the first time."""
        usage, half_life_ms = queue.usage, max(1, queue.half_life_ms)
        if usage is None:
            self.told_ms[queue.name] = self.linked_ms[queue.name] = min(queue.created_ms, self.now_ms)
            self._queues[queue.name] = DecayedUsage(half_life_ms, self._as_siblings(queue), self.now_ms)
            return
        # A time that is still to come was written by hand, or by a clock that was wrong.
        as_of_ms = min(usage.as_of_ms, self.now_ms)
        self.told_ms[queue.name] = self.linked_ms[queue.name] = as_of_ms
        self._queues[queue.name] = DecayedUsage(half_life_ms, usage.used, as_of_ms, days=usage.days)
        self._users[queue.name] = {user: DecayedUsage(half_life_ms, used, as_of_ms) for user, used in usage.users}
        for ledger in self._all(queue.name):
            ledger.settle(self.now_ms)
        self._note_idle(queue.name)

    def _as_siblings(self, queue: Queue) -> int:
        names = [name for name in self._tree.children(queue.parent) if name != queue.name and name in self.told_ms]
        others = [(self._tree.written[n], self._queues[n].at(self.now_ms)) for n in names if n in self._queues]
        ratios = [
            self._ratio(used, other.half_life_ms, other.weight) for other, used in others if used >= _USED_SOMETHING
        ]
        if not ratios or queue.weight <= 0:
            return 0
        return sum(ratios) // len(ratios) * steady(1, max(1, queue.half_life_ms)) * queue.weight >> _FRACTION_BITS

    def end(self, name: str) -> None:
        """A queue is gone."""
        self.told_ms.pop(name, None)
        self.linked_ms.pop(name, None)
        self._queues.pop(name, None)
        if name in self._tree.written:
            # As `default` is where nobody writes it.
            self._queues[name] = _unused(self._tree.written[name])
        self._users.pop(name, None)
        self._idle.pop(name, None)

    def moved(self, name: str) -> None:
        """A queue is below another one from now on."""
        self.linked_ms[name] = self.now_ms

    def set_half_life(self, queue: Queue) -> None:
        for ledger in self._all(queue.name):
            ledger.set_half_life(max(1, queue.half_life_ms), self.now_ms)

    def change(self, queue: str, user: str, delta: int) -> None:
        """So much more is charged to the queue, to those above it, and to its user."""
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
        """What is charged to them since then was not used."""
        self._charge_since(queue, user, -rate, from_ms)

    def charge_late(self, queue: str, user: str, rate: int, since_ms: int, begun: str = "") -> None:
        """A pod that ran since then is charged now for the first time: what the records of the queues do not know of
        it is added; where a queue has `begun`, to that one and to those above it."""
        self._charge_since(queue, user, rate, since_ms, begun)

    def _charge_since(self, queue: str, user: str, rate: int, since_ms: int, begun: str = "") -> None:
        if since_ms >= self.now_ms:
            return
        path = self._tree.known_path(queue)
        if begun and begun not in path:
            return
        first, from_ms = path.index(begun) if begun else 0, since_ms
        for level, name in enumerate(path):
            from_ms = max(from_ms, self.told_ms.get(name, self.now_ms if rate > 0 else 0))
            if level >= first and from_ms < self.now_ms:
                self.of(name).charge(rate, from_ms, self.now_ms, self.now_ms)
                if name == queue and self._tree.written[name].by_user and (rate > 0 or self._has(name, user)):
                    self._user(name, user).charge(rate, from_ms, self.now_ms, self.now_ms)
                    self._note(name, user)
            from_ms = max(from_ms, self.linked_ms.get(name, 0))

    def of(self, name: str) -> DecayedUsage:
        """The ledger of a queue that exists."""
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
        """Something about the ledger of a user has changed."""
        idle = self._idle.setdefault(queue, {})
        if self._users[queue][user].rate:
            idle.pop(user, None)
        else:
            idle[user] = None

    def _note_idle(self, queue: str) -> None:
        for user in list(self._users[queue]):
            self._note(queue, user)

    def advance(self, now_ms: int) -> None:
        """Time passes."""
        self.now_ms = now_ms
        for queue, idle in self._idle.items():
            # All have to be looked at to know who used least: so twice as many are let come together.
            if len(idle) > 2 * USERS_KEPT:
                users = self._users[queue]
                for user, _ in most([(user, users[user].at(now_ms)) for user in idle])[USERS_KEPT:]:
                    del users[user], idle[user]

    def _all(self, queue: str) -> list[DecayedUsage]:
        return [self.of(queue), *self._users.get(queue, {}).values()]

    def share_ppm(self, name: str, whole: int) -> int:
        """The part of the cluster (`whole` is its rate) that the queue used, decayed, in millionths."""
        used = steady(whole, max(1, self._tree.written[name].half_life_ms))
        return self.of(name).at(self.now_ms) * _MILLION // used if used else 0

    def ratio(self, name: str) -> int:
        """What the queue used by its weight, with what it holds projected ahead, as a fraction of 40 bits."""
        queue = self._tree.written[name]
        return self._ratio(self.of(name).at(self.now_ms + AHEAD_MS), queue.half_life_ms, queue.weight)

    def user_ratio(self, queue: str, user: str) -> int:
        """As `ratio`, of a user."""
        ledger = self._users.get(queue, {}).get(user)
        if ledger is None:
            return 0
        return self._ratio(ledger.at(self.now_ms + AHEAD_MS), self._tree.written[queue].half_life_ms, 1)

    def _ratio(self, used: int, half_life_ms: int, weight: int) -> int:
        return (used << _FRACTION_BITS) // (steady(1, max(1, half_life_ms)) * max(1, weight))

    def users(self, queue: str, now_ms: int) -> tuple[tuple[str, int], ...]:
        """What each user of the queue has used at that time."""
        return tuple((user, ledger.at(now_ms)) for user, ledger in sorted(self._users.get(queue, {}).items()))

    def histories(self) -> tuple[History, ...]:
        """All of it; `restore` takes it."""
        found = []
        for name in self._tree.written:
            ledger = self.of(name)
            days, users = tuple(sorted(ledger.days.items())), self.users(name, ledger.as_of_ms)
            usage = Usage(ledger.as_of_ms, ledger.used, ledger.rate, days, users)
            found.append(History(name, self.told_ms.get(name), usage, self.linked_ms.get(name, 0)))
        return tuple(found)

    def restore(self, histories: Iterable[History]) -> None:
        """Go on from what was used; what is charged stays as it is."""
        for history in histories:
            name, usage = history.queue, history.usage
            if history.told_ms is not None:
                self.told_ms[name], self.linked_ms[name] = history.told_ms, history.linked_ms
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
    """What names used, those first that used most."""
    return sorted(used, key=lambda one: (-one[1], one[0]))


def _unused(queue: Queue) -> DecayedUsage:
    return DecayedUsage(max(1, queue.half_life_ms))
