# SPDX-License-Identifier: Apache-2.0
"""Work in a thread whose caller is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dovetail.kube.threads import run_to_end
from tests.patience import PATIENCE_S


async def test_a_caller_that_is_cancelled_again_and_again_goes_on_after_the_thread() -> None:
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        order.append("thread")

    async def caller() -> None:
        try:
            await run_to_end(work)
        finally:
            order.append("caller")

    task = asyncio.create_task(caller())
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert order == []
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order == ["thread", "caller"]


async def test_what_the_work_returns_and_raises_is_the_callers() -> None:
    def fails() -> None:
        raise OSError("no disk")

    assert await run_to_end(lambda: 7) == 7
    with pytest.raises(OSError, match="no disk"):
        await run_to_end(fails)


async def test_a_failure_that_no_caller_waits_for_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def fails() -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        raise OSError("no disk")

    task = asyncio.create_task(run_to_end(fails))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "no disk" in caplog.text
