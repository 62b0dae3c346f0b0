# SPDX-License-Identifier: Apache-2.0
"""The status of every queue, as it is shown to users and written into the status of the Queue objects."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dovetail.core.model import Problem
from dovetail.core.queues.accounting import Accounting
from dovetail.core.queues.accounts import USERS_KEPT, Accounts, most
from dovetail.core.queues.attained import JOBS_KEPT, Attained
from dovetail.core.queues.budgets import Spending, spending
from dovetail.core.queues.fair_share import FairShare
from dovetail.core.queues.pending import PendingPods
from dovetail.core.queues.rates import ChargeRates
from dovetail.core.queues.totals import QueueTotals
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import Amounts, MoneyBudget, stopped_as
from dovetail.core.queues.usage import DecayedUsage

_MILLION = 1_000_000


class QueueSnapshot(Struct, frozen=True):
    """The status of a queue. Amounts are by class. `due` is its fair share now, `borrowed` what it holds beyond its
    guarantee. `share_ppm` is its decayed usage as a part of the cluster, `weight_ppm` its weight among its siblings.
    `credit` is what it was due by weight less what it used, in milli-GPU times ms. `days`, `users` and `jobs` are as in
    Usage, with the users and jobs of the most usage; the others restart from nothing. `warning` is a fault of a queue
    that can be used all the same. `head` is the first workload that waits in it or below it, "" for none.
    `spending` is what it used of its budget, `money` of that in money; None without one. `next_guarantee` is when its
    calendar changes its guarantee next, and to what."""

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
    jobs: tuple[tuple[str, int], ...]
    as_of_ms: int
    problem: Problem | None
    warning: str
    head: str
    spending: Spending | None = None
    money: MoneyBudget | None = None
    next_guarantee: tuple[int, Amounts] | None = None


class QueueSnapshots:
    def __init__(
        self, tree: Tree, accounts: Accounts, attained: Attained, accounting: Accounting, rates: ChargeRates,
        totals: QueueTotals, pending: PendingPods, fair_share: FairShare,
    ) -> None:  # fmt: skip
        self._tree = tree
        self._accounts = accounts
        self._attained = attained
        self._accounting = accounting
        self._rates = rates
        self._totals = totals
        self._pending = pending
        self._fair_share = fair_share

    def at(self, now_ms: int, waiting: Mapping[str, tuple[str, int]]) -> list[QueueSnapshot]:
        """The status of all queues, each before those below it. `waiting` has by queue the first workload that waits in
        it or below it, and their number."""
        with self._fair_share.read_only():
            return [self._of(name, now_ms, *waiting.get(name, ("", 0))) for name in self._tree.in_order()]

    def _of(self, name: str, now_ms: int, head: str, jobs: int) -> QueueSnapshot:
        tree, whole = self._tree, self._rates.whole
        queue, ledger = tree.queues[name], self._accounts.of(name)
        held, guarantee, capacity = self._totals.held(name), dict(queue.guarantee), self._accounting.capacity()
        due_rate = whole * self._fair_share.part_ppm(name) // _MILLION
        return QueueSnapshot(
            name=name,
            parent=queue.parent,
            leaf=tree.leaf(name),
            allocated=_sorted(held),
            guarantee=queue.guarantee,
            limit=queue.limit,
            due=_sorted(self._fair_share.of(name)),
            borrowed=_sorted({r: max(0, amount - guarantee.get(r, 0)) for r, amount in held.items()}),
            pending=_sorted(self._pending.of(name)),
            pending_jobs=jobs,
            used=ledger.at(now_ms),
            share_ppm=self._accounts.share_ppm(name, whole),
            weight_ppm=self._fair_share.weight_ppm(name),
            credit=ledger.credit(due_rate, now_ms),
            rate_milli=ledger.rate,
            days=_days(ledger, now_ms),
            users=tuple(sorted(most(self._accounts.users(name, now_ms))[:USERS_KEPT])),
            jobs=self._attained.past(name, now_ms)[:JOBS_KEPT],
            as_of_ms=now_ms,
            problem=tree.problem(name),
            warning="; ".join(
                filter(None, (_stopped(tree, name), tree.scaled_down(name), tree.capacity_problem(name, capacity)))
            ),
            head=head,
            spending=spending(queue.budget, ledger, now_ms) if queue.budget is not None else None,
            money=queue.money,
            next_guarantee=queue.calendar.next_change(now_ms) if queue.calendar is not None else None,
        )


def _stopped(tree: Tree, name: str) -> str:
    by = tree.stopped_by(name)
    if by is None:
        return ""
    above = "" if by.name == name else f", as is the queue {by.name} above it"
    how = stopped_as(by.stop) if by.stop else "stopped (its budget of the period is used)"
    return f"{how}{above}: no job starts"


def _days(ledger: DecayedUsage, now_ms: int) -> tuple[tuple[int, int], ...]:
    shown = DecayedUsage(ledger.half_life_ms, ledger.used, ledger.as_of_ms, ledger.rate, ledger.days.items())
    shown.settle(now_ms)
    return tuple(sorted(shown.days.items()))


def _sorted(amounts: Mapping[str, int]) -> Amounts:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
