# SPDX-License-Identifier: Apache-2.0
"""A decision opened from a recording: the step is repeated; what cannot be opened has its reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from dovetail.aggregated.question import BadQuestion
from dovetail.core import events as ev
from dovetail.core.policy import Policy
from dovetail.core.queues.types import GPU, Queue
from dovetail.core.state import State
from dovetail.dashboard import recorded_decisions
from dovetail.dashboard.access import OwnAccess
from dovetail.dashboard.app import SchedulerSources
from dovetail.dashboard.board import PageBoard
from dovetail.dashboard.recorded_decisions import RecordedDecisions, SchedulersDecisions
from dovetail.dashboard.serve import bound, serving
from dovetail.viewserver import recorded as viewserver_recorded
from dovetail.viewserver.answers import ViewAnswers
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.dashboard.test_app import OnlyTeamA
from tests.dashboard.worlds import FakeSource, served
from tests.recording.histories import Recorded

HOUR_MS = 3_600_000


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Step 1 binds two pods to a node of 4 GPUs, step 2 finds one more that does not fit."""
    recorded = Recorded(tmp_path / "r", run="run1")
    pods = [gpu_pod(f"first-{number}", 2, queue="physics") for number in range(2)]
    queue = ev.QueueChanged(Queue("physics", guarantee=((GPU, 4_000),)))
    recorded.step([ev.NodeChanged(gpu_node("a", 4)), queue, *map(ev.PodChanged, pods)], HOUR_MS)
    bound = [ev.PodChanged(replace(pod, node="a", bound_ms=HOUR_MS)) for pod in pods]
    recorded.step([*bound, ev.PodChanged(gpu_pod("late", 4, queue="physics"))], 2 * HOUR_MS)
    recorded.close()
    return tmp_path / "r"


async def test_it_is_decided_again_with_the_jobs_that_waited_and_what_had_happened(recording: Path) -> None:
    page = await RecordedDecisions(recording).page("run1-2", "")
    assert (page.decision, page.now_ms, page.place) == ("run1-2", 2 * HOUR_MS, "000001.jsonl, line 3")
    assert [one.job for one in page.waiting] == ["ns/late"] and "PodChanged ns/late" in page.events
    first = await RecordedDecisions(recording).page("run1-1", "")
    assert len([one for one in first.decided if "first-" in one]) == 2


async def test_what_cannot_be_opened_has_its_reason(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_decisions, "A_MINUTE", 4)
    opened = RecordedDecisions(recording)
    for decision, status, why in (
        ("run1-9", 404, "the last one before it is 2"),
        ("other-1", 404, "run other is not here"),
        ("x", 404, "is no id"),
    ):
        with pytest.raises(BadQuestion, match=why) as raised:
            await opened.page(decision, "user")
        assert raised.value.status == status
    file = recording / "000001.jsonl"
    file.write_text(file.read_text()[:40])
    with pytest.raises(BadQuestion, match="cannot be repeated") as raised:
        await opened.page("run1-2", "user")
    assert raised.value.status == 503
    with pytest.raises(BadQuestion, match="in a minute") as raised:
        await opened.page("run1-2", "user")
    assert raised.value.status == 429


async def test_where_the_pages_end_the_thread_ends_and_the_viewer_reads_why(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), Event()
    loop = asyncio.get_running_loop()

    def slow(runs: object, decision: str, read: Callable[[int], object]) -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            while True:
                read(0)
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(viewserver_recorded, "decided", slow)
    listening, board = bound("127.0.0.1:0"), PageBoard(FakeSource(), (), lambda: HOUR_MS)
    scheduler = SchedulerSources(decisions=RecordedDecisions(recording))
    async with ClientSession(f"http://127.0.0.1:{listening.getsockname()[1]}/") as client:
        async with serving(board, OwnAccess(), listening, scheduler):
            asked = asyncio.create_task(client.get("/api/decision/run1-2.json"))
            await begun.wait()
        reply = await asked
    assert reply.status == 503
    assert await asyncio.to_thread(ended.wait, 5), "the process would wait for it"


async def test_the_running_scheduler_opens_it_as_the_viewer(recording: Path) -> None:
    source = FakeSource()
    source.answers = ViewAnswers(State(Policy()), 1_800_000_000_000, "dovetail", recording=recording)
    page = await SchedulersDecisions(source).page("run1-2", "Bearer ada")
    assert page == await RecordedDecisions(recording).page("run1-2", "")
    [(request, user)] = source.predicted
    assert (request.resource.plural, request.namespace, request.alone, user) == (
        "recordeddecisions", "", False, "Bearer ada",
    )  # fmt: skip
    with pytest.raises(BadQuestion, match="the last one before it is 2"):
        await SchedulersDecisions(source).page("run1-9", "Bearer ada")


async def test_only_users_of_all_namespaces_open_one(recording: Path) -> None:
    sources = SchedulerSources(decisions=RecordedDecisions(recording))
    async with served(FakeSource(), OnlyTeamA(), scheduler=sources) as (client, _):
        for token, status in (("a", 403), ("admin", 200)):
            headers = {"Authorization": f"Bearer {token}"}
            async with client.get("/api/decision/run1-2.json", headers=headers) as reply:
                assert reply.status == status
        async with client.get("/api/decision/run1-2.csv", headers={"Authorization": "Bearer admin"}) as reply:
            assert "ns/late" in await reply.text()
    async with served(FakeSource()) as (client, _), client.get("/api/decision/run1-2.json") as reply:
        assert reply.status == 404 and "--recording PATH" in (await reply.json())["error"]
