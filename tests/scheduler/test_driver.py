# SPDX-License-Identifier: Apache-2.0
"""What the driver makes of decisions and answers: what is reported to which object, and that nothing is forgotten or
kept for ever."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.reflector import Change
from dovetail.kube.gangs.dialects import NATIVE
from dovetail.kube.informers import Informers
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import binder
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.driver import Driver
from dovetail.scheduler.events import SchedulerRun
from tests.bound import bound
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import FORBIDDEN, TAKEN, Scripted, until

BOUND = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2024-01-01T00:00:10Z"}
GROUP_STATUS = "/namespaces/d/podgroups/g/status"


def wire(kind: type[Any], document: dict[str, Any]) -> Any:
    return msgspec.json.decode(json.dumps(document), type=kind)


class Bench:
    """A driver on a scripted server; the test decides what the watches see."""

    def __init__(self) -> None:
        self.server = Scripted()
        client: Any = self.server
        self.mirror = Informers(client, Served(frozenset()), Translator())
        self.leads = True
        self.state = State(Policy(attempts_per_step=64, start_deadline_ms=60_000))
        self.driver = Driver(
            self.state, self.mirror, client, Clock(), leads=lambda: self.leads, run=SchedulerRun("run", "here")
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

    def node(self, name: str, gpus: int = 8, **labels: str) -> None:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        named = {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}
        meta = {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name} | named}
        node = wire(Node, {"metadata": meta, "status": {"allocatable": amounts}})
        self.mirror.nodes.known["", name] = node
        self.mirror.put(self.mirror.feed.node_records.nodes([Change("added", node)]))

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
        self.mirror.put(self.mirror.feed.pods([Change(kind, wire(Pod, document))]))

    def group(self, name: str, count: int, kind: Any = "added") -> None:
        spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
        document = {"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": spec}
        self.mirror.put(self.mirror.feed.gangs.pod_groups(NATIVE, [Change(kind, wire(NATIVE.kind, document))]))

    def bindings(self) -> dict[str, str]:
        """Node by pod, of all binds that were sent."""
        sent = [body for _, path, body in self.server.asked if path.endswith("/binding")]
        return {body["metadata"]["name"]: body["target"]["name"] for body in sent}

    def annotations(self) -> dict[str, dict[str, str]]:
        """What the binds write down, by pod; without the decision and the record."""
        sent = [body["metadata"] for _, path, body in self.server.asked if path.endswith("/binding")]
        written = {meta["name"]: dict(meta["annotations"]) for meta in sent}
        assert all(values.pop("dovetail.dev/decision") for values in written.values())
        assert all(values.pop("dovetail.dev/bound") for values in written.values())
        return written

    def gpu_node(self, name: str, nvlinks: list[list[int]], **kubelet: Any) -> None:
        status: dict[str, Any] = {
            "gpus": [{"index": i, "uuid": f"GPU-{i}", "numaNode": i % 2} for i in range(len(nvlinks))],
            "nvlinks": nvlinks,
        }
        if kubelet:
            devices = [{"id": gpu["uuid"], "numaNodes": [gpu["numaNode"]]} for gpu in status["gpus"]]
            pool = {"resource": "nvidia.com/gpu", "prefersAllocation": True, "devices": devices}
            numa = [{"id": 0}, {"id": 1}]
            status["kubelet"] = {"version": "v1.37.1", "numaNodes": numa, "devices": [pool]} | kubelet
        obj = wire(GPUNode, {"metadata": {"name": name}, "status": status})
        self.mirror.put(self.mirror.feed.gpu_nodes([Change("added", obj)]))

    def notes(self, reason: str) -> list[str]:
        """The notes of the events of one reason."""
        return [body["note"] for body in self.server.bodies("POST", "/events") if body["reason"] == reason]

    def group_conditions(self) -> list[tuple[str, str]]:
        """(status, message) of what was written to the PodGroup g."""
        written = [body["status"]["conditions"][0] for body in self.server.bodies("PATCH", GROUP_STATUS)]
        return [(condition["status"], condition["message"]) for condition in written]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_replica_that_does_not_lead_follows_and_is_ready_when_its_turn_comes(bench: Bench) -> None:
    bench.leads = False
    bench.node("a")
    bench.pod("there", 6, node="a")
    bench.pod("fits", 2)
    bench.pod("waits", 4)
    async with bench.running():
        await until(lambda: len(bench.state.workloads.pods) == 3)
        assert bench.server.asked == []
        bench.leads = True
        bench.mirror.changed.set()
        await until(lambda: bench.bindings() == {"fits": "a"} and bool(bench.notes("FailedScheduling")))
    assert len(bench.notes("FailedScheduling")) == 1


async def test_the_pod_gets_the_servers_answer_to_its_bind(bench: Bench) -> None:
    bench.node("a")
    bench.pod("p")
    bench.server.will("POST", "/binding", FORBIDDEN)
    bench.server.will("GET", "/pods/p", {"metadata": {"name": "p", "namespace": "d", "uid": "uid-p"}})
    async with bench.running():
        await until(lambda: any("pods/binding is forbidden" in note for note in bench.notes("FailedScheduling")))
        await until(lambda: bench.state.cluster.placements == {})


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
        await until(lambda: bench.state.workloads.pods["uid-p3"].node == "a")
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
        await until(lambda: not bench.state.workloads.pods)
        await until(lambda: not bench.driver._starting)
        await until(bench.driver.reporter.idle.is_set)
        assert bench.state.queue.lengths() == (0, 0)


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
    """Else the pod would be bound and reported as unschedulable."""
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
        await asyncio.wait([task], timeout=PATIENCE_S)
        error = task.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert error.subgroup(ZeroDivisionError) is not None


PAIRS = [[0, 0, 4, 0], [0, 0, 0, 4], [4, 0, 0, 0], [0, 4, 0, 0]]


async def test_the_gpus_of_a_pod_are_reported_with_their_links(bench: Bench) -> None:
    bench.gpu_node("a", PAIRS)
    bench.node("a", gpus=4)
    async with bench.running():
        bench.pod("two", 2)
        bench.pod("one", 1)
        await until(lambda: len(bench.notes("Scheduled")) == 2)
    assert bench.annotations() == {
        "two": {"dovetail.dev/devices": "0,2"},
        "one": {"dovetail.dev/devices": "1"},
    }
    assert sorted(bench.notes("Scheduled")) == [
        "Successfully assigned d/one to a with GPU 1",
        "Successfully assigned d/two to a with GPUs 0,2: 80000 of 80000 MB/s between them",
    ]


async def test_binds_and_at_level_debug_waiting_pods_are_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.node("a", gpus=4)
    with caplog.at_level("DEBUG", "dovetail"):
        async with bench.running():
            bench.pod("two", 2)
            bench.pod("huge", 8)
            await until(lambda: bool(bench.notes("FailedScheduling")) and bool(bench.notes("Scheduled")))
    (bound,) = [one for one in caplog.records if one.levelname == "INFO" and one.message.startswith("bound d/two to a")]
    reported = vars(bound)["fields"]
    assert (reported["pod"], reported["node"]) == (
        "d/two",
        "a",
    ) and f"as step {reported['step']} decided" in bound.message
    debug = [one.message for one in caplog.records if one.levelname == "DEBUG"]
    assert any(re.fullmatch(r"step \d+: \d+ events, \d+ decisions", one) for one in debug)
    assert any(one.startswith("d/huge waits: NoNodeFits (Never): 0/1 nodes") for one in debug)


async def test_gpus_that_are_only_counted_are_not_written_down(bench: Bench) -> None:
    bench.gpu_node("a", PAIRS)
    bench.node("a", gpus=8)
    async with bench.running():
        bench.pod("p", 2)
        await until(lambda: bool(bench.notes("Scheduled")))
    assert (bench.annotations(), bench.notes("Scheduled")) == ({"p": {}}, ["Successfully assigned d/p to a"])


async def test_bandwidth_that_is_assumed_is_reported_as_such(bench: Bench) -> None:
    bench.node("a", product="NVIDIA-H100-80GB-HBM3", count="8")
    async with bench.running():
        bench.pod("p", 8)
        await until(lambda: bool(bench.notes("Scheduled")))
    (note,) = bench.notes("Scheduled")
    assert note.endswith(
        "with GPUs 0,1,2,3,4,5,6,7: 370800 of 370800 MB/s between them, as the product is usually wired"
    )


async def test_members_of_a_gang_get_their_rank(bench: Bench) -> None:
    bench.node("a")
    async with bench.running():
        bench.group("g", 3)
        for number in range(3):
            bench.pod(f"p{number}", group="g")
        await until(lambda: len(bench.bindings()) == 3)
    assert sorted(values["dovetail.dev/rank"] for values in bench.annotations().values()) == ["0", "1", "2"]


async def test_after_a_restart_pods_hold_the_gpus_that_were_written_down(bench: Bench) -> None:
    bench.gpu_node("a", PAIRS)
    bench.node("a", gpus=4)
    limits = {"nvidia.com/gpu": "1"}
    document = {
        "metadata": {"name": "old", "namespace": "d", "uid": "old", "annotations": bound("old", "2")},
        "spec": {
            "schedulerName": "dovetail",
            "nodeName": "a",
            "containers": [{"name": "m", "resources": {"limits": limits}}],
        },
    }
    bench.mirror.put(bench.mirror.feed.pods([Change("added", wire(Pod, document))]))
    async with bench.running():
        await until(lambda: "old" in bench.state.workloads.pods)
        bench.pod("new", 2)
        await until(lambda: bool(bench.bindings()))
    assert bench.annotations() == {"new": {"dovetail.dev/devices": "1,3"}}


async def test_a_pod_that_a_kubelet_would_reject_waits_and_one_that_fits_gets_its_gpus(bench: Bench) -> None:
    bench.gpu_node(
        "a",
        [[0] * 4 for _ in range(4)],
        topologyManagerPolicy="single-numa-node",
        cpuManagerPolicy="none",
        memoryManagerPolicy="None",
    )
    bench.node("a", gpus=4)
    async with bench.running():
        bench.pod("three", 3)
        bench.pod("two", 2)
        await until(lambda: bool(bench.notes("FailedScheduling")) and bool(bench.notes("Scheduled")))
    assert bench.annotations() == {"two": {"dovetail.dev/devices": "0,2"}}
    assert "1 node(s) whose kubelet would reject the pod (TopologyAffinityError" in bench.notes("FailedScheduling")[0]


async def test_where_the_kubelets_answer_is_not_known_the_event_reports_it(bench: Bench) -> None:
    bench.gpu_node("a", [[0] * 4 for _ in range(4)], cpuManagerPolicy="none", memoryManagerPolicy="None")
    bench.node("a", gpus=4)
    async with bench.running():
        bench.pod("p", 1)
        await until(lambda: bool(bench.notes("Scheduled")))
    assert bench.notes("Scheduled") == [
        "Successfully assigned d/p to a with GPU 0; it is not known whether its kubelet lets it in: "
        "the Topology Manager's policy is not known"
    ]


async def test_the_events_of_a_gang_have_its_expected_all_reduce(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.node(name, product="NVIDIA-H100-80GB-HBM3", count="8", machine="DGXH100")
    bench.group("g", 2)
    async with bench.running():
        for number in range(2):
            bench.pod(f"p{number}", 8, group="g")
        await until(lambda: len(bench.notes("Scheduled")) == 2)
        for name, node in bench.bindings().items():
            bench.pod(name, 8, node=node, group="g", kind="modified")
        await until(lambda: any(status == "True" for status, _ in bench.group_conditions()))
    expected = "all-reduce at 486.2 GB/s at most (nvls-tree)"
    assert all(note.endswith(f"; the gang: {expected}") for note in bench.notes("Scheduled"))
    assert bench.group_conditions()[-1][1] == f"2 pods were bound; {expected}"
