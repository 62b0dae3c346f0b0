# SPDX-License-Identifier: Apache-2.0
"""MIG instances in placement: which ones a pod gets, where it goes, and the reason when it finds none."""

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.devices.mig.plan import InstanceChange
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import Card
from dovetail.core.events import NodeChanged, PodChanged, PodRemoved
from dovetail.core.model import CPU, GPU, PODS, Instance, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State

A100 = of_product("NVIDIA A100-SXM4-40GB")
assert A100 is not None
SMALL, MIDDLE, BIG = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb"


def card(gpu: int, *instances: tuple[str, int], assumed: bool = False) -> Card:
    assert A100 is not None
    return Card(gpu, A100, A100.bits(instances), assumed)


SMALL_ONES = tuple(("1g.5gb", start) for start in range(7))
MIXED = (("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6))


def node(name: str, *cards: Card, whole: int = 0, labels: tuple[tuple[str, str], ...] = ()) -> Node:
    amounts = {CPU: 64_000, PODS: 110, GPU: whole}
    for one in cards:
        for profile, _ in one.geometry.members(one.instances):
            resource = one.geometry.profiles[profile].resource
            amounts[resource] = amounts.get(resource, 0) + 1
    return Node(name, tuple(sorted(amounts.items())), labels, mig=cards, geometry=A100)


def pod(name: str, *asked: tuple[str, int], at: int = 0, **more: object) -> Pod:
    return Pod(name, "default", name, Request(tuple(sorted(asked))), created_ms=at, **more)  # type: ignore[arg-type]


def reported(*nodes: Node) -> State:
    state = State(Policy())
    step(state, [NodeChanged(one) for one in nodes], 0)
    return state


def bind(state: State, wanted: Pod, now: int = 1) -> Bind:
    [decision] = step(state, [PodChanged(wanted)], now)
    assert isinstance(decision, Bind), decision
    assert state.cluster.check() == []
    return decision


def hold(state: State, wanted: Pod, now: int = 1) -> Hold:
    [decision] = step(state, [PodChanged(wanted)], now)
    assert isinstance(decision, Hold), decision
    return decision


def test_a_pod_gets_named_instances_and_no_two_pods_the_same() -> None:
    state = reported(node("a", card(0, *SMALL_ONES)))
    held = [bind(state, pod(f"p{i}", (SMALL, 1), at=i)).instances for i in range(7)]
    assert set(held) == {(Instance(0, "1g.5gb", start),) for start in range(7)}
    assert hold(state, pod("p7", (SMALL, 1), at=7)).refusal.reason is Reason.NO_NODE_FITS


def test_instances_come_from_cards_in_use_so_that_idle_cards_stay_idle() -> None:
    state = reported(node("a", card(0, *SMALL_ONES), card(1, *MIXED)), node("b", card(0, *MIXED), card(1, *SMALL_ONES)))
    first = bind(state, pod("p", (BIG, 1)))
    for i in range(6):
        more = bind(state, pod(f"s{i}", (SMALL, 1), at=i))
        if i == 0:
            assert (more.node, more.instances[0].gpu) == (first.node, first.instances[0].gpu)
        assert more.node == first.node


def test_several_instances_of_one_pod_are_on_one_node_and_the_reason_reports_it() -> None:
    state = reported(node("a", card(0, *SMALL_ONES)), node("b", card(0, *SMALL_ONES)))
    bind(state, pod("p", (SMALL, 1)))
    refusal = hold(state, pod("ten", (SMALL, 10))).refusal
    assert refusal.when is When.NEVER
    assert "all of these nodes together have 14, but a pod uses only one node's" in str(refusal)
    both = bind(state, pod("seven", (SMALL, 7)))
    assert both.node == "b" and len(both.instances) == 7


def test_what_was_written_down_is_held_again() -> None:
    state = reported(node("a", card(0, *SMALL_ONES)))
    written = Instance(0, "1g.5gb", 3)
    step(state, [PodChanged(pod("p", (SMALL, 1), node="a", instances=(written,)))], 1)
    placement = state.cluster.placements["p"]
    assert state.cluster.slices.instances(placement) == (written,)


def test_instances_are_free_again_when_their_pod_is_gone() -> None:
    state = reported(node("a", card(0, *MIXED)))
    bind(state, pod("p", (BIG, 1)))
    hold(state, pod("q", (BIG, 1), at=1))
    [again] = step(state, [PodRemoved("p")], 2)
    assert isinstance(again, Bind) and again.uid == "q"
    assert state.cluster.check() == []


def test_a_node_that_is_divided_anew_gives_its_pods_what_it_has_now() -> None:
    state = reported(node("a", card(0, *SMALL_ONES)))
    bind(state, pod("p", (SMALL, 2)))
    step(state, [NodeChanged(node("a", card(0, *MIXED), card(1, *SMALL_ONES)))], 2)
    assert len(state.cluster.slices.instances(state.cluster.placements["p"])) == 2
    assert state.cluster.check() == []


def test_a_state_that_is_restored_holds_the_same_instances() -> None:
    state = reported(node("a", card(0, *SMALL_ONES), card(1, *MIXED)))
    for i, profile in enumerate((SMALL, BIG, SMALL, MIDDLE)):
        bind(state, pod(f"p{i}", (profile, 1), at=i))
    step(state, [PodRemoved("p0")], 2)
    again = restore(state.policy, take(state))
    assert again.cluster.check() == []
    held = {uid: state.cluster.slices.instances(p) for uid, p in state.cluster.placements.items()}
    assert held == {uid: again.cluster.slices.instances(p) for uid, p in again.cluster.placements.items()}


def test_idle_instances_could_be_divided_anew_and_used_ones_never_are() -> None:
    state = reported(node("a", card(0, *SMALL_ONES)))
    used = bind(state, pod("p", (SMALL, 1))).instances[0]
    refusal = hold(state, pod("big", (BIG, 1))).refusal
    assert refusal.repartition is not None and refusal.repartition.node == "a"
    [change] = refusal.repartition.changes
    assert used.start not in [start for _, start in change.destroy]
    assert change.create[0][0] == "3g.20gb"
    assert "divided anew: a: GPU 0: destroy 1g.5gb@" in str(refusal)


def test_a_whole_idle_gpu_can_be_divided_and_a_used_one_not() -> None:
    state = reported(node("a", whole=2))
    bind(state, pod("p", (GPU, 1)))
    found = hold(state, pod("small", (SMALL, 1))).refusal.repartition
    assert found is not None
    assert [(change.gpu, change.turns_on, change.resets) for change in found.changes] == [(1, True, True)]
    bind(state, pod("q", (GPU, 1), at=1), 2)
    assert hold(state, pod("other", (SMALL, 2), at=2), 20_000).refusal.repartition is None


def test_a_card_of_which_nobody_knows_the_layout_is_not_divided() -> None:
    state = reported(node("a", card(0, *SMALL_ONES, assumed=True)))
    assert hold(state, pod("big", (BIG, 1))).refusal.repartition is None


def test_a_change_states_what_it_does() -> None:
    change = InstanceChange(2, (("1g.5gb", 0),), (("2g.10gb", 0),), True, True)
    assert str(change) == "GPU 2: MIG mode on (resets the card), destroy 1g.5gb@0, create 2g.10gb@0"
