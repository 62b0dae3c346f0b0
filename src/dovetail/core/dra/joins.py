# SPDX-License-Identifier: Apache-2.0
"""Devices of several drivers below one PCIe root, which claims can join: a GPU and the NIC beside it.

Rules: a pair is a device and one of another driver below the same root, both free. A pod that asks for no NIC is to
take the GPUs by which the fewest pairs are lost, and of these the ones without NICs beside them. Partitions, shared
devices and tainted ones are left out: how many claims they are enough for is not a number of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core.dra.types import ClaimSpec, Device

_COUNT_BITS = 8
"""Wide enough for the GPUs of a node that has a layout, at each of their roots."""
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


class Join(NamedTuple):
    """The devices of a driver below a root, as bits, and those of other drivers."""

    own: int
    others: int


class FreePairs(NamedTuple):
    """The devices of a join, how many of them are free, and how many of the others."""

    own: int
    free: int
    others: int


def joins_devices(spec: ClaimSpec) -> bool:
    return any(one.match == PCIE_ROOT for one in spec.constraints)


def joins_of(
    devices: Iterable[tuple[str, Device]], uses: Sequence[tuple[tuple[int, int], ...]], roots: Sequence[int | None]
) -> tuple[Join, ...]:
    """The joins of the devices, each with the name of its driver. `uses` is what they consume of counters, `roots` are
    their roots as sets of numbers, empty where no constraint compares roots: then no claim joins devices."""
    groups: dict[int, dict[str, int]] = {}
    for bit, ((driver, device), own, root) in enumerate(zip(devices, uses, roots, strict=False)):
        left = 0 if own or device.shareable or device.taints else root or 0
        while left:
            drivers = groups.setdefault(left & -left, {})
            drivers[driver] = drivers.get(driver, 0) | 1 << bit
            left &= left - 1
    return tuple(
        Join(own, others)
        for drivers in groups.values()
        for own in drivers.values()
        if (others := _united(mask for mask in drivers.values() if mask != own))
    )


def free_pairs(joins: Iterable[Join], taken: int) -> Iterator[FreePairs]:
    """Beside the `taken` devices."""
    for own, others in joins:
        yield FreePairs(own, (own & ~taken).bit_count(), (others & ~taken).bit_count())


def in_pairs(pairs: Sequence[FreePairs]) -> tuple[int, int]:
    """The devices each of which loses a pair when it is taken, as the others beside it are enough for all of them; and
    all devices that have others beside them."""
    beside = [one for one in pairs if one.others]
    return _united(one.own for one in beside if one.free <= one.others), _united(one.own for one in beside)


def lost_by(sets: NDArray[np.int64], pairs: Iterable[FreePairs], gpus: Callable[[int], int]) -> NDArray[np.int64]:
    """By set of free GPUs of the layout what taking it costs: first the pairs that are lost, then its GPUs that have
    others beside them. `gpus` returns the GPUs of devices, as bits of the layout."""
    cost = np.zeros_like(sets)
    for own, free, others in pairs:
        taken = np.bitwise_count(sets & gpus(own)).astype(np.int64)
        lost = min(free, others) - np.minimum(free - taken, others)
        cost += (lost << _COUNT_BITS) + (taken if others else 0)
    return cost


def _united(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
