# SPDX-License-Identifier: Apache-2.0
"""What failed since room was last freed, so that what is alike is not tried again.

Rules: jobs are alike that want the same shapes, the same number of times. Whether there is room for them depends on
that alone; whether others may give way to them, and whether they may hold room, on their queue and priority too. So
most jobs that wait on a full cluster are refused by a look-up.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from dovetail.core.cluster.shapes import Shape
from dovetail.core.complexity import parts
from dovetail.core.decisions import Decision, Hold
from dovetail.core.model import Work
from dovetail.core.placing.gangs import Group, fewest, shapes_of
from dovetail.core.reasons import Refusal
from dovetail.core.workloads.index import Precedence

if TYPE_CHECKING:
    from dovetail.core.state import State


_MOST_PARTS = 64 * 1024
_AGAIN_MS = 60_000
"""How long a search that failed counts at most: what is due moves, and jobs save their work."""


class Signature(NamedTuple):
    """Workloads of one kind are refused alike. `fixed`: they must not be preempted. `preempts`: others may give way to
    them. `work` is what pods that may be moved for them are weighed against; None where nobody is moved."""

    alike: Hashable
    queue: str
    precedence: Precedence
    fixed: bool
    preempts: bool
    work: Work | None


class _Known(Struct, eq=False):
    """A kind, what its workloads want at least, and what was found out about it at `version`: why it is `refused`,
    whether nothing can be done about it where there is no room (`final`), and whether it would be searched who gives
    way (`asks`)."""

    kind: Signature
    shapes: list[Shape]
    wanted: dict[str, int]
    version: int = -1
    refused: Refusal | None = None
    final: bool | None = None
    asks: bool | None = None


class EquivalenceCache:
    """By what is wanted: `no_room` is why it does not fit, `reserved` why not if it does not end before others start
    for whom room is held, `beside` why not beside what is held. `sought` is for whom it was searched in vain who could
    give way, with what was found."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.no_room: dict[object, Refusal] = {}
        self.reserved: dict[object, Refusal] = {}
        self.beside: dict[object, Refusal] = {}
        self.sought: dict[object, str] = {}
        self.again_ms = 0
        """When such a search may find somebody that it did not find before, although nothing happens."""
        self._known: dict[Signature, _Known] = {}
        self._parts = 0
        """How much all of them say."""
        self._refused: set[object] = set()
        """What those want who were refused, as far as that counts still."""
        self._workloads: dict[str, _Known] = {}
        self._version = 0
        """Grows when what was found out about kinds counts no more."""

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
        self._version += 1

    def room_given_up(self) -> None:
        """Room is held no more: others may start there, and others may give way there."""
        self.recheck()
        self.sought.clear()

    def concern(self, alike: object) -> bool:
        """Whether anything is known by which a workload that wants this could be refused."""
        return alike in self.no_room or alike in self._refused

    def search_failed(self, key: object, why: str, ripe_ms: int) -> None:
        """No jobs were found that could give way; more of them can from `ripe_ms` on (0: not known)."""
        now_ms = self._state.now_ms
        soonest_ms, again_ms = now_ms + self._state.policy.tell_again_ms, now_ms + _AGAIN_MS
        again_ms = min(again_ms, max(soonest_ms, ripe_ms)) if ripe_ms else again_ms
        self.again_ms = min(self.again_ms, again_ms) if any(self.sought.values()) else again_ms
        self.sought[key] = why

    def know(self, workload: str, kind: Signature, group: Group) -> None:
        """The workload is of this kind as long as nothing about it changes."""
        known = self._known.get(kind)
        if known is None:
            shapes = [shape for shape, _ in shapes_of(self._state.cluster, group)]
            self._parts += 1 + sum([parts(shape.request) for shape in shapes])
            if self._parts > _MOST_PARTS:
                # Workloads that are of these kinds keep them; what they want is tried once more.
                self._known.clear()
                self._parts = 0
                self.no_room.clear()
                self.reserved.clear()
                self.beside.clear()
            known = self._known[kind] = _Known(kind, shapes, self._state.shares.wanted(fewest(group)))
        self._workloads[workload] = known

    def kind(self, workload: str) -> Signature | None:
        """The kind of the workload, where it is known."""
        known = self._workloads.get(workload)
        return known.kind if known is not None else None

    def forget(self, workload: str) -> None:
        """Something about the workload has changed."""
        self._workloads.pop(workload, None)

    def refuse(self, workload: str, refusal: Refusal) -> None:
        """All workloads of the kind of this one are refused so."""
        known = self._now(self._workloads[workload])
        known.refused = refusal
        self._refused.add(known.kind.alike)

    def refusal(self, workload: str) -> Refusal | None:
        """Why workloads of the kind of this one are refused; None where one has to be tried."""
        return self._refusal(self._now(self._workloads[workload]))

    def _now(self, known: _Known) -> _Known:
        """Without what counts no more."""
        if known.version != self._version:
            known.version, known.refused, known.final, known.asks = self._version, None, None, None
        return known

    def _refusal(self, known: _Known) -> Refusal | None:
        if known.refused is None:
            refusal = self.no_room.get(known.kind.alike)
            if refusal is not None and self._final(known):
                known.refused = refusal
        return known.refused

    def _reserved(self, workload: str, known: _Known) -> Refusal | None:
        """That room is held for others, who would be delayed."""
        refusal, state = self.reserved.get(known.kind.alike), self._state
        if refusal is None or known.final is False:
            return None
        if state.reservations.ends_before(state.workloads.members(workload), state.reservations.soonest_ms(workload)):
            return None
        if known.final is None:
            known.final = self._final(known)
        return refusal if known.final else None

    def _final(self, known: _Known) -> bool:
        """Whether nothing can be done about it where there is no room."""
        state, kind = self._state, known.kind
        if known.asks and kind not in self.sought:
            return False
        if kind.fixed and state.shares.quota.limited(kind.queue):
            return False
        promised = state.reservations.promised_beside("")
        if state.shares.quota.beyond_limit(kind.queue, known.wanted, promised) is not None:
            return False
        if self._asks(known):
            return False
        reservations = state.reservations
        return not reservations.may_hold(kind.precedence) or reservations.bar(
            known.shapes, kind.queue, kind.precedence, known.wanted
        )

    def may_ask(self, queue: str, precedence: Precedence, wanted: dict[str, int]) -> bool:
        """Whether there can be anybody who may give way: of a lower precedence in the queue, or in others that hold
        more than is due to them where this one is due more than it has; or who may be moved."""
        shares = self._state.shares
        if self._state.policy.moves_per_hour:
            return True
        return shares.holds_below(queue, precedence) or any(shares.quota.debtors(queue, wanted))

    def hopeless(self, workload: str, decisions: list[Decision]) -> bool:
        """Whether the workload is refused as others of its kind are, or has to wait for a search for which this step
        has no time; a Hold is added to the decisions where that is news."""
        state, known = self._state, self._workloads.get(workload)
        if known is None or workload in state.reservations.by_workload:
            return False
        refusal = self._refusal(self._now(known)) or self._reserved(workload, known)
        if refusal is None:
            if state.searches < state.policy.searches_per_step or not self._asks(known):
                return False
            alike = known.kind.alike
            refusal = self.no_room.get(alike) or self.reserved.get(alike)
            if refusal is None:
                return False
            state.postpone(workload)
        # All pods of the workload that wait were told when its kind was last noted.
        if not state.queue.old_news(workload, refusal, state.now_ms, state.policy.tell_again_ms):
            pods, placements = state.workloads.members(workload), state.cluster.placements
            uids = tuple([pod.uid for pod in pods if not pod.node and pod.uid not in placements])
            news = state.queue.tell(workload, refusal, uids, state.now_ms, state.policy.tell_again_ms)
            if news:
                decisions.append(Hold(workload, news, refusal, state.steps))
        return True

    def _asks(self, known: _Known) -> bool:
        """Whether it would be searched who can give way."""
        if not self._state.policy.preempt or known.kind in self.sought:
            return False
        if known.asks is None:
            kind = known.kind
            known.asks = kind.preempts and self.may_ask(kind.queue, kind.precedence, known.wanted)
        return known.asks
