# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue budgets` as a user runs it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.queues import budgets
from tests.cli.answers import answer
from tests.cli.clusters import CommandCluster, command_cluster

MONEY = {"amount": 20_000, "currency": "USD"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CommandCluster]:
    with command_cluster(tmp_path) as found:
        yield found


def queue(name: str, status: Any = None, **budget: Any) -> dict[str, Any]:
    meta = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    return meta | {"spec": {"budget": budget} if budget else {}, "status": status or {}}


TIMES = {"periodStart": "2026-11-01T00:00:00Z", "periodEnd": "2026-12-01T00:00:00Z"}
ASKED = "2026-11-16T00:00:00Z"
STATUS = {
    "usage": {"asOf": ASKED},
    "budget": {"used": "120.000", **TIMES},
    "money": {"spent": "15000", "currency": "USD", "asOf": ASKED, "message": "2.0 GPU-hours have no price.", **TIMES},
}


def test_budgets_are_listed_with_what_was_used_and_a_forecast(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "now_ms", lambda: round(datetime.fromisoformat(ASKED).timestamp() * 1000))
    assert cluster.run("queue", "budgets").stdout == "There is no queue.\n"
    cluster.put(queue("bare"))
    assert cluster.run("queue", "budgets").stdout.startswith("No queue has a budget (1 queue has none)")
    vision = queue("vision", STATUS, gpuHours=500, money=MONEY)
    cluster.put(vision, queue("audio", gpuHours="1000"))
    shown = cluster.run("queue", "budgets").stdout.splitlines()
    lines = {tuple(line.split()[:2]): line.split()[2:7] for line in shown}
    assert lines["vision", "GPU-hours"] == ["Month", "120.00", "500.00", "24", "240.00"]
    assert lines["vision", "USD"] == ["Month", "15,000.00", "20,000.00", "75", "30,000.00"]
    assert lines["audio", "GPU-hours"] == ["Month", "-", "1,000.00", "-", "-"]
    assert "What was used of 1 budget is not known: no scheduler has reported it." in shown
    assert "vision, USD: 2.0 GPU-hours have no price." in shown
    found = answer(cluster.run("queue", "budgets", "-o", "json").stdout, "QueueBudgets")
    assert [one["forecast_micro"] for one in found["budgets"]] == [None, 240 * 10**6, 30_000 * 10**6]
    assert (found["queues"], [one["used_up_ms"] for one in found["budgets"]]) == (3, [0, 0, 1_795_219_200_000])
