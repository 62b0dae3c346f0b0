# SPDX-License-Identifier: Apache-2.0
"""Shares of GPUs: where a pod may have one, that nothing is promised twice, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cluster.placement import Placement
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.kubelet.inventory import DevicePool, Inventory, ManagedDevice
from dovetail.core.devices.kubelet.pods import ManagedContainer
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, GPU, PODS, SHARED_GPU, Gang, Node, Pod, Request
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.placing.scores import INFEASIBLE
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State
from tests.breadth import BREADTH
from tests.core.oracle import Cards

SLICED_TIME = Sharing(GPU, 4, 2)
TIME = Sharing(SHARED_GPU, 2, 4)
MPS = Sharing(SHARED_GPU, 2, 4, "memory", one_only=True)


def node(name: str, sharing: Sharing | None = None, gpus: int = 0, **more: Any) -> Node:
    """A node of this sharing, or of as many whole GPUs; cards have 24,000 MiB."""
    amounts = {CPU: 64_000, GPU: gpus, PODS: 110}
    if sharing is not None:
        amounts[sharing.resource] = (sharing.cards or 1) * sharing.replicas
    kind = {"gpu_memory_mib": 24_000, "sharing": sharing} | more
    return Node(name, tuple(sorted(amounts.items())), **kind)


def ask(resource: str = SHARED_GPU, count: int = 1, **more: Any) -> Request:
    return Request(((resource, count),), **more)


def pod(uid: str, request: Request, **more: Any) -> Pod:
    return Pod(uid, "ns", uid, request, **more)


def placed(state: State, *requests: Request) -> dict[str, str]:
    """uid -> node of what is bound of pods that come one after the other."""
    found = {}
    for i, request in enumerate(requests):
        uid = f"p{len(state.workloads.pods)}-{i}"
        for decision in step(state, [ev.PodChanged(pod(uid, request, created_ms=i))], 0):
            if isinstance(decision, Bind):
                found[decision.uid] = decision.node
        assert state.cluster.check() == []
    return found


def of(*nodes: Node) -> State:
    state = State()
    for one in nodes:
        apply(state, ev.NodeChanged(one))
    return state


def refusal(state: State, request: Request) -> Refusal:
    decisions = step(state, [ev.PodChanged(pod("asks", request))], 0)
    (held,) = [d.refusal for d in decisions if isinstance(d, Hold)]
    return held


def reasons(state: State, request: Request) -> list[tuple[Reason, When]]:
    return [(count.reason, count.when) for count in refusal(state, request).nodes]


def cards_of(state: State) -> list[int]:
    """The first GPU of each placed pod."""
    return [placement.devices[0] for placement in state.cluster.placements.values()]


def test_memory_of_a_card_is_allocated_once_and_the_tightest_card_first() -> None:
    state = of(node("n", TIME))
    sizes = [ask(gpu_memory_mib=mib) for mib in (16_000, 10_000, 8_000, 12_000, 2_000)]
    assert len(placed(state, *sizes)) == 5
    assert cards_of(state) == [0, 1, 0, 1, 1]  # 16,000 and 8,000 are all that a card has.
    assert reasons(state, ask(gpu_memory_mib=200)) == [(Reason.GPU_SHARE, When.NOT_YET)]


def test_replicas_of_a_card_are_no_more_than_it_has_however_little_they_take() -> None:
    state = of(node("n", TIME))
    assert len(placed(state, *[ask(gpu_memory_mib=1)] * 8)) == 8
    assert Counter(cards_of(state)) == {0: 4, 1: 4}
    assert reasons(state, ask(gpu_memory_mib=1)) == [(Reason.INSUFFICIENT, When.NOT_YET)]


def test_a_pod_without_an_amount_takes_the_equal_part() -> None:
    state = of(node("n", TIME))
    placed(state, ask(gpu_milli=900), ask(gpu_milli=900))
    assert reasons(state, ask()) == [(Reason.GPU_SHARE, When.NOT_YET)]
    assert len(placed(of(node("n", TIME)), *[ask()] * 9)) == 8


def test_with_mps_nobody_has_more_than_the_equal_part_or_less() -> None:
    state = of(node("n", MPS))
    assert reasons(state, ask(gpu_memory_mib=6_001)) == [(Reason.GPU_MEMORY, When.NEVER)]
    assert reasons(of(node("n", MPS)), ask(gpu_milli=251)) == [(Reason.GPU_MEMORY, When.NEVER)]
    assert len(placed(of(node("n", MPS)), *[ask(gpu_memory_mib=6_000), ask(gpu_memory_mib=1), ask(), ask()] * 2)) == 8


def test_each_replica_of_a_pod_is_of_another_card() -> None:
    state = of(node("n", Sharing(SHARED_GPU, 3, 2)))
    assert len(placed(state, ask(count=2), ask(count=2), ask(count=2))) == 3
    assert all(len(set(p.devices)) == 2 for p in state.cluster.placements.values())
    assert reasons(of(node("n", TIME)), ask(count=3)) == [(Reason.GPU_SHARE, When.NEVER)]


@pytest.mark.parametrize("sharing", [MPS, replace(TIME, one_only=True)])
def test_more_than_one_replica_is_refused_where_the_plugin_would_reject_it(sharing: Sharing) -> None:
    assert reasons(of(node("n", sharing)), ask(count=2)) == [(Reason.GPU_PARTS, When.NEVER)]
    assert reasons(of(node("n", replace(sharing, resource=GPU))), ask(GPU, 2)) == [(Reason.GPU_PARTS, When.NEVER)]


def test_several_slices_are_no_gpus_that_work_together() -> None:
    state = of(node("n", gpus=7, sliced=True))
    assert reasons(state, ask(GPU, 2)) == [(Reason.GPU_PARTS, When.NEVER)]
    assert len(placed(of(node("n", gpus=7, sliced=True)), *[ask(GPU, isolation="strong")] * 8)) == 7


@pytest.mark.parametrize(
    ("wants", "names"),
    [("", {"whole", "mps", "time", "unclear"}), ("memory", {"whole", "mps"}), ("strong", {"whole"})],
)
def test_isolation_is_what_the_node_gives_at_least(wants: str, names: set[str]) -> None:
    nodes = [
        node("whole", gpus=1),
        node("mps", Sharing(GPU, 1, 2, "memory", one_only=True)),
        node("time", Sharing(GPU, 1, 2)),
        node("unclear", Sharing(GPU, 0, 1)),
    ]
    state = of(*nodes)
    assert set(placed(state, *[ask(GPU, isolation=wants)] * 6).values()) == names
    if wants == "strong":
        reported = refusal(state, ask(GPU, isolation="strong"))
        assert "3 node(s) whose GPUs are shared with less isolation than the pod demands (demands strong)" in str(
            reported
        )


@pytest.mark.parametrize("more", [{}, {"gpus": 4}, {"sliced": True, "gpus": 4}])
def test_memory_that_the_gpus_of_a_node_do_not_have_is_refused_with_what_they_have(more: dict[str, Any]) -> None:
    sharing = None if more else replace(TIME, resource=GPU)
    reported = refusal(of(node("n", sharing, **more)), ask(GPU, gpu_memory_mib=24_001))
    assert str(reported) == (
        "0/1 nodes are available: 1 node(s) whose GPUs, or the parts of them, have less memory than requested "
        "(24001 MiB of a GPU) (n has at most 24000 MiB for one pod)."
    )


def test_where_the_memory_is_not_known_none_is_promised_and_nodes_without_gpus_lack_gpus() -> None:
    state = of(node("unknown", gpus=1, gpu_memory_mib=0), node("none", gpu_memory_mib=0))
    reported = refusal(state, ask(GPU, gpu_memory_mib=1))
    assert [(count.reason, count.nodes) for count in reported.nodes] == [
        (Reason.GPU_MEMORY, 1),
        (Reason.INSUFFICIENT, 1),
    ]
    assert "unknown does not report the memory of its GPUs" in str(reported)


def test_where_it_is_not_clear_how_gpus_are_shared_they_are_counted_and_nothing_is_promised() -> None:
    unclear = node("n", Sharing(SHARED_GPU, 0, 9))
    assert len(placed(of(unclear), *[ask()] * 10)) == 9
    assert len(placed(of(unclear), ask(count=9))) == 1
    assert reasons(of(unclear), ask(gpu_memory_mib=1)) == [(Reason.GPU_SHARE, When.NEVER)]


def test_slices_come_before_whole_gpus_and_these_before_replicas() -> None:
    state = of(node("shared", replace(TIME, resource=GPU)), node("whole", gpus=1), node("sliced", gpus=1, sliced=True))
    assert list(placed(state, *[ask(GPU)] * 3).values()) == ["sliced", "whole", "shared"]


def test_replicas_come_before_whole_gpus_where_a_part_is_enough() -> None:
    state = of(node("whole", gpus=1), node("shared", Sharing(GPU, 1, 4)))
    assert list(placed(state, *[ask(GPU, gpu_memory_mib=12_000)] * 3).values()) == ["shared", "shared", "whole"]


def test_several_gpus_are_whole_ones_as_long_as_there_are_any_however_tightly_replicas_would_fit() -> None:
    state = of(node("shared", Sharing(GPU, 2, 2)), node("whole", gpus=4))
    assert list(placed(state, *[ask(GPU, 2)] * 3).values()) == ["whole", "whole", "shared"]


def test_a_whole_gpu_beside_shared_ones_is_no_replica() -> None:
    state = of(node("n", Sharing(SHARED_GPU, 1, 2), gpus=1))
    assert len(placed(state, *[ask(gpu_milli=900)] * 2)) == 1
    assert list(placed(state, ask(GPU)).values()) == ["n"]


def test_a_part_of_a_gpu_that_nobody_offers_as_such_is_counted_by_memory_too() -> None:
    """As in simulations: pods that ask for no device."""
    state = of(node("n", gpus=2))
    assert len(placed(state, *[Request(gpu_memory_mib=9_000)] * 5)) == 4
    assert Counter(cards_of(state)) == {0: 2, 1: 2}
    assert reasons(of(node("n", MPS), node("s", gpus=1, sliced=True)), Request(gpu_milli=100)) == [
        (Reason.GPU_SHARE, When.NEVER)
    ]


def test_the_card_that_was_written_down_is_held_again_if_it_has_room() -> None:
    for devices, card in (((1,), 1), ((7,), 0), ((0, 1), 0), (None, 0)):
        state = of(node("n", TIME))
        apply(state, ev.PodChanged(pod("p", ask(gpu_milli=400), node="n", devices=devices)))
        assert cards_of(state) == [card]
    state = of(node("n", Sharing(SHARED_GPU, 1, 4), gpus=1))
    apply(state, ev.PodChanged(pod("p", ask(gpu_milli=400), node="n", devices=(0,))))
    assert (cards_of(state), state.cluster.check()) == ([1], [])


def test_a_gang_that_fits_shared_gpus_when_empty_waits_and_one_that_does_not_never_starts() -> None:
    def reported(count: int) -> Refusal:
        state = of(node("n", TIME))
        apply(state, ev.PodChanged(pod("first", ask(gpu_milli=600), node="n")))
        gang = ev.GangChanged(Gang("g", "ns", "g", count))
        members = [ev.PodChanged(pod(f"g{i}", ask(gpu_milli=500), gang="g")) for i in range(count)]
        return next(d.refusal for d in step(state, [gang, *members], 0) if isinstance(d, Hold))

    assert (reported(4).reason, reported(4).detail) == (Reason.GANG_DOES_NOT_FIT, "needs 4 pods, 2 fit now")
    assert reported(5).reason is Reason.GANG_TOO_LARGE


def test_several_replicas_for_each_of_several_pods_are_found_wherever_there_is_a_way() -> None:
    """The tightest cards first would leave the last pod with two replicas of one card."""
    state = of(node("n", Sharing(SHARED_GPU, 3, 4)))
    for card, milli in enumerate((750, 750, 500)):
        apply(state, ev.PodChanged(pod(f"on{card}", ask(gpu_milli=milli), node="n", devices=(card,))))
    assert len(placed(state, *[ask(count=2, gpu_milli=250)] * 3)) == 2
    held = [p.devices for uid, p in state.cluster.placements.items() if not uid.startswith("on")]
    assert held == [(0, 2), (1, 2)]


def test_the_books_of_a_kubelet_count_replicas_and_slices() -> None:
    """What its plugin calls a GPU is a part of one: the kubelet still knows when there is no device left."""
    pool = DevicePool(GPU, tuple(ManagedDevice(str(i), (i // 4,)) for i in range(8)))
    inventory = Inventory(numa=(0, 1), topology_policy="single-numa-node", devices=(pool,))
    managed = ManagedPod((ManagedContainer(((GPU, 1),), ((GPU, 1),)),))
    for kind in ({"sharing": replace(TIME, resource=GPU)}, {"sliced": True, "gpus": 8}):
        state = of(node("n", inventory=inventory, **kind))
        assert len(placed(state, *[ask(GPU, managed=managed)] * 9)) == 8
        books = state.cluster.kubelets.books[0].stock.holdings
        assert books.devices[GPU] == 0b11111111
        twin = restore(state.policy, take(state))
        assert twin.cluster.kubelets.books[0].stock.holdings.devices == books.devices
        assert twin.cluster.check() == []


@pytest.mark.parametrize(
    ("name", "offered", "stated"),
    [
        ("nvidia.com/mig-1g.7gb", "nvidia.com/mig-1g.10gb", "no such MIG profile; nearest valid value: "),
        ("nvidia.com/mig-1g.24gb", "nvidia.com/mig-1g.23gb", "nearest valid value: nvidia.com/mig-1g.23gb"),
        ("nvidia.com/mig-9g.999gb", "nvidia.com/mig-9g.999gb", ""),
        ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", ""),
    ],
)
def test_a_mig_resource_that_no_node_offers_is_reported_with_the_nearest_name(
    name: str, offered: str, stated: str
) -> None:
    """Rightly spelt names that the table of products does not have may be offered all the same."""
    state = of(Node("n", (("cpu", 1), (offered, 1), (PODS, 9))))
    reported = str(refusal(state, ask(name, 2)))
    assert f"needs 2, n has at most {int(name == offered)}" in reported
    assert stated in reported if stated else f"; {name}" not in reported


KINDS = [
    node("n", gpus=2),
    node("n", gpus=3, gpu_memory_mib=0),
    node("n", gpus=3, gpu_memory_mib=10_000),
    node("n", TIME),
    node("n", replace(TIME, resource=GPU)),
    node("n", MPS),
    node("n", replace(MPS, resource=GPU)),
    node("n", Sharing(SHARED_GPU, 3, 3)),
    node("n", Sharing(GPU, 3, 2, one_only=True)),
    node("n", Sharing(SHARED_GPU, 2, 2), gpus=2),
    node("n", Sharing(GPU, 0, 5)),
    node("n", gpus=5, sliced=True, gpu_memory_mib=9_000),
    node("n", SLICED_TIME, sliced=True, gpu_memory_mib=9_000),
]
REQUESTS = [
    Request(((CPU, 500),)),
    Request(gpu_milli=300),
    Request(gpu_memory_mib=9_000),
    *(ask(GPU, count, **more) for count in (1, 2) for more in ({}, {"gpu_memory_mib": 8_000}, {"gpu_milli": 300})),
    *(ask(count=count, **more) for count in (1, 1, 2) for more in ({}, {"gpu_memory_mib": 5_000}, {"gpu_milli": 400})),
    ask(gpu_memory_mib=23_999),
    ask(gpu_memory_mib=1),
    ask(GPU, isolation="strong"),
    ask(isolation="memory", gpu_memory_mib=2_000),
]
kinds, requests = st.sampled_from(KINDS), st.sampled_from(REQUESTS)


class Machine(RuleBasedStateMachine):
    """Nodes whose GPUs are divided one way now and another way later, under running pods."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.count = 0

    @initialize(first=kinds, second=kinds)
    def start(self, first: Node, second: Node) -> None:
        self.change_node("n0", first)
        self.change_node("n1", second)

    @rule(name=st.sampled_from(["n0", "n1"]), kind=kinds)
    def change_node(self, name: str, kind: Node) -> None:
        self.nodes[name] = replace(kind, name=name)
        apply(self.state, ev.NodeChanged(self.nodes[name]))

    @rule(name=st.sampled_from(["n0", "n1"]))
    def remove_node(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            apply(self.state, ev.NodeRemoved(name))

    def new(self, request: Request, **more: Any) -> Pod:
        self.count += 1
        found = pod(f"p{self.count}", request, created_ms=self.count, **more)
        self.pods[found.uid] = found
        apply(self.state, ev.PodChanged(found))
        return found

    @rule(wanted=st.lists(requests, min_size=1, max_size=5))
    def pods_come(self, wanted: list[Request]) -> None:
        for request in wanted:
            self.new(request)

    @rule(request=requests, count=st.integers(2, 5))
    def a_gang_comes(self, request: Request, count: int) -> None:
        """As many of it as may start."""
        name = f"g{self.count}"
        apply(self.state, ev.GangChanged(Gang(name, "ns", name, 1)))
        for _ in range(count):
            self.new(request, gang=name)

    @rule(request=requests, name=st.sampled_from(["n0", "n1", "ghost"]), device=st.sampled_from([None, (0,), (1,)]))
    def somebody_else_binds(self, request: Request, name: str, device: tuple[int, ...] | None) -> None:
        self.new(request, node=name, managed=False, devices=device)

    @rule()
    def step(self) -> None:
        """A bound pod is where the rules let it be, whole or in parts of as many cards as it asks for."""
        for bind in step(self.state, (), 0):
            if isinstance(bind, Bind):
                bound = self.pods[bind.uid] = replace(self.pods[bind.uid], node=bind.node, devices=bind.devices)
                apply(self.state, ev.PodChanged(bound))
                cards, amounts = Cards(self.nodes[bind.node]), dict(bound.request.resources)
                assert cards.may_have(bound.request)
                opens = bool(cards.asked(bound.request)) and not amounts.keys() & {GPU, SHARED_GPU}
                parts = cards.replicas(bound.request) if cards.shared else int(opens)
                whole = amounts.get(GPU, 0) if cards.whole else 0
                assert len(bind.devices) == (parts or whole)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[uid]
        apply(self.state, ev.PodRemoved(uid))

    @rule(request=requests, slot=st.integers(0, 1))
    def fill_one_by_one(self, request: Request, slot: int) -> None:
        """A row has how many pods of a shape a node takes: place them until it takes no more."""
        cluster, rows = self.state.cluster, self.state.score_cache
        shape = cluster.shapes.of(request)
        reported, count = int(rows.of(shape).copies()[slot]), 0
        with cluster.trial():
            while rows.of(shape).score[slot] != INFEASIBLE:
                placement = cluster.place(pod(f"try{count}", request), slot)
                self.audit(placement)
                count += 1
            assert cluster.check() == []
        assert count == reported

    def audit(self, placement: Placement) -> None:
        """Whoever is let in gets all that it asked for."""
        cluster = self.state.cluster
        shape, sharing = cluster.shapes.of(placement.pod.request), cluster.nodes.sharing(placement.slot)
        if sharing is not None and sharing.cards and shape.replicas(sharing):
            assert placement.share_bits.bit_count() == shape.replicas(sharing)

    @rule()
    def go_on_from_a_checkpoint(self) -> None:
        before = self.state
        self.state = restore(before.policy, take(before))
        for array in ("free", "gpu_parts", "gpu_seats", "gpu_free_bits"):
            assert arrays(before, array) == arrays(self.state, array)
        assert take(self.state).held == take(before).held

    @invariant()
    def books_are_right(self) -> None:
        assert self.state.cluster.check() == []

    @invariant()
    def no_card_is_promised_beyond_what_it_has(self) -> None:
        for name, one in self.nodes.items():
            memory_mib: Counter[int] = Counter()
            seats: Counter[int] = Counter()
            for placement in on(self.state, name):
                for card in placement.devices if placement.share_bits else ():
                    memory_mib[card] += placement.pod.request.gpu_memory_mib
                    seats[card] += 1
            assert not memory_mib or max(memory_mib.values()) <= one.gpu_memory_mib
            assert one.sharing is None or not seats or max(seats.values()) <= one.sharing.replicas

    @invariant()
    def rows_are_what_they_were_if_made_anew(self) -> None:
        cluster, fresh = self.state.cluster, ScoreCache(self.state.cluster, self.state.policy.scoring)
        for request in REQUESTS[::3]:
            kept, new = self.state.score_cache.of(cluster.shapes.of(request)), fresh.of(cluster.shapes.of(request))
            assert np.array_equal(kept.score, new.score)
            assert np.array_equal(kept.copies(), new.copies())


def on(state: State, name: str) -> Iterator[Placement]:
    slot = state.cluster.nodes.slots.get(name)
    return (placement for placement in state.cluster.placements.values() if placement.slot == slot)


def arrays(state: State, name: str) -> dict[str, list[int]]:
    """An array of the node table by node name, as slots and rows may differ. What no node offers any more has a row of
    its own only in a state that saw it offered."""
    nodes = state.cluster.nodes
    found = {node: np.atleast_1d(getattr(nodes, name)[..., slot]) for node, slot in nodes.slots.items()}
    if name == "free":
        rows = [row for _, row in sorted(nodes.resources.items()) if nodes.allocatable[row].any()]
        return {node: [int(column[row]) for row in rows] for node, column in found.items()}
    return {node: np.trim_zeros(column, "b").tolist() for node, column in found.items()}


Machine.TestCase.settings = settings(max_examples=20 * BREADTH, stateful_step_count=40, deadline=None, derandomize=True)
TestShares = pytest.mark.slow(Machine.TestCase)
