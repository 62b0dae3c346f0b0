# SPDX-License-Identifier: Apache-2.0
"""Which nodes are quarantined: those that ask for it, within a budget.

Rules
- A node asks for quarantine when it has to be rebooted or repaired. No pod is placed on a quarantined node; running
  pods stay.
- At most `limit` nodes are quarantined at a time, a part of all GPU nodes. The earliest to ask comes first, then the
  name decides. The others stay in use, but for their unhealthy GPUs.
- A quarantined node keeps its place until it no longer asks, or is gone. If GPU nodes leave, and more nodes are
  quarantined than `limit` allows then, these stay and no other follows.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.model import Node

_MILLI = 1000
_VENDOR = "nvidia.com/"


class Quarantines:
    """`milli` thousandths of the GPU nodes, at least one node; or `most` nodes, if that is not 0. With both 0 no node
    is quarantined."""

    def __init__(self, nodes: Nodes, milli: int, most: int) -> None:
        self._nodes = nodes
        self._milli, self._most = milli, most
        self._seen = 0
        self._gpu_nodes: set[int] = set()
        self._asking: dict[int, tuple[int, str]] = {}
        self._in_force: dict[str, None] = {}

    @property
    def limit(self) -> int:
        """How many nodes may be quarantined now."""
        if self._most or not self._milli:
            return self._most
        return max(1, len(self._gpu_nodes) * self._milli // _MILLI)

    @property
    def in_force(self) -> tuple[str, ...]:
        """The quarantined nodes, in the order in which they came to be."""
        return tuple(self._in_force)

    def restore(self, names: Iterable[str]) -> None:
        """Set the quarantined nodes of a checkpoint."""
        self._in_force = dict.fromkeys(names)
        self._seen = -1
        self.settle()

    def settle(self) -> bool:
        """Take the changes of the nodes. Returns whether a node is in use again that was quarantined."""
        nodes = self._nodes
        if self._seen == nodes.records_journal.end:
            return False
        changed = nodes.records_journal.since(self._seen) if self._seen >= 0 else None
        slots = range(len(nodes.records)) if changed is None else changed.tolist()
        for slot in slots:
            self._know(slot, nodes.records[slot])
        asking = {name: since_ms for since_ms, name in self._asking.values()}
        before = self._in_force
        now = {name: None for name in before if name in asking}
        free = self.limit - len(now)
        if free > 0 and len(asking) > len(now):
            waiting = sorted((since_ms, name) for name, since_ms in asking.items() if name not in now)
            now |= {name: None for _, name in waiting[:free]}
        self._in_force = now
        for name in before | now:
            slot = nodes.slots.get(name)
            if slot is not None and nodes.quarantined[slot] != (name in now):
                nodes.quarantined[slot] = name in now
                nodes.records_journal.add(slot)
        self._seen = nodes.records_journal.end
        return any(name not in now for name in before)

    def _know(self, slot: int, record: Node | None) -> None:
        self._asking.pop(slot, None)
        self._gpu_nodes.discard(slot)
        if record is not None and is_gpu_node(record):
            self._gpu_nodes.add(slot)
            if record.quarantine_ms:
                self._asking[slot] = (record.quarantine_ms, record.name)


def is_gpu_node(node: Node) -> bool:
    """Whether the node has GPUs, also where none of them is offered now."""
    if node.layout is not None or node.quarantine_ms:
        return True
    return any(amount and name.startswith(_VENDOR) for name, amount in node.allocatable)
