# SPDX-License-Identifier: Apache-2.0
"""What comes next on all nodes: which may begin to move, within the budgets. Pure, from labels and pods;
`node_takeover` has one node.

Rules
- First the canary, for each function. The others follow when it has been ready for `canary.soakSeconds`, within the
  budgets of spec.upgrade, in which nodes count that rollouts, drains or faults have taken out of service (`budgets`).
- Nodes whose kubelet does not answer, and those that a rollout works on, are left for later.
- Where a node is not ready in time no other node begins, and with spec.upgrade.rollback that node goes back, until the
  spec changes.
- The way back needs no budget of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import StackSpec, UpgradeSpec
from dovetail.operator.budgets import FleetNode, ServiceBudgets
from dovetail.operator.coexistence.found_components import ForeignDaemon
from dovetail.operator.coexistence.node_takeover import NodeTakeover, TakeoverRequest
from dovetail.operator.coexistence.states import FunctionOnNode, NodePatch, SharedNode
from dovetail.operator.coexistence.table import BY_NAME, COMPONENTS, FOLLOWS, AgentFunction


class TakeoverPlan(Struct, frozen=True):
    """`functions`: every function of every node that a foreign component does or did there. `patches` is what to write
    now, all independent of each other. `problems` are about spec.takeOver. `disrupted` are the nodes between the sides,
    with those that begin now. `soaked_s` is the Unix time in seconds at which the next canary has been ready for long
    enough, 0 for none."""

    functions: tuple[FunctionOnNode, ...] = ()
    patches: tuple[NodePatch, ...] = ()
    problems: tuple[Problem, ...] = ()
    disrupted: frozenset[str] = frozenset()
    soaked_s: int = 0


def takeover_plan(
    spec: StackSpec,
    generation: int,
    now_s: int,
    nodes: Sequence[SharedNode],
    daemons: Sequence[ForeignDaemon],
    *,
    begins: bool = True,
) -> TakeoverPlan:
    """What comes next for a GPUStack of this spec and generation. With an empty spec.takeOver it is the way back.
    `begins`: nodes may begin to move in this pass."""
    wanted, problems = _wanted(spec.take_over)
    looks = [NodeTakeover(node, TakeoverRequest(spec, generation, now_s, wanted), daemons) for node in nodes]
    stopped = spec.upgrade.paused or not begins or any(look.failed for look in looks)
    canaries = {function: _Canary(function, looks, spec.upgrade, now_s) for function in AgentFunction}
    budgets = ServiceBudgets([_fleet(look) for look in looks if look.node.pool is not None], spec.upgrade)
    starting = set[str]()
    for look in [] if stopped else sorted(filter(_may_begin, looks), key=lambda one: one.node.fleet.order):
        assert look.next is not None
        fleet, canary = _fleet(look), canaries[look.next]
        if canary.admits and budgets.admit(fleet):
            starting.add(look.node.name)
            canary.begin()
            if not fleet.out:
                budgets.take(fleet)
    decided = [look.decide(look.node.name in starting) for look in looks]
    soaked_s = [one.soaked_s for one in canaries.values() if one.soaked_s > now_s]
    return TakeoverPlan(
        tuple(one for functions, _ in decided for one in functions),
        tuple(patch for _, patch in decided if patch.labels or patch.annotations),
        tuple(problems),
        frozenset(look.node.name for look in looks if look.moving) | starting,
        min(soaked_s, default=0),
    )


def _may_begin(look: NodeTakeover) -> bool:
    return look.next is not None and not look.moving and not look.node.held and look.node.reachable


def _fleet(look: NodeTakeover) -> FleetNode:
    """How the node counts. One whose GPUs NVIDIA's stack offers until its turn comes is in service, whatever the walk
    found: what the walk misses may be what is taken over."""
    node = look.node
    out = node.fleet.out or node.held or look.moving or (node.unready and look.next is None)
    return replace(node.fleet, name=node.name, out=out)


class _Canary:
    """The nodes on which a function is taken over first. `admits`: one more node may begin now; `soaked_s` is when the
    canaries have been ready for long enough, 0 where that is not known yet, or is over."""

    def __init__(
        self, function: AgentFunction, looks: Sequence[NodeTakeover], upgrade: UpgradeSpec, now_s: int
    ) -> None:  # fmt: skip
        self._most = upgrade.canary.nodes
        self._begun = sum(function in look.begun for look in looks)
        settled = sorted(look.settled[function] for look in looks if function in look.settled)
        all_settled = len(settled) >= self._most
        last_s = settled[self._most - 1] if all_settled and self._most else 0
        self.soaked_s = last_s + upgrade.canary.soak_seconds if last_s else 0
        self._over = all_settled and self.soaked_s <= now_s

    @property
    def admits(self) -> bool:
        return self._over or self._begun < self._most

    def begin(self) -> None:
        """One more node begins."""
        self._begun += 1


def release_plan(nodes: Sequence[SharedNode], daemons: Sequence[ForeignDaemon]) -> TakeoverPlan:
    """What comes next while the GPUStack is removed: every node goes back, and keeps no label of ours. It is done when
    there is no patch and no function is RETURNING."""
    looks = [
        NodeTakeover(node, TakeoverRequest(StackSpec(), 0, 0, frozenset(), release=True), daemons) for node in nodes
    ]
    decided = [look.decide(False) for look in looks]
    patches = tuple(patch for _, patch in decided if patch.labels or patch.annotations)
    return TakeoverPlan(tuple(one for functions, _ in decided for one in functions), patches)


def _wanted(names: Iterable[str]) -> tuple[frozenset[str], list[Problem]]:
    wanted, problems = set[str](), []
    for i, name in enumerate(names):
        component = BY_NAME.get(name)
        if component is None:
            known = ", ".join(one.name for one in COMPONENTS if not one.kept)
            problems.append(Problem(f"spec.takeOver[{i}]", name, f"must be one of {known}"))
        elif component.kept:
            problems.append(Problem(f"spec.takeOver[{i}]", name, f"is not taken over: {component.kept}"))
        else:
            wanted.add(name)
    wanted |= {name for name, leader in FOLLOWS.items() if leader in wanted}
    return frozenset(wanted), problems
