# SPDX-License-Identifier: Apache-2.0
"""One pod at a time goes to a node for so many devices of a resource, where its device plugin gives pods what was
chosen for them; nobody waits for ever, and nobody elsewhere waits at all."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import bind_serializer as module
from dovetail.scheduler.bind_serializer import BindSerializer
from tests.kube.yaml_objects import Change

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"


def pod(uid: str, *containers: dict[str, str], node: str = "", started: bool = False, phase: str = "Pending") -> Pod:
    document: dict[str, Any] = {
        "metadata": {"name": uid, "namespace": "d", "uid": uid},
        "spec": {
            "nodeName": node,
            "schedulerName": "dovetail",
            "containers": [
                {"name": f"c{i}", "resources": {"limits": limits, "requests": limits}}
                for i, limits in enumerate(containers)
            ],
        },
        "status": {"phase": phase} | ({"startTime": "2026-01-31T12:00:00Z"} if started else {}),
    }
    return msgspec.convert(document, Pod)


def gpu_node(
    name: str,
    *,
    honours: bool = True,
    policy: str = "none",
    allocated: str = "",
    fences: bool = False,
    registered: str = "True",
) -> GPUNode:
    status: dict[str, Any] = {
        "gpus": [{"index": i, "uuid": f"GPU-{i}", "numaNode": i} for i in range(2)],
        "agent": {"version": "0.1.0", "honoursChoice": honours, "fences": fences},
        "kubelet": {"version": "v1.37.1", "topologyManagerPolicy": policy},
        "conditions": [{"type": "PluginRegistered", "status": registered}],
        "differences": [{"uid": "a", "pod": "a", "namespace": "d", "given": allocated}] if allocated else [],
    }
    return msgspec.convert({"metadata": {"name": name}, "status": status}, GPUNode)


class Bench:
    def __init__(self) -> None:
        self.feed = Translator()
        self.feed.gpu_nodes([Change("added", gpu_node("n")), Change("added", gpu_node("other", honours=False))])
        self.gone: list[str] = []
        self.back: list[str] = []
        self.turns: BindSerializer[str] = BindSerializer(self.feed, self.gone.append, self.back.append)
        self.feed.on_gpu_node = self.turns.on_gpu_node

    def see(self, obj: Pod, kind: Any = "modified") -> None:
        self.feed.pods([Change(kind, obj)])

    def decide(self, uid: str, *containers: dict[str, str], node: str = "n") -> None:
        self.see(pod(uid, *containers), "added")
        self.turns.take(node, uid, uid)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_second_pod_for_as_many_devices_waits_until_the_first_is_admitted(bench: Bench) -> None:
    bench.decide("a", {GPU: "2"})
    bench.decide("b", {GPU: "2"})
    assert bench.gone == ["a"]
    bench.see(pod("a", {GPU: "2"}, node="n"))
    assert bench.gone == ["a"]
    bench.see(pod("a", {GPU: "2"}, node="n", started=True))
    assert bench.gone == ["a", "b"]


@pytest.mark.parametrize("end", ["deleted", "rejected", "failed bind"])
async def test_a_pod_that_does_not_get_there_keeps_nobody_waiting(bench: Bench, end: str) -> None:
    bench.decide("a", {GPU: "2"})
    bench.decide("b", {GPU: "2"})
    if end == "deleted":
        bench.see(pod("a", {GPU: "2"}, node="n"), "deleted")
    elif end == "rejected":
        bench.see(pod("a", {GPU: "2"}, node="n", phase="Failed"))
    else:
        bench.turns.failed("a")
    assert bench.gone == ["a", "b"]


async def test_other_numbers_other_resources_and_other_nodes_do_not_wait(bench: Bench) -> None:
    bench.decide("a", {GPU: "2"})
    bench.decide("b", {GPU: "1"})
    bench.decide("c", {SLICE: "2"})
    bench.decide("d", {GPU: "2"}, node="other")
    bench.decide("e", {GPU: "2"}, node="other")
    bench.decide("f", {"cpu": "2"})
    assert bench.gone == ["a", "b", "c", "d", "e", "f"]


async def test_containers_count_one_by_one(bench: Bench) -> None:
    bench.decide("a", {GPU: "1"}, {GPU: "2"})
    bench.decide("b", {GPU: "2"})
    bench.decide("c", {GPU: "3"})
    assert bench.gone == ["a", "c"]


async def test_equal_jobs_do_not_overtake_each_other(bench: Bench) -> None:
    bench.decide("a", {GPU: "1"})
    bench.decide("b", {GPU: "1"}, {GPU: "2"})
    bench.decide("c", {GPU: "2"})
    assert bench.gone == ["a"]
    bench.see(pod("a", {GPU: "1"}, node="n", started=True))
    assert bench.gone == ["a", "b"]


async def test_a_pod_that_an_earlier_process_bound_is_waited_for(bench: Bench) -> None:
    bench.see(pod("a", {GPU: "1"}, node="n"), "added")
    bench.decide("b", {GPU: "1"})
    assert bench.gone == []
    bench.see(pod("a", {GPU: "1"}, node="n", started=True))
    assert bench.gone == ["b"]


async def test_a_kubelet_that_admits_nobody_is_not_waited_for_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    bench.see(pod("a", {GPU: "1"}, node="n"), "added")
    for uid in ("b", "c"):
        bench.decide(uid, {GPU: "1"})
    assert bench.gone == []
    await asyncio.sleep(0.2)
    assert bench.gone == ["b", "c"]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.slow
async def test_random_streams_keep_the_rule_and_let_everybody_go(seed: int) -> None:
    dice, bench = random.Random(seed), Bench()
    sizes: dict[str, dict[str, str]] = {}
    admitted: set[str] = set()

    def admit(uid: str) -> None:
        bench.see(pod(uid, sizes[uid], node="n", started=True))
        admitted.add(uid)

    for number in range(200):
        under_way = [uid for uid in bench.gone if uid not in admitted]
        assert len({str(sizes[uid]) for uid in under_way}) == len(under_way)
        if under_way and dice.random() < 0.5:
            admit(dice.choice(under_way))
        else:
            sizes[f"p{number}"] = {dice.choice([GPU, SLICE]): str(dice.randint(1, 2))}
            bench.decide(f"p{number}", sizes[f"p{number}"])
    while under_way := [uid for uid in bench.gone if uid not in admitted]:
        admit(under_way[0])
    assert sorted(bench.gone) == sorted(sizes)


@pytest.fixture
async def aligned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The node's kubelet aligns devices to NUMA nodes."""
    monkeypatch.setattr(module, "_READ_BACK_S", 0.05)
    bench.feed.gpu_nodes([Change("modified", gpu_node("n", policy="restricted"))])
    return bench


async def test_where_the_kubelet_aligns_all_go_one_by_one_with_time_for_the_allocation(aligned: Bench) -> None:
    aligned.decide("a", {GPU: "1"})
    aligned.decide("b", {GPU: "2"})
    assert aligned.gone == ["a"]
    aligned.see(pod("a", {GPU: "1"}, node="n", started=True))
    assert aligned.gone == ["a"]
    await asyncio.sleep(0.1)
    assert aligned.gone == ["a", "b"]


@pytest.mark.parametrize("change", ["a pod leaves", "others were allocated"])
async def test_a_waiting_bind_is_decided_anew_when_the_records_of_the_node_change(aligned: Bench, change: str) -> None:
    aligned.see(pod("old", {GPU: "4"}, node="n", started=True), "added")
    await asyncio.sleep(0.1)
    aligned.decide("a", {GPU: "1"})
    aligned.decide("b", {GPU: "2"})
    if change == "a pod leaves":
        aligned.see(pod("old", {GPU: "4"}, node="n", started=True, phase="Succeeded"))
    else:
        aligned.feed.gpu_nodes([Change("modified", gpu_node("n", policy="restricted", allocated="3"))])
    assert (aligned.gone, aligned.back) == (["a"], ["b"])


@pytest.fixture
async def fenced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The node's kubelet aligns, and is left no choice."""
    monkeypatch.setattr(module, "_READ_BACK_S", 0.05)
    bench.feed.gpu_nodes([Change("modified", gpu_node("n", policy="restricted", fences=True))])
    return bench


async def test_behind_fences_all_go_one_by_one_without_waiting_for_more(fenced: Bench) -> None:
    fenced.decide("a", {GPU: "1"})
    fenced.decide("b", {GPU: "2"})
    assert fenced.gone == ["a"]
    fenced.turns.fence_stands("a")
    fenced.see(pod("a", {GPU: "1"}, node="n", started=True))
    assert fenced.gone == ["a", "b"]


@pytest.mark.parametrize("how", ["before there were fences", "its fence did not stand in time", "by somebody else"])
async def test_the_allocation_of_a_pod_without_a_fence_is_waited_for(aligned: Bench, how: str) -> None:
    with_fences = Change("modified", gpu_node("n", policy="restricted", fences=True))
    if how != "before there were fences":
        aligned.feed.gpu_nodes([with_fences])
    if how == "by somebody else":
        aligned.see(pod("a", {GPU: "1"}, node="n"), "added")
    else:
        aligned.decide("a", {GPU: "1"})
    aligned.decide("b", {GPU: "2"})
    aligned.feed.gpu_nodes([with_fences])
    aligned.see(pod("a", {GPU: "1"}, node="n", started=True))
    assert "b" not in aligned.gone
    await asyncio.sleep(0.1)
    assert aligned.gone[-1] == "b"


async def test_behind_fences_a_pod_that_leaves_changes_nothing_and_other_allocations_do(fenced: Bench) -> None:
    fenced.see(pod("old", {GPU: "4"}, node="n", started=True), "added")
    await asyncio.sleep(0.1)
    fenced.decide("a", {GPU: "1"})
    fenced.decide("b", {GPU: "2"})
    fenced.see(pod("old", {GPU: "4"}, node="n", started=True, phase="Succeeded"))
    assert (fenced.gone, fenced.back) == (["a"], [])
    fenced.feed.gpu_nodes([Change("modified", gpu_node("n", policy="restricted", allocated="3", fences=True))])
    assert (fenced.gone, fenced.back) == (["a"], ["b"])


async def test_where_nothing_is_aligned_nobody_is_decided_anew(bench: Bench) -> None:
    bench.see(pod("old", {GPU: "4"}, node="n", started=True), "added")
    bench.decide("a", {GPU: "1"})
    bench.decide("b", {GPU: "1"})
    bench.see(pod("old", {GPU: "4"}, node="n", started=True, phase="Succeeded"))
    assert (bench.gone, bench.back) == (["a"], [])


@pytest.mark.parametrize("policy", ["none", "restricted"])
async def test_a_pod_that_waits_for_a_node_whose_kubelet_has_no_plugin_any_more_is_decided_anew(
    bench: Bench, policy: str
) -> None:
    bench.feed.gpu_nodes([Change("modified", gpu_node("n", policy=policy))])
    for uid in ("a", "b"):
        bench.decide(uid, {GPU: "1"})
    bench.feed.gpu_nodes([Change("modified", gpu_node("n", policy=policy, registered="False"))])
    assert (bench.gone, bench.back) == (["a"], ["b"])
    bench.decide("c", {GPU: "1"})
    bench.decide("d", {"cpu": "1"})
    assert (bench.gone, bench.back) == (["a", "d"], ["b", "c"])
    bench.see(pod("a", {GPU: "1"}, node="n", started=True))
    bench.feed.gpu_nodes([Change("modified", gpu_node("n", policy="none"))])
    bench.decide("e", {GPU: "1"})
    assert (bench.gone, bench.back) == (["a", "d", "e"], ["b", "c"])


async def test_beside_another_plugin_nobody_is_held_back(bench: Bench) -> None:
    bench.feed.gpu_nodes([Change("modified", gpu_node("n", honours=False, registered="Unknown"))])
    bench.decide("a", {GPU: "1"})
    assert (bench.gone, bench.back) == (["a"], [])
