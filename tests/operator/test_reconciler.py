# SPDX-License-Identifier: Apache-2.0
"""What one operator does with a GPUStack: install, change, restore, refuse, uninstall."""

from __future__ import annotations

import asyncio

from tests.operator.stack_world import STACKS, World

AGENTS = "dovetail-agent"


async def test_a_stack_is_installed_and_reported(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.applied()
        agent = world.get("daemonsets.apps", AGENTS, "dovetail-agent")
        assert agent is not None and agent["metadata"]["ownerReferences"][0]["kind"] == "GPUStack"
        assert world.condition("Accepted")[:2] == ("True", "Valid")
        stack = world.get(STACKS, "", "gpus")
        assert stack is not None
        assert stack["metadata"]["finalizers"] == ["dovetail.dev/operator"]
        assert [(one["name"], one["image"]) for one in stack["status"]["components"]] == [
            ("dovetail-agent", "dovetail:1"),
            ("dovetail-scheduler", "dovetail:1"),
        ]


async def test_what_is_as_wanted_is_not_written_again(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.applied()
        await asyncio.sleep(0.3)
        version = world.playground.store.version
        world.playground.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-others"}})
        await asyncio.sleep(0.3)
        assert world.playground.store.version == version + 1
    async with world.operator():
        await asyncio.sleep(0.5)
    assert world.playground.store.version == version + 1
