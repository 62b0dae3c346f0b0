# SPDX-License-Identifier: Apache-2.0
"""Pods onto held devices, compared with all ways that there are."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from dovetail.core.bargaining.types import GpuLease, Holding, LeaseAlternative
from dovetail.plane import AgentPod, Assignment, place
from dovetail.plane.placement import devices_of

Rooms = dict[tuple[str, str], int]


def lease(name: str, fence: int, *nodes: int, nvlink: bool = False) -> GpuLease:
    """A lease with so many GPUs of n0, n1, ..."""
    holdings = tuple(Holding(f"{name}-{n}", f"n{n}", tuple(range(size))) for n, size in enumerate(nodes) if size)
    return GpuLease(name, "a/a", name, LeaseAlternative(sum(nodes), nvlink=nvlink), holdings, 1, 100, fence, 10)


def oracle(pods: list[AgentPod], leases: list[GpuLease]) -> tuple[int, int] | None:
    """The fewest rooms, and then the fewest pods of several GPUs without NVLink, over all assignments."""
    rooms: Rooms = {}
    for one in leases:
        for holding in one.holdings:
            rooms[one.id, holding.node] = len(holding.devices)
    nvlink = {one.id: one.alternative.nvlink for one in leases}
    found = []
    for way in product(rooms, repeat=len(pods)):
        used = dict.fromkeys(rooms, 0)
        for pod, room in zip(pods, way, strict=True):
            used[room] += pod.gpus
        if all(used[room] <= rooms[room] for room in rooms):
            apart = sum(pod.gpus > 1 and not nvlink[room[0]] for pod, room in zip(pods, way, strict=True))
            found.append((len(set(way)), apart))
    return min(found, default=None)


def check(pods: list[AgentPod], leases: list[GpuLease], placed: tuple[Assignment, ...]) -> tuple[int, int]:
    by_id = {one.id: one for one in leases}
    used = set()
    for pod, one in zip(pods, placed, strict=True):
        assert one.pod == pod.name and len(one.devices) == pod.gpus and one.fence == by_id[one.lease].fence
        assert {device.node for device in one.devices} == {one.node}
        assert set(one.devices) <= set(devices_of(by_id[one.lease]))
        for device in one.devices:
            assert (one.lease, device) not in used
            used.add((one.lease, device))
    apart = sum(len(one.devices) > 1 and not by_id[one.lease].alternative.nvlink for one in placed)
    return len({(one.lease, one.node) for one in placed}), apart


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.slow
def test_the_placement_is_as_good_as_the_best_of_all(seed: int) -> None:
    chance = Random(seed)
    leases = [
        lease(f"l{n}", 10 + n, chance.randint(0, 4), chance.randint(1, 4), nvlink=chance.random() < 0.5)
        for n in range(chance.randint(1, 2))
    ]
    pods = [AgentPod(f"p{n}", chance.choice((1, 1, 2, 2, 3, 4))) for n in range(chance.randint(1, 5))]
    best, placed = oracle(pods, leases), place(pods, leases)
    assert (placed is None) == (best is None)
    assert placed is None or check(pods, leases, placed) == best


def test_all_pods_are_placed_or_none() -> None:
    pods = [AgentPod("a", 3), AgentPod("b", 2)]
    assert place(pods, [lease("l", 1, 4)]) is None
    assert place(pods, [lease("l", 1, 5)]) is not None


def test_devices_of_pods_that_run_are_not_used_again() -> None:
    leases = [lease("l", 7, 4)]
    first = place([AgentPod("a", 3)], leases)
    assert first is not None
    (second,) = place([AgentPod("b")], leases, beside=first) or ()
    assert second.devices[0] not in first[0].devices
    assert place([AgentPod("b", 2)], leases, beside=first) is None


def test_the_tightest_room_is_taken() -> None:
    (one,) = place([AgentPod("a", 2)], [lease("wide", 1, 8), lease("tight", 2, 3)]) or ()
    assert one.lease == "tight" and one.fence == 2


def test_many_pods_are_placed_without_the_exact_search() -> None:
    pods = [AgentPod(f"p{n}") for n in range(400)]
    leases = [lease(f"l{n}", n, 8, 8) for n in range(25)]
    placed = place(pods, leases)
    assert placed is not None and check(pods, leases, placed) == (50, 0)


def test_a_pod_without_devices_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs no lease"):
        place([AgentPod("a", 0)], [lease("l", 1, 4)])
