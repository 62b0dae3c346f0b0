# SPDX-License-Identifier: Apache-2.0
"""The scheduler records what it decides, and nothing about recording can keep it from deciding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from dovetail.core.policy import Policy
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Playground
from dovetail.playground.faults import Fault
from dovetail.recording import recorder
from dovetail.recording.reader import find
from dovetail.recording.replay import Replay, replay
from dovetail.scheduler import serve
from dovetail.scheduler.serve import SchedulerOptions, run
from tests.scheduler.scripted import until
from tests.scheduler.test_serve import LEASE_NAMESPACE, bound, holder, put_node, put_pods


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_PAUSE_S", 0.01)


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground(start_delay_s=60.0)
    await playground.start()
    playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}})
    put_node(playground, "a")
    put_node(playground, "b")
    yield playground
    await playground.stop()


@asynccontextmanager
async def scheduler(playground: Playground, recording: Path, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    settings: dict[str, Any] = {"listen": "", "leader_elect": False, "recording": recording, **options}
    settings.setdefault("policy", Policy(attempts_per_step=8))
    task = asyncio.create_task(run(ClusterConfig(playground.url), SchedulerOptions(**settings)))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def files(path: Path) -> list[Path]:
    return sorted(path.iterdir())


def replays(path: Path) -> list[Replay]:
    runs, wrong = find([path])
    assert wrong == []
    return [replay(run) for run in runs]


def counted(metric: str) -> float:
    return REGISTRY.get_sample_value(metric) or 0.0


@pytest.mark.slow
async def test_what_it_decides_is_replayed_equal(playground: Playground, tmp_path: Path) -> None:
    """With binds that fail, pods that go, and pods that wait."""
    playground.faults.add(Fault("answer", "POST", "pods/binding", status=500, times=3))
    before = counted("dovetail_recording_bytes_total")
    async with scheduler(playground, tmp_path):
        put_pods(playground, 130)
        await until(lambda: bound(playground).total() == 120)
        for number in range(40):
            playground.delete("pods", "default", f"p{number}")
        await until(lambda: len(playground.store.list("pods")) == 90 == bound(playground).total())
    (done,) = replays(tmp_path)
    assert (done.verdict, done.difference, done.problem, done.notes) == ("equal", None, "", ())
    assert done.decisions >= 130 + 3
    written = counted("dovetail_recording_bytes_total") - before
    assert written == sum(file.stat().st_size for file in files(tmp_path))


@pytest.mark.slow
async def test_it_goes_on_through_checkpoints(
    playground: Playground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is another one afterwards, and no GPU is lost or allocated twice."""
    monkeypatch.setattr(serve, "MIB", 2**10)
    async with scheduler(playground, tmp_path, recording_mib=160):
        put_pods(playground, 80)
        for _ in range(8):
            put_pods(playground, 40, first=80)
            await until(lambda: bound(playground) == {"a": 60, "b": 60})
            for number in range(80, 120):
                playground.delete("pods", "default", f"p{number}")
            await until(lambda: len(playground.store.list("pods")) == 80)
    (done,) = replays(tmp_path)
    assert (done.verdict, done.difference, done.problem) == ("equal", None, "")
    assert files(tmp_path)[-1].name >= "000002.jsonl"


async def test_a_follower_records_its_events_and_then_its_decisions(playground: Playground, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        options = {"leader_elect": True}
        first = scheduler(playground, tmp_path / "one", identity="one", **options)
        async with first:
            await until(lambda: holder(playground).startswith("one"))
            await stack.enter_async_context(scheduler(playground, tmp_path / "two", identity="two", **options))
            put_pods(playground, 10)
            await until(lambda: bound(playground).total() == 10)
        put_pods(playground, 10, first=10)
        await until(lambda: bound(playground).total() == 20)
    (led,), (followed,) = replays(tmp_path / "one"), replays(tmp_path / "two")
    assert [(done.verdict, done.decisions) for done in (led, followed)] == [("equal", 10), ("equal", 10)]
    assert "told" in files(tmp_path / "two")[0].read_text()


async def test_two_in_one_directory_both_schedule_and_one_records(
    playground: Playground, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted("dovetail_recording_errors_total")
    async with scheduler(playground, tmp_path, leader_elect=True, identity="one"):
        await until(lambda: holder(playground).startswith("one"))
        async with scheduler(playground, tmp_path, leader_elect=True, identity="two"):
            await until(lambda: "another process records into" in caplog.text)
            put_pods(playground, 5)
            await until(lambda: bound(playground).total() == 5)
    assert counted("dovetail_recording_errors_total") == before + 1
    (done,) = replays(tmp_path)
    assert (done.verdict, done.decisions) == ("equal", 5)


async def test_a_directory_that_cannot_be_used_is_one_warning_and_scheduling_goes_on(
    playground: Playground, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted("dovetail_recording_errors_total")
    async with scheduler(playground, Path("/proc/dovetail")):
        put_pods(playground, 5)
        await until(lambda: bound(playground).total() == 5)
    unprotected, warning = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "there is no ValidatingAdmissionPolicy dovetail-scheduler-annotations" in unprotected.getMessage()
    assert warning.getMessage().startswith("scheduling goes on without recording into /proc/dovetail: ")
    assert counted("dovetail_recording_errors_total") == before + 1


async def test_a_decision_on_a_pod_is_found_in_the_recording(playground: Playground, tmp_path: Path) -> None:
    async with scheduler(playground, tmp_path):
        put_pods(playground, 1)
        await until(lambda: bound(playground).total() == 1)
    (pod,) = playground.store.list("pods")
    run_id, _, step = pod["metadata"]["annotations"]["dovetail.dev/decision"].partition("-")
    (file,) = files(tmp_path)
    header, *lines = file.read_text().splitlines()
    assert f'"run":"{run_id}"' in header
    (line,) = [line for line in lines if f'"step":{step},' in line and '"Bind"' in line]
    assert pod["metadata"]["uid"] in line
