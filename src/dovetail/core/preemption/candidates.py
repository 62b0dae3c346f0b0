# SPDX-License-Identifier: Apache-2.0
"""Candidates: the nodes that can be emptied for a gang with the least lost work.

Rules: pods are placed one after another, the hardest shape first, each on the node where its room costs the least
weight of units; what is already taken costs nothing more. The cost of a node is computed from amounts, and from the
node's row of scores where amounts are not enough (parts of GPUs, MIG, links, claims). The domains of required levels
are tried in the order of their estimated cost. Peer filters do not run here: the caller proves the result in a dry run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence, Set

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.placement import indices
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import GPU, Pod
from dovetail.core.placing.gangs import Group, shapes_of
from dovetail.core.placing.pods import Scope
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.preemption.dry_run import evict
from dovetail.core.preemption.units import Unit, uncovered, weight

GPU_COLUMN = Nodes().resources[GPU]
_LOOKED_AT = 16
"""The number of nodes that are examined first, plus two for each pod: those where room seems cheapest."""
_EXACT = 20
"""The price of a pod has so many fractional bits."""


def _easiest(cluster: Cluster, group: Group) -> list[tuple[Shape, list[Pod]]]:
    """The fewest pods of the group itself that complete it, by shape: those with the fewest GPUs where there is a
    choice. The shapes with the most GPUs come first."""
    shapes: dict[int, tuple[Shape, list[Pod]]] = {}
    ordered = sorted(((cluster.shape_of(pod), pod) for pod in group.pods), key=lambda pair: pair[0].gpus)
    for shape, pod in reversed(ordered[: group.missing]):
        shapes.setdefault(shape.id, (shape, []))[1].append(pod)
    return list(shapes.values())


def _easiest_groups(group: Group) -> list[Group]:
    """The smallest sub-gangs that complete the group, the largest first."""
    return sorted(group.groups, key=lambda sub: -sub.total_missing())[len(group.groups) - group.groups_needed :]


def easiest_part(cluster: Cluster, group: Group) -> Group:
    """The group with no more than it needs: where there is a choice, the pods with the smallest requests."""
    pods = [pod for _, pods in _easiest(cluster, group) for pod in pods]
    groups = [easiest_part(cluster, sub) for sub in _easiest_groups(group)]
    return replace(group, pods=pods, room=group.missing, groups=groups)


class _Option(Struct, frozen=True):
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


def _count(units: Iterable[Unit], spare: list[int]) -> None:
    """Subtract the units from the numbers that may be spared."""
    for unit in units:
        if unit.elastic:
            spare[unit.pool] -= 1


class Candidates:
    """`units` may be evicted, of each pool at most the number in `spare`. `most` is by shape id the number of pods that
    each slot takes with all units gone."""

    def __init__(
        self, cluster: Cluster, rows: ScoreCache, units: Iterable[Unit], spare: Sequence[int],
        most: dict[int, NDArray[np.int64]],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._rows = rows
        self._most = most
        self._all_spare = spare
        self._spare = list(spare)
        self._taken: list[Unit] = []
        self._without: Collection[int] = ()
        self._on_slot: dict[int, list[tuple[Unit, list[str]]]] = {}
        for unit in sorted(units, key=lambda unit: unit.weight):
            by_slot: dict[int, list[str]] = {}
            for slot, uid in zip(unit.slots, unit.uids, strict=True):
                by_slot.setdefault(slot, []).append(uid)
            for slot, uids in by_slot.items():
                self._on_slot.setdefault(slot, []).append((unit, uids))
        self._needs: dict[str, dict[int, int]] = {}

    def plans(
        self, group: Group, within: Scope | None, most: int, start: Sequence[Unit] = (), without: Collection[int] = ()
    ) -> list[list[Unit]]:
        """Sets of units to evict, each in the order in which they were chosen, for at most `most` domains of the
        workload's required levels. The units of `start` are evicted first, those numbered `without` never."""
        plans: list[list[Unit]] = []
        self._without = without
        with self._cluster.trial():
            evict(self._cluster, start)
            mark = self._cluster.mark()
            for scope in self._scopes(group, within):
                self._spare, self._taken = list(self._all_spare), []
                self._take(start)
                if self._clear_inside(group, scope):
                    plans.append(self._taken)
                self._cluster.rewind(mark)
                if len(plans) >= most:
                    break
        return plans

    def targets(self, group: Group, within: Scope | None) -> list[Scope | None]:
        """Scopes in which room could be made, the cheapest by estimate first: single nodes for a single pod, the
        domains of the required levels for a gang."""
        scopes = self._scopes(group, within)
        pods = list(easiest_part(self._cluster, group).all_pods())
        if len(pods) > 1:
            return scopes
        shape = self._cluster.shape_of(pods[0])
        slots = {slot: None for scope in scopes for slot in self._caps(shape, scope)}
        return [np.array([slot]) for slot in sorted(slots, key=lambda slot: self._option(slot, shape, 1).price)]

    def _clear(self, group: Group, scope: Scope | None) -> bool:
        for inside in self._scopes(group, scope):
            mark, spare, taken = self._cluster.mark(), list(self._spare), list(self._taken)
            if self._clear_inside(group, inside):
                return True
            self._cluster.rewind(mark)
            self._spare, self._taken = spare, taken
        return False

    def _clear_inside(self, group: Group, scope: Scope | None) -> bool:
        if not all(self._clear(sub, scope) for sub in _easiest_groups(group)):
            return False
        return all(self._make_room(shape, pods, scope) for shape, pods in _easiest(self._cluster, group))

    def _scopes(self, group: Group, scope: Scope | None) -> list[Scope | None]:
        """One scope for each domain of the required levels that could hold the group, the cheapest first."""
        scopes: list[Scope | None] = [scope]
        fabric = self._cluster.fabric
        for key in group.required:
            held = {int(fabric.domains(key)[slot]) for slot in group.all_held()}
            narrowed: list[Scope | None] = []
            for outer in scopes:
                domains = fabric.domains(key) if outer is None else fabric.domains(key)[outer]
                for domain in np.unique(domains[domains != ABSENT]).tolist():
                    if not held or held == {domain}:
                        slots = fabric.slots(key, domain)
                        narrowed.append(slots if outer is None else np.intersect1d(slots, outer, assume_unique=True))
            scopes = narrowed
        if len(scopes) < 2:
            return scopes
        wanted = shapes_of(self._cluster, easiest_part(self._cluster, group))
        guesses = ((self._guess(wanted, inside), i) for i, inside in enumerate(scopes))
        return [scopes[i] for guess, i in sorted((guess, i) for guess, i in guesses if guess is not None)]

    def _guess(self, wanted: list[tuple[Shape, int]], scope: Scope | None) -> int | None:
        """The estimated cost of room in the scope; None where it cannot be made."""
        units: dict[int, Unit] = {}
        for shape, count in wanted:
            caps = self._caps(shape, scope)
            if sum(caps.values()) < count:
                return None
            options = [self._option(slot, shape, min(count, cap)) for slot, cap in caps.items()]
            for option in sorted(options, key=lambda option: option.price):
                units.update((unit.number, unit) for unit in option.units)
                count -= option.copies
                if count <= 0:
                    break
        return weight(units.values())

    def _caps(self, shape: Shape, scope: Scope | None) -> dict[int, int]:
        """By slot of the scope: the most pods of the shape that it takes."""
        most = self._most[shape.id]
        slots = np.flatnonzero(most) if scope is None else scope[most[scope] > 0]
        return {int(slot): int(most[slot]) for slot in slots}

    def _make_room(self, shape: Shape, pods: list[Pod], scope: Scope | None) -> bool:
        """Evict units until the pods fit, and place them."""
        cluster, caps, left = self._cluster, self._caps(shape, scope), list(pods)
        versions = dict.fromkeys(caps, 0)
        heap: list[tuple[int, int, int, _Option]] = []

        def offer(slot: int, option: _Option | None = None) -> None:
            versions[slot] += 1
            if caps[slot] > 0:
                option = option or self._option(slot, shape, min(caps[slot], len(left)))
                heapq.heappush(heap, (option.price, slot, versions[slot], option))

        later = self._promising(list(caps), shape)
        while left and (heap or later):
            if not heap:
                now, later = later[: _LOOKED_AT + 2 * len(left)], later[_LOOKED_AT + 2 * len(left) :]
                for slot in now:
                    offer(slot)
                continue
            price, slot, version, option = heapq.heappop(heap)
            if version != versions[slot]:
                continue
            if option.copies > len(left) or not self._possible(option):
                offer(slot)
                continue
            mark = cluster.mark()
            real = self._carry_out(slot, shape, option)
            if real is None:
                cluster.rewind(mark)
                caps[slot] = option.copies - 1
                offer(slot)
            elif heap and real.price > max(price, heap[0][0]):
                cluster.rewind(mark)
                offer(slot, real)
            else:
                here, left = left[: option.copies], left[option.copies :]
                cluster.place_alike(shape, here, {slot: len(here)})
                caps[slot] -= option.copies
                self._take(real.units)
                touched = {other for unit in real.units for other in unit.slots if other in caps}
                for other in sorted({*touched, slot}) if left else ():
                    offer(other)
        return not left

    def _promising(self, slots: list[int], shape: Shape) -> list[int]:
        """The slots, those first where room for one pod seems cheapest: by the weight of the lightest units, as many as
        would do if all units of the node held the same."""
        nodes = self._cluster.nodes
        column = GPU_COLUMN if shape.need[GPU_COLUMN, 0] else int(np.flatnonzero(shape.need)[-1])
        need = int(shape.need[column, 0])
        free, allocatable = nodes.free[column].tolist(), nodes.allocatable[column].tolist()

        def guess(slot: int) -> int:
            units, lacking = self._on_slot.get(slot, []), need - free[slot]
            if lacking <= 0 or not units:
                return 0
            held = max(1, allocatable[slot] - free[slot])
            return sum(unit.weight for unit, _ in units[: -(-lacking * len(units) // held)])

        return sorted(slots, key=guess)

    def _possible(self, option: _Option) -> bool:
        """Whether the units are still placed, and may be evicted together."""
        pools = Counter(unit.pool for unit in option.units if unit.elastic)
        enough = all(count <= self._spare[pool] for pool, count in pools.items())
        return enough and all(any(self._there(uid) for uid in unit.uids) for unit in option.units)

    def _there(self, uid: str) -> bool:
        return uid in self._cluster.placements

    def _take(self, units: Sequence[Unit]) -> None:
        self._taken += units
        _count(units, self._spare)

    def _carry_out(self, slot: int, shape: Shape, option: _Option) -> _Option | None:
        """Evict the units of an option, and more on the slot where that does not make the room."""
        taken, spare = list(option.units), list(self._spare)
        evict(self._cluster, taken)
        _count(taken, spare)
        more = iter(self._on_slot.get(slot, ()))
        while int(self._rows.of(shape).copies()[slot]) < option.copies:
            able = (u for u, uids in more if self._may(u, spare) and any(map(self._there, uids)))
            if (unit := next(able, None)) is None:
                return None
            _count([unit], spare)
            evict(self._cluster, [unit])
            taken.append(unit)
        return _Option(option.copies, tuple(uncovered(taken)))

    def _option(self, slot: int, shape: Shape, most: int) -> _Option:
        """The option with the least weight per pod, by amounts alone; among equals the one for most pods."""
        nodes = self._cluster.nodes
        columns = np.flatnonzero(shape.need).tolist()
        need = shape.need[columns, 0].tolist()
        free = nodes.free[columns, slot].tolist()
        best: _Option | None = None
        for copies in range(most, 0, -1):
            lacking = [copies * n - f for n, f in zip(need, free, strict=True)]
            option = _Option(copies, self._cover(slot, columns, lacking))
            if best is None or option.price < best.price:
                best = option
        assert best is not None, "a slot without room is offered"
        return best

    def _may(self, unit: Unit, spare: Sequence[int]) -> bool:
        return unit.number not in self._without and (not unit.elastic or spare[unit.pool] > 0)

    def _cover(self, slot: int, columns: list[int], lacking: list[int]) -> tuple[Unit, ...]:
        """Units of little weight that together hold the shortfall of these resources on the slot; all units where they
        do not. It is the best of three greedy covers: by weight, by weight per helped part, and by helped part."""
        if all(amount <= 0 for amount in lacking):
            return ()
        there = []
        for piece in self._pieces(slot):
            if all(self._may(unit, self._spare) for unit in piece.units):
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
        units = self._on_slot.get(slot, ())
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
            if any(pools[pool] + count > self._spare[pool] for pool, count in wanted.items()):
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
