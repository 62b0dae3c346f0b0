# SPDX-License-Identifier: Apache-2.0
"""Budgets of queues with what the status has of their use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import convert

from dovetail.kube.objects.queues import Queue
from dovetail.kube.queue_budgets import QueueBudgetUse, budget_uses


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOW_MS = ms("2026-11-11T12:00")
HOURS = {"used": "350.000", "periodStart": "2026-11-01T00:00:00Z", "periodEnd": "2026-12-01T00:00:00Z"}
MONEY = {"spent": "5000.5", "currency": "USD", "periodStart": "2026-11-01T00:00:00Z",
         "periodEnd": "2026-12-01T00:00:00Z", "asOf": "2026-11-11T00:00:00Z"}  # fmt: skip


def uses(budget: dict[str, Any], status: Any) -> tuple[QueueBudgetUse, ...]:
    found = {"metadata": {"name": "vision"}, "spec": {"budget": budget}, "status": status}
    return budget_uses([convert(found, Queue)], NOW_MS).budgets


def status(**parts: Any) -> dict[str, Any]:
    return {"usage": {"asOf": "2026-11-11T12:00:00Z"}, **parts}


def test_gpu_hours_and_money_with_what_they_come_to() -> None:
    budget = {"gpuHours": "500", "money": {"amount": "20000", "currency": "USD"}, "whenUsed": "Hold"}
    hours, money = uses(budget, status(budget=HOURS, money=MONEY))
    assert (hours.unit, hours.limit_micro, hours.used_micro) == ("GPU-hours", 5 * 10**8, 35 * 10**7)
    assert (hours.period, hours.when_used) == ("Month", "Hold")
    # 350 in 10.5 of 30 days: 1,000 in all of them, and 500 after 15 days.
    assert (hours.forecast_micro, hours.used_up_ms) == (10**9, ms("2026-11-16T00:00"))
    assert (money.unit, money.used_micro, money.as_of_ms) == ("USD", 5_000_500_000, ms("2026-11-11T00:00"))
    assert (money.forecast_micro, money.used_up_ms) == (15_001_500_000, 0)
    assert (money.start_ms, money.end_ms) == (ms("2026-11-01T00:00"), ms("2026-12-01T00:00"))


@pytest.mark.parametrize(
    "status",
    [None, {}, "damaged", {"budget": {"used": "many", "periodStart": "2026-11-01T00:00:00Z"}},
     {"budget": HOURS | {"periodStart": "2026-10-01T00:00:00Z"}, "money": MONEY | {"currency": "EUR"}}],
)  # fmt: skip
def test_what_no_scheduler_wrote_for_this_period_is_not_known(status: Any) -> None:
    for one in uses({"gpuHours": "500", "money": {"amount": "1", "currency": "USD"}}, status):
        assert (one.used_micro, one.forecast_micro, one.used_up_ms) == (None, None, 0)


def test_a_period_that_has_just_begun_has_no_forecast() -> None:
    begun = {"used": "1", "periodStart": "2026-11-11T00:00:00Z", "periodEnd": "2026-11-12T00:00:00Z"}
    early = {"usage": {"asOf": "2026-11-11T01:59:00Z"}, "budget": begun}
    later = {"usage": {"asOf": "2026-11-11T02:00:00Z"}, "budget": begun}
    found = [uses({"gpuHours": "4", "period": "Day"}, status)[0] for status in (early, later)]
    assert [one.forecast_micro for one in found] == [None, 12 * 10**6]


def test_queues_without_a_budget_and_with_one_that_is_not_valid_have_none() -> None:
    assert uses({"gpuHours": "-1"}, None) == uses({"gpuHours": "5", "period": "Year"}, None) == ()
    assert uses({"money": {"amount": "5", "currency": "dollars"}}, None) == ()
