# SPDX-License-Identifier: Apache-2.0
"""What failed since room was last freed, so that what is alike is not tried again.

Rules: jobs are alike that want the same shapes, the same number of times. Whether there is room for them depends on
that alone; whether others may give way to them, and whether they may hold room, on their queue and priority too. So
most jobs that wait on a full cluster are refused by a look-up.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from dovetail.core.cluster.shapes import Shape
from dovetail.core.decisions import Decision, Hold
from dovetail.core.placing.gangs import Group, shapes_of
from dovetail.core.reasons import Refusal

if TYPE_CHECKING:
    from dovetail.core.state import State


class Kind(NamedTuple):
    """Roots of one kind are refused alike. `fixed`: they must not be preempted."""

    alike: Hashable
    queue: str
    priority: int
    fixed: bool


class Failures:
    """By what is wanted: `no_room` is why it does not fit, `reserved` why not if it does not end before others start
    for whom room is held, `beside` why not beside what is held. `sought` is for whom it was searched in vain who could
    give way, with what was found."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.no_room: dict[object, Refusal] = {}
        self.reserved: dict[object, Refusal] = {}
        self.beside: dict[object, Refusal] = {}
        self.sought: dict[object, str] = {}
        self.sought_ms = 0
        """When `sought` was last empty."""
        self._refused: dict[Kind, Refusal] = {}
        self._finals: dict[Kind, bool] = {}
        self._asking: dict[Kind, bool] = {}
        self._kinds: dict[str, Kind] = {}
        self._wants: dict[object, tuple[list[Shape], dict[str, int]]] = {}

    def clear(self) -> None:
        """Room was freed."""
        self.recheck()
        self._state.reservations.forget_denied()
        self.no_room.clear()
        self.sought.clear()

    def recheck(self) -> None:
        """What is held for whom has changed."""
        self.reserved.clear()
        self.beside.clear()
        self._refused.clear()
        self._finals.clear()
        self._asking.clear()

    def search_failed(self, key: object, why: str) -> None:
        """Nobody was found who could give way."""
        if not self.sought:
            self.sought_ms = self._state.now_ms
        self.sought[key] = why

    def know(self, root: str, kind: Kind, group: Group) -> None:
        """The root is of this kind as long as nothing about it changes."""
        self._kinds[root] = kind
        if kind.alike not in self._wants:
            if len(self._wants) >= 65_536:
                self._wants.clear()
            shapes = [shape for shape, _ in shapes_of(self._state.cluster, group)]
            self._wants[kind.alike] = shapes, self._state.shares.wanted(group.all_pods())

    def forget(self, root: str) -> None:
        """Something about the root has changed."""
        self._kinds.pop(root, None)

    def refuse(self, kind: Kind, refusal: Refusal) -> None:
        self._refused[kind] = refusal

    def refusal(self, kind: Kind) -> Refusal | None:
        """Why roots of the kind are refused; None where one has to be tried."""
        refusal = self._refused.get(kind)
        if refusal is None:
            refusal = self.no_room.get(kind.alike)
            if refusal is not None and not self._final(kind):
                return None
            if refusal is not None:
                self._refused[kind] = refusal
        return refusal

    def _reserved(self, root: str, kind: Kind) -> Refusal | None:
        """That room is held for others, who would be delayed."""
        refusal, state = self.reserved.get(kind.alike), self._state
        if refusal is None or state.reservations.ends_before(
            state.roster.members(root), state.reservations.others(root)
        ):
            return None
        final = self._finals.get(kind)
        if final is None:
            final = self._finals[kind] = self._final(kind)
        return refusal if final else None

    def _final(self, kind: Kind) -> bool:
        """Whether nothing can be done about it where there is no room."""
        state, wants = self._state, self._wants.get(kind.alike)
        if wants is None or (state.shares.limited(kind.queue) and kind.fixed):
            return False
        shapes, wanted = wants
        if state.shares.beyond_limit(kind.queue, wanted) is not None:
            return False
        if self._asks(kind):
            return False
        return not state.policy.reserve or state.reservations.bar(shapes, kind.queue, kind.priority, wanted)

    def may_ask(self, queue: str, priority: int, wanted: dict[str, int]) -> bool:
        """Whether there can be anybody who may give way: of a lower priority in the queue, or in others that hold more
        than is due to them where this one is due more than it has."""
        shares = self._state.shares
        return shares.holds_below(queue, priority) or bool(shares.debtors(queue, wanted))

    def hopeless(self, root: str, decisions: list[Decision]) -> bool:
        """Whether the root is refused as others of its kind are, or has to wait for a search for which this step has no
        time; a Hold is added to the decisions where that is news."""
        state, kind = self._state, self._kinds.get(root)
        if kind is None or root in state.reservations.by_root:
            return False
        refusal = self.refusal(kind) or self._reserved(root, kind)
        if refusal is None:
            if state.searches < state.policy.searches_per_step or not self._asks(kind):
                return False
            refusal = self.no_room.get(kind.alike) or self.reserved.get(kind.alike)
            if refusal is None:
                return False
            state.postpone(root)
        if not state.pending.knows(root, refusal):
            placements = state.cluster.placements
            uids = tuple(pod.uid for pod in state.roster.members(root) if pod.uid not in placements and not pod.node)
            news = state.pending.tell(root, refusal, uids, state.now_ms, state.policy.tell_again_ms)
            if news:
                decisions.append(Hold(root, news, refusal, state.steps))
        return True

    def _asks(self, kind: Kind) -> bool:
        """Whether it would be searched who can give way."""
        state, wants = self._state, self._wants.get(kind.alike)
        if not state.policy.preempt or kind in self.sought or wants is None:
            return False
        asks = self._asking.get(kind)
        if asks is None:
            asks = self._asking[kind] = self.may_ask(kind.queue, kind.priority, wants[1])
        return asks
