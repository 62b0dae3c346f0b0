# SPDX-License-Identifier: Apache-2.0
"""A preemption as the driver carries it out: what is reported to which object, in which order, and what ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail.core.decisions import Decision, Drain, Evict, Release, Unnominate
from dovetail.core.events import Event, EvictionFailed
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.kube.api.reflector import Change
from dovetail.kube.objects.pods import Pod
from dovetail.scheduler import evictor
from tests.scheduler.scripted import BROKEN, FORBIDDEN, TAKEN, until
from tests.scheduler.test_driver import Bench, wire

BIG_STATUS = "/pods/big/status"


class Stage(Bench):
    """Two pods that run on a node, and one that waits for all of it; what is decided is the test's affair."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[Event] = []
        put = self.mirror.put

        def overheard(events: list[Event]) -> None:
            self.reported += events
            put(events)

        self.mirror.put = overheard  # type: ignore[method-assign]
        self.node("a")
        for name in ("v0", "v1"):
            self.pod(name, 4, node="a")
        self.pod("big", 8)

    def decide(self, decision: Decision) -> None:
        self.driver._carry_out(decision)

    def evict(self, *names: str, step: int = 7) -> None:
        uids = tuple(f"uid-{name}" for name in names)
        self.decide(Evict("", uids, "reclaim", (("uid-big", "a"),), 60_000_000, "red takes its due", step))

    def give_up(self) -> None:
        self.decide(Unnominate("", ("uid-big",), "somebody stays", 8))

    def nominations(self) -> list[str | None]:
        bodies = [body["status"] for body in self.server.bodies("PATCH", BIG_STATUS)]
        return [status["nominatedNodeName"] for status in bodies if "nominatedNodeName" in status]

    def nominate(self, name: str, nominated: str, annotations: dict[str, str], *, node: str = "") -> None:
        """The pod as the API server has it, with this nomination."""
        limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"}
        meta = {"name": name, "namespace": "d", "uid": f"uid-{name}", "annotations": annotations}
        containers = [{"name": "m", "resources": {"limits": limits}}]
        document = {
            "metadata": meta | {"creationTimestamp": "2024-01-01T00:00:00Z"},
            "spec": {"schedulerName": "dovetail", "nodeName": node, "containers": containers},
            "status": {"nominatedNodeName": nominated},
        }
        pod = wire(Pod, document)
        self.mirror.pods.known["d", name] = pod
        self.mirror.put(self.mirror.feed.pods([Change("modified", pod)]))

    def ended(self) -> list[str]:
        paths = [path for method, path, _ in self.server.asked if method == "PATCH"]
        patched = {path.split("/")[-2] for path in paths}
        return sorted(patched & {"v0", "v1"})

    def failed(self) -> list[str]:
        return [event.uid for event in self.reported if isinstance(event, EvictionFailed)]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(evictor, "_AGAIN_S", 0.005)
    return Stage()


async def ready(stage: Stage) -> None:
    await until(lambda: bool(stage.notes("FailedScheduling")))


async def test_victims_and_preemptors_get_one_decision(stage: Stage) -> None:
    async with stage.running():
        await ready(stage)
        stage.evict("v0", "v1")
        await until(lambda: len(stage.notes("Preempted")) == 2 and stage.nominations() == ["a"])
    assert stage.ended() == ["v0", "v1"]
    written = stage.server.bodies("POST", "/events")
    events = [event for event in written if event["reason"] in ("Preempted", "WaitingForEvictions")]
    assert {event["metadata"]["annotations"]["dovetail.dev/decision"] for event in events} == {"run-7"}
    assert {event["related"]["uid"] for event in events if event["reason"] == "Preempted"} == {"uid-big"}
    nominated = next(b for b in stage.server.bodies("PATCH", BIG_STATUS) if "nominatedNodeName" in b["status"])
    assert nominated["metadata"] == {"uid": "uid-big", "annotations": {"dovetail.dev/decision": "run-7"}}


async def test_a_failed_eviction_is_reported_to_the_core_and_the_others_are_left_alone(stage: Stage) -> None:
    stage.server.will("POST", "/pods/v1/eviction", FORBIDDEN)
    async with stage.running():
        await ready(stage)
        stage.evict("v0", "v1")
        await until(lambda: stage.failed() == ["uid-v1"])
        stage.give_up()
        await until(lambda: stage.nominations() == ["a", None] and bool(stage.notes("PreemptionGivenUp")))
    assert not stage.ended()


async def test_giving_up_stops_what_is_under_way(stage: Stage) -> None:
    stage.server.will("POST", "/eviction", BROKEN)
    async with stage.running():
        await ready(stage)
        stage.evict("v0", "v1")
        await until(lambda: len(stage.server.bodies("POST", "/eviction")) > 4)
        stage.give_up()
        await until(lambda: None in stage.nominations())
        await asyncio.sleep(0.05)
        asked = len(stage.server.bodies("POST", "/eviction"))
        await asyncio.sleep(0.05)
        assert len(stage.server.bodies("POST", "/eviction")) == asked
    assert not stage.failed() and not stage.ended()


async def test_a_replica_that_leads_no_more_evicts_nobody(stage: Stage) -> None:
    stage.server.will("POST", "/eviction", BROKEN)
    async with stage.running():
        await ready(stage)
        stage.evict("v0", "v1")
        await until(lambda: len(stage.server.bodies("POST", "/eviction")) > 4)
        stage.leads = False
        stage.server.will("POST", "/eviction", {})
        await asyncio.sleep(0.1)
    assert not stage.failed() and not stage.ended()


async def test_a_nomination_of_the_scheduler_before_is_cleared_and_that_of_others_is_not(stage: Stage) -> None:
    stage.nominate("big", "a", {"dovetail.dev/decision": "before-3"})
    stage.nominate("other", "a", {})
    stage.leads = False
    async with stage.running():
        await until(lambda: len(stage.state.workloads.pods) == 4)
        assert not stage.nominations()
        stage.leads = True
        stage.mirror.changed.set()
        await until(lambda: stage.nominations() == [None])
        await until(stage.driver.reporter.idle.is_set)
    others = [body["status"] for body in stage.server.bodies("PATCH", "/pods/other/status")]
    assert not any("nominatedNodeName" in status for status in others)


async def test_a_nomination_of_ours_stays_while_it_is_held(stage: Stage) -> None:
    async with stage.running():
        await ready(stage)
        stage.evict("v0", "v1")
        await until(lambda: stage.nominations() == ["a"])
        stage.nominate("big", "a", {"dovetail.dev/decision": "run-7"})
        await until(lambda: stage.state.workloads.pods["uid-big"].nominated_node == "a")
        await until(stage.driver.reporter.idle.is_set)
        assert stage.nominations() == ["a"]


async def test_a_nomination_is_cleared_where_the_bind_fails(stage: Stage) -> None:
    stage.server.will("POST", "/pods/big/binding", TAKEN)
    stage.server.will("GET", "/pods/big", {"metadata": {"name": "big", "namespace": "d", "uid": "uid-big"}})
    async with stage.running():
        await ready(stage)
        stage.evict("v0", "v1")
        await until(lambda: stage.nominations() == ["a"])
        for name in ("v0", "v1"):
            stage.pod(name, 4, node="a", kind="deleted")
        await until(lambda: stage.nominations() == ["a", None])


async def test_a_nomination_that_the_server_keeps_after_the_bind_is_cleared(stage: Stage) -> None:
    """Servers before 1.35 do."""
    async with stage.running():
        await ready(stage)
        stage.evict("v0", "v1")
        await until(lambda: stage.nominations() == ["a"])
        for name in ("v0", "v1"):
            stage.pod(name, 4, node="a", kind="deleted")
        await until(lambda: stage.bindings() == {"big": "a"})
        stage.nominate("big", "a", {"dovetail.dev/decision": "run-9"}, node="a")
        await until(lambda: stage.nominations() == ["a", None])


async def test_of_a_gang_that_is_released_each_goes_on_its_own(stage: Stage) -> None:
    stage.server.will("POST", "/pods/v1/eviction", FORBIDDEN)
    async with stage.running():
        await ready(stage)
        refusal = Refusal(Reason.GANG_DOES_NOT_FIT, When.NOT_YET)
        stage.decide(Release("gang/d/g", ("uid-v0", "uid-v1"), refusal, 5))
        await until(lambda: len(stage.notes("GangReleased")) == 1)
        await until(stage.driver.reporter.idle.is_set)
    condition: dict[str, Any] = stage.server.bodies("PATCH", "/pods/v0/status")[0]["status"]["conditions"][0]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "GangReleased")
    assert stage.ended() == ["v0"] and not stage.failed()


async def test_a_moved_pod_gets_an_event(stage: Stage) -> None:
    async with stage.running():
        await ready(stage)
        message = "it has room elsewhere, and where it was d/big is to start"
        stage.decide(Evict("", ("uid-v0",), "move", (("uid-big", "a"),), 60_000_000, message, 7, ("b",)))
        await until(lambda: len(stage.notes("Moved")) == 1)
        await until(stage.driver.reporter.idle.is_set)
    assert stage.notes("Moved")[0].startswith("it has room elsewhere")
    assert stage.notes("Preempted") == []


async def test_a_pod_on_a_node_in_maintenance_is_evicted_with_that_reason(stage: Stage) -> None:
    async with stage.running():
        await ready(stage)
        message = "a is in maintenance, and d/v0 has room elsewhere"
        stage.decide(Drain("", ("uid-v0",), "a", ("b",), 60_000_000, message, 7))
        await until(lambda: len(stage.notes("Drained")) == 1)
        await until(stage.driver.reporter.idle.is_set)
    assert stage.notes("Drained")[0] == f"{message} (1 pod is evicted; 1.0 GPU-minutes of work are lost)"
    condition: dict[str, Any] = stage.server.bodies("PATCH", "/pods/v0/status")[0]["status"]["conditions"][0]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "NodeMaintenance")
    assert stage.ended() == ["v0"] and not stage.failed()


async def test_a_gang_that_is_broken_goes_with_that_reason(stage: Stage) -> None:
    async with stage.running():
        await ready(stage)
        refusal = Refusal(Reason.GANG_BROKEN, When.NEVER, "1 failed and are not replaced")
        stage.decide(Release("gang/d/g", ("uid-v0",), refusal, 5, "broken"))
        await until(lambda: len(stage.notes("GangBroken")) == 1)
        await until(stage.driver.reporter.idle.is_set)
    condition: dict[str, Any] = stage.server.bodies("PATCH", "/pods/v0/status")[0]["status"]["conditions"][0]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "GangBroken")
    assert "GangBroken (Never): pods of the gang failed for good" in condition["message"]


async def test_what_is_held_states_by_which_decision(stage: Stage) -> None:
    async with stage.running():
        await ready(stage)
        step = stage.state.steps
    held = [body for body in stage.server.bodies("POST", "/events") if body["reason"] == "FailedScheduling"]
    run, _, number = held[0]["metadata"]["annotations"]["dovetail.dev/decision"].partition("-")
    assert run == "run" and 1 <= int(number) <= step
