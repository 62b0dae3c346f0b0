# SPDX-License-Identifier: Apache-2.0
"""Rollouts by the whole operator on the playground: pods are replaced node by node, and what was written suffices to go
on after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.found import Found
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.rendering.stack_objects import Desired
from dovetail.operator.rollout.part import Rollouts
from dovetail.operator.rollout.record import RECORD
from dovetail.playground.faults import Fault
from tests.operator.stack_world import STACKS, World, small, stamped, workload
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_waits")]
Document = dict[str, Any]
AGENTS = "dovetail-agent"
FAST = 200
"""The clock of the rollouts runs so many times faster."""
UPGRADE = {"canary": {"nodes": 1, "soakSeconds": 10}, "maxNodes": "1", "maxGpus": "100%", "maxNodesPerRack": 100,
           "readySeconds": 100}  # fmt: skip


@pytest.fixture
def fleet(world: World) -> World:
    """Four GPU nodes."""
    world.playground.put(yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text()))
    world.playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": AGENTS}})
    for i in range(4):
        world.playground.put(
            {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": f"n{i}", "labels": {"nvidia.com/gpu.present": "true"}},
                "status": {
                    "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )  # fmt: skip
    return world


@contextlib.asynccontextmanager
async def operator(world: World, render: Callable[[GPUStack, Found, str], Desired] = small) -> AsyncIterator[None]:
    """The operator, whose rollouts have a fast clock."""
    began_s = time.time()
    made: list[Rollouts] = []

    def clock_ms() -> int:
        return round(1000 * (began_s + FAST * (time.time() - began_s)))

    def parts(shared: SharedByParts) -> tuple[StackPart, ...]:
        made.append(Rollouts(shared, clock_ms=clock_ms))
        return tuple(made)

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.02)
            for one in made:
                one.wake()

    ticking = asyncio.create_task(tick())
    try:
        async with world.operator(render, parts_of=parts):
            yield
    finally:
        ticking.cancel()


def with_driver(stack: GPUStack, found: Found, image: str) -> Desired:
    """The small objects, and a driver."""
    driver = workload("DaemonSet", "dovetail-driver", stack.spec.driver.image, updateStrategy={"type": "OnDelete"})
    return Desired((*small(stack, found, image).objects, *stamped(stack, driver).objects))


def images(world: World, name: str = AGENTS) -> dict[str, str]:
    """By node the image of the pod of a DaemonSet."""
    return {
        pod["spec"].get("nodeName", ""): pod["spec"]["containers"][0]["image"]
        for pod in world.playground.store.list("pods")
        if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == name
        and "deletionTimestamp" not in pod["metadata"]
    }


def rollout(world: World) -> Document:
    found: Document = (world.get(STACKS, "", "gpus") or {}).get("status", {}).get("rollout") or {}
    return found


def revisions(world: World) -> list[Document]:
    found = world.playground.store.list("controllerrevisions.apps")
    own = [one for one in found if one["metadata"]["namespace"] == "dovetail-system"]
    return sorted(own, key=lambda one: one["revision"])


def all_have(world: World, image: str, phase: str = "Done") -> Callable[[], bool]:
    return lambda: images(world) == {f"n{i}": image for i in range(4)} and rollout(world).get("phase") == phase


def good(world: World) -> bool:
    """Whether the newest revision was seen working."""
    return bool(json.loads(revisions(world)[-1]["metadata"]["annotations"][RECORD]).get("good"))


async def installed(world: World, **spec: Any) -> None:
    world.stack(image={"repository": "dovetail", "tag": "1"}, upgrade=UPGRADE, **spec)
    await world.until(all_have(world, "dovetail:1"))
    await world.until(lambda: good(world))


async def test_a_first_installation_is_done_when_the_agents_are_ready(fleet: World) -> None:
    kubelets = fleet.playground.kubelets
    kubelets.start_delay_s, delay_s = 1_000.0, kubelets.start_delay_s
    async with operator(fleet):
        fleet.stack(image={"repository": "dovetail", "tag": "1"}, upgrade=UPGRADE)
        await fleet.until(all_have(fleet, "dovetail:1", "Rolling"))
        await fleet.until(lambda: rollout(fleet)["updated"] == 0 and rollout(fleet)["total"] == 4)
        await fleet.quiet()
        assert rollout(fleet)["phase"] == "Rolling"
        kubelets.start_delay_s = delay_s
        # Those that take their place start soon.
        for pod in fleet.playground.store.list("pods"):
            fleet.playground.delete("pods", AGENTS, pod["metadata"]["name"])
        await fleet.until(lambda: (rollout(fleet)["phase"], rollout(fleet)["updated"]) == ("Done", 4))


async def test_a_new_agent_comes_to_one_node_after_the_other(fleet: World) -> None:
    async with operator(fleet):
        await installed(fleet)
        first = revisions(fleet)[-1]["metadata"]["name"]
        fleet.stack(image={"repository": "dovetail", "tag": "2"}, upgrade=UPGRADE)
        seen = set()
        while not all_have(fleet, "dovetail:2")():
            seen.add(tuple(sorted(images(fleet).values())))
            assert len(rollout(fleet).get("working", ())) <= 1
            await asyncio.sleep(0.005)
        assert any(one.count("dovetail:2") == 1 and one.count("dovetail:1") == 3 for one in seen)
        status = rollout(fleet)
        assert (status["total"], status["updated"], status["failed"]) == (4, 4, [])
        assert [one["metadata"]["name"] == first for one in revisions(fleet)] == [True, False]
        labels = {"stack": "gpus", "state": "updated"}
        assert REGISTRY.get_sample_value("dovetail_operator_rollout_nodes", labels) == 4
        # Nothing more is written.
        version = fleet.playground.store.version
        await asyncio.sleep(0.3)
        assert fleet.playground.store.version == version


async def test_a_node_that_does_not_get_ready_ends_it_and_all_go_back_also_after_a_restart(fleet: World) -> None:
    async def walk() -> None:
        """What the walk reports of a node with the second image."""
        while True:
            for node, image in images(fleet).items():
                readiness = {"step": "ready"}
                if image == "dovetail:2":
                    readiness = {"step": "agent", "reason": "ContainerCrashed", "message": "exit 1"}
                old = fleet.get("gpunodes.dovetail.dev", "", node) or {"metadata": {"name": node}}
                if node and old.get("status", {}).get("readiness") != readiness:
                    kind = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode"}
                    fleet.playground.put(kind | old | {"status": {"readiness": readiness}})
            await asyncio.sleep(0.01)

    walking = asyncio.create_task(walk())
    async with operator(fleet):
        await installed(fleet)
        fleet.stack(image={"repository": "dovetail", "tag": "2"}, upgrade=UPGRADE)
        await fleet.until(lambda: bool(rollout(fleet).get("failed")))
    async with operator(fleet):
        await fleet.until(all_have(fleet, "dovetail:1", "RolledBack"))
        assert "ContainerCrashed: exit 1" in rollout(fleet)["reason"]
        assert len(rollout(fleet)["failed"]) == 1
    async with operator(fleet):
        await asyncio.sleep(0.3)
        assert all_have(fleet, "dovetail:1", "RolledBack")()
        agent = fleet.get("daemonsets.apps", AGENTS, AGENTS)
        assert agent is not None and agent["spec"]["template"]["spec"]["containers"][0]["image"] == "dovetail:1"
        fleet.stack(image={"repository": "dovetail", "tag": "3"}, upgrade=UPGRADE)
        await fleet.until(all_have(fleet, "dovetail:3"))
    walking.cancel()


async def test_a_driver_waits_for_the_pods_that_hold_gpus(fleet: World) -> None:
    async with operator(fleet, with_driver):
        await installed(fleet, driver={"mode": "Container", "image": "driver@sha256:1"})
        for i in range(4):
            container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
            fleet.playground.put(
                {
                    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"job-{i}", "namespace": "default"},
                    "spec": {"nodeName": f"n{i}", "containers": [container]},
                }
            )  # fmt: skip
        spec = {"image": {"repository": "dovetail", "tag": "1"}, "upgrade": UPGRADE}
        fleet.stack(driver={"mode": "Container", "image": "driver@sha256:2"}, **spec)
        await fleet.until(lambda: bool(rollout(fleet).get("working")))
        [name] = rollout(fleet)["working"]

        def maintenance() -> Document:
            found: Document = (fleet.get("gpunodes.dovetail.dev", "", name) or {}).get("spec", {}).get("maintenance")
            return found or {}

        await fleet.until(maintenance)
        assert (maintenance()["by"], maintenance()["drain"]) == ("rollout/gpus", "WaitForJobs")
        await asyncio.sleep(0.3)
        assert set(images(fleet, "dovetail-driver").values()) == {"driver@sha256:1"}
        for i in range(4):
            fleet.playground.delete("pods", "default", f"job-{i}")
        await fleet.until(lambda: set(images(fleet, "dovetail-driver").values()) == {"driver@sha256:2"})
        await fleet.until(lambda: rollout(fleet)["phase"] == "Done")
        assert not any(one["spec"].get("maintenance") for one in fleet.playground.store.list("gpunodes.dovetail.dev"))


async def test_uninstalled_half_way_no_maintenance_is_left(fleet: World) -> None:
    async with operator(fleet, with_driver):
        await installed(fleet, driver={"mode": "Container", "image": "driver@sha256:1"})
        container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        for i in range(4):
            metadata = {"name": f"job-{i}", "namespace": "default"}
            spec = {"nodeName": f"n{i}", "containers": [container]}
            fleet.playground.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        fleet.stack(
            image={"repository": "dovetail", "tag": "1"}, upgrade=UPGRADE,
            driver={"mode": "Container", "image": "driver@sha256:2"},
        )  # fmt: skip
        await fleet.until(lambda: any(
            one["spec"].get("maintenance") for one in fleet.playground.store.list("gpunodes.dovetail.dev")
        ))  # fmt: skip
        fleet.playground.delete(STACKS, "", "gpus")
        await fleet.until(lambda: fleet.get(STACKS, "", "gpus") is None)
        assert not any(one["spec"].get("maintenance") for one in fleet.playground.store.list("gpunodes.dovetail.dev"))
        assert revisions(fleet) == []


async def test_killed_again_and_again_the_end_is_the_same(fleet: World) -> None:
    dice = random.Random(3)
    async with operator(fleet):
        await installed(fleet)
    fleet.stack(image={"repository": "dovetail", "tag": "2"}, upgrade=UPGRADE)
    for _ in range(15):
        async with operator(fleet):
            await asyncio.sleep(dice.random() / 4)
        assert set(images(fleet).values()) <= {"dovetail:1", "dovetail:2"}
    async with operator(fleet):
        await fleet.until(all_have(fleet, "dovetail:2"))
        await fleet.until(lambda: len(revisions(fleet)) == 2)


async def test_without_the_right_to_read_revisions_all_else_goes_on_and_the_stack_reports_it(fleet: World) -> None:
    why = 'controllerrevisions.apps is forbidden: User "operator" cannot list resource'
    for method in ("GET", "WATCH"):
        fleet.playground.faults.add(
            Fault("answer", method, "controllerrevisions", times=10_000, status=403, message=why)
        )
    async with operator(fleet):
        fleet.stack(image={"repository": "dovetail", "tag": "1"}, upgrade=UPGRADE)
        await fleet.applied()
        await fleet.until(lambda: images(fleet) == {f"n{i}": "dovetail:1" for i in range(4)})
        await fleet.until(lambda: why in fleet.condition("Ready")[2])
