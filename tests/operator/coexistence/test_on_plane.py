# SPDX-License-Identifier: Apache-2.0
"""A takeover on a real control plane with kube-scheduler and the real DaemonSet controller, beside what the GPU
Operator leaves there: component by component, node by node, with others' edits in between, and back.

Every change of a pod is checked in order: of the GPUs of a node, and of their metrics, never two sides dispose.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli.install import command as install
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import GPU_STACKS, NODES
from dovetail.kube.objects.base import Node
from dovetail.operator.coexistence.states import SINCE
from dovetail.operator.found import ALLOCATION_LABEL
from dovetail.operator.watched.pods import WatchedPod
from tests.operator.coexistence import gpu_operator as nvidia
from tests.operator.plane_world import STACK, PlaneWorld, meanwhile
from tools.controlplane.plane import Plane

pytestmark = [pytest.mark.plane, pytest.mark.slow]

Document = dict[str, Any]
NAMES = ("a", "b", "c")
EVERY = {nvidia.PLUGIN, nvidia.GFD, nvidia.EXPORTER, nvidia.MIG, nvidia.VALIDATOR}
BESIDE = EVERY | {"dovetail-agent-no-devices-no-metrics"}
SWITCH = f"{nvidia.DEPLOY}device-plugin"
TAKEN = "dovetail.dev/taken-over.device-plugin"
STEPS = {
    "dcgm-exporter": (nvidia.EXPORTER, "dovetail-agent-no-devices"),
    "gpu-feature-discovery": (nvidia.GFD, "dovetail-agent-no-devices"),
    "mig-manager": (nvidia.MIG, "dovetail-agent-no-devices"),
    "device-plugin": (nvidia.PLUGIN, "dovetail-agent"),
}
"""By component the DaemonSet that goes, and the agent that is there then."""
SPEC: Document = {
    "scheduler": {"divideMig": True},
    "agent": {"pools": [{"name": "default", "mig": {"strategy": "mixed", "repartition": True}}]},
    "upgrade": {"canary": {"nodes": 1, "soakSeconds": 1}, "maxNodes": "2", "maxGpus": "100%"},
}


class Sides:
    """Which pods offer the GPUs of a node, and which export their metrics, from their binding until they are gone."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.seen = 0
        self._there: dict[tuple[str, str], tuple[str, str]] = {}

    def __call__(self, change: Change[WatchedPod]) -> None:
        pod = change.object
        self.seen += 1
        for function in ("GPUs", "metrics"):
            self._there.pop((pod.metadata.uid, function), None)
            side = _side(pod, function)
            if change.kind != "deleted" and side and pod.spec.node_name and not pod.gone:
                self._there[pod.metadata.uid, function] = pod.spec.node_name, side
        places = [(node, function, side) for (_, function), (node, side) in self._there.items()]
        for node, function in {place[:2] for place in places}:
            sides = sorted(side for *place, side in places if place == [node, function])
            if len(sides) > 1:
                self.wrong.append(f"{function} of {node} by {' and '.join(sides)} ({pod.metadata.name} {change.kind})")


def _side(pod: WatchedPod, function: str) -> str:
    """The DaemonSet of a pod that does it; written for these manifests alone."""
    names = {one.name: one for one in pod.spec.containers}
    owner = next((one.name for one in pod.metadata.owner_references), "")
    if agent := names.get("agent"):
        off = "--no-device-plugin" if function == "GPUs" else "--exporter="
        return "" if off in agent.args else owner
    return owner if ("nvidia-device-plugin" if function == "GPUs" else "nvidia-dcgm-exporter") in names else ""


class Nodes:
    """The labels of the nodes, change by change. `upset`: the node on which somebody switches the device plugin on
    again as soon as it is taken over."""

    def __init__(self, world: PlaneWorld) -> None:
        self.moving_most, self.upset, self.wrong = 0, "", list[str]()
        self.known = Reflector(world.client, NODES, Node, self._changed)
        self._world = world
        self._edits: list[asyncio.Task[None]] = []

    def _changed(self, changes: list[Change[Node]]) -> None:
        for change in changes:
            name, labels = change.object.metadata.name, change.object.metadata.labels
            if labels.get(ALLOCATION_LABEL) == "dovetail" and TAKEN not in labels:
                self.wrong.append(f"the agent may offer GPUs on {name}, of which nothing was taken over")
            if name == self.upset and TAKEN in labels:
                self.upset = ""
                self._edits.append(asyncio.create_task(self._world.label(name, **{SWITCH: "true"})))
        moving = [one for one in self.known.known.values() if SINCE in one.metadata.annotations]
        self.moving_most = max(self.moving_most, len(moving))


async def gpu_operator(world: PlaneWorld, running: asyncio.Event) -> None:
    """Adds its switches where they are missing, while it runs."""
    while await running.wait():
        for node in (await world.get(NODES.path()))["items"]:
            if missing := nvidia.missing_switches(node["metadata"]["labels"]):
                await world.label(node["metadata"]["name"], **missing)
        await asyncio.sleep(0.3)


def put_nvidia(plane: Plane) -> None:
    """The ClusterPolicy with all that it owns."""

    def create(*documents: Document) -> str:
        return plane.kubectl("create", "-f", "-", "-o", "json", input="\n---\n".join(map(json.dumps, documents)))

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": nvidia.NAMESPACE}}
    create(nvidia.CLUSTER_POLICIES, namespace)
    plane.kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com")
    policy = json.loads(create(nvidia.POLICY))
    create(*nvidia.accounts(), nvidia.runtime_class(policy["metadata"]["uid"]))
    create(*nvidia.daemon_sets(policy["metadata"]["uid"]))


@pytest.fixture
async def world(stack_plane: Plane) -> AsyncIterator[PlaneWorld]:
    async with Client(load_config(str(stack_plane.kubeconfig))) as client:
        yield PlaneWorld(stack_plane, client)


def planned(plane: Plane, spec: Document, tmp_path: Path) -> Document:
    """`dovetail install --plan`."""
    file = tmp_path / "stack.yaml"
    document = {"apiVersion": GPU_STACKS.api_version, "kind": "GPUStack", "metadata": {"name": STACK}, "spec": spec}
    file.write_text(yaml.safe_dump(document))
    arguments = [f"--kubeconfig={plane.kubeconfig}", "--plan", f"--stack={file}", "--output=json"]
    result = CliRunner().invoke(install, arguments)
    assert result.exit_code == 0, result.output
    found: Document = json.loads(result.stdout)
    return found


async def test_component_by_component_node_by_node_and_back(world: PlaneWorld, tmp_path: Path) -> None:
    sides, nodes = Sides(), Nodes(world)
    world.watchers.append(sides)
    await asyncio.to_thread(put_nvidia, world.plane)
    for name in NAMES:
        await world.node(name, nvidia.FOUND)
    running = asyncio.Event()
    running.set()
    async with meanwhile(world.kubelets.run(), nodes.known.run(), gpu_operator(world, running)):
        await world.until(lambda: on_all(world, EVERY))
        before = {name: await world.labels(name) for name in NAMES}

        plan = await asyncio.to_thread(planned, world.plane, SPEC | {"takeOver": list(STEPS)}, tmp_path)
        components = {
            one["component"]: (one["managed_by"], one["nodes"], one["taken_over"]) for one in plan["components"]
        }
        policy = "ClusterPolicy cluster-policy"
        assert components == {
            **dict.fromkeys(STEPS, (policy, 3, True)), "mps-control-daemon": (policy, 0, True),
            "operator-validator": (policy, 3, False),
        }  # fmt: skip
        assert [(one["state"], one["nodes"]) for one in plan["functions"]] == [("Queued", list(NAMES))] * 4
        assert before == {name: await world.labels(name) for name in NAMES}

        await world.stack(**SPEC)
        async with world.operator():
            await world.until(lambda: on_all(world, BESIDE))
            assert before == {name: await world.labels(name) for name in NAMES}
            await world.until(lambda: tainted(world, NAMES))
            await over(world, nodes)
            assert sides.wrong == nodes.wrong == [] and 1 <= nodes.moving_most <= 2

            # The GPU Operator finds no GPU on a node for a moment, and begins anew there. It is slower than ours here:
            # were it faster, its pods would start beside ours, which nobody can prevent, until ours takes over again.
            running.clear()
            await world.label("c", **{key: None for key in before["c"] if key.startswith(nvidia.DEPLOY)})
            await world.until(lambda: off(world, "c"))
            running.set()
            await world.until(lambda: settled(world, "c"))
            assert sides.wrong == []

            await world.stack(**SPEC)
            await world.until(lambda: on_all(world, BESIDE))
            assert before == {name: await world.labels(name) for name in NAMES}
            await world.uninstall()
            await world.until(lambda: on_all(world, EVERY))
            await world.until(lambda: not_tainted(world))
        assert before == {name: await world.labels(name) for name in NAMES}
        assert sides.wrong == nodes.wrong == [] and sides.seen > 100
        # Its owner takes along what is left.
        await world.client.request("DELETE", "/apis/nvidia.com/v1/clusterpolicies/cluster-policy")
        await world.until(lambda: on_all(world, None))
        for name in NAMES:
            await world.client.request("DELETE", NODES.path(name=name))


async def over(world: PlaneWorld, nodes: Nodes) -> None:
    """Take one component over after the other."""
    expected, names = set(BESIDE), list[str]()
    for name, (gone, agent) in STEPS.items():
        names.append(name)
        expected = {one for one in expected if one != gone and not one.startswith("dovetail-agent")} | {agent}
        nodes.upset = "b" if name == "device-plugin" else ""
        await world.stack(**SPEC, takeOver=names)
        await world.until(lambda: on_all(world, expected))  # noqa: B023 - it is asked at once
        await world.until(lambda: reported(world, names))
    assert not nodes.upset


async def reported(world: PlaneWorld, names: list[str]) -> bool:
    """Whether the status has these as taken over, and the others with their nodes."""
    status = await world.status()
    found = {one["component"]: (one["nodes"], one["takenOver"]) for one in status.get("foreign", ())}
    return {name: found.get(name) for name in STEPS} == {
        name: (0, True) if name in names else (3, False) for name in STEPS
    }


def on_all(world: PlaneWorld, names: set[str] | None) -> bool:
    """Whether all nodes have just the pods of these DaemonSets (None: no pod), all ready."""
    pods = world.pods()
    return world.ready() and (pods == dict.fromkeys(NAMES, names) if names else not pods)


async def off(world: PlaneWorld, name: str) -> bool:
    """Whether the switches of all that is taken over are off again."""
    labels = await world.labels(name)
    return all(labels.get(nvidia.DEPLOY + step) == "false" for step in STEPS)


async def settled(world: PlaneWorld, name: str) -> bool:
    labels = await world.labels(name)
    ours = labels.get(SWITCH) == "false" and labels.get(ALLOCATION_LABEL) == "dovetail"
    return ours and world.ready() and world.pods()[name] == {nvidia.VALIDATOR, "dovetail-agent"}


async def tainted(world: PlaneWorld, names: tuple[str, ...]) -> bool:
    """Whether just these have the start-up taint: they were never validated."""
    found = {
        node["metadata"]["name"]
        for node in (await world.get(NODES.path()))["items"]
        if any(taint["key"] == "dovetail.dev/not-ready" for taint in node["spec"].get("taints", ()))
    }
    return found == set(names)


async def not_tainted(world: PlaneWorld) -> bool:
    return await tainted(world, ())
