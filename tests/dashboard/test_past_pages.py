# SPDX-License-Identifier: Apache-2.0
"""The pages about the past: what the commands print, as data; what a user of one namespace sees of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.demo.past import write_past
from dovetail.dashboard.access import Right, wrong_namespace
from dovetail.dashboard.past_pages import NEEDED, OF_PAST, PAST_PAGES
from dovetail.kube.api.reviews import Refusal
from dovetail.kube.objects.history import COSTS
from tests.dashboard.worlds import NOW_MS, FakePast, FakeSource, node, served
from tests.historyserver.worlds import MARKER, OWN, write

pytestmark = pytest.mark.asyncio
PERIOD = "2026-11-01..2026-11-05"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("past") / "history.db"
    write(path, Random(5))
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the demo: long enough for advice."""
    path = tmp_path_factory.mktemp("past") / "demo.db"
    write_past(path, NOW_MS)
    return path


async def page_of(client: Any, path: str, query: str = "") -> Any:
    async with client.get(f"/api/{path}.json{query}") as reply:
        document = await reply.json()
        assert reply.status == 200, document
        return document["page"]


def printed(store: Path, *arguments: str) -> Any:
    """What a command answers."""
    done = CliRunner().invoke(cli, [*arguments, "--store", str(store), "-o", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.mark.parametrize("by", ["team", "job", "model", "node", "day"])
async def test_costs_are_those_of_the_command_and_add_up(store: Path, by: str) -> None:
    answer = printed(store, "cost", "--by", by, "--period", PERIOD)
    async with served(FakeSource(node("a")), past=FakePast(store)) as (client, _):
        page = await page_of(client, f"cost/{by}/{PERIOD}")
    groups, total = page["groups"], page["total"]
    assert [one["name"] for one in groups] == [one["name"] for one in answer["rows"]]
    assert abs(total["cost"] - answer["total"]["cost_micro"] / 1e6) < 0.01
    for name in ("cost", "allocated", "unallocated", "unhealthy", "used", "idle", "gpu_hours"):
        assert sum(round(100 * (one[name] or 0)) for one in groups) == round(100 * total[name]), name
    parts = ("used", "idle", "unmeasured")
    assert round(100 * total["allocated"]) == sum(round(100 * total[one]) for one in parts)
    assert page["prices"] == answer["prices"] and page["currency"] == "USD"


@pytest.mark.slow
async def test_idle_pods_and_advice_are_those_of_the_commands(demo: Path) -> None:
    idle, advised = printed(demo, "idle"), printed(demo, "advise")
    async with served(FakeSource(node("a")), past=FakePast(demo)) as (client, _):
        page = await page_of(client, "idle")
        assert [(one["pod"], one["unused"], one["action"]) for one in page["pods"]] == [
            (one["pod"], one["unused"], one["action"]) for one in idle["pods"]
        ]
        page = await page_of(client, "advice")
        rows = [(one["job"], row["title"]) for one in advised["jobs"] for row in one["advice"]]
        assert rows and [(one["job"], one["title"]) for one in page["advice"]] == rows
        assert page["jobs"] == len(advised["jobs"])


async def test_the_past_of_a_job_has_its_runs_its_use_and_its_costs(store: Path) -> None:
    costs = {one["name"]: one for one in printed(store, "cost", "--by", "job")["rows"] if one["kind"] == "group"}
    async with served(FakeSource(node("a")), past=FakePast(store)) as (client, _):
        for name in list(costs)[:3]:
            page = await page_of(client, f"past/{name}")
            assert abs((page["cost"]["cost"] or 0) - costs[name]["cost_micro"] / 1e6) < 0.02
            runs = printed(store, "history", name)
            assert [(one["outcome"], one["waited_ms"], one["pods"]) for one in page["runs"]] == [
                (one["outcome"], one["waited_ms"], one["pods"]) for one in runs
            ]
            assert {one["job"] for one in page["runs"]} == {name}
            assert page["model"] or not page["measured_percent"]
        assert (await page_of(client, f"past/{OWN}/unheard"))["runs"] == []


async def test_the_days_of_teams_are_those_of_the_report(demo: Path) -> None:
    async with served(FakeSource(node("a")), past=FakePast(demo)) as (client, _):
        page = await page_of(client, "trend")
    assert page["days"] == sorted(page["days"]) and len(page["days"]) == 7
    for at in (0, 4, 6):
        rows = printed(demo, "report", "--by", "queue", "--period", page["days"][at])["rows"]
        expected = {
            one["name"]: (round(one["allocated_gpu_s"] / 3600, 2), round(one["used_gpu_s"] / 3600, 2))
            for one in rows
            if one["kind"] == "group"
        }
        shown = {one["queue"]: (one["allocated_hours"][at], one["used_hours"][at]) for one in page["queues"]}
        assert {name: hours for name, hours in shown.items() if any(hours)} == expected
        assert expected["research"][0] > 0


@pytest.mark.slow
async def test_every_page_of_the_past_is_a_table(demo: Path) -> None:
    async with served(FakeSource(node("a")), past=FakePast(demo)) as (client, _):
        for path in (*PAST_PAGES, "cost/team/7d", "past/research/finetune"):
            async with client.get(f"/api/{path}.csv") as reply:
                rows = list(csv.reader(StringIO(await reply.text())))
                assert reply.status == 200 and len(rows) > 1, path


async def test_a_question_that_has_no_answer_is_answered_with_what_to_do(store: Path) -> None:
    async with served(FakeSource(node("a")), past=FakePast(store)) as (client, _):
        for path, words in (("cost/nobody/7d", "none of team, queue"), ("cost/team/yesterday", "yesterday")):
            async with client.get(f"/api/{path}.json") as reply:
                assert reply.status == 404 and words in (await reply.json())["error"]
        async with client.get("/api/cost/team.json") as reply:
            assert reply.status == 404
    async with served(FakeSource(node("a"))) as (client, _):
        for path in ("idle", "advice", "cost/team/7d", "past/team-a/x"):
            async with client.get(f"/api/{path}.json") as reply:
                error = (await reply.json())["error"]
                assert reply.status == 404 and "--store FILE" in error and "spec.history.enabled" in error


class WithoutCosts:
    """Users of team-a without the right to list costs."""

    async def refusal(
        self, authorization: str, namespace: str, needed: Collection[Right] = ()
    ) -> Refusal | None:  # fmt: skip
        return (
            (403, "no costs")
            if COSTS in [one.resource for one in needed] or namespace != OWN
            else wrong_namespace(namespace)
        )


async def test_a_user_of_one_namespace_sees_no_name_of_another(store: Path) -> None:
    past = FakePast(store)
    async with served(FakeSource(node("a")), past=past) as (client, _):
        for path in ("idle", "advice", f"cost/team/{PERIOD}", f"cost/job/{PERIOD}", f"past/{OWN}/job-0"):
            page = await page_of(client, path, f"?namespace={OWN}")
            assert MARKER not in json.dumps(page), path
        assert all(one.alone and one.namespace == OWN for one in past.asked)
        for path in (f"past/{MARKER}-b/{MARKER}job-0",):
            page = await page_of(client, path, f"?namespace={OWN}")
            assert page["runs"] == [] and page["cost"] is None
    async with served(FakeSource(node("a")), WithoutCosts(), past=FakePast(store)) as (client, _):
        for path, status in (("idle", 200), ("advice", 200), ("cost/team/7d", 403), (f"past/{OWN}/job-0", 403)):
            async with client.get(f"/api/{path}.json?namespace={OWN}") as reply:
                assert reply.status == status, path
        async with client.get(f"/api/stream?namespace={OWN}&on=idle&on=cost/team/7d") as reply:
            assert reply.status == 200
            text = ""
            while "idle" not in text:
                text += (await reply.content.readany()).decode()
            assert "cost" not in text
        async with client.get("/api/stream?on=idle") as reply:
            assert reply.status == 403


async def test_each_page_needs_the_rights_of_its_commands() -> None:
    assert NEEDED.keys() == PAST_PAGES.keys() | OF_PAST.keys()
    assert all(NEEDED.values())
