# SPDX-License-Identifier: Apache-2.0
"""One pass of a rollout: from what nodes have, and what was written down, to what is written down next and what is then
done. Pure; `states` has the states of a node, `budgets` which nodes may be changed.

Rules
- First `canary.nodes` nodes are changed. The others follow when these were ready for `canary.soakSeconds`.
- A change of the agent or of the container toolkit leaves pods alone, so it needs no empty node. The driver and the MIG
  layout need one: the node is in maintenance until it is changed, and no pod that holds its GPUs is cut short, unless
  `drain` is Evict.
- A node that is not empty after `deadlineSeconds` goes back into service, and others come before it.
- A node that is not ready `readySeconds` after a step has failed. This ends the rollout: no further node is changed,
  and with `rollback` all nodes go back to the last good revision, within the budgets. A failed node stays in
  maintenance where it was.
- While it is paused no further node is chosen; those that are worked on are finished.
- Nodes whose kubelet does not answer, and those on which a takeover is under way, are left for later.
- It is done when no node is left to change and all pods of the wanted templates are ready, also those that replaced
  none: at a first installation the DaemonSets make all of them.
- A revision is good, and may be gone back to, once it was seen working on at least half of the nodes.
- All that is done may be repeated: the actions follow from the state that was written down and from the facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.objects.stack import UpgradeSpec
from dovetail.operator.budgets import FleetNode, next_nodes
from dovetail.operator.rollout.record import NodeProgress, RolloutPhase, RolloutRecord
from dovetail.operator.rollout.states import TRANSITIONS, NodeEvent, NodeState

SETTLE_MS = 15_000
"""So long has all to be ready before it counts: what is reported of a node may be older than its change."""
_IN_MAINTENANCE = (NodeState.DRAINING, NodeState.REPLACING, NodeState.VERIFYING)
_STEPS_MOST = 4


class OutdatedPod(Struct, frozen=True):
    """A pod of an older template. `drains`: to replace it needs an empty node."""

    namespace: str
    name: str
    uid: str
    daemon_set: str
    drains: bool = False


class RolloutNode(Struct, frozen=True):
    """What a node has. `reachable`: its kubelet answers. `layout` is the MIG layout that its label has to name, "" if
    it does; `applied`: the layout is in force. `current` are the DaemonSets that have a pod of the wanted template
    there, and all of these are ready since `ready_ms` (0: not all). `sound`: the walk of the node has nothing against
    it, or waits for what a rollout is not about. `trouble` is what it has. `ours`: it is in maintenance for a rollout,
    `maintained`: or for anything else. `held`: a takeover is under way there."""

    fleet: FleetNode
    reachable: bool = True
    outdated: tuple[OutdatedPod, ...] = ()
    layout: str = ""
    applied: bool = True
    current: frozenset[str] = frozenset()
    ready_ms: int = 0
    sound: bool = True
    trouble: str = ""
    ours: bool = False
    maintained: bool = False
    held: bool = False

    @property
    def changes(self) -> bool:
        return bool(self.outdated or self.layout)

    @property
    def drains(self) -> bool:
        """Whether it has to be empty for its change."""
        return bool(self.layout) or any(pod.drains for pod in self.outdated)


class RolloutPlan(Struct, frozen=True):
    """`sets` are the DaemonSets that there ought to be, `can_go_back`: there is another revision that was good."""

    upgrade: UpgradeSpec
    sets: frozenset[str] = frozenset()
    can_go_back: bool = False


class Maintain(Struct, frozen=True):
    """Put the node into maintenance."""

    node: str


class EndMaintenance(Struct, frozen=True):
    node: str


class DeletePod(Struct, frozen=True):
    namespace: str
    name: str
    uid: str


class SetLayout(Struct, frozen=True):
    """Name the MIG layout in the label of the node."""

    node: str
    layout: str


RolloutAction = Maintain | EndMaintenance | DeletePod | SetLayout


class RolloutPass(Struct, frozen=True):
    """The record, to be written first if it has changed; then the actions. `left` is how many nodes still have to be
    changed, `starting` on how many others not all pods are ready yet, `again_ms` when the next pass is due although
    nothing changes (None: never)."""

    record: RolloutRecord
    actions: tuple[RolloutAction, ...]
    left: int
    again_ms: int | None
    starting: int = 0


def advance(
    record: RolloutRecord, nodes: Mapping[str, RolloutNode], plan: RolloutPlan, now_ms: int
) -> RolloutPass:  # fmt: skip
    """The next pass over all GPU nodes of the stack."""
    record = replace(record, started_ms=record.started_ms or now_ms)
    record = _progressed(record, nodes, plan, now_ms)
    if record.failed and record.phase not in (RolloutPhase.FAILED, RolloutPhase.ROLLED_BACK):
        record = replace(record, phase=RolloutPhase.FAILED)
    if record.phase is RolloutPhase.FAILED and plan.upgrade.rollback and plan.can_go_back and not record.back:
        # What is outdated is known in the next pass, when the objects are those of the last good revision.
        return RolloutPass(replace(record, back=True), (), 0, now_ms + 1_000)
    waiting = [
        node
        for name, node in sorted(nodes.items())
        if node.changes
        and node.reachable
        and not node.held
        and name not in record.nodes
        and name not in _abandoned(record)
    ]
    record = _phase(record, waiting, nodes, plan, now_ms)
    record = _chosen(record, waiting, nodes, plan, now_ms)
    left = len([node for node in waiting if node.fleet.name not in record.nodes])
    again_ms = _again_ms(record, nodes, left, plan, now_ms)
    return RolloutPass(record, tuple(_actions(record, nodes)), left, again_ms, len(_starting(record, nodes, plan)))


def _abandoned(record: RolloutRecord) -> tuple[str, ...]:
    """Nodes that are not tried any more in this revision."""
    return record.lost if record.back else record.failed


def _progressed(
    record: RolloutRecord, nodes: Mapping[str, RolloutNode], plan: RolloutPlan, now_ms: int
) -> RolloutRecord:  # fmt: skip
    working: dict[str, NodeProgress] = {}
    postponed = {name: at_ms for name, at_ms in record.postponed.items() if name in nodes}
    failed, lost, reason = record.failed, record.lost, record.reason
    for name, progress in record.nodes.items():
        node = nodes.get(name)
        if node is None:
            continue
        for _ in range(_STEPS_MOST):
            event = _event(progress, node, plan, now_ms)
            if event is None:
                break
            state = TRANSITIONS[progress.state][event]
            progress = replace(progress, state=state, since_ms=now_ms)
        match progress.state:
            case NodeState.PENDING:
                postponed[name] = now_ms
            case NodeState.FAILED:
                if record.back:
                    lost = (*lost, name)
                else:
                    failed = (*failed, name)
                    reason = reason or f"node {name}: {node.trouble or 'its pods did not get ready in time'}"
            case NodeState.DONE:
                postponed.pop(name, None)
            case _:
                working[name] = progress
    return replace(record, nodes=working, postponed=postponed, failed=failed, lost=lost, reason=reason)


def _event(progress: NodeProgress, node: RolloutNode, plan: RolloutPlan, now_ms: int) -> NodeEvent | None:
    upgrade, since_ms = plan.upgrade, progress.since_ms
    late = NodeEvent.LATE if now_ms - since_ms >= 1000 * upgrade.ready_seconds else None
    match progress.state:
        case NodeState.DRAINING:
            if not node.changes:
                return NodeEvent.READY
            if node.maintained and node.fleet.empty:
                return NodeEvent.EMPTY
            return NodeEvent.OVERDUE if now_ms - since_ms >= 1000 * upgrade.deadline_seconds else None
        case NodeState.REPLACING:
            if progress.drained and node.drains and not node.fleet.empty:
                return NodeEvent.IN_USE
            replaced = not node.changes and plan.sets.intersection(progress.sets) <= node.current
            return NodeEvent.REPLACED if replaced else late
        case NodeState.VERIFYING | NodeState.VALIDATING:
            if node.changes:
                return NodeEvent.OUTDATED
            # Without a maintenance nothing about the node changes when it comes to be validated.
            changed_ms = 0 if progress.state is NodeState.VALIDATING and not progress.drained else since_ms
            settled = now_ms - max(changed_ms, node.ready_ms) >= SETTLE_MS
            sound = node.sound and node.applied and bool(node.ready_ms or not node.current)
            return NodeEvent.READY if sound and settled else late
    return None


def _phase(
    record: RolloutRecord, waiting: Sequence[RolloutNode], nodes: Mapping[str, RolloutNode], plan: RolloutPlan,
    now_ms: int,
) -> RolloutRecord:  # fmt: skip
    if record.phase is RolloutPhase.FAILED:
        done = record.back and not waiting and not record.nodes
        return replace(record, phase=RolloutPhase.ROLLED_BACK) if done else record
    if record.phase is RolloutPhase.ROLLED_BACK:
        return record
    canary = plan.upgrade.canary
    if (
        record.phase is RolloutPhase.CANARY
        and not record.nodes
        and (not waiting or len(record.canaries) >= canary.nodes)
    ):
        record = replace(record, canary_ms=record.canary_ms or now_ms)
        soaked_ms = record.canary_ms + 1000 * canary.soak_seconds if record.canaries else now_ms
        unready = [name for name in record.canaries if name in nodes and not _in_order(nodes[name])]
        if now_ms < soaked_ms:
            return record
        if unready and now_ms >= soaked_ms + 1000 * plan.upgrade.ready_seconds:
            reason = f"node {unready[0]}, a canary: {nodes[unready[0]].trouble or 'its pods are not ready'}"
            return replace(record, phase=RolloutPhase.FAILED, failed=tuple(unready), reason=reason)
        if unready:
            return record
        record = replace(record, phase=RolloutPhase.ROLLING)
    if record.phase in (RolloutPhase.ROLLING, RolloutPhase.DONE):
        over = not waiting and not record.nodes
        good = record.good or (over and _works(nodes, plan, now_ms))
        done = over and not _starting(record, nodes, plan)
        return replace(record, phase=RolloutPhase.DONE if done else RolloutPhase.ROLLING, good=good)
    return record


def _starting(
    record: RolloutRecord, nodes: Mapping[str, RolloutNode], plan: RolloutPlan
) -> Sequence[RolloutNode]:  # fmt: skip
    """The nodes that have nothing to replace, and whose pods of the wanted templates are not ready; all, where no node
    has one yet. What is not ready later is no part of a rollout that is done."""
    if record.phase is RolloutPhase.DONE:
        return ()
    there = [one for one in nodes.values() if one.reachable and not one.held and one.fleet.name not in record.nodes]
    begun = not plan.sets or any(one.current or one.changes for one in nodes.values())
    return [one for one in there if not one.changes and (not one.ready_ms if one.current else not begun)]


def _works(nodes: Mapping[str, RolloutNode], plan: RolloutPlan, now_ms: int) -> bool:
    """Whether what is rendered was seen working: on at least half of the nodes whose kubelet answers, as some may be
    broken. Where nothing is brought to nodes there is nothing to see."""
    reachable = [node for node in nodes.values() if node.reachable]
    working = [node for node in reachable if _runs(node) and now_ms - node.ready_ms >= SETTLE_MS]
    return not plan.sets or (bool(working) and 2 * len(working) >= len(reachable))


def _runs(node: RolloutNode) -> bool:
    """Whether the node has pods of the wanted templates, which are ready, and is well with them."""
    return bool(node.current and node.ready_ms) and node.sound and node.applied and not node.changes


def _in_order(node: RolloutNode) -> bool:
    return node.sound and bool(node.ready_ms or not node.current)


def _chosen(
    record: RolloutRecord, waiting: Sequence[RolloutNode], nodes: Mapping[str, RolloutNode], plan: RolloutPlan,
    now_ms: int,
) -> RolloutRecord:  # fmt: skip
    """The record with the nodes that are worked on from now on."""
    stopped = record.phase is RolloutPhase.FAILED and not record.back
    if plan.upgrade.paused or stopped or not waiting:
        return record
    failed = {*record.failed, *record.lost}
    count = plan.upgrade.canary.nodes - len(record.canaries) if record.phase is RolloutPhase.CANARY else None
    fleet = [
        replace(node.fleet, out=node.fleet.out or name in record.nodes or (name in failed and not _in_order(node)))
        for name, node in nodes.items()
    ]
    by_name = {one.name: one for one in fleet}
    # One that has just been postponed is in maintenance until this pass is over.
    names = [node.fleet.name for node in waiting if record.postponed.get(node.fleet.name) != now_ms]
    candidates = [replace(by_name[name], postponed=name in record.postponed) for name in names]
    chosen = [nodes[one.name] for one in next_nodes(fleet, candidates, plan.upgrade, count)]
    working = dict(record.nodes)
    for node in chosen:
        event = NodeEvent.CHOSEN if node.drains else NodeEvent.CHOSEN_IN_USE
        sets = tuple(sorted({pod.daemon_set for pod in node.outdated}))
        state = TRANSITIONS[NodeState.PENDING][event]
        working[node.fleet.name] = NodeProgress(state, now_ms, node.drains, sets)
    record = replace(record, nodes=working)
    if record.phase is RolloutPhase.CANARY:
        record = replace(record, canaries=(*record.canaries, *[node.fleet.name for node in chosen]))
    return record


def _actions(record: RolloutRecord, nodes: Mapping[str, RolloutNode]) -> Iterator[RolloutAction]:
    for name, node in sorted(nodes.items()):
        progress = record.nodes.get(name)
        if progress is None:
            if node.ours and name not in _abandoned(record):
                yield EndMaintenance(name)
            continue
        if progress.drained and progress.state in _IN_MAINTENANCE:
            if not node.maintained:
                yield Maintain(name)
        elif node.ours:
            yield EndMaintenance(name)
        if progress.state is NodeState.REPLACING:
            yield from (DeletePod(pod.namespace, pod.name, pod.uid) for pod in node.outdated)
            if node.layout:
                yield SetLayout(name, node.layout)


def _again_ms(
    record: RolloutRecord, nodes: Mapping[str, RolloutNode], left: int, plan: RolloutPlan, now_ms: int
) -> int | None:  # fmt: skip
    if record.nodes or record.phase is RolloutPhase.CANARY:
        return now_ms + 5_000
    over = record.phase is RolloutPhase.FAILED and not record.back
    if left and not over and not plan.upgrade.paused:
        return now_ms + 30_000
    settled_ms = (node.ready_ms + SETTLE_MS for node in nodes.values() if _runs(node))
    later_ms = (at_ms for at_ms in settled_ms if at_ms > now_ms)
    at_rest = record.good or record.phase not in (RolloutPhase.ROLLING, RolloutPhase.DONE)
    return None if at_rest else min(later_ms, default=None)
