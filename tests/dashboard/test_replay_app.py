# SPDX-License-Identifier: Apache-2.0
"""The routes of a recorded day: its film, its pages at a time, and what no request gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession

from dovetail.dashboard import day_pages
from dovetail.dashboard.day_pages import DayPages
from dovetail.dashboard.recorded_day import RecordedDay
from dovetail.dashboard.replay_app import replay_app
from dovetail.dashboard.serve import bound, listening_app
from tests.dashboard.test_recorded_day import MINUTE_MS, START_MS
from tests.dashboard.test_recorded_day import recorded as recorded
from tests.patience import PATIENCE_S


@asynccontextmanager
async def replayed(path: Path) -> AsyncIterator[tuple[ClientSession, DayPages]]:
    """A client of the pages of a day that is read."""
    pages, listening = DayPages(RecordedDay(path), "dovetail"), bound("127.0.0.1:0")
    async with (
        listening_app(replay_app(pages), listening),
        ClientSession(f"http://127.0.0.1:{listening.getsockname()[1]}/") as client,
    ):
        for _ in range(int(PATIENCE_S / 0.01)):
            if pages.day.whole:
                break
            await asyncio.sleep(0.01)
        assert pages.day.whole
        yield client, pages


async def test_the_day_its_nodes_and_its_parts_are_data(recorded: Path) -> None:
    async with replayed(recorded) as (client, _):
        async with client.get("/api/replay.json") as reply:
            day = await reply.json()
        assert (day["startMs"], day["endMs"], day["whole"], day["readPermille"], day["problem"]) == (
            START_MS, START_MS + 10 * MINUTE_MS, True, 1000, "",
        )  # fmt: skip
        assert len(day["parts"]) == 1 and day["line"][0] == [START_MS, 8, 8, 0] and len(day["marks"]) == 2
        async with client.get("/api/replay/nodes.json") as reply:
            nodes = (await reply.json())["nodes"]
        assert [one["node"] for one in nodes] == ["a", "b"]
        async with client.get("/api/replay/parts/0.json", headers={"Accept-Encoding": "identity"}) as reply:
            part = await reply.json(content_type="application/json")
        assert part["startMs"] == START_MS and part["changes"][:2] == [[0, 0, "####"], [0, 1, "####"]]
        for number in ("1", "99999999999999999999", "-1", "x"):
            async with client.get(f"/api/replay/parts/{number}.json") as reply:
                assert reply.status == 404


async def test_pages_are_those_of_the_time(recorded: Path) -> None:
    async with replayed(recorded) as (client, pages):
        for minute, waits in ((0, []), (3, ["ns/own"])):
            async with client.get(f"/api/queue.json?at={START_MS + minute * MINUTE_MS}") as reply:
                document = await reply.json()
            assert reply.status == 200 and [one["job"] for one in document["page"]["jobs"]] == waits
        assert document["asOfMs"] == START_MS + 3 * MINUTE_MS
        at = START_MS + 3 * MINUTE_MS
        for path in ("fleet", "jobs", "teams", "leases", "node/a", "job/ns/own"):
            async with client.get(f"/api/{path}.json?at={at}") as reply:
                assert reply.status == 200 and (await reply.json())["page"], path
        async with client.get(f"/api/fleet.csv?at={at}") as reply:
            assert "attachment" in reply.headers["Content-Disposition"] and "####" in await reply.text()
        async with client.get(f"/api/node/b.json?at={START_MS + 10 * MINUTE_MS}") as reply:
            assert reply.status == 404
        assert len(pages._boards) <= day_pages.KEPT


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("queue.json", 400, "epoch milliseconds"),
        ("queue.json?at=x", 400, "epoch milliseconds"),
        ("queue.json?at=99999999999999999999", 400, "epoch milliseconds"),
        ("queue.json?at=1", 404, "has not this time"),
        ("nothing.json?at=1", 404, "no answer"),
        ("idle.json?at=1", 404, "no answer"),
        ("scheduler.json?at=1", 404, "no answer"),
        ("queue.xml?at=1", 404, "no answer"),
    ],
)
@pytest.mark.slow
async def test_what_it_has_not_has_its_reason(recorded: Path, path: str, status: int, why: str) -> None:
    async with replayed(recorded) as (client, _), client.get(f"/api/{path}") as reply:
        assert reply.status == status and why in (await reply.json())["error"]


async def test_it_is_for_the_own_machine_with_the_strict_policy(recorded: Path) -> None:
    async with replayed(recorded) as (client, _):
        for path, status in (("/", 200), ("/queue", 200), ("/job/ns/own", 200), ("/healthz", 200), ("/cost", 404)):
            async with client.get(path) as reply:
                assert reply.status == status, path
                assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        async with client.get("/") as reply:
            assert "data-replay" in await reply.text()
        async with client.get("/api/replay.json", headers={"Host": "evil.example"}) as reply:
            assert reply.status == 400
        async with client.get("/assets/replay.js") as reply:
            assert reply.status == 200


async def test_few_questions_wait(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_pages, "MOST_WAITING", 2)
    async with replayed(recorded) as (client, _):

        async def status(minute: int) -> int:
            async with client.get(f"/api/queue.json?at={START_MS + minute * MINUTE_MS}") as reply:
                return reply.status

        found = await asyncio.gather(*map(status, range(8)))
        assert set(found) == {200, 429}


async def test_a_recording_that_was_taken_away_is_reported(recorded: Path) -> None:
    async with replayed(recorded) as (client, _):
        (recorded / "000001.jsonl").unlink()
        async with client.get(f"/api/queue.json?at={START_MS}") as reply:
            assert reply.status == 503 and "cannot be repeated" in (await reply.json())["error"]
