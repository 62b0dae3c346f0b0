# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint keeps. (The state machine in test_cluster_machine.py goes on from checkpoints, too.)"""

from __future__ import annotations

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, GPU, PODS, Gang, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.state import State

NODE = Node("n", ((CPU, 8000), (GPU, 4), (PODS, 20)))


def restored(state: State) -> State:
    return restore(state.policy, take(state))


def pod(uid: str, request: Request, **more: object) -> Pod:
    return Pod(uid, "ns", uid, request, **more)  # type: ignore[arg-type]


def placed(*pods: Pod) -> State:
    state = State(Policy())
    decided = step(state, [ev.NodeChanged(NODE), *(ev.PodChanged(p) for p in pods)], 0)
    assert all(isinstance(d, Bind) for d in decided)
    return state


def devices(state: State) -> dict[str, tuple[int, ...]]:
    return {uid: placement.devices for uid, placement in state.cluster.placements.items()}


def test_pods_keep_the_very_gpus_that_they_hold() -> None:
    one, share = Request(((GPU, 1),)), Request(gpu_milli=400)
    state = placed(pod("a", one), pod("s", share), pod("b", one), pod("t", share))
    step(state, [ev.PodRemoved("a"), ev.PodRemoved("s")], 1)
    step(state, [ev.PodChanged(pod("u", Request(gpu_milli=700)))], 2)
    again = restored(state)
    assert devices(again) == devices(state) != devices(placed(pod("b", one), pod("t", share)))
    assert again.cluster.check() == []
    assert (again.cluster.nodes.free[:, 0] == state.cluster.nodes.free[:, 0]).all()


def test_a_decided_pod_keeps_its_place_and_is_not_decided_again() -> None:
    again = restored(placed(pod("a", Request(((GPU, 4),)), nominated_node="n", priority=9)))
    assert not again.cluster.nominated
    [refused] = step(again, [ev.PodChanged(pod("b", Request(((GPU, 1),))))], 1)
    assert isinstance(refused, Hold)


def test_a_pod_that_could_not_be_bound_stays_away_until_its_time() -> None:
    state = placed(pod("a", Request()))
    apply(state, ev.BindFailed("a", "n", "no", retry_at_ms=500))
    again = restored(state)
    assert isinstance(step(again, (), 100)[0], Hold)
    assert isinstance(step(again, (), 500)[0], Bind)


def test_a_reported_reason_is_not_reported_again() -> None:
    state = State(Policy())
    [hold] = step(state, [ev.NodeChanged(NODE), ev.PodChanged(pod("a", Request(((GPU, 5),))))], 0)
    assert isinstance(hold, Hold)
    assert step(restored(state), (), 1) == []


def test_a_gang_that_started_takes_a_replacement_at_once_and_one_that_starts_keeps_its_deadline() -> None:
    request = Request(((GPU, 1),))
    members = [pod(uid, request, gang="g", created_ms=5) for uid in "ab"]
    state = State(Policy(start_deadline_ms=1000))
    reported = [ev.NodeChanged(NODE), ev.GangChanged(Gang("g", "ns", "g", 2)), *(ev.PodChanged(p) for p in members)]
    step(state, reported, 10)
    assert restored(state).workloads.lives.due_ms == {"g": 1010}
    for member in members:
        apply(state, ev.PodChanged(pod(member.uid, request, gang="g", created_ms=5, node="n", bound_ms=20)))
    apply(state, ev.PodRemoved("b"))
    again = restored(state)
    [bind] = step(again, [ev.PodChanged(pod("c", request, gang="g", created_ms=6))], 30)
    assert isinstance(bind, Bind)


def test_the_steps_and_the_time_go_on() -> None:
    state = placed(pod("a", Request()))
    step(state, (), 77)
    again = restored(state)
    assert (again.steps, again.now_ms) == (2, 77)
    assert take(restored(again)) == take(again)
