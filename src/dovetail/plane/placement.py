# SPDX-License-Identifier: Apache-2.0
"""Pods onto the devices of held leases: all of them, or none.

Rules
- A pod has all its devices on one node and from one lease; a device has one pod.
- Of all ways to place the pods the one with the fewest (lease, node) pairs is taken; of these the one with the fewest
  pods of several devices outside leases that promise NVLink; of these the one that leaves the smallest rests to start
  with: the tightest fit for the largest pod, then for the next.
- The search is exact until it has tried MOST_TRIED states. After that best-fit-decreasing decides, which may find no
  way where there is one.
Source: best fit decreasing (Johnson 1973); exact search over states, so that equal rests are tried once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from dovetail.core.bargaining.types import GpuLease
from dovetail.core.model import Instance

MOST_TRIED = 20_000
_MOST_PODS = 256
"""More than these are not searched exactly."""


class AgentPod(Struct, frozen=True):
    """A pod that needs so many devices of one node."""

    name: str
    gpus: int = 1


class HeldDevice(Struct, frozen=True, order=True):
    """A GPU of a node by its index, or a MIG instance of it."""

    node: str
    gpu: int
    instance: Instance | None = None


class Assignment(Struct, frozen=True):
    """The pod gets these devices of a lease, under its fence."""

    pod: str
    lease: str
    fence: int
    node: str
    devices: tuple[HeldDevice, ...]


class _Bin(Struct):
    """The free devices of a lease on a node."""

    lease: GpuLease
    node: str
    free: list[HeldDevice]


def devices_of(lease: GpuLease) -> tuple[HeldDevice, ...]:
    """All devices of a lease, in the order of its holdings."""
    found: list[HeldDevice] = []
    for holding in lease.holdings:
        if holding.instances:
            found += [HeldDevice(holding.node, one.gpu, one) for one in holding.instances]
        else:
            found += [HeldDevice(holding.node, gpu) for gpu in holding.devices]
    return tuple(found)


def place(
    pods: Sequence[AgentPod], leases: Iterable[GpuLease], beside: Iterable[Assignment] = ()
) -> tuple[Assignment, ...] | None:
    """Where each pod goes, in the order of `pods`; None where not all of them fit. `beside` is what is placed
    already."""
    taken = {(one.lease, device) for one in beside for device in one.devices}
    bins: dict[tuple[str, str], _Bin] = {}
    for lease in leases:
        for device in devices_of(lease):
            if (lease.id, device) not in taken:
                key = lease.id, device.node
                bins.setdefault(key, _Bin(lease, device.node, [])).free.append(device)
    order = sorted(range(len(pods)), key=lambda n: (-pods[n].gpus, n))
    sizes = [pods[n].gpus for n in order]
    if min(sizes, default=1) < 1:
        raise ValueError("a pod without devices needs no lease")
    rooms = list(bins.values())
    chosen = _Search(sizes, rooms).best()
    if chosen is None:
        return None
    found: dict[int, Assignment] = {}
    for number, room in zip(order, chosen, strict=True):
        held, pod = rooms[room], pods[number]
        devices, held.free = tuple(held.free[: pod.gpus]), held.free[pod.gpus :]
        found[number] = Assignment(pod.name, held.lease.id, held.lease.fence, held.node, devices)
    return tuple([found[number] for number in range(len(pods))])


_Cost = tuple[int, int, tuple[int, ...]]


class _Search:
    """Sizes of pods, the greatest first, into rooms: by what is left of each room, remembered."""

    def __init__(self, sizes: Sequence[int], rooms: Sequence[_Bin]) -> None:
        self._sizes = sizes
        self._whole = [len(room.free) for room in rooms]
        self._nvlink = [room.lease.alternative.nvlink for room in rooms]
        self._known: dict[tuple[int, tuple[int, ...]], tuple[_Cost, tuple[int, ...]] | None] = {}
        self._exact = True

    def best(self) -> tuple[int, ...] | None:
        """The room of each pod; None where they do not fit."""
        if sum(self._sizes) > sum(self._whole):
            return None
        if len(self._sizes) > _MOST_PODS:
            return self._best_fit()
        found = self._from(0, tuple(self._whole))
        if self._exact or found is not None:
            return found[1] if found is not None else None
        return self._best_fit()

    def _from(self, number: int, free: tuple[int, ...]) -> tuple[_Cost, tuple[int, ...]] | None:
        if number == len(self._sizes):
            return (0, 0, ()), ()
        key = number, free
        if key in self._known:
            return self._known[key]
        if len(self._known) >= MOST_TRIED:
            self._exact = False
            return None
        size, best = self._sizes[number], None
        self._known[key] = None
        seen: set[tuple[int, int, bool]] = set()
        for room, left in enumerate(free):
            like = left, self._whole[room], self._nvlink[room]
            if left < size or like in seen:
                continue
            seen.add(like)
            below = self._from(number + 1, (*free[:room], left - size, *free[room + 1 :]))
            if below is None:
                continue
            (opened, apart, rests), rooms = below
            opened += left == self._whole[room]
            apart += size > 1 and not self._nvlink[room]
            candidate = (opened, apart, (left - size, *rests)), (room, *rooms)
            if best is None or candidate[0] < best[0]:
                best = candidate
        self._known[key] = best
        return best

    def _best_fit(self) -> tuple[int, ...] | None:
        free, chosen = list(self._whole), []
        for size in self._sizes:
            fitting = [(left == self._whole[n], left - size, n) for n, left in enumerate(free) if left >= size]
            if not fitting:
                return None
            room = min(fitting)[2]
            free[room] -= size
            chosen.append(room)
        return tuple(chosen)
