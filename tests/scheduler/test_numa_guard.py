# SPDX-License-Identifier: Apache-2.0
"""Before a pod is bound where the kubelet aligns devices, its agent leaves the kubelet no choice; nobody waits long."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dovetail.core.decisions import Bind
from dovetail.core.model import Instance
from dovetail.kube.api.errors import KubeError, Unreachable
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import numa_guard as module
from dovetail.scheduler.numa_guard import NumaGuards
from tests.kube.yaml_objects import Change
from tests.patience import PATIENCE_S


def gpu_node(
    policy: str = "single-numa-node",
    *,
    numa: tuple[int | None, ...] = (0, 0, 1, 1),
    fences: bool = True,
    stood: str = "",
) -> GPUNode:
    gpus = [{"index": i, "uuid": f"GPU-{i}"} | ({} if n is None else {"numaNode": n}) for i, n in enumerate(numa)]
    status: dict[str, Any] = {
        "gpus": gpus,
        "agent": {"version": "0.1.0", "honoursChoice": True, "fences": fences},
        "kubelet": {"version": "v1.37.1", "topologyManagerPolicy": policy},
        "fence": stood,
    }
    return msgspec.convert({"metadata": {"name": "n"}, "status": status}, GPUNode)


class Bench:
    """An API server that takes everything, or answers with `error`."""

    def __init__(self, node: GPUNode | None = None) -> None:
        self.feed = Translator()
        self.asked: list[dict[str, str]] = []
        self.error: KubeError | None = None
        client: Any = self
        self.fences = NumaGuards(client, self.feed, "run")
        self.feed.on_gpu_node = self.fences.on_gpu_node
        self.see(node or gpu_node())

    def see(self, node: GPUNode) -> None:
        self.feed.gpu_nodes([Change("modified", node)])

    async def request(self, method: str, path: str, body: bytes, *, content_type: str) -> None:
        assert (method, path) == ("PATCH", "/apis/dovetail.dev/v1alpha1/gpunodes/n")
        if self.error is not None:
            raise self.error
        self.asked.append(msgspec.json.decode(body)["spec"]["fence"])

    async def put_up(self, bind: Bind) -> asyncio.Task[bool]:
        """Under way, as far as it comes by itself."""
        task = asyncio.create_task(self.fences.put_up(bind))
        for _ in range(5):
            await asyncio.sleep(0)
        return task


def bind(*devices: int, node: str = "n", **more: Any) -> Bind:
    return Bind("uid-a", node, 1, devices=devices, **more)


async def test_a_bind_waits_until_the_fence_for_it_stands() -> None:
    bench = Bench()
    task = await bench.put_up(bind(2, 3))
    assert bench.asked == [{"id": "run-1", "pod": "uid-a", "devices": "2,3"}]
    bench.see(gpu_node(stood="run-0"))
    await asyncio.sleep(0)
    assert not task.done()
    bench.see(gpu_node(stood="run-1"))
    assert await asyncio.wait_for(task, PATIENCE_S)


async def test_each_fence_has_a_name_of_its_own() -> None:
    bench = Bench()
    first = await bench.put_up(bind(0))
    bench.see(gpu_node(stood="run-1"))
    await first
    second = await bench.put_up(bind(0))
    assert bench.asked[1]["id"] == "run-2" and not second.done()
    bench.see(gpu_node(stood="run-2"))
    await second


async def test_instances_are_named_as_in_the_annotation() -> None:
    bench = Bench()
    task = await bench.put_up(bind(instances=(Instance(1, "1g.5gb", 6),)))
    assert bench.asked[0]["devices"] == "1/1g.5gb@6"
    task.cancel()


@pytest.mark.parametrize(
    "node",
    [gpu_node("none"), gpu_node(numa=(0, 0)), gpu_node(numa=(None, None)), gpu_node(fences=False)],
    ids=["does not align", "one NUMA node", "no NUMA nodes", "an agent without fences"],
)
async def test_where_there_is_nothing_to_fence_nobody_waits_and_nothing_is_written(node: GPUNode) -> None:
    bench = Bench(node)
    task = await bench.put_up(bind(0))
    assert task.done() and not task.result() and bench.asked == []


async def test_a_pod_without_devices_or_of_an_unknown_node_does_not_wait() -> None:
    bench = Bench()
    assert (await bench.put_up(bind())).done() and (await bench.put_up(bind(0, node="other"))).done()
    assert bench.asked == []


async def test_nobody_waits_longer_than_patience_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    bench = Bench()
    late = module.metrics.FENCES.labels("late")
    before = late._value.get()
    assert not await bench.fences.put_up(bind(0))
    assert bench.asked and late._value.get() == before + 1
    # A late pod finds no other.
    bench.see(gpu_node(stood="run-1"))


async def test_a_server_that_refuses_holds_up_nobody() -> None:
    bench = Bench()
    bench.error = Unreachable(0, "NotConnected", "away", "PATCH /x")
    failed = module.metrics.FENCES.labels("failed")
    before = failed._value.get()
    assert not await bench.fences.put_up(bind(0))
    assert failed._value.get() == before + 1
