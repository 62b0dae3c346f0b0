# SPDX-License-Identifier: Apache-2.0
"""Which nodes may be taken out of service next, so that no budget is exceeded: one budget for rollouts, takeovers and
drains together. Pure.

Rules
- At any time at most `max_nodes` nodes and `max_gpus` GPUs are out of service, in the cluster and in each pool, and
  `max_nodes_per_rack` nodes of each rack. A part ("10%") is rounded down, to one node at least; a node with more GPUs
  than a budget has may go alone. Nodes without a rack count for none.
- A node is out of service while it is changed, while a function moves there between NVIDIA's stack and Dovetail, while
  it is in maintenance by anybody, not ready, or out for repair. Such a node may be changed without any further cost.
- Order: nodes that are out of service already, empty nodes, the earliest expected end, the name. Nodes that did not get
  empty in time before come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from dovetail.kube.objects.stack import UpgradeSpec

_CLUSTER = ""


class FleetNode(Struct, frozen=True):
    """A GPU node of the stack. `out`: it is out of service. `empty`: no pod holds GPUs there. `ends_ms`: when the last
    pod that does is expected to end, 0 if that is not known. `postponed`: it did not get empty in time before."""

    name: str
    pool: str = ""
    rack: str = ""
    gpus: int = 0
    out: bool = False
    empty: bool = True
    ends_ms: int = 0
    postponed: bool = False

    @property
    def order(self) -> tuple[bool, bool, bool, bool, int, str]:
        """The first to be changed is the least."""
        return self.postponed, not self.out, not self.empty, not self.ends_ms, self.ends_ms, self.name


def most(budget: str, total: int) -> int:
    """What a budget allows of so many: a number, or a part such as "10%", then at least one unless it is 0%. What is
    neither allows none."""
    text = budget.strip()
    number = text.removesuffix("%")
    if not number.isdecimal():
        return 0
    if number == text:
        return int(number)
    return max(1, total * int(number) // 100) if int(number) else 0


class ServiceBudgets:
    """What is out of service now, against what may be."""

    def __init__(self, fleet: Iterable[FleetNode], upgrade: UpgradeSpec) -> None:
        fleet = list(fleet)
        nodes, gpus = Counter[str](), Counter[str]()
        self._nodes, self._gpus, self._racks = Counter[str](), Counter[str](), Counter[str]()
        self._per_rack = upgrade.max_nodes_per_rack
        for one in fleet:
            for scope in _scopes(one):
                nodes[scope] += 1
                gpus[scope] += one.gpus
            if one.out:
                self.take(one)
        self._most_nodes = {scope: most(upgrade.max_nodes, count) for scope, count in nodes.items()}
        self._most_gpus = {scope: most(upgrade.max_gpus, count) for scope, count in gpus.items()}

    def admit(self, node: FleetNode) -> bool:
        """Whether it may be taken out of service too."""
        if node.out:
            return True
        if node.rack and self._racks[node.rack] >= self._per_rack:
            return False
        return all(
            self._nodes[scope] < self._most_nodes[scope] and self._has_gpus(scope, node.gpus) for scope in _scopes(node)
        )

    def _has_gpus(self, scope: str, gpus: int) -> bool:
        allowed, taken = self._most_gpus[scope], self._gpus[scope]
        return not gpus or taken + gpus <= allowed or (allowed > 0 and not taken)

    def take(self, node: FleetNode) -> None:
        """It is out of service."""
        for scope in _scopes(node):
            self._nodes[scope] += 1
            self._gpus[scope] += node.gpus
        if node.rack:
            self._racks[node.rack] += 1


def next_nodes(
    fleet: Sequence[FleetNode], candidates: Iterable[FleetNode], upgrade: UpgradeSpec, count: int | None = None
) -> list[FleetNode]:
    """Those of the candidates that may be changed now, in their order; `count` at most."""
    budgets, found = ServiceBudgets(fleet, upgrade), list[FleetNode]()
    for node in sorted(candidates, key=lambda one: one.order):
        if count is not None and len(found) >= count:
            break
        if budgets.admit(node):
            if not node.out:
                budgets.take(node)
            found.append(node)
    return found


def _scopes(node: FleetNode) -> tuple[str, str]:
    return _CLUSTER, f"pool/{node.pool}"
