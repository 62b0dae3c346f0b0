# SPDX-License-Identifier: Apache-2.0
"""Who has to give way so that a job fits: searched and proven in a trial that is undone.

Rules: units of other queues may be taken where the shares let the job's queue take back what is due to it, units of its
own queue where their root is of a strictly lower priority. Nothing is found that the search for a placement has not
placed with the victims gone, so topology, devices, kubelets and claims are proven with it. Victims are those
of the nodes, and of the domain of a required level, that are cleared most cheaply; then whoever of them the placement
can do without is left alone, the dearest first. Where that leads nowhere, units are taken in their own order until the job
fits: first twice as many each time, then halving. What is compared is `Unit.weight`.

The result is a set of which nobody can be spared; it is the cheapest of all sets for a pod on its own whose nodes hold
few units, and not always for gangs, whose pods are given nodes one after another.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.shapes import Shape
from dovetail.core.decisions import Cause
from dovetail.core.model import Pod
from dovetail.core.placing.gangs import Group, Search, SearchLimitReached, shapes_of
from dovetail.core.placing.pods import Scope
from dovetail.core.placing.rows import Rows
from dovetail.core.placing.victims import Allowances, Unit, Victims, uncovered, weight
from dovetail.core.state import State

_PLANS = 3
"""How many domains, and how many sets of units that may not all be taken together, are planned anew at most."""
_EXACT = 20
"""A ratio of weights is compared in units of 2^-20 of a pod's."""


@dataclass(frozen=True, slots=True)
class Found:
    """The job fits once the victims are gone. `nominations` are its pods (uid) with their slots."""

    victims: tuple[Unit, ...]
    nominations: tuple[tuple[str, int], ...]
    cause: Cause
    probes: int

    @property
    def lost_milli_ms(self) -> int:
        return sum(unit.lost_milli_ms for unit in self.victims)

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(uid for unit in self.victims for uid in unit.uids)


@dataclass(frozen=True, slots=True)
class GaveUp:
    """No victims were found, and it is not proven that there are none."""

    probes: int
    why: str

    def __str__(self) -> str:
        return f"no jobs were found that could give way, after {self.probes} trials: {self.why}"


@dataclass(frozen=True, slots=True)
class Impossible:
    """Nobody who may give way helps."""

    why: str

    def __str__(self) -> str:
        return self.why


def find(
    state: State, root: str, group: Group, scope: Scope | None = None, ending: Collection[str] = ()
) -> Found | GaveUp | Impossible:
    """Search who has to give way to the fewest pods that complete `group`, which is complete and does not fit now,
    inside `scope` (None: anywhere). Pods (uid) that are `ending` give way to others already."""
    return _Finding(state, root, _least(group), scope, ending).find()


def _least(group: Group) -> Group:
    """The group without those that it can start without."""
    return replace(group, room=group.missing, groups=[_least(sub) for sub in group.groups])


class _OutOfProbes(Exception):
    pass


class _Finding:
    def __init__(self, state: State, root: str, group: Group, scope: Scope | None, ending: Collection[str]) -> None:
        self._state = state
        self._cluster = state.cluster
        self._shares = shares = state.shares
        self._scope = scope
        self._root = root
        self._group = group
        self._probes = 0
        self._pods = list(_first_pods(state.cluster, group))
        self._queue = shares.queue_of(self._pods[0])
        self._wanted = shares.wanted(self._pods)
        self._shapes = [shape for shape, _ in shapes_of(state.cluster, group)]
        self._victims = Victims(state, self._queue, root, ending)

    def find(self) -> Found | GaveUp | Impossible:
        if not all(pod.work.preempts for pod in self._pods):
            return Impossible("its pods never make others give way (preemptionPolicy Never)")
        units = self._eligible()
        if not units:
            return Impossible("nobody is there who may give way to it")
        try:
            return self._search(units)
        except SearchLimitReached:
            return GaveUp(self._probes, f"the search for a placement was stopped after {self._limit} domains")
        except _OutOfProbes:
            return GaveUp(self._probes, "the bound on trials was reached")

    @property
    def _limit(self) -> int:
        return self._state.policy.search_limit

    def _search(self, units: list[Unit]) -> Found | GaveUp | Impossible:
        cluster = self._cluster
        with cluster.trial():
            self._evict(units)
            most = {shape.id: self._state.rows.of(shape).copies().copy() for shape in self._shapes}
            possible = self._fits() is not None
        if not possible and not self._leans_on_others():
            pods = sum(len(unit.uids) for unit in units)
            return Impossible(f"it would not fit if all {pods} pods that may give way to it were gone")
        best: list[Unit] | None = None
        for plan in self._plans(units, most):
            if best is not None and weight(plan) >= weight(best):
                continue
            needed = self._needed(plan)
            if needed is not None and (best is None or weight(needed) < weight(best)):
                best = needed
        if best is None:
            best = self._fewest(self._permitted(units)[0])
        if best is None:
            return GaveUp(self._probes, "those who may go together do not make enough room")
        with cluster.trial():
            self._evict(best)
            nominations = self._fits(counted=False)
        assert nominations is not None, "victims that were proven make no room"
        cause: Cause = "preempt" if all(unit.queue == self._queue for unit in best) else "reclaim"
        return Found(tuple(best), nominations, cause, self._probes)

    def _useful(self) -> NDArray[np.bool_] | None:
        """The slots where somebody who leaves can make room; None where that may be any."""
        if self._cluster.peers.counts or self._cluster.peers.carriers:
            return None
        useful = np.zeros(self._cluster.nodes.size, dtype=np.bool_)
        for shape in self._shapes:
            useful |= self._state.rows.of(shape).suitable
        if self._scope is not None:
            outside = np.ones_like(useful)
            outside[self._scope] = False
            useful &= ~outside
        return useful

    def _leans_on_others(self) -> bool:
        """Whether pods of the job need others beside them, so that with more of them gone it may fit worse."""
        return any(shape.request.affinity or shape.request.spread for shape in self._shapes)

    def _counted(self, uids: Iterable[str]) -> Counter[str]:
        counted: Counter[str] = Counter()
        for uid in uids:
            counted.update(self._shares.amounts(uid))
        return counted

    def _eligible(self) -> list[Unit]:
        """Who may be taken, each on its own: with all that has to go with it."""
        useful, priority = self._useful(), self._state.rank(self._root)[0]
        known: dict[tuple[str, tuple[tuple[str, int], ...]], bool] = {}
        found = []
        for unit in self._victims.units:
            if useful is not None and not any(useful[slot] for slot in unit.slots):
                continue
            if unit.queue == self._queue:
                allowed = unit.priority < priority
            else:
                amounts = self._counted(unit.uids)
                key = unit.queue, tuple(sorted(amounts.items()))
                if key not in known:
                    claim = self._shares.claim_back(self._queue, self._wanted)
                    known[key] = claim is not None and claim.takes(unit.queue, amounts)
                allowed = known[key]
            if allowed:
                found.append(unit)
        return found

    def _permitted(self, units: Iterable[Unit]) -> tuple[list[Unit], list[Unit]]:
        """Those of the units, in order, that may be taken together, and the others."""
        placements, spare = self._cluster.placements, list(self._victims.spare)
        claim = self._shares.claim_back(self._queue, self._wanted)
        allowances = Allowances(self._state.budgets.values())
        gone: set[str] = set()
        permitted, refused = [], []
        for unit in units:
            uids = [uid for uid in unit.uids if uid not in gone]
            pods = [placements[uid].pod for uid in uids]
            may = (not unit.elastic or spare[unit.pool] > 0) and allowances.admit(pods)
            if may and unit.queue != self._queue:
                may = claim is not None and claim.takes(unit.queue, self._counted(uids))
            if may:
                allowances.take(pods)
                gone.update(uids)
                permitted.append(unit)
                if unit.elastic:
                    spare[unit.pool] -= 1
            else:
                refused.append(unit)
        return permitted, refused

    def _plans(self, units: list[Unit], most: dict[int, NDArray[np.int64]]) -> Iterator[list[Unit]]:
        """Sets of units that may be taken together and should make room, the cheapest first."""
        allowed = units
        for _ in range(_PLANS):
            refused: list[Unit] = []
            clearing = _Clearing(self._cluster, self._state.rows, self._victims, allowed, most)
            for plan in clearing.plans(self._group, self._scope):
                permitted, beyond = self._permitted(plan)
                if not beyond:
                    yield permitted
                refused += beyond
            if not refused:
                return
            # Who was permitted so far has used up what may be taken of these queues and budgets.
            out = {unit.number for unit in refused}
            kept = {unit.number for unit in permitted}
            queues = {unit.queue for unit in refused if unit.queue != self._queue}
            allowed = [u for u in allowed if u.number not in out and (u.number in kept or u.queue not in queues)]

    def _needed(self, victims: list[Unit]) -> list[Unit] | None:
        """Those of the victims that the job cannot do without; None where it does not fit even with all gone."""
        cluster = self._cluster
        with cluster.trial():
            self._evict(victims)
            placed = self._fits()
            if placed is None:
                return None
            used = {slot for _, slot in placed}
        near = [unit for unit in victims if used.intersection(unit.slots)]
        if len(near) < len(victims):
            with cluster.trial():
                self._evict(near)
                if self._fits() is None:
                    near = victims
        try:
            return self._spare(near)
        except (_OutOfProbes, SearchLimitReached):
            return near

    def _spare(self, victims: list[Unit]) -> list[Unit]:
        """Leave alone whom the job can do without, whole gangs before their surplus, the dearest first."""
        kept = victims
        for depth in sorted({self._depth(unit) for unit in victims}, reverse=True):
            bound = {number for unit in kept for number in unit.covers}
            open_to = [u for u in kept if self._depth(u) == depth and u.number not in bound]
            if 2 * len(open_to) > self._state.policy.probes - self._probes:
                open_to = self._loose(kept, open_to)
            if not open_to:
                continue
            numbers = {unit.number for unit in open_to}
            fixed = [unit for unit in kept if unit.number not in numbers]
            open_to.sort(key=lambda unit: (-unit.weight, -unit.number))
            with self._cluster.trial():
                self._evict(fixed)
                needed = {unit.number for unit in self._necessary(open_to, known=not fixed)}
            kept = [unit for unit in kept if unit.number not in numbers or unit.number in needed]
        return uncovered(kept)

    def _depth(self, unit: Unit) -> int:
        by_number = self._victims.by_number
        return 1 + max((self._depth(by_number[number]) for number in unit.covers), default=-1)

    def _loose(self, victims: list[Unit], units: list[Unit]) -> list[Unit]:
        """Those of the units who would find room again beside the job where it was placed."""
        cluster, nodes = self._cluster, self._cluster.nodes
        needs = {uid: cluster.placements[uid].shape for unit in units for uid in unit.uids}
        with cluster.trial():
            self._evict(victims)
            search = Search(cluster, self._state.rows, self._limit)
            self._count_probe()
            search.place(_copy(self._group), self._scope)
            return [
                unit
                for unit in units
                if all(
                    (nodes.free[: needs[uid].width, [slot]] - needs[uid].need >= needs[uid].floor).all()
                    for uid, slot in zip(unit.uids, unit.slots, strict=True)
                )
            ]

    def _necessary(self, units: list[Unit], known: bool = False) -> list[Unit]:
        """Those of the units without which the job does not fit, where all other victims are gone. `known`: it does
        not fit with none of them gone."""
        cluster = self._cluster
        if not known:
            try:
                if self._fits() is not None:
                    return []
            except (_OutOfProbes, SearchLimitReached):
                return units
        if len(units) == 1:
            return units
        half = len(units) // 2
        mark = cluster.mark()
        self._evict(units[half:])
        dear = self._necessary(units[:half])
        cluster.rewind(mark)
        self._evict(dear)
        cheap = self._necessary(units[half:], known=not dear)
        cluster.rewind(mark)
        return [*dear, *cheap]

    def _fewest(self, units: list[Unit]) -> list[Unit] | None:
        """The first of the units, as few as make room, without whom the job can do without."""
        reach = 1
        while True:
            if self._makes_room(units[:reach]):
                break
            if reach >= len(units):
                return None
            reach = min(2 * reach, len(units))
        low = reach // 2
        while reach - low > 1:
            middle = (low + reach) // 2
            if self._makes_room(units[:middle]):
                reach = middle
            else:
                low = middle
        return self._needed(units[:reach])

    def _makes_room(self, units: Sequence[Unit]) -> bool:
        with self._cluster.trial():
            self._evict(units)
            return self._fits() is not None

    def _evict(self, units: Iterable[Unit]) -> None:
        for unit in units:
            for uid in unit.uids:
                if uid in self._cluster.placements:
                    self._cluster.evict(uid)

    def _count_probe(self) -> None:
        if self._probes >= self._state.policy.probes:
            raise _OutOfProbes
        self._probes += 1

    def _fits(self, counted: bool = True) -> tuple[tuple[str, int], ...] | None:
        """Where the job is placed now; None where it does not fit."""
        if counted:
            self._count_probe()
        cluster, group = self._cluster, _copy(self._group)
        mark = cluster.mark()
        try:
            if not Search(cluster, self._state.rows, self._limit).place(group, self._scope):
                return None
            placed = (cluster.placements.get(pod.uid) for pod in group.all_pods())
            return tuple((p.pod.uid, p.slot) for p in placed if p is not None)
        finally:
            cluster.rewind(mark)


def _copy(group: Group) -> Group:
    """A group that a search may write into."""
    return replace(group, groups=[_copy(sub) for sub in group.groups])


def _by_shape(cluster: Cluster, group: Group) -> list[tuple[Shape, list[Pod]]]:
    """The fewest pods of the group's own that complete it, the hardest first."""
    shapes: dict[int, tuple[Shape, list[Pod]]] = {}
    ordered = sorted(((cluster.shape_of(pod), pod) for pod in group.pods), key=lambda pair: -pair[0].gpus)
    for shape, pod in ordered[: group.missing]:
        shapes.setdefault(shape.id, (shape, []))[1].append(pod)
    return list(shapes.values())


def _first_groups(group: Group) -> list[Group]:
    """The sub-gangs that complete the group, the largest first, which are the hardest to place."""
    return sorted(group.groups, key=lambda sub: -sub.total_missing())[: group.groups_needed]


def _first_pods(cluster: Cluster, group: Group) -> Iterator[Pod]:
    """Pods that complete the group: of those it can choose from the hardest, which ask for most."""
    for _, pods in _by_shape(cluster, group):
        yield from pods
    for sub in _first_groups(group):
        yield from _first_pods(cluster, sub)


@dataclass(frozen=True, slots=True)
class _Option:
    """To take `units` away from a slot makes room for `copies` more pods there."""

    copies: int
    units: tuple[Unit, ...]

    @property
    def price(self) -> int:
        return (weight(self.units) << _EXACT) // self.copies


class _Clearing:
    """Room for a group on the nodes that are cleared most cheaply, pod by pod, inside the running trial. `most` says
    how many pods of each shape (by id) a slot takes with all units gone."""

    def __init__(
        self, cluster: Cluster, rows: Rows, victims: Victims, units: list[Unit], most: dict[int, NDArray[np.int64]]
    ) -> None:
        self._cluster = cluster
        self._rows = rows
        self._victims = victims
        self._most = most
        self._on_slot: dict[int, list[Unit]] = {}
        self._uids: dict[tuple[int, int], list[str]] = {}
        for unit in sorted(units, key=lambda unit: unit.weight):
            for slot, uid in zip(unit.slots, unit.uids, strict=True):
                if (unit.number, slot) not in self._uids:
                    self._on_slot.setdefault(slot, []).append(unit)
                self._uids.setdefault((unit.number, slot), []).append(uid)
        self._gone: dict[int, Unit] = {}
        self._needs: dict[str, dict[int, int]] = {}

    def plans(self, group: Group, within: Scope | None) -> Iterator[list[Unit]]:
        """Units to take, in order, for each of the cheapest domains of the root's required levels."""
        for scope in self._scopes(group, within)[:_PLANS]:
            self._gone = {}
            with self._cluster.trial():
                cleared = self._clear_inside(group, scope)
            if cleared:
                yield list(self._gone.values())

    def _clear(self, group: Group, scope: Scope | None) -> bool:
        cluster = self._cluster
        for inside in self._scopes(group, scope):
            mark, gone = cluster.mark(), dict(self._gone)
            if self._clear_inside(group, inside):
                return True
            cluster.rewind(mark)
            self._gone = gone
        return False

    def _clear_inside(self, group: Group, scope: Scope | None) -> bool:
        if not all(self._clear(sub, scope) for sub in _first_groups(group)):
            return False
        return all(self._make_room(shape, pods, scope) for shape, pods in _by_shape(self._cluster, group))

    def _scopes(self, group: Group, scope: Scope | None) -> list[Scope | None]:
        """Scopes inside one domain of each required level that could hold the group, the cheapest first."""
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
        counts = Counter(self._cluster.shape_of(pod).id for pod in _first_pods(self._cluster, group))
        wanted = [(shape, counts[shape.id]) for shape, _ in shapes_of(self._cluster, group) if counts[shape.id]]
        priced = [(price, i) for i, inside in enumerate(scopes) if (price := self._guess(wanted, inside)) is not None]
        return [scopes[i] for _, i in sorted(priced)]

    def _guess(self, wanted: list[tuple[Shape, int]], scope: Scope | None) -> int | None:
        """About what it costs to make room in the scope; None where it cannot be made."""
        assert scope is not None
        units: dict[int, Unit] = {}
        for shape, count in wanted:
            most = self._most[shape.id]
            if int(most[scope].sum()) < count:
                return None
            options = [self._option(int(slot), shape, min(count, int(most[slot]))) for slot in scope if most[slot]]
            for option in sorted(options, key=lambda option: option.price):
                units.update((unit.number, unit) for unit in option.units)
                count -= option.copies
                if count <= 0:
                    break
        return weight(units.values())

    def _make_room(self, shape: Shape, pods: list[Pod], scope: Scope | None) -> bool:
        """Take units until the pods have room, and put them there."""
        cluster, most = self._cluster, self._most[shape.id]
        slots = np.flatnonzero(most) if scope is None else scope[most[scope] > 0]
        caps = {int(slot): int(most[slot]) for slot in slots}
        heap: list[tuple[int, int, int]] = []
        versions: dict[int, int] = dict.fromkeys(caps, 0)
        options: dict[int, _Option] = {}
        left = list(pods)

        def offer(slot: int, option: _Option | None = None) -> None:
            versions[slot] += 1
            if caps[slot] > 0:
                options[slot] = option or self._option(slot, shape, min(caps[slot], len(left)))
                heapq.heappush(heap, (options[slot].price, slot, versions[slot]))

        for slot in caps:
            offer(slot)
        while left and heap:
            price, slot, version = heapq.heappop(heap)
            if version != versions[slot]:
                continue
            option = options[slot]
            if option.copies > len(left) or any(unit.number in self._gone for unit in option.units):
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
                cluster.place_alike(shape, [(pod, slot) for pod in here])
                caps[slot] -= option.copies
                self._gone.update((unit.number, unit) for unit in real.units)
                touched = {other for unit in real.units for other in unit.slots if other in caps}
                for other in sorted({*touched, slot}) if left else ():
                    offer(other)
        return not left

    def _carry_out(self, slot: int, shape: Shape, option: _Option) -> _Option | None:
        """Take the units of an option away, and more of the slot's where they do not make the room after all."""
        row_of, taken = self._rows.of, dict.fromkeys(option.units)
        self._evict(option.units)
        more = iter(self._on_slot.get(slot, ()))
        while int(row_of(shape).copies()[slot]) < option.copies:
            unit = next((u for u in more if u not in taken and u.number not in self._gone), None)
            if unit is None:
                return None
            further = [one for one in self._closure(unit) if one not in taken]
            self._evict(further)
            taken.update(dict.fromkeys(further))
        return _Option(option.copies, tuple(taken))

    def _evict(self, units: Iterable[Unit]) -> None:
        for unit in units:
            for uid in unit.uids:
                self._cluster.evict(uid)

    def _closure(self, unit: Unit) -> list[Unit]:
        return [one for one in self._victims.closure(unit) if one.number not in self._gone]

    def _option(self, slot: int, shape: Shape, most: int) -> _Option:
        """The cheapest per pod, by amounts alone; of equals the one for most pods."""
        nodes = self._cluster.nodes
        columns = np.flatnonzero(shape.need).tolist()
        need = shape.need[columns, 0].tolist()
        free = nodes.free[columns, slot].tolist()
        there = [unit for unit in self._on_slot.get(slot, ()) if unit.number not in self._gone]
        best: _Option | None = None
        for copies in range(most, 0, -1):
            lacking = [copies * n - f for n, f in zip(need, free, strict=True)]
            option = _Option(copies, self._cover(slot, columns, lacking, there))
            if best is None or option.price < best.price:
                best = option
        assert best is not None, "a slot without room is offered"
        return best

    def _cover(self, slot: int, columns: list[int], lacking: list[int], units: list[Unit]) -> tuple[Unit, ...]:
        """Few and cheap units that hold what is lacking of these resources there."""
        chosen: dict[int, tuple[Unit, list[int]]] = {}
        for unit in units:
            if all(amount <= 0 for amount in lacking):
                break
            for one in self._closure(unit):
                if one.number not in chosen:
                    holds = self._holds(one, slot, columns)
                    if one is unit and not any(h > 0 and a > 0 for h, a in zip(holds, lacking, strict=True)):
                        continue
                    chosen[one.number] = one, holds
                    lacking = [a - h for a, h in zip(lacking, holds, strict=True)]
        bound = {number for unit, _ in chosen.values() for number in unit.after}
        for number, (unit, holds) in sorted(chosen.items(), key=lambda item: -item[1][0].weight):
            rest = [a + h for a, h in zip(lacking, holds, strict=True)]
            if number not in bound and all(amount <= 0 for amount in rest):
                lacking = rest
                del chosen[number]
                bound = {number for unit, _ in chosen.values() for number in unit.after}
        return tuple(unit for unit, _ in chosen.values())

    def _holds(self, unit: Unit, slot: int, columns: list[int]) -> list[int]:
        """What the unit's pods on the slot hold of these resources."""
        total = [0] * len(columns)
        for uid in self._uids.get((unit.number, slot), ()):
            needs = self._needs.get(uid)
            if needs is None:
                need = self._cluster.placements[uid].shape.need
                needs = self._needs[uid] = {int(c): int(need[c, 0]) for c in np.flatnonzero(need)}
            for i, column in enumerate(columns):
                total[i] += needs.get(column, 0)
        return total
