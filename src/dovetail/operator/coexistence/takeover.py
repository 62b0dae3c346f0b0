# SPDX-License-Identifier: Apache-2.0
"""What comes next on all nodes: which may begin to move, within the budgets. Pure, from labels and pods;
`node_takeover` has one node.

Rules
- First the canary, then as many nodes at a time as spec.upgrade permits. Where a node is not ready in time no other
  node begins, and with spec.upgrade.rollback that node goes back, until the spec changes.
- The way back needs no budget of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import StackSpec, UpgradeSpec
from dovetail.operator.coexistence.found_components import ForeignDaemon
from dovetail.operator.coexistence.node_takeover import NodeTakeover, TakeoverRequest
from dovetail.operator.coexistence.states import FunctionOnNode, NodePatch, SharedNode
from dovetail.operator.coexistence.table import BY_NAME, COMPONENTS, FOLLOWS


class TakeoverPlan(Struct, frozen=True):
    """`functions`: every function of every node that a foreign component does or did there. `patches` is what to write
    now, all independent of each other. `problems` are about spec.takeOver."""

    functions: tuple[FunctionOnNode, ...] = ()
    patches: tuple[NodePatch, ...] = ()
    problems: tuple[Problem, ...] = ()


def takeover_plan(
    spec: StackSpec, generation: int, now_s: int, nodes: Sequence[SharedNode], daemons: Sequence[ForeignDaemon]
) -> TakeoverPlan:
    """What comes next for a GPUStack of this spec and generation. With an empty spec.takeOver it is the way back."""
    wanted, problems = _wanted(spec.take_over)
    looks = [NodeTakeover(node, TakeoverRequest(spec, generation, now_s, wanted), daemons) for node in nodes]
    stopped = spec.upgrade.paused or any(look.failed for look in looks)
    begun = {function for look in looks for function in look.settled}
    moving = sum(look.moving for look in looks)
    functions: list[FunctionOnNode] = []
    patches: list[NodePatch] = []
    for look in looks:
        limit = _limit(spec.upgrade, len(nodes), look.next in begun)
        starts = not stopped and look.next is not None and not look.moving and moving < limit
        moving += starts
        found, patch = look.decide(starts)
        functions += found
        if patch.labels or patch.annotations:
            patches.append(patch)
    return TakeoverPlan(tuple(functions), tuple(patches), tuple(problems))


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


def _limit(upgrade: UpgradeSpec, nodes: int, begun: bool) -> int:
    """How many nodes may be between the sides at a time; at least one."""
    if not begun and upgrade.canary.nodes:
        return upgrade.canary.nodes
    text = upgrade.max_nodes.strip()
    number = text.removesuffix("%")
    if not number.isdecimal():
        return 1
    return max(1, int(number) * nodes // 100 if text.endswith("%") else int(number))
