# SPDX-License-Identifier: Apache-2.0
"""The search for victims: the pods that are evicted so that a job fits. It runs in a trial that is undone.

Rules: possible victims are units of other queues from which the job's queue may reclaim, and units of its own queue
whose workload has a strictly lower precedence. A dry run places the job with the victims gone, so topology, devices,
kubelets and claims are proven too. Victims come from the candidates, the nodes and the domain of a required level that
can be emptied with the least lost work; then each victim that the job can do without is reprieved, the heaviest first.
If that finds nothing, units are taken in their own order until the job fits: first twice as many each time, then by
bisection. Victims are compared by `Unit.weight`.

No victim can be reprieved, as far as the bound on trials lets it be tried. The victims are not always the cheapest of
all, since pods are placed one after another. On random clusters of up to four nodes they are the cheapest for 99 of 100
gangs, and for 94 of 100 trees of gangs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster.shapes import Shape
from dovetail.core.decisions import Cause
from dovetail.core.placing.gangs import Group, SearchLimitReached, shapes_of
from dovetail.core.placing.pods import Placed, Scope
from dovetail.core.preemption.candidates import Candidates
from dovetail.core.preemption.dry_run import DryRun, OutOfProbes, evict
from dovetail.core.preemption.node_victims import GPU_COLUMN, whole_again
from dovetail.core.preemption.smallest_part import smallest_part
from dovetail.core.preemption.units import Unit, uncovered, weight
from dovetail.core.preemption.victims import Together, Victims, amounts_of, lower_precedence, reclaims
from dovetail.core.queues.reclaim import Reclaim
from dovetail.core.queues.types import Amounts
from dovetail.core.state import State

_PLANS = 3
"""The number of domains with a plan in each round."""
_ROUNDS = 5
"""The number of rounds of plans, each without the units that may not be taken together."""
_SWAPS = 4
"""The number of victims of a small set that are tried to be replaced by others."""


class PreemptionPlan(Struct, frozen=True):
    """The job fits once the victims are gone; no victims where it fits as it is. `nominations` are its pods (uid) with
    their slots."""

    victims: tuple[Unit, ...]
    nominations: Placed
    cause: Cause
    probes: int

    @property
    def lost_milli_ms(self) -> int:
        return sum(unit.lost_milli_ms for unit in self.victims)

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(uid for unit in self.victims for uid in unit.uids)


class GaveUp(Struct, frozen=True):
    """No victims were found, but it is not proven that there are none. `ripe_ms`: see `NoPreemption`."""

    probes: int
    why: str
    ripe_ms: int = 0

    def __str__(self) -> str:
        return f"no victims were found in {self.probes} dry runs: {self.why}"


class NoPreemption(Struct, frozen=True):
    """No possible victims help. From `ripe_ms` on there may be more (0: unknown)."""

    why: str
    ripe_ms: int = 0

    def __str__(self) -> str:
        return self.why


def find(
    state: State,
    workload: str,
    group: Group,
    scope: Scope | None = None,
    ending: Collection[str] = (),
    only: Collection[str] | None = None,
) -> PreemptionPlan | GaveUp | NoPreemption:
    """Search the victims for the fewest pods that complete `group`, which is complete and does not fit now, inside
    `scope` (None: anywhere). Pods (uid) that are `ending` are being evicted for others already. Only pods of the queues
    `only` may be victims (None: of all)."""
    smallest = smallest_part(state.cluster, group)
    if not any(smallest.all_pods()):
        return NoPreemption("no victims are needed: it needs no more pods")
    found = _Finding(state, workload, smallest, scope, ending, only).find()
    one_shape = not group.groups and len(shapes_of(state.cluster, group)) == 1
    if isinstance(found, PreemptionPlan) or one_shape or len(group.all_pods()) == len(smallest.all_pods()):
        return found
    # Other pods than the smallest may fit where these do not.
    other = _Finding(state, workload, group, scope, ending, only).find()
    return other if isinstance(other, PreemptionPlan) or isinstance(found, NoPreemption) else found


def victim_queues(state: State, workload: str, queue: str, wanted: Mapping[str, int]) -> list[str]:
    """The queues whose pods may be victims of a workload of this queue with this request; its own comes last."""
    shares = state.shares
    # Pods of a lower precedence in its own queue may be victims, too: then the queue holds less.
    own = shares.allocated(queue) if shares.holds_below(queue, state.precedence(workload)) else None
    return [*shares.quota.reclaimable_queues(queue, wanted, state.pledges.total(), own), queue]


class _Finding:
    def __init__(
        self, state: State, workload: str, group: Group, scope: Scope | None, ending: Collection[str],
        only: Collection[str] | None,
    ) -> None:  # fmt: skip
        self._state = state
        self._cluster = state.cluster
        self._shares = shares = state.shares
        self._scope = scope
        self._workload = workload
        self._group = group
        policy = state.policy
        self._proof = DryRun(state.cluster, state.score_cache, group, scope, policy.search_limit, policy.probes)
        self._best: list[Unit] | None = None
        self._levels: dict[str, int] = {}
        self._pods = list(group.all_pods())
        self._queue = shares.pod_queues.of(self._pods[0])
        self._wanted = shares.wanted(self._pods)
        self._pledged = state.pledges.total()
        self._shapes = [shape for shape, _ in shapes_of(state.cluster, group)]
        queues = victim_queues(state, workload, self._queue, self._wanted)
        queues = queues if only is None else [name for name in queues if name in only]
        self._victims = Victims(state, self._queue, workload, ending, queues)

    def find(self) -> PreemptionPlan | GaveUp | NoPreemption:
        found = self._find()
        return found if isinstance(found, PreemptionPlan) else replace(found, ripe_ms=self._victims.ripe_ms)

    def _find(self) -> PreemptionPlan | GaveUp | NoPreemption:
        if not all(pod.work.preempts for pod in self._pods):
            return NoPreemption("its pods preempt no others (preemptionPolicy Never)")
        units = self._eligible()
        if not units:
            claim = self._shares.quota.claim_back(self._queue, self._wanted, self._pledged)
            lower = f"no pods {lower_precedence(self._state, self._queue)}"
            if claim is None:
                return NoPreemption(f"its queue is due no more, and runs {lower} on nodes that suit it")
            return NoPreemption(
                f"other queues run no pods that it may reclaim, and its own queue runs {lower}, on nodes that suit it"
            )
        why = "the victims that may be evicted together do not free enough room"
        try:
            if (impossible := self._search(units)) is not None:
                return impossible
        except SearchLimitReached:
            why = f"the search for a placement was stopped after {self._state.policy.search_limit} domains"
        except OutOfProbes:
            why = "the limit of dry runs is reached"
        return GaveUp(self._proof.probes, why) if self._best is None else self._found(self._best)

    def _found(self, victims: list[Unit]) -> PreemptionPlan:
        nominations = self._proof.placed_without(victims, counted=False)
        assert nominations is not None, "victims that were proven make no room"
        cause: Cause = "preempt" if all(unit.queue == self._queue for unit in victims) else "reclaim"
        return PreemptionPlan(tuple(victims), nominations, cause, self._proof.probes)

    def _search(self, units: list[Unit]) -> NoPreemption | None:
        """Search victims. The cheapest ones are in `_best` afterwards."""
        clearing = Candidates(self._cluster, self._state.score_cache, units, self._victims.spare, self._most(units))
        for plan in self._plans(clearing, units):
            self._try(plan)
        if self._best is None and not self._leans_on_others() and self._proof.placed_without(units) is None:
            pods = len({uid for unit in units for uid in unit.uids})
            return NoPreemption(f"it would not fit even if all {pods} possible victims were evicted")
        if self._best is None:
            self._fewest(self._permitted(sorted(units, key=self._level))[0])
        if len(self._pods) > 1:
            while self._swap(clearing):
                pass
        return None

    def _most(self, units: Iterable[Unit]) -> dict[int, NDArray[np.int64]]:
        """By shape id an upper bound, by amounts, of the pods that each slot could take if all units were gone."""
        cluster, nodes = self._cluster, self._cluster.nodes
        if any(shape.stand_ins is not None for shape in self._shapes):
            with cluster.trial():
                evict(cluster, units)
                return {shape.id: self._state.score_cache.of(shape).copies().copy() for shape in self._shapes}
        left = nodes.free.copy()
        gone: dict[int, tuple[Shape, list[int]]] = {}
        uids = dict.fromkeys(uid for unit in units for uid in unit.uids)
        for uid in uids:
            placement = cluster.placements[uid]
            gone.setdefault(placement.shape.id, (placement.shape, []))[1].append(placement.slot)
        for slot in {cluster.placements[uid].slot for uid in uids if cluster.placements[uid].share_bits}:
            left[GPU_COLUMN, slot] += whole_again(cluster, slot, uids.keys())
        for shape, slots in gone.values():
            left[: shape.width] += shape.need * np.bincount(slots, minlength=nodes.size)
        most = {}
        for shape in self._shapes:
            asked = np.flatnonzero(shape.need)
            copies = (left[asked] // shape.need[asked]).min(axis=0)
            most[shape.id] = np.where(self._state.score_cache.of(shape).suitable, np.maximum(copies, 0), 0)
        return most

    def _useful(self) -> NDArray[np.bool_] | None:
        """The slots where an eviction can make room; None where that may be any."""
        if self._cluster.peers.counts or self._cluster.peers.carriers:
            return None
        useful = np.zeros(self._cluster.nodes.size, dtype=np.bool_)
        for shape in self._shapes:
            useful |= self._state.score_cache.of(shape).suitable
        if self._scope is not None:
            outside = np.ones_like(useful)
            outside[self._scope] = False
            useful &= ~outside
        return useful

    def _leans_on_others(self) -> bool:
        """Whether pods of the job have rules about other pods, so that it may fit worse with more of those gone."""
        return any(shape.request.affinity or shape.request.spread for shape in self._shapes)

    def _eligible(self) -> list[Unit]:
        """The units that may be evicted, each on its own and with all that goes with it. What is taken from the job's
        own queue, or from a near one, counts for the queues above both: so units of a farther queue may be evicted
        after that."""
        useful, precedence = self._useful(), self._state.precedence(self._workload)
        useless = frozenset() if useful is None else frozenset(np.flatnonzero(~useful).tolist())
        levels: dict[int, list[Unit]] = {}
        allowed: set[int] = set()
        own: set[str] = set()
        for unit in self._victims.units:
            if useless.issuperset(unit.slots):
                continue
            if unit.queue != self._queue:
                levels.setdefault(self._level(unit), []).append(unit)
            elif unit.precedence < precedence:
                allowed.add(unit.number)
                own.update(unit.uids)
        less = amounts_of(self._shares, own)
        claim = self._shares.quota.claim_back(self._queue, self._wanted, self._pledged, less)
        if claim is not None:
            for level in sorted(levels):
                allowed |= self._reclaimable(levels[level], claim)
        return [unit for unit in self._victims.units if unit.number in allowed]

    def _reclaimable(self, units: list[Unit], claim: Reclaim) -> set[int]:
        """The units that the claim takes, each on its own; all are of queues at one distance. Those that it takes
        together count as taken afterwards."""
        found: set[int] = set()
        known: dict[tuple[str, int, bool, tuple[Amounts, ...]], bool] = {}
        for unit in units:
            amounts = tuple([self._shares.amounts(uid) for uid in unit.uids])
            key = unit.queue, unit.settled, unit.cheap, amounts
            if key not in known or unit.core:
                known[key] = reclaims(claim.copy(), unit, amounts_of(self._shares, unit.uids))
            if known[key]:
                found.add(unit.number)
        if len(set(self._levels.values())) > 1:
            together = Together(self._state, self._victims.spare)
            for unit in units:
                may = unit.number in found and together.admits(unit)
                if may and reclaims(claim, unit, amounts_of(self._shares, together.left(unit))):
                    together.take(unit)
        return found

    def _level(self, unit: Unit) -> int:
        """The distance of its queue from the job's (see `Reclaim.level`)."""
        if unit.queue not in self._levels:
            self._levels[unit.queue] = self._shares.quota.claim(self._queue, self._wanted, self._pledged).level(
                unit.queue
            )
        return self._levels[unit.queue]

    def _in_turn(self, units: Iterable[Unit]) -> list[Unit]:
        """The order in which units are taken together: the nearest queues first, then the lowest charge. The last unit
        may take a queue below its fair share, so the largest comes last."""
        return sorted(units, key=lambda unit: (self._level(unit), unit.rate_milli))

    def _permitted(self, units: Iterable[Unit]) -> tuple[list[Unit], list[Unit]]:
        """The units, in order, that may be taken together, and the others."""
        together = Together(self._state, self._victims.spare)
        claim = self._shares.quota.claim(self._queue, self._wanted, self._pledged)
        permitted, refused = [], []
        for unit in units:
            may = together.admits(unit)
            left = amounts_of(self._shares, together.left(unit)) if may else {}
            if may and unit.queue != self._queue:
                may = reclaims(claim, unit, left)
            elif may:
                claim.count(self._queue, left)
            if may:
                together.take(unit)
                permitted.append(unit)
            else:
                refused.append(unit)
        return permitted, refused

    def _plans(self, clearing: Candidates, units: list[Unit]) -> Iterator[list[Unit]]:
        """Sets of units that may be taken together and should free the room, the cheapest first."""
        waiting: list[set[int]] = [set()]
        for _ in range(_ROUNDS):
            if not waiting or self._best is not None:
                return
            without = waiting.pop(0)
            for plan in clearing.plans(self._group, self._scope, _PLANS, without=without):
                permitted, beyond = self._permitted(self._in_turn(plan))
                if not beyond:
                    yield permitted
                    continue
                # The permitted units have used up the allowance of a queue or budget. Try two ways: with them and no
                # more of these queues, and without them, as one larger unit may do instead.
                queues = {unit.queue for unit in beyond if unit.queue != self._queue}
                kept = {unit.number for unit in permitted}
                out = {unit.number for unit in beyond}
                rest = {unit.number for unit in units if unit.queue in queues and unit.number not in kept}
                waiting.append(without | out | rest)
                waiting.append(without | out | {unit.number for unit in permitted if unit.queue in queues})

    def _try(self, plan: list[Unit]) -> None:
        """Keep the needed units of the plan if they weigh less than the best so far."""
        if self._best is None or weight(plan) < weight(self._best):
            needed = self._proof.needed(plan)
            if needed is not None and len({self._level(unit) for unit in plan}) > 1 and self._beyond(needed):
                needed = self._lawful(plan, needed)
            if needed is not None and (self._best is None or weight(needed) < weight(self._best)):
                self._best = needed

    def _lawful(self, plan: list[Unit], needed: list[Unit]) -> list[Unit]:
        """The needed units, and as many more of the plan as have to go so that all of them may be taken together: units
        of nearer queues, for example. The heaviest are reprieved first."""
        numbers = {unit.number for unit in needed}
        kept = uncovered(plan)
        for unit in sorted(kept, key=lambda unit: (-unit.weight, -unit.number)):
            fewer = [one for one in kept if one is not unit]
            if not numbers.intersection((unit.number, *unit.covers)) and not self._beyond(fewer):
                kept = fewer
        return kept

    def _beyond(self, units: list[Unit]) -> bool:
        """Whether the units may not all be taken together."""
        return bool(self._permitted(self._in_turn(units))[1])

    def _swap(self, clearing: Candidates) -> bool:
        """Replace one of a few victims, the heaviest first, by others. Returns whether a cheaper set was found."""
        before = self._best or []
        for unit in sorted(before, key=lambda unit: -unit.weight)[:_SWAPS] if len(before) <= 2 * _SWAPS else ():
            others = [one for one in before if one is not unit]
            for plan in clearing.plans(self._group, self._scope, 1, others, {unit.number}):
                permitted, beyond = self._permitted(self._in_turn(plan))
                if not beyond:
                    self._try(permitted)
            if self._best is not before:
                return True
        return False

    def _fewest(self, units: list[Unit]) -> None:
        """Try the first of the units, as few as free the room."""
        reach = 1
        while self._proof.placed_without(units[:reach]) is None:
            if reach >= len(units):
                return
            reach = min(2 * reach, len(units))
        low = reach // 2
        while reach - low > 1:
            middle = (low + reach) // 2
            if self._proof.placed_without(units[:middle]) is not None:
                reach = middle
            else:
                low = middle
        self._try(units[:reach])
