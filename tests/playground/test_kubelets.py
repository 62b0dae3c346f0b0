# SPDX-License-Identifier: Apache-2.0
"""The lives of pods under simulated kubelets, by a clock that the test holds."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from dovetail.playground import EXIT_CODE, RUN_SECONDS, Playground
from tests.contract.api import Json, pod


@dataclass
class World:
    """A playground that does not run: time passes, and kubelets act, when the test wants it."""

    now_s: float = 1_000_000.0
    history: int = 1000
    playground: Playground = field(init=False)

    def __post_init__(self) -> None:
        self.playground = Playground(
            history=self.history, start_delay_s=2.0, stop_delay_s=3.0, clock=lambda: self.now_s
        )
        self.node("gpu-1")

    def node(self, name: str, **allocatable: str) -> None:
        amounts = {"cpu": "8", "nvidia.com/gpu": "4", "pods": "10"} | allocatable
        status = {"allocatable": amounts, "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}
        labels = {"kubernetes.io/hostname": name}
        self.playground.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
        )

    def place(self, name: str, gpus: int = 0, annotations: Json | None = None, **spec: Any) -> None:
        """Makes a pod that is bound to gpu-1."""
        resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
        container = {"name": "main", "image": "registry.example/none", "resources": resources}
        placed = pod(name, **({"containers": [container], "nodeName": "gpu-1"} | spec))
        placed["metadata"]["annotations"] = annotations or {}
        self.playground.put(placed)
        self.playground.kubelets.step()

    def delete(self, name: str) -> None:
        self.playground.delete("pods", "default", name)
        self.playground.kubelets.step()

    def passes(self, seconds: float) -> None:
        self.playground.kubelets.step()
        self.now_s += seconds
        self.playground.kubelets.step()

    def status(self, name: str) -> Json:
        """The status of the pod, {} if it is gone."""
        found = self.playground.store.get("pods", "default", name)
        return found["status"] if found else {}


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_bound_pod_runs_after_the_start_delay(world: World) -> None:
    world.place("one")
    world.passes(1.9)
    assert world.status("one")["phase"] == "Pending"
    world.passes(0.1)
    status = world.status("one")
    assert (status["phase"], status["hostIP"], status["startTime"]) == ("Running", "192.0.2.1", "1970-01-12T13:46:42Z")
    assert {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-12T13:46:42Z"} in status["conditions"]
    assert status["containerStatuses"][0]["ready"] is True
    world.passes(1_000_000)
    assert world.status("one")["phase"] == "Running"


async def test_a_pod_that_waits_for_a_scheduler_is_left_alone(world: World) -> None:
    world.place("one", nodeName="")
    world.place("two", nodeName="no-such-node")
    world.passes(100)
    assert (world.status("one")["phase"], world.status("two")["phase"]) == ("Pending", "Pending")


async def test_run_seconds_end_a_pod(world: World) -> None:
    world.place("good", annotations={RUN_SECONDS: "60"})
    world.place("bad", annotations={RUN_SECONDS: "60.5", EXIT_CODE: "3"})
    world.passes(2)
    world.passes(59.9)
    assert world.status("good")["phase"] == "Running"
    world.passes(0.1)
    assert (world.status("good")["phase"], world.status("bad")["phase"]) == ("Succeeded", "Running")
    world.passes(0.5)
    bad = world.status("bad")
    assert (bad["phase"], bad["containerStatuses"][0]["state"]["terminated"]["exitCode"]) == ("Failed", 3)


async def test_what_does_not_fit_beside_running_pods_fails(world: World) -> None:
    world.place("one", gpus=3)
    world.place("two", gpus=2)
    world.passes(2)
    assert world.status("one")["phase"] == "Running"
    two = world.status("two")
    assert (two["phase"], two["reason"]) == ("Failed", "OutOfnvidia.com/gpu")
    assert two["message"].endswith("resource: nvidia.com/gpu, requested: 2, used: 3, capacity: 4")


async def test_what_a_pod_took_is_free_again_when_it_has_ended_or_gone(world: World) -> None:
    world.place("ends", gpus=2, annotations={RUN_SECONDS: "1"})
    world.place("goes", gpus=2)
    world.passes(2)
    world.passes(1)
    world.delete("goes")
    world.place("next", gpus=2)
    world.passes(3)
    world.place("last", gpus=2)
    world.passes(2)
    assert [world.status(name).get("phase") for name in ("ends", "goes", "next", "last")] == [
        "Succeeded", None, "Running", "Running",
    ]  # fmt: skip


async def test_a_node_takes_so_many_pods(world: World) -> None:
    world.node("gpu-1", pods="1")
    world.place("one")
    world.place("two")
    assert world.status("two")["reason"] == "OutOfpods"


async def test_a_node_selector_that_does_not_match_fails_the_pod(world: World) -> None:
    world.place("one", nodeSelector={"kubernetes.io/hostname": "gpu-2"})
    assert (world.status("one")["phase"], world.status("one")["reason"]) == ("Failed", "NodeAffinity")


async def test_a_rejecting_kubelet_admits_no_new_pod(world: World) -> None:
    world.place("old")
    world.passes(2)
    world.playground.kubelets.reject("gpu-1", "TopologyAffinityError")
    world.place("new")
    assert (world.status("new")["phase"], world.status("new")["reason"]) == ("Failed", "TopologyAffinityError")
    assert world.status("old")["phase"] == "Running"
    world.playground.kubelets.reject("gpu-1", "")
    world.place("next")
    world.passes(2)
    assert world.status("next")["phase"] == "Running"


async def test_a_deleted_pod_stops_soon_or_at_the_end_of_its_grace(world: World) -> None:
    world.place("quick", terminationGracePeriodSeconds=1)
    world.place("slow", terminationGracePeriodSeconds=30)
    world.passes(2)
    for name in ("quick", "slow"):
        world.delete(name)
    world.passes(1)
    assert (world.status("quick"), world.status("slow")["phase"]) == ({}, "Running")
    world.passes(2)
    assert world.status("slow") == {}


async def test_finalizers_keep_a_stopped_pod(world: World) -> None:
    held = pod("one", nodeName="gpu-1")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    world.playground.put(held)
    world.passes(2)
    world.delete("one")
    world.passes(100)
    stopped = world.playground.store.get("pods", "default", "one")
    assert stopped is not None and stopped["metadata"]["deletionGracePeriodSeconds"] == 0


async def test_a_silent_kubelet_does_nothing_until_it_is_revived(world: World) -> None:
    world.place("old")
    world.passes(2)
    world.playground.kubelets.silence("gpu-1")
    node = world.playground.store.get("nodes", "", "gpu-1")
    assert node is not None and node["status"]["conditions"][0]["status"] == "Unknown"
    world.place("new")
    world.delete("old")
    world.passes(100)
    assert (world.status("new")["phase"], world.status("old")["phase"]) == ("Pending", "Running")
    world.playground.kubelets.revive("gpu-1")
    world.passes(2)
    assert (world.status("new")["phase"], world.status("old")) == ("Running", {})


async def test_a_node_that_comes_late_finds_its_pods(world: World) -> None:
    world.place("one", nodeName="gpu-2")
    world.passes(10)
    world.node("gpu-2")
    world.passes(2)
    world.passes(2)
    assert world.status("one")["phase"] == "Running"


async def test_a_burst_longer_than_the_history_is_not_lost_on_kubelets() -> None:
    world = World(history=2)
    for number in range(5):
        world.playground.put(pod(f"p{number}", nodeName="gpu-1"))
    world.passes(0)
    world.passes(2)
    assert {world.status(f"p{number}")["phase"] for number in range(5)} == {"Running"}


async def test_annotations_that_are_no_numbers_fail_the_pod_and_report_it(world: World) -> None:
    world.place("one", annotations={RUN_SECONDS: "soon"})
    status = world.status("one")
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert status["message"] == f"annotation {RUN_SECONDS}: 'soon' is no number of seconds"


@pytest.mark.parametrize(
    "damage",
    [
        {"spec": "text"},
        {"spec": {"nodeName": "gpu-1", "containers": "text"}},
        {"spec": {"nodeName": "gpu-1", "containers": [{"resources": {"requests": {"cpu": "lots"}}}]}},
        {"spec": {"nodeName": 7}, "status": []},
        {"spec": {"nodeName": "gpu-1"}, "status": {"conditions": {"type": "Ready"}}},
        {"spec": {"nodeName": "gpu-1", "nodeSelector": ["a"]}, "status": {"phase": 3}},
        {"metadata": {"name": "bad", "namespace": "default", "labels": 1, "annotations": 2, "ownerReferences": 3}},
        {"metadata": {"name": "bad", "namespace": "default", "deletionTimestamp": "yesterday"}},
    ],
)
async def test_malformed_pods_do_not_affect_others(world: World, damage: Json) -> None:
    bad = {"metadata": {"name": "bad", "namespace": "default", "uid": "bad"}, "spec": {}} | damage
    world.playground.store.put_raw("pods", bad)
    world.place("good")
    world.passes(2)
    assert world.status("good")["phase"] == "Running"
