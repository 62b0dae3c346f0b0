# SPDX-License-Identifier: Apache-2.0
"""What a kubelet and Prometheus are told."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from dovetail.core import cycle
from dovetail.core.events import NodeChanged, PodChanged, QueueChanged, QueueRemoved
from dovetail.core.model import Node, Pod, Request, Work
from dovetail.core.sharing.records import Queue
from dovetail.core.state import State
from dovetail.kube import resources as kinds
from dovetail.scheduler.endpoints import application


def reflector(resource: Any, *, synced: bool = True, staleness_s: float = 0.0) -> Any:
    done = asyncio.Event()
    if synced:
        done.set()
    return SimpleNamespace(resource=resource, synced=done, staleness_s=lambda: staleness_s)


def driver(last_step_s: float | None = None, queued: int = 0) -> Any:
    reporter = SimpleNamespace(queued=queued)
    return SimpleNamespace(state=State(), last_step_s=last_step_s, differences=0, reporter=reporter)


async def ask(path: str, driver: Any, *reflectors: Any) -> tuple[int, str]:
    async with TestClient(TestServer(application(driver, reflectors))) as client, client.get(path) as reply:
        return reply.status, await reply.text()


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


async def test_the_metrics_tell_kinds_of_one_plural_apart() -> None:
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


async def test_the_metrics_tell_what_queues_have_in_plain_units() -> None:
    served = driver()
    amounts = (("cpu", 1_500), ("memory", 2**30), ("nvidia.com/gpu", 4))
    node = Node("n", (("cpu", 64_000), ("memory", 2**39), ("nvidia.com/gpu", 8), ("pods", 110)))
    work = Work(max_runtime_ms=3_600_000)
    pods = [Pod(f"p{n}", "d", f"p{n}", Request(amounts), queue="red", created_ms=n, work=work) for n in range(3)]
    red = Queue("red", guarantee=(("gpu", 6_000),))
    cycle.step(served.state, [NodeChanged(node), QueueChanged(red), *map(PodChanged, pods)], 1_000_000)
    _, text = await ask("/metrics", served)
    for line in (
        'dovetail_queue_allocated{queue="red",resource="cpu"} 3.0',
        'dovetail_queue_allocated{queue="red",resource="memory"} 2.147483648e+09',
        'dovetail_queue_allocated{queue="red",resource="gpu"} 8.0',
        'dovetail_queue_borrowed{queue="red",resource="gpu"} 2.0',
        'dovetail_queue_due{queue="red",resource="gpu"} 8.0',
        'dovetail_queue_pending_jobs{queue="red"} 1.0',
        'dovetail_queue_usage_share{queue="red"} 0.0',
        "dovetail_reservations 1.0",
        "dovetail_reserved_wait_seconds 0.0",
    ):
        assert f"\n{line}\n" in text, line
    cycle.step(served.state, [QueueRemoved("red")], 1_060_000)
    _, text = await ask("/metrics", served)
    assert 'queue="red"' not in text
