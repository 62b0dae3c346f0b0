# SPDX-License-Identifier: Apache-2.0
"""Budgets of queues: GPU-hours or money of a day, a week or a month, and which queues have used theirs.

Rules
- What counts is what the queue is charged, with the queues below it (`accounts`): GPU time by the rate of its pods,
  from when they are placed, without decay. So a budget goes on over a restart, with the usage in the status of the
  queue.
- Money that was spent is an input, from the history and its prices: the core has neither. It is as old as that is, and
  counts until its period is over.
- Periods are of the calendar, in UTC: a week begins on Monday. Days with usage are kept for the longest one, 31 days.
- A queue that has used its budget, and is to be held then, is stopped as by `Hold` until the period is over: what runs
  goes on, and is charged. It starts jobs again where the budget is raised, or a charge is taken back.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.queues.accounts import Accounts
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import DAY_MS, Budgeted, GpuBudget
from dovetail.core.queues.usage import DecayedUsage

_MONDAY = 3
"""1970-01-01 was a Thursday: day -3 was a Monday."""
_ERA_DAYS, _CENTURY_DAYS, _FOUR_YEARS_DAYS = 146_097, 36_524, 1460
_TO_MARCH_0000 = 719_468
"""Days from 0000-03-01 to 1970-01-01."""


class Spending(Struct, frozen=True):
    """What was used of a budget in the period from `start_ms` to `until_ms`, in milli-GPU times ms."""

    budget: GpuBudget
    start_ms: int
    until_ms: int
    used: int


def civil(day: int) -> tuple[int, int, int]:
    """Year, month and day of a day since 1970, in the Gregorian calendar.

    Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days. There a year begins in
    March, so that the leap day is its last."""
    era, of_era = divmod(day + _TO_MARCH_0000, _ERA_DAYS)
    year = (of_era - of_era // _FOUR_YEARS_DAYS + of_era // _CENTURY_DAYS - of_era // (_ERA_DAYS - 1)) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    march_based = (5 * of_year + 2) // 153
    month = march_based + 3 if march_based < 10 else march_based - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * march_based + 2) // 5 + 1


def period(of: Budgeted, now_ms: int) -> tuple[int, int]:
    """The period that it is in, in epoch ms."""
    today = now_ms // DAY_MS
    if of == "Day":
        first, end = today, today + 1
    elif of == "Week":
        first = today - (today + _MONDAY) % 7
        end = first + 7
    else:
        first = today - civil(today)[2] + 1
        # Some day of the next month.
        later = first + 31
        end = later - civil(later)[2] + 1
    return first * DAY_MS, end * DAY_MS


def spending(budget: GpuBudget, usage: DecayedUsage, now_ms: int) -> Spending:
    """What was used of the budget by now."""
    start_ms, until_ms = period(budget.period, now_ms)
    settled = sum([amount for day, amount in usage.days.items() if day * DAY_MS >= start_ms])
    since_ms = max(usage.as_of_ms, start_ms)
    return Spending(budget, start_ms, until_ms, settled + usage.rate * max(0, now_ms - since_ms))


class QueueBudgets:
    """The budgets of the queues in `tree`. `next_ms` is when something is due: a budget will be used up, if the rates
    stay as they are, or a period is over; None without budgets that stop a queue."""

    def __init__(self, tree: Tree, accounts: Accounts) -> None:
        self._tree = tree
        self._accounts = accounts
        self.next_ms: int | None = None

    def settle(self) -> bool:
        """Find the queues that have used their budget by now. Returns whether these are others than before."""
        budgeted = self._tree.budgeted()
        if not budgeted and not self._tree.used_up:
            self.next_ms = None
            return False
        now_ms = self._accounts.now_ms
        used_up: dict[str, int] = {}
        due: list[int] = []
        for queue in budgeted:
            budget, money = queue.budget, queue.money
            if budget is not None and budget.hold:
                usage = self._accounts.of(queue.name)
                one = spending(budget, usage, now_ms)
                left = budget.amount - one.used
                due.append(one.until_ms)
                if left <= 0:
                    used_up[queue.name] = one.until_ms
                elif usage.rate > 0:
                    due.append(now_ms + -(-left // usage.rate))
            if money is not None and money.hold and money.used_up(now_ms):
                due.append(money.until_ms)
                used_up[queue.name] = max(money.until_ms, used_up.get(queue.name, 0))
        self.next_ms = min(due, default=None)
        return self._tree.set_used_up(used_up)
