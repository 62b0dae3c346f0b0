# SPDX-License-Identifier: Apache-2.0
"""One node that two sides share: where each function is there, and which labels bring it on. Pure.

Rules
- A function moves to Dovetail if every component that does it there is named in spec.takeOver; else it stays. Where
  none does it, it is Dovetail's.
- Off before on: the other side's pods are gone before the agent begins, and the agent's pod is gone before the other
  side returns. Only that pause is without a device plugin; pods that run keep their GPUs.
- One function after the other (`table.ORDER`).
- The way back ends with the labels as they were: the switches of the GPU Operator at `true`, ours removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.objects.stack import NO_ALLOCATION, NodePool, StackSpec
from dovetail.operator.coexistence.found_components import ForeignDaemon
from dovetail.operator.coexistence.states import (
    FAILED,
    MESSAGES,
    MOVING,
    SETTLED,
    SINCE,
    FunctionOnNode,
    NodePatch,
    SharedNode,
    TakeoverReason,
    TakeoverState,
    exclusion,
)
from dovetail.operator.coexistence.table import (
    BY_NAME,
    ORDER,
    SIDE_LABELS,
    TAKEN_OVER,
    AgentFunction,
    NvidiaComponent,
    components_of,
)
from dovetail.operator.found import OURS

_FORWARD = (TakeoverReason.PAUSED, TakeoverReason.NOT_SWITCHABLE)


_BEGUN = (TakeoverState.LEAVING, TakeoverState.STARTING, TakeoverState.DOVETAIL)


def _settled(text: str) -> dict[AgentFunction, int]:
    """The times of an annotation; what cannot be read is left out."""
    known = {str(function): function for function in AgentFunction}
    pairs = (one.partition("=") for one in text.split(","))
    return {known[name]: int(at_s) for name, _, at_s in pairs if name in known and at_s.isdecimal()}


def offers(pool: NodePool | None, function: AgentFunction) -> bool:
    """Whether the agents of this pool do it."""
    if pool is None:
        return False
    match function:
        case AgentFunction.ALLOCATION:
            return pool.allocation != NO_ALLOCATION
        case AgentFunction.LABELS:
            return pool.labels
        case AgentFunction.MIG:
            return bool(pool.mig.layout) or pool.mig.repartition
        case _:
            return True


class TakeoverRequest(Struct, frozen=True):
    """The request: `wanted` are the components to take over; `release` returns every node to NVIDIA's components."""

    spec: StackSpec
    generation: int
    now_s: int
    wanted: frozenset[str]
    release: bool = False


class _Side(Struct, frozen=True):
    """A function on a node. `selecting`: DaemonSets of the other side that select it; `present`: components that are or
    were there; `recorded`: those that Dovetail switched off; `pods`: not all of their pods are gone; `ours`: the label
    that lets the agent begin; `agent_does`, `agent_ready`: as in AgentOnNode, True where no label decides."""

    function: AgentFunction
    selecting: tuple[ForeignDaemon, ...]
    present: tuple[NvidiaComponent, ...]
    recorded: tuple[str, ...]
    pods: bool
    ours: bool
    agent_does: bool
    agent_ready: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.present)


class NodeTakeover:
    """One node in one pass. `begun`: functions that are taken over, or on the way. `settled`: those that are, and since
    when, in Unix seconds, 0 where nothing shows it. `next`: the function that would begin to move. `moving`: the node
    is between the sides. `failed`: a takeover was not ready in time."""

    def __init__(self, node: SharedNode, asked: TakeoverRequest, daemons: Sequence[ForeignDaemon]) -> None:
        self._node, self._asked, self._daemons = node, asked, daemons
        self._kept_back = not asked.release and node.annotations.get(FAILED) == str(asked.generation)
        sides = [side for function in ORDER if (side := self._side(function)) is not None]
        self._sides = [(side, self._state(side)) for side in sides]
        taken = [(side, one.state) for side, one in self._sides if side.recorded]
        self.node = node
        self.begun = {side.function for side, state in taken if state in _BEGUN}
        # What has just settled is not written down yet.
        before, at_s = _settled(node.annotations.get(SETTLED, "")), asked.now_s if SINCE in node.annotations else 0
        done = (side.function for side, state in taken if state is TakeoverState.DOVETAIL)
        self.settled = {function: before.get(function, at_s) for function in done}
        self.moving = any(state in MOVING for _, state in taken)
        queued = (side.function for side, one in self._sides if one.state is TakeoverState.QUEUED)
        self.next = next(queued, None)
        since = node.annotations.get(SINCE, "")
        waits = any(state in (TakeoverState.LEAVING, TakeoverState.STARTING) for _, state in taken)
        seconds = asked.spec.upgrade.ready_seconds
        self._late = waits and since.isdecimal() and asked.now_s - int(since) > seconds
        self.failed = self._kept_back or self._late

    def _side(self, function: AgentFunction) -> _Side | None:
        node, label = self._node, SIDE_LABELS.get(function)
        daemons = [one for one in self._daemons if one.has(function)]
        selecting = tuple(one for one in daemons if one.selects(node.labels, node.name))
        recorded = tuple(one.name for one in components_of(function) if f"{TAKEN_OVER}{one.name}" in node.labels)
        running = {one.name for one in components_of(function) if one.name in node.foreign}
        known = {one.name for daemon in daemons for one in daemon.components}
        there = {one.name for daemon in selecting for one in daemon.components} | running | (known & set(recorded))
        ours = label is not None and node.labels.get(label) == OURS
        if not there and not recorded and not (label is not None and (daemons or ours)):
            return None
        return _Side(
            function,
            selecting,
            tuple(one for one in components_of(function) if one.name in there),
            recorded,
            bool(running),
            ours,
            label is not None and function in node.agent.does,
            label is None or function in node.agent.ready,
        )

    def _state(self, side: _Side) -> FunctionOnNode:
        """Where the function is, before the budget is asked: what may begin is QUEUED."""
        asked = self._asked
        named = all(name in asked.wanted for name in side.names) and not asked.release
        offered = offers(self._node.pool, side.function)
        if not named or not offered or (self._kept_back and side.names):
            return self._back(side, named, offered)
        if side.selecting:
            blocked = self._blocked(side)
            if blocked is not None:
                return blocked
            if side.ours or side.agent_does:
                return self._shown(side, TakeoverState.LEAVING, TakeoverReason.CAME_BACK)
            return self._shown(side, TakeoverState.QUEUED, TakeoverReason.WAITS_FOR_ITS_TURN)
        if side.pods:
            return self._shown(side, TakeoverState.LEAVING, TakeoverReason.POD_NOT_GONE)
        if side.function in SIDE_LABELS and not (side.ours and side.agent_ready):
            return self._shown(side, TakeoverState.STARTING, TakeoverReason.AGENT_NOT_READY)
        return self._shown(side, TakeoverState.DOVETAIL)

    def _back(self, side: _Side, named: bool, offered: bool) -> FunctionOnNode:
        """The state of a function that is not to be Dovetail's here."""
        if side.ours or (side.agent_does and side.present):
            return self._shown(side, TakeoverState.RETURNING, TakeoverReason.AGENT_NOT_GONE)
        if self._kept_back and named and offered:
            return self._shown(side, TakeoverState.FAILED, TakeoverReason.NOT_READY_IN_TIME)
        if named and side.present and not offered:
            return self._shown(side, TakeoverState.BLOCKED, TakeoverReason.NOT_OFFERED)
        if side.function is AgentFunction.ALLOCATION and any(name in self._asked.wanted for name in side.names):
            return self._shown(side, TakeoverState.BLOCKED, TakeoverReason.OTHER_ALLOCATOR)
        return self._shown(side, TakeoverState.FOREIGN)

    def _blocked(self, side: _Side) -> FunctionOnNode | None:
        labels, name = self._node.labels, self._node.name
        if any(daemon.paused(labels) for daemon in side.selecting):
            return self._shown(side, TakeoverState.BLOCKED, TakeoverReason.PAUSED)
        fixed = [daemon for daemon in side.selecting if daemon.switch_off(labels, name) is None]
        if fixed:
            one = self._shown(side, TakeoverState.BLOCKED, TakeoverReason.NOT_SWITCHABLE)
            titles = ", ".join(each.title for each in fixed[0].components if each.function is side.function)
            message = f"{fixed[0]} runs {titles} here, and no node label keeps it away"
            return replace(one, message=message, action=exclusion(fixed[0]))
        return None

    def _shown(self, side: _Side, state: TakeoverState, reason: TakeoverReason | None = None) -> FunctionOnNode:
        message = action = ""
        if reason is not None:
            message, action = MESSAGES[reason]
            stays = ", ".join(name for name in side.names if name not in self._asked.wanted)
            message = message.format(titles=", ".join(one.title for one in side.present), stays=stays)
            action = action.format(stays=stays)
        return FunctionOnNode(
            self._node.name, side.function, state, side.names, reason.value if reason else "", message, action
        )

    def decide(self, starts: bool) -> tuple[list[FunctionOnNode], NodePatch]:
        """The functions as they are shown, and what to write. `starts`: the budget has room for this node."""
        labels: dict[str, str | None] = {}
        annotations: dict[str, str | None] = {}
        shown: list[FunctionOnNode] = []
        for side, one in self._sides:
            later = one.state is TakeoverState.QUEUED and (side.function is not self.next or self.moving)
            shown.append(self._shown(side, TakeoverState.QUEUED, TakeoverReason.ONE_AFTER_THE_OTHER) if later else one)
            if one.state is not TakeoverState.QUEUED:
                labels.update(self._labels(one, side))
            elif starts and not later:
                labels.update(self._off(side))
                annotations[SINCE] = str(self._asked.now_s)
        labels = {key: value for key, value in labels.items() if self._node.labels.get(key) != value}
        self._annotate(annotations)
        return shown, NodePatch(self._node.name, labels, annotations)

    def _annotate(self, annotations: dict[str, str | None]) -> None:
        have = self._node.annotations
        since = ",".join(f"{function}={at_s}" for function, at_s in sorted(self.settled.items()) if at_s)
        if since != have.get(SETTLED, ""):
            annotations[SETTLED] = since or None
        if SINCE in have and SINCE not in annotations and not self.moving:
            annotations[SINCE] = None
        if self._late and not self._kept_back and self._asked.spec.upgrade.rollback:
            annotations[FAILED] = str(self._asked.generation)
        elif FAILED in have and not self._kept_back:
            annotations[FAILED] = None

    def _off(self, side: _Side) -> dict[str, str | None]:
        """The labels that switch the other side off, and keep ours off until its pods are gone."""
        found: dict[str, str | None] = {}
        for daemon in side.selecting:
            found.update(daemon.switch_off(self._node.labels, self._node.name) or {})
        return {**found, **self._ours(side, False)}

    def _labels(self, one: FunctionOnNode, side: _Side) -> dict[str, str | None]:
        match one.state:
            case TakeoverState.LEAVING:
                return self._off(side)
            case TakeoverState.STARTING:
                return {**self._ours(side, True), **self._cleared(side)}
            case TakeoverState.DOVETAIL:
                return self._cleared(side)
            case TakeoverState.RETURNING:
                return self._ours(side, False)
            case TakeoverState.BLOCKED if one.reason in _FORWARD:
                return self._ours(side, False)
            case _:
                return self._on(side)

    def _ours(self, side: _Side, begin: bool) -> dict[str, str | None]:
        label = SIDE_LABELS.get(side.function)
        return {} if label is None else {label: OURS if begin else None}

    def _on(self, side: _Side) -> dict[str, str | None]:
        """The labels that give a function back that Dovetail has taken over; nothing if it has not."""
        return self._undone(side.recorded)

    def _cleared(self, side: _Side) -> dict[str, str | None]:
        """The labels of components that the cluster does not have any more."""
        return self._undone(name for name in side.recorded if name not in side.names)

    def _undone(self, names: Iterable[str]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name in names:
            component = BY_NAME[name]
            found[f"{TAKEN_OVER}{name}"] = None
            found.update(dict.fromkeys(component.off))
            if component.switch and self._node.labels.get(component.switch) == "false":
                known = any(key == component.switch for one in self._daemons for key, _ in one.node_selector)
                found[component.switch] = "true" if known else None
        return found
