# SPDX-License-Identifier: Apache-2.0
"""A rollout on a real control plane: real ControllerRevisions, the real DaemonSet controller, two operators of which
the leader is killed, and an image that is not there. What runs on the nodes is checked at every change of a pod.

The clock of the rollouts alone is faster.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import NotFound
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import CONTROLLER_REVISIONS, DAEMON_SETS, GPU_STACKS, LEASES, NODES
from dovetail.operator.watched.pods import WatchedPod
from tests.operator.plane_world import AGENTS, STACK, SYSTEM, PlaneWorld, meanwhile
from tests.operator.rollout import fast_operator
from tools.controlplane.plane import Plane

pytestmark = [pytest.mark.plane, pytest.mark.slow]

Document = dict[str, Any]
NAMES = tuple(f"n{i}" for i in range(4))
LABELS = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "H100"}
UPGRADE = {"canary": {"nodes": 1, "soakSeconds": 40}, "maxNodes": "2", "maxGpus": "100%"}


class Agents:
    """The agents' pods at every change: the image of each that is bound and not gone, by node and uid. `out_most` is
    on how many nodes at most no agent was ready at a time since it was set to 0."""

    def __init__(self) -> None:
        self.there: dict[str, dict[str, tuple[str, bool]]] = {name: {} for name in NAMES}
        self.wrong: list[str] = []
        self.out_most = 0

    def __call__(self, change: Change[WatchedPod]) -> None:
        pod = change.object
        node, uid = pod.spec.node_name, pod.metadata.uid
        if pod.metadata.namespace != AGENTS or node not in self.there:
            return
        self.there[node].pop(uid, None)
        if change.kind != "deleted" and not pod.gone:
            self.there[node][uid] = pod.spec.containers[0].image, pod.ready
        if len(self.there[node]) > 1:
            self.wrong.append(f"{node} has {len(self.there[node])} agents")
        out = [name for name, pods in self.there.items() if not any(ready for _, ready in pods.values())]
        self.out_most = max(self.out_most, len(out))

    @property
    def images(self) -> dict[str, str]:
        """By node the image of its agent, where it is ready."""
        return {name: image for name, pods in self.there.items() for image, ready in pods.values() if ready}

    def uids(self) -> dict[str, list[str]]:
        return {name: list(pods) for name, pods in self.there.items()}


@pytest.fixture
async def world(stack_plane: Plane) -> AsyncIterator[PlaneWorld]:
    async with Client(load_config(str(stack_plane.kubeconfig))) as client:
        yield PlaneWorld(stack_plane, client)


@asynccontextmanager
async def operators(plane: Plane, *identities: str) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """Processes with the rights of the operator's ServiceAccount, each with a rollout clock that shows the same."""
    role = await asyncio.to_thread(plane.service_account_kubeconfig, SYSTEM, "dovetail-operator")
    since, found = str(time.time()), dict[str, asyncio.subprocess.Process]()
    try:
        for identity in identities:
            found[identity] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", fast_operator.__name__, str(role), identity, since
            )
        yield found
    finally:
        for process in found.values():
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def rollout(world: PlaneWorld) -> Document:
    found: Document = (await world.status()).get("rollout") or {}
    return found


async def spec(world: PlaneWorld, tag: str, ready_s: int = 1800) -> None:
    """`ready_s` passes fast: where all gets ready it is long."""
    upgrade = UPGRADE | {"readySeconds": ready_s}
    await world.stack(
        image={"repository": "dovetail", "tag": tag}, upgrade=upgrade, validation={"enabled": False},
        agent={"findGpus": False}, scheduler={"enabled": False}, metrics={"rules": False, "dashboards": False},
    )  # fmt: skip


async def leader(world: PlaneWorld) -> str:
    try:
        return str((await world.get(LEASES.path(SYSTEM, "dovetail-operator")))["spec"].get("holderIdentity", ""))
    except NotFound:
        return ""


async def revisions(world: PlaneWorld, namespace: str) -> list[Document]:
    items: list[Document] = (await world.get(CONTROLLER_REVISIONS.path(namespace)))["items"]
    return sorted(items, key=lambda one: int(one["revision"]))


async def test_canary_then_the_rest_also_when_the_leader_is_killed_and_back_when_the_image_is_missing(
    world: PlaneWorld,
) -> None:
    agents = Agents()
    world.watchers.append(agents)
    for name in NAMES:
        await world.node(name, LABELS)

    async def has(phase: str, **images: int) -> bool:
        """Whether the rollout is in this phase, with so many nodes for each tag of the image."""
        tags = [image.rpartition(":")[2] for image in agents.images.values()]
        at = (await rollout(world)).get("phase")
        return at == phase and {f"v{tag}": tags.count(tag) for tag in tags} == images

    async with meanwhile(world.kubelets.run()), operators(world.plane, "one", "two") as processes:
        await spec(world, "1")
        await world.until(lambda: has("Done", v1=4))

        agents.out_most = 0
        await spec(world, "2")
        await world.until(lambda: has("Canary", v1=3, v2=1))
        assert agents.out_most <= 1
        await world.until(lambda: agents.out_most == 2)
        killed = await leader(world)
        os.kill(processes[killed.partition("_")[0]].pid, signal.SIGKILL)
        await world.until(lambda: has("Done", v2=4))
        assert agents.out_most == 2 and await leader(world) != killed

        agents.out_most, before = 0, agents.uids()
        world.kubelets.missing.add("dovetail:3")
        await spec(world, "3", ready_s=200)
        await world.until(lambda: has("RolledBack", v2=4))
        found = await rollout(world)
        (failed,) = found["failed"]
        assert "cannot be pulled" in found["reason"] and failed in found["reason"], found
        after = agents.uids()
        assert [name for name in NAMES if after[name] != before[name]] == [failed]
        ready = next(one for one in (await world.status())["conditions"] if one["type"] == "Ready")
        assert "the rollout was stopped" in ready["message"]

        await spec(world, "4")
        await world.until(lambda: has("Done", v4=4))
        assert agents.wrong == []
        # Of the operator the present and the last good one; of the DaemonSet controller those of the templates.
        own = await revisions(world, SYSTEM)
        assert [one["data"]["spec"]["image"]["tag"] for one in own] == ["2", "4"]
        owner = (await world.get(GPU_STACKS.path(name=STACK)))["metadata"]["uid"]
        assert {one["metadata"]["ownerReferences"][0]["uid"] for one in own} == {owner}
        assert len(await revisions(world, AGENTS)) >= 4
        sets = (await world.get(DAEMON_SETS.path(AGENTS)))["items"]
        assert [one["spec"]["updateStrategy"]["type"] for one in sets] == ["OnDelete"]

        await world.uninstall()
        await world.until(lambda: not world.pods())
        assert not [one for one in await revisions(world, SYSTEM) if one["metadata"]["name"].startswith(STACK)]
    for name in NAMES:
        await world.client.request("DELETE", NODES.path(name=name))
