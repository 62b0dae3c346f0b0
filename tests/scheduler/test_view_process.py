# SPDX-License-Identifier: Apache-2.0
"""The process that answers views is started, registered and started again, whatever happens, and only by a leader."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dovetail.aggregated import process
from dovetail.core.checkpoint import take
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.api.errors import NotFound, Unreachable
from dovetail.scheduler import view_process
from dovetail.scheduler.view_feed import ViewFeed
from dovetail.scheduler.view_process import ViewStarter
from tests.patience import PATIENCE_S


class _Config:
    server = "https://192.0.2.1:6443"


class _Cluster:
    """The API server: what it publishes, and what it was sent."""

    config = _Config()

    def __init__(self) -> None:
        self.ca_pem = "first"
        self.fails: Exception | None = None
        self.bundles: list[str] = []
        self.missed: int | None = None
        """While the API is not there: how often it was written to."""

    async def request(self, method: str, path: str, *, decode: Any) -> Any:
        if self.fails is not None:
            raise self.fails
        data = {"requestheader-client-ca-file": self.ca_pem} if self.ca_pem else {}
        return msgspec.json.decode(msgspec.json.encode({"data": data}), type=decode)

    async def fetch(self, method: str, path: str, body: Any, *, content_type: str) -> None:
        if "spec" in body and self.missed is not None:
            self.missed += 1
            raise NotFound(404, "NotFound", "there is no such APIService", f"{method} {path}")
        if "spec" in body:
            self.bundles.append(base64.b64decode(body["spec"]["caBundle"]).decode())


class _Scheduler:
    def __init__(self, listen: str) -> None:
        self.cluster = _Cluster()
        self.leads = True
        self.feed = ViewFeed(Policy())
        starter = ViewStarter(
            self.feed, lambda: self.leads, lambda: self.feed.begin(take(State(Policy()))), self.report
        )  # fmt: skip
        self.process = view_process.view_process(self.cluster, listen, "system", "dovetail", starter, None)  # type: ignore[arg-type]

    async def report(self) -> None:
        """Nothing but the calls is sent until then."""
        assert not self.feed.due


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch, listen: str = "192.0.2.7:1") -> AsyncIterator[_Scheduler]:
    monkeypatch.setattr(view_process, "MODULE", "tests.scheduler.view_stub")
    for name, value in (("_FIRST_PAUSE_S", 0.01), ("_LONGEST_PAUSE_S", 0.01), ("_EVERY_S", 0.05), ("_LEADING_S", 0.01)):
        monkeypatch.setattr(process, name, value)
    scheduler = _Scheduler(listen)
    task = asyncio.create_task(scheduler.process.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield scheduler
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def ends() -> float:
    return float(view_process.metrics.VIEW_SERVER_ENDS._value.get())


async def until(wanted: Callable[[], object]) -> None:
    for _ in range(int(PATIENCE_S / 0.02)):
        if wanted():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not within the time")


async def test_it_is_registered_and_started_again_where_the_certificates_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as scheduler:
        await until(lambda: len(scheduler.cluster.bundles) > 1)
        assert set(scheduler.cluster.bundles) == {"first"} and not scheduler.feed.due
        before = ends()
        scheduler.cluster.ca_pem = "second"
        await until(lambda: scheduler.cluster.bundles[-1] == "second")
        assert ends() == before + 1


async def test_an_api_that_is_not_there_yet_is_looked_for_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(monkeypatch) as scheduler:
        monkeypatch.setattr(process, "_EVERY_S", 10 * PATIENCE_S)
        monkeypatch.setattr(process, "_SOON_S", 0.01)
        scheduler.cluster.missed = 0
        await until(lambda: (scheduler.cluster.missed or 0) > 2)
        assert caplog.text.count("is not there yet; waiting for the operator") == 1
        scheduler.cluster.missed = None
        await until(lambda: scheduler.cluster.bundles)


async def test_one_that_ends_is_started_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ends()
    async with running(monkeypatch, "192.0.2.7:9"):
        await until(lambda: ends() >= before + 3)


async def test_it_goes_on_while_the_api_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as scheduler:
        await until(lambda: scheduler.cluster.bundles)
        before = ends()
        scheduler.cluster.fails = Unreachable(0, "Dropped", "gone", "GET /")
        await asyncio.sleep(0.3)
        scheduler.cluster.fails = None
        written = len(scheduler.cluster.bundles)
        await until(lambda: len(scheduler.cluster.bundles) > written)
        assert ends() == before


@pytest.mark.parametrize("fault", [ValueError("a bug"), ""], ids=["bug", "no proxy"])
async def test_no_fault_ends_the_scheduler(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    async with running(monkeypatch) as scheduler:
        before = ends()
        if fault:
            scheduler.cluster.fails = fault
        else:
            scheduler.cluster.ca_pem = ""
        await until(lambda: ends() >= before + 2)
        scheduler.cluster.fails, scheduler.cluster.ca_pem = None, "first"
        written = len(scheduler.cluster.bundles)
        await until(lambda: len(scheduler.cluster.bundles) > written)


async def test_only_a_leader_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LEADING_S", 0.01)
    scheduler = _Scheduler("192.0.2.7:1")
    scheduler.leads = False
    task = asyncio.create_task(scheduler.process.run())
    await asyncio.sleep(0.3)
    assert scheduler.cluster.bundles == [] and not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
