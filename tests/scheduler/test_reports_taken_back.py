# SPDX-License-Identifier: Apache-2.0
"""A report that is taken back is not written later, and one that meets a busy server is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.kube.api.errors import ApiError
from dovetail.scheduler import reporter as module
from dovetail.scheduler.reporter import Reporter, StepReport
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import AWAY, BUSY, TAKEN, Scripted, until

GATEWAY = ApiError(502, "BadGateway", "the balancer has no server", "PATCH /x")
CONDITION = StepReport("condition", "PATCH", "/pods/p/status", b"{}")


@pytest.fixture
def server() -> Scripted:
    return Scripted()


@pytest.fixture
async def reporter(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reporter]:
    monkeypatch.setattr(module, "_AGAIN_S", 0.005)
    idle = asyncio.Event()
    idle.set()
    client: Any = server
    reporter = Reporter(client, idle, lambda: True)
    task = asyncio.create_task(reporter.run())
    yield reporter
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("failure", [AWAY, BUSY, GATEWAY], ids=lambda failure: failure.reason)
async def test_a_server_that_has_too_much_to_do_is_asked_again(
    reporter: Reporter, server: Scripted, failure: Exception
) -> None:
    server.will("PATCH", "status", failure, failure, None)
    reporter.put("p", CONDITION)
    await asyncio.wait_for(reporter.idle.wait(), PATIENCE_S)
    assert len(server.asked) == 3


async def test_a_report_that_fails_while_it_is_taken_back_is_not_tried_again(
    reporter: Reporter, server: Scripted
) -> None:
    fail = asyncio.Event()

    async def answer() -> None:
        await fail.wait()
        raise AWAY

    server.will("PATCH", "status", answer)
    reporter.put("p", CONDITION)
    await until(lambda: bool(server.asked))
    taking_back = asyncio.create_task(reporter.withdraw("p"))
    await asyncio.sleep(0)
    assert not taking_back.done()
    fail.set()
    await asyncio.wait_for(taking_back, PATIENCE_S)
    asked = len(server.asked)
    await asyncio.sleep(0.03)
    assert len(server.asked) == asked
    assert not reporter.writes("p")
    await asyncio.wait_for(reporter.idle.wait(), PATIENCE_S)


async def test_nothing_is_left_to_do_once_the_last_report_is_taken_back(server: Scripted) -> None:
    client: Any = server
    reporter = Reporter(client, asyncio.Event(), lambda: True)
    reporter.put("p", CONDITION)
    assert reporter.queued == 1
    await reporter.withdraw("p")
    assert reporter.idle.is_set()
    assert reporter.queued == 0


async def test_a_pod_that_was_made_again_is_nothing_to_log(
    reporter: Reporter, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """The patch names the uid of the old one: the server answers with a conflict."""
    server.will("PATCH", "status", TAKEN)
    reporter.put("p", CONDITION)
    await asyncio.wait_for(reporter.idle.wait(), PATIENCE_S)
    assert len(server.asked) == 1
    assert caplog.records == []
