# SPDX-License-Identifier: Apache-2.0
"""The slices that instances take of a card, for quota and reports.

Rules: an instance takes compute slices and memory slices; the digit in its name is the compute slices alone. Shares are
in thousandths of a card, rounded down, so that a full card never counts as more than one card. For several instances
each kind of slices is added up, and the scarcer kind counts: 4g and 3g make one card, as do 3g and 3g, although one
kind of slices alone would not show that for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dovetail.core.devices.mig.geometry import Geometry, MigProfile
from dovetail.core.devices.mig.products import GEOMETRIES

CARD_MILLI = 1000


class MigSlices(NamedTuple):
    """The slices of each kind, and their parts of the card's, in thousandths."""

    compute: int
    memory: int
    compute_milli: int
    memory_milli: int

    @property
    def milli(self) -> int:
        """The share of the card: that of the scarcer kind."""
        return max(self.compute_milli, self.memory_milli)


def slices(geometry: Geometry, profiles: Iterable[MigProfile]) -> MigSlices:
    """The slices of instances of these profiles together, on one card or on several."""
    held = list(profiles)
    compute, memory = sum(own.compute_slices for own in held), sum(own.memory_slices for own in held)
    return MigSlices(
        compute,
        memory,
        CARD_MILLI * compute // geometry.compute_slices,
        CARD_MILLI * memory // geometry.memory_slices,
    )


def taken(geometry: Geometry, state: int) -> MigSlices:
    """The slices that the instances of a card take of it."""
    return slices(geometry, [geometry.profiles[i] for i, _ in geometry.members(state)])


def most_taken(name: str, geometries: Iterable[Geometry] = GEOMETRIES) -> MigSlices | None:
    """The slices of a profile on an unknown product. Names mean different shares on different products (1g.10gb is two
    memory slices of A100-40GB and one of A100-80GB), and the largest share counts. None where no geometry has it."""
    found = [(geometry, index) for geometry in geometries if (index := geometry.find(name)) is not None]
    costs = [slices(geometry, [geometry.profiles[index]]) for geometry, index in found]
    return max(costs, key=lambda cost: (cost.milli, cost), default=None)
