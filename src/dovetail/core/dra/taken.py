# SPDX-License-Identifier: Apache-2.0
"""What is allocated of the devices of a node, and what a request takes of them."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.core.dra.capacity import Draw
from dovetail.core.dra.kinds import DeviceKind, bits
from dovetail.core.dra.types import DeviceRequest

Shares = tuple[tuple[int, Draw], ...]
"""What is consumed of the capacities of shared devices, by bit, sorted."""


class Taken(NamedTuple):
    """What is allocated on a node: `whole` devices as bits, `shares`, and what devices for other nodes consume of each
    of the node's counters (`foreign`, empty for nothing)."""

    whole: int = 0
    shares: Shares = ()
    foreign: tuple[int, ...] = ()


class Pick(NamedTuple):
    """A device for a request, and what it consumes of its capacities where it is shared."""

    request: DeviceRequest
    bit: int
    draw: Draw | None


def added(held: Draw | None, draw: Draw) -> Draw:
    """What is consumed of a shared device with this as well."""
    return draw if held is None else tuple(map(sum, zip(held, draw, strict=True)))


def counters_left(kind: DeviceKind, taken: Taken) -> list[int]:
    """What is left of each counter of the node."""
    left = list(kind.counters)
    for counter, milli in enumerate(taken.foreign):
        left[counter] -= milli
    shared = sum(1 << bit for bit, _ in taken.shares)
    for bit in bits((taken.whole | shared) & kind.partitioned):
        for counter, milli in kind.uses[bit]:
            left[counter] -= milli
    return left
