# SPDX-License-Identifier: Apache-2.0
"""A state that is restored with its marks before each step decides as the one that never is: in random clusters with
queues, gangs, preemption, reclaim, reservations, volumes, spares, quarantines, headroom and leases, with little time
in each step and with much."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from dovetail.core import checkpoint, cycle, marks
from dovetail.core import events as ev
from dovetail.core.decisions import Bind, Decision
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.recording.coding import Coder
from tests.breadth import seeds
from tests.core.bargaining.test_random_markets import RandomMarket
from tests.core.cluster.test_spares import FOR_DRIVEN, Fleet
from tests.core.driven import Driven, gang, lone, members
from tests.core.gang_oracle import gpu_node
from tests.core.pipeline import test_known_refusals
from tests.recording.histories import POLICY, live

_WRITTEN = Coder(checkpoint.Checkpoint)


def resumed(state: State) -> State:
    """As a process resumes it that reads what this one wrote."""
    written = _WRITTEN.encode(checkpoint.take(state, marks=True))
    return checkpoint.restore(state.policy, _WRITTEN.decode(written))


class Lived:
    """Calls the core for a state, which is restored before each step where it is `resumes`."""

    def __init__(self, policy: Policy, *, resumes: bool) -> None:
        self.state, self._resumes = State(policy), resumes

    def settle(self) -> None:
        pass

    def step(self, events: Iterable[ev.Event], now_ms: int) -> list[Decision]:
        if self._resumes:
            self.state = resumed(self.state)
        return cycle.step(self.state, events, now_ms)

    def apply_events(self, events: Iterable[ev.Event], now_ms: int) -> None:
        cycle.apply_events(self.state, events, now_ms)


@pytest.mark.parametrize("policy", [POLICY, unhurried(POLICY)], ids=["hurried", "unhurried"])
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.slow
def test_random_days(policy: Policy, seed: int) -> None:
    never, again = (live(Lived(policy, resumes=one), 17 + seed) for one in (False, True))
    assert again == never


@pytest.mark.parametrize("seed", [5, *(10 + seed for seed in seeds(1))])
@pytest.mark.slow
def test_fleets_with_spares(seed: int) -> None:
    never, again = Fleet(seed, FOR_DRIVEN), Fleet(seed, FOR_DRIVEN)
    for _ in range(30):
        again.driven.state = resumed(again.driven.state)
        assert again.step() == never.step()


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.slow
def test_markets_of_leases(seed: int) -> None:
    never, again = RandomMarket(seed), RandomMarket(seed)
    for _ in range(40):
        again.state = resumed(again.state)
        for market in (never, again):
            market.one_act()
        assert again.last == never.last


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.slow
def test_queues_and_moved_pods(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    policy = Policy(fabric=(test_known_refusals.RACK,), moves_per_hour=50 * (seed % 2))
    dice = test_known_refusals.Dice(seed, ranked=False)
    never, again = (test_known_refusals.World(policy) for _ in range(2))

    def step(state: State, events: Iterable[ev.Event], now_ms: int) -> list[Decision]:
        if state is again.state:
            again.state = resumed(state)
        return cycle.step(state if state is never.state else again.state, events, now_ms)

    monkeypatch.setattr(test_known_refusals, "step", step)
    for moment in [dice.moment() for _ in range(6)]:
        assert again.pass_by(moment) == never.pass_by(moment)


def test_new_nodes_get_the_slots_that_were_vacated_last() -> None:
    driven = Driven(*(gpu_node(f"n{i}", 1, "a", "r") for i in range(4)))
    driven.at(1, ev.NodeRemoved("n0"), ev.NodeRemoved("n2"))
    again = resumed(driven.state)
    for state in (driven.state, again):
        cycle.step(state, [ev.NodeChanged(gpu_node(name, 1, "a", "r")) for name in ("x", "y", "z")], 2)
    assert again.cluster.nodes.names == driven.state.cluster.nodes.names == ["y", "n1", "x", "n3", "z"]


def test_the_order_of_equals_is_that_of_their_arrivals() -> None:
    driven = Driven(gpu_node("n", 1, "a", "r"))
    driven.at(1, lone("first", 2), lone("second", 2))
    # What is about the first changes, and it keeps its place; one that could not be bound has a new one.
    driven.at(2, ev.PodRemoved("first"), lone("first", 2))
    order = driven.state.queue.ordered()
    assert resumed(driven.state).queue.ordered() == order == ["pod/second", "pod/first"]


def test_parked_workloads_stay_parked_and_what_changed_still_wakes_them() -> None:
    driven = Driven(gpu_node("n", 1, "a", "r"))
    driven.at(1, lone("big", 2), gang(pods=2), *members(2))
    assert not driven.state.busy
    again = resumed(driven.state)
    assert not again.busy
    assert again.queue.lengths() == (0, 2)
    assert checkpoint.restore(driven.state.policy, checkpoint.take(driven.state)).queue.lengths() == (2, 0)
    driven.apply_events(ev.NodeChanged(gpu_node("m", 2, "a", "r")))
    decided = cycle.step(resumed(driven.state), (), 2)
    assert {one.uid for one in decided if isinstance(one, Bind)} == {"big"}


def test_what_was_found_for_a_workload_counts_for_those_that_want_the_same() -> None:
    driven = Driven(gpu_node("n", 1, "a", "r"), policy=replace(POLICY, preempt=False, reserve=False))
    driven.at(1, lone("big", 2))
    again = resumed(driven.state)
    assert again.equivalence.no_room
    assert again.equivalence.no_room == driven.state.equivalence.no_room
    assert marks.take(again) == marks.take(driven.state)


@pytest.mark.parametrize("policy", [POLICY, unhurried(POLICY)], ids=["hurried", "unhurried"])
@pytest.mark.slow
def test_what_is_remembered_stays_when_it_is_written_down_or_asked_for(policy: Policy) -> None:
    class Asked(Lived):
        def step(self, events: Iterable[ev.Event], now_ms: int) -> list[Decision]:
            state = self.state
            before = state.shares.fair_share.division()
            remembered = marks.take(state)
            assert state.shares.fair_share.division() == before == remembered.division
            state.queue_snapshots(now_ms + 100_000_000)
            state.queue.ordered()
            assert marks.take(state) == remembered == marks.take(resumed(state))
            return super().step(events, now_ms)

    live(Asked(policy, resumes=False), 300)


def test_a_state_resumes_at_its_time() -> None:
    driven = Driven(gpu_node("n", 1, "a", "r"))
    driven.at(1_000)
    assert resumed(driven.state).cluster.claims.now_ms == driven.state.cluster.claims.now_ms == 1_000


def test_what_was_found_for_many_that_want_the_same_is_written_once() -> None:
    driven = Driven(gpu_node("n", 1, "a", "r"), policy=replace(POLICY, preempt=False, reserve=False))
    driven.at(1, *(lone(f"big{number}", 2) for number in range(50)))
    while driven.state.busy:
        driven.at(driven.now_ms + 1)
    found = marks.take(driven.state).found
    assert [1 + len(one.same) for one in found] == [50]
    again = resumed(driven.state)
    assert marks.take(again) == marks.take(driven.state)
    for state in (driven.state, again):
        known = state.equivalence.of("pod/big0")
        assert all(state.equivalence.of(f"pod/big{number}") is known for number in range(50))
        assert known is not None and known.refused == found[0].refused
