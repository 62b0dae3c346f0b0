# SPDX-License-Identifier: Apache-2.0
"""When the status of a Queue is written, and what of its history a restart keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail.core import cycle
from dovetail.core.events import Event, NodeChanged, PodChanged, PodRemoved, QueueChanged
from dovetail.core.model import Node, Pod, Request
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import DEFAULT_QUEUE
from dovetail.core.state import State
from dovetail.kube.api.discovery import Served
from dovetail.kube.informers import Informers
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.leases import AgentControlPlane
from dovetail.kube.objects.queues import Queue, QueueSpec
from dovetail.kube.translate.queues import queue
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import queue_status
from dovetail.scheduler.queue_status import QueueStatusWriter, StatusDue
from tests.scheduler.scripted import FORBIDDEN, Scripted, until

START_MS = 1_795_269_600_000
MINUTE_MS = 60_000
_AMOUNTS = (("cpu", 1_000), ("memory", 2**30))


class Stage:
    """A node of eight GPUs and a clock that the test moves; queues are read from the status that was written."""

    def __init__(self, *names: str) -> None:
        self.server = Scripted()
        client: Any = self.server
        self.mirror = Informers(client, Served(frozenset()), Translator())
        self.time_ms = START_MS
        self.leads = True
        self.pods: dict[str, Pod] = {}
        self.objects: dict[str, Queue] = {}
        self.restart(*names)

    def restart(self, *names: str) -> None:
        """Another process, that knows nothing but the objects. Queues named here are new."""
        clock: Any = self
        self.state = State()
        self.statuses = QueueStatusWriter(
            self.mirror_client, clock, self.mirror, state=lambda: self.state, may_write=lambda: self.leads
        )
        allocatable = (("cpu", 64_000), ("memory", 2**39), ("nvidia.com/gpu", 8), ("pods", 110))
        events: list[Event] = [NodeChanged(Node("n", allocatable))]
        for name in (*self.objects, *names):
            obj = self.objects.setdefault(name, Queue(ObjectMeta(name=name, uid=f"uid-{name}")))
            self.mirror.queues.known["", name] = obj
            events.append(QueueChanged(queue(obj)))
        self.apply_events(*events, *(PodChanged(pod) for pod in self.pods.values()))

    @property
    def mirror_client(self) -> Any:
        return self.server

    def now_ms(self) -> int:
        """As `Clock`."""
        return self.time_ms

    def apply_events(self, *events: Event) -> None:
        cycle.apply_events(self.state, events, self.time_ms)
        cycle.apply_events(self.state, [], self.time_ms)

    def start(self, name: str, team: str, gpus: int) -> None:
        request = Request((*_AMOUNTS, ("nvidia.com/gpu", gpus)))
        self.pods[name] = Pod(name, "d", name, request, node="n", bound_ms=self.time_ms, queue=team)
        self.apply_events(PodChanged(self.pods[name]))

    def end(self, name: str) -> None:
        del self.pods[name]
        self.apply_events(PodRemoved(name))

    def written(self, name: str) -> list[dict[str, Any]]:
        """Every status of a queue, in order."""
        return [patch[1]["value"] for patch in self.server.bodies("PATCH", f"/queues/{name}/status")]

    def read_back(self) -> None:
        """What was written last is what the objects have."""
        for name, obj in self.objects.items():
            if self.written(name):
                self.objects[name] = Queue(obj.metadata, obj.spec, self.written(name)[-1])
                self.mirror.queues.known["", name] = self.objects[name]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ends as the process is stopped."""
        task = asyncio.create_task(self.statuses.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_status, "_LOOK_EVERY_S", 0.001)


async def quiet(stage: Stage) -> None:
    """Time to look several times."""
    await asyncio.sleep(0.03)


async def test_the_status_is_written_when_something_begins_or_ends(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: len(stage.written("red")) == 1)
        stage.start("p", "red", 4)
        await until(lambda: len(stage.written("red")) == 2)
        stage.end("p")
        await until(lambda: len(stage.written("red")) == 3)
        await quiet(stage)
        assert len(stage.written("red")) == 3
    assert [status["allocated"].get("gpu") for status in stage.written("red")] == [None, "4", None]
    patch = stage.server.bodies("PATCH", "/queues/red/status")[0]
    assert patch[0] == {"op": "test", "path": "/metadata/uid", "value": "uid-red"}


async def test_a_queue_that_is_charged_is_written_each_minute_and_an_idle_one_is_not(stage: Stage) -> None:
    stage.start("p", "red", 4)
    async with stage.running():
        await until(lambda: len(stage.written("red")) == len(stage.written("blue")) == 1)
        stage.time_ms += MINUTE_MS - 1
        await quiet(stage)
        assert len(stage.written("red")) == 1
        stage.time_ms += 1
        await until(lambda: len(stage.written("red")) == 2)
        await quiet(stage)
        assert len(stage.written("red")) == 2 and len(stage.written("blue")) == 1
    used = [int(status["usage"]["used"]) for status in stage.written("red")]
    assert used[1] - used[0] == pytest.approx(4_000 * MINUTE_MS, rel=1e-4)


async def test_a_part_of_the_division_that_others_move_is_written_after_a_while(stage: Stage) -> None:
    """Both wait for all GPUs; then the weight of one is raised."""
    for team in ("red", "blue"):
        request = Request((*_AMOUNTS, ("nvidia.com/gpu", 8)))
        stage.apply_events(PodChanged(Pod(f"w-{team}", "d", f"w-{team}", request, queue=team)))
    async with stage.running():
        await until(lambda: len(stage.written("blue")) == 1)
        stage.apply_events(QueueChanged(queue(Queue(ObjectMeta(name="red", uid="uid-red"), QueueSpec(weight=3)))))
        await quiet(stage)
        assert len(stage.written("blue")) == 1
        stage.time_ms += 10_000
        await until(lambda: len(stage.written("blue")) == 2)
    assert [status["due"]["gpu"] for status in stage.written("blue")] == ["4", "2"]


async def test_at_the_end_what_is_charged_is_written_once_more(stage: Stage) -> None:
    stage.start("p", "red", 4)
    async with stage.running():
        await until(lambda: len(stage.written("red")) == len(stage.written("blue")) == 1)
        stage.time_ms += 10_000
        await quiet(stage)
    assert len(stage.written("red")) == 2 and len(stage.written("blue")) == 1


async def test_a_replica_that_does_not_lead_writes_nothing_at_the_end_either(stage: Stage) -> None:
    stage.leads = False
    async with stage.running():
        stage.start("p", "red", 4)
        await quiet(stage)
    assert stage.server.asked == []


async def test_a_replica_that_loses_the_lease_stops(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: len(stage.written("red")) == 1)
        stage.leads = False
        stage.start("p", "red", 4)
        await quiet(stage)
    assert len(stage.written("red")) == 1


async def test_of_many_those_written_longest_ago_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_status, "_EACH_LOOK", 2)
    names = [f"q{number}" for number in range(6)]
    stage = Stage(*names)
    async with stage.running():
        await until(lambda: all(len(stage.written(name)) == 1 for name in names))
        paths = [path for _, path, _ in stage.server.asked]
        assert len(paths) == 6, "none is written twice before all are written once"


async def test_few_are_written_at_a_time_and_at_the_end_all_of_them() -> None:
    names = [f"q{number}" for number in range(40)]
    stage, under_way, most = Stage(*names), 0, 0
    for name in names:
        # What is charged is written at the end.
        stage.start(f"pod-{name}", name, 1)
    proceed = asyncio.Event()

    async def slow() -> dict[str, Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await proceed.wait()
        under_way -= 1
        return {}

    stage.server.will("PATCH", "/status", slow)
    async with stage.running():
        await until(lambda: under_way == queue_status._TOGETHER)
        await quiet(stage)
        proceed.set()
        await until(lambda: not under_way and all(len(stage.written(name)) == 1 for name in names))
        assert most == queue_status._TOGETHER
        proceed.clear()

        async def all_begin() -> None:
            await until(lambda: under_way == len(names))
            proceed.set()

        released = asyncio.create_task(all_begin())
    # At the end there are no other writes that would wait behind these.
    await released
    assert most == len(names) and all(len(stage.written(name)) == 2 for name in names)


async def test_what_is_refused_is_tried_again_after_a_while(stage: Stage) -> None:
    stage.server.will("PATCH", "/queues/red/status", FORBIDDEN, {})
    async with stage.running():
        await until(lambda: len(stage.written("red")) == 1)
        await quiet(stage)
        assert len(stage.written("red")) == 1
        stage.time_ms += 10_000
        await until(lambda: len(stage.written("red")) == 2)


async def test_a_plane_that_was_left_out_for_a_while_is_not_written_again(stage: Stage) -> None:
    """Its status waits while something about its namespace is not written. One that was made again is another."""
    key = "ns", "agent"
    pending, looks, noted = False, 0, list[str]()

    def planes(snapshots: dict[str, QueueSnapshot], now_ms: int) -> list[StatusDue]:
        nonlocal looks
        looks += 1
        obj = stage.mirror.control_planes.known.get(key)
        if pending or obj is None:
            return []
        return [StatusDue(key, "/planes/agent/status", obj.metadata.uid, now_ms, {}, "own", (), False)]

    def exists(uid: str) -> None:
        stage.mirror.control_planes.known[key] = AgentControlPlane(ObjectMeta(name="agent", namespace="ns", uid=uid))

    async def look(waits: bool = False) -> None:
        nonlocal pending
        pending, before = waits, looks
        await until(lambda: looks > before + 2)

    clock: Any = stage
    stage.statuses = QueueStatusWriter(
        stage.mirror_client, clock, stage.mirror, state=lambda: stage.state, may_write=lambda: True, planes=planes,
        written=lambda plane, at_ms: noted.append(plane),
    )  # fmt: skip
    exists("first")
    async with stage.running():
        for waits in (False, True, False):
            await look(waits)
        assert noted == ["ns/agent"]
        exists("second")
        await look()
        assert noted == ["ns/agent", "ns/agent"]


async def test_a_queue_without_an_object_has_no_status(stage: Stage) -> None:
    stage.start("p", DEFAULT_QUEUE, 4)
    async with stage.running():
        await until(lambda: len(stage.written("red")) == 1)
        await quiet(stage)
    assert not stage.written(DEFAULT_QUEUE)


async def test_a_queue_that_was_deleted_and_made_again_is_not_taken_for_the_old_one(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: len(stage.written("red")) == 1)
        again = Queue(ObjectMeta(name="red", uid="another"))
        stage.mirror.queues.known["", "red"] = again
        await until(lambda: len(stage.written("red")) == 2)
    assert stage.server.bodies("PATCH", "/queues/red/status")[-1][0]["value"] == "another"


async def test_the_first_waiting_job_is_named_with_its_reason(stage: Stage) -> None:
    stage.start("p", "red", 8)
    waiting = Pod("w", "d", "w", Request((*_AMOUNTS, ("nvidia.com/gpu", 8))), queue="blue", created_ms=START_MS)
    cycle.step(stage.state, [PodChanged(waiting)], stage.time_ms)
    async with stage.running():
        await until(lambda: bool(stage.written("blue")))
    status = stage.written("blue")[-1]
    assert (status["pendingJobs"], status["pending"]["gpu"]) == (1, "8")
    assert (status["head"]["name"], status["head"]["reason"]) == ("d/w", "NoNodeFits")


@pytest.mark.parametrize("restarts", [(), (1,), (3,), (1, 2, 4)])
async def test_a_history_is_the_same_however_often_the_scheduler_was_restarted(restarts: tuple[int, ...]) -> None:
    """Pods begin and end each hour. What a queue has used is what it would have used without a restart."""
    stage = Stage("red", "blue")
    hour_ms = 60 * MINUTE_MS
    for hour in range(6):
        stage.time_ms += hour_ms
        if hour:
            stage.end(f"p{hour - 1}")
        stage.start(f"p{hour}", ("red", "blue")[hour % 2], 1 + hour)
        if hour in restarts:
            stage.server.asked.clear()
            async with stage.running():
                await until(lambda: bool(stage.written("red") and stage.written("blue")))
            stage.read_back()
            stage.time_ms += hour_ms // 3
            stage.restart()
            stage.time_ms += hour_ms // 3
        else:
            stage.time_ms += 2 * (hour_ms // 3)
    used = {snapshot.name: snapshot.used for snapshot in stage.state.queue_snapshots(stage.time_ms)}
    expected = {"red": 0.0, "blue": 0.0}
    half_life_ms = 7 * 24 * hour_ms
    step_ms = hour_ms + 2 * (hour_ms // 3)
    for hour in range(6):
        began_ms = START_MS + hour * step_ms + hour_ms
        end_ms = min(began_ms + step_ms, stage.time_ms)
        left = [0.5 ** ((stage.time_ms - at_ms) / half_life_ms) for at_ms in (began_ms, end_ms)]
        expected[("red", "blue")[hour % 2]] += (
            1_000 * (1 + hour) * (left[1] - left[0]) * half_life_ms / 0.6931471805599453
        )
    assert used["red"] == pytest.approx(expected["red"], rel=1e-6)
    assert used["blue"] == pytest.approx(expected["blue"], rel=1e-6)


@pytest.fixture
def stage() -> Stage:
    return Stage("red", "blue")
