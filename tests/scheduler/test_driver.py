# SPDX-License-Identifier: Apache-2.0
"""What the driver makes of decisions and answers: who is told what, and that nothing is forgotten or kept for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.discovery import Served
from dovetail.kube.feed import Feed
from dovetail.kube.gangs_dialects import NATIVE
from dovetail.kube.objects import Node
from dovetail.kube.objects_pod import Pod
from dovetail.kube.reflector import Change
from dovetail.scheduler import binder
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.driver import Driver
from dovetail.scheduler.mirror import Mirror
from tests.scheduler.scripted import FORBIDDEN, TAKEN, Scripted, until

BOUND = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2024-01-01T00:00:10Z"}
GROUP_STATUS = "/namespaces/d/podgroups/g/status"


def wire(kind: type[Any], document: dict[str, Any]) -> Any:
    return msgspec.json.decode(json.dumps(document), type=kind)


class Bench:
    """A driver on a scripted server; the test says what the watches see."""

    def __init__(self) -> None:
        self.server = Scripted()
        client: Any = self.server
        self.mirror = Mirror(client, Served(frozenset()), Feed())
        self.leads = True
        self.state = State(Policy(attempts_per_step=64, start_deadline_ms=60_000))
        self.driver = Driver(
            self.state, self.mirror, client, Clock(), leads=lambda: self.leads, run_id="run", instance="here"
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self._run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in (self.driver.binder, self.driver.reporter, self.driver):
                tasks.create_task(part.run())

    def node(self, name: str, gpus: int = 8) -> None:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        meta = {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}}
        node = wire(Node, {"metadata": meta, "status": {"allocatable": amounts}})
        self.mirror.nodes.known["", name] = node
        self.mirror.tell(self.mirror.feed.nodes([Change("added", node, None)]))

    def pod(self, name: str, gpus: int = 1, *, node: str = "", group: str = "", kind: Any = "added") -> None:
        limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
        document: dict[str, Any] = {
            "metadata": {
                "name": name,
                "namespace": "d",
                "uid": f"uid-{name}",
                "creationTimestamp": "2024-01-01T00:00:00Z",
            },
            "spec": {
                "schedulerName": "dovetail",
                "nodeName": node,
                "containers": [{"name": "m", "resources": {"limits": limits}}],
            }
            | ({"schedulingGroup": {"podGroupName": group}} if group else {}),
            "status": {"conditions": [BOUND] if node else []},
        }
        self.mirror.tell(self.mirror.feed.pods([Change(kind, wire(Pod, document), None)]))

    def group(self, name: str, count: int, kind: Any = "added") -> None:
        spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
        document = {"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": spec}
        self.mirror.tell(self.mirror.feed.pod_groups(NATIVE, [Change(kind, wire(NATIVE.kind, document), None)]))

    def bindings(self) -> dict[str, str]:
        """Node by pod, of all binds that were sent."""
        sent = [body for _, path, body in self.server.asked if path.endswith("/binding")]
        return {body["metadata"]["name"]: body["target"]["name"] for body in sent}

    def notes(self, reason: str) -> list[str]:
        """What the events of one reason say."""
        return [body["note"] for body in self.server.bodies("POST", "/events") if body["reason"] == reason]

    def group_conditions(self) -> list[tuple[str, str]]:
        """(status, message) of what was written to the PodGroup g."""
        written = [body["status"]["conditions"][0] for body in self.server.bodies("PATCH", GROUP_STATUS)]
        return [(condition["status"], condition["message"]) for condition in written]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_who_does_not_lead_follows_and_is_ready_when_its_turn_comes(bench: Bench) -> None:
    bench.leads = False
    bench.node("a")
    bench.pod("there", 6, node="a")
    bench.pod("fits", 2)
    bench.pod("waits", 4)
    async with bench.running():
        await until(lambda: len(bench.state.roster.pods) == 3)
        assert bench.server.asked == []
        bench.leads = True
        bench.mirror.changed.set()
        await until(lambda: bench.bindings() == {"fits": "a"} and bool(bench.notes("FailedScheduling")))
    assert len(bench.notes("FailedScheduling")) == 1


async def test_the_pod_is_told_what_the_server_said_of_its_bind(bench: Bench) -> None:
    bench.node("a")
    bench.pod("p")
    bench.server.will("POST", "/binding", FORBIDDEN)
    bench.server.will("GET", "/pods/p", {"metadata": {"name": "p", "namespace": "d", "uid": "uid-p"}})
    async with bench.running():
        await until(lambda: any("pods/binding is forbidden" in note for note in bench.notes("FailedScheduling")))
        assert bench.state.cluster.placements == {}


async def test_a_bind_that_failed_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder, "_SOON_MS", 1)
    bench.node("a")
    bench.pod("p")
    bench.server.will("POST", "/binding", TAKEN, TAKEN, {})
    bench.server.will("GET", "/pods/p", {"metadata": {"name": "p", "namespace": "d", "uid": "uid-p"}})
    async with bench.running():
        await until(lambda: bool(bench.notes("Scheduled")))
    assert len(bench.server.bodies("POST", "/binding")) == 3


async def test_a_group_has_started_when_all_are_seen_bound_however_long_that_took(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one bind that failed is decided again on its own; the group still has four pods."""
    monkeypatch.setattr(binder, "_SOON_MS", 1)
    bench.node("a")
    bench.group("g", 4)
    bench.server.will("POST", "/pods/p0/binding", TAKEN, {})
    bench.server.will("GET", "/pods/p0", {"metadata": {"name": "p0", "namespace": "d", "uid": "uid-p0"}})
    async with bench.running():
        for number in range(4):
            bench.pod(f"p{number}", group="g")
        await until(lambda: len(bench.notes("Scheduled")) == 4)
        for number in (1, 2, 3):
            bench.pod(f"p{number}", node="a", group="g", kind="modified")
        await until(lambda: bench.state.roster.pods["uid-p3"].node == "a")
        assert not any(status == "True" for status, _ in bench.group_conditions())
        bench.pod("p0", node="a", group="g", kind="modified")
        await until(lambda: any(status == "True" for status, _ in bench.group_conditions()))
    assert bench.group_conditions()[-1][1].startswith("4 pods were bound")


async def test_a_group_that_goes_away_while_it_starts_is_forgotten(bench: Bench) -> None:
    bench.node("a")
    async with bench.running():
        for number in range(3):
            bench.group(f"g{number}", 2)
            for member in range(2):
                bench.pod(f"p{number}{member}", group=f"g{number}")
        await until(lambda: len(bench.bindings()) == 6)
        assert len(bench.driver._starting) == 3
        for number in range(3):
            for member in range(2):
                bench.pod(f"p{number}{member}", group=f"g{number}", kind="deleted")
            bench.group(f"g{number}", 2, kind="deleted")
        await until(lambda: not bench.state.roster.pods)
        await until(lambda: not bench.driver._starting)
        await until(bench.driver.reporter.idle.is_set)
        assert bench.state.pending.lengths() == (0, 0)


async def test_a_pod_deleted_before_its_bind_goes_out_frees_its_place(bench: Bench) -> None:
    bench.node("a", gpus=1)
    bench.pod("p")
    bench.server.will("POST", "/pods/p/binding", TAKEN)
    bench.server.will("GET", "/pods/p", {"metadata": {"name": "p", "namespace": "d", "uid": "made-again"}})
    async with bench.running():
        await until(lambda: bool(bench.server.bodies("GET", "/pods/p")))
        bench.pod("p", kind="deleted")
        bench.pod("q")
        await until(lambda: bench.bindings().get("q") == "a")


async def test_a_bind_waits_for_the_refusal_that_is_being_written(bench: Bench) -> None:
    """Else the pod would be bound and say that it is unschedulable."""
    written = asyncio.Event()
    bench.server.will("PATCH", "/pods/p/status", written.wait)
    bench.pod("p")
    async with bench.running():
        await until(lambda: bool(bench.server.bodies("PATCH", "/pods/p/status")))
        bench.node("a")
        await until(lambda: bool(bench.state.cluster.placements))
        await asyncio.sleep(0.02)
        assert bench.bindings() == {}
        written.set()
        await until(lambda: bench.bindings() == {"p": "a"})


async def test_an_error_in_work_that_nobody_waits_for_ends_everything_loudly(bench: Bench) -> None:
    """The eviction of a gang that started by half, before this process began."""
    bench.server.will("POST", "/pods/p/eviction", ZeroDivisionError("a bug"))
    bench.node("a", gpus=1)
    bench.group("g", 2)
    bench.pod("p", node="a", group="g")
    bench.pod("q", group="g")
    async with bench.running() as task:
        await asyncio.wait([task], timeout=5)
        error = task.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert error.subgroup(ZeroDivisionError) is not None
