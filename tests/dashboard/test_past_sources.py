# SPDX-License-Identifier: Apache-2.0
"""Where answers about the past are from: a file, by a process of its own; the collector; nothing."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from dovetail.core.json_text import decode_json
from dovetail.cost.costs import CostAnswer
from dovetail.dashboard import past_sources
from dovetail.dashboard.board import PageBoard, Topic
from dovetail.dashboard.past_page_types import BudgetsPage
from dovetail.dashboard.past_process import ReadHistory
from dovetail.dashboard.past_sources import CollectorHistory, NoHistory, OwnHistory, WithBudgets
from dovetail.dashboard.sources import SourceAway
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.objects.history import COSTS, QUESTION
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.operator.rendering.sources import FOLDER
from dovetail.playground import Playground
from dovetail.playground.lending import definitions
from tests.dashboard.worlds import NOW_MS, FakeSource, node
from tests.historyserver.worlds import OWN, write

pytestmark = pytest.mark.asyncio
BUDGETED = {
    "apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "research"},
    "spec": {"namespaces": {"names": ["research"]}, "budget": {"period": "Month", "gpuHours": 50}},
}  # fmt: skip
COST = ViewRequest(COSTS, "", query={QUESTION: "{}"})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "history.db", Random(7))
    return tmp_path / "history.db"


async def test_a_file_is_answered_by_one_process_which_ends_with_the_source(store: Path) -> None:
    async with aclosing(OwnHistory(ReadHistory(str(store)))) as past:
        answers = await asyncio.gather(past.ask(COST), past.ask(COST))
        process = past._process
        assert process is not None and process.returncode is None
        assert decode_json(answers[0].answer, CostAnswer).total.cost_micro > 0
        assert answers[0].answer == answers[1].answer
        alone = await past.ask(ViewRequest(COSTS, OWN, query={QUESTION: '{"by":"namespace"}'}, alone=True))
        names = {one.name for one in decode_json(alone.answer, CostAnswer).rows}
        assert OWN in names and not any("zmarkz" in name for name in names)
        with pytest.raises(NoSuchObject, match="none of team"):
            await past.ask(ViewRequest(COSTS, "", query={QUESTION: '{"by":"x"}'}))
        assert past._process is process
    assert process.returncode is not None


async def test_a_process_that_is_gone_or_slow_is_reported_and_another_takes_its_place(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    async with aclosing(OwnHistory(ReadHistory(str(store)))) as past:
        await past.ask(COST)
        assert past._process is not None
        past._process.kill()
        await past._process.wait()
        with pytest.raises(SourceAway, match="ended before it answered"):
            await past.ask(COST)
        monkeypatch.setattr(past_sources, "TIME_S", 0.0)
        with pytest.raises(SourceAway, match="a shorter period"):
            await past.ask(COST)
        monkeypatch.undo()
        monkeypatch.setattr(past_sources, "MOST_WAITING", 0)
        with pytest.raises(SourceAway, match="wait already"):
            await past.ask(COST)
        monkeypatch.undo()
        assert (await past.ask(COST)).answer


async def test_a_file_that_is_not_there_is_away(tmp_path: Path) -> None:
    async with aclosing(OwnHistory(ReadHistory(str(tmp_path / "none.db")))) as past:
        with pytest.raises(SourceAway, match=r"none\.db"):
            await past.ask(COST)


async def test_budgets_are_those_of_the_cluster_beside_any_history(store: Path) -> None:
    playground = Playground()
    config = ClusterConfig(await playground.start(still=True))
    for document in definitions(FOLDER / "crds"):
        playground.put(document)
    playground.put(BUDGETED)
    try:
        async with aclosing(OwnHistory(ReadHistory(str(store)))) as own:
            past = WithBudgets(own, config)
            board = PageBoard(FakeSource(node("a")), (), lambda: NOW_MS, past)
            page = (await board.sheet(Topic("budgets"))).page
            assert isinstance(page, BudgetsPage)
            assert [(one.queue, one.unit, one.limit_micro) for one in page.budgets] == [
                ("research", "GPU-hours", 50 * 10**6)
            ]
            assert (await board.sheet(Topic("budgets", namespace="research"))).status == 404
            assert (await past.ask(COST)).answer
    finally:
        await playground.stop()
    with pytest.raises(SourceAway):
        await WithBudgets(NoHistory(), config).ask(ViewRequest(QUEUES, ""))


async def test_a_cluster_without_a_collector_has_no_history() -> None:
    playground = Playground()
    config = ClusterConfig(await playground.start(still=True))
    try:
        async with Client(config) as client:
            with pytest.raises(NoSuchObject, match=r"spec\.history\.enabled"):
                await CollectorHistory(config, client).ask(COST)
    finally:
        await playground.stop()
    async with Client(config) as client:
        with pytest.raises(SourceAway):
            await CollectorHistory(config, client).ask(COST)
    with pytest.raises(NoSuchObject, match="--store FILE"):
        await NoHistory().ask(COST)
