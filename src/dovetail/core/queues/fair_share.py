# SPDX-License-Identifier: Apache-2.0
"""The fair share of each queue, level by level.

Rules: the top level divides the capacity less what other pods hold, each level below divides the share of the parent,
by what the queues hold and request (`division`). Jobs that wait in stopped queues request nothing: the others divide
what they would get. The division is repeated when one of these changes, and once a minute, since usage decays. History
has the same effect at every level: the usage of a queue is measured against the part that its parent is due by weight.

Queue order and status use shares in whole GPUs (`of`). Reclaim uses the exact shares (`exact`): decaying usage moves
the odd GPU from queue to queue every minute, and no job is evicted for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dovetail.core.mark_types import FairShareDivision
from dovetail.core.queues.accounting import Accounting
from dovetail.core.queues.accounts import Accounts
from dovetail.core.queues.division import Claimant, divide
from dovetail.core.queues.pending import PendingPods
from dovetail.core.queues.rates import ChargeRates
from dovetail.core.queues.totals import QueueTotals, add
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DIVIDED, Amounts

_AGAIN_MS = 60_000
_EXACT = dict.fromkeys(DIVIDED, 1)
_MILLION = 1_000_000


class FairShare:
    def __init__(
        self, tree: Tree, accounts: Accounts, accounting: Accounting, rates: ChargeRates, totals: QueueTotals,
        pending: PendingPods, history_milli: int,
    ) -> None:  # fmt: skip
        self._tree = tree
        self._accounts = accounts
        self._accounting = accounting
        self._rates = rates
        self._totals = totals
        self._pending = pending
        self._history_milli = history_milli
        self._due: dict[str, dict[str, int]] | None = None
        self._exact: dict[str, dict[str, int]] | None = None
        """The same with a grain of 1. It is computed on demand, from the same usage."""
        self._lasting: dict[str, dict[str, int]] | None = None
        """The same as `_exact` without history."""
        self._divided_ms = 0
        self._last: dict[str, dict[str, int]] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """A number that changes when the share of some queue, in whole GPUs, changes."""
        due = self._divided()
        if due is not self._last:
            self._version += due != self._last
            self._last = due
        return self._version

    @property
    def last_version(self) -> int:
        """The same as when it was last asked for: nothing is divided."""
        return self._version

    def changed(self) -> None:
        """The capacity, or a rule of the division, has changed."""
        self._due = self._exact = self._lasting = None

    def of(self, queue: str) -> Mapping[str, int]:
        """The fair share of the queue, by class, in whole GPUs."""
        return self._divided().get(queue, {})

    def exact(self, queue: str) -> Mapping[str, int]:
        """The exact fair share of the queue, by class, in milli-GPU."""
        self._divided()
        if self._exact is None:
            self._exact = self._divide(_EXACT, self._history_milli)
        return self._exact.get(queue, {})

    def lasting(self, queue: str) -> Mapping[str, int]:
        """The exact fair share of the queue without history. It changes only with the requests of queues."""
        self._divided()
        if self._lasting is None:
            self._lasting = self._divide(_EXACT, 0)
        return self._lasting.get(queue, {})

    def _divided(self) -> dict[str, dict[str, int]]:
        self._pending.enter()
        now_ms = self._accounts.now_ms
        if self._due is None or self._totals.moved or now_ms - self._divided_ms >= _AGAIN_MS:
            self._due, self._exact, self._lasting = self._divide(DIVIDED, self._history_milli), None, None
            self._divided_ms = now_ms
            self._totals.moved.clear()
        return self._due

    def drifted(self) -> bool:
        """Divide again. Returns whether the share of a queue has changed since the last division."""
        before, exact = self._due, self._exact
        self.changed()
        self._divided()
        if exact is not None:
            self._exact = self._divide(_EXACT, self._history_milli)
        return before != self._due or exact != self._exact

    def division(self) -> FairShareDivision:
        """The last division, and what has moved since."""
        self._pending.enter()
        moved = tuple([(*key, amount) for key, amount in self._totals.moved.items()])
        compared = None if self._last is self._due else _listed(self._last)
        return FairShareDivision(
            _listed(self._due), _listed(self._exact), _listed(self._lasting), self._divided_ms, moved, compared
        )

    def restore(self, last: FairShareDivision) -> None:
        """Go on from it."""
        self._pending.enter()
        self._due, self._exact, self._lasting, compared = (
            None if one is None else {queue: dict(amounts) for queue, amounts in one}
            for one in (last.due, last.exact, last.lasting, last.compared)
        )
        self._last = (self._due or {}) if compared is None else compared
        self._divided_ms = last.divided_ms
        self._totals.moved = {(queue, resource): amount for queue, resource, amount in last.moved}

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Undo the effect that reading has on the time of the next division: a query must not change decisions."""
        self._pending.enter()
        moved = dict(self._totals.moved)
        before = self._due, self._exact, self._lasting, self._divided_ms, self._last, self._version
        try:
            yield
        finally:
            self._due, self._exact, self._lasting, self._divided_ms, self._last, self._version = before
            self._totals.moved = moved

    def owed(self, name: str) -> bool:
        """Whether the queue has used less than its part by weight of what its parent is due."""
        parent_ppm = max(1, self.part_ppm(self._tree.queues[name].parent))
        used_ppm = self._accounts.share_ppm(name, self._rates.whole) * _MILLION // parent_ppm
        return used_ppm < self.weight_ppm(name)

    def part_ppm(self, name: str) -> int:
        """The part of the cluster that a queue is due by weight alone, in millionths; all of it for the queue ""."""
        part = _MILLION
        for above in self._tree.known_path(name):
            part = part * self.weight_ppm(above) // _MILLION
        return part

    def weight_ppm(self, name: str) -> int:
        """The weight of a queue among its siblings, in millionths."""
        queue = self._tree.queues[name]
        total = self._tree.weight_below(queue.parent)
        return max(0, queue.weight) * _MILLION // total if total else 0

    def _divide(self, grains: Mapping[str, int], history_milli: int) -> dict[str, dict[str, int]]:
        tree = self._tree
        due: dict[str, dict[str, int]] = {}
        capacity, others, usage = self._accounting.capacity(), self._totals.unmanaged, self._usage()
        stopped = self._stopped()
        for parent in ("", *tree.in_order()):
            names = [name for name in tree.children(parent) if tree.problem(name) is None]
            for resource, grain in grains.items() if names else ():
                total = max(0, capacity.get(resource, 0) - others.get(resource, 0))
                if parent:
                    total = due[parent][resource] if parent in due else 0
                claimants = [
                    self._claimant(name, resource, usage.get(name, 0), stopped.get(name, {}).get(resource, 0))
                    for name in names
                ]
                parts = divide(total, claimants, history_milli, grain)
                for name, part in zip(names, parts, strict=True):
                    due.setdefault(name, {})[resource] = part
        return due

    def _usage(self) -> dict[str, int]:
        """The usage of each queue, in millionths of what its parent is due by weight. A queue that used just its part
        has used its weight among its siblings."""
        queues, share_ppm, whole = self._tree.queues, self._accounts.share_ppm, self._rates.whole
        if len(queues) == 1:
            return {}
        parents = {name: max(1, self.part_ppm(queue.parent)) for name, queue in queues.items()}
        return {name: share_ppm(name, whole) * _MILLION // part_ppm for name, part_ppm in parents.items()}

    def _stopped(self) -> dict[str, dict[str, int]]:
        """The amounts of the pods that wait in stopped queues: by queue, with those below it."""
        found: dict[str, dict[str, int]] = {}
        stopped = self._tree.stopped()
        for name in stopped:
            inside = self._tree.queues[name].parent in stopped
            for above in (name,) if inside else self._tree.path(name):
                add(found.setdefault(above, {}), tuple(self._pending.of(name).items()), 1)
        return found

    def _claimant(self, name: str, resource: str, usage_ppm: int, stopped: int) -> Claimant:
        queue = self._tree.queues[name]
        request = self._totals.held(name).get(resource, 0) + self._pending.of(name).get(resource, 0) - stopped
        return Claimant(
            name, dict(queue.guarantee).get(resource, 0), dict(queue.limit).get(resource), queue.weight, request,
            usage_ppm, queue.priority, queue.created_ms,
        )  # fmt: skip


def _listed(parts: Mapping[str, Mapping[str, int]] | None) -> tuple[tuple[str, Amounts], ...] | None:
    if parts is None:
        return None
    return tuple([(queue, tuple(amounts.items())) for queue, amounts in parts.items()])
