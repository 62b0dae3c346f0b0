# SPDX-License-Identifier: Apache-2.0
"""The operator with all objects of `deploy/` ends before and after each of its writes, in an installation, an upgrade
and an uninstallation: the next process comes to the same end, object by object.

A process keeps nothing but what is stored, so that one that ends before a write leaves what one leaves that ended
after the write before. Each of these states is copied as the undisturbed process makes it, and another process goes on
from it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from dovetail.operator.kinds import OWNED
from dovetail.operator.rendering.stack_objects import desired
from tests.operator.stack_world import STACKS, Document, World, comparable
from tests.operator.store_driver import Cluster, Process, StoreCopy, contents, new_cluster

HEAD = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": "gpus"}}
BEFORE: Document = {"scheduler": {"fabric": ["zone", "rack"], "replicas": 1}}
AFTER: Document = {
    "image": {"repository": "dovetail", "tag": "2"}, "metrics": {"dashboards": False},
    "driver": {"mode": "Container", "image": f"driver@sha256:{'0' * 64}"},
    "runtime": {"configure": f"toolkit@sha256:{'0' * 64}"},
    "agent": {
        "pools": [
            {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "allocation": "DRA"},
            {"name": "b", "sharing": {"strategy": "mps", "resources": [{"replicas": 4}]}},
        ],
    },
}  # fmt: skip
"""Another image, one pool becomes two, drivers and toolkit come, boards go, and a field goes."""
STEPS = ("install", "upgrade", "uninstall")
_KINDS = {f"{kind.plural}.{kind.group}" if kind.group else kind.plural for kind in OWNED}


def act(cluster: Cluster, step: str) -> None:
    """What a user does."""
    match step:
        case "install":
            cluster.put(HEAD | {"spec": BEFORE})
        case "upgrade":
            cluster.put(HEAD | {"spec": AFTER})
        case _:
            cluster.delete(STACKS, "gpus")


async def undisturbed(cluster: Cluster) -> list[StoreCopy]:
    """Let a process work to its end. What is stored before its first write, and after each."""
    copies = [cluster.copy()]
    cluster.written = lambda: copies.append(cluster.copy())
    await Process(cluster).run()
    return copies


async def begun(step: str) -> Cluster:
    """The cluster before a step, and what the user does in it."""
    cluster = new_cluster()
    for one in STEPS[: STEPS.index(step)]:
        act(cluster, one)
        await Process(cluster).run()
    act(cluster, step)
    return cluster


@pytest.mark.slow
@pytest.mark.parametrize(("step", "writes_least"), [("install", 30), ("upgrade", 15), ("uninstall", 30)])
async def test_a_kill_at_any_write_comes_to_the_same_end(step: str, writes_least: int) -> None:
    cluster = await begun(step)
    copies = await undisturbed(cluster)
    wanted = contents(cluster.store)
    assert len(copies) > writes_least
    assert all(one.version < two.version for one, two in pairwise(copies))
    for number, copy in enumerate(copies):
        after = Cluster(copy)
        await Process(after).run()
        assert contents(after.store) == wanted, f"killed after write {number} of {len(copies) - 1}"


@pytest.mark.slow
async def test_two_kills_in_a_row_come_to_the_same_end() -> None:
    """The second process of an upgrade ends, too: after its first write."""
    cluster = await begun("upgrade")
    copies = await undisturbed(cluster)
    wanted = contents(cluster.store)
    for copy in copies[::7]:
        second = Cluster(copy)
        again = await undisturbed(second)
        third = Cluster(again[min(1, len(again) - 1)])
        await Process(third).run()
        assert contents(third.store) == wanted


def of_the_stack(objects: dict[str, Document]) -> dict[str, Any]:
    """The objects that the operator makes, and the GPUStack, without what controllers and parts write."""
    found = {}
    for name, one in objects.items():
        if name.partition(" ")[0] in {*_KINDS, STACKS}:
            marks = one["metadata"].get("annotations", {})
            kept = {key: value for key, value in marks.items() if not key.startswith("deployment.kubernetes.io/")}
            body = {key: value for key, value in one.items() if key != "status"}
            found[name] = body | {"metadata": one["metadata"] | {"annotations": kept}}
    return found


@pytest.mark.slow
async def test_over_http_it_comes_to_the_same_objects(world: World) -> None:
    """The whole command, with watches, controllers and kubelets."""
    cluster = new_cluster()
    async with world.operator(desired, parts_of=lambda _shared: ()):
        for step in STEPS:
            act(cluster, step)
            await Process(cluster).run()
            if step == "uninstall":
                world.playground.delete(STACKS, "", "gpus")
                await world.until(lambda: world.get(STACKS, "", "gpus") is None)
            else:
                world.stack(**(BEFORE if step == "install" else AFTER))
                await world.applied()
            await world.quiet(0.3)
            store = world.playground.store
            over_http = {
                f"{one.name} {'/'.join(key)}": comparable(each)
                for one in store.collections for key, each in one.objects.items()
            }  # fmt: skip
            one, two = of_the_stack(over_http), of_the_stack(contents(cluster.store))
            assert one.keys() == two.keys()
            assert {name: (one[name], two[name]) for name in one if one[name] != two[name]} == {}
