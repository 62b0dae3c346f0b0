# SPDX-License-Identifier: Apache-2.0
"""The Static memory policy: node groups, hints, what it takes and gives back, the errors with which it refuses. Many
cases are those of Kubernetes v1.37's unit tests (memorymanager/policy_static_test.go), in our own words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.devices.kubelet.hints import NO_HINT, Hint, ids_of, mask_of
from dovetail.core.devices.kubelet.holdings import AllocationRefused, Arrival, Block, HeldResources, Holdings
from dovetail.core.devices.kubelet.inventory import Gates, Inventory
from dovetail.core.devices.kubelet.memory import MemoryManager
from dovetail.core.devices.kubelet.pods import Asked, ManagedContainer, ManagedKind, ManagedPod, amounts
from tests.core.devices.kubelet.cpu_machines import (
    GIB,
    arrival,
    container,
    described,
    hint,
    memory_inventory,
    refusal,
    settled,
    unexpected_text,
)
from tests.core.devices.kubelet.memory_oracle import memory_hints

APP, INIT, SIDECAR = ManagedKind.APP, ManagedKind.INIT, ManagedKind.SIDECAR
HUGE = "hugepages-1Gi"


def pod(memory_gib: int, huge_gib: int | None = None) -> ManagedPod:
    return ManagedPod((container(1000, memory_gib=memory_gib, huge_gib=huge_gib),))


def after(inventory: Inventory, *pods: tuple[str, ManagedPod, Hint], holdings: Holdings | None = None) -> Holdings:
    """The holdings once these pods are in, each with what the Topology Manager decided."""
    memory = MemoryManager(inventory)
    now = holdings or Holdings.of_empty(inventory)
    for uid, whole, decided in pods:
        coming = arrival(whole, now, uid)
        for index in range(len(whole.containers)):
            memory.allocate(coming, index, decided)
        now = settled(coming)
    return now


def free_gib(holdings: Holdings, kind: int = -1) -> list[int]:
    """Per NUMA node; `kind` -1 is `memory`, the last type by name."""
    return [node.free_bytes[kind] // GIB for node in holdings.memory]


def groups(holdings: Holdings) -> list[tuple[int, tuple[int, ...]]]:
    return [(node.assignments, ids_of(node.cells)) for node in holdings.memory]


def blocks_gib(coming: Arrival) -> list[dict[str, tuple[tuple[int, ...], int]] | None]:
    return [
        None
        if held.memory is None
        else {block.type: (ids_of(block.mask), block.size_bytes // GIB) for block in held.memory}
        for held in coming.held
    ]


def test_nothing_is_taken_at_first_and_huge_pages_are_no_memory() -> None:
    inventory = memory_inventory([8, 8], [2, 0])
    empty = Holdings.of_empty(inventory)
    assert free_gib(empty) == [8, 8] and free_gib(empty, 0) == [2, 0]
    assert groups(empty) == [(0, (0,)), (0, (1,))]


def test_one_node_is_preferred_where_one_would_do_on_the_empty_machine() -> None:
    inventory = memory_inventory([8, 8])
    memory = MemoryManager(inventory)
    hints = memory.hints(arrival(pod(6), Holdings.of_empty(inventory)), 0)
    assert described(hints["memory"]) == [((0,), True), ((1,), True), ((0, 1), False)]
    now = after(inventory, ("a", pod(6), hint(0)))
    assert described(memory.hints(arrival(pod(6), now), 0)["memory"]) == [((1,), True)]
    assert described(memory.hints(arrival(pod(10), Holdings.of_empty(inventory)), 0)["memory"]) == [((0, 1), True)]


def test_where_nothing_fits_there_is_no_opinion_and_the_refusal_comes_later() -> None:
    inventory = memory_inventory([8, 8])
    memory = MemoryManager(inventory)
    now = after(inventory, ("a", pod(6), hint(0)))
    for size in (10, 17):
        coming = arrival(pod(size), now)
        assert memory.hints(coming, 0) == {} and memory.pod_hints(coming) == {}
        assert refusal(lambda coming=coming: memory.allocate(coming, 0, NO_HINT)) == unexpected_text(
            "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
        )
        assert coming.holdings == now and coming.held == [HeldResources()]


def test_every_type_has_the_same_hints_and_all_must_fit() -> None:
    inventory = memory_inventory([8, 8, 8], [0, 4, 4])
    coming = arrival(pod(2, 3), Holdings.of_empty(inventory))
    hints = MemoryManager(inventory).hints(coming, 0)
    expected = [((1,), True), ((2,), True), ((0, 1), False), ((0, 2), False), ((1, 2), False), ((0, 1, 2), False)]
    assert described(hints["memory"]) == described(hints[HUGE]) == expected
    both = MemoryManager(inventory).hints(arrival(pod(2, 6), Holdings.of_empty(inventory)), 0)
    assert described(both[HUGE]) == [((1, 2), True), ((0, 1, 2), False)]


def test_a_type_that_the_node_lacks_cannot_be_met() -> None:
    inventory = memory_inventory([8, 8])
    coming = arrival(pod(1, 1), Holdings.of_empty(inventory))
    assert MemoryManager(inventory).hints(coming, 0) == {"memory": [], HUGE: []}
    assert "panic" in refusal(lambda: MemoryManager(inventory).allocate(coming, 0, NO_HINT))[1]


def test_a_group_fills_its_nodes_in_order_and_gives_back_in_order() -> None:
    inventory = memory_inventory([8, 8])
    now = after(inventory, ("a", pod(10), hint(0, 1)))
    assert free_gib(now) == [0, 6] and groups(now) == [(1, (0, 1)), (1, (0, 1))]
    now = after(inventory, ("b", pod(5), hint(0, 1)), holdings=now)
    assert free_gib(now) == [0, 1] and groups(now) == [(2, (0, 1)), (2, (0, 1))]
    memory = MemoryManager(inventory)
    memory.release("b", now)
    del now.pods["b"]
    assert free_gib(now) == [5, 1], "the lower node gets it back, though the upper one gave it"
    memory.release("a", now)
    del now.pods["a"]
    assert now == Holdings.of_empty(inventory)


def test_a_container_counts_once_per_type_and_node() -> None:
    inventory = memory_inventory([8, 8], [4, 4])
    now = after(inventory, ("a", pod(10, 0), hint(0, 1)))
    assert groups(now) == [(2, (0, 1)), (2, (0, 1))]
    assert free_gib(now, 0) == [4, 4]


def test_a_node_is_used_alone_or_in_one_group() -> None:
    inventory = memory_inventory([8, 8, 8])
    memory = MemoryManager(inventory)
    grouped = after(inventory, ("a", pod(10), hint(0, 1)))
    small, large = arrival(pod(2), grouped), arrival(pod(5), grouped)
    assert described(memory.hints(small, 0)["memory"]) == [((2,), True), ((0, 1), False)]
    assert described(memory.hints(large, 0)["memory"]) == [((2,), True), ((0, 1), False)]
    alone = after(inventory, ("a", pod(2), hint(0)))
    assert described(memory.hints(arrival(pod(2), alone), 0)["memory"]) == [
        ((0,), True),
        ((1,), True),
        ((2,), True),
        ((1, 2), False),
    ]


def test_without_a_mask_the_own_best_hint_is_used() -> None:
    inventory = memory_inventory([2, 8])
    coming = arrival(pod(4), Holdings.of_empty(inventory))
    MemoryManager(inventory).allocate(coming, 0, Hint(None, True))
    assert blocks_gib(coming) == [{"memory": ((1,), 4)}]


def test_a_preferred_decision_without_a_mask_needs_a_preferred_hint() -> None:
    inventory = memory_inventory([4, 2, 2])
    now = after(inventory, ("a", pod(2), hint(0)))
    memory = MemoryManager(inventory)
    text = "[memorymanager] failed to find the default preferred hint"
    assert refusal(lambda: memory.allocate(arrival(pod(3), now), 0, Hint(None, True))) == unexpected_text(text)
    coming = arrival(pod(3), now)
    memory.allocate(coming, 0, NO_HINT)
    assert blocks_gib(coming) == [{"memory": ((1, 2), 3)}]


def test_a_mask_that_is_too_small_is_extended() -> None:
    inventory = memory_inventory([4, 4, 4])
    memory = MemoryManager(inventory)
    coming = arrival(pod(6), Holdings.of_empty(inventory))
    memory.allocate(coming, 0, hint(1))
    assert blocks_gib(coming) == [{"memory": ((0, 1), 6)}]
    now = after(inventory, ("a", pod(2), hint(0)))
    coming = arrival(pod(6), now)
    memory.allocate(coming, 0, hint(1))
    assert blocks_gib(coming) == [{"memory": ((1, 2), 6)}]


def test_no_superset_of_the_mask_fits() -> None:
    inventory = memory_inventory([4, 4, 4])
    now = after(inventory, ("a", pod(2), hint(0)))
    text = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
    assert refusal(lambda: MemoryManager(inventory).allocate(arrival(pod(3), now), 0, hint(0))) == unexpected_text(text)


def test_a_preferred_mask_is_not_extended_to_one_that_is_not() -> None:
    inventory = memory_inventory([4, 4])
    memory = MemoryManager(inventory)
    base = after(inventory, ("a", pod(3), hint(0, 1)))
    text = "[memorymanager] failed to find the extended preferred hint"
    assert refusal(lambda: memory.allocate(arrival(pod(4), base), 0, hint(0))) == unexpected_text(text)
    coming = arrival(pod(4), base)
    memory.allocate(coming, 0, hint(0, preferred=False))
    assert blocks_gib(coming) == [{"memory": ((0, 1), 4)}]


@pytest.mark.parametrize("before", [hint(0), hint(0, 1)], ids=["used alone", "in another group"])
def test_a_group_across_other_groups_is_refused_since_v1_32(before: Hint) -> None:
    now = after(memory_inventory([8, 8, 8]), ("a", pod(2), before))
    text = "[memorymanager] preferred hint violates NUMA node allocation"
    wanted = hint(0, 1) if before == hint(0) else hint(1, 2)
    newer, older = (MemoryManager(memory_inventory([8, 8, 8], minor=minor)) for minor in (32, 31))
    assert refusal(lambda: newer.allocate(arrival(pod(1), now), 0, wanted)) == unexpected_text(text)
    coming = arrival(pod(1), now)
    older.allocate(coming, 0, wanted)
    assert blocks_gib(coming) == [{"memory": (ids_of(wanted.mask or 0), 1)}]


def test_memory_can_leak_where_a_group_and_a_single_node_overlap() -> None:
    """The kubelet does not look again at masks of one node, and gives back what is taken on a node, whoever took it."""
    inventory = memory_inventory([6, 6])
    memory = MemoryManager(inventory)
    now = after(inventory, ("filler", pod(2), hint(0, 1)), ("group", pod(7), hint(0, 1)))
    assert free_gib(now) == [0, 3]
    memory.release("filler", now)
    del now.pods["filler"]
    now = after(inventory, ("alone", pod(2), hint(0)), holdings=now)
    assert free_gib(now) == [0, 3] and groups(now) == [(2, (0,)), (1, (0, 1))]
    memory.release("group", now)
    memory.release("alone", now)
    assert free_gib(now) == [6, 4] and groups(now) == [(0, (0,)), (0, (1,))], "2 GiB are nobody's, and yet taken"


@pytest.mark.parametrize(
    ("inits", "apps", "left", "taken"),
    [
        ([1, 2], [3, 4], [0, 0], 7),
        ([4, 3], [2, 1], [0, 1], 4),
        ([7, 4], [4, 3], [0, 0], 7),
        ([7, 4], [5, 2], [0, 0], 7),
    ],
)
def test_init_containers_leave_their_memory_to_those_after_them(
    inits: list[int], apps: list[int], left: list[int], taken: int
) -> None:
    inventory = memory_inventory([8, 8], [8, 8])
    kinds = [(INIT, size) for size in inits] + [(APP, size) for size in apps]
    whole = ManagedPod(tuple(container(1000, kind, size, size) for kind, size in kinds))
    coming = arrival(whole, Holdings.of_empty(inventory))
    for index in range(len(kinds)):
        MemoryManager(inventory).allocate(coming, index, hint(0))
    sizes = [blocks["memory"][1] for blocks in blocks_gib(coming) if blocks]
    assert sizes == left + apps
    assert free_gib(coming.holdings) == free_gib(coming.holdings, 0) == [8 - taken, 8]
    assert groups(coming.holdings)[0] == (8, (0,))


def test_a_sidecar_uses_what_init_containers_left_and_keeps_it() -> None:
    inventory = memory_inventory([16])
    kinds = [(INIT, 4), (SIDECAR, 3), (INIT, 2), (APP, 2)]
    coming = arrival(
        ManagedPod(tuple(container(1000, kind, size) for kind, size in kinds)), Holdings.of_empty(inventory)
    )
    for index in range(4):
        MemoryManager(inventory).allocate(coming, index, hint(0))
    sizes = [blocks["memory"][1] for blocks in blocks_gib(coming) if blocks]
    assert sizes == [0, 3, 0, 2] and free_gib(coming.holdings) == [11]


def test_memory_that_was_left_on_other_nodes_is_not_used() -> None:
    inventory = memory_inventory([8, 8])
    coming = arrival(ManagedPod((container(1000, INIT, 4), container(1000, APP, 4))), Holdings.of_empty(inventory))
    memory = MemoryManager(inventory)
    memory.allocate(coming, 0, hint(0))
    memory.allocate(coming, 1, hint(1))
    assert free_gib(coming.holdings) == [4, 4]


def test_what_an_init_container_left_counts_in_the_hints() -> None:
    inventory = memory_inventory([8, 4])
    memory = MemoryManager(inventory)
    coming = arrival(ManagedPod((container(1000, INIT, 6), container(1000, APP, 8))), Holdings.of_empty(inventory))
    memory.allocate(coming, 0, hint(0))
    assert described(memory.hints(coming, 1)["memory"]) == [((0,), True)]
    memory.allocate(coming, 1, hint(0))
    assert free_gib(coming.holdings) == [0, 4]


def test_init_containers_give_back_what_is_left_when_the_next_one_starts() -> None:
    inventory = memory_inventory([8])
    memory = MemoryManager(inventory)
    whole = ManagedPod((container(1000, INIT, 6), container(1000, SIDECAR, 1), container(1000, APP, 2)))
    now = after(inventory, ("pod", whole, hint(0)))
    assert free_gib(now) == [2] and groups(now) == [(3, (0,))]
    memory.started("pod", 0, now)
    assert free_gib(now) == [2]
    memory.started("pod", 1, now)
    assert free_gib(now) == [5] and groups(now) == [(2, (0,))]
    assert [held.memory is None for held in now.pods["pod"].containers] == [True, False, False]
    memory.started("pod", 2, now)
    assert free_gib(now) == [5]
    memory.release("pod", now)
    del now.pods["pod"]
    assert now == Holdings.of_empty(inventory)


def test_a_restarted_kubelet_gives_one_hint_for_what_is_held() -> None:
    inventory = memory_inventory([8, 8], [4, 4])
    memory = MemoryManager(inventory)
    now = after(inventory, ("pod", pod(10, 4), hint(0, 1)))
    same = arrival(pod(10, 4), now)
    assert memory.hints(same, 0) == memory.pod_hints(same) == {"memory": [hint(0, 1)], HUGE: [hint(0, 1)]}
    for other in (pod(9, 4), pod(10, 3), pod(10)):
        assert memory.hints(arrival(other, now), 0) == {}
    memory.allocate(same, 0, hint(1))
    assert same.holdings == now, "what is held is not allocated twice"


@pytest.mark.parametrize(
    ("kinds", "peak"),
    [
        ([(INIT, 9), (APP, 2), (APP, 3)], 9),
        ([(INIT, 4), (APP, 2), (APP, 3)], 5),
        ([(SIDECAR, 2), (INIT, 6), (APP, 5)], 8),
        ([(INIT, 6), (SIDECAR, 2), (APP, 5)], 7),
    ],
)
def test_a_pod_asks_for_what_it_needs_at_its_peak(kinds: list[tuple[ManagedKind, int]], peak: int) -> None:
    whole = ManagedPod(tuple(container(1000, kind, size) for kind, size in kinds))
    enough, lacking = memory_inventory([peak]), memory_inventory([peak - 1])
    assert MemoryManager(enough).pod_hints(arrival(whole, Holdings.of_empty(enough)))["memory"]
    assert MemoryManager(lacking).pod_hints(arrival(whole, Holdings.of_empty(lacking))) == {}


def test_a_type_that_only_init_containers_ask_for_is_not_the_pods() -> None:
    inventory = memory_inventory([8, 8], [4, 4])
    whole = ManagedPod((container(1000, INIT, 1, 2), container(1000, APP, 1)))
    assert set(MemoryManager(inventory).pod_hints(arrival(whole, Holdings.of_empty(inventory)))) == {"memory"}


def test_a_pod_that_is_not_guaranteed_gets_nothing() -> None:
    inventory = memory_inventory([8])
    memory = MemoryManager(inventory)
    burst = ManagedPod(
        (ManagedContainer(amounts({"cpu": 1000, "memory": GIB}), amounts({"cpu": 1000, "memory": 2 * GIB})),)
    )
    coming = arrival(burst, Holdings.of_empty(inventory))
    assert memory.hints(coming, 0) == {} and memory.pod_hints(coming) == {}
    memory.allocate(coming, 0, hint(0))
    memory.allocate_pod(coming, hint(0))
    assert coming.held == [HeldResources()] and coming.holdings == Holdings.of_empty(inventory)


MANAGED = Gates(pod_level_resource_managers=True)


def pod_level(*containers: ManagedContainer, memory_gib: int) -> ManagedPod:
    asked = amounts({"cpu": 8000, "memory": memory_gib * GIB})
    return ManagedPod(containers, whole=Asked(asked, asked))


def test_pod_level_resources_are_left_alone_without_their_managers() -> None:
    inventory = memory_inventory([8, 8])
    coming = arrival(pod_level(container(1000), memory_gib=3), Holdings.of_empty(inventory))
    memory = MemoryManager(inventory)
    assert memory.hints(coming, 0) == {} and memory.pod_hints(coming) == {}
    memory.allocate(coming, 0, hint(0))
    assert coming.held == [HeldResources()]
    older = MemoryManager(memory_inventory([8, 8], minor=33, gates=Gates.of_version(33)))
    assert older.hints(coming, 0)["memory"], "v1.33 did not know them"


def test_pod_level_resources_are_taken_for_the_pod_and_shared_out() -> None:
    inventory = memory_inventory([2, 2], gates=MANAGED, scope="pod")
    memory = MemoryManager(inventory)
    whole = pod_level(
        ManagedContainer(kind=INIT),
        container(1000, SIDECAR, 1),
        ManagedContainer(kind=INIT),
        container(1000, APP, 1),
        ManagedContainer(),
        memory_gib=3,
    )
    coming = arrival(whole, Holdings.of_empty(inventory))
    assert described(memory.pod_hints(coming)["memory"]) == [((0, 1), True)]
    memory.allocate_pod(coming, hint(0, 1))
    assert blocks_gib(coming) == [{"memory": ((0, 1), size)} for size in (3, 1, 2, 1, 1)]
    assert free_gib(coming.holdings) == [0, 1] and groups(coming.holdings) == [(1, (0, 1)), (1, (0, 1))]
    assert coming.pod_memory == (Block(0b11, "memory", 3 * GIB),)
    now = settled(coming)
    memory.started("pod", 4, now)
    assert free_gib(now) == [0, 1], "the pod keeps its memory until it is gone"
    memory.release("pod", now)
    del now.pods["pod"]
    assert now == Holdings.of_empty(inventory)


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        (
            (container(1000, APP, 2), container(1000, APP, 1), ManagedContainer()),
            "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared "
            "containers",
        ),
        (
            (container(1000, SIDECAR, 3), ManagedContainer(kind=INIT), container(1000, APP, 1)),
            "pod rejected, pod has shared init containers but no memory available for them",
        ),
    ],
)
def test_a_pod_whose_containers_leave_nothing_to_share_is_refused(
    containers: tuple[ManagedContainer, ...], message: str
) -> None:
    inventory = memory_inventory([8, 8], gates=MANAGED, scope="pod")
    coming = arrival(pod_level(*containers, memory_gib=3), Holdings.of_empty(inventory))
    assert MemoryManager(inventory).pod_hints(coming) == {"memory": []}
    assert refusal(lambda: MemoryManager(inventory).allocate_pod(coming, NO_HINT)) == (
        "EmptyPodSharedPoolError",
        message,
    )


def test_in_scope_container_one_that_does_not_qualify_gets_nothing_since_v1_37() -> None:
    whole = pod_level(container(1000), ManagedContainer(), memory_gib=3)
    newer, older = (memory_inventory([8, 8], gates=MANAGED, minor=minor) for minor in (37, 36))
    coming = arrival(whole, Holdings.of_empty(newer))
    MemoryManager(newer).allocate(coming, 0, hint(0))
    MemoryManager(newer).allocate(coming, 1, NO_HINT)
    assert blocks_gib(coming) == [{"memory": ((0,), 1)}, None]
    coming = arrival(whole, Holdings.of_empty(older))
    assert "default NUMA affinity" in refusal(lambda: MemoryManager(older).allocate(coming, 1, NO_HINT))[1]


MACHINES = st.sampled_from(
    [
        memory_inventory([8]),
        memory_inventory([8, 4]),
        memory_inventory([6, 6, 6], [2, 0, 3]),
        memory_inventory([4, 4, 4, 4], [1, 1, 1, 1]),
    ]
)
SIZES = st.tuples(st.integers(1, 9), st.one_of(st.none(), st.integers(0, 3)))


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Inventory, Holdings]:
    """A machine on which pods have come and gone, each with one of the Memory Manager's own hints or without one."""
    inventory = draw(MACHINES)
    memory, now = MemoryManager(inventory), Holdings.of_empty(inventory)
    for number in range(draw(st.integers(0, 4))):
        size, huge = draw(SIZES)
        whole = pod(size, huge if HUGE in inventory.memory_types else None)
        coming = arrival(whole, now, f"pod-{number}")
        hints = memory.hints(coming, 0).get("memory") or []
        try:
            memory.allocate(coming, 0, draw(st.sampled_from([NO_HINT, *hints])))
        except AllocationRefused:
            continue
        now = settled(coming)
    for uid in [uid for uid in now.pods if draw(st.integers(0, 3)) == 0]:
        memory.release(uid, now)
        del now.pods[uid]
    return inventory, now


@given(crowded(), SIZES, st.integers(0, 4))
@pytest.mark.slow
def test_hints_are_those_of_the_definition(
    world: tuple[Inventory, Holdings], size: tuple[int, int | None], left: int
) -> None:
    inventory, now = world
    whole = pod(size[0], size[1] if HUGE in inventory.memory_types else None)
    coming = arrival(whole, now, "new")
    if left:
        coming.reusable_memory[mask_of(inventory.numa[:1]), "memory"] = left * GIB
    sizes = {name: value for name, value in whole.containers[0].requests if name != "cpu"}
    expected = memory_hints(inventory, now, coming.reusable_memory, sizes)
    hints = MemoryManager(inventory).hints(coming, 0)
    assert set(hints) == (set(sizes) if expected else set())
    assert all(described(offered_hints) == expected for offered_hints in hints.values())


@given(crowded(), SIZES, st.data())
@pytest.mark.slow
def test_a_set_of_nodes_with_a_hint_is_taken_as_it_is_and_a_group_without_one_never(
    world: tuple[Inventory, Holdings], size: tuple[int, int | None], data: st.DataObject
) -> None:
    inventory, now = world
    whole = pod(size[0], size[1] if HUGE in inventory.memory_types else None)
    coming = arrival(whole, now, "new")
    memory = MemoryManager(inventory)
    masks = {offered_hint.mask: offered_hint for offered_hint in memory.hints(coming, 0).get("memory") or ()}
    subset = data.draw(st.sets(st.sampled_from(inventory.numa), min_size=1))
    mask = mask_of(subset)
    try:
        memory.allocate(coming, 0, masks.get(mask, Hint(mask, False)))
        used = {block.mask for block in coming.held[0].memory or ()}
    except AllocationRefused:
        used = set()
    if mask in masks:
        assert used == {mask}
    elif len(subset) > 1:
        assert mask not in used


@given(crowded())
@pytest.mark.slow
def test_what_is_taken_is_what_pods_hold_and_all_of_it_comes_back(world: tuple[Inventory, Holdings]) -> None:
    inventory, now = world
    empty = Holdings.of_empty(inventory)
    blocks = [
        block for held_by_pod in now.pods.values() for held in held_by_pod.containers for block in held.memory or ()
    ]
    for i, name in enumerate(inventory.memory_types):
        assert sum(node.taken_bytes[i] for node in now.memory) == sum(b.size_bytes for b in blocks if b.type == name)
    for numa, node, before in zip(inventory.numa, now.memory, empty.memory, strict=True):
        assert node.assignments == sum(1 for block in blocks if block.mask >> numa & 1)
        assert {block.mask for block in blocks if block.mask >> numa & 1} <= {node.cells}
        assert [f + t for f, t in zip(node.free_bytes, node.taken_bytes, strict=True)] == list(before.free_bytes)
        assert min(node.free_bytes) >= 0 and min(node.taken_bytes) >= 0
    for uid in list(now.pods):
        MemoryManager(inventory).release(uid, now)
        del now.pods[uid]
    assert now == empty


@given(st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), st.integers(1, 5)), max_size=4), st.integers(1, 5))
def test_with_init_containers_too_the_blocks_add_up_to_what_is_taken(
    before: list[tuple[ManagedKind, int]], app: int
) -> None:
    inventory = memory_inventory([32])
    memory = MemoryManager(inventory)
    whole = ManagedPod(tuple(container(1000, kind, size) for kind, size in [*before, (APP, app)]))
    now = after(inventory, ("pod", whole, hint(0)))
    held = sum(block.size_bytes for one in now.pods["pod"].containers for block in one.memory or ())
    assert held == now.memory[0].taken_bytes[0]
    for index in range(len(whole.containers)):
        memory.started("pod", index, now)
    running = [
        one for one, kept in zip(now.pods["pod"].containers, whole.containers, strict=True) if kept.kind is not INIT
    ]
    assert now.memory[0].taken_bytes[0] == sum(block.size_bytes for one in running for block in one.memory or ())
    memory.release("pod", now)
    del now.pods["pod"]
    assert now == Holdings.of_empty(inventory)


def test_needs_the_static_policy() -> None:
    with pytest.raises(ValueError, match="Static"):
        MemoryManager(Inventory(numa=(0,), memory_policy="None"))
