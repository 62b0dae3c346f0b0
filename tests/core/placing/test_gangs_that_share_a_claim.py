# SPDX-License-Identifier: Apache-2.0
"""A gang whose pods share one ResourceClaim: its devices are allocated once, on a node that takes them all."""

import random

import pytest

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.dra.types import Claim, Device, DeviceClass, Slice
from dovetail.core.model import CPU, PODS, Gang, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.state import State
from tests.core.dra.device_worlds import ask, claim

RACK = "rack"


def reported(cpus: list[int], devices: list[int], count: int, pods: list[int], **about: object) -> list[ev.Event]:
    """Nodes with so many CPUs and devices, a claim for `count` of these, and a gang of pods with so many CPUs."""
    events: list[ev.Event] = [ev.DeviceClassChanged(DeviceClass("gpu"))]
    for number, (cpu, have) in enumerate(zip(cpus, devices, strict=True)):
        name = f"n{number}"
        found = tuple(Device(f"gpu-{i}") for i in range(have))
        labels = ((RACK, f"r{number % 2}"),)
        events.append(ev.NodeChanged(Node(name, ((CPU, 1000 * cpu), (PODS, 10)), labels)))
        events.append(ev.SliceChanged(Slice(f"{name}-gpus", "gpu.test", name, 1, 1, node=name, devices=found)))
    events.append(ev.ClaimChanged(Claim("c-uid", "ns", "shared", claim(ask(count)))))
    events.append(ev.GangChanged(Gang("g", "ns", "g", len(pods), **about)))
    for number, cpu in enumerate(pods):
        request = Request(((CPU, 1000 * cpu),))
        name = f"g{number}"
        one = Pod(name, "ns", name, request, gang="g", created_ms=1, device_claims=("ns/shared",))
        events.append(ev.PodChanged(one))
    return events


def where(events: list[ev.Event]) -> list[str]:
    state = State(Policy(fabric=(RACK,)))
    decided = step(state, events, 1)
    assert state.cluster.check() == []
    return [one.node for one in decided if isinstance(one, Bind)]


@pytest.mark.parametrize("count", [1, 2])
def test_two_pods_share_the_claim_of_all_devices_of_a_node(count: int) -> None:
    assert where(reported([8], [count], count, [1, 1])) == ["n0", "n0"]


def test_they_go_to_a_node_that_takes_them_all() -> None:
    """The first alone would go to the small node, which it fills most tightly."""
    assert where(reported([4, 16], [1, 1], 1, [3, 3])) == ["n1", "n1"]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.slow
def test_they_start_where_there_is_such_a_node_and_nowhere_else(seed: int) -> None:
    dice = random.Random(seed)
    nodes = range(dice.randint(1, 4))
    cpus, devices = [dice.choice([4, 8, 16]) for _ in nodes], [dice.randint(0, 2) for _ in nodes]
    count, pods = dice.choice([1, 2]), [dice.choice([1, 3, 3]) for _ in range(dice.randint(2, 4))]
    able = {f"n{i}" for i in nodes if devices[i] >= count and cpus[i] >= sum(pods)}
    required = dice.choice([(), (), (RACK,)])
    found = where(reported(cpus, devices, count, pods, required=required))
    assert set(found) <= able
    assert len(found) == (len(pods) if able else 0)
    assert len(set(found)) <= 1
