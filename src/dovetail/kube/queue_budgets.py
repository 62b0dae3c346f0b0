# SPDX-License-Identifier: Apache-2.0
"""Budgets of queues with what was used of them, from the objects: the answer of `dovetail queue budgets`.

Rules
- What was used is what the scheduler wrote last into the status of the queue, in the period of now; else it is not
  known.
- The forecast is that the rest of the period goes on as the part of it that is known did. Less than a day of it, or
  than a twelfth of a shorter period, is not enough for one.
- Amounts are millionths of a GPU-hour, or of the currency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.queues.budgets import period
from dovetail.core.queues.types import DAY_MS, GPU_HOUR
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.objects import queues as wire
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.money import MICRO, money_spent
from dovetail.kube.translate.queues import PERIODS, queue, status_of

GPU_HOURS = "GPU-hours"
_PART_OF_PERIOD = 12


class QueueBudgetUse(Struct, frozen=True):
    """A budget of a queue. `unit` is GPU-hours, or a currency; `when_used` is Report or Hold. `used_micro` is known up
    to `as_of_ms`, None if it is not known; `forecast_micro` is for the end of the period, None without one, and
    `used_up_ms` when the budget is then used up, 0 if it is not in the period. `message` is why a budget is not
    compared, or what has no price."""

    queue: str
    unit: str
    period: str
    when_used: str
    start_ms: int
    end_ms: int
    limit_micro: int
    used_micro: int | None = None
    as_of_ms: int = 0
    forecast_micro: int | None = None
    used_up_ms: int = 0
    message: str = ""


class QueueBudgetUses(Struct, frozen=True):
    """The budgets by queue, and how many `queues` there are with and without."""

    now_ms: int
    queues: int
    budgets: tuple[QueueBudgetUse, ...]


async def read_budgets(config: ClusterConfig, now_ms: int) -> QueueBudgetUses:
    """Those of all queues. Raises KubeError."""
    async with Client(config, user_agent="dovetail") as client:
        listed = await list_all(client, QUEUES, wire.Queue)
    return budget_uses(listed.objects.values(), now_ms)


def budget_uses(queues: Iterable[wire.Queue], now_ms: int) -> QueueBudgetUses:
    found = sorted(queues, key=lambda one: one.metadata.name)
    return QueueBudgetUses(now_ms, len(found), tuple(one for each in found for one in _of_queue(each, now_ms)))


def _of_queue(found: wire.Queue, now_ms: int) -> Iterator[QueueBudgetUse]:
    """GPU-hours, then money. A budget that is not valid is none; `dovetail doctor` shows it."""
    read, written = queue(found), found.spec.budget
    of = PERIODS.get(written.period) if written is not None else None
    if written is None or of is None:
        return
    now = period(of, now_ms)
    if read.budget is not None:
        status = status_of(found)
        spent, usage = status.budget, status.usage
        bare = QueueBudgetUse(
            read.name, GPU_HOURS, written.period, written.when_used, *now, read.budget.amount * MICRO // GPU_HOUR
        )
        begun_ms = epoch_ms(spent.period_start) if spent is not None else 0
        used = _micro(spent.used) if spent is not None and begun_ms == now[0] else None
        yield _with_use(bare, used, epoch_ms(usage.as_of) if usage is not None else 0)
    if read.money is not None and written.money is not None:
        money = money_spent(found)
        bare = QueueBudgetUse(
            read.name, written.money.currency, written.period, written.when_used, *now, read.money.amount,
            message=money.message if money is not None else "",
        )  # fmt: skip
        known = money is not None and money.currency == bare.unit and epoch_ms(money.period_start) == now[0]
        yield _with_use(
            bare, _micro(money.spent) if money is not None and known else None,
            epoch_ms(money.as_of) if money is not None else 0,
        )  # fmt: skip


def _micro(text: str) -> int | None:
    try:
        return int(Decimal(text) * MICRO)
    except (InvalidOperation, ValueError, OverflowError):
        return None


def _with_use(bare: QueueBudgetUse, used: int | None, as_of_ms: int) -> QueueBudgetUse:
    if used is None:
        return bare
    whole_ms, known_ms = bare.end_ms - bare.start_ms, min(as_of_ms, bare.end_ms) - bare.start_ms
    forecast, used_up_ms = None, 0
    if known_ms >= min(DAY_MS, whole_ms // _PART_OF_PERIOD):
        forecast = used * whole_ms // known_ms
        if used and bare.limit_micro <= forecast:
            used_up_ms = bare.start_ms + bare.limit_micro * known_ms // used
    return replace(bare, used_micro=used, as_of_ms=as_of_ms, forecast_micro=forecast, used_up_ms=used_up_ms)
