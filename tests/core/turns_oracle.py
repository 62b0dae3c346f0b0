# SPDX-License-Identifier: Apache-2.0
"""Turns of instances worked out by going through all of them for each one: slow, and by the rules of `core.turns`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dovetail.core.turns import EngineState, TurnDecision, TurnTaker, Waits

_HOLDS_NOTHING = (EngineState.ASLEEP, EngineState.NOT_STARTED)


class SlowTurns:
    """Looks at all instances for each one."""

    def __init__(self, instances: Sequence[TurnTaker], now_ms: int, least_awake_ms: int) -> None:
        self._now_ms, self._least_awake_ms = now_ms, least_awake_ms
        self._all = sorted(instances, key=lambda one: one.name)
        self._rooms: dict[str, int] = {}
        self._used: Counter[str] = Counter()
        self._slept: Counter[str] = Counter()
        """The part of that of those that are not known to be awake either."""
        self._promised: Counter[str] = Counter()
        """Of each GPU, what those that wait have before later ones."""
        self._sleep: dict[str, TurnTaker] = {}
        for one in self._all:
            for gpu in one.gpus:
                self._rooms[gpu] = max(self._rooms.get(gpu, 0), one.extra_mib)
                if one.state not in _HOLDS_NOTHING:
                    self._used[gpu] += one.extra_mib
                    self._slept[gpu] += one.extra_mib if one.slept else 0

    def result(self) -> TurnDecision:
        wake, waits = list[str](), list[Waits]()
        for one in self._longest_awake():
            freed = self._freed()
            if any(self._used[gpu] - self._slept[gpu] - freed[gpu] > self._rooms[gpu] for gpu in one.gpus):
                self._sleep[one.name] = one
        asked = [one for one in self._all if one.wanted_ms and one.state in _HOLDS_NOTHING]
        line: list[TurnTaker] = []
        for one in sorted(asked, key=lambda one: (one.wanted_ms, one.name)):
            if not self._short(one, Counter()):
                wake.append(one.name)
                self._used.update(_held(one))
                continue
            waits.append(self._make_room(one, line))
            if not any(other.state is EngineState.LOST and set(other.gpus) & set(one.gpus) for other in self._all):
                line.append(one)
                self._promised.update(_held(one))
        return TurnDecision(tuple(self._sleep), tuple(wake), tuple(waits))

    def _freed(self) -> Counter[str]:
        """What will be free on each GPU once all that are to sleep do."""
        found: Counter[str] = Counter()
        for one in self._sleep.values():
            found.update(_held(one))
        return found

    def _short(self, one: TurnTaker, freed: Counter[str]) -> list[str]:
        """The GPUs on which there is no room for it beside what is used and promised, less what is freed."""
        beside = {gpu: self._used[gpu] + self._promised[gpu] - freed[gpu] for gpu in one.gpus}
        return [gpu for gpu, mib in beside.items() if mib + one.extra_mib > self._rooms[gpu]]

    def _make_room(self, one: TurnTaker, line: Iterable[TurnTaker]) -> Waits:
        """Put those to sleep that have to make room for it, if their turns are over; why it waits."""
        freed, chosen = self._freed(), list[TurnTaker]()
        over = [other for other in self._longest_awake() if self._turn_is_over(other)]
        for other in over:
            if set(self._short(one, freed)) & set(other.gpus):
                chosen.append(other)
                freed.update(_held(other))
        if short := self._short(one, freed):
            return self._why(one, short, line)
        for other in list(chosen):
            # One that came first may no longer be needed.
            less = freed - _held(other)
            if not self._short(one, less):
                chosen.remove(other)
                freed = less
        self._sleep.update({other.name: other for other in chosen})
        names = tuple(other.name for other in self._sleep.values() if set(other.gpus) & set(one.gpus))
        return Waits(one.name, "until these sleep", names)

    def _why(self, one: TurnTaker, short: list[str], line: Iterable[TurnTaker]) -> Waits:
        there = [other for other in self._all if other.name != one.name and set(other.gpus) & set(short)]
        if lost := tuple(other.name for other in there if other.state is EngineState.LOST):
            return Waits(one.name, "for memory of engines that do not answer, or refuse", lost)
        before = tuple(other.name for other in line if set(other.gpus) & set(short))
        if before:
            return Waits(one.name, "behind those that asked before", before)
        if switching := tuple(other.name for other in there if other.state is EngineState.SWITCHING):
            return Waits(one.name, "until these have started or switched", switching)
        awake = [other for other in there if other.state is EngineState.AWAKE and not self._turn_is_over(other)]
        left_ms = max([other.awake_ms + self._least_awake_ms - self._now_ms for other in awake], default=0)
        return Waits(one.name, f"for {-(-left_ms // 1000)} s: so long is their turn", tuple(o.name for o in awake))

    def _longest_awake(self) -> list[TurnTaker]:
        """Those that are awake and not chosen to sleep yet, the one awake for longest first."""
        awake = [one for one in self._all if one.state is EngineState.AWAKE and one.name not in self._sleep]
        return sorted(awake, key=lambda one: (one.awake_ms, one.name))

    def _turn_is_over(self, one: TurnTaker) -> bool:
        return not 0 <= self._now_ms - one.awake_ms < self._least_awake_ms


def _held(one: TurnTaker) -> Counter[str]:
    return Counter(dict.fromkeys(one.gpus, one.extra_mib))
