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
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.placing.gangs import Group, shapes_of
from dovetail.core.placing.pods import Scope
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.preemption.dry_run import evict
from dovetail.core.preemption.node_victims import GPU_COLUMN, EvictionOption, NodeVictims, subtract
from dovetail.core.preemption.smallest_part import smallest_by_shape, smallest_part, smallest_sub_gangs
from dovetail.core.preemption.units import Unit, uncovered, weight

_EXAMINED = 16
"""The number of nodes that are examined first, plus two for each pod: those where room seems cheapest."""


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
        self._victims = NodeVictims(cluster, units, spare)
        self._taken: list[Unit] = []

    def plans(
        self, group: Group, within: Scope | None, most: int, start: Sequence[Unit] = (), without: Collection[int] = ()
    ) -> list[list[Unit]]:
        """Sets of units to evict, each in the order in which they were chosen, for at most `most` domains of the
        workload's required levels. The units of `start` are evicted first, those numbered `without` never."""
        plans: list[list[Unit]] = []
        self._victims.without = without
        with self._cluster.trial():
            evict(self._cluster, start)
            mark = self._cluster.mark()
            for scope in self._scopes(group, within):
                self._victims.spare, self._taken = list(self._all_spare), []
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
        pods = list(smallest_part(self._cluster, group).all_pods())
        if len(pods) > 1:
            return scopes
        shape = self._cluster.shape_of(pods[0])
        slots = {slot: None for scope in scopes for slot in self._caps(shape, scope)}
        return [np.array([slot]) for slot in sorted(slots, key=lambda slot: self._victims.option(slot, shape, 1).price)]

    def _clear(self, group: Group, scope: Scope | None) -> bool:
        for inside in self._scopes(group, scope):
            mark, spare, taken = self._cluster.mark(), list(self._victims.spare), list(self._taken)
            if self._clear_inside(group, inside):
                return True
            self._cluster.rewind(mark)
            self._victims.spare, self._taken = spare, taken
        return False

    def _clear_inside(self, group: Group, scope: Scope | None) -> bool:
        if not all(self._clear(sub, scope) for sub in smallest_sub_gangs(group)):
            return False
        return all(self._make_room(shape, pods, scope) for shape, pods in smallest_by_shape(self._cluster, group))

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
        wanted = shapes_of(self._cluster, smallest_part(self._cluster, group))
        guesses = ((self._guess(wanted, inside), i) for i, inside in enumerate(scopes))
        return [scopes[i] for guess, i in sorted((guess, i) for guess, i in guesses if guess is not None)]

    def _guess(self, wanted: list[tuple[Shape, int]], scope: Scope | None) -> int | None:
        """The estimated cost of room in the scope; None where it cannot be made."""
        units: dict[int, Unit] = {}
        for shape, count in wanted:
            caps = self._caps(shape, scope)
            if sum(caps.values()) < count:
                return None
            options = [self._victims.option(slot, shape, min(count, cap)) for slot, cap in caps.items()]
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
        heap: list[tuple[int, int, int, EvictionOption]] = []

        def offer(slot: int, option: EvictionOption | None = None) -> None:
            versions[slot] += 1
            if caps[slot] > 0:
                option = option or self._victims.option(slot, shape, min(caps[slot], len(left)))
                heapq.heappush(heap, (option.price, slot, versions[slot], option))

        later = self._promising(list(caps), shape)
        while left and (heap or later):
            if not heap:
                now, later = later[: _EXAMINED + 2 * len(left)], later[_EXAMINED + 2 * len(left) :]
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
                cluster.place_equal(shape, here, {slot: len(here)})
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
            units, lacking = self._victims.on_slot.get(slot, []), need - free[slot]
            if lacking <= 0 or not units:
                return 0
            held = max(1, allocatable[slot] - free[slot])
            return sum(unit.weight for unit, _ in units[: -(-lacking * len(units) // held)])

        return sorted(slots, key=guess)

    def _possible(self, option: EvictionOption) -> bool:
        """Whether the units are still placed, and may be evicted together."""
        pools = Counter(unit.pool for unit in option.units if unit.elastic)
        enough = all(count <= self._victims.spare[pool] for pool, count in pools.items())
        return enough and all(any(self._there(uid) for uid in unit.uids) for unit in option.units)

    def _there(self, uid: str) -> bool:
        return uid in self._cluster.placements

    def _take(self, units: Sequence[Unit]) -> None:
        self._taken += units
        subtract(units, self._victims.spare)

    def _carry_out(self, slot: int, shape: Shape, option: EvictionOption) -> EvictionOption | None:
        """Evict the units of an option, and more on the slot where that does not make the room."""
        taken, spare = list(option.units), list(self._victims.spare)
        evict(self._cluster, taken)
        subtract(taken, spare)
        more = iter(self._victims.on_slot.get(slot, ()))
        while int(self._rows.of(shape).copies()[slot]) < option.copies:
            # No generator: compiled it would go through all of them at once.
            for unit, uids in more:
                if self._victims.may(unit, spare) and any(map(self._there, uids)):
                    break
            else:
                return None
            subtract([unit], spare)
            evict(self._cluster, [unit])
            taken.append(unit)
        return EvictionOption(option.copies, tuple(uncovered(taken)))
