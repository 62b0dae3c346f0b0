# SPDX-License-Identifier: Apache-2.0
"""That a pod is idle is reported with it, as long as its own node reports it."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from dovetail.core import events as ev
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.translator import Translator
from tests.kube.nodes.test_device_differences import pod
from tests.kube.yaml_objects import Change

NOON, NOON_MS = "2026-01-01T12:00:00Z", 1_767_268_800_000


def gpu_node(*idle: str, name: str = "n", since: str = NOON) -> GPUNode:
    reported = [{"uid": uid, "since": since} for uid in idle]
    return msgspec.convert({"metadata": {"name": name}, "status": {"idlePods": reported}}, GPUNode, strict=False)


def idle(events: list[ev.Event]) -> dict[str, int]:
    return {event.pod.uid: event.pod.idle_since_ms for event in events if isinstance(event, ev.PodChanged)}


def test_a_pod_is_idle_until_its_node_reports_otherwise() -> None:
    feed = Translator()
    assert idle(feed.pods([Change("added", pod("a", "0,1"))])) == {"a": 0}
    assert idle(feed.gpu_nodes([Change("added", gpu_node("a"))])) == {"a": NOON_MS}
    assert idle(feed.gpu_nodes([Change("modified", gpu_node("a"))])) == {}
    assert idle(feed.gpu_nodes([Change("modified", gpu_node("a", since="2026-01-01T12:00:01Z"))])) == {
        "a": NOON_MS + 1000
    }
    assert idle(feed.gpu_nodes([Change("modified", gpu_node())])) == {"a": 0}
    feed.gpu_nodes([Change("modified", gpu_node("a"))])
    assert idle(feed.gpu_nodes([Change("deleted", gpu_node("a"))])) == {"a": 0}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_node_speaks_of_its_own_pods_alone_in_whatever_order_objects_come(order: tuple[int, ...]) -> None:
    feed = Translator()
    found: dict[str, int] = {}
    steps = (
        lambda: feed.pods([Change("added", pod("a", "0,1")), Change("added", pod("b", "0,1", node="m"))]),
        lambda: feed.gpu_nodes([Change("added", gpu_node("a", "b", "gone"))]),
        lambda: feed.gpu_nodes([Change("added", gpu_node("a", name="m"))]),
    )
    for number in order:
        found |= idle(steps[number]())
    assert found == {"a": NOON_MS, "b": 0}
