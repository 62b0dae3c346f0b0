# SPDX-License-Identifier: Apache-2.0
"""What headroom was worked out from, so that a step looks only at what has changed since.

Rules
- Known is where headroom lies once a search over all of it has left it as it was: the same search, over the same, would
  do so again.
- What one node has is read for the places on it alone. The journals of the nodes name those that have changed, trials
  that were undone among them. What pods of a workload return is read on all its nodes.
- All else that is read is compared (what is stated and due, leases, evictions under way, reservations), or its change
  makes the whole unknown: queues, namespaces, disruption budgets, device classes. So do instances whose place depends
  on other pods (affinity, spread, nominated and rejected pods).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from dovetail.core.bargaining.leases import Leases
from dovetail.core.bargaining.types import GpuLease
from dovetail.core.cluster import Cluster
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.model import Pod
from dovetail.core.reservations.reservation import Reservation
from dovetail.core.reservations.table import Reservations
from dovetail.core.workloads.index import WorkloadIndex

Stated = Sequence[tuple[object, Pod]]
"""What is stated, each with the pod that counts."""


class Sources(Struct, frozen=True, eq=False):
    """What headroom is worked out from."""

    cluster: Cluster
    workloads: WorkloadIndex
    reservations: Reservations
    leases: Leases


class Inputs:
    """`statements` are those of the last search, `apart` the slots that were otherwise then. `touched` are workloads
    (id) about which something changed since."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.statements: Stated = ()
        self.touched: set[str] = set()
        self.apart: frozenset[int] = frozenset()
        self._known = self._by_node = False
        self._rooms: object = None
        self._workloads: frozenset[str] = frozenset()
        self._ends = (0, 0, 0)
        self._changed: set[int] = set()
        """The slots that changed until then."""
        self._changes = self._resizes = 0
        self._leases: list[GpuLease] = []
        self._version = 0
        self._evicting: list[Reservation] = []
        self._holding: list[Reservation] = []

    def forget(self) -> None:
        """Something has changed that all of it may depend on."""
        self._known = False
        self.touched.clear()

    def note(self, rooms: object, statements: Stated, by_node: bool, apart: Collection[int] = ()) -> None:
        """A search has left headroom, these rooms, as it is. `by_node`: whether a place depends on its nodes alone."""
        sources = self._sources
        nodes, index = sources.cluster.nodes, sources.workloads
        self._known, self._by_node = True, by_node
        self.statements, self._rooms = statements, rooms
        self._workloads = frozenset([index.workload_of(model) for _, model in statements])
        self._version = sources.reservations.version
        self._holding = holding(sources.reservations)
        self.apart = frozenset(apart)
        self.touched.clear()
        self._changed.clear()
        self._ends = _ends(nodes)
        self._changes, self._resizes = sources.cluster.changes.count, nodes.resizes
        self._leases = _leases(sources)
        self._evicting = sources.reservations.evicting()

    def _comparable(self, rooms: object) -> bool:
        if not self._known or self._rooms is not rooms:
            return False
        return self._resizes == self._sources.cluster.nodes.resizes and self._leases == _leases(self._sources)

    def same(self, rooms: object) -> bool:
        """Whether nothing has changed, and these are the rooms."""
        sources = self._sources
        now = _ends(sources.cluster.nodes), sources.cluster.changes.count, sources.reservations.version
        unchanged = now == (self._ends, self._changes, self._version) and not self._changed and not self.touched
        return unchanged and self._comparable(rooms)

    def catch_up(self, nodes: Nodes) -> None:
        """Take over what the journals have."""
        journals = nodes.amounts_journal, nodes.records_journal, nodes.devices_journal
        for journal, end in zip(journals, self._ends, strict=True):
            if (changed := journal.since(end)) is None:
                self._known = False
            else:
                self._changed.update(changed.tolist())
        self._ends = _ends(nodes)

    def skip(self, nodes: Nodes) -> None:
        """What the journals have since `catch_up` was undone."""
        self._ends = _ends(nodes)

    def same_scope(self) -> bool:
        """Whether the same nodes are held for jobs that wait longer."""
        return not _differing(self._holding, holding(self._sources.reservations))

    def slots(self, rooms: object) -> set[int] | None:
        """The slots of which something has changed; None where that may be all."""
        sources = self._sources
        if not self._by_node or not self._comparable(rooms):
            return None
        self.catch_up(sources.cluster.nodes)
        if not self._known:
            return None
        index, found = sources.workloads, set(self._changed)
        evicting = sources.reservations.evicting()
        for one in _differing(self._evicting, evicting):
            found.update(slot for _, slot in one.nominated)
            found |= _slots_of(sources, one.leaving)
        planned = {one.workload for one in [*evicting, *self._evicting]}
        if not self.touched.isdisjoint(self._workloads) or not self.touched.isdisjoint(planned):
            return None
        touched = set(self.touched)
        for slot in found:
            there = [sources.cluster.placements[uid].pod for uid in sources.cluster.on_slot.get(slot, ())]
            touched.update(index.workload_of(pod) for pod in there if pod.gang)
        for workload in touched:
            found |= _slots_of(sources, [pod.uid for pod in index.members(workload)])
        return found


def holding(reservations: Reservations) -> list[Reservation]:
    """The reservations on whose nodes no headroom is looked for."""
    return [one for one in reservations if one.guaranteed and not one.evicts]


def _ends(nodes: Nodes) -> tuple[int, int, int]:
    return nodes.amounts_journal.end, nodes.records_journal.end, nodes.devices_journal.end


def _leases(sources: Sources) -> list[GpuLease]:
    return [live.lease for live in sources.leases.live.values()]


def _differing(before: Sequence[Reservation], now: Sequence[Reservation]) -> list[Reservation]:
    """Those that are in one of the two alone."""
    known = {id(one) for one in before} & {id(one) for one in now}
    return [one for one in [*before, *now] if id(one) not in known]


def _slots_of(sources: Sources, uids: Iterable[str]) -> set[int]:
    placements = sources.cluster.placements
    return {placements[uid].slot for uid in uids if uid in placements}
