# SPDX-License-Identifier: Apache-2.0
"""Budgets of queues in money: what spec and status have of them.

Rules
- Amounts are decimal numbers of a currency; the core has them in millionths, rounded up.
- What the status has counts for the budget if it is of the same currency, and of a period as the budget has it.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil
from typing import Any

import msgspec

from dovetail.core.model import Problem
from dovetail.core.quantities import QuantityError, parse
from dovetail.core.queues.budgets import period
from dovetail.core.queues.types import Budgeted, MoneyBudget
from dovetail.kube.objects import queues as wire
from dovetail.kube.objects.base import Wire, epoch_ms

MICRO = 1_000_000
MOST_MICRO = 10**15 * MICRO
_CURRENCY = re.compile("[A-Z]{3}")
_SPENT = re.compile(r"[0-9]{1,15}(\.[0-9]{1,6})?")


def money_budget(obj: wire.Queue, of: Budgeted, hold: bool, problems: list[Problem]) -> MoneyBudget | None:
    """The budget in money, None without one."""
    money = obj.spec.budget.money if obj.spec.budget is not None else None
    if money is None:
        return None
    if _CURRENCY.fullmatch(money.currency) is None:
        rule = "must be the code of a currency, of three letters; nearest valid value: USD"
        problems.append(Problem("spec.budget.money.currency", money.currency, rule))
        return None
    try:
        amount = ceil(parse(str(money.amount)) * MICRO)
    except QuantityError:
        amount = -1
    if not 0 <= amount < MOST_MICRO:
        rule = "must be an amount of money from 0 to 10^15, such as 20000 or 1500.50; nearest valid value: 0"
        problems.append(Problem("spec.budget.money.amount", str(money.amount), rule))
        return None
    known = money_spent(obj)
    until_ms = epoch_ms(known.period_end) if known is not None and known.currency == money.currency else 0
    if known is None or not until_ms or period(of, until_ms - 1) != (epoch_ms(known.period_start), until_ms):
        return MoneyBudget(amount, hold=hold)
    return MoneyBudget(amount, int(Decimal(known.spent) * MICRO), until_ms, hold)


class _MoneyAlone(Wire, frozen=True):
    money: wire.MoneySpent | None = None


def money_spent(obj: wire.Queue) -> wire.MoneySpent | None:
    """What the status has of money that was spent; None where it has nothing that the scheduler can have written."""
    try:
        found = msgspec.convert(obj.status, _MoneyAlone).money if obj.status is not None else None
    except msgspec.ValidationError:
        return None
    return found if found is not None and _SPENT.fullmatch(found.spent) else None


def money_document(spent: wire.MoneySpent) -> dict[str, Any]:
    """As the status has it."""
    document: dict[str, Any] = msgspec.to_builtins(spent)
    return {name: value for name, value in document.items() if value not in ("", None)}
