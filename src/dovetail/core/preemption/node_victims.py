# SPDX-License-Identifier: Apache-2.0
"""The victims on one node: units of little weight whose eviction makes room there for some pods of a shape.

Rules: room is computed from amounts alone. A GPU that several pods share is whole only when all of them are gone, so
such units are evicted together. Units that turn out not to be needed are dropped. Of each pool of elastic units no more
are evicted than may be spared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence, Set

import numpy as np
from msgspec import Struct

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import indices
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import GPU
from dovetail.core.preemption.units import Unit, weight

GPU_COLUMN = Nodes().resources[GPU]
_EXACT = 20
"""The price of a pod has so many fractional bits."""


class EvictionOption(Struct, frozen=True):
    """The eviction of `units` frees room for `copies` more pods on a node."""

    copies: int
    units: tuple[Unit, ...]

    @property
    def price(self) -> int:
        """Weight per pod."""
        return (weight(self.units) << _EXACT) // self.copies


class _Piece(Struct, eq=False):
    """Units that are evicted together on a slot, with their pods there and their weight. `holds` is what the eviction
    frees of each resource, `helps` the sum of the parts that this is of the shortfall."""

    units: tuple[Unit, ...]
    uids: list[str]
    weight: int
    holds: list[int] = []
    helps: int = 0


def whole_again(cluster: Cluster, slot: int, gone: Set[str]) -> int:
    """The number of GPUs of the slot that are shared now and whole once these pods are gone."""
    if cluster.nodes.sharing(slot) is not None:
        # Replicas are a resource of their own.
        return 0
    taken, left = 0, 0
    for uid in cluster.on_slot.get(slot, ()):
        bits = cluster.placements[uid].share_bits
        if uid in gone:
            taken |= bits
        else:
            left |= bits
    return (taken & ~left).bit_count()


def subtract(units: Iterable[Unit], spare: list[int]) -> None:
    """Subtract the units from the numbers that may be spared."""
    for unit in units:
        if unit.elastic:
            spare[unit.pool] -= 1


class NodeVictims:
    """`on_slot` are the units that may be evicted, the lightest first, each with the uids of its pods on the slot. The
    caller keeps `spare`, how many units of each pool may still be evicted, and `without`, the numbers of units that may
    not."""

    def __init__(self, cluster: Cluster, units: Iterable[Unit], spare: Sequence[int]) -> None:
        self._cluster = cluster
        self.spare = list(spare)
        self.without: Collection[int] = ()
        self.on_slot: dict[int, list[tuple[Unit, list[str]]]] = {}
        for unit in sorted(units, key=lambda unit: unit.weight):
            by_slot: dict[int, list[str]] = {}
            for slot, uid in zip(unit.slots, unit.uids, strict=True):
                by_slot.setdefault(slot, []).append(uid)
            for slot, uids in by_slot.items():
                self.on_slot.setdefault(slot, []).append((unit, uids))
        self._needs: dict[str, dict[int, int]] = {}

    def option(self, slot: int, shape: Shape, most: int) -> EvictionOption:
        """The option with the least weight per pod, by amounts alone; among equals the one for most pods."""
        nodes = self._cluster.nodes
        columns = np.flatnonzero(shape.need).tolist()
        need = shape.need[columns, 0].tolist()
        free = nodes.free[columns, slot].tolist()
        best: EvictionOption | None = None
        for copies in range(most, 0, -1):
            lacking = [copies * n - f for n, f in zip(need, free, strict=True)]
            option = EvictionOption(copies, self._cover(slot, columns, lacking))
            if best is None or option.price < best.price:
                best = option
        assert best is not None, "a slot without room is offered"
        return best

    def may(self, unit: Unit, spare: Sequence[int]) -> bool:
        """Whether the unit may be evicted where so many of each pool may."""
        return unit.number not in self.without and (not unit.elastic or spare[unit.pool] > 0)

    def _cover(self, slot: int, columns: list[int], lacking: list[int]) -> tuple[Unit, ...]:
        """Units of little weight that together hold the shortfall of these resources on the slot; all units where they
        do not. It is the best of three greedy covers: by weight, by weight per helped part, and by helped part."""
        if all(amount <= 0 for amount in lacking):
            return ()
        there = []
        for piece in self._pieces(slot):
            if all(self.may(unit, self.spare) for unit in piece.units):
                piece.holds = self._hold(slot, piece.uids, columns)
                piece.helps = sum(
                    (min(h, a) << _EXACT) // a for h, a in zip(piece.holds, lacking, strict=True) if a > 0
                )
                if piece.helps:
                    there.append(piece)
        best = self._cover_in_order(slot, there, columns, lacking)
        if len({piece.helps for piece in there}) > 1:
            for order in (lambda piece: piece.weight // piece.helps, lambda piece: -piece.helps):
                other = self._cover_in_order(slot, sorted(there, key=order), columns, lacking)
                best = min(best, other, key=lambda cover: (not cover[0], weight(cover[1])))
        return best[1]

    def _pieces(self, slot: int) -> list[_Piece]:
        """What can be evicted on the slot: each unit alone, and all units that share a GPU together, since the GPU is
        whole only when all of them are gone. The lightest first."""
        units = self.on_slot.get(slot, ())
        pieces = [_Piece((unit,), uids, unit.weight) for unit, uids in units]
        holders: dict[int, list[str]] = {}
        for uid in self._cluster.on_slot.get(slot, ()):
            for gpu in indices(self._cluster.placements[uid].share_bits):
                holders.setdefault(gpu, []).append(uid)
        for uids in holders.values():
            some = [
                (unit, own) for unit, own in units if unit.elastic or not unit.covers if not set(own).isdisjoint(uids)
            ]
            together = list(dict.fromkeys(uid for _, own in some for uid in own))
            if len(some) > 1 and set(uids).issubset(together):
                own_units = tuple(unit for unit, _ in some)
                pieces.append(_Piece(own_units, together, weight(own_units)))
        if len(pieces) > len(units):
            pieces.sort(key=lambda piece: piece.weight)
        return pieces

    def _cover_in_order(
        self, slot: int, there: list[_Piece], columns: list[int], lacking: list[int]
    ) -> tuple[bool, tuple[Unit, ...]]:
        """The first pieces that together hold the shortfall, and whether they do. Pieces that turn out not to be needed
        are dropped, the heaviest first."""
        chosen: list[_Piece] = []
        seen: set[str] = set()
        pools: Counter[int] = Counter()
        for piece in there:
            wanted = Counter(unit.pool for unit in piece.units if unit.elastic)
            if any(pools[pool] + count > self.spare[pool] for pool, count in wanted.items()):
                continue
            holds = piece.holds
            if not seen.isdisjoint(piece.uids):
                # It overlaps with a chosen piece.
                holds = self._hold(slot, [uid for uid in piece.uids if uid not in seen], columns)
            if any(h > 0 and a > 0 for h, a in zip(holds, lacking, strict=True)):
                chosen.append(piece)
                seen.update(piece.uids)
                pools.update(wanted)
                lacking = [a - h for a, h in zip(lacking, holds, strict=True)]
                if all(amount <= 0 for amount in lacking):
                    break
        enough = all(amount <= 0 for amount in lacking)
        covered = {number for piece in chosen for unit in piece.units for number in unit.covers}
        left = [piece for piece in chosen if not covered.issuperset(unit.number for unit in piece.units)]
        for piece in sorted(left, key=lambda piece: -piece.weight):
            rest = [a + h for a, h in zip(lacking, piece.holds, strict=True)]
            if all(amount <= 0 for amount in rest):
                lacking = rest
                left = [one for one in left if one is not piece]
        units = {unit.number: unit for piece in left for unit in piece.units if unit.number not in covered}
        return enough, tuple(units.values())

    def _hold(self, slot: int, uids: Sequence[str], columns: list[int]) -> list[int]:
        """What these pods, as far as they are placed, hold of each resource on the slot, including the GPUs that become
        whole when they are gone."""
        total = [0] * len(columns)
        shared = False
        for uid in uids:
            placement = self._cluster.placements.get(uid)
            if placement is None:
                continue
            shared = shared or bool(placement.share_bits)
            needs = self._needs.get(uid)
            if needs is None:
                need = placement.shape.need
                needs = self._needs[uid] = {int(c): int(need[c, 0]) for c in np.flatnonzero(need)}
            for i, column in enumerate(columns):
                total[i] += needs.get(column, 0)
        if shared and GPU_COLUMN in columns:
            total[columns.index(GPU_COLUMN)] += whole_again(self._cluster, slot, set(uids))
        return total
