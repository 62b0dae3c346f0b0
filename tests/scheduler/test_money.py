# SPDX-License-Identifier: Apache-2.0
"""What queues with a budget in money have spent: the collector's own answer, on its way into the queue's record."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from dovetail.aggregated.question import Question
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import DAY_MS, MoneyBudget
from dovetail.core.state import State
from dovetail.cost.price_sources import PriceSources
from dovetail.historyserver.server import answered
from dovetail.kube.api.errors import ApiError
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.queues import Queue, QueueBudget, QueueMoney, QueueSpec
from dovetail.kube.translate.queue_documents import queue_status
from dovetail.kube.translate.queues import queue
from dovetail.scheduler.money import MoneySpending
from tests.historyserver.worlds import HOURS, MARKER, START, write
from tests.scheduler.scripted import BROKEN

QUEUES = ("queue-0", "queue-1", f"{MARKER}queue-0", f"{MARKER}queue-1")
NOW_MS = START + HOURS * 3_600_000
MONTH_END_MS = START + 30 * DAY_MS


class Collector:
    """Answers from the file, as the collector does, or with an error."""

    def __init__(self, path: Path) -> None:
        self.path, self.error, self.asked = path, None, 0
        self.error: Exception | None

    async def request(self, method: str, path: str, *, params: dict[str, str], decode: Any, **_: object) -> Any:
        assert (method, path) == ("GET", "/apis/history.dovetail.dev/v1alpha1/costs")
        self.asked += 1
        if self.error is not None:
            raise self.error
        reply = answered(self.path, PriceSources(), Question("costs", query=tuple(params.items())))
        assert reply.status == 200, reply.body
        return msgspec.json.decode(reply.body, type=decode)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("money") / "history.db"
    write(path, Random(1))
    return path


def budgeted(name: str, parent: str = "", *, currency: str = "USD", period: str = "Month", hold: str = "Hold") -> Queue:
    budget = QueueBudget(money=QueueMoney("100.5", currency), period=period, when_used=hold)
    return Queue(ObjectMeta(name=name, uid=f"uid-{name}"), QueueSpec(parent, budget=budget))


def plain(name: str, parent: str = "") -> Queue:
    return Queue(ObjectMeta(name=name, uid=f"uid-{name}"), QueueSpec(parent))


def spending(store: Path, *queues: Queue, now_ms: int = NOW_MS) -> tuple[MoneySpending, Collector]:
    collector: Any = Collector(store)
    return MoneySpending(collector, lambda: queues, lambda: True, lambda: now_ms), collector


def allocated(store: Path, period: str, *queues: str) -> int:
    """What `dovetail cost --by queue` has, in millionths."""
    question = f'{{"by":"queue","period":"{period}"}}'
    reply = msgspec.json.decode(
        answered(store, PriceSources(), Question("costs", query=(("question", question),))).body
    )
    return sum(row["allocated_micro"] for row in reply["answer"]["rows"] if row["name"] in queues)


def written(obj: Queue, money: MoneySpending | None) -> Queue:
    """The object with the status that is written for it now."""
    state = State()
    state.shares.put_queue(queue(obj))
    (snapshot,) = [one for one in state.queue_snapshots(NOW_MS) if one.name == obj.metadata.name]
    assert isinstance(snapshot, QueueSnapshot)
    spent = money.of.get((obj.metadata.name, obj.metadata.uid)) if money is not None else None
    status = queue_status(snapshot, NOW_MS, None, obj, spent)
    return Queue(obj.metadata, obj.spec, msgspec.json.decode(msgspec.json.encode(status)))


async def test_a_queue_has_spent_what_cost_shows_of_it_and_of_the_queues_below(store: Path) -> None:
    tops = budgeted("team"), budgeted("queue-0", "team"), budgeted(QUEUES[3], period="Day")
    money, collector = spending(store, *tops, plain("queue-1", "team"), plain(QUEUES[2], "queue-1"))
    await money.once()
    month = allocated(store, "2026-11-01..2026-12-01", *QUEUES[:3])
    assert month > 0
    record = queue(written(tops[0], money))
    assert record.money == MoneyBudget(100_500_000, month, MONTH_END_MS, hold=True)
    own = allocated(store, "2026-11-01..2026-12-01", "queue-0")
    assert queue(written(tops[1], money)).money == MoneyBudget(100_500_000, own, MONTH_END_MS, hold=True)
    day = allocated(store, "2026-11-03", QUEUES[3])
    assert queue(written(tops[2], money)).money == MoneyBudget(100_500_000, day, START + 3 * DAY_MS, hold=True)
    # One question for each kind of period.
    assert collector.asked == 2


async def test_what_was_known_stays_where_the_collector_does_not_answer_and_over_a_restart(store: Path) -> None:
    one = budgeted("queue-0")
    money, collector = spending(store, one)
    await money.once()
    known = written(one, money)
    failed = REGISTRY.get_sample_value("dovetail_money_questions_total", {"result": "failed"}) or 0.0
    collector.error = BROKEN
    await money.once()
    assert REGISTRY.get_sample_value("dovetail_money_questions_total", {"result": "failed"}) == failed + 1
    assert queue(written(one, money)).money == queue(known).money
    # Another process knows the object alone.
    assert written(known, None).status["money"] == known.status["money"]
    # An object of the same name is another queue.
    other = Queue(ObjectMeta(name="queue-0", uid="new"), one.spec)
    assert "money" not in written(other, money).status


async def test_nothing_is_asked_without_a_budget_in_money(store: Path) -> None:
    money, collector = spending(store, plain("a"), budgeted("b", period="Moth"))
    collector.error = BROKEN
    await money.once()
    assert (collector.asked, money.of) == (0, {})


async def test_the_prices_of_another_currency_are_not_compared_and_what_has_no_price_is_named(store: Path) -> None:
    one, two = budgeted("queue-0", currency="EUR"), budgeted("queue-1")
    money, _ = spending(store, one, two)
    await money.once()
    euro = written(one, money)
    assert euro.status["money"]["message"].startswith("The prices of the collector are in USD: use that currency here")
    assert queue(euro).money == MoneyBudget(100_500_000, hold=True)
    # The model Z9 has no price.
    assert "GPU-hours have no price" in written(two, money).status["money"]["message"]


async def test_of_a_period_without_a_history_nothing_is_spent(store: Path) -> None:
    one = budgeted("queue-0")
    money, _ = spending(store, one, now_ms=MONTH_END_MS + DAY_MS)
    await money.once()
    found = queue(written(one, money)).money
    assert found is not None and (found.spent, found.until_ms) == (0, MONTH_END_MS + 31 * DAY_MS)


@pytest.mark.parametrize(
    "change",
    [
        {"spent": "-1"}, {"spent": "1e3"}, {"spent": 5}, {"spent": ""}, {"currency": "EUR"}, {"currency": ["USD"]},
        {"periodEnd": "2026-11-30T00:00:00Z"}, {"periodEnd": "soon"}, {"periodEnd": None},
        {"periodStart": "2026-11-02T00:00:00Z"},
    ],
)  # fmt: skip
async def test_a_status_that_the_scheduler_cannot_have_written_counts_as_nothing(
    store: Path, change: dict[str, Any]
) -> None:
    one = budgeted("queue-0")
    money, _ = spending(store, one)
    await money.once()
    known = written(one, money)
    assert queue(known).money != MoneyBudget(100_500_000, hold=True)
    damaged = Queue(one.metadata, one.spec, {**known.status, "money": {**known.status["money"], **change}})
    assert queue(damaged).money == MoneyBudget(100_500_000, hold=True)


async def test_an_answer_of_another_form_is_a_failure(store: Path) -> None:
    one = budgeted("queue-0")
    money, collector = spending(store, one)
    await money.once()
    before = dict(money.of)
    collector.error = ApiError(500, "InternalError", "the collector was upgraded", "GET /costs")
    await money.once()
    assert money.of == before
