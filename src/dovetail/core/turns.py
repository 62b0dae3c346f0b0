# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is to be awake, among inference engines that can sleep and share GPUs by memory.

Rules
- On each GPU the instances of a group that are awake have together at most the room of the group, the largest extra of
  any of them (`cluster.awake_rooms`). An instance of several GPUs has its extra on each of them.
- An instance holds its extra unless it is known to sleep, or not to have started: also one that starts or switches,
  and one that is lost.
- Instances that want to be awake are served in the order in which they asked. One that waits has the room that becomes
  free before all that asked later and need that room. So the n-th in the line of a GPU waits no longer than n times
  the shortest turn and a switch, as long as the engines obey. Whoever waits for a lost one keeps its
  place in the line, and no room from others.
- An instance that is awake stays so until another wants its room, and for `least_awake_ms` in any case: so an instance
  wakes at most once in that time, whatever is asked for. A time of waking that is still to come counts as long ago.
- The instances that have been awake for longest are put to sleep, and no more of them than have to be.
- More than the room is awake only where an engine started or woke by itself. Then instances sleep at once. One that
  slept when it answered last, and does not answer now, puts none to sleep.
- Nothing wakes before those that make room for it are known to sleep.
There is no clock here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from fractions import Fraction

from msgspec import Struct


class EngineState(StrEnum):
    """What is known of an engine. `not-started`: it holds nothing yet. `switching`: it starts, wakes or falls asleep.
    `lost`: it has not answered for long, or refuses a call."""

    NOT_STARTED = "not-started"
    AWAKE = "awake"
    ASLEEP = "asleep"
    SWITCHING = "switching"
    LOST = "lost"


_HOLDS_NOTHING = (EngineState.ASLEEP, EngineState.NOT_STARTED)


def turn_part(asleep: int, extra: int, extras: Sequence[int]) -> Fraction:
    """What an instance that can sleep has of a GPU, in the unit of these amounts: its asleep memory, and of the room of
    its group, the largest of the `extras`, as much as its own `extra` is of them all. So the instances of a group have
    together no more than is allocated."""
    return asleep + Fraction(max(extras) * extra, sum(extras))


class TurnTaker(Struct, frozen=True):
    """An instance on these GPUs. `extra_mib` is what it has more of each while it is awake. `awake_ms` is since when it
    is awake (0: not known, long ago), `wanted_ms` since when it wants to be (0: it does not). `slept`: it does not
    answer, and slept when it did last."""

    name: str
    gpus: tuple[str, ...]
    extra_mib: int
    state: EngineState
    awake_ms: int = 0
    wanted_ms: int = 0
    slept: bool = False


class Waits(Struct, frozen=True):
    """An instance that wants to be awake and is not yet; `behind` are those that hold the room or have it before."""

    name: str
    because: str
    behind: tuple[str, ...] = ()


class TurnDecision(Struct, frozen=True):
    """The instances that are to sleep and to wake now, and those that wait."""

    sleep: tuple[str, ...] = ()
    wake: tuple[str, ...] = ()
    waits: tuple[Waits, ...] = ()


def turns(instances: Sequence[TurnTaker], now_ms: int, least_awake_ms: int) -> TurnDecision:
    """The next switches of the instances of one group. Deterministic, and the same for any order of `instances`."""
    return _Pass(instances, now_ms, least_awake_ms).result()


class _Pass:
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
