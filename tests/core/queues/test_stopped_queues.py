# SPDX-License-Identifier: Apache-2.0
"""Queues that are stopped, and jobs that are held: nothing of them starts, and nothing else is delayed."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.model import LabelSelector, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Budget, Queue, Stop
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.bargaining.market import MINUTE, Market, nodes
from tests.core.bargaining.test_terms import TEN, granted
from tests.core.driven import POLICY, Driven, gang, lone, members
from tests.core.gang_oracle import gpu_node
from tests.core.preemption import lives
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, World


def queue(name: str, stop: Stop = "", **more: object) -> ev.Event:
    return ev.QueueChanged(Queue(name, stop=stop, **more))


def release(uid: str, driven: Driven) -> ev.Event:
    return ev.PodChanged(replace(driven.state.workloads.pods[uid], held=False))


# Hold.


@pytest.mark.parametrize("stop", ["Hold", "HoldAndDrain"])
def test_a_stopped_queue_starts_nothing_and_others_go_on(stop: Stop) -> None:
    driven = Driven(gpu_node("a", 8))
    jobs = [lone(f"{name}{i}", queue=name) for name in "xy" for i in range(2)]
    assert driven.at(0, queue("x", stop), queue("y"), *jobs).keys() == {"y0", "y1"}
    refusal = driven.holds()["x0"]
    assert (refusal.reason, refusal.when, refusal.detail) == (Reason.QUEUE_STOPPED, When.NOT_YET, "'x'")
    assert driven.at(1, queue("x")).keys() == {"x0", "x1"}


def test_the_queues_below_a_stopped_one_are_stopped() -> None:
    driven = Driven(gpu_node("a", 8))
    tree = queue("top", "Hold"), queue("x", parent="top"), queue("y", parent="x"), queue("z")
    assert driven.at(0, *tree, lone("y0", queue="y"), lone("z0", queue="z")).keys() == {"z0"}
    assert driven.holds()["y0"].detail == "'top'"
    assert driven.at(1, queue("top"), queue("x", "Hold", parent="top")).keys() == set()
    assert driven.holds()["y0"].detail == "'x'"
    assert driven.at(2, queue("x", parent="top")).keys() == {"y0"}


def test_a_job_that_runs_gets_the_rest_of_its_pods_unless_the_queue_is_drained() -> None:
    driven = Driven(gpu_node("a", 2))
    assert len(driven.at(0, queue("x"), gang(), *members(3, queue="x"))) == 2
    driven.at(1, queue("x", "Hold"), lone("other", queue="x"), ev.NodeChanged(gpu_node("a", 8)), bind=False)
    assert {one.uid for one in driven.last if isinstance(one, Bind)} == {"g2"}
    assert driven.holds()["other"].reason is Reason.QUEUE_STOPPED
    driven = Driven(gpu_node("a", 2))
    driven.at(0, queue("x"), gang(), *members(3, queue="x"))
    assert driven.at(1, queue("x", "HoldAndDrain"), ev.NodeChanged(gpu_node("a", 8))) == {}


def test_no_change_of_the_cluster_has_the_jobs_of_a_stopped_queue_tried() -> None:
    """Thousands may wait there, and each attempt takes time from the jobs of others."""
    driven = Driven(gpu_node("a", 8), policy=replace(POLICY, attempts_per_step=2))
    jobs = [lone(f"x{i}", queue="x") for i in range(20)]
    driven.at(0, queue("x", "Hold"), queue("y"), *jobs)
    while driven.state.busy:
        driven.at(0)
    assert driven.at(1, ev.NodeChanged(gpu_node("b", 8)), lone("y0", queue="y")).keys() == {"y0"}
    assert not driven.state.busy and driven.state.queue.lengths() == (0, 20)
    driven.at(2, queue("x"))
    assert driven.state.busy


def test_jobs_that_wait_in_a_stopped_queue_take_no_part_in_the_division() -> None:
    driven = Driven(gpu_node("a", 8))
    jobs = [lone(f"{name}{i}", queue=name) for name in "xy" for i in range(8)]
    tree = queue("t", parent=""), queue("x", parent="t"), queue("y")
    driven.at(0, *tree, *jobs, bind=False)
    due = {name: driven.state.shares.due(name)["gpu"] for name in ("t", "x", "y")}
    assert due == {"t": 4000, "x": 4000, "y": 4000}
    driven = Driven(gpu_node("a", 8))
    driven.at(0, queue("t"), queue("x", "Hold", parent="t"), queue("y"), *jobs, bind=False)
    due = {name: driven.state.shares.due(name)["gpu"] for name in ("t", "x", "y")}
    assert due == {"t": 0, "x": 0, "y": 8000}


def test_the_idle_guarantee_of_a_stopped_queue_is_lent_and_what_it_holds_is_not_reclaimed() -> None:
    world = World(lives.node("n0", 8), policy=Policy(fabric=(), history_milli=0))
    world.apply_events(lives.queue("x", 4), lives.queue("y"))
    world.submit(*(lives.pod(f"x{i}", queue="x") for i in range(2)))
    world.live(MINUTE_MS)
    world.apply_events(lives.queue("x", 4, stop="Hold"))
    world.submit(*(lives.pod(f"x{i}", queue="x") for i in range(2, 6)))
    world.submit(*(lives.pod(f"y{i}", queue="y") for i in range(8)))
    world.live(2 * HOUR_MS)
    assert world.gpus("x", "y") == [2, 6] and world.evictions == []
    world.apply_events(lives.queue("x", 4))
    world.live(2 * HOUR_MS)
    # Its guarantee, and half of the rest.
    assert world.gpus("x", "y") == [6, 2]


def test_a_reservation_of_a_job_in_a_stopped_queue_is_dropped() -> None:
    driven = Driven(gpu_node("a", 8))
    runs = lone("r", 4, queue="y", work=Work(max_runtime_ms=HOUR_MS))
    driven.at(0, queue("x"), queue("y"), runs)
    driven.at(1, lone("large", 8, queue="x"))
    driven.at(2, lone("small", 2, queue="y", work=Work(max_runtime_ms=5 * HOUR_MS)))
    assert driven.holds()["small"].reason is Reason.RESERVED
    driven.at(3, queue("x", "Hold"))
    started = {**driven.at(3), **driven.at(3)}
    assert "small" in started or "small" in driven.state.cluster.placements
    assert not driven.state.reservations.by_workload


def test_jobs_keep_their_places_while_their_queue_is_stopped() -> None:
    driven = Driven(gpu_node("a", 0))
    jobs = [lone(f"x{i}", queue="x", priority=i % 3, created_ms=100 - i) for i in range(9)]
    driven.at(0, queue("x"), *jobs)
    before = driven.state.queue.ordered()
    driven.at(1, queue("x", "Hold"))
    assert driven.state.queue.ordered() == before
    driven.at(2, queue("x"), ev.NodeChanged(gpu_node("a", 4)))
    assert {f"pod/{uid}" for uid in driven.state.cluster.placements} == set(before[:4])


def test_a_stopped_queue_is_reported_with_the_queue_that_stops_it() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, queue("top", "HoldAndDrain"), queue("x", parent="top"), queue("y"))
    found = {one.name: one.warning for one in driven.state.queue_snapshots(0)}
    assert found["top"] == "stopped (spec.stop: HoldAndDrain): no job starts"
    assert found["x"] == "stopped (spec.stop: HoldAndDrain), as is the queue top above it: no job starts"
    assert found["y"] == ""


class Clocked(World):
    """Takes its steps at times that do not depend on what happens."""

    def live(self, for_ms: int) -> World:
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.now_ms += MINUTE_MS // 2
            due = [event for when_ms, event in self._agenda if when_ms <= self.now_ms]
            self._agenda = [one for one in self._agenda if one[0] > self.now_ms]
            self.apply_events(*due)
            while decided := step(self.state, (), self.now_ms):
                for decision in decided:
                    self._carry_out(decision)
        return self


class Twins:
    """One world with jobs in the stopped queue x, one without; what starts of the others must be the same."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        policy = Policy(fabric=(), searches_per_step=self.random.choice([1, 4]))
        nodes = [lives.node(f"n{i}", self.random.choice([2, 4, 8])) for i in range(3)]
        self.with_it, self.without = Clocked(*nodes, policy=policy), Clocked(*nodes, policy=policy)
        above = self.random.choice(["", "t"])
        guarantee = self.random.choice([None, 4])
        stop: Stop = self.random.choice(["Hold", "HoldAndDrain"])
        on_top = self.random.random() < 0.5 and above
        self.queues = [
            lives.queue("t", stop=stop if on_top else ""),
            lives.queue("x", guarantee, parent=above, stop="" if on_top else stop),
            lives.queue("y", self.random.choice([None, 2, 6])),
            lives.queue("z", limit=self.random.choice([None, 6]), weight=2),
        ]
        # While nothing waits, fair shares are not worked out every minute: one that always waits has both do it.
        self.both(*self.queues, ev.PodChanged(lives.pod("too large", 16, queue="y")))

    def both(self, *reported: ev.Event) -> None:
        for world in (self.with_it, self.without):
            world.apply_events(*reported)

    def pod(self, name: str, of: str) -> ev.Event:
        runs_ms = self.random.choice([0, 20, 90]) * MINUTE_MS
        pod = lives.pod(
            name, self.random.choice([1, 1, 2, 4]), queue=of, priority=self.random.choice([0, 0, 5]),
            created_ms=self.with_it.now_ms, work=Work(max_runtime_ms=runs_ms),
        )  # fmt: skip
        return ev.PodChanged(pod)

    def go_on(self, round_: int) -> None:
        for of in "yyz":
            for i in range(self.random.choice([0, 1, 2])):
                self.both(self.pod(f"{of}{round_}.{self.random.random()}.{i}", of))
        for i in range(self.random.choice([0, 2, 4])):
            self.with_it.apply_events(self.pod(f"x{round_}.{i}", "x"))
        running = sorted(self.without.running)
        ends = self.random.sample(running, min(len(running), self.random.choice([0, 1, 2])))
        minutes = self.random.choice([1, 5, 20])
        for world in (self.with_it, self.without):
            world.ends(*ends)
            world.live(minutes * MINUTE_MS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(8))
def test_others_start_where_and_when_they_would_if_nobody_waited_in_the_stopped_queue(seed: int) -> None:
    twins = Twins(seed)
    for round_ in range(12):
        twins.go_on(round_)
        assert twins.with_it.running == twins.without.running
        assert twins.with_it.evictions == twins.without.evictions
    state = twins.with_it.state
    waiting = [pod for pod in state.workloads.pods.values() if pod.queue == "x"]
    assert waiting and not any(pod.node for pod in waiting)
    assert {twins.with_it.refusals[pod.name].reason for pod in waiting} == {Reason.QUEUE_STOPPED}
    order = [one for one in state.queue.ordered() if state.queue_order.queue_user(one)[0] == "x"]
    copy: State = restore(state.policy, take(state))
    assert [one for one in copy.queue.ordered() if copy.queue_order.queue_user(one)[0] == "x"] == order
    twins.with_it.apply_events(lives.queue("t"), lives.queue("x"))
    names = {f"pod/{pod.uid}": pod.name for pod in waiting}
    assert [one for one in state.queue.ordered() if one in names] == order
    twins.with_it.live(MINUTE_MS)
    assert Reason.QUEUE_STOPPED not in {
        refusal.reason for name, refusal in twins.with_it.refusals.items() if name in names.values()
    }


# HoldAndDrain.


def drained(*pods: ev.Event, **more: object) -> World:
    world = World(lives.node("n0", 8))
    world.now_ms = 10 * HOUR_MS
    world.apply_events(lives.queue("x", **more), lives.queue("y"), *pods)
    world.live(0)
    world.apply_events(lives.queue("x", stop="HoldAndDrain", **more))
    return world


def runs(name: str, of: str = "x", **more: object) -> ev.Event:
    return ev.PodChanged(lives.pod(name, queue=of, node="n0", bound_ms=9 * HOUR_MS, **more))


def test_what_runs_in_a_drained_queue_is_evicted_and_waits_again() -> None:
    world = drained(runs("a"), runs("b"), runs("other", "y")).live(5 * MINUTE_MS)
    assert world.running == {"other": "n0"} and sorted(world.gave_way) == ["a", "b"]
    assert {world.refusals[name].reason for name in "ab"} == {Reason.QUEUE_STOPPED}
    world.apply_events(lives.queue("x"))
    assert world.live(MINUTE_MS).running.keys() == {"a", "b", "other"}


def test_a_gang_in_a_drained_queue_goes_as_a_whole() -> None:
    pods = [runs(f"g{i}", gang="g") for i in range(3)]
    world = drained(lives.gang("g", 2), *pods).live(5 * MINUTE_MS)
    assert [set(names) for _, _, names in world.evictions] == [{"g0", "g1", "g2"}]


def test_a_pod_that_must_not_be_preempted_runs_to_its_end() -> None:
    world = drained(runs("a"), runs("fixed", work=Work(preemptible=False))).live(HOUR_MS)
    assert world.running == {"fixed": "n0"}
    assert drained(runs("a"), preemptible=False).live(HOUR_MS).running == {"a": "n0"}


def test_a_pod_of_a_budget_without_disruptions_stays_until_there_is_one() -> None:
    everything = LabelSelector()
    world = drained(ev.BudgetChanged(Budget("ns", "all", everything, 0)), runs("a"), runs("b")).live(HOUR_MS)
    assert world.running.keys() == {"a", "b"}
    world.apply_events(ev.BudgetChanged(Budget("ns", "all", everything, 1)))
    world.live(2 * MINUTE_MS)
    assert [len(names) for _, _, names in world.evictions] == [1, 1]


def test_a_job_younger_than_the_least_run_time_of_its_queue_is_evicted_once_it_is_old_enough() -> None:
    world = drained(runs("a"), reclaim_min_runtime_ms=2 * HOUR_MS).live(30 * MINUTE_MS)
    assert world.running == {"a": "n0"}
    assert world.live(HOUR_MS).running == {}


def test_an_eviction_that_failed_is_tried_again() -> None:
    world = drained(runs("a"))
    world.state.drains.leaving["a"] = world.now_ms + MINUTE_MS
    world.apply_events(ev.EvictionFailed("a", "a budget forbids it"))
    assert world.live(MINUTE_MS).running == {"a": "n0"}
    assert world.live(5 * MINUTE_MS).running == {}


def test_a_state_that_was_restored_drains_on() -> None:
    world = drained(runs("a"), runs("b"))
    world.state = restore(world.state.policy, take(world.state))
    assert world.live(5 * MINUTE_MS).running == {}


def test_nothing_is_examined_where_no_queue_is_drained() -> None:
    world = World(lives.node("n0", 8))
    world.apply_events(lives.queue("x", stop="Hold"), runs("a"))
    world.live(MINUTE_MS)
    assert world.state.drains.next_ms() is None and world.state.drains.looked_in_queues_ms == 0


# Leases.


def test_a_request_in_a_stopped_queue_gets_no_offer_and_waits_for_the_queue() -> None:
    market = Market(*nodes(1))
    market.plane()
    market.step(ev.QueueChanged(Queue("team", planes=True, stop="Hold")))
    market.ask("r", firm=True)
    state, refusal = market.states["r"]
    assert state == "Pending" and refusal is not None and refusal.reason is Reason.QUEUE_STOPPED
    market.step(ev.QueueChanged(Queue("team", planes=True)))
    assert "r" in market.leases


def test_an_offer_is_withdrawn_when_a_queue_above_is_stopped() -> None:
    market = Market(*nodes(1))
    market.step(ev.QueueChanged(Queue("org")), ev.QueueChanged(Queue("team", "org", planes=True)))
    market.plane()
    market.ask("r")
    assert "r" in market.offers
    market.step(ev.QueueChanged(Queue("org", stop="Hold")))
    assert "r" not in market.offers and market.free() == 8
    market.step(ev.QueueChanged(Queue("org")))
    assert "r" in market.offers


def test_a_lease_in_a_stopped_queue_goes_on_to_its_end_and_is_not_renewed() -> None:
    market = granted(TEN)
    market.step(ev.QueueChanged(Queue("team", planes=True, stop="Hold")))
    market.pod("p", "r", 2)
    assert "p" in market.bound
    market.wait(8 * MINUTE)
    market.act("r", "renew", market.now_ms + 5 * MINUTE)
    assert market.refused["r"] == "the queue 'team' is stopped: it ends at its end"
    market.wait(3 * MINUTE)
    assert market.ended == {"r": "Expired"}


def test_a_lease_in_a_drained_queue_is_revoked() -> None:
    market = granted(TEN)
    market.wait(2 * MINUTE)
    market.step(ev.QueueChanged(Queue("team", planes=True, stop="HoldAndDrain")))
    assert market.revoked["r"].revocation.cause == "Reclaimed"
    market.wait(10 * MINUTE)
    assert market.ended == {"r": "Reclaimed"}


# Jobs that are held.


def test_a_held_job_does_not_start_and_keeps_its_place() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(0, lone("first", created_ms=1, held=True), lone("second", created_ms=2), lone("third", created_ms=3))
    assert driven.state.cluster.placements.keys() == {"second"}
    assert driven.holds()["first"].reason is Reason.HELD
    assert driven.at(1, release("first", driven), ev.PodRemoved("second")).keys() == {"first"}


def test_a_gang_with_a_held_pod_is_held() -> None:
    driven = Driven(gpu_node("a", 8))
    assert driven.at(0, gang(pods=3), *members(2), *members(1, first=2, held=True)) == {}
    assert {refusal.reason for refusal in driven.holds().values()} == {Reason.HELD}
    assert len(driven.at(1, release("g2", driven))) == 3


def test_a_held_job_takes_no_part_in_the_division_and_is_not_tried_again() -> None:
    driven = Driven(gpu_node("a", 8))
    jobs = [lone(f"x{i}", queue="x", held=True) for i in range(8)]
    driven.at(0, queue("x"), queue("y"), *jobs, *(lone(f"y{i}", queue="y") for i in range(8)), bind=False)
    assert driven.state.shares.due("y")["gpu"] == 8000
    driven.at(1, ev.NodeChanged(gpu_node("b", 8)))
    assert not driven.state.busy and driven.state.queue.lengths() == (0, 8)


def test_a_job_that_is_held_while_room_is_made_for_it_gives_up_the_room() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, lone("r", 4, work=Work(max_runtime_ms=HOUR_MS)))
    driven.at(1, lone("large", 8))
    assert driven.state.reservations.by_workload
    driven.at(2, ev.PodChanged(replace(driven.state.workloads.pods["large"], held=True)))
    assert not driven.state.reservations.by_workload
