# SPDX-License-Identifier: Apache-2.0
"""The operator takes components over on a playground, with the manifests that it installs, and gives them back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.coexistence import takeovers
from dovetail.operator.coexistence.states import NodePatch
from dovetail.operator.coexistence.survey import survey
from dovetail.operator.coexistence.takeovers import Takeovers
from dovetail.operator.found import ALLOCATION_LABEL
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.rendering.stack_objects import desired
from tests.operator.coexistence import shapes
from tests.operator.stack_world import STACKS, World

pytestmark = pytest.mark.usefixtures("no_waits")

SWITCH = f"{shapes.DEPLOY}device-plugin"
GPU = {"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "true", SWITCH: "true"}
PLAIN: dict[str, Any] = {
    "validation": {"enabled": False}, "startupTaint": False, "upgrade": {"canary": {"nodes": 1, "soakSeconds": 0}},
}  # fmt: skip
AGENT, PLUGIN = "dovetail-agent", "nvidia-device-plugin-daemonset"


def takeovers_alone(shared: SharedByParts) -> tuple[StackPart, ...]:
    return (Takeovers(shared),)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeovers, "_SETTLE_S", 0.01)


def put_nvidia(world: World, *nodes: str) -> None:
    for name in nodes:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(GPU)}}
        world.playground.put(node | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    for name in ("gpu-operator", AGENT):
        world.playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    template = shapes.OPERANDS["device-plugin"].spec.template
    containers = [
        {"name": one.name, "image": "plugin", "command": list(one.command), "args": list(one.args)}
        for one in template.spec.containers
    ]
    labels = dict(template.metadata.labels)
    spec = {"containers": containers, "nodeSelector": dict(template.spec.node_selector)}
    document = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": PLUGIN, "namespace": "gpu-operator"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    world.playground.put(document)


def pods(world: World) -> dict[str, set[str]]:
    """By node the DaemonSets that have a pod there."""
    found: dict[str, set[str]] = {}
    for pod in world.playground.store.list("pods"):
        node = pod["spec"].get("nodeName", "")
        for one in pod["metadata"].get("ownerReferences", ()):
            if one["kind"] == "DaemonSet":
                found.setdefault(node, set()).add(one["name"])
    return found


def labels(world: World, node: str) -> dict[str, str]:
    found = world.get("nodes", "", node)
    assert found is not None
    labels: dict[str, str] = found["metadata"]["labels"]
    return labels


@pytest.mark.slow
async def test_beside_over_and_back(world: World) -> None:
    put_nvidia(world, "a", "b")
    world.stack(**PLAIN)
    beside, ours = {PLUGIN, f"{AGENT}-no-devices"}, {AGENT}
    async with world.operator(desired, parts_of=takeovers_alone):
        await world.until(lambda: pods(world) == {"a": beside, "b": beside})
        assert labels(world, "a") == GPU
        world.stack(**PLAIN, takeOver=["device-plugin"])
        await world.until(lambda: pods(world) == {"a": ours, "b": ours})
        assert labels(world, "a")[ALLOCATION_LABEL] == "dovetail"
        await world.until(lambda: foreign(world) == [("device-plugin", 0, True)])
        world.playground.delete(STACKS, "", "gpus")
        await world.until(lambda: world.get(STACKS, "", "gpus") is None)
        await world.until(lambda: pods(world) == {"a": {PLUGIN}, "b": {PLUGIN}})
    assert labels(world, "a") == labels(world, "b") == GPU


@pytest.mark.slow
async def test_an_operator_that_dies_after_each_write_ends_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    write, deaths = Takeovers._write, list[NodePatch]()

    async def write_and_die(self: Takeovers, patch: NodePatch) -> None:
        await write(self, patch)
        deaths.append(patch)
        raise Died

    monkeypatch.setattr(Takeovers, "_write", write_and_die)
    put_nvidia(world, "a", "b")
    for take_over, ends in ((["device-plugin"], {AGENT}), ([], {PLUGIN, f"{AGENT}-no-devices"})):
        world.stack(**PLAIN, takeOver=take_over)
        ended = partial(has_ended, world, ends, back=not take_over)
        while not ended():
            with contextlib.suppress(ExceptionGroup):
                async with world.operator(desired, parts_of=takeovers_alone) as task:
                    await world.until(partial(either, task, ended))
    # Off, on, off and on again, on two nodes: none of these can be in one write.
    assert len(deaths) >= 8
    assert labels(world, "a") == labels(world, "b") == GPU


def has_ended(world: World, ends: set[str], *, back: bool) -> bool:
    return pods(world) == {"a": ends, "b": ends} and (not back or labels(world, "a") == labels(world, "b") == GPU)


def either(task: asyncio.Task[None], ended: Callable[[], bool]) -> bool:
    return task.done() or ended()


def foreign(world: World) -> list[tuple[Any, ...]]:
    stack = world.get(STACKS, "", "gpus") or {}
    found = stack.get("status", {}).get("foreign", ())
    return [(one["component"], one.get("nodes", 0), one.get("takenOver", False)) for one in found]


async def test_the_plan_is_what_would_become_of_it_and_writes_nothing(world: World) -> None:
    put_nvidia(world, "a")
    plan = await survey(ClusterConfig(server=world.playground.url), {"spec": {"takeOver": ["device-plugin"]}})
    (component,) = plan.components
    assert (component.component, component.nodes, component.taken_over) == ("device-plugin", 1, True)
    (group,) = plan.functions
    assert (group.function, group.state, group.nodes) == ("allocation", "Queued", ("a",))
    (stays,) = (await survey(ClusterConfig(server=world.playground.url), None)).components
    assert not stays.taken_over and stays.note == "add device-plugin to spec.takeOver to replace it"
    assert labels(world, "a") == GPU
    wrong = await survey(ClusterConfig(server=world.playground.url), {"spec": {"agent": {"enabled": False}}})
    assert any("spec.validation.enabled" in problem for problem in wrong.problems), wrong.problems
