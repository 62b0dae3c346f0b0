# SPDX-License-Identifier: Apache-2.0
"""The static CPU policy: which containers get CPUs of their own, which hints it gives, what it takes and gives back.
Many cases are those of Kubernetes v1.37's unit tests (policy_static_test.go, topology_hints_test.go), in our own
words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.devices.kubelet.cpus import Cpus, default_reservation
from dovetail.core.devices.kubelet.hints import NO_HINT, ids_of, mask_of
from dovetail.core.devices.kubelet.holdings import AllocationRefused, HeldResources, Holdings, PodHeld
from dovetail.core.devices.kubelet.inventory import Cpu, Gates, Inventory, InventoryError
from dovetail.core.devices.kubelet.pods import Asked, ManagedContainer, ManagedKind, ManagedPod, amounts
from tests.core.devices.kubelet.cpu_machines import (
    FOUR_NUMA_HT,
    FOUR_SOCKETS_TWO_NUMA_HT,
    GIB,
    ONE_SOCKET_HT,
    TWO_BLOCKS_HT,
    TWO_SOCKETS,
    TWO_SOCKETS_HT,
    arrival,
    container,
    cpu_inventory,
    cpu_set,
    described,
    hint,
    machine,
    refusal,
    settled,
    unexpected_text,
)
from tests.core.devices.kubelet.cpu_oracle import cpu_hints

APP, INIT, SIDECAR = ManagedKind.APP, ManagedKind.INIT, ManagedKind.SIDECAR
FULL, ACROSS_NUMA, BY_SOCKET = "full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket"


def free(cpus: str) -> Holdings:
    return Holdings(cpu_set(cpus), (), {}, {})


def pod(*cpus: int) -> ManagedPod:
    return ManagedPod(tuple(container(1000 * count) for count in cpus))


def taken(inventory: Inventory, shared: str, count: int, *numa: int) -> str:
    """What a container gets; `numa` is the hint's mask, none for no mask."""
    coming = arrival(pod(count), free(shared))
    Cpus(inventory).allocate(coming, 0, hint(*numa) if numa else NO_HINT)
    cpus = coming.held[0].cpus
    assert cpus is not None and coming.holdings.shared_cpus == cpu_set(shared) & ~cpus
    return ",".join(map(str, ids_of(cpus)))


@pytest.mark.parametrize(
    ("cpus", "reserved", "shared", "count", "expected"),
    [
        (ONE_SOCKET_HT, "0", "0,1,4,5", 2, "1,5"),
        (TWO_SOCKETS_HT, "0", "0,1,3-11", 6, "1,3,5,7,9,11"),
        (TWO_SOCKETS_HT, "0", "0,2-4,6-11", 6, "2,3,4,8,9,10"),
        (TWO_SOCKETS, "0", "0,1,3-7", 4, "4,5,6,7"),
        (TWO_SOCKETS, "0", "0,1,3,6,7", 4, "1,3,6,7"),
        (TWO_SOCKETS_HT, "0", "0,1,3-11", 8, "1,3,4,5,7,9,10,11"),
        (ONE_SOCKET_HT, "0", "0-7", 1, "4"),  # the sibling of the reserved CPU
    ],
)
def test_takes_what_the_accumulator_takes_outside_of_the_reserved_cpus(
    cpus: tuple[Cpu, ...], reserved: str, shared: str, count: int, expected: str
) -> None:
    assert taken(cpu_inventory(cpus, reserved=reserved), shared, count) == expected


@pytest.mark.parametrize(
    ("requests", "limits", "reported"),
    [
        ({"cpu": 1000, "memory": GIB}, {"cpu": 2000, "memory": GIB}, "Burstable"),
        ({"cpu": 977, "memory": GIB}, {"cpu": 977, "memory": GIB}, "a part of a CPU"),
        ({"cpu": 1500, "memory": GIB}, {"cpu": 1500, "memory": GIB}, "a CPU and a part"),
        ({"cpu": 1000}, {"cpu": 1000}, "no memory, so Burstable"),
        ({}, {"nvidia.com/gpu": 1}, "BestEffort"),
    ],
)
def test_a_pod_that_is_not_guaranteed_or_asks_for_part_of_a_cpu_runs_on_the_shared_set(
    requests: dict[str, int], limits: dict[str, int], reported: str
) -> None:
    cpus = Cpus(cpu_inventory(ONE_SOCKET_HT))
    coming = arrival(ManagedPod((ManagedContainer(amounts(requests), amounts(limits)),)), free("0-7"))
    assert cpus.hints(coming, 0) == {} and cpus.pod_hints(coming) == {}, reported
    cpus.allocate(coming, 0, hint(0))
    assert coming.held == [HeldResources()] and coming.holdings.shared_cpus == cpu_set("0-7")


def test_one_container_that_is_not_guaranteed_takes_the_cpus_from_all() -> None:
    two = ManagedPod((container(2000), ManagedContainer(limits=amounts({"nvidia.com/gpu": 1}))))
    assert Cpus(cpu_inventory(ONE_SOCKET_HT)).hints(arrival(two, free("0-7")), 0) == {}


@pytest.mark.parametrize(
    ("cpus", "options", "milli", "reserved"),
    [
        (ONE_SOCKET_HT, (), 2000, "0,4"),
        (ONE_SOCKET_HT, (), 1001, "0,4"),
        (ONE_SOCKET_HT, (), 1000, "0"),
        (FOUR_NUMA_HT, (), 3000, "0,1,40"),
        (FOUR_NUMA_HT, (ACROSS_NUMA,), 26000, "0-6,10-16,40-45,50-55"),
        (FOUR_NUMA_HT, ("distribute-cpus-across-cores",), 3000, "0,1,2"),
    ],
)
def test_an_amount_is_reserved_by_taking_whole_cpus(
    cpus: tuple[Cpu, ...], options: tuple[str, ...], milli: int, reserved: str
) -> None:
    assert default_reservation(cpus, frozenset(options), milli) == set(ids_of(cpu_set(reserved)))


@pytest.mark.parametrize("milli", [0, 8001])
def test_a_kubelet_that_reserves_nothing_or_too_much_does_not_start(milli: int) -> None:
    with pytest.raises(InventoryError, match="reserved_cpus"):
        default_reservation(ONE_SOCKET_HT, frozenset(), milli)


def test_only_a_strict_reservation_leaves_the_shared_set() -> None:
    assert Holdings.of_empty(cpu_inventory(ONE_SOCKET_HT, reserved="0,4")).shared_cpus == cpu_set("0-7")
    strict = cpu_inventory(ONE_SOCKET_HT, "strict-cpu-reservation", reserved="0,4")
    holdings = Holdings.of_empty(strict)
    assert holdings.shared_cpus == cpu_set("1-3,5-7")
    coming = arrival(pod(6), holdings)
    Cpus(strict).allocate(coming, 0, NO_HINT)
    assert coming.holdings.shared_cpus == 0


@pytest.mark.parametrize(
    ("shared", "count", "hints"),
    [
        ("2-11", 2, [((0,), True), ((1,), True), ((0, 1), False)]),
        ("2-11", 5, [((1,), True), ((0, 1), False)]),
        ("2-11", 7, [((0, 1), True)]),
        ("2-11", 11, []),
        ("0-3,6-8", 4, [((0,), True), ((0, 1), False)]),
    ],
)
def test_hints_on_two_nodes_of_three_cores(shared: str, count: int, hints: list[tuple[tuple[int, ...], bool]]) -> None:
    cpus = Cpus(cpu_inventory(TWO_BLOCKS_HT, reserved="0"))
    coming = arrival(pod(count), free(shared))
    assert described(cpus.hints(coming, 0)["cpu"]) == hints
    assert cpus.pod_hints(coming) == cpus.hints(coming, 0)


def test_a_restarted_kubelet_gives_the_hints_of_what_is_held() -> None:
    cpus = Cpus(cpu_inventory(TWO_BLOCKS_HT))
    held = Holdings(0, (), {}, {"pod": PodHeld(pod(6), (HeldResources(cpus=cpu_set("0-2,6-8")),))})
    assert described(cpus.hints(arrival(pod(6), held), 0)["cpu"]) == [((0,), True), ((0, 1), False)]
    assert described(cpus.pod_hints(arrival(pod(6), held))["cpu"]) == [((0,), True), ((0, 1), False)]
    assert cpus.hints(arrival(pod(5), held), 0) == {"cpu": []}
    assert cpus.pod_hints(arrival(pod(5), held)) == {"cpu": []}


def test_what_a_container_holds_is_not_allocated_twice() -> None:
    cpus = Cpus(cpu_inventory(TWO_BLOCKS_HT, FULL))
    held = Holdings(cpu_set("0,9-11"), (), {}, {"pod": PodHeld(pod(3), (HeldResources(cpus=cpu_set("1,2,3")),))})
    coming = arrival(pod(3), held)
    cpus.allocate(coming, 0, hint(0))
    assert coming.holdings == held and coming.held == [HeldResources(cpus=cpu_set("1,2,3"))]
    older = Cpus(cpu_inventory(TWO_BLOCKS_HT, FULL, minor=36))
    assert refusal(lambda: older.allocate(arrival(pod(3), held), 0, hint(0)))[0] == "SMTAlignmentError"


@pytest.mark.parametrize(
    ("count", "preferred", "others"),
    [
        # one socket is enough: every set within one; node 3 has too few by itself
        (20, [(0,), (1,), (2,), (0, 1), (2, 3)], 9),
        # two sockets are needed: every set that spans both
        (50, [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2, 3)], 0),
    ],
)
def test_aligned_by_socket_every_set_in_as_few_sockets_is_preferred(
    count: int, preferred: list[tuple[int, ...]], others: int
) -> None:
    inventory = cpu_inventory(FOUR_NUMA_HT, BY_SOCKET, reserved="79")
    hints = described(Cpus(inventory).hints(arrival(pod(count), free("0-79")), 0)["cpu"])
    assert hints is not None
    assert [mask for mask, good in hints if good] == preferred
    assert len(hints) - len(preferred) == others


def test_aligned_by_socket_the_rest_of_the_socket_comes_before_other_nodes() -> None:
    assert taken(cpu_inventory(FOUR_NUMA_HT, BY_SOCKET), "0,5,15,25,35", 3, 0) == "5,15,25"
    assert taken(cpu_inventory(FOUR_NUMA_HT), "0,5,25,35,36", 3, 2) == "5,25,35"


def test_the_nodes_of_the_hint_come_first_and_the_rest_from_anywhere() -> None:
    inventory = cpu_inventory(TWO_BLOCKS_HT)
    assert taken(inventory, "0-11", 4, 1) == "3,4,9,10"
    assert taken(inventory, "0-3,6-11", 6, 1) == "1,3,7,9,10,11"
    assert taken(inventory, "0-11", 6, 0, 1) == "3,4,5,9,10,11"


def test_full_cores_only() -> None:
    inventory = cpu_inventory(TWO_SOCKETS_HT, FULL, reserved="1,6")
    cpus = Cpus(inventory)
    coming = arrival(pod(1), free("0,2-5,7-11"))
    assert refusal(lambda: cpus.allocate(coming, 0, NO_HINT)) == (
        "SMTAlignmentError",
        "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2",
    )
    coming = arrival(pod(10), free("0,2-5,7-11"))
    assert refusal(lambda: cpus.allocate(coming, 0, NO_HINT)) == (
        "SMTAlignmentError",
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 8, requested CPUs = 10, "
        "CPUs per core = 2",
    )
    assert coming.held == [HeldResources()] and coming.holdings.shared_cpus == cpu_set("0,2-5,7-11")
    assert taken(cpu_inventory(TWO_SOCKETS_HT, FULL, reserved="0,6"), "1-5,7-11", 10) == "1,2,3,4,5,7,8,9,10,11"


def test_more_than_is_free_is_an_unexpected_error_with_the_numbers() -> None:
    cpus = Cpus(cpu_inventory(ONE_SOCKET_HT))
    text = "not enough cpus available to satisfy request: requested=8, available=7"
    assert refusal(lambda: cpus.allocate(arrival(pod(8), free("0-7")), 0, NO_HINT)) == unexpected_text(text)


def served(inventory: Inventory, kinds: list[tuple[ManagedKind, int]], shared: str) -> list[str]:
    """What the containers of one pod get, one after the other."""
    cpus = Cpus(inventory)
    coming = arrival(ManagedPod(tuple(container(1000 * count, kind) for kind, count in kinds)), free(shared))
    for index in range(len(kinds)):
        cpus.allocate(coming, index, NO_HINT)
    return [",".join(map(str, ids_of(held.cpus or 0))) for held in coming.held]


def test_an_init_container_leaves_its_cpus_to_those_after_it() -> None:
    inventory = cpu_inventory(ONE_SOCKET_HT, reserved="0,4")
    assert served(inventory, [(INIT, 4), (APP, 2)], "0-7") == ["1,2,5,6", "1,5"]
    assert served(inventory, [(INIT, 2), (INIT, 4), (APP, 2), (APP, 2)], "0-7") == ["1,5", "1,2,5,6", "1,5", "2,6"]


def test_a_sidecar_keeps_its_cpus() -> None:
    inventory = cpu_inventory(ONE_SOCKET_HT, reserved="0,4")
    assert served(inventory, [(SIDECAR, 2), (APP, 2)], "0-7") == ["1,5", "2,6"]
    assert served(inventory, [(INIT, 4), (SIDECAR, 2), (APP, 2)], "0-7") == ["1,2,5,6", "1,5", "2,6"]


def test_what_an_init_container_left_pins_the_next_container_to_its_nodes() -> None:
    cpus = Cpus(cpu_inventory(TWO_BLOCKS_HT))
    coming = arrival(ManagedPod((container(2000, INIT), container(4000))), free("0-11"))
    cpus.allocate(coming, 0, hint(1))
    assert described(cpus.hints(coming, 1)["cpu"]) == [((1,), True), ((0, 1), False)]


@pytest.mark.parametrize(
    ("kinds", "count"),
    [
        ([(INIT, 2), (APP, 5)], 5),
        ([(INIT, 5), (APP, 2)], 5),
        ([(INIT, 2), (INIT, 4), (APP, 2), (APP, 4)], 6),
        ([(SIDECAR, 1), (APP, 1)], 2),
        ([(INIT, 5), (SIDECAR, 1), (SIDECAR, 2), (SIDECAR, 3), (APP, 1)], 7),
        ([(INIT, 5), (SIDECAR, 1), (SIDECAR, 2), (INIT, 5), (SIDECAR, 3), (APP, 1)], 8),
        ([(SIDECAR, 10), (INIT, 200), (APP, 100)], 210),
    ],
)
def test_a_pod_asks_for_what_it_needs_at_its_peak(kinds: list[tuple[ManagedKind, int]], count: int) -> None:
    whole = ManagedPod(tuple(container(1000 * cpus, kind) for kind, cpus in kinds))
    large = machine(250, 1, numa=lambda core: core // 125)
    cpus = Cpus(cpu_inventory(large))
    enough, lacking = free(f"1-{count}"), free(f"1-{count - 1}")
    assert cpus.pod_hints(arrival(whole, enough))["cpu"]
    assert cpus.pod_hints(arrival(whole, lacking))["cpu"] == []


def test_a_pod_gives_all_back_at_once() -> None:
    inventory = cpu_inventory(ONE_SOCKET_HT, reserved="0,4")
    cpus = Cpus(inventory)
    coming = arrival(ManagedPod((container(4000, INIT), container(2000, SIDECAR), container(2000))), free("0-7"))
    for index in range(3):
        cpus.allocate(coming, index, NO_HINT)
    after = settled(coming)
    cpus.started("pod", 2, after)
    assert after.shared_cpus == cpu_set("0,3,4,7"), "an init container's CPUs are not free before the pod is gone"
    cpus.release("pod", after)
    assert after.shared_cpus == cpu_set("0-7")


MANAGED = Gates(pod_level_resource_managers=True)


def pod_level(*containers: ManagedContainer, cpu_milli: int = 6000) -> ManagedPod:
    asked = amounts({"cpu": cpu_milli, "memory": 8 * GIB})
    return ManagedPod(containers, whole=Asked(asked, asked))


def test_pod_level_resources_are_left_alone_without_their_managers() -> None:
    whole = pod_level(container(2000))
    for minor, gates in ((37, Gates()), (36, Gates()), (34, Gates())):
        cpus = Cpus(cpu_inventory(TWO_BLOCKS_HT, minor=minor, gates=gates))
        coming = arrival(whole, free("0-11"))
        assert cpus.hints(coming, 0) == {} and cpus.pod_hints(coming) == {}
        cpus.allocate(coming, 0, hint(0))
        assert coming.held == [HeldResources()]
    older = Cpus(cpu_inventory(TWO_BLOCKS_HT, minor=33, gates=Gates.of_version(33)))
    assert older.hints(arrival(whole, free("0-11")), 0)["cpu"], "v1.33 did not know them"


def test_pod_level_resources_make_one_set_for_the_pod() -> None:
    inventory = cpu_inventory(TWO_BLOCKS_HT, scope="pod", gates=MANAGED)
    cpus = Cpus(inventory)
    burst = ManagedContainer(amounts({"cpu": 1000}), amounts({"cpu": 3000}))
    whole = pod_level(
        container(2000, INIT),
        ManagedContainer(kind=INIT),
        container(1000, SIDECAR),
        container(2000),
        burst,
        ManagedContainer(),
    )
    coming = arrival(whole, free("0-11"))
    assert described(cpus.pod_hints(coming)["cpu"]) == [((1,), True), ((0, 1), False)]
    cpus.allocate_pod(coming, hint(1))
    assert coming.pod_cpus == cpu_set("3-5,9-11")
    got = [",".join(map(str, ids_of(held.cpus or 0))) for held in coming.held]
    assert got == ["3,9", "3,4,5,9,10,11", "3", "4,10", "5,9,11", "5,9,11"]
    after = settled(coming)
    assert after.shared_cpus == cpu_set("0-2,6-8")
    cpus.release("pod", after)
    assert after.shared_cpus == cpu_set("0-11")


def test_in_scope_container_only_those_that_would_be_guaranteed_get_cpus() -> None:
    cpus = Cpus(cpu_inventory(TWO_BLOCKS_HT, gates=MANAGED))
    burst = ManagedContainer(amounts({"cpu": 1000, "memory": GIB}), amounts({"cpu": 2000, "memory": GIB}))
    coming = arrival(pod_level(container(2000), burst), free("0-11"))
    assert cpus.hints(coming, 0)["cpu"] and cpus.hints(coming, 1) == {}


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        (
            (container(4000), container(2000), ManagedContainer()),
            "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared "
            "containers",
        ),
        (
            (container(6000, SIDECAR), ManagedContainer(kind=INIT), container(6000)),
            "pod rejected, pod has shared init containers but no cpus available for them",
        ),
    ],
)
def test_a_pod_whose_containers_leave_nothing_to_share_is_refused(
    containers: tuple[ManagedContainer, ...], message: str
) -> None:
    cpus = Cpus(cpu_inventory(FOUR_NUMA_HT, scope="pod", gates=MANAGED))
    coming = arrival(pod_level(*containers), free("0-79"))
    assert cpus.pod_hints(coming) == {"cpu": []}
    assert refusal(lambda: cpus.allocate_pod(coming, NO_HINT)) == ("EmptyPodSharedPoolError", message)
    assert coming.holdings.shared_cpus == cpu_set("0-79")


def test_a_pod_as_a_whole_must_fill_cores_too() -> None:
    cpus = Cpus(cpu_inventory(TWO_BLOCKS_HT, FULL, scope="pod", gates=MANAGED))
    coming = arrival(pod_level(container(1000), cpu_milli=3000), free("0-11"))
    assert refusal(lambda: cpus.allocate_pod(coming, hint(0)))[0] == "SMTAlignmentError"


MACHINES = st.sampled_from([ONE_SOCKET_HT, TWO_SOCKETS_HT, FOUR_NUMA_HT, FOUR_SOCKETS_TWO_NUMA_HT])


@given(MACHINES, st.data())
@pytest.mark.slow
def test_hints_are_those_of_the_definition(cpus: tuple[Cpu, ...], data: st.DataObject) -> None:
    by_socket = cpus is not FOUR_SOCKETS_TWO_NUMA_HT and data.draw(st.booleans())
    inventory = cpu_inventory(cpus, *([BY_SOCKET] if by_socket else []))
    everyone = {cpu.id for cpu in cpus}
    reusable = data.draw(st.sets(st.sampled_from(sorted(everyone - {0})), max_size=3))
    shared = data.draw(st.sets(st.sampled_from(sorted(everyone)))) - reusable
    count = data.draw(st.integers(1, len(everyone)))
    coming = arrival(pod(count), Holdings(mask_of(shared), (), {}, {}))
    coming.reusable_cpus = mask_of(reusable)
    expected = cpu_hints(cpus, shared - {0}, reusable, count, by_socket)
    assert described(Cpus(inventory).hints(coming, 0)["cpu"]) == expected


@given(MACHINES, st.data())
@pytest.mark.slow
def test_there_is_a_hint_exactly_where_the_cpus_can_be_taken_within_its_nodes(
    cpus: tuple[Cpu, ...], data: st.DataObject
) -> None:
    manager = Cpus(cpu_inventory(cpus))
    numas = sorted({cpu.numa for cpu in cpus})
    shared = data.draw(st.sets(st.sampled_from(sorted(cpu.id for cpu in cpus))))
    count = data.draw(st.integers(1, len(cpus)))
    subset = data.draw(st.sets(st.sampled_from(numas), min_size=1))
    holdings = Holdings(mask_of(shared), (), {}, {})
    masks = {given.mask for given in manager.hints(arrival(pod(count), holdings), 0)["cpu"] or ()}
    coming = arrival(pod(count), holdings)
    try:
        manager.allocate(coming, 0, hint(*subset))
        used = {cpu.numa for cpu in cpus if (coming.held[0].cpus or 0) >> cpu.id & 1}
        within = used <= subset
    except AllocationRefused:
        within = False
    assert (mask_of(subset) in masks) == within


KINDS = st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), st.integers(0, 4)), max_size=2)
APPS = st.lists(st.tuples(st.just(APP), st.integers(0, 5)), min_size=1, max_size=2)


@given(
    st.sampled_from([(), (FULL,), (ACROSS_NUMA,), (FULL, ACROSS_NUMA), ("strict-cpu-reservation",)]),
    st.lists(st.tuples(KINDS, APPS, st.integers(0, 3), st.booleans()), max_size=8),
)
@pytest.mark.slow
def test_no_cpu_is_held_by_two_pods_and_all_come_back(
    options: tuple[str, ...],
    steps: list[tuple[list[tuple[ManagedKind, int]], list[tuple[ManagedKind, int]], int, bool]],
) -> None:
    """Pods come, some of them leave at once; a refused pod leaves nothing behind."""
    inventory = cpu_inventory(TWO_BLOCKS_HT, *options, reserved="0,6")
    manager = Cpus(inventory)
    empty = Holdings.of_empty(inventory)
    now = empty.copy()
    for number, (before, apps, mask, leaves) in enumerate(steps):
        uid = f"pod-{number}"
        whole = ManagedPod(tuple(container(1000 * count or 500, kind) for kind, count in before + apps))
        coming = arrival(whole, now, uid)
        refused = False
        try:
            for index in range(len(whole.containers)):
                manager.allocate(coming, index, hint(*ids_of(mask)) if mask else NO_HINT)
        except AllocationRefused:
            refused = True
        now = settled(coming)
        if refused or leaves:
            manager.release(uid, now)
            del now.pods[uid]
        sets = []
        for held_by_pod in now.pods.values():
            running = [
                held.cpus or 0
                for held, one in zip(held_by_pod.containers, held_by_pod.pod.containers, strict=True)
                if one.kind is not INIT
            ]
            assert sum(running) == mask_of({cpu for cpus in running for cpu in ids_of(cpus)}), "two share a CPU"
            for held, one in zip(held_by_pod.containers, held_by_pod.pod.containers, strict=True):
                asked = one.request["cpu"]
                assert (held.cpus is None) == (asked % 1000 != 0)
                assert held.cpus is None or held.cpus.bit_count() == asked // 1000
            union = 0
            for held in held_by_pod.containers:
                union |= held.cpus or 0
            sets.append(union)
        assert sum(sets) + now.shared_cpus == empty.shared_cpus, "each CPU is shared or one pod's"
    for uid in list(now.pods):
        manager.release(uid, now)
        del now.pods[uid]
    assert now == empty


def test_needs_the_static_policy() -> None:
    with pytest.raises(ValueError, match="static"):
        Cpus(Inventory(numa=(0,), cpu_policy="none"))
