# SPDX-License-Identifier: Apache-2.0
"""Turns of instances that can sleep: over long virtual time no GPU ever holds more than its room, every instance that
asks has a turn within the bound, and none wakes more often than the shortest turn allows."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.turns import EngineState, TurnDecision, TurnTaker, Waits, turn_part, turns
from tests.breadth import BREADTH, seeds
from tests.core.turns_oracle import SlowTurns

LEAST_MS = 60_000
AWAKE, ASLEEP, SWITCHING = EngineState.AWAKE, EngineState.ASLEEP, EngineState.SWITCHING
LOST, NOT_STARTED = EngineState.LOST, EngineState.NOT_STARTED


def one(name: str, state: EngineState, extra: int = 8, gpus: str = "0", **more: Any) -> TurnTaker:
    return TurnTaker(name, tuple(gpus), extra, state, **more)


def at(now_s: int, *instances: TurnTaker) -> TurnDecision:
    found = turns(instances, now_s * 1000, LEAST_MS)
    assert turns(instances[::-1], now_s * 1000, LEAST_MS) == found
    return found


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=1, max_size=8))
def test_the_parts_of_a_group_are_together_what_it_has_of_the_gpu(instances: list[tuple[int, int]]) -> None:
    """Each is an asleep memory and an extra."""
    extras = [extra for _, extra in instances]
    parts = [turn_part(asleep, extra, extras) for asleep, extra in instances]
    assert sum(parts) == sum(asleep for asleep, _ in instances) + max(extras)
    assert all(asleep < part <= asleep + extra for part, (asleep, extra) in zip(parts, instances, strict=True))


def test_whoever_wants_to_be_awake_wakes_where_there_is_room() -> None:
    assert at(5, one("a", ASLEEP, wanted_ms=1), one("b", ASLEEP)) == TurnDecision(wake=("a",))
    assert at(5, one("a", AWAKE, 4), one("b", ASLEEP, 4, wanted_ms=1), one("c", ASLEEP, 8)) == TurnDecision(wake=("b",))


def test_an_instance_starts_only_in_its_turn() -> None:
    assert at(5, one("a", AWAKE, awake_ms=1), one("b", NOT_STARTED, wanted_ms=1)).wake == ()
    assert at(5, one("a", ASLEEP), one("b", NOT_STARTED, wanted_ms=1)).wake == ("b",)


def test_the_one_that_has_had_its_turn_sleeps_before_the_next_wakes() -> None:
    awake = one("a", AWAKE, awake_ms=1000)
    waits = one("b", ASLEEP, wanted_ms=2000)
    assert at(31, awake, waits) == TurnDecision(waits=(Waits("b", "for 30 s: so long is their turn", ("a",)),))
    assert at(61, awake, waits) == TurnDecision(("a",), (), (Waits("b", "until these sleep", ("a",)),))
    assert at(62, replace(awake, state=SWITCHING), waits).wake == ()
    assert at(63, replace(awake, state=ASLEEP), waits) == TurnDecision(wake=("b",))


def test_nobody_is_put_to_sleep_for_nobody() -> None:
    assert at(10_000, one("a", AWAKE, awake_ms=1), one("b", ASLEEP)) == TurnDecision()


def test_no_more_sleep_than_have_to() -> None:
    small = one("a", AWAKE, 2, awake_ms=1), one("b", AWAKE, 6, awake_ms=2)
    assert at(100, *small, one("c", ASLEEP, 6, wanted_ms=3), one("d", ASLEEP, 8)).sleep == ("b",)
    assert at(100, *small, one("c", ASLEEP, 8, wanted_ms=3)).sleep == ("a", "b")


def test_a_later_one_does_not_overtake() -> None:
    found = at(10, one("a", AWAKE, 4, awake_ms=1), one("b", ASLEEP, 8, wanted_ms=2), one("c", ASLEEP, 4, wanted_ms=3))
    assert found.wake == () and found.waits[1] == Waits("c", "behind those that asked before", ("b",))


def test_an_instance_of_several_gpus_needs_room_on_each() -> None:
    beside = one("a", AWAKE, gpus="0", awake_ms=1), one("b", AWAKE, gpus="1", awake_ms=1)
    assert at(100, *beside, one("tp", ASLEEP, gpus="01", wanted_ms=1)).sleep == ("a", "b")
    assert at(100, replace(beside[0], state=ASLEEP), beside[1], one("tp", ASLEEP, gpus="01", wanted_ms=1)).wake == ()


@pytest.mark.parametrize(("state", "because"), [
    (LOST, "for memory of engines that do not answer, or refuse"), (SWITCHING, "until these have started or switched"),
])  # fmt: skip
def test_an_engine_that_is_not_known_to_sleep_holds_its_memory(state: EngineState, because: str) -> None:
    found = at(10_000, one("a", state), one("b", ASLEEP, wanted_ms=1))
    assert found == TurnDecision(waits=(Waits("b", because, ("a",)),))


def test_a_lost_engine_keeps_nobody_waiting_on_other_gpus() -> None:
    found = at(
        10, one("gone", LOST), one("tp", ASLEEP, gpus="01", wanted_ms=1), one("c", ASLEEP, gpus="1", wanted_ms=2)
    )
    assert found.wake == ("c",)


def test_two_that_woke_by_themselves_are_reduced_to_one_at_once() -> None:
    both = one("a", AWAKE, awake_ms=9000), one("b", AWAKE, awake_ms=9500)
    assert at(10, *both).sleep == ("a",)
    # What sleeps only from now on makes no room for a third yet.
    assert at(10, *both, one("c", ASLEEP, 1, wanted_ms=1)).wake == ()


@pytest.mark.parametrize("state", [SWITCHING, LOST])
def test_an_engine_that_slept_and_does_not_answer_puts_none_to_sleep_and_keeps_others_asleep(
    state: EngineState,
) -> None:
    silent, awake = one("a", state, slept=True), one("b", AWAKE, awake_ms=1)
    assert at(100, silent, awake) == TurnDecision()
    assert at(100, silent, replace(awake, state=ASLEEP, awake_ms=0, wanted_ms=1)).wake == ()
    assert at(100, replace(silent, slept=False), awake).sleep == ("b",)


def test_a_clock_that_was_set_back_lengthens_no_turn() -> None:
    assert at(10, one("a", AWAKE, awake_ms=9_000_000), one("b", ASLEEP, wanted_ms=1)).sleep == ("a",)


@pytest.mark.parametrize("seed", seeds(40))
def test_what_is_looked_up_by_gpu_is_what_a_look_at_all_finds(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        cards, now_ms = chance.randint(1, 5), 1_000_000
        instances = [
            one(
                f"i{n}",
                chance.choice([*[AWAKE, ASLEEP] * 2, ASLEEP, SWITCHING, LOST, NOT_STARTED][: chance.choice([5, 8])]),
                chance.choice([0, 1, 2, 3, 9]),
                "".join(map(str, chance.sample(range(cards), chance.randint(1, min(3, cards))))),
                awake_ms=now_ms - chance.choice([now_ms, 1000, 30_000, LEAST_MS, 70_000 + n % 3, -5000]),
                wanted_ms=chance.choice([0, 1, 5, 5, 900]),
                slept=chance.random() < 0.1,
            )
            for n in range(chance.randint(1, 14))
        ]  # fmt: skip
        assert turns(instances, now_ms, LEAST_MS) == SlowTurns(instances, now_ms, LEAST_MS).result()


@settings(max_examples=3 * BREADTH, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 3))
@pytest.mark.slow
def test_over_hours_memory_waits_and_switches_stay_within_their_bounds(seed: int, count: int, cards: int) -> None:
    chance = random.Random(seed)
    pass_ms, slowest_ms = 2000, 9000
    placed = {f"i{n}": chance.sample(range(cards), chance.randint(1, cards)) for n in range(count)}
    here = {
        name: one(name, ASLEEP, chance.randint(1, 9), "".join(map(str, gpus))) for name, gpus in placed.items()
    }  # fmt: skip
    rooms = {str(c): max((i.extra_mib for i in here.values() if str(c) in i.gpus), default=0) for c in range(cards)}
    done: dict[str, tuple[int, EngineState]] = {}
    woke: dict[str, list[int]] = {name: [] for name in here}
    # Whoever asks has all others before it at most once: each has its turn, and two switches with the pass before each.
    bound_ms = count * (LEAST_MS + 2 * (slowest_ms + 2 * pass_ms))
    now_ms = 1_000_000
    while now_ms < 1_000_000 + 3_600_000:
        now_ms += chance.randint(1, pass_ms)
        for name in [name for name, (due_ms, _) in done.items() if due_ms <= now_ms]:
            state = done.pop(name)[1]
            since_ms = now_ms if state is AWAKE else 0
            here[name] = replace(
                here[name], state=state, awake_ms=since_ms, wanted_ms=0 if since_ms else here[name].wanted_ms
            )
        for name, instance in here.items():
            if instance.state is ASLEEP and not instance.wanted_ms and chance.random() < 0.2:
                here[name] = replace(instance, wanted_ms=now_ms)
        found = turns(list(here.values()), now_ms, LEAST_MS)
        for names, state in ((found.sleep, ASLEEP), (found.wake, AWAKE)):
            for name in names:
                woke[name] += [now_ms] if state is AWAKE else []
                done[name] = now_ms + chance.randint(1, slowest_ms), state
                here[name] = replace(here[name], state=SWITCHING)
        for gpu, room in rooms.items():
            assert sum(i.extra_mib for i in here.values() if gpu in i.gpus and i.state is not ASLEEP) <= room
        for instance in here.values():
            assert not instance.wanted_ms or now_ms - instance.wanted_ms <= bound_ms, (instance, found.waits)
    assert any(woke.values())
    for times in woke.values():
        assert all(later - before >= LEAST_MS for before, later in pairwise(times))
