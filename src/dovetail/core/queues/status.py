# SPDX-License-Identifier: Apache-2.0
"""How every queue stands: what users are shown, and what is written into the status of the Queue objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from dovetail.core.model import Problem
from dovetail.core.queues.accounts import USERS_KEPT, most
from dovetail.core.queues.attained import JOBS_KEPT
from dovetail.core.queues.types import Amounts
from dovetail.core.queues.usage import DecayedUsage

if TYPE_CHECKING:
    from dovetail.core.queues.shares import Shares

_MILLION = 1_000_000


class QueueStanding(Struct, frozen=True):
    """How a queue stands. Amounts are by class. `due` is its part of the division now, `borrowed` what it holds beyond
    its guarantee. `share_ppm` is the part of the cluster that it used (decayed), `weight_ppm` its weight among its
    siblings. `credit` is what is due to it by weight less what it used, in milli-GPU times ms. `days`, `users` and
    `jobs` are as in Usage, of users and jobs those that had most: what the others had counts as nothing after a
    restart. `warning` is what is wrong with it although it can be used.
    `head` is the workload that is tried first of those that wait in it and below it, "" for none."""

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


def standings(shares: Shares, now_ms: int) -> list[QueueStanding]:
    """All queues, each before those below it."""
    waiting = shares.waiting()
    return [_standing(shares, name, now_ms, *waiting.get(name, ("", 0))) for name in shares.tree.in_order()]


def _standing(shares: Shares, name: str, now_ms: int, head: str, jobs: int) -> QueueStanding:
    queue, ledger = shares.tree.queues[name], shares.accounts.of(name)
    held, guarantee, capacity = shares.allocated(name), dict(queue.guarantee), shares.accounting.capacity()
    due_rate = shares.whole * shares.fair_share.part_ppm(name) // _MILLION
    return QueueStanding(
        name=name,
        parent=queue.parent,
        leaf=shares.tree.leaf(name),
        allocated=_sorted(held),
        guarantee=queue.guarantee,
        limit=queue.limit,
        due=_sorted(shares.due(name)),
        borrowed=_sorted({r: max(0, amount - guarantee.get(r, 0)) for r, amount in held.items()}),
        pending=_sorted(shares.pending(name)),
        pending_jobs=jobs,
        used=ledger.at(now_ms),
        share_ppm=shares.accounts.share_ppm(name, shares.whole),
        weight_ppm=shares.fair_share.weight_ppm(name),
        credit=ledger.credit(due_rate, now_ms),
        rate_milli=ledger.rate,
        days=_days(ledger, now_ms),
        users=tuple(sorted(most(shares.accounts.users(name, now_ms))[:USERS_KEPT])),
        jobs=shares.attained.past(name, now_ms)[:JOBS_KEPT],
        as_of_ms=now_ms,
        problem=shares.tree.problem(name),
        warning="; ".join(filter(None, (shares.tree.scaled_down(name), shares.tree.capacity_problem(name, capacity)))),
        head=head,
    )


def _days(ledger: DecayedUsage, now_ms: int) -> tuple[tuple[int, int], ...]:
    shown = DecayedUsage(ledger.half_life_ms, ledger.used, ledger.as_of_ms, ledger.rate, ledger.days.items())
    shown.settle(now_ms)
    return tuple(sorted(shown.days.items()))


def _sorted(amounts: Mapping[str, int]) -> Amounts:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
