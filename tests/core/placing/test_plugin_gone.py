# SPDX-License-Identifier: Apache-2.0
"""No pod that asks for GPUs goes to a node whose kubelet has no device plugin: it would fail the pod for good."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import CPU, GPU, MEMORY, PODS, SHARED_GPU, Gang, Node, Pod, Request
from dovetail.core.reasons import Reason, When
from tests.core.driven import Driven

MIG = "nvidia.com/mig-1g.10gb"
NODE = Node("a", ((GPU, 8), (MIG, 2), (SHARED_GPU, 4), (PODS, 50), (CPU, 64_000), (MEMORY, 2**40)))
GONE = ev.NodeChanged(replace(NODE, plugin_gone=True))
BACK = ev.NodeChanged(NODE)


def pod(uid: str, *amounts: tuple[str, int], **more: object) -> Pod:
    resources = tuple(sorted((*amounts, (CPU, 1000), (MEMORY, 2**30))))
    return Pod(uid, "ns", uid, Request(resources), **more)


@pytest.mark.parametrize("resource", [GPU, MIG, SHARED_GPU])
def test_a_pod_that_asks_for_devices_of_the_plugin_waits_with_a_reason(resource: str) -> None:
    driven = Driven(NODE)
    driven.apply_events(GONE)
    waits, other = ev.PodChanged(pod("p", (resource, 1))), ev.PodChanged(pod("cpu"))
    assert driven.at(10, waits, other) == {"cpu": "a"}
    refusal = driven.holds()["p"]
    assert refusal.when is When.NOT_YET
    assert [(one.reason, one.nodes) for one in refusal.nodes] == [(Reason.PLUGIN_GONE, 1)]
    assert driven.at(20, BACK) == {"p": "a"}


def test_a_kubelet_that_offers_nothing_as_it_has_just_begun_is_waited_for() -> None:
    driven = Driven(NODE)
    empty = tuple((name, 0 if "/" in name else amount) for name, amount in NODE.allocatable)
    driven.apply_events(ev.NodeChanged(replace(NODE, plugin_gone=True, allocatable=empty)))
    driven.at(10, ev.PodChanged(pod("p", (GPU, 8))))
    assert driven.holds()["p"].when is When.NOT_YET


def test_running_pods_stay_and_none_is_evicted_for_one_that_could_not_start() -> None:
    driven = Driven(NODE)
    assert driven.at(10, ev.PodChanged(pod("low", (GPU, 8)))) == {"low": "a"}
    driven.apply_events(GONE)
    assert driven.at(20, ev.PodChanged(pod("high", (GPU, 8), priority=1000))) == {}
    assert {type(decision).__name__ for decision in driven.last} == {"Hold"}
    assert driven.holds()["high"].when is When.NOT_YET
    driven.at(30, BACK)
    assert "Evict" in {type(decision).__name__ for decision in driven.last}


def test_a_gang_waits_and_is_not_too_large() -> None:
    driven = Driven(NODE)
    gang = ev.GangChanged(Gang("g", "ns", "g", 2))
    members = [ev.PodChanged(pod(f"g{i}", (GPU, 4), gang="g")) for i in range(2)]
    assert driven.at(10, GONE, gang, *members) == {}
    assert {refusal.reason for refusal in driven.holds().values()} == {Reason.GANG_DOES_NOT_FIT}
    assert driven.at(20, BACK) == {"g0": "a", "g1": "a"}
