# SPDX-License-Identifier: Apache-2.0
"""Spare nodes: the nodes of each domain of the fabric that are held back for the jobs that run there.

Rules
- A `SpareRule` holds `per_domain` nodes of each domain of its level: of the nodes with GPUs that are in order and empty
  the last by name. Fewer are held while fewer are empty: nothing is evicted for a spare.
- A node is empty if no pod on it has devices, and it is promised to none: nominated, or held by a reservation. What is
  promised never becomes a spare, so no pod is evicted, and no job waits, for a node that is then refused.
- A node that is out of order is no spare: it is cordoned, quarantined, in maintenance or invalid, it lacks its device
  plugin or a GPU, or has a taint that Kubernetes sets on a node that is down. While a node of a domain is, its spares
  are open to the gangs that have pods there: the pod that replaces the one on that node finds room in its domain.
  A gang and its sub-gangs are one here: what a pod of any of them may use, so may all.
- While no gang has pods in the domain, a node that is out of order uses up a spare, for everyone. So a gang that was
  restarted as a whole finds as many nodes as it had.
- Pods without devices use spares like any other node, and so do pods with a toleration of the key `dovetail.dev/spare`,
  which test nodes.
- A spare of several rules is open to a gang where each of them opens it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from dovetail.core.cluster.columns import ABSENT, Ids
from dovetail.core.cluster.fabric import Fabric
from dovetail.core.cluster.nodes import DOWN_TAINTS, UNSCHEDULABLE_TAINT, Nodes
from dovetail.core.cluster.offers import Offers
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.quarantines import is_gpu_node
from dovetail.core.fabric import SpareRule
from dovetail.core.model import Node

NOTHING_OPEN: frozenset[int] = frozenset()
_GPU_DRIVER = "gpu.nvidia.com"
"""By which nodes offer GPUs to claims."""
_DOWN = DOWN_TAINTS | {UNSCHEDULABLE_TAINT.key}
_DomainKey = tuple[int, int]
"""The place of a rule among all, and the number of a domain at its level."""


class _NodeUse(Struct, frozen=True):
    """What counts of a node: the domains that hold it, whether it is empty and out of order (`broken`), whether pods
    could run on it one day without a change of its own record (`able`), and the gangs there, each by the topmost one
    above it."""

    name: str
    domains: tuple[_DomainKey, ...]
    empty: bool
    broken: bool
    able: bool
    gangs: tuple[str, ...]


class _SpareDomain:
    """A domain of a rule. `empty` are its empty nodes in order, sorted by name; `gangs` counts nodes by gang. `held`
    are its spares, of which `opened` are open to those gangs; `without_pods` are those that it would have if it were
    empty, None where they have to be worked out."""

    __slots__ = ("broken", "empty", "gangs", "held", "opened", "slots", "without_pods")

    def __init__(self) -> None:
        self.slots: dict[int, _NodeUse] = {}
        self.without_pods: tuple[int, ...] | None = None
        self.empty: list[tuple[str, int]] = []
        self.broken: set[int] = set()
        self.gangs: Counter[str] = Counter()
        self.held: frozenset[int] = NOTHING_OPEN
        self.opened: frozenset[int] = NOTHING_OPEN

    def add(self, slot: int, use: _NodeUse) -> None:
        self.slots[slot], self.without_pods = use, None
        if use.broken:
            self.broken.add(slot)
        elif use.empty:
            insort(self.empty, (use.name, slot))
        for gang in use.gangs:
            self.gangs[gang] += 1

    def remove(self, slot: int, use: _NodeUse) -> None:
        del self.slots[slot]
        self.without_pods = None
        self.broken.discard(slot)
        if use.empty and not use.broken:
            del self.empty[bisect_left(self.empty, (use.name, slot))]
        for gang in use.gangs:
            self.gangs[gang] -= 1
            if not self.gangs[gang]:
                del self.gangs[gang]

    def choose(self, wanted: int) -> None:
        """Which nodes are spares, where `wanted` are to be."""
        if not self.gangs:
            wanted = max(0, wanted - len(self.broken))
        self.held = frozenset([slot for _, slot in self.empty[max(0, len(self.empty) - wanted) :]])
        self.opened = self.held if self.gangs and self.broken else NOTHING_OPEN


class SpareCount(Struct, frozen=True):
    """The spares of a domain of `size` nodes with GPUs: `wanted` by the rule of the level `key`, the slots that are
    `held`, and those that are out of order (`broken`)."""

    key: str
    domain: str
    size: int
    wanted: int
    held: tuple[int, ...]
    broken: tuple[int, ...]


class Spares:
    """`nodes.spare` as of the last `settle`."""

    def __init__(
        self,
        nodes: Nodes,
        fabric: Fabric,
        offers: Offers,
        placements: Mapping[str, Placement],
        on_slot: Mapping[int, Mapping[str, None]],
    ) -> None:
        self._nodes, self._fabric, self._offers = nodes, fabric, offers
        self._placements, self._on_slot = placements, on_slot
        self.rules: tuple[SpareRule, ...] = ()
        self.top: Callable[[str], str] = str
        """The topmost gang above a gang; itself where the gangs are not known."""
        self.open_gangs: frozenset[str] = frozenset()
        """The topmost gangs to which a spare is open."""
        self._opened: dict[str, frozenset[int]] = {}
        """What `opened` has answered since the last change, by topmost gang: it is asked for each pod."""
        self._again = False
        self._ids: Sequence[Ids] = ()
        """The domains of every slot, by rule, as they were read last."""
        self._seen = 0, 0
        self._promised: frozenset[int] = NOTHING_OPEN
        self._uses: dict[int, _NodeUse] = {}
        self._domains: dict[_DomainKey, _SpareDomain] = {}
        self._opening: dict[_DomainKey, _SpareDomain] = {}
        self._holds: Counter[int] = Counter()
        """In how many domains a slot is held."""

    def put(self, rules: tuple[SpareRule, ...]) -> None:
        if rules != self.rules:
            self.rules, self._again = rules, True

    def opened(self, gang: str) -> frozenset[int]:
        """The spares that pods of this gang may use."""
        top = self.top(gang)
        if top not in self.open_gangs:
            return NOTHING_OPEN
        found = self._opened.get(top)
        if found is None:
            domains = [domain for domain in self._opening.values() if top in domain.gangs]
            slots = NOTHING_OPEN.union(*[domain.opened for domain in domains])
            if len(self.rules) > 1:
                # Each rule that holds it has to open it.
                slots = frozenset([s for s in slots if self._holds[s] == sum(s in one.opened for one in domains)])
            found = self._opened[top] = slots
        return found

    def known(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The slots that were spares when last chosen; and those open to gangs of their domains, with their rules."""
        opened = {(key[0], slot) for key, domain in self._domains.items() for slot in domain.opened}
        return tuple(self._nodes.spare.nonzero()[0].tolist()), tuple(sorted(opened))

    def settle(self, promised: frozenset[int]) -> bool:
        """Take the changes of nodes and placements, and what is promised now. Returns whether a node may be used that
        was a spare."""
        if not self.rules and not self._again:
            return False
        ids = [self._fabric.domains(rule.key) for rule in self.rules]
        slots = self._changed(promised)
        if slots is None or len(ids) != len(self._ids) or any(a is not b for a, b in zip(ids, self._ids, strict=True)):
            slots, moved = range(self._nodes.used), set(self._holds)
            self._uses.clear()
            self._domains.clear()
            self._opening.clear()
            self._holds.clear()
            self._opened.clear()
            self.open_gangs = frozenset()
        else:
            moved = set[int]()
        self._ids, self._promised, self._again = ids, promised, False
        touched: dict[_DomainKey, None] = {}
        for slot in slots:
            self._look(slot, touched)
        free = False
        for key in touched:
            free |= self._choose(key, moved)
        if touched:
            self._opened.clear()
            self.open_gangs = frozenset(gang for domain in self._opening.values() for gang in domain.gangs)
        return self._mark(moved) or free

    def _changed(self, promised: frozenset[int]) -> Iterable[int] | None:
        """The slots to look at; None for all."""
        nodes, seen = self._nodes, self._seen
        self._seen = nodes.amounts_journal.end, nodes.records_journal.end
        amounts, records = nodes.amounts_journal.since(seen[0]), nodes.records_journal.since(seen[1])
        if self._again or amounts is None or records is None:
            return None
        changed = dict.fromkeys([*amounts.tolist(), *records.tolist()])
        return changed if promised == self._promised else [*changed, *(promised ^ self._promised) - changed.keys()]

    def _look(self, slot: int, touched: dict[_DomainKey, None]) -> None:
        use, before = self._use(slot), self._uses.get(slot)
        if use == before:
            return
        if before is not None:
            del self._uses[slot]
            for key in before.domains:
                self._domains[key].remove(slot, before)
                touched[key] = None
        if use is not None:
            self._uses[slot] = use
            for key in use.domains:
                domain = self._domains.get(key)
                if domain is None:
                    domain = self._domains[key] = _SpareDomain()
                domain.add(slot, use)
                touched[key] = None

    def _use(self, slot: int) -> _NodeUse | None:
        """None for a node that counts nowhere."""
        record = self._nodes.records[slot]
        if record is None:
            return None
        numbers = [(i, int(ids[slot])) for i, ids in enumerate(self._ids)]
        domains = tuple([key for key in numbers if key[1] != ABSENT])
        if not domains or not (is_gpu_node(record) or self._offers.has(record.name, _GPU_DRIVER)):
            return None
        pods = [self._placements[uid].pod for uid in self._on_slot.get(slot, ())]
        having = [pod for pod in pods if pod.device_claims or pod.request.asks_devices]
        gangs = tuple(sorted({self.top(pod.gang) for pod in having if pod.gang}))
        empty = not having and slot not in self._promised
        able = record.problem is None and not record.unschedulable
        return _NodeUse(record.name, domains, empty, self._broken(slot, record), able, gangs)

    def _broken(self, slot: int, record: Node) -> bool:
        out = record.unschedulable or record.plugin_gone or record.problem is not None or record.maintenance is not None
        # Cards in MIG mode are out as whole GPUs, too.
        lacking = record.gpus_out.bit_count() > len(record.mig)
        return (
            out
            or lacking
            or bool(self._nodes.quarantined[slot])
            or any(taint.key in _DOWN and taint.effect != "PreferNoSchedule" for taint in record.taints)
        )

    def _choose(self, key: _DomainKey, moved: set[int]) -> bool:
        """Choose the spares of a domain again. Returns whether one is open to its gangs that was not."""
        domain = self._domains[key]
        held, opened = domain.held, domain.opened
        domain.choose(self.rules[key[0]].per_domain)
        for slot in held - domain.held:
            self._holds[slot] -= 1
            if not self._holds[slot]:
                del self._holds[slot]
        for slot in domain.held - held:
            self._holds[slot] += 1
        moved |= held ^ domain.held
        self._opening.pop(key, None)
        if domain.opened:
            self._opening[key] = domain
        if not domain.slots:
            del self._domains[key]
        return not domain.opened <= opened

    def _mark(self, slots: Iterable[int]) -> bool:
        """Mark the nodes as what they are now. Returns whether one is no spare any more."""
        nodes, free = self._nodes, False
        for slot in sorted(slots):
            spare = slot in self._holds
            if nodes.spare[slot] != spare:
                nodes.spare[slot] = spare
                nodes.records_journal.add(slot)
                free |= not spare
        self._seen = self._seen[0], nodes.records_journal.end
        return free

    def when_empty(self) -> list[int]:
        """The slots that would be spares without any pod, with the nodes that cannot be used now left out, and all
        others in order."""
        found: set[int] = set()
        for (number, _), domain in self._domains.items():
            if domain.without_pods is None:
                able = [slot for _, slot in sorted((use.name, slot) for slot, use in domain.slots.items() if use.able)]
                left = max(0, self.rules[number].per_domain - (len(domain.slots) - len(able)))
                domain.without_pods = tuple(able[max(0, len(able) - left) :] if left else ())
            found.update(domain.without_pods)
        return sorted(found)

    def counts(self) -> Iterator[SpareCount]:
        """The spares of each domain, by rule and by name of the domain."""
        found = []
        for (number, domain_id), domain in self._domains.items():
            rule = self.rules[number]
            name = self._fabric.name(rule.key, domain_id)
            by_name = [
                tuple(sorted(slots, key=lambda slot: self._nodes.names[slot])) for slots in (domain.held, domain.broken)
            ]
            found.append((number, SpareCount(rule.key, name, len(domain.slots), rule.per_domain, *by_name)))
        found.sort(key=lambda pair: (pair[0], pair[1].domain))
        return (count for _, count in found)
