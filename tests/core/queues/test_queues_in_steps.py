# SPDX-License-Identifier: Apache-2.0
"""Queues in the step: the first, those at a limit, those that wait, and victims."""

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Evict, Unnominate
from dovetail.core.model import LabelSelector, Namespace, Problem, Requirement, Work
from dovetail.core.queues.types import GPU, Budget, Queue, Usage
from dovetail.core.reasons import Reason, Sure, When
from tests.core.driven import POLICY, Driven, gang, lone, members
from tests.core.gang_oracle import gpu_node

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
DEADLINE_MS = 30_000 + POLICY.eviction_deadline_ms


def queue(name: str, gpus: int | None = None, **more: object) -> ev.Event:
    """A queue with so many GPUs guaranteed (None: nothing)."""
    guarantee = ((GPU, 1000 * gpus),) if gpus is not None else ()
    return ev.QueueChanged(Queue(name, guarantee=guarantee, **more))


def evictions(driven: Driven) -> list[Evict]:
    return [decision for decision in driven.last if isinstance(decision, Evict)]


def removed(*uids: str, ended_ms: int = 0, succeeded: bool = False) -> list[ev.Event]:
    return [ev.PodRemoved(uid, ended_ms, succeeded) for uid in uids]


# Whose turn it is.


def test_queues_take_turns_by_what_they_hold() -> None:
    driven = Driven(gpu_node("a", 4))
    jobs = [lone(f"{name}{i}", queue=name) for name in "xy" for i in range(4)]
    assert driven.at(0, queue("x"), queue("y"), *jobs).keys() == {"x0", "x1", "y0", "y1"}


def test_what_is_due_is_not_divided_where_queues_are_not_compared() -> None:
    """It takes as long as many pods, and no job of the only queue asks for it."""
    driven = Driven(gpu_node("a", 4))
    for number in range(3):
        assert driven.at(number, lone(f"p{number}", queue="x"), queue("x")).keys() == {f"p{number}"}
        assert driven.state.shares.fair_share._due is None


def test_weights_count() -> None:
    driven = Driven(gpu_node("a", 6))
    jobs = [lone(f"{name}{i}", queue=name) for name in "xy" for i in range(6)]
    binds = driven.at(0, queue("x", weight=2), queue("y"), *jobs)
    assert sorted(binds) == ["x0", "x1", "x2", "x3", "y0", "y1"]


def test_a_queue_that_used_less_comes_first_and_gets_more() -> None:
    driven = Driven(gpu_node("a", 4))
    used = Usage(1, used=4000 * 8 * 24 * HOUR_MS)
    jobs = [lone(f"{name}{i}", queue=name) for name in "xy" for i in range(4)]
    binds = driven.at(1, queue("x", usage=used), queue("y", usage=Usage(1)), *jobs)
    assert sorted(binds) == ["x0", "y0", "y1", "y2"]


def test_a_guarantee_wins_over_history() -> None:
    driven = Driven(gpu_node("a", 4))
    used = Usage(1, used=4000 * 8 * 24 * HOUR_MS)
    jobs = [lone(f"{name}{i}", queue=name) for name in "xy" for i in range(4)]
    binds = driven.at(1, queue("x", 2, usage=used), queue("y", usage=Usage(1)), *jobs)
    assert sorted(binds) == ["x0", "x1", "y0", "y1"]


def test_a_job_larger_than_all_that_is_due_has_its_turn() -> None:
    """Half of the GPUs are due to its queue, and it wants three of four."""
    driven = Driven(gpu_node("a", 4))
    jobs = [lone(f"x{i}", queue="x", created_ms=1) for i in range(4)]
    assert driven.at(1, queue("x"), queue("y"), *jobs, lone("y", 3, queue="y", created_ms=2)).keys() == {"x0", "y"}


def test_a_queue_of_higher_priority_goes_first() -> None:
    driven = Driven(gpu_node("a", 2))
    binds = driven.at(0, queue("x"), queue("y", priority=5), *(lone(f"{n}{i}", queue=n) for n in "xy" for i in (1, 2)))
    assert sorted(binds) == ["y1", "y2"]


def test_the_tree_divides_level_by_level() -> None:
    """One team with one queue and one with three: half for each team."""
    driven = Driven(gpu_node("a", 6))
    queues = [
        queue("one"),
        queue("two"),
        queue("one-a", parent="one"),
        *(queue(f"two-{c}", parent="two") for c in "abc"),
    ]
    jobs = [lone(f"{name}.{i}", queue=name) for name in ("one-a", "two-a", "two-b", "two-c") for i in range(6)]
    binds = driven.at(0, *queues, *jobs)
    assert sum(uid.startswith("one") for uid in binds) == 3
    assert {uid.partition(".")[0] for uid in binds} == {"one-a", "two-a", "two-b", "two-c"}


def test_users_share_a_queue_equally() -> None:
    driven = Driven(gpu_node("a", 4))
    jobs = [lone(f"{user}{i}", queue="q", user=user, created_ms=1) for user in ("ann", "bob") for i in range(4)]
    assert sorted(driven.at(0, queue("q", by_user=True), *jobs)) == ["ann0", "ann1", "bob0", "bob1"]


def test_the_namespace_names_the_queue_where_the_pod_does_not() -> None:
    driven = Driven(gpu_node("a", 4))
    labels = (("dovetail.dev/queue", "x"),)
    driven.at(0, ev.NamespaceChanged(Namespace("ns", labels)), lone("p"))
    assert driven.holds()["p"].reason is Reason.QUEUE_MISSING
    assert driven.at(1, queue("x")).keys() == {"p"}
    assert dict(driven.state.shares.allocated("x"))[GPU] == 1000


# Limits.


def test_a_limit_is_never_exceeded() -> None:
    driven = Driven(gpu_node("a", 8))
    limited = Queue("x", limit=((GPU, 2000),))
    assert len(driven.at(0, ev.QueueChanged(limited), *(lone(f"p{i}", queue="x") for i in range(4)))) == 2
    refusal = driven.holds()["p3"]
    assert (refusal.reason, refusal.when) == (Reason.QUEUE_LIMIT, When.NOT_YET)
    assert driven.at(1, *removed("p0")).keys() == {"p2"}


def test_a_limit_above_counts_for_all_below() -> None:
    driven = Driven(gpu_node("a", 8))
    events = [ev.QueueChanged(Queue("top", limit=((GPU, 3000),))), *(queue(n, parent="top") for n in "xy")]
    assert len(driven.at(0, *events, *(lone(f"{n}{i}", queue=n) for n in "xy" for i in range(3)))) == 3


def test_a_job_larger_than_the_limit_never_starts() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, ev.QueueChanged(Queue("x", limit=((GPU, 2000),))), lone("p", 4, queue="x"))
    assert (driven.holds()["p"].reason, driven.holds()["p"].when) == (Reason.QUEUE_LIMIT, When.NEVER)


def test_an_elastic_gang_starts_with_what_the_limit_leaves() -> None:
    driven = Driven(gpu_node("a", 8))
    limited = ev.QueueChanged(Queue("x", limit=((GPU, 3000),)))
    driven.at(0, limited, gang("g", 2), *members(5, "g", queue="x"))
    driven.at(1)
    assert dict(driven.state.shares.allocated("x"))[GPU] == 3000
    driven.state.cluster.check()


def test_an_elastic_gang_takes_what_the_limit_leaves_before_its_first_pods_are_seen_bound() -> None:
    driven = Driven(gpu_node("a", 8))
    limited = ev.QueueChanged(Queue("x", limit=((GPU, 3000),)))
    driven.at(0, limited, gang("g", 1), *members(5, "g", queue="x"), bind=False)
    driven.at(1, bind=False)
    assert dict(driven.state.shares.allocated("x"))[GPU] == 3000


def test_a_limit_of_a_model_sends_the_job_to_another_one() -> None:
    label = "nvidia.com/gpu.product"
    nodes = [replace(gpu_node(name, 4), labels=((label, name),)) for name in ("H100", "A100")]
    driven = Driven(*nodes)
    limited = ev.QueueChanged(Queue("x", limit=(("gpu/H100", 1000),)))
    binds = driven.at(0, limited, *(lone(f"p{i}", queue="x") for i in range(3)))
    assert sorted(binds.values()).count("H100") <= 1
    assert len(binds) == 3


def test_what_must_not_be_preempted_stays_within_the_guarantee() -> None:
    driven = Driven(gpu_node("a", 8))
    work = Work(preemptible=False)
    binds = driven.at(0, queue("x", 2), *(lone(f"p{i}", queue="x", work=work) for i in range(3)), lone("q", queue="x"))
    assert sorted(binds) == ["p0", "p1", "q"]
    assert driven.holds()["p2"].reason is Reason.BEYOND_GUARANTEE


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([queue("x", parent="gone")], Reason.QUEUE_INVALID),
        ([queue("x", parent="y"), queue("y", parent="x")], Reason.QUEUE_INVALID),
        ([queue("x"), queue("y", parent="x")], Reason.QUEUE_NOT_LEAF),
        ([queue("x", namespaces=("other",))], Reason.QUEUE_FORBIDDEN),
        ([queue("x", problem=Problem("spec.weight", "0", "must be above 0"))], Reason.QUEUE_INVALID),
        ([], Reason.QUEUE_MISSING),
    ],
)
def test_a_queue_that_cannot_be_used_states_why(events: list[ev.Event], reason: Reason) -> None:
    driven = Driven(gpu_node("a", 8))
    assert driven.at(0, *events, lone("p", queue="x"), lone("q")).keys() == {"q"}
    assert driven.holds()["p"].reason is reason


def test_a_namespace_is_admitted_by_its_labels() -> None:
    driven = Driven(gpu_node("a", 8))
    selector = LabelSelector((Requirement("team", "In", ("x",)),))
    driven.at(0, queue("x", namespace_selector=selector), lone("p", queue="x"))
    assert driven.holds()["p"].reason is Reason.QUEUE_FORBIDDEN
    assert driven.at(1, ev.NamespaceChanged(Namespace("ns", (("team", "x"),)))).keys() == {"p"}


def test_a_queue_that_is_deleted_while_in_use() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, queue("x"), lone("p", queue="x"))
    driven.at(1, ev.QueueRemoved("x"), lone("q", queue="x"))
    assert driven.holds()["q"].reason is Reason.QUEUE_MISSING
    assert driven.at(2, queue("x")).keys() == {"q"}
    assert dict(driven.state.shares.allocated("x"))[GPU] == 2000


def test_pods_of_a_gang_name_one_queue() -> None:
    driven = Driven(gpu_node("a", 8))
    driven.at(0, queue("x"), queue("y"), gang(), *members(1, queue="x"), *members(1, first=1, queue="y"))
    assert driven.holds()["g0"].reason is Reason.QUEUES_MIXED


# Room that is held.


def running(gpus: int, hours: int | None, first: int = 0) -> list[ev.Event]:
    work = Work(max_runtime_ms=hours * HOUR_MS) if hours is not None else Work()
    return [lone(f"r{first + i}", work=work) for i in range(gpus)]


def test_the_first_that_does_not_fit_holds_room_with_its_start() -> None:
    driven = Driven(gpu_node("a", 4))
    assert len(driven.at(0, *running(4, hours=2))) == 4
    driven.at(1, lone("big", 4))
    expected = driven.holds()["big"].expected
    assert expected is not None
    assert (expected.sure, expected.start_ms) == (Sure.KNOWN, 2 * HOUR_MS + 1)


def test_a_pod_that_would_delay_the_head_waits_and_another_starts() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(0, *running(3, hours=2))
    driven.at(1, lone("big", 4))
    short, long = Work(max_runtime_ms=HOUR_MS), Work(max_runtime_ms=3 * HOUR_MS)
    assert driven.at(2, lone("long", work=long)) == {}
    assert driven.holds()["long"].reason is Reason.RESERVED
    assert driven.at(3, lone("short", work=short)).keys() == {"short"}
    assert driven.at(4, lone("unknown")) == {}
    driven.at(5, *removed("r0", "r1", "r2"))
    assert driven.at(HOUR_MS, *removed("short")).keys() == {"big"}


def test_a_pod_that_leaves_enough_for_the_head_starts_beside_it() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(0, *running(3, hours=2))
    driven.at(1, lone("big", 3))
    assert driven.at(2, lone("one")).keys() == {"one"}
    driven.at(3, lone("two"))
    assert driven.holds()["two"].reason is Reason.RESERVED or driven.holds()["two"].reason is Reason.NO_NODE_FITS
    assert driven.at(4, *removed("r0", "r1", "r2")).keys() == {"big"}


def test_nothing_is_held_where_nobody_is_in_the_way() -> None:
    """The head can never use the node of the others."""
    driven = Driven(gpu_node("a", 4))
    driven.at(0, *running(4, hours=2))
    driven.at(1, lone("big", 4), ev.NodeChanged(gpu_node("b", 1)))
    assert driven.at(2, lone("small")).keys() == {"small"}


def test_without_a_run_time_there_is_no_start_and_no_room_is_held() -> None:
    """It could idle for ever."""
    driven = Driven(gpu_node("a", 4))
    driven.at(0, *running(4, hours=None))
    driven.at(1, lone("big", 4))
    expected = driven.holds()["big"].expected
    assert expected is not None
    assert (expected.sure, expected.start_ms) == (Sure.UNKNOWN, 0)
    assert not driven.state.reservations.by_workload
    assert driven.at(2, *removed("r0", "r1"), lone("small")).keys() == {"small"}
    assert driven.at(3, *removed("r2", "r3", "small")).keys() == {"big"}


def test_run_times_are_learned_from_those_that_ended() -> None:
    driven = Driven(gpu_node("a", 4))
    work = Work(family="ns/Job/train@image")
    for i in range(4):
        driven.at(i * HOUR_MS + 1, lone(f"old{i}", work=work))
        driven.at((i + 1) * HOUR_MS, *removed(f"old{i}", succeeded=True))
    driven.at(5 * HOUR_MS, *(lone(f"new{i}", work=work) for i in range(4)))
    driven.at(5 * HOUR_MS + 1, lone("big", 4))
    expected = driven.holds()["big"].expected
    assert expected is not None
    assert expected.sure is Sure.LEARNED
    assert abs(expected.start_ms - 6 * HOUR_MS) < MINUTE_MS


def test_a_reservation_is_sticky_and_ends_with_its_job() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(0, *running(4, hours=2))
    driven.at(1, lone("big", 4))
    driven.at(2, lone("other", 4, priority=0, created_ms=0))
    assert list(driven.state.reservations.by_workload) == ["pod/big"]
    driven.at(3, *removed("big"))
    assert list(driven.state.reservations.by_workload) == ["pod/other"]


def test_a_higher_priority_in_the_same_queue_takes_the_place_of_the_head() -> None:
    driven = Driven(gpu_node("a", 4), policy=replace(POLICY, preempt=False))
    driven.at(0, *running(4, hours=2))
    driven.at(1, lone("big", 4))
    driven.at(2, lone("urgent", 4, priority=9))
    assert list(driven.state.reservations.by_workload) == ["pod/urgent"]


def test_a_gang_among_small_jobs_starts() -> None:
    """Small jobs for ever: without room held for it the gang would never start."""
    driven = Driven(*(gpu_node(f"n{i}", 8) for i in range(4)))
    count, ends = 0, {}
    started_ms = 0
    for minute in range(0, 240, 10):
        now_ms = minute * MINUTE_MS + 1
        gone = [uid for uid, end_ms in ends.items() if end_ms <= now_ms]
        work = Work(max_runtime_ms=40 * MINUTE_MS)
        new = [lone(f"s{count + i}", 4, work=work, queue="small") for i in range(6)]
        count += 6
        events = [*removed(*gone), queue("small"), queue("large"), *new]
        if minute == 60:
            events += [gang("g", 4), *members(4, "g", 8, queue="large", work=Work(preempts=False))]
        binds = driven.at(now_ms, *events)
        for uid in gone:
            del ends[uid]
        ends |= {uid: now_ms + (20 + 10 * (len(ends) % 3)) * MINUTE_MS for uid in binds if uid.startswith("s")}
        if "g0" in binds:
            started_ms = now_ms
            break
    assert 60 * MINUTE_MS < started_ms <= 110 * MINUTE_MS


# Victims.


def two_teams(**more: object) -> Driven:
    """Team y has taken what team x is guaranteed half of."""
    driven = Driven(gpu_node("a", 4))
    driven.at(0, queue("x", 2, **more), queue("y", 2, **more), *(lone(f"y{i}", queue="y") for i in range(4)))
    return driven


def test_what_is_guaranteed_is_taken_back() -> None:
    driven = two_teams()
    assert driven.at(MINUTE_MS, lone("x0", 2, queue="x")) == {}
    [evict] = evictions(driven)
    assert (evict.cause, len(evict.uids), evict.nominations) == ("reclaim", 2, (("x0", "a"),))
    assert driven.holds()["x0"].reason is Reason.EVICTING
    assert driven.at(MINUTE_MS + 1) == {}
    assert evictions(driven) == []
    assert driven.at(MINUTE_MS + 2, *removed(evict.uids[0])) == {}
    assert driven.at(MINUTE_MS + 3, *removed(evict.uids[1])).keys() == {"x0"}
    assert not driven.state.reservations.by_workload


def test_nobody_takes_the_room_of_an_awaited_job() -> None:
    driven = two_teams()
    driven.at(MINUTE_MS, lone("x0", 2, queue="x"))
    [evict] = evictions(driven)
    assert driven.at(MINUTE_MS + 1, *removed(evict.uids[0]), lone("new", queue="y", priority=9)) == {}


def test_more_than_is_due_is_not_taken() -> None:
    driven = two_teams()
    driven.at(MINUTE_MS, lone("x0", 3, queue="x"))
    assert evictions(driven) == []


def test_two_queues_do_not_take_from_each_other_in_turns() -> None:
    driven = two_teams()
    driven.at(MINUTE_MS, lone("x0", 2, queue="x"))
    [evict] = evictions(driven)
    back = [lone(f"{uid}again", queue="y") for uid in evict.uids]
    driven.at(MINUTE_MS + 1, *removed(*evict.uids), *back)
    for i in range(5):
        driven.at(2 * MINUTE_MS + i * MINUTE_MS)
        assert evictions(driven) == []


def test_a_pod_that_ran_less_than_its_queue_grants_is_left_alone_until_then() -> None:
    driven = two_teams(reclaim_min_runtime_ms=10 * MINUTE_MS)
    driven.at(MINUTE_MS, lone("x0", 2, queue="x"))
    assert evictions(driven) == []
    wake_ms = driven.state.next_wake_ms()
    assert wake_ms is not None
    driven.at(11 * MINUTE_MS)
    assert len(evictions(driven)) == 1


def test_a_budget_is_kept() -> None:
    driven = two_teams()
    everybody = ev.BudgetChanged(Budget("ns", "pdb", LabelSelector(), 1))
    driven.at(MINUTE_MS, everybody, lone("x0", 2, queue="x"))
    assert evictions(driven) == []
    driven.at(MINUTE_MS + 1, ev.BudgetChanged(Budget("ns", "pdb", LabelSelector(), 2)))
    assert len(evictions(driven)) == 1


def test_an_eviction_that_fails_is_dropped() -> None:
    driven = two_teams()
    driven.at(MINUTE_MS, lone("x0", 2, queue="x"))
    [evict] = evictions(driven)
    driven.at(MINUTE_MS + 1, ev.EvictionFailed(evict.uids[0], "its budget is used up"))
    dropped = [decision for decision in driven.last if isinstance(decision, Unnominate)]
    assert [decision.uids for decision in dropped] == [("x0",)]
    [other] = evictions(driven)
    assert evict.uids[0] not in other.uids


def test_an_eviction_that_takes_too_long_is_dropped() -> None:
    driven = two_teams()
    driven.at(MINUTE_MS, lone("x0", 2, queue="x"))
    driven.at(MINUTE_MS + DEADLINE_MS + 1)
    assert any(isinstance(decision, Unnominate) for decision in driven.last)


def test_a_higher_priority_goes_before_a_lower_one_of_the_same_queue() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(0, *(lone(f"p{i}") for i in range(4)))
    driven.at(MINUTE_MS, lone("urgent", 2, priority=9))
    [evict] = evictions(driven)
    assert (evict.cause, len(evict.uids)) == ("preempt", 2)
    driven.at(MINUTE_MS + 1, lone("equal", 1, priority=0))
    assert evictions(driven) == []


def test_whole_gangs_are_evicted() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(0, queue("x", 2), queue("y"), gang("g", 4), *members(4, "g", queue="y"))
    driven.at(MINUTE_MS, lone("x0", 1, queue="x"))
    [evict] = evictions(driven)
    assert set(evict.uids) == {"g0", "g1", "g2", "g3"}


def test_a_queue_at_its_limit_evicts_for_a_higher_priority_of_its_own() -> None:
    driven = Driven(gpu_node("a", 8))
    limited = ev.QueueChanged(Queue("x", limit=((GPU, 3000),)))
    driven.at(0, limited, *(lone(f"p{i}", queue="x") for i in range(3)), lone("other"))
    driven.at(MINUTE_MS, lone("urgent", 2, queue="x", priority=9))
    [evict] = evictions(driven)
    assert (evict.cause, len(evict.uids)) == ("preempt", 2)
    assert driven.at(MINUTE_MS + 1, *removed(*evict.uids)).keys() == {"urgent"}
    driven.at(2 * MINUTE_MS, lone("equal", 2, queue="x", priority=9))
    assert evictions(driven) == []
    assert driven.holds()["equal"].reason is Reason.QUEUE_LIMIT


def test_what_is_freed_below_a_limit_above_is_kept_for_its_preemptor() -> None:
    """There is room for a pod of the sibling on the nodes; below the limit there is none."""
    driven = Driven(gpu_node("a", 8))
    events = [ev.QueueChanged(Queue("top", limit=((GPU, 2000),))), queue("x", parent="top"), queue("y", parent="top")]
    driven.at(0, *events, lone("p0", queue="x"), lone("p1", queue="x"))
    driven.at(MINUTE_MS, lone("urgent", 2, queue="x", priority=9))
    [evict] = evictions(driven)
    assert (evict.cause, set(evict.uids)) == ("preempt", {"p0", "p1"})
    assert driven.at(MINUTE_MS + 1, *removed("p0"), lone("q", queue="y", priority=10)) == {}
    assert driven.holds()["q"].reason is Reason.QUEUE_LIMIT
    assert driven.at(MINUTE_MS + 2, *removed("p1")).keys() == {"urgent"}


def test_what_others_of_the_queue_were_promised_counts() -> None:
    """Two jobs that are each within the guarantee, and together are not."""
    driven = Driven(gpu_node("a", 8))
    driven.at(0, queue("x", 4), queue("y", 4), *(lone(f"y{i}", queue="y") for i in range(8)))
    driven.at(MINUTE_MS, lone("a", 3, queue="x"), lone("b", 3, queue="x", created_ms=1))
    driven.at(MINUTE_MS + 1)
    assert len(driven.state.reservations.by_workload) >= 1
    assert len(evictions(driven)) == 0
    driven.at(2 * MINUTE_MS)
    assert evictions(driven) == []


def test_a_large_job_is_not_evicted_for_a_little_too_much() -> None:
    driven = Driven(gpu_node("a", 8), gpu_node("b", 8))
    driven.at(0, queue("x"), queue("y"), *(lone(f"y{i}", 8, queue="y") for i in range(2)))
    driven.at(MINUTE_MS, lone("x0", 2, queue="x"))
    assert evictions(driven) == []


def test_room_on_a_node_that_is_gone_is_held_elsewhere() -> None:
    driven = Driven(gpu_node("a", 4), gpu_node("b", 4))
    work = Work(max_runtime_ms=HOUR_MS)
    driven.at(0, *(lone(f"a{i}", 4, work=work) for i in range(2)))
    driven.at(1, lone("big", 4))
    [slot] = driven.state.reservations.by_workload["pod/big"].slots.tolist()
    name = driven.state.cluster.nodes.names[slot]
    driven.at(MINUTE_MS, ev.NodeRemoved(name))
    [other] = driven.state.reservations.by_workload["pod/big"].slots.tolist()
    assert other != slot


def test_two_users_of_a_queue_do_not_displace_each_other_for_ever() -> None:
    """One stays within the guarantee and comes first, the other has the higher priority and wants more than that."""
    driven = Driven(gpu_node("n", 4))
    runs = {"node": "n", "bound_ms": 1, "work": Work(max_runtime_ms=HOUR_MS, preemptible=False)}
    used = Usage(1, used=4000 * HOUR_MS, users=(("bob", 4000 * HOUR_MS),))
    reported = [queue("x", 3, by_user=True, usage=used), queue("y", 1), lone("r", 4, queue="y", **runs)]
    small = lone("small", 1, queue="x", user="ann", created_ms=1)
    large = lone("large", 4, queue="x", user="bob", priority=5, created_ms=1)
    driven.at(2, *reported, small, large)
    for _ in range(9):
        driven.at(2)
    assert not driven.state.busy
    assert [one.workload for one in driven.state.reservations] == ["pod/small"]


def test_room_that_is_held_for_one_of_a_gang_is_kept_though_another_never_fits() -> None:
    """Else it was held and released in every step, for ever."""
    driven = Driven(gpu_node("n", 2))
    ends = Work(max_runtime_ms=HOUR_MS, preemptible=False)
    reported = [
        queue("x", limit=((GPU, 4000),)),
        lone("r", 1, queue="y", node="n", bound_ms=1, work=ends),
        queue("y", 1),
    ]
    driven.at(2, *reported, gang("g", 1), *members(1, "g", queue="x", created_ms=1))
    later = [
        *members(1, "g", 1, first=1, queue="x", created_ms=3),
        *members(1, "g", 8, first=2, queue="x", created_ms=3),
    ]
    driven.at(3, *later)
    for _ in range(5):
        driven.at(3)
    assert not driven.state.busy
    assert [one.workload for one in driven.state.reservations] == ["g"]
