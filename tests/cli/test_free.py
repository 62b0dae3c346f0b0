# SPDX-License-Identifier: Apache-2.0
"""`dovetail free` on a playground, as a user runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import Struct

from dovetail.cli import cli
from dovetail.playground import Playground
from tests.terminal import environment


class World(Struct):
    playground: Playground
    kubeconfig: Path

    def node(self, name: str, amounts: dict[str, str], **labels: str) -> None:
        meta = {"name": name, "labels": {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}}
        status = {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"} | amounts}
        self.playground.put({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})

    def pod(self, name: str, limits: dict[str, str], node: str) -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        spec = {"schedulerName": "dovetail", "nodeName": node, "containers": [container]}
        self.playground.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    async def run(self, *arguments: str, columns: int = 0) -> Result:
        command = ["free", "--kubeconfig", str(self.kubeconfig), *arguments]
        return await asyncio.to_thread(CliRunner().invoke, cli, command, env=environment(columns) if columns else {})

    async def answer(self, *arguments: str) -> dict[str, Any]:
        result = await self.run(*arguments, "-o", "json")
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    playground = Playground()
    await playground.start()
    yield World(playground, playground.kubeconfig(tmp_path / "kubeconfig"))
    await playground.stop()


async def test_the_answer_for_programs(world: World) -> None:
    world.node("a", {"nvidia.com/gpu": "4"}, product="NVIDIA-L4")
    world.pod("p", {"nvidia.com/gpu": "3"}, "a")
    (found,) = (await world.answer())["gpus"]
    assert (found["model"], found["free"], found["largest"], found["largest_when_empty"]) == ("NVIDIA-L4", 1, 1, 4)
    assert [(size["gpus"], size["pods"]) for size in found["sizes"]] == [(1, 1), (2, 0), (4, 0)]
    assert found["sizes"][1]["blocked"]["holders"][0]["pod"] == "default/p"


async def test_cpu_and_memory_go_with_each_gpu(world: World) -> None:
    world.node("a", {"nvidia.com/gpu": "4"}, product="NVIDIA-L4")
    assert (await world.answer("--cpu", "6"))["gpus"][0]["largest"] == 2
    assert (await world.answer("--memory", "40Gi"))["gpus"][0]["largest"] == 1
    assert "request no CPU and no memory" in (await world.run()).stdout
    assert "not asked for" not in (await world.run("--cpu", "6")).stdout


async def test_shared_cards_are_read_from_the_labels_of_their_node(world: World) -> None:
    labels = {"product": "NVIDIA-A10-SHARED", "count": "1", "replicas": "4", "sharing-strategy": "time-slicing"}
    world.node("a", {"nvidia.com/gpu.shared": "4"}, memory="24000", **labels)
    (found,) = (await world.answer())["shared"]
    assert (found["isolation"], found["cards"], found["replicas_free"], found["largest_mib"]) == ("none", 1, 4, 24_000)


async def test_it_fits_a_terminal(world: World) -> None:
    for i in range(3):
        world.node(f"a-node-with-quite-a-long-name-{i}", {"nvidia.com/gpu": "8"}, product="NVIDIA-H100-80GB-HBM3")
        for j in range(4):
            where = f"a-node-with-quite-a-long-name-{i}"
            world.pod(f"a-pod-with-quite-a-long-name-{i}-{j}", {"nvidia.com/gpu": "2"}, where)
    shown = (await world.run(columns=80)).stdout
    assert "next size, 1 GPU:" in shown
    assert max(map(len, shown.splitlines())) <= 80


async def test_a_cluster_without_gpus_is_reported(world: World) -> None:
    world.node("a", {})
    assert "No node offers GPUs" in (await world.run()).stdout


@pytest.mark.parametrize(("option", "value"), [("--cpu", "many"), ("--memory", "1Gigabyte"), ("--cpu", "-1")])
async def test_an_amount_that_cannot_be_read_is_a_usage_error(world: World, option: str, value: str) -> None:
    result = await world.run(option, value)
    assert result.exit_code == 2 and option in result.output and value in result.output
