# SPDX-License-Identifier: Apache-2.0
"""A process that has lost the lease writes nothing more, whichever part of it would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec import convert

from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import manifest_objects
from dovetail.operator.coexistence.takeovers import Takeovers
from dovetail.operator.gpu_search import GpuSearches
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient, NotLeading
from dovetail.operator.nodes import NodeWalks
from dovetail.operator.parts import PartNotReady, SharedByParts, StackPart
from dovetail.operator.rollout import Rollouts
from dovetail.operator.watched.watches import SharedWatches
from dovetail.playground import Fault, Playground
from tests.operator.coexistence.test_takeovers import put_nvidia
from tests.operator.gpu_search.test_gpu_searches import AGENTS
from tests.operator.stack_world import World
from tests.patience import PATIENCE_S

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}}
STACK = {"metadata": {"name": "gpus", "uid": "u-1", "generation": 1}, "spec": {"takeOver": ["device-plugin"]}}
PARTS: list[Callable[[SharedByParts], StackPart]] = [Takeovers, GpuSearches, NodeWalks, Rollouts]


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground()
    await playground.start()
    for definition in manifest_objects.definitions():
        playground.put(definition)
    for name in ("dovetail-system", "default"):
        playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield playground
    await playground.stop()


def put_work(playground: Playground) -> None:
    """A cluster in which each part has something to write: a node to search, one to take over and to walk."""
    world = World(playground)
    put_nvidia(world, "shared")
    info = {"bootID": "a", "operatingSystem": "linux"}
    playground.put(NODE | {"status": {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]}})


def traces(playground: Playground) -> list[str]:
    """What a part has written."""
    store = playground.store
    kinds = ("gpunodes.dovetail.dev", "controllerrevisions.apps", "pods")
    objects = [one["metadata"] for kind in kinds for one in store.list(kind)]
    found = [meta["name"] for meta in objects if meta.get("namespace", "dovetail-system") == "dovetail-system"]
    for node in store.list("nodes"):
        found += [key for key in node["metadata"].get("labels", {}) if "dovetail" in key]
        found += [one["key"] for one in node.get("spec", {}).get("taints") or ()]
    return found


async def works(playground: Playground, part_of: Callable[[SharedByParts], StackPart], *, leads: bool) -> None:
    """Let a part work until it has written something. Raises NotLeading where it ends by that."""
    put_work(playground)
    async with LeaderClient(ClusterConfig(server=playground.url), leads=lambda: leads) as client:
        shared = SharedByParts(client, SharedWatches(client), OwnedObjects(client, lambda: None), lambda: None)
        part, stack = part_of(shared), convert(STACK, GPUStack)
        following = [asyncio.create_task(one) for one in (shared.watches.run(), shared.watches.runtime_classes.run())]
        running = asyncio.create_task(part.run())
        part.follow(stack)
        async with asyncio.timeout(PATIENCE_S):
            while not traces(playground) and not running.done():
                with contextlib.suppress(PartNotReady):
                    part.effective(stack)
                    part.adjusted((AGENTS,))
                await asyncio.sleep(0.01)
        for task in (running, *following):
            task.cancel()
        ended, *_ = await asyncio.gather(running, *following, return_exceptions=True)
    if isinstance(ended, BaseExceptionGroup):
        ended = ended.exceptions[0]
    if isinstance(ended, NotLeading):
        raise ended


@pytest.mark.parametrize("part_of", PARTS)
async def test_a_part_that_does_not_lead_writes_nothing_and_ends(
    playground: Playground, part_of: Callable[[SharedByParts], StackPart]
) -> None:
    with pytest.raises(NotLeading):
        await works(playground, part_of, leads=False)
    assert traces(playground) == []


@pytest.mark.parametrize("part_of", PARTS)
async def test_the_same_part_writes_while_it_leads(
    playground: Playground, part_of: Callable[[SharedByParts], StackPart]
) -> None:
    await works(playground, part_of, leads=True)
    assert traces(playground) != []


async def test_the_lease_is_asked_before_each_attempt(playground: Playground) -> None:
    playground.faults.add(Fault("answer", "PATCH", "nodes", times=1, status=503))
    playground.put(NODE)
    answers = [True, False]
    async with LeaderClient(ClusterConfig(server=playground.url), leads=lambda: answers.pop(0)) as client:
        await client.request("GET", "/api/v1/nodes/bare")
        with pytest.raises(NotLeading):
            await client.request(
                "PATCH", "/api/v1/nodes/bare", {"metadata": {"labels": {"a": "b"}}},
                content_type="application/merge-patch+json",
            )  # fmt: skip
    assert answers == []
    assert "labels" not in (playground.store.get("nodes", "", "bare") or {})["metadata"]
