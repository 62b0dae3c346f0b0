# SPDX-License-Identifier: Apache-2.0
"""The allocation by a kubelet counts before the choice, as long as the agent of the node reports it."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.core import events as ev
from dovetail.core.model import Instance
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from tests.bound import bound
from tests.kube.yaml_objects import Change

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"


def pod(uid: str, written: str, resource: str = GPU, amount: str = "2", node: str = "n") -> Pod:
    limits = {resource: amount}
    document: dict[str, Any] = {
        "metadata": {"name": uid, "namespace": "d", "uid": uid, "annotations": bound(uid, written)},
        "spec": {
            "nodeName": node,
            "schedulerName": "dovetail",
            "containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}],
        },
    }
    return msgspec.convert(document, Pod)


def gpu_node(*differences: tuple[str, str], name: str = "n") -> GPUNode:
    reported = [{"namespace": "d", "pod": uid, "uid": uid, "chosen": "0,1", "given": text} for uid, text in differences]
    return msgspec.convert({"metadata": {"name": name}, "status": {"differences": reported}}, GPUNode)


def devices(events: list[ev.Event]) -> dict[str, tuple[int, ...] | None]:
    return {event.pod.uid: event.pod.devices for event in events if isinstance(event, ev.PodChanged)}


def test_the_pod_has_its_allocated_devices_and_later_the_chosen_ones_again() -> None:
    feed = Translator()
    assert devices(feed.pods([Change("added", pod("a", "0,1"))])) == {"a": (0, 1)}
    assert devices(feed.gpu_nodes([Change("added", gpu_node(("a", "4,5")))])) == {"a": (4, 5)}
    (finding,) = feed.findings["Pod d/a"]
    assert str(finding) == (
        "GPUNode n: status.differences[d/a].given: '4,5': the kubelet allocated these where 0,1 was chosen: the "
        "allocation counts"
    )
    assert len(feed.device_differences) == 1
    assert devices(feed.gpu_nodes([Change("modified", gpu_node(("a", "4,5")))])) == {}
    assert devices(feed.gpu_nodes([Change("modified", gpu_node())])) == {"a": (0, 1)}
    assert "Pod d/a" not in feed.findings


def test_the_object_may_come_before_the_pod_and_go_before_it() -> None:
    feed = Translator()
    assert devices(feed.gpu_nodes([Change("added", gpu_node(("a", "4,5")))])) == {}
    assert devices(feed.pods([Change("added", pod("a", "0,1"))])) == {"a": (4, 5)}
    assert devices(feed.gpu_nodes([Change("deleted", gpu_node(("a", "4,5")))])) == {"a": (0, 1)}


def test_pods_with_swapped_devices_change_together() -> None:
    feed = Translator()
    feed.pods([Change("added", pod("a", "0,1")), Change("added", pod("b", "2,3"))])
    reported = feed.gpu_nodes([Change("added", gpu_node(("a", "2,3"), ("b", "0,1")))])
    assert devices(reported) == {"a": (2, 3), "b": (0, 1)}


def test_instances_are_corrected_as_gpus_are() -> None:
    feed = Translator()
    feed.pods([Change("added", pod("a", "0/1g.5gb@6", SLICE, "1"))])
    (event,) = feed.gpu_nodes([Change("added", gpu_node(("a", "1/1g.5gb@0")))])
    assert isinstance(event, ev.PodChanged)
    assert event.pod.instances == (Instance(1, "1g.5gb", 0),)


def test_an_agent_of_another_node_and_nonsense_change_nothing() -> None:
    feed = Translator()
    feed.pods([Change("added", pod("a", "0,1"))])
    assert devices(feed.gpu_nodes([Change("added", gpu_node(("a", "4,5"), name="m"))])) == {}
    assert "Pod d/a" not in feed.findings
    assert devices(feed.gpu_nodes([Change("added", gpu_node(("a", "all"), name="n"))])) == {}
    (finding,) = feed.findings["Pod d/a"]
    assert finding.problem.rule == "must name devices as the annotation dovetail.dev/devices does: not used"
