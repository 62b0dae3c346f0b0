# SPDX-License-Identifier: Apache-2.0
"""What the queues with a budget in money have spent: asked of the collector of the history, which has the prices.

Rules
- A queue has spent what `dovetail cost --by queue` has as allocated of it and of the queues below it, in the period of
  its budget up to the end of the history: of UTC days, as the period of a budget in GPU-hours.
- It is written into the status of the queue (`queue_status`), and is read from there like all of the object. So a
  scheduler that starts goes on from it, and where the collector does not answer the last answer counts until the period
  is over.
- Only a process that decides asks, and only if a queue has such a budget: one question for each kind of period.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.core.queues.budgets import period
from dovetail.core.queues.types import Budgeted
from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.objects.base import time_text
from dovetail.kube.objects.history import COSTS, QUESTION
from dovetail.kube.objects.queues import MoneySpent, Queue
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.translate.money import MICRO
from dovetail.kube.translate.queues import PERIODS
from dovetail.scheduler import metrics

EVERY_S = 600.0
_ATTEMPTS = Attempts(timeout_s=55.0, retries=0)
_HOUR_S = 3600


class _CostRow(Struct, frozen=True):
    name: str
    kind: str
    allocated_micro: int
    unpriced_gpu_s: int


class _Costs(Struct, frozen=True):
    """What is read of the answer."""

    end_ms: int
    currency: str
    rows: tuple[_CostRow, ...]


class MoneySpending:
    """`of` is what was spent by queue and uid. `queues` are the objects as they are known, `asks` is whether this
    process decides."""

    def __init__(
        self,
        client: Client,
        queues: Callable[[], Iterable[Queue]],
        asks: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._client, self._queues, self._asks, self._now_ms = client, queues, asks, now_ms
        self._failure = ""
        self.of: dict[tuple[str, str], MoneySpent] = {}

    async def run(self) -> None:
        """Ask again and again until cancelled."""
        while True:
            if self._asks():
                await self.once()
            await asyncio.sleep(EVERY_S if self._asks() else 1.0)

    async def once(self) -> None:
        """Ask once. What fails is logged and counted."""
        queues = {one.metadata.name: one for one in self._queues()}
        of_period: dict[Budgeted, list[Queue]] = {}
        for queue in queues.values():
            budget = queue.spec.budget
            if budget is not None and budget.money is not None and budget.period in PERIODS:
                of_period.setdefault(PERIODS[budget.period], []).append(queue)
        found: dict[tuple[str, str], MoneySpent] = {}
        try:
            for of, asking in of_period.items():
                start_ms, until_ms = period(of, self._now_ms())
                costs = await self._costs(start_ms, until_ms)
                for queue in asking:
                    found[queue.metadata.name, queue.metadata.uid] = _spent(queue, queues, costs, start_ms, until_ms)
        except (KubeError, JsonError) as error:
            metrics.count(metrics.MONEY_QUESTIONS, "failed")
            if str(error) != self._failure:
                metrics.log.warning("budgets in money: the collector does not answer: %s; asking again", error)
            self._failure = str(error)
            return
        if of_period:
            metrics.count(metrics.MONEY_QUESTIONS, "answered")
        self._failure, self.of = "", found

    async def _costs(self, start_ms: int, until_ms: int) -> _Costs:
        """Raises KubeError, JsonError."""
        question = {"by": "queue", "period": f"{time_text(start_ms)}..{time_text(until_ms)}"}
        params = {QUESTION: msgspec.json.encode(question).decode()}
        answer = await self._client.request("GET", COSTS.path(), params=params, decode=ViewDocument, attempts=_ATTEMPTS)
        return decode_json(answer.answer, _Costs)


def _spent(queue: Queue, queues: Mapping[str, Queue], costs: _Costs, start_ms: int, until_ms: int) -> MoneySpent:
    money = queue.spec.budget.money if queue.spec.budget is not None else None
    assert money is not None
    own = [row for row in costs.rows if row.kind == "group" and queue.metadata.name in _path(row.name, queues)]
    unpriced_s = sum(row.unpriced_gpu_s for row in own)
    message = ""
    if costs.currency and costs.currency != money.currency:
        message = (
            f"The prices of the collector are in {costs.currency}: use that currency here, or give the collector "
            f"a rate (--currency, --rate). Until then the budget is not compared."
        )
    elif unpriced_s:
        message = f"{unpriced_s / _HOUR_S:,.1f} GPU-hours have no price: dovetail cost shows which."
    micro = sum(row.allocated_micro for row in own)
    return MoneySpent(
        f"{micro // MICRO}.{micro % MICRO:06}", costs.currency or money.currency, _time(start_ms), _time(until_ms),
        _time(min(max(costs.end_ms, start_ms), until_ms)), message,
    )  # fmt: skip


def _path(name: str, queues: Mapping[str, Queue]) -> Iterator[str]:
    """The queue and those above it."""
    seen = set[str]()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = queues[name].spec.parent if name in queues else ""


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)
