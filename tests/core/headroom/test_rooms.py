# SPDX-License-Identifier: Apache-2.0
"""Headroom: room for more instances of a serving workload, which others use until it is needed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core import checkpoint
from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.headroom import rooms
from dovetail.core.headroom.headroom import Headroom
from dovetail.core.headroom.layout import MOST_IN_VAIN, HeadroomLayout
from dovetail.core.model import CPU, GPU, LabelSelector, Maintenance, Pod, Request, Requirement, Work
from dovetail.core.queues.guarantee_calendar import GuaranteeCalendar, GuaranteeWindow
from dovetail.core.queues.types import Budget, Queue
from dovetail.core.reasons import Reason
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, SECOND_MS, World, gang, node, pod, queue

SOON_MS = 2000


def serving(name: str, gpus: int = 4, instances: int = 1, within_ms: int = SOON_MS, **more: object) -> Pod:
    fields: dict[str, object] = {"queue": "web", "made_for": "Deployment/llama", "owner": "ns/set-of-llama"}
    work = Work(headroom=instances, headroom_within_ms=within_ms)
    return pod(name, gpus, work=work, **(fields | more))


def lender(name: str, gpus: int = 1, grace_ms: int = 1000, **more: object) -> Pod:
    """A job of the queue of training that ends so soon."""
    return pod(name, gpus, work=Work(grace_ms=grace_ms), **({"queue": "lab"} | more))


def world(nodes: int = 2, guaranteed: float | None = 16, **more: object) -> World:
    made = World(*(node(f"n{i}", 8) for i in range(nodes)), grace_ms=None)
    made.apply_events(queue("web", guaranteed), queue("lab", **more))
    return made


def headroom(of: World) -> Headroom:
    (one,) = of.state.headrooms.rooms.values()
    return one


def test_room_for_one_more_instance_is_kept_from_jobs_that_end_slowly() -> None:
    here = world()
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(*(lender(f"train{i}", grace_ms=30_000) for i in range(16)))
    here.live(MINUTE_MS)
    assert here.gpus("web", "lab") == [4, 8]
    (refusal, *others) = {str(one) for one in here.refusals.values()}
    assert not others
    assert "of queue 'web', promised within 2 s; the job returns room within 31 s" in refusal


def test_jobs_that_end_soon_use_it_and_return_it_within_the_promise() -> None:
    here = world()
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(*(lender(f"train{i}") for i in range(16)))
    here.live(MINUTE_MS)
    assert here.gpus("web", "lab") == [4, 12]
    asked_ms = here.now_ms
    here.submit(serving("llama2"))
    here.live(SOON_MS)
    assert "llama2" in here.running
    assert here.state.workloads.pods["llama2"].bound_ms - asked_ms <= SOON_MS
    assert len(here.gave_way) == 4, "no more than the instance needs"


def test_without_headroom_it_takes_as_long_as_the_jobs_take_to_end() -> None:
    here = world()
    here.submit(pod("llama", 4, queue="web"))
    here.live(SECOND_MS)
    here.submit(*(lender(f"train{i}", grace_ms=30_000) for i in range(16)))
    here.live(MINUTE_MS)
    asked_ms = here.now_ms
    here.submit(pod("llama2", 4, queue="web"))
    here.live(MINUTE_MS)
    assert here.state.workloads.pods["llama2"].bound_ms - asked_ms >= 30_000


def test_it_is_part_of_the_guarantee() -> None:
    here = world(guaranteed=10)
    here.submit(serving("llama", instances=3))
    here.live(SECOND_MS)
    assert (headroom(here).stated, headroom(here).due, len(headroom(here).places)) == (3, 1, 1)
    here.submit(serving("llama2", instances=3))
    here.live(SECOND_MS)
    assert (headroom(here).due, headroom(here).places) == (0, ())


def test_a_queue_without_a_guarantee_keeps_none() -> None:
    here = world(guaranteed=None)
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    assert headroom(here).places == ()
    assert "guarantee" in headroom(here).lack
    here.submit(*(lender(f"train{i}", grace_ms=30_000) for i in range(16)))
    here.live(MINUTE_MS)
    assert here.gpus("lab") == [12]


def test_two_workloads_of_one_queue_share_its_guarantee() -> None:
    here = world(guaranteed=12)
    here.submit(serving("llama"), serving("qwen", 2, made_for="Deployment/qwen", instances=9))
    here.live(SECOND_MS)
    rooms = here.state.headrooms.rooms
    assert {key: len(room.places) for key, room in rooms.items()} == {
        "ns/Deployment/llama": 1,
        "ns/Deployment/qwen": 1,
    }


def test_it_moves_where_another_job_fits_only_so() -> None:
    here = world(nodes=2)
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    (place,) = headroom(here).places
    elsewhere = 1 - place[0]
    # A job that wants the whole other node, and a small one there: the headroom has to be on the node of the first.
    first = here.state.cluster.nodes.names[place[0]]
    assert here.running["llama"] == first
    here.submit(lender("wide", 8, grace_ms=30_000))
    here.live(SECOND_MS)
    assert here.running["wide"] == here.state.cluster.nodes.names[elsewhere]
    here.submit(lender("small", 1, grace_ms=30_000))
    here.live(SECOND_MS)
    assert "small" not in here.running
    here.ends("wide")
    here.live(SECOND_MS)
    assert "small" in here.running
    assert len(headroom(here).places) == 1


def test_an_instance_fits_where_it_is_kept_whatever_lies_between() -> None:
    """Room for one on each of two nodes is no room for two on one."""
    here = world(nodes=2)
    here.submit(serving("llama", 8))
    here.live(SECOND_MS)
    here.submit(*(lender(f"one{i}", 1, grace_ms=30_000) for i in range(8)))
    here.live(MINUTE_MS)
    assert here.gpus("lab") == [0]


def test_a_job_of_the_same_queue_and_a_higher_priority_may_use_it_and_an_equal_one_may_not() -> None:
    here = world(nodes=1)
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(pod("equal", 4, queue="web"))
    here.live(MINUTE_MS)
    assert "equal" not in here.running
    here.submit(pod("urgent", 4, queue="web", priority=5))
    here.live(MINUTE_MS)
    assert "urgent" in here.running


def test_jobs_that_must_not_be_evicted_return_nothing() -> None:
    here = world(nodes=1, guaranteed=8)
    here.apply_events(queue("lab", 4), queue("web", 8))
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(pod("fixed", 1, queue="lab", work=Work(grace_ms=0, preemptible=False)))
    here.live(MINUTE_MS)
    assert here.refusals["fixed"].reason is Reason.HEADROOM
    assert "must not be evicted" in here.refusals["fixed"].detail


def test_jobs_of_a_disruption_budget_return_nothing() -> None:
    here = world(nodes=1)
    anything = LabelSelector((Requirement("app", "In", ("x",)),))
    here.apply_events(ev.BudgetChanged(Budget("ns", "keep", anything, 5)))
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(lender("kept", labels=(("app", "x"),)), lender("other"))
    here.live(MINUTE_MS)
    assert here.running.keys() == {"llama", "other"}


def test_a_least_run_time_that_an_admin_set_counts() -> None:
    here = world(nodes=1, reclaim_min_runtime_ms=MINUTE_MS)
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(lender("train"))
    here.live(MINUTE_MS)
    assert "returns room within 62 s" in here.refusals["train"].detail


def test_a_gang_returns_its_room_as_a_whole() -> None:
    here = world(nodes=2)
    here.submit(serving("llama", 8))
    here.live(SECOND_MS)
    here.apply_events(gang("g", 2))
    here.submit(lender("g0", 4, gang="g"), lender("g1", 4, 30_000, gang="g"))
    here.live(MINUTE_MS)
    assert here.running.keys() == {"llama"}, "one of its pods ends slowly"


def test_instances_are_gangs() -> None:
    """Two pods of 8 GPUs each, on two of four nodes: one more instance needs the other two."""
    here = world(nodes=4, guaranteed=32)
    here.apply_events(gang("i0", 2))
    here.submit(*(serving(f"i0-{n}", 8, gang="i0", made_for="LeaderWorkerSet/llama") for n in range(2)))
    here.live(SECOND_MS)
    assert sorted(map(len, headroom(here).places)) == [2]
    here.submit(*(lender(f"train{i}", 4) for i in range(4)))
    here.live(MINUTE_MS)
    assert here.gpus("lab") == [16]
    here.apply_events(gang("i1", 2))
    here.submit(*(serving(f"i1-{n}", 8, gang="i1", made_for="LeaderWorkerSet/llama") for n in range(2)))
    here.live(SOON_MS)
    assert {"i1-0", "i1-1"} <= here.running.keys()


@pytest.mark.parametrize("label", [{"rack": "r9"}, {}])
def test_instances_are_in_one_domain_also_where_the_labels_of_a_node_change(label: dict[str, str]) -> None:
    here = World(*(node(f"n{i}", 8, {"rack": f"r{i // 2}"}) for i in range(4)), grace_ms=None)
    here.apply_events(queue("web", 32), gang("i0", 2, required=("rack",)))
    here.submit(*(serving(f"i0-{n}", 8, gang="i0", made_for="LeaderWorkerSet/llama") for n in range(2)))
    here.live(SECOND_MS)
    ((_, slot),) = headroom(here).places
    name = here.state.cluster.nodes.names[slot]
    here.apply_events(ev.NodeChanged(node(name, 8, label)))
    here.live(SECOND_MS)
    assert headroom(here).places == (), "its two nodes are in no rack together"
    here.apply_events(ev.NodeChanged(node(name, 8, {"rack": "r0" if name in ("n0", "n1") else "r1"})))
    here.live(2 * SECOND_MS)
    assert len(headroom(here).places) == 1


def test_what_claims_devices_keeps_no_room_and_has_a_reason() -> None:
    here = world()
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(serving("llama2", device_claims=("ns/gpu",)))
    here.live(SECOND_MS)
    assert headroom(here).places == ()
    assert "claim" in headroom(here).lack


def test_it_ends_with_the_last_pod() -> None:
    here = world(nodes=1)
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.submit(lender("train", 8, 30_000))
    here.live(MINUTE_MS)
    assert "train" not in here.running
    here.ends("llama")
    here.live(SECOND_MS)
    assert here.state.headrooms.rooms == {}
    assert "train" in here.running


def test_a_node_that_goes_takes_its_headroom_along_and_it_comes_back_with_room() -> None:
    here = world(nodes=2)
    here.submit(serving("llama", 8))
    here.live(SECOND_MS)
    (place,) = headroom(here).places
    name = here.state.cluster.nodes.names[place[0]]
    here.apply_events(ev.NodeChanged(node(name, 8, {}).__replace__(maintenance=Maintenance())))
    here.live(MINUTE_MS)
    assert headroom(here).places == ()
    here.apply_events(ev.NodeChanged(node("n9", 8)))
    here.live(MINUTE_MS)
    assert len(headroom(here).places) == 1


def test_beyond_its_guarantee_an_instance_delays_no_job_that_waits() -> None:
    """The second scale-up has no guarantee, nor has the job that waits for the other node."""
    here = world(guaranteed=8)
    first = replace(serving("llama"), node="n0", bound_ms=1)
    old = replace(lender("old", 4), work=Work(grace_ms=30_000, max_runtime_ms=HOUR_MS))
    here.submit(first, replace(old, node="n1", bound_ms=1))
    here.live(SECOND_MS)
    here.submit(lender("job", 8))
    here.live(SECOND_MS)
    assert "pod/job" in here.state.reservations.by_workload
    here.submit(serving("llama2"), serving("llama3"))
    here.live(SECOND_MS)
    assert here.running == {"llama": "n0", "llama2": "n0", "old": "n1"}
    assert here.refusals["llama3"].reason is Reason.RESERVED
    assert "pod/job" in here.state.reservations.by_workload


def test_nobody_is_evicted_so_that_headroom_is_whole() -> None:
    here = world(nodes=1)
    here.submit(lender("train", 4, 30_000))
    here.live(SECOND_MS)
    here.submit(serving("llama"))
    here.live(HOUR_MS)
    assert here.gave_way == []
    assert (headroom(here).due, headroom(here).places) == (1, ())
    here.submit(lender("next", 4, 30_000))
    here.ends("train")
    here.live(MINUTE_MS)
    assert "next" not in here.running, "headroom comes back before those that wait"


@pytest.mark.parametrize("instances", [1, 3])
def test_two_instances_at_once_take_different_room(instances: int) -> None:
    here = world(nodes=2)
    here.submit(serving("llama", instances=instances))
    here.live(SECOND_MS)
    here.submit(*(lender(f"train{i}") for i in range(16)))
    here.live(MINUTE_MS)
    here.submit(serving("llama2", instances=instances), serving("llama3", instances=instances))
    here.live(SOON_MS)
    assert {"llama2", "llama3"} <= here.running.keys()
    assert len(here.gave_way) == 8


def test_gpus_beside_headroom_on_its_node_are_free_for_all() -> None:
    here = world(nodes=1, guaranteed=6)
    here.submit(serving("llama", 3))
    here.live(SECOND_MS)
    here.submit(*(lender(f"train{i}", 1, 30_000) for i in range(8)))
    here.live(MINUTE_MS)
    assert here.gpus("web", "lab") == [3, 2]
    assert dict(here.state.cluster.nodes.records[0].allocatable)[GPU] == 8


def test_a_least_run_time_that_an_admin_set_is_kept_and_the_instance_starts_as_soon_as_it_is_over() -> None:
    here = world(nodes=1, reclaim_min_runtime_ms=90 * SECOND_MS)
    here.submit(serving("llama", within_ms=2 * MINUTE_MS))
    here.live(SECOND_MS)
    here.submit(lender("train", 4))
    here.live(SECOND_MS)
    asked_ms = here.now_ms
    here.submit(serving("llama2", within_ms=2 * MINUTE_MS))
    here.live(2 * MINUTE_MS)
    ((evicted_ms, _, names),) = here.evictions
    assert names == ("train",)
    assert evicted_ms >= 90 * SECOND_MS
    assert here.state.workloads.pods["llama2"].bound_ms - asked_ms <= 92 * SECOND_MS


def test_what_is_guaranteed_to_a_queue_above_is_kept_from_no_sibling() -> None:
    here = World(node("n0", 8), node("n1", 8), grace_ms=None)
    here.apply_events(queue("all", 16), queue("web", None, parent="all"), queue("lab", 16, parent="all"))
    here.submit(serving("llama", instances=3))
    here.live(SECOND_MS)
    assert (headroom(here).due, headroom(here).places) == (0, ())
    assert "no guarantee of its own" in headroom(here).lack
    here.submit(*(lender(f"train{i}", 4, 30_000) for i in range(3)))
    here.live(MINUTE_MS)
    assert here.gpus("web", "lab") == [4, 12]
    assert here.gave_way == []


def test_pods_of_another_queue_take_nothing_by_the_guarantee_of_the_queue() -> None:
    """Those of the queue `free` wait before, as large as it is the instance of `web`, and of the same object."""
    here = World(node("n0", 8), node("n1", 8), grace_ms=None)
    here.apply_events(queue("web", 8), queue("lab", 8), queue("free", 0))
    here.submit(*(lender(f"train{i}", 2) for i in range(6)), serving("llama"))
    here.live(SECOND_MS)
    assert len(headroom(here).places) == 1
    here.apply_events(*(ev.PodChanged(serving(f"x{i}", queue="free", created_ms=0)) for i in range(3)))
    here.live(MINUTE_MS)
    assert headroom(here).queue == "web"
    assert here.gpus("web", "lab", "free") == [4, 12, 0]
    assert here.gave_way == []


@pytest.mark.parametrize("gone", [False, True])
def test_a_queue_that_is_stopped_or_gone_keeps_none(gone: bool) -> None:
    here = world()
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    here.apply_events(ev.QueueRemoved("web") if gone else queue("web", 16, stop="Hold"))
    here.submit(*(lender(f"train{i}", 4, 30_000) for i in range(3)))
    here.live(MINUTE_MS)
    assert here.gpus("lab") == [12]
    assert headroom(here).lack
    here.apply_events(queue("web", 16))
    here.ends("train0")
    here.live(MINUTE_MS)
    assert len(headroom(here).places) == 1


def test_a_node_that_is_gone_is_no_place_in_a_checkpoint() -> None:
    here = world()
    here.submit(serving("llama", 8))
    here.live(SECOND_MS)
    ((slot,),) = headroom(here).places
    here.apply_events(ev.NodeRemoved(here.state.cluster.nodes.names[slot]))
    taken = checkpoint.take(here.state)
    restored = checkpoint.restore(here.state.policy, taken)
    assert list(restored.cluster.nodes.slots) == [here.running["llama"]]
    assert checkpoint.take(restored) == taken


def test_scale_ups_that_are_withdrawn_are_forgotten_and_a_restored_state_goes_on_with_the_others() -> None:
    here = world()
    here.submit(serving("llama", 8), serving("other", 1, made_for="Deployment/other"))
    here.live(SECOND_MS)
    here.state.headrooms.scale_ups.clear()
    here.submit(serving("at-once", 8))
    here.apply_events(ev.PodRemoved("at-once", here.now_ms))
    here.submit(serving("later", 8, gated=True), serving("unstated", 8, gated=True))
    here.live(SECOND_MS)
    asked_ms = here.state.headrooms.scale_ups["later"].asked_ms
    here.submit(pod("unstated", 8, queue="web", gated=True))
    here.live(SECOND_MS)
    assert here.state.headrooms.scale_ups.keys() == {"later"}
    restored = checkpoint.restore(here.state.policy, checkpoint.take(here.state))
    restored.headrooms.take_over(here.state.headrooms)
    step(restored, (), here.now_ms + SECOND_MS)
    assert restored.headrooms.scale_ups["later"].asked_ms == asked_ms


@pytest.mark.parametrize(("size", "due"), [(rooms.MOST_PODS // 4, 4), (rooms.MOST_PODS + 1, 0)])
def test_large_instances_are_bounded_by_their_pods(size: int, due: int) -> None:
    here = World(node("n0", 8), grace_ms=None)
    here.apply_events(ev.QueueChanged(Queue("web", guarantee=(("cpu", 10**9),))), gang("i0", size))
    tiny = Request(((CPU, 1),))
    here.submit(*(replace(serving(f"i0-{n}", gang="i0", instances=8), request=tiny) for n in range(size)))
    rooms.settle(here.state)
    assert headroom(here).due == due
    assert ("the limit" in headroom(here).lack) == (not due)


def test_it_follows_the_calendar_of_the_guarantee() -> None:
    window = GuaranteeWindow(127, 60, 120, (("gpu", 16_000),))
    here = world()
    here.apply_events(ev.QueueChanged(Queue("web", calendar=GuaranteeCalendar((("gpu", 0),), (window,)))))
    here.submit(serving("llama"))
    here.live(SECOND_MS)
    assert headroom(here).due == 0
    here.live(60 * MINUTE_MS)
    assert len(headroom(here).places) == 1
    here.submit(*(lender(f"train{i}", 4, 30_000) for i in range(3)))
    here.live(MINUTE_MS)
    assert here.gpus("lab") == [8]
    here.live(HOUR_MS)
    assert here.gpus("lab") == [12]


def test_the_reason_names_the_headroom_that_would_be_lost() -> None:
    def on(kind: str, made: Pod) -> Pod:
        return replace(made, request=replace(made.request, node_selector=(("kind", kind),)))

    here = World(node("n0", 4, {"kind": "a"}), node("n1", 8, {"kind": "b"}), grace_ms=None)
    here.apply_events(queue("web", 8), queue("api", 8), queue("lab"))
    here.submit(on("a", serving("web0", 2)))
    here.submit(on("b", serving("api0", 4, queue="api", made_for="Deployment/api", within_ms=5000)))
    here.live(SECOND_MS)
    here.submit(on("b", lender("slow", 4, 30_000)))
    here.live(SECOND_MS)
    assert "of queue 'api', promised within 5 s" in here.refusals["slow"].detail


def test_workloads_that_fit_nowhere_cost_few_searches_and_delay_others_by_seconds_only() -> None:
    here = world(nodes=2, guaranteed=16)
    here.submit(*(lender(f"train{i}") for i in range(16)))
    here.live(SECOND_MS)
    for number in range(3 * MOST_IN_VAIN):
        nowhere = serving(f"a{number:02}", 1, made_for=f"Deployment/a{number:02}")
        here.submit(replace(nowhere, request=replace(nowhere.request, node_selector=(("no", "where"),))))
    here.submit(serving("llama", 1, made_for="Deployment/z", gated=True))
    layout = HeadroomLayout(here.state)
    with here.state.cluster.trial():
        layout.of(rooms.statements_of(here.state), {}, thorough=True)
    assert len(layout.in_vain) == MOST_IN_VAIN
    for _ in range(4):
        again = checkpoint.restore(here.state.policy, checkpoint.take(here.state))
        here.live(SECOND_MS)
        while again.now_ms < here.now_ms:
            wake_ms = again.next_wake_ms()
            step(again, (), min(here.now_ms, wake_ms if wake_ms is not None else here.now_ms))
        assert again.headrooms.rooms == here.state.headrooms.rooms, "a restored state goes on where it was"
    assert len(here.state.headrooms.rooms["ns/Deployment/z"].places) == 1
    assert not here.state.headrooms.in_vain, "it is done for all"
    assert not here.state.headrooms.changed
