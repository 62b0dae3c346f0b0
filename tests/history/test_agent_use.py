# SPDX-License-Identifier: Apache-2.0
"""What the agents answer of the use of GPUs is read, and a node writes about itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from dovetail.history import agent_use as module
from dovetail.history.agent_use import AgentUseReader, credible, phase
from dovetail.history.records import HOUR_MS, USE_BINS, UseHour
from tests.patience import PATIENCE_S

NOW_MS = 500_000 * HOUR_MS + 1_000_000
HOUR = NOW_MS - NOW_MS % HOUR_MS


def hour(gpu: str = "a", pod: str = "p", ms: int = 1000, **fields: Any) -> UseHour:
    bins = (ms, *([0] * (USE_BINS - 1)))
    return UseHour(gpu, pod, HOUR, ms, 0, ms, histogram=bins, **({"source": "n1/5"} | fields))


class Agent:
    """An agent at a port of its own. `answers` returns the body for the hours since a time."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: Callable[[], bytes] = lambda: b"[]"
        self.status = 200

    async def use(self, request: web.Request) -> web.Response:
        self.asked.append(int(request.query["since"]))
        return web.Response(body=self.answers(), status=self.status)


class Reading:
    def __init__(self) -> None:
        self.agents: dict[str, str] = {}
        self.now_ms = NOW_MS
        self.taken: list[list[UseHour]] = []
        self.use = AgentUseReader(lambda: self.agents, self._may_use, self._take, lambda: self.now_ms, period_s=0.02)

    def _may_use(self, node: str, gpu: str, pod: str) -> bool:
        return gpu == "a" and pod in ("", "p")

    async def _take(self, hours: list[UseHour]) -> None:
        self.taken.append(hours)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def agent(reading: Reading, node: str) -> AsyncIterator[Agent]:
    found = Agent()
    app = web.Application()
    app.router.add_get("/use", found.use)
    async with TestServer(app) as server:
        reading.agents[node] = str(server.make_url("")).rstrip("/")
        yield found


@pytest.fixture
async def reading() -> AsyncIterator[Reading]:
    found = Reading()
    task = asyncio.create_task(found.use.run())
    yield found
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.slow
async def test_each_agent_is_asked_again_for_the_hours_since_it_answered(reading: Reading) -> None:
    async with agent(reading, "n1") as one, agent(reading, "n2") as two:
        one.answers = lambda: msgspec.json.encode([hour()])
        await reading.until(lambda: len(one.asked) > 2 and len(two.asked) > 2)
        assert one.asked[0] == two.asked[0] == 0 and one.asked[2] == HOUR
        assert reading.taken[0] == [hour()] and not reading.use.faults
        reading.now_ms += 3 * HOUR_MS
        await reading.until(lambda: one.asked[-1] == HOUR + 3 * HOUR_MS)


async def test_an_agent_that_fails_is_asked_for_all_that_was_missed(reading: Reading) -> None:
    async with agent(reading, "n1") as one:
        await reading.until(lambda: HOUR in one.asked)
        one.status = 503
        await reading.until(lambda: "answers 503" in reading.use.faults.get("n1", ""))
        reading.now_ms += 5 * HOUR_MS
        one.status = 200
        one.asked.clear()
        await reading.until(lambda: len(one.asked) > 1 and not reading.use.faults)
        assert HOUR in one.asked[:2]


@pytest.mark.parametrize(
    "body", [b"{", b'{"hours": []}', b'[{"gpu": 1}]', b"[" * 100_000], ids=["cut", "object", "type", "deep"]
)
async def test_an_answer_that_cannot_be_read_is_a_fault_with_its_address(reading: Reading, body: bytes) -> None:
    async with agent(reading, "n1") as one:
        one.answers = lambda: body
        await reading.until(lambda: f"{reading.agents['n1']}/use" in reading.use.faults.get("n1", ""))
        assert not reading.taken


async def test_a_long_answer_is_not_read(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    async with agent(reading, "n1") as one:
        one.answers = lambda: b" " * 2000 + b"[]"
        await reading.until(lambda: "more than 1000 bytes" in reading.use.faults.get("n1", ""))


async def test_an_agent_that_cannot_be_reached_is_a_fault_until_it_is_gone(reading: Reading) -> None:
    reading.agents["n1"] = "http://127.0.0.1:1"
    await reading.until(lambda: "n1" in reading.use.faults)
    del reading.agents["n1"]
    await reading.until(lambda: not reading.use.faults)


async def test_a_node_writes_about_its_own_gpus_and_pods_alone(reading: Reading) -> None:
    async with agent(reading, "n1") as one:
        lies = [hour("b"), hour(pod="q"), hour(source="n2/5")]
        one.answers = lambda: msgspec.json.encode([hour(), *lies])
        await reading.until(lambda: reading.use.refused["n1"] >= 6)
        assert all(taken == [hour()] for taken in reading.taken)


WRONG = [
    {"source": "n1"}, {"source": "n10/5"}, {"source": "n1/" + "5" * 50}, {"hour_ms": HOUR + 1},
    {"hour_ms": HOUR + 2 * HOUR_MS}, {"hour_ms": -HOUR_MS}, {"measured_ms": -1}, {"measured_ms": 2000},
    {"use": 1_000_001}, {"use": -1}, {"idle_ms": 1001}, {"idle_ms": -1}, {"memory_peak_mib": -1},
    {"memory_peak_mib": 2**40}, {"histogram": (1000,)}, {"histogram": (-1, 1001, *([0] * 18))}, {"histogram": ()},
    {"activity": {str(n): 0 for n in range(33)}}, {"activity": {"x" * 33: 0}}, {"activity": {"sm": -1}},
    {"activity": {"sm": 10**18}}, {"used_until_ms": HOUR - 1}, {"used_until_ms": HOUR + HOUR_MS + 1},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
def test_what_cannot_have_been_measured_is_left_out(wrong: dict[str, Any]) -> None:
    right = hour(activity={"sm": 1000}, used_until_ms=HOUR + 5)
    assert credible(right, "n1", NOW_MS)
    assert not credible(replace(right, **wrong), "n1", NOW_MS)


def test_requests_are_spread_over_the_period() -> None:
    tenths = [int(10 * phase(f"gpu-{number}")) for number in range(1000)]
    assert all(70 < tenths.count(tenth) < 130 for tenth in range(10))
