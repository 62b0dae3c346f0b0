# SPDX-License-Identifier: Apache-2.0
"""The choice of victims for a job, against all lawful sets of pods on small clusters, and rule by rule."""

import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import Card
from dovetail.core.event_handlers import apply
from dovetail.core.model import (
    CPU,
    GPU,
    PODS,
    Gang,
    HostPort,
    Instance,
    LabelSelector,
    Node,
    Pod,
    Request,
    Requirement,
    Work,
)
from dovetail.core.policy import Policy
from dovetail.core.preemption import search
from dovetail.core.preemption.search import GaveUp, NoPreemption, PreemptionPlan
from dovetail.core.queues.types import Budget, Queue
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.gang_oracle import RACK, gpu_node, gpu_pod, random_tree
from tests.core.preemption.contests import NOW_MS, POLICY, Contest, random_contest

MINUTE_MS = 60_000


def reported(*events: ev.Event, policy: Policy = POLICY) -> State:
    state = State(policy)
    for event in events:
        apply(state, event)
    state.advance(NOW_MS)
    return state


def nodes(*gpus: int, racks: str = "") -> list[ev.Event]:
    return [ev.NodeChanged(gpu_node(f"n{i}", count, rack=racks[i : i + 1])) for i, count in enumerate(gpus)]


def runs(uid: str, node: str, gpus: int = 1, minutes: int = 10, gang: str = "", **more: object) -> ev.Event:
    return ev.PodChanged(
        gpu_pod(uid, gpus, gang, node=node, bound_ms=NOW_MS - minutes * MINUTE_MS, created_ms=1, **more)
    )


def waits(uid: str = "new", gpus: int = 1, priority: int = 1, gang: str = "", **more: object) -> ev.Event:
    return ev.PodChanged(gpu_pod(uid, gpus, gang, priority=priority, created_ms=1, **more))


def gang(gang_id: str, least: int, **more: object) -> ev.Event:
    return ev.GangChanged(Gang(gang_id, "ns", gang_id, least, **more))


def outcome(state: State, root: str = "pod/new") -> PreemptionPlan | GaveUp | NoPreemption:
    """Searched for the root's first group; nothing may be left of the search."""
    before = dict(state.cluster.placements)
    devices = {uid: (p.slot, p.gpu_bits, p.share_bits, p.slices) for uid, p in before.items()}
    found = search.find(state, root, state.workloads.groups(root)[0])
    assert state.cluster.check() == []
    assert state.cluster.placements == before
    assert {uid: (p.slot, p.gpu_bits, p.share_bits, p.slices) for uid, p in before.items()} == devices
    return found


def victims(state: State, root: str = "pod/new") -> set[str]:
    found = outcome(state, root)
    assert isinstance(found, PreemptionPlan), found
    return set(found.uids)


def binds_once_gone(state: State, gone: Iterable[str]) -> dict[str, str]:
    decided = step(state, [ev.PodRemoved(uid) for uid in gone], NOW_MS + 1)
    return {d.uid: d.node for d in decided if isinstance(d, Bind)}


def searched(contest: Contest) -> tuple[State, PreemptionPlan | GaveUp | NoPreemption]:
    state = contest.state()
    return state, outcome(state, "big")


@pytest.mark.slow
@pytest.mark.parametrize("chunk", seeds(2))
def test_a_job_finds_lawful_victims_exactly_where_there_are_some_and_needs_every_one(chunk: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(300 * chunk, 300 * (chunk + 1)):
        contest = random_contest(random.Random(seed))
        if contest.fits_without(set()):
            continue
        lawful = set(contest.lawful(below=1))
        able = [gone for gone in lawful if contest.fits_without(set(gone))]
        _, found = searched(contest)
        kinds[type(found).__name__] += 1
        if not able:
            assert isinstance(found, NoPreemption), seed
            continue
        assert isinstance(found, PreemptionPlan), (seed, found)
        assert frozenset(found.uids) in able, seed
        for unit in found.victims:
            left = set(found.uids) - set(unit.uids)
            assert not contest.fits_without(left), (seed, unit)
    assert min(kinds["PreemptionPlan"], kinds["NoPreemption"]) > 50


@pytest.mark.slow
def test_the_lost_work_is_the_least_there_is_but_for_one_in_a_hundred_random_jobs() -> None:
    best = worse = 0
    for seed in seeds(500):
        contest = random_contest(random.Random(seed))
        if contest.fits_without(set()):
            continue
        losses = [contest.loss(gone) for gone in contest.lawful(below=1) if contest.fits_without(set(gone))]
        _, found = searched(contest)
        if losses and isinstance(found, PreemptionPlan):
            least = contest.loss(frozenset(found.uids)) == min(losses)
            best, worse = best + least, worse + (not least)
    assert best > 125
    assert worse * 100 <= best


@pytest.mark.slow
def test_trees_of_gangs_find_victims_that_are_all_needed_and_mostly_the_cheapest() -> None:
    kinds: Counter[str] = Counter()
    for seed in seeds(350):
        dice = random.Random(seed)
        contest = random_contest(dice)
        tree = random_tree(dice, [dice.choice([1, 2])])
        tree.gang = replace(tree.gang, id="big", name="big", priority=1)
        for sub in tree.below:
            sub.gang = replace(sub.gang, parent="big")
        contest.wanted = tree
        if contest.fits_without(set()):
            continue
        _, found = searched(contest)
        losses = [contest.loss(gone) for gone in contest.lawful(below=1) if contest.fits_without(set(gone))]
        if isinstance(found, PreemptionPlan):
            gone = set(found.uids)
            assert contest.fits_without(gone), seed
            assert not any(contest.fits_without(gone - set(unit.uids)) for unit in found.victims), seed
            kinds["least" if contest.loss(frozenset(gone)) == min(losses) else "more"] += 1
        else:
            assert not losses, (seed, found)
    assert kinds["least"] > 50
    assert kinds["least"] > 9 * kinds["more"]


@pytest.mark.slow
def test_once_the_victims_are_gone_the_job_starts() -> None:
    started = 0
    for seed in range(400):
        contest = random_contest(random.Random(seed))
        if contest.fits_without(set()):
            continue
        state, found = searched(contest)
        if isinstance(found, PreemptionPlan):
            binds = binds_once_gone(state, found.uids)
            assert contest.wanted is not None
            assert sum(uid.startswith("big") for uid in binds) >= contest.wanted.gang.min_count, seed
            started += 1
    assert started > 50


def test_the_result_does_not_depend_on_the_names_of_pods_and_nodes() -> None:
    def placed(names: str) -> list[int]:
        state = reported(
            *(ev.NodeChanged(gpu_node(f"{name}-node", 1)) for name in names),
            *(runs(f"{name}-pod", f"{name}-node") for name in names),
            waits(),
        )
        found = outcome(state)
        assert isinstance(found, PreemptionPlan)
        return [slot for _, slot in found.nominations]

    assert placed("abc") == placed("zyx") == placed("bca")


def test_equal_priorities_are_never_evicted() -> None:
    found = outcome(reported(*nodes(1), runs("p", "n0", priority=5), waits(priority=5)))
    assert isinstance(found, NoPreemption)
    assert "lower priority" in str(found)


def test_a_pod_that_never_preempts_takes_nothing() -> None:
    found = outcome(reported(*nodes(1), runs("p", "n0"), waits(work=Work(preempts=False))))
    assert isinstance(found, NoPreemption)
    assert "preemptionPolicy Never" in str(found)


@pytest.mark.parametrize(
    "spared",
    [
        {"managed": False},
        {"deleting": True},
        {"work": Work(preemptible=False)},
        {"node": "n0", "priority": 1},
    ],
    ids=["not ours", "ending already", "not preemptible", "of equal priority"],
)
def test_a_pod_that_must_not_be_taken_is_left_alone(spared: dict[str, object]) -> None:
    one = gpu_pod("p", 1, **{"node": "n0", "bound_ms": 1, "created_ms": 1, **spared})
    assert isinstance(outcome(reported(*nodes(1), ev.PodChanged(one), waits())), NoPreemption)


def test_a_pod_that_is_placed_but_not_seen_bound_is_left_alone() -> None:
    state = reported(*nodes(1), waits("first", priority=0))
    step(state, [], NOW_MS)
    assert "first" in state.cluster.placements
    apply(state, waits())
    assert isinstance(outcome(state), NoPreemption)


def test_a_pod_that_is_evicted_already_is_left_alone() -> None:
    state = reported(*nodes(1, 1), runs("a", "n0", minutes=1), runs("b", "n1", minutes=2), waits())
    group = state.workloads.groups("pod/new")[0]
    found = search.find(state, "pod/new", group, ending={"a"})
    assert isinstance(found, PreemptionPlan)
    assert found.uids == ("b",)


def test_inside_a_scope_only_its_nodes_are_cleared() -> None:
    state = reported(*nodes(1, 1), runs("a", "n0", minutes=1), runs("b", "n1", minutes=2), waits())
    found = search.find(state, "pod/new", state.workloads.groups("pod/new")[0], np.array([1]))
    assert isinstance(found, PreemptionPlan)
    assert found.uids == ("b",)


def test_a_queue_decides_whether_its_pods_are_preemptible_and_a_pod_may_differ() -> None:
    queue = ev.QueueChanged(Queue("default", preemptible=False))
    shy = [*nodes(1), queue, runs("p", "n0"), waits()]
    assert isinstance(outcome(reported(*shy)), NoPreemption)
    assert victims(reported(*nodes(1), queue, runs("p", "n0", work=Work(preemptible=True)), waits())) == {"p"}


def test_a_queue_grants_its_jobs_a_minimum_run_time() -> None:
    queue = ev.QueueChanged(Queue("default", preempt_min_runtime_ms=5 * MINUTE_MS))
    state = reported(*nodes(1, 1), queue, runs("young", "n0", minutes=4), runs("old", "n1", minutes=6), waits())
    assert victims(state) == {"old"}


def test_a_pod_that_joined_a_gang_later_does_not_protect_those_that_have_run_for_long() -> None:
    queue = ev.QueueChanged(Queue("default", preempt_min_runtime_ms=5 * MINUTE_MS))
    running = [gang("g", 2), runs("g1", "n0", minutes=9, gang="g"), runs("g2", "n1", minutes=1, gang="g")]
    assert victims(reported(*nodes(1, 1), queue, *running, waits())) == {"g1", "g2"}


def test_a_gang_is_evicted_as_a_whole() -> None:
    running = [gang("g", 2), runs("g1", "n0", gang="g"), runs("g2", "n1", gang="g")]
    assert victims(reported(*nodes(1, 1), *running, waits())) == {"g1", "g2"}


def test_what_a_gang_runs_beyond_its_minimum_goes_first_even_where_it_loses_more() -> None:
    running = [gang("g", 1), *(runs(f"g{i}", f"n{i}", minutes=100 + i, gang="g") for i in range(3))]
    state = reported(*nodes(1, 1, 1, 1), *running, runs("alone", "n3", minutes=1), waits())
    assert victims(state) == {"g0"}


def test_a_gang_spares_the_pod_that_stands_where_room_is_needed() -> None:
    running = [gang("g", 2), *(runs(f"g{i}", f"n{i}", minutes=9 - i, gang="g") for i in range(3))]
    state = reported(
        *nodes(1, 1, 1, racks="rst"), *running, waits(gang="big"), gang("big", 1, required=(RACK,), priority=1)
    )
    assert victims(state, "big") == {"g2"}
    assert victims(reported(*nodes(2, 1, 1), *running, runs("stays", "n0", priority=9), waits())) == {"g2"}


def test_a_gang_has_no_more_to_spare_than_it_runs_beyond_its_minimum() -> None:
    running = [gang("g", 2), *(runs(f"g{i}", f"n{i}", gang="g") for i in range(3))]
    two = [gang("big", 2, priority=1), waits("big0", gang="big"), waits("big1", gang="big")]
    assert victims(reported(*nodes(1, 1, 1), *running, *two), "big") == {"g0", "g1", "g2"}


def test_of_a_tree_a_sub_gang_to_spare_goes_whole() -> None:
    tree = [gang("top", 0, min_groups=1), gang("a", 2, parent="top"), gang("b", 2, parent="top")]
    pods = [runs(f"{sub}{i}", f"n{n}", minutes=m, gang=sub) for sub, n, m in (("a", 0, 9), ("b", 1, 3)) for i in (0, 1)]
    assert victims(reported(*nodes(2, 2), *tree, *pods, waits())) == {"b0", "b1"}
    both = [gang("big", 2, priority=1), waits("big0", 2, gang="big"), waits("big1", 2, gang="big")]
    assert victims(reported(*nodes(2, 2), *tree, *pods, *both), "big") == {"a0", "a1", "b0", "b1"}


def test_sub_gangs_that_are_all_needed_take_the_whole_tree_along() -> None:
    tree = [gang("top", 0), gang("a", 1, parent="top"), gang("b", 1, parent="top")]
    pods = [runs("a0", "n0", gang="a"), runs("b0", "n1", gang="b")]
    assert victims(reported(*nodes(1, 1), *tree, *pods, waits())) == {"a0", "b0"}


def test_a_gang_with_one_that_must_not_be_taken_gives_up_only_what_it_can_spare() -> None:
    fixed = Work(preemptible=False)
    pair = [gang("g", 1), runs("g0", "n0", gang="g", work=fixed), runs("g1", "n1", gang="g")]
    assert victims(reported(*nodes(1, 1), *pair, waits())) == {"g1"}
    assert isinstance(outcome(reported(*nodes(1, 1), *pair, waits(gpus=2))), NoPreemption)


def test_the_least_lost_work_counts_checkpoint_interval_and_start_up() -> None:
    saved = {"checkpoint_ms": NOW_MS - MINUTE_MS}
    state = reported(*nodes(1, 1), runs("fresh", "n0", minutes=5), runs("saved", "n1", minutes=90, **saved), waits())
    assert victims(state) == {"saved"}
    often = {"work": Work(checkpoint_interval_ms=2 * MINUTE_MS)}
    state = reported(*nodes(1, 1), runs("fresh", "n0", minutes=5), runs("often", "n1", minutes=90, **often), waits())
    assert victims(state) == {"often"}
    slow = {"work": Work(startup_ms=20 * MINUTE_MS)}
    state = reported(*nodes(1, 1), runs("slow", "n0", minutes=1, **slow), runs("quick", "n1", minutes=15), waits())
    assert victims(state) == {"quick"}


def test_lost_work_is_the_charged_rate_times_what_is_done_again() -> None:
    work = Work(startup_ms=30_000)
    state = reported(*nodes(2), runs("p", "n0", gpus=2, minutes=10, checkpoint_ms=NOW_MS - 5_000, work=work), waits())
    found = outcome(state)
    assert isinstance(found, PreemptionPlan)
    assert found.lost_milli_ms == 2 * 1000 * (5_000 + 30_000)


def test_a_checkpoint_in_the_future_counts_as_one_of_now() -> None:
    state = reported(*nodes(1), runs("p", "n0", minutes=10, checkpoint_ms=NOW_MS + 10**9), waits())
    found = outcome(state)
    assert isinstance(found, PreemptionPlan)
    assert found.lost_milli_ms == 0


def test_a_checkpoint_of_an_earlier_run_does_not_count() -> None:
    state = reported(*nodes(1), runs("p", "n0", minutes=1, checkpoint_ms=5), waits())
    found = outcome(state)
    assert isinstance(found, PreemptionPlan)
    assert found.lost_milli_ms == 1000 * MINUTE_MS


def test_of_equals_the_youngest_goes_and_then_the_one_that_came_first() -> None:
    zero = {"checkpoint_ms": NOW_MS}
    state = reported(*nodes(2), runs("old", "n0", minutes=9, **zero), runs("new2", "n0", minutes=3, **zero), waits())
    assert victims(state) in ({"old"}, {"new2"})
    running = [runs(f"p{i}", "n0", minutes=4) for i in range(3)]
    assert victims(reported(*nodes(3), *running, waits())) == {"p0"}


def app(name: str) -> tuple[tuple[str, str], ...]:
    return (("app", name),)


def budget(name: str, allowed: int) -> ev.Event:
    selector = LabelSelector((Requirement("app", "In", (name,)),))
    return ev.BudgetChanged(Budget("ns", name, selector, allowed))


def test_a_used_up_budget_protects_its_pods() -> None:
    a, b = runs("a", "n0", minutes=1, labels=app("web")), runs("b", "n1", minutes=9)
    assert victims(reported(*nodes(1, 1), a, b, budget("web", 0), waits())) == {"b"}
    assert victims(reported(*nodes(1, 1), a, b, budget("web", 1), waits())) == {"a"}


def test_victims_stay_within_a_budget_in_sum() -> None:
    web = [runs(f"w{i}", f"n{i}", minutes=1 + i, labels=app("web")) for i in range(2)]
    rest = [runs("other", "n2", minutes=50)]
    pair = [gang("big", 2, priority=1), waits("big0", gang="big"), waits("big1", gang="big")]
    assert victims(reported(*nodes(1, 1, 1), *web, *rest, budget("web", 2), *pair), "big") == {"w0", "w1"}
    assert victims(reported(*nodes(1, 1, 1), *web, *rest, budget("web", 1), *pair), "big") == {"w0", "other"}


def test_where_budgets_leave_too_little_it_is_not_called_impossible() -> None:
    web = [runs(f"w{i}", "n0", labels=app("web")) for i in range(2)]
    found = outcome(reported(*nodes(2), *web, budget("web", 1), waits(gpus=2)))
    assert isinstance(found, GaveUp)
    assert "may be evicted together" in str(found)


def test_a_pod_of_two_budgets_is_never_evicted() -> None:
    both = (*app("web"), ("tier", "front"))
    other = ev.BudgetChanged(Budget("ns", "front", LabelSelector((Requirement("tier", "Exists"),)), 5))
    found = outcome(reported(*nodes(1), runs("p", "n0", labels=both), budget("web", 5), other, waits()))
    assert isinstance(found, NoPreemption)


def test_room_is_made_in_one_rack_where_the_job_needs_one() -> None:
    cheap = [runs(f"c{i}", f"n{2 * i}", minutes=1) for i in range(2)]
    dear = [runs(f"d{i}", f"n{2 * i + 1}", minutes=30) for i in range(2)]
    job = [gang("big", 2, required=(RACK,), priority=1), waits("big0", gang="big"), waits("big1", gang="big")]
    scattered = reported(*nodes(1, 1, 1, 1, racks="rrss"), *cheap, *dear, *job)
    found = victims(scattered, "big")
    assert found in ({"c0", "d0"}, {"c1", "d1"})


def test_members_that_run_pin_the_rack_that_is_cleared() -> None:
    own = [
        gang("big", 2, required=(RACK,), priority=1),
        runs("big0", "n0", gang="big", priority=1),
        waits("big1", gang="big"),
    ]
    others = [runs("here", "n1", minutes=50), runs("there", "n2", minutes=1)]
    assert victims(reported(*nodes(1, 1, 1, racks="rrs"), *own, *others), "big") == {"here"}


def test_each_sub_gang_gets_a_rack_of_its_own_cleared() -> None:
    racks = "rrssttuu"
    running = [runs(f"p{i}", f"n{i}", minutes=m) for i, m in enumerate([9, 9, 1, 1, 2, 2, 1, 50])]
    tree = [
        gang("top", 0, priority=1),
        *(gang(sub, 2, parent="top", required=(RACK,)) for sub in "xy"),
        *(waits(f"{sub}{i}", gang=sub) for sub in "xy" for i in range(2)),
    ]
    assert victims(reported(*nodes(*[1] * 8, racks=racks), *running, *tree), "top") == {"p2", "p3", "p4", "p5"}


def test_mig_instances_are_freed_on_one_card_where_the_job_needs_them() -> None:
    small, whole = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    node = Node("m0", ((small, 2), (whole, 1), (CPU, 8000), (PODS, 99)))

    def slices(name: str) -> Request:
        return Request(((name, 1),))

    state = reported(
        ev.NodeChanged(node),
        *(
            ev.PodChanged(
                Pod(uid, "ns", uid, slices(name), node="m0", bound_ms=NOW_MS - minutes * MINUTE_MS, created_ms=1)
            )
            for uid, name, minutes in (("s0", small, 1), ("s1", small, 2), ("w", whole, 90))
        ),
        ev.PodChanged(Pod("new", "ns", "new", slices(whole), priority=1)),
    )
    assert victims(state) == {"w"}


def test_named_mig_instances_are_freed_for_a_job_that_asks_for_them() -> None:
    a100 = of_product("NVIDIA A100-SXM4-40GB")
    assert a100 is not None
    small, big = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
    instances = (("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6))
    amounts = ((CPU, 8000), (big, 1), ("nvidia.com/mig-2g.10gb", 1), (small, 1), (PODS, 99))
    node = Node("m0", amounts, mig=(Card(0, a100, a100.bits(instances)),), geometry=a100)

    def running(uid: str, name: str, minutes: int) -> ev.Event:
        bound_ms = NOW_MS - minutes * MINUTE_MS
        return ev.PodChanged(Pod(uid, "ns", uid, Request(((name, 1),)), node="m0", bound_ms=bound_ms))

    new = Pod("new", "ns", "new", Request(((big, 1),)), priority=1)
    state = reported(ev.NodeChanged(node), running("s", small, 1), running("b", big, 90), ev.PodChanged(new))
    assert victims(state) == {"b"}
    step(state, [ev.PodRemoved("b")], NOW_MS + 1)
    assert state.cluster.slices.instances(state.cluster.placements["new"]) == (Instance(0, "3g.20gb", 0),)


def test_a_share_of_a_gpu_evicts_only_holders_of_one_gpu() -> None:
    def half(uid: str, minutes: int, device: int, milli: int = 500) -> ev.Event:
        request = Request(((CPU, 100),), gpu_milli=milli)
        bound_ms = NOW_MS - minutes * MINUTE_MS
        return ev.PodChanged(
            Pod(uid, "ns", uid, request, node="n0", bound_ms=bound_ms, created_ms=1, devices=(device,))
        )

    node = Node("n0", ((CPU, 8000), (GPU, 2), (PODS, 99)), gpu_memory_mib=1000)
    running = [half("a", 1, 0), half("b", 1, 1), half("c", 9, 0), half("d", 3, 1)]
    assert victims(reported(ev.NodeChanged(node), *running, waits())) == {"b", "d"}


def test_a_port_that_is_taken_is_freed() -> None:
    port = (HostPort("", "TCP", 80),)

    def serving(gpus: int) -> Request:
        return Request(((GPU, gpus),), ports=port)

    web = replace(gpu_pod("web", 1, node="n0", bound_ms=1, created_ms=1), request=serving(1))
    new = replace(gpu_pod("new", 1, priority=1, created_ms=1), request=serving(1))
    state = reported(*nodes(4), ev.PodChanged(web), runs("other", "n0"), ev.PodChanged(new))
    assert victims(state) == {"web"}


def test_a_search_that_is_stopped_reports_it_and_not_that_nothing_helps() -> None:
    policy = replace(POLICY, probes=0)
    state = reported(*nodes(1, 1), runs("a", "n0"), runs("b", "n1"), waits(), policy=policy)
    found = outcome(state)
    assert isinstance(found, GaveUp)
    assert "in 0 dry runs" in str(found)
    limited = reported(
        *nodes(1, 1, racks="rs"), runs("a", "n0"), runs("b", "n1"),
        gang("big", 1, required=(RACK,), priority=1), waits("big0", gang="big"),
        policy=replace(POLICY, search_limit=0),
    )  # fmt: skip
    assert isinstance(outcome(limited, "big"), GaveUp)


def test_what_was_found_when_trials_run_out_is_used() -> None:
    running = [runs(f"p{i}", "n0", minutes=1 + i) for i in range(4)]
    state = reported(*nodes(4), *running, waits(gpus=4), policy=replace(POLICY, probes=2))
    assert victims(state) == {"p0", "p1", "p2", "p3"}


def test_a_gang_makes_room_for_its_minimum_and_not_for_more() -> None:
    running = [runs(f"p{i}", f"n{i}", minutes=1 + i) for i in range(3)]
    job = [gang("big", 1, priority=1), *(waits(f"big{i}", gang="big") for i in range(3))]
    found = outcome(reported(*nodes(1, 1, 1), *running, *job), "big")
    assert isinstance(found, PreemptionPlan)
    assert found.uids == ("p0",)
    assert len(found.nominations) == 1


def queued(name: str, gpus: int = 0, **more: object) -> ev.Event:
    return ev.QueueChanged(Queue(name, guarantee=(("gpu", gpus * 1000),) if gpus else (), **more))


def test_a_queue_takes_back_what_is_due_to_it_from_one_that_has_more_than_is_due() -> None:
    a = [runs(f"a{i}", f"n{i}", minutes=10 - i, queue="a") for i in range(4)]
    state = reported(*nodes(1, 1, 1, 1), queued("a", 2), queued("b", 2), *a, waits(priority=0, queue="b"))
    found = outcome(state)
    assert isinstance(found, PreemptionPlan)
    assert (found.uids, found.cause) == (("a3",), "reclaim")


def test_a_queue_takes_no_more_than_what_is_due_to_it() -> None:
    a = [runs(f"a{i}", f"n{i}", queue="a") for i in range(4)]
    state = reported(*nodes(1, 1, 1, 1), queued("a", 2), queued("b", 2), *a, waits(gpus=1, priority=9, queue="b"))
    step(state, [ev.PodRemoved("a0"), ev.PodRemoved("a1")], NOW_MS + 1)
    three = [gang("big", 3, priority=9), *(waits(f"big{i}", priority=9, gang="big", queue="b") for i in range(3))]
    for event in three:
        apply(state, event)
    assert isinstance(search.find(state, "big", state.workloads.groups("big")[0]), NoPreemption)


def test_between_queues_the_minimum_run_time_before_reclaim_counts() -> None:
    a = [runs("a0", "n0", minutes=3, queue="a"), runs("a1", "n1", minutes=9, queue="a")]
    old = queued("a", reclaim_min_runtime_ms=5 * MINUTE_MS, preempt_min_runtime_ms=60 * MINUTE_MS)
    state = reported(*nodes(1, 1), old, queued("b", 1), *a, waits(priority=0, queue="b"))
    assert victims(state) == {"a1"}


def test_what_was_taken_is_not_taken_back_in_the_same_instant() -> None:
    a = [runs(f"a{i}", f"n{i}", queue="a") for i in range(2)]
    state = reported(*nodes(1, 1), queued("a", 1), queued("b", 1), *a, waits(priority=0, queue="b"))
    found = outcome(state)
    assert isinstance(found, PreemptionPlan)
    step(state, [ev.PodRemoved(uid) for uid in found.uids], NOW_MS + 1)
    new = state.workloads.pods["new"]
    node = state.cluster.nodes.names[state.cluster.placements["new"].slot]
    apply(state, ev.PodChanged(replace(new, node=node, bound_ms=NOW_MS + 1)))
    apply(state, waits("again", priority=0, queue="a"))
    assert isinstance(search.find(state, "pod/again", state.workloads.groups("pod/again")[0]), NoPreemption)


def test_where_the_cheapest_may_not_all_be_taken_others_are() -> None:
    a = [runs(f"a{i}", f"n{i}", minutes=1, queue="a") for i in range(3)]
    c = [runs(f"c{i}", f"n{3 + i}", minutes=50, queue="c") for i in range(3)]
    queues = [queued("a", 2), queued("b", 2), queued("c", 2)]
    job = [gang("big", 2), *(waits(f"big{i}", priority=0, gang="big", queue="b") for i in range(2))]
    found = outcome(reported(*nodes(*[1] * 6), *queues, *a, *c, *job), "big")
    assert isinstance(found, PreemptionPlan)
    assert Counter(uid[0] for uid in found.uids) == {"a": 1, "c": 1}


def test_the_time_in_which_a_pod_is_idle_is_no_work_that_it_would_lose() -> None:
    idle = {"idle_since_ms": NOW_MS - 50 * MINUTE_MS}
    pair = runs("busy", "n0", minutes=15), runs("idle", "n1", minutes=60, **idle)
    assert victims(reported(*nodes(1, 1), *pair, waits())) == {"idle"}
    other = ev.QueueChanged(Queue("default", idle_first=False))
    assert victims(reported(*nodes(1, 1), other, *pair, waits())) == {"busy"}


@pytest.mark.parametrize(
    ("idle_ago", "more", "minutes"),
    [
        (4, {}, 6),
        # Before its start, and from its last checkpoint on: nothing is lost.
        (11, {}, 0),
        (4, {"checkpoint_ms": NOW_MS - 2 * MINUTE_MS}, 0),
        (4, {"checkpoint_ms": NOW_MS - 7 * MINUTE_MS}, 3),
        (4, {"work": Work(checkpoint_interval_ms=2 * MINUTE_MS)}, 2),
        (4, {"work": Work(startup_ms=MINUTE_MS)}, 7),
        # A clock of a node that is ahead.
        (-60, {}, 10),
    ],
)
def test_work_is_lost_up_to_the_time_since_which_the_pod_is_idle(
    idle_ago: int, more: dict[str, object], minutes: int
) -> None:
    idle_ms = NOW_MS - idle_ago * MINUTE_MS
    found = outcome(reported(*nodes(1), runs("p", "n0", minutes=10, idle_since_ms=idle_ms, **more), waits()))
    assert isinstance(found, PreemptionPlan)
    assert found.lost_milli_ms == 1000 * minutes * MINUTE_MS
