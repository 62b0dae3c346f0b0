# SPDX-License-Identifier: Apache-2.0
"""Reports come behind binds, in order for each object, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail.kube.api.errors import ApiError, KubeError, NotFound, StatusDetails, Unreachable
from dovetail.scheduler import reporter
from dovetail.scheduler.reporter import Reporter, StepReport
from tests.patience import PATIENCE_S


class Server:
    """Stands in for the client: keeps what was written, holds writes back while `open` is not set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.written: list[bytes] = []
        self.failures: list[KubeError] = []
        self.at_once = self.most_at_once = 0

    async def request(self, method: str, path: str, body: bytes, **options: Any) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.open.wait()
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.failures:
            raise self.failures.pop(0)
        self.written.append(body)


def _report(body: str) -> StepReport:
    return StepReport("event", "POST", "/x", body.encode())


@pytest.fixture
async def parts() -> Any:
    server, idle = Server(), asyncio.Event()
    idle.set()
    leads = [True]
    subject = Reporter(server, idle, lambda: leads[0])  # type: ignore[arg-type]
    task = asyncio.create_task(subject.run())
    yield server, idle, leads, subject
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_while_binds_are_under_way_late_reports_are_written_one_at_a_time(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "BEHIND_S", 0.05)
    server, idle, _, subject = parts
    await asyncio.sleep(0)
    idle.clear()
    for number in range(50):
        subject.put(str(number), _report(str(number)))
    await asyncio.sleep(0.01)
    assert server.written == []
    await asyncio.wait_for(subject.idle.wait(), PATIENCE_S)
    assert server.written == [str(number).encode() for number in range(50)]
    assert server.most_at_once == 1


async def test_what_is_due_a_little_later_goes_with_what_is_due(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "BEHIND_S", 0.3)
    monkeypatch.setattr(reporter, "_TOGETHER_S", 0.2)
    server, idle, _, subject = parts
    await asyncio.sleep(0)
    idle.clear()
    for word, pause_s in (("first", 0.1), ("soon after", 0.15), ("later", 0.0)):
        subject.put(word, _report(word))
        await asyncio.sleep(pause_s)
    assert server.written == []
    await asyncio.sleep(0.15)
    assert server.written == [b"first", b"soon after"]
    await asyncio.wait_for(subject.idle.wait(), PATIENCE_S)
    assert server.written[2:] == [b"later"]


async def test_the_end_of_the_binds_lets_all_reports_go_at_once(parts: Any) -> None:
    server, idle, _, subject = parts
    idle.clear()
    server.open.clear()
    for number in range(50):
        subject.put(str(number), _report(str(number)))
    await asyncio.sleep(0.01)
    assert server.at_once == 0
    idle.set()
    await asyncio.sleep(0.01)
    assert server.at_once == reporter.WORKERS
    server.open.set()
    await asyncio.wait_for(subject.idle.wait(), PATIENCE_S)
    assert len(server.written) == 50


async def test_the_last_word_about_an_object_is_the_newest(parts: Any) -> None:
    server, _, _, subject = parts
    server.open.clear()
    subject.put("pod", _report("first"))
    await asyncio.sleep(0.01)
    for word in ("second", "third"):
        subject.put("pod", _report(word))
    await asyncio.sleep(0.01)
    server.open.set()
    await asyncio.wait_for(subject.idle.wait(), PATIENCE_S)
    assert server.written == [b"first", b"third"]


async def test_an_unreachable_server_is_tried_again_and_a_refusal_is_not(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _, _, subject = parts
    monkeypatch.setattr(reporter, "_AGAIN_S", 0.01)
    details = StatusDetails()
    failures = {
        "a": Unreachable(0, "NotConnected", "refused", "POST /x", details),
        "b": NotFound(404, "NotFound", "gone", "POST /x", details),
        "c": ApiError(403, "Forbidden", "no", "POST /x", details),
    }
    for key, failure in failures.items():
        server.failures = [failure]
        subject.put(key, _report(key))
        await asyncio.wait_for(subject.idle.wait(), PATIENCE_S)
    assert server.written == [b"a"]


async def test_nothing_is_written_without_the_lease(parts: Any) -> None:
    server, _, leads, subject = parts
    leads[0] = False
    subject.put("a", _report("a"))
    await asyncio.wait_for(subject.idle.wait(), PATIENCE_S)
    assert server.written == []


@pytest.mark.parametrize("moments", range(5))
async def test_the_end_comes_even_in_the_moment_when_the_binds_end(moments: int) -> None:
    server, idle = Server(), asyncio.Event()
    subject = Reporter(server, idle, lambda: True)  # type: ignore[arg-type]
    task = asyncio.create_task(subject.run())
    subject.put("a", _report("a"))
    server.open.clear()
    await asyncio.sleep(0.01)
    idle.set()
    for _ in range(moments):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    assert done == {task}
