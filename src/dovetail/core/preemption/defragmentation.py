# SPDX-License-Identifier: Apache-2.0
"""A plan of moves that makes room for a job, or for a shape that a command asks about. It moves nothing.

Rules: the pods that may be moved, the work that a move loses, and the pods of a gang that go together are as for
victims (`preemption.victims`), in all queues. A moved pod is evicted and created again by its owner. Each move is
placed in the trial, if possible off the nodes that the job will use, and only into room that is free once the moves
before it are done: so the steps can be carried out in order. At the end the job is placed. Disruption budgets apply to
the sum, as if all moves happened at once. No pod is moved to make room for a move. For a single pod nodes are tried
from the cheapest on, for a gang the domains of a required level. Of the plans that are found, the one with the least
lost work is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np
from msgspec import Struct

from dovetail.core import quantities
from dovetail.core.model import GPU
from dovetail.core.placing.gangs import Group, SearchLimitReached, shapes_of
from dovetail.core.placing.pods import Placed, Scope
from dovetail.core.preemption.candidates import Candidates
from dovetail.core.preemption.dry_run import DryRun, OutOfProbes, evict
from dovetail.core.preemption.relocation import MoveStep, relocate
from dovetail.core.preemption.smallest_part import smallest_part
from dovetail.core.preemption.units import Unit, weight
from dovetail.core.preemption.victims import Together, Victims
from dovetail.core.state import State

_PLANS = 6
"""The number of plans for one target, each without the units that could not be moved before."""


class MovePlan(Struct, frozen=True):
    """Steps in the order in which they can be carried out; none where the job fits as it is. `placed` is the node of
    each pod (uid) of the job afterwards."""

    steps: tuple[MoveStep, ...]
    placed: tuple[tuple[str, str], ...]
    probes: int

    @property
    def lost_milli_ms(self) -> int:
        return sum(step.lost_milli_ms for step in self.steps)


class NoPlan(Struct, frozen=True):
    """No moves were found. `proven`: none can help."""

    why: str
    proven: bool

    def __str__(self) -> str:
        return self.why


def plan(
    state: State,
    group: Group,
    workload: str = "",
    scope: Scope | None = None,
    movable: Callable[[Unit], bool] | None = None,
    ending: Collection[str] = (),
) -> MovePlan | NoPlan:
    """Moves after which the fewest pods that complete `group` fit inside `scope` (None: anywhere). Moved pods stay
    inside the scope, too. `workload` is the workload of the group, "" for a question. `movable` selects the units that
    may be moved (None: all possible victims), `ending` are pods (uid) that are being evicted for others already."""
    return _Planning(state, workload, smallest_part(state.cluster, group), scope, movable, ending).plan()


class _Planning:
    def __init__(
        self, state: State, workload: str, group: Group, scope: Scope | None, movable: Callable[[Unit], bool] | None,
        ending: Collection[str],
    ) -> None:  # fmt: skip
        self._state = state
        self._cluster = state.cluster
        self._group = group
        self._scope = scope
        policy = state.policy
        self._proof = DryRun(state.cluster, state.score_cache, group, scope, policy.search_limit, policy.probes)
        self._victims = Victims(state, state.shares.pod_queues.of(group.all_pods()[0]), workload, ending)
        self._units = [unit for unit in self._victims.units if movable is None or movable(unit)]
        self._best: list[Unit] | None = None
        self._moves: MovePlan | None = None

    def plan(self) -> MovePlan | NoPlan:
        why = "the pods in its way fit nowhere else"
        try:
            with self._cluster.trial():
                placed = self._proof.placed()
            if placed is not None:
                return MovePlan((), self._by_node(placed), self._proof.probes)
            if (none := self._search()) is not None:
                return none
        except SearchLimitReached:
            why = f"the search for a placement was stopped after {self._state.policy.search_limit} domains"
        except OutOfProbes:
            why = f"no moves were found in {self._proof.probes} dry runs"
        return self._moves or NoPlan(why, proven=False)

    def _search(self) -> NoPlan | None:
        """Search a plan. The best one is in `_moves` afterwards."""
        cluster, units = self._cluster, self._units
        if lacking := self._lacking():
            return NoPlan(lacking, proven=True)
        shapes = [shape for shape, _ in shapes_of(cluster, self._group)]
        with cluster.trial():
            evict(cluster, units)
            most = {shape.id: self._state.score_cache.of(shape).copies().copy() for shape in shapes}
            if self._proof.placed() is None:
                pods = len({uid for unit in units for uid in unit.uids})
                return NoPlan(f"it would not fit even if all {pods} movable pods were gone", proven=True)
        clearing = Candidates(cluster, self._state.score_cache, units, self._victims.spare, most)
        for target in clearing.targets(self._group, self._scope):
            without: set[int] = set()
            for _ in range(_PLANS):
                planned = clearing.plans(self._group, target, 1, without=without)
                if not planned or (self._best is not None and weight(planned[0]) >= weight(self._best)):
                    break
                stuck = self._try(planned[0])
                if stuck is None:
                    break
                without.add(stuck.number)
        return None

    def _lacking(self) -> str:
        """A message about the first resource of which the whole cluster has less free than the job requests; "" if it
        has enough of all."""
        nodes = self._cluster.nodes
        wanted: Counter[str] = Counter()
        for shape, count in shapes_of(self._cluster, self._group):
            if shape.stand_ins is None:
                wanted.update({name: amount * count for name, amount in shape.request.resources})
        for name, amount in wanted.items():
            free = int(np.maximum(nodes.free[nodes.column(name)], 0).sum())
            if amount > free + (self._gpus_in_parts() if name == GPU else 0):
                shown = quantities.display
                return f"it needs {shown(name, amount)} of {name}, and the cluster has {shown(name, free)} free"
        return ""

    def _gpus_in_parts(self) -> int:
        """An upper bound of the whole GPUs that could be freed by packing the pods that share GPUs: the unused parts of
        all shared GPUs where all GPUs of the cluster are of one kind; else the number of shared GPUs, since the same
        memory is a smaller part of a larger GPU, and a part of a GPU may fit a replica."""
        nodes, shared = self._cluster.nodes, Counter[int]()
        for placement in self._cluster.placements.values():
            shared[placement.slot] |= placement.share_bits
        slots = [slot for slot, bits in shared.items() if bits]
        if not slots:
            return 0
        memory_mib = nodes.gpu_memory_mib[nodes.allocatable[nodes.column(GPU)] > 0]
        if len(nodes.sharings) == 1 and (memory_mib == nodes.gpu_memory_mib[slots[0]]).all():
            return int(nodes.gpu_parts[:, slots].sum() // nodes.gpu_whole[slots[0]])
        return sum(bits.bit_count() for bits in shared.values())

    def _try(self, units: list[Unit]) -> Unit | None:
        """Keep the moves of these units if they work; else return a unit that cannot be moved."""
        together = Together(self._state, self._victims.spare)
        for unit in units:
            if not together.admits(unit):
                return unit
            together.take(unit)
        needed = self._proof.needed(units)
        if needed is None or (self._best is not None and weight(needed) >= weight(self._best)):
            return None
        placed = self._proof.placed_without(needed)
        taken = {slot for _, slot in placed or ()}
        inside = range(self._cluster.nodes.used) if self._scope is None else self._scope.tolist()
        found = self._carry_out(needed, np.array([slot for slot in inside if slot not in taken], dtype=np.int64))
        if isinstance(found, Unit):
            found = self._carry_out(needed, self._scope)
        if isinstance(found, Unit):
            return found
        self._best, self._moves = needed, found
        return None

    def _carry_out(self, units: Sequence[Unit], where: Scope | None) -> MovePlan | Unit:
        """Move all units, each as soon as there is room for it. Returns a unit without room where that fails."""
        self._proof.count()
        cluster = self._cluster
        steps: list[MoveStep] = []
        left = sorted(units, key=lambda unit: (-max(self._gpus(uid) for uid in unit.uids), -len(unit.uids)))
        with cluster.trial():
            while left:
                for unit in left:
                    step = relocate(self._state, unit, where)
                    if step is not None:
                        steps.append(step)
                        left = [one for one in left if one is not unit]
                        break
                else:
                    return left[0]
            placed = self._proof.placed(counted=False)
        if placed is None:
            return max(units, key=lambda unit: unit.weight)
        return MovePlan(tuple(steps), self._by_node(placed), self._proof.probes)

    def _gpus(self, uid: str) -> int:
        shape = self._cluster.placements[uid].shape
        return shape.gpus or shape.shared

    def _by_node(self, placed: Placed) -> tuple[tuple[str, str], ...]:
        names = self._cluster.nodes.names
        return tuple((uid, names[slot]) for uid, slot in placed)
