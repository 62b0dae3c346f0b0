# SPDX-License-Identifier: Apache-2.0
"""The fabric: a tree of domains above the nodes, from ordered node label keys such as zone > block > rack.

Rules: at a fabric level a domain is the whole path of label values down to it, so `rack-1` of two blocks is two racks;
a node without the key has no domain at that level, and nodes without it under one parent are siblings of its domains.
Any other label key is a flat set of domains, one per value, as Kubernetes reads a topologyKey.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.columns import ABSENT, Ids
from dovetail.core.cluster.nodes import Nodes

Domains = NDArray[np.int64]


class Fabric:
    """Answers are cached until a node's record changes."""

    def __init__(self, nodes: Nodes, keys: tuple[str, ...]) -> None:
        self._nodes = nodes
        self._keys = keys
        self._seen = (-1, -1)
        self._levels: tuple[str, ...] = ()
        self._known_ids: list[Ids] = []
        """By level the numbers of the label values that the tree was made of."""
        self._domains: dict[str, Ids] = {}
        self._names: dict[str, list[tuple[str, ...]]] = {}
        self._slots: dict[str, list[Domains]] = {}
        self._paths: list[list[int]] = []
        self._order: list[int] = []

    @property
    def version(self) -> int:
        """Changes whenever an answer of this tree may have changed."""
        self._catch_up()
        return self._seen[0] + self._seen[1]

    @property
    def levels(self) -> tuple[str, ...]:
        """Those of the keys that at least one node carries, widest first."""
        self._catch_up()
        return self._levels

    def domains(self, key: str) -> Ids:
        """The domain of every slot at the level of `key`; ABSENT for none."""
        self._catch_up()
        found = self._domains.get(key)
        return found if found is not None else self._nodes.columns[key].ids

    def domains_by_level(self) -> tuple[Ids, ...]:
        """The domain of every slot at each level, the widest first."""
        return tuple([self._domains[key] for key in self.levels])

    def count(self, key: str) -> int:
        """How many domains the level has."""
        self._catch_up()
        return len(self._names[key]) if key in self._names else len(self._nodes.columns[key].values)

    def name(self, key: str, domain: int) -> str:
        """The domain for a person: the label values of its path."""
        self._catch_up()
        names = self._names.get(key)
        return "/".join(names[domain]) if names is not None else self._nodes.columns[key].values[domain]

    def slots(self, key: str, domain: int) -> Domains:
        """The node slots of a domain, ascending."""
        self._catch_up()
        found = self._slots.get(key)
        if found is None and not self.count(key):
            raise IndexError(domain)
        if found is None:
            found = self._slots[key] = _group(self.domains(key), self.count(key))
        return found[domain]

    def order(self) -> list[int]:
        """By slot its place where those of a domain follow each other, at the widest level and below it."""
        self._list()
        return self._order

    def shared(self, slot: int, other: int) -> int:
        """How many domains hold both slots; a node counts as a domain of its own."""
        self._list()
        count = int(slot == other)
        for domains in self._paths:
            count += domains[slot] == domains[other] != ABSENT
        return count

    def narrowest(self, slots: list[int]) -> str:
        """The narrowest level of which one domain holds all these slots; "" where none does."""
        self._list()
        for key, domains in zip(reversed(self._levels), reversed(self._paths), strict=True):
            first = domains[slots[0]]
            if first == ABSENT:
                continue
            for slot in slots:
                if domains[slot] != first:
                    break
            else:
                return key
        return ""

    def _list(self) -> None:
        """A list: of single slots it is read faster than an array."""
        self._catch_up()
        if len(self._order) != self._nodes.size:
            slots = np.arange(self._nodes.size)
            by_level = [self._domains[key] for key in self._levels]
            place = np.empty_like(slots)
            place[np.lexsort(np.array([slots, *by_level[::-1]]))] = slots
            self._order, self._paths = place.tolist(), [domains.tolist() for domains in by_level]

    def _catch_up(self) -> None:
        now = (self._nodes.records_journal.end, self._nodes.resizes)
        if now == self._seen:
            return
        self._seen = now
        columns = self._nodes.columns
        levels = tuple([key for key in self._keys if bool((columns[key].ids != ABSENT).any())])
        current = [columns[key].ids for key in levels]
        if levels == self._levels and all(map(np.array_equal, current, self._known_ids)):
            # What changed of the nodes, mostly, is something else.
            self._slots = {key: slots for key, slots in self._slots.items() if key in self._domains}
            return
        self._levels, self._known_ids = levels, [ids.copy() for ids in current]
        self._slots.clear()
        self._order = []
        self._domains.clear()
        self._names.clear()
        paths = np.zeros(self._nodes.size, dtype=np.int64)
        names: list[tuple[str, ...]] = [()]
        for key, ids in zip(levels, current, strict=True):
            values = columns[key].values
            # Widen the path by this level's value, where the node has one, and number the paths in use.
            width = len(values) + 1
            used, paths = np.unique(paths * width + (ids + 1), return_inverse=True)
            codes: list[int] = used.tolist()
            names = [names[code // width] + ((values[code % width - 1],) if code % width else ()) for code in codes]
            domains = paths.astype(np.int32)
            domains[ids == ABSENT] = ABSENT
            self._domains[key] = domains
            self._names[key] = names


def _group(ids: Ids, count: int) -> list[Domains]:
    order = np.argsort(ids, kind="stable")
    bounds = np.searchsorted(ids[order], np.arange(count + 1))
    return [order[bounds[d] : bounds[d + 1]] for d in range(count)]
