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

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from heapq import merge

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
_NOTHING: Mapping[str, int] = {}


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
    """Instances and what is known of them are looked up by GPU, so that each instance costs what is on its own GPUs."""

    def __init__(self, instances: Sequence[TurnTaker], now_ms: int, least_awake_ms: int) -> None:
        self._now_ms, self._least_awake_ms = now_ms, least_awake_ms
        self._all = sorted(instances, key=lambda one: one.name)
        self._rooms: dict[str, int] = {}
        self._used: Counter[str] = Counter()
        self._slept: Counter[str] = Counter()
        """The part of that of those that are not known to be awake either."""
        self._promised: Counter[str] = Counter()
        """Of each GPU, what those that wait have before later ones."""
        self._freed: Counter[str] = Counter()
        """What will be free on each GPU once all that are to sleep do."""
        self._sleep: dict[str, TurnTaker] = {}
        self._to_sleep, self._line = _OnGpus(), _OnGpus()
        """The instances to put to sleep, and the waiting ones whose room is promised, each in the order of decision."""
        self._lost, self._switching, self._in_turn = _OnGpus(), _OnGpus(), _OnGpus()
        """Instances by state: lost; switching; awake, within their turn."""
        self._over: defaultdict[str, deque[TurnTaker]] = defaultdict(deque)
        """The awake instances of each GPU whose turn is over, those first that have been awake longest."""
        self._could_free: Counter[str] = Counter()
        """By GPU, the memory of the instances in `_over` that are not to sleep."""
        for one in self._all:
            for gpu in one.gpus:
                self._rooms[gpu] = max(self._rooms.get(gpu, 0), one.extra_mib)
                if one.state not in _HOLDS_NOTHING:
                    self._used[gpu] += one.extra_mib
                    self._slept[gpu] += one.extra_mib if one.slept else 0
            if one.state is EngineState.LOST:
                self._lost.add(one)
            elif one.state is EngineState.SWITCHING:
                self._switching.add(one)
            elif one.state is EngineState.AWAKE and not self._turn_is_over(one):
                self._in_turn.add(one)

    def result(self) -> TurnDecision:
        wake, waits = list[str](), list[Waits]()
        awake = sorted([one for one in self._all if one.state is EngineState.AWAKE], key=_longest_awake)
        for one in awake:
            if self._turn_is_over(one):
                for gpu in one.gpus:
                    self._over[gpu].append(one)
                self._could_free.update(_held(one))
        for one in awake:
            if any(self._used[gpu] - self._slept[gpu] - self._freed[gpu] > self._rooms[gpu] for gpu in one.gpus):
                self._put_to_sleep(one)
        asked = [one for one in self._all if one.wanted_ms and one.state in _HOLDS_NOTHING]
        for one in sorted(asked, key=lambda one: (one.wanted_ms, one.name)):
            if not self._short(one, _NOTHING):
                wake.append(one.name)
                self._used.update(_held(one))
                continue
            waits.append(self._make_room(one))
            if not self._lost.on(one.gpus):
                self._line.add(one)
                self._promised.update(_held(one))
        return TurnDecision(tuple(self._sleep), tuple(wake), tuple(waits))

    def _put_to_sleep(self, one: TurnTaker) -> None:
        self._sleep[one.name] = one
        self._to_sleep.add(one)
        held = _held(one)
        self._freed.update(held)
        if self._turn_is_over(one):
            self._could_free.subtract(held)

    def _short(self, one: TurnTaker, freed: Mapping[str, int]) -> list[str]:
        """The GPUs on which there is no room for it beside what is used and promised, less what is freed."""
        beside = {gpu: self._used[gpu] + self._promised[gpu] - freed.get(gpu, 0) for gpu in one.gpus}
        return [gpu for gpu, mib in beside.items() if mib + one.extra_mib > self._rooms[gpu]]

    def _make_room(self, one: TurnTaker) -> Waits:
        """Put those to sleep that have to make room for it, if their turns are over; why it waits."""
        if short := self._short(one, {gpu: self._freed[gpu] + self._could_free[gpu] for gpu in one.gpus}):
            return self._why(one, short)
        freed, chosen = {gpu: self._freed[gpu] for gpu in one.gpus}, list[TurnTaker]()
        left = self._short(one, freed)
        for other in self._candidates(left):
            if not left:
                break
            if not set(left).isdisjoint(other.gpus):
                chosen.append(other)
                _add(freed, other, 1)
                left = self._short(one, freed)
        for other in list(chosen):
            # One that came first may no longer be needed.
            _add(freed, other, -1)
            if not self._short(one, freed):
                chosen.remove(other)
            else:
                _add(freed, other, 1)
        for other in chosen:
            self._put_to_sleep(other)
        return Waits(one.name, "until these sleep", self._to_sleep.on(one.gpus))

    def _candidates(self, gpus: Sequence[str]) -> Iterator[TurnTaker]:
        """Those on these GPUs that may be put to sleep, the one awake for longest first."""
        each = [self._over[gpu] for gpu in gpus]
        for over in each:
            while over and over[0].name in self._sleep:
                over.popleft()
        before = ""
        for one in each[0] if len(each) == 1 else merge(*each, key=_longest_awake):
            if one.name != before and one.name not in self._sleep:
                yield one
            before = one.name

    def _why(self, one: TurnTaker, short: list[str]) -> Waits:
        if lost := self._lost.on(short):
            return Waits(one.name, "for memory of engines that do not answer, or refuse", lost)
        if before := self._line.on(short):
            return Waits(one.name, "behind those that asked before", before)
        if switching := self._switching.on(short):
            return Waits(one.name, "until these have started or switched", switching)
        left_ms = max([self._in_turn.latest_ms[gpu] for gpu in short if gpu in self._in_turn.latest_ms], default=None)
        left_s = 0 if left_ms is None else -(-(left_ms + self._least_awake_ms - self._now_ms) // 1000)
        return Waits(one.name, f"for {left_s} s: so long is their turn", self._in_turn.on(short))

    def _turn_is_over(self, one: TurnTaker) -> bool:
        return not 0 <= self._now_ms - one.awake_ms < self._least_awake_ms


class _OnGpus:
    """Names of instances by their GPUs, in the order in which they were added. `latest_ms` is since when the last of
    those on each GPU is awake."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._numbers: dict[str, list[int]] = {}
        self._known: dict[str, tuple[str, ...]] = {}
        self._count = 0
        self.latest_ms: dict[str, int] = {}

    def add(self, one: TurnTaker) -> None:
        for gpu in dict.fromkeys(one.gpus):
            self._names.setdefault(gpu, []).append(one.name)
            self._numbers.setdefault(gpu, []).append(self._count)
            self._known.pop(gpu, None)
            self.latest_ms[gpu] = max(self.latest_ms.get(gpu, one.awake_ms), one.awake_ms)
        self._count += 1

    def on(self, gpus: Sequence[str]) -> tuple[str, ...]:
        """Those on any of the GPUs."""
        there = [gpu for gpu in dict.fromkeys(gpus) if gpu in self._names]
        if len(there) > 1:
            named = dict[int, str]()
            for gpu in there:
                named.update(zip(self._numbers[gpu], self._names[gpu], strict=True))
            return tuple([named[number] for number in sorted(named)])
        if not there:
            return ()
        if there[0] not in self._known:
            self._known[there[0]] = tuple(self._names[there[0]])
        return self._known[there[0]]


def _longest_awake(one: TurnTaker) -> tuple[int, str]:
    return one.awake_ms, one.name


def _held(one: TurnTaker) -> Counter[str]:
    return Counter(dict.fromkeys(one.gpus, one.extra_mib))


def _add(freed: dict[str, int], one: TurnTaker, times: int) -> None:
    """Count what an instance holds of the GPUs in `freed`."""
    for gpu in dict.fromkeys(one.gpus):
        if gpu in freed:
            freed[gpu] += times * one.extra_mib
