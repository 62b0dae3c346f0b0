# SPDX-License-Identifier: Apache-2.0
"""The answers to a kubelet and to Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.core import cycle
from dovetail.core.events import NodeChanged, PodChanged, QueueChanged, QueueRemoved
from dovetail.core.model import Node, Pod, Request, Work
from dovetail.core.queues.types import GpuBudget, MoneyBudget, Queue
from dovetail.core.state import State
from dovetail.kube import probe_server
from dovetail.kube.api import resources as kinds
from dovetail.kube.probe_server import opened
from dovetail.scheduler.endpoints import Endpoints, Review
from tests.patience import PATIENCE_S


def reflector(resource: Any, *, synced: bool = True, staleness_s: float = 0.0) -> Any:
    done = asyncio.Event()
    if synced:
        done.set()
    return SimpleNamespace(resource=resource, synced=done, staleness_s=lambda: staleness_s)


def driver(last_step_s: float | None = None, queued: int = 0) -> Any:
    reporter = SimpleNamespace(queued=queued)
    counted = {"differences": 0, "changed_records": 0}
    return SimpleNamespace(state=State(), last_step_s=last_step_s, reporter=reporter, **counted)


@asynccontextmanager
async def serving(driver: Any, *reflectors: Any, review: Review | None = None) -> AsyncIterator[Client]:
    endpoints = Endpoints("the API server", review)
    if driver is not None:
        endpoints.follow(driver, reflectors)
    async with opened("127.0.0.1:0", endpoints.answers()) as port:
        yield Client(port)


class Client:
    """Asks as a kubelet or Prometheus does: a connection for each request."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def get(self, path: str, token: str = "", method: str = "GET") -> tuple[int, str]:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await self.connect()
            header = f"Authorization: Bearer {token}\r\n" if token else ""
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode())
            reply = await reader.read()
            writer.close()
        head, _, body = reply.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


async def ask(path: str, driver: Any, *reflectors: Any) -> tuple[int, str]:
    async with serving(driver, *reflectors) as client:
        return await client.get(path)


async def test_it_is_live_while_the_first_lists_take_long_and_ready_after_them() -> None:
    """A kubelet that restarted it meanwhile would make it begin again, for ever."""
    reflectors = reflector(kinds.PODS, synced=False), reflector(kinds.NODES)
    assert await ask("/healthz", driver(), *reflectors) == (200, "ok\n")
    assert await ask("/readyz", driver(), *reflectors) == (503, "waiting for the first list of pods/v1\n")
    reflectors[0].synced.set()
    assert await ask("/readyz", driver(), *reflectors) == (200, "ok\n")


@pytest.mark.parametrize(("ago_s", "status"), [(10.0, 200), (61.0, 503)])
async def test_a_loop_that_no_longer_turns_is_not_live(ago_s: float, status: int) -> None:
    assert (await ask("/healthz", driver(time.monotonic() - ago_s)))[0] == status


async def test_the_metrics_distinguish_kinds_of_one_plural() -> None:
    status, text = await ask(
        "/metrics",
        driver(queued=7),
        reflector(kinds.POD_GROUPS[0], staleness_s=3.0),
        reflector(kinds.VOLCANO_POD_GROUPS, staleness_s=50.0),
    )
    assert status == 200
    assert f'dovetail_watch_staleness_seconds{{resource="{kinds.POD_GROUPS[0]}"}} 3.0' in text
    assert f'dovetail_watch_staleness_seconds{{resource="{kinds.VOLCANO_POD_GROUPS}"}} 50.0' in text
    assert "dovetail_reports_queued 7.0" in text


async def test_the_metrics_report_what_queues_have_in_plain_units() -> None:
    served = driver()
    amounts = (("cpu", 1_500), ("memory", 2**30), ("nvidia.com/gpu", 4))
    node = Node("n", (("cpu", 64_000), ("memory", 2**39), ("nvidia.com/gpu", 8), ("pods", 110)))
    work = Work(max_runtime_ms=3_600_000)
    pods = [Pod(f"p{n}", "d", f"p{n}", Request(amounts), queue="red", created_ms=n, work=work) for n in range(3)]
    red = Queue(
        "red", guarantee=(("gpu", 6_000),), budget=GpuBudget(1000 * 3_600_000 * 50), money=MoneyBudget(80, 20, 1 << 60)
    )
    cycle.step(served.state, [NodeChanged(node), QueueChanged(red), *map(PodChanged, pods)], 1_000_000)
    _, text = await ask("/metrics", served)
    for line in (
        'dovetail_queue_allocated{queue="red",resource="cpu"} 3.0',
        'dovetail_queue_allocated{queue="red",resource="memory"} 2.147483648e+09',
        'dovetail_queue_allocated{queue="red",resource="gpu"} 8.0',
        'dovetail_queue_borrowed{queue="red",resource="gpu"} 2.0',
        'dovetail_queue_due{queue="red",resource="gpu"} 8.0',
        'dovetail_queue_budget_gpu_hours{queue="red"} 50.0',
        'dovetail_queue_budget_used_gpu_hours{queue="red"} 0.0',
        'dovetail_queue_budget_money{queue="red"} 8e-05',
        'dovetail_queue_budget_spent_money{queue="red"} 2e-05',
        'dovetail_queue_pending_jobs{queue="red"} 1.0',
        'dovetail_queue_usage_share{queue="red"} 0.0',
        "dovetail_reservations 1.0",
        "dovetail_reserved_wait_seconds 0.0",
    ):
        assert f"\n{line}\n" in text, line
    cycle.step(served.state, [QueueRemoved("red")], 1_060_000)
    _, text = await ask("/metrics", served)
    assert not any('queue="red"' in line for line in text.splitlines() if line.startswith("dovetail_queue"))


async def test_before_the_first_contact_it_is_live_and_not_ready() -> None:
    async with serving(None) as client:
        assert await client.get("/healthz") == (200, "ok\n")
        assert await client.get("/readyz") == (503, "waiting for the API server\n")
        assert (await client.get("/metrics"))[0] == 200


@pytest.mark.parametrize(
    "stated", [b"", b"GET /healthz HTT", b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
@pytest.mark.slow
async def test_idle_and_slow_clients_keep_no_probe_from_its_answer(stated: bytes) -> None:
    async with serving(driver()) as client:
        idle = [await client.connect() for _ in range(300)]
        for _, writer in idle:
            writer.write(stated)
        for _ in range(5):
            assert await client.get("/healthz") == (200, "ok\n")
        with contextlib.suppress(ConnectionError):
            # The oldest had to go.
            assert (await asyncio.wait_for(idle[0][0].read(), PATIENCE_S))[:12] in (b"", b"HTTP/1.1 405")
        for _, writer in idle:
            writer.close()


async def test_no_connection_lives_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "_LIFE_S", 0.1)
    async with serving(driver()) as client:
        _, writer = await client.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)
        writer.close()


async def test_a_connection_is_for_one_request() -> None:
    async with serving(driver()) as client:
        reader, writer = await client.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        reply = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert reply.count(b"HTTP/1.1") == 1
        writer.close()


async def test_what_is_not_there_states_what_is() -> None:
    async with serving(driver()) as client:
        assert await client.get("/") == (404, "there are /healthz, /readyz, /metrics\n")
        assert (await client.get("/metrics", method="DELETE"))[0] == 405
        assert (await client.get("/healthz", method="HEAD")) == (200, "")


async def test_readers_without_the_right_get_no_metrics_and_probes_pass() -> None:
    async def review(authorization: str) -> tuple[int, str] | None:
        return None if authorization == "Bearer good" else (401, "unknown caller")

    async with serving(driver(), review=review) as client:
        assert (await client.get("/metrics", "good"))[0] == 200
        assert await client.get("/metrics", "bad") == (401, "unknown caller\n")
        assert (await client.get("/healthz"))[0] == (await client.get("/readyz"))[0] == 200


async def test_an_answer_that_fails_is_logged_and_a_stranger_is_not(caplog: pytest.LogCaptureFixture) -> None:
    broken = driver()
    broken.state = None
    async with serving(broken) as client:
        assert (await client.get("/metrics"))[0] == 500
        assert "/metrics cannot be answered" in caplog.text
        _, writer = await client.connect()
        caplog.clear()
        writer.write(b"\x16\x03\x01 that is no HTTP\r\n\r\n")
        assert (await client.get("/healthz"))[0] == 200
        assert [one for one in caplog.records if one.name != "dovetail.doors"] == []
        assert not logging.getLogger("dovetail.doors").propagate
