# SPDX-License-Identifier: Apache-2.0
"""Which of the possible devices are taken: the best linked, and those that leave most for later."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from msgspec.structs import replace

from benchmarks.core_speed import cube_mesh
from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.mig.geometry import NO_ENGINES, Geometry, MigProfile
from dovetail.core.devices.mig.instances import best_start
from dovetail.core.dra.types import (
    Capacity,
    ClaimSpec,
    Constraint,
    CounterSet,
    CounterUse,
    Device,
    DeviceClass,
    RequestPolicy,
)
from tests.core.dra.device_worlds import DRIVER, World, ask, claim, device, pool

MESH = cube_mesh()
"""Two quads; 0-3, 0-4, 1-2, 1-5, 2-6, 3-7, 4-7, 5-6 have two NVLinks."""
BUS = "resource.kubernetes.io/pciBusID"


def gpus(*buses: int, **more: object) -> tuple[Device, ...]:
    """Devices gpu-0, gpu-1 ... with these bus numbers."""
    return tuple(
        device(f"gpu-{i}", index=i, attributes=((BUS, f"0000:{bus:02x}:00.0"),), **more) for i, bus in enumerate(buses)
    )


def wired(*devices: Device, layout=MESH) -> World:  # type: ignore[no-untyped-def]
    world = World()
    world.node("n1", layout)
    world.claims.put_class(DeviceClass("gpu"))
    world.claims.put_slice(pool("n1", *devices))
    return world


def taken(world: World, *specs: ClaimSpec) -> list[list[str]]:
    """The devices of each claim of a new pod."""
    return [[grant.device for grant in each.allocation.grants] for each in world.hold("n1", world.pod(*specs))]


def of(world: World, *specs: ClaimSpec) -> set[int]:
    return {int(name.removeprefix("gpu-")) for devices in taken(world, *specs) for name in devices}


def test_of_several_gpus_the_best_linked_are_taken() -> None:
    world = wired(*gpus(*range(8)))
    assert world.answer("n1", claim(ask(2))).close == 1000
    assert of(world, claim(ask(4))) in ({0, 1, 2, 3}, {4, 5, 6, 7})
    assert of(world, claim(ask(2))) in ({4, 7}, {5, 6}, {0, 3}, {1, 2})


def test_the_order_of_gpus_is_that_of_their_bus_ids() -> None:
    """The layout's GPU 0 is on the lowest bus, whatever its name is."""
    world = wired(*gpus(8, 7, 6, 5, 4, 3, 2, 1))
    best = {
        frozenset(7 - gpu for gpu in pair) for pair in ((0, 3), (0, 4), (1, 2), (1, 5), (2, 6), (3, 7), (4, 7), (5, 6))
    }
    assert of(world, claim(ask(2))) in best


def test_without_bus_ids_the_numbers_in_the_names_count() -> None:
    shuffled = [device(f"gpu-{i}") for i in (3, 0, 7, 1, 6, 2, 5, 4)]
    assert of(wired(*shuffled), claim(ask(2))) in ({0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 6}, {3, 7}, {4, 7}, {5, 6})


def test_a_layout_of_another_number_of_gpus_states_nothing() -> None:
    world = wired(*gpus(*range(6)))
    assert of(world, claim(ask(2))) == {0, 1}


@pytest.mark.parametrize("seed", range(60))
def test_a_single_request_gets_the_best_of_all_legal_sets(seed: int) -> None:
    """Whatever is free, matches, and satisfies the constraints."""
    dice = random.Random(seed)
    devices = [
        replace(
            one,
            attributes=tuple(
                sorted((*one.attributes, (f"{DRIVER}/rack", dice.choice((0, 1))), (f"{DRIVER}/ok", dice.choice("yyn"))))
            ),
        )
        for one in gpus(*range(8))
    ]
    world = wired(*devices)
    world.hold("n1", world.pod(claim(ask(dice.randint(1, 3)))))
    pod_free = {0, 1, 2, 3, 4, 5, 6, 7} - {int(g.device[4:]) for a in world.claims._assumed.values() for g in a.grants}
    count = dice.randint(1, 4)
    kind = dice.choice(("", "match", "distinct"))
    constraints = [Constraint((), **{kind: f"{DRIVER}/rack"})] if kind else []

    def legal(chosen: tuple[int, ...]) -> bool:
        own = [dict(devices[i].attributes) for i in chosen]
        racks = [each[f"{DRIVER}/rack"] for each in own]
        return (
            all(each[f"{DRIVER}/ok"] == "y" for each in own)
            and (kind != "match" or len(set(racks)) == 1)
            and (kind != "distinct" or len(set(racks)) == len(racks))
        )

    quality = sets_of(MESH).quality
    possible = [set(chosen) for chosen in combinations(sorted(pod_free), count) if legal(chosen)]
    best = max((int(quality[sum(1 << gpu for gpu in chosen)]) for chosen in possible), default=None)
    spec = claim(ask(count, f"{DRIVER}/ok=y"), constraints=constraints)
    assert world.fits("n1", spec) == bool(possible)
    if possible:
        found = of(world, spec)
        assert found in possible
        assert quality[sum(1 << gpu for gpu in found)] == best


def test_claims_of_one_pod_get_gpus_that_are_linked_to_each_other() -> None:
    world = wired(*gpus(*range(8)))
    world.hold("n1", world.pod(claim(ask(1))))
    chosen = of(world, claim(ask(1)), claim(ask(1, name="a"), ask(2, name="b")))
    assert len(chosen) == 4
    sets = sets_of(MESH)
    others = [gpu for gpu in range(8) if gpu != 0]
    assert sets.mbps[sum(1 << gpu for gpu in chosen)] == max(
        sets.mbps[sum(1 << gpu for gpu in four)] for four in combinations(others, 4)
    )


def test_requests_of_different_kinds_get_gpus_that_are_linked_to_each_other() -> None:
    devices = [
        replace(one, attributes=tuple(sorted((*one.attributes, (f"{DRIVER}/half", i // 4)))))
        for i, one in enumerate(gpus(*range(8)))
    ]
    world = wired(*devices)
    first, second = taken(world, claim(ask(1, f"{DRIVER}/half=0")), claim(ask(1, f"{DRIVER}/half=1")))
    assert (first[0], second[0]) in {("gpu-0", "gpu-4"), ("gpu-1", "gpu-5"), ("gpu-2", "gpu-6"), ("gpu-3", "gpu-7")}


def test_closeness_is_of_all_gpus_of_the_pod_in_thousandths_of_the_best() -> None:
    world = wired(*gpus(*range(8)))
    apart = claim(ask(1, f"{DRIVER}/index=0", name="a"), ask(1, f"{DRIVER}/index=5", name="b"))
    sets = sets_of(MESH)
    assert world.answer("n1", apart).close == 1000 * sets.mbps[0b100001] // sets.ideal_mbps[2] < 1000
    assert world.answer("n1", claim(ask(1))).close == 1000


def test_devices_with_binding_conditions_come_last() -> None:
    waiting = replace(device("gpu-0"), conditions=("Attached",))
    world = wired(waiting, device("gpu-1"), layout=None)
    assert [of(world, claim(ask(1))) for _ in range(2)] == [{1}, {0}]


PROFILES = {
    "1g": (1, 1, range(7)),
    "2g": (2, 2, (0, 2, 4)),
    "3g": (3, 4, (0, 4)),
    "4g": (4, 4, (0,)),
    "7g": (7, 8, (0,)),
}


def cut(gpu: int) -> list[Device]:
    """A GPU with 7 compute and 8 memory slices, as DRA's partitions."""
    found = []
    for profile, (compute, memory, starts) in PROFILES.items():
        for start in starts:
            slots = tuple((f"memory-{i}", 1000) for i in range(start, start + memory))
            use = CounterUse(f"gpu-{gpu}", (("compute", 1000 * compute), *slots))
            found.append(device(f"gpu-{gpu}-{profile}-{start}", profile=profile, gpu=gpu, consumes=(use,)))
    return found


def partitioned(count: int) -> World:
    world = World()
    world.node("n1")
    world.claims.put_class(DeviceClass("gpu"))
    counters = (("compute", 7000), *((f"memory-{i}", 1000) for i in range(8)))
    sets = tuple(CounterSet(f"gpu-{gpu}", counters) for gpu in range(count))
    world.claims.put_slice(pool("n1", *(d for gpu in range(count) for d in cut(gpu)), pool_slices=2))
    world.claims.put_slice(replace(pool("n1", pool_slices=2, counter_sets=sets), name="n1-counters"))
    return world


def part(profile: str, count: int = 1) -> ClaimSpec:
    return claim(ask(count, f"{DRIVER}/profile={profile}"))


def test_a_small_partition_is_where_the_largest_ones_still_fit() -> None:
    world = partitioned(1)
    assert taken(world, part("1g")) == [["gpu-0-1g-6"]]
    assert world.fits("n1", part("4g")) and world.fits("n1", part("2g", 3))
    assert taken(world, part("2g")) == [["gpu-0-2g-4"]]
    assert taken(world, part("4g")) == [["gpu-0-4g-0"]]
    assert not world.fits("n1", part("1g"))


def test_an_opened_gpu_is_filled_before_a_whole_one_is_opened() -> None:
    world = partitioned(3)
    for _ in range(7):
        taken(world, part("1g"))
    assert world.claims.answers.times(0, world.shape(world.pod(part("7g"))), 9) == 2


def test_partitions_of_all_sizes_fill_gpus_without_a_rest() -> None:
    world = partitioned(4)
    for profile in ("1g", "2g", "4g") * 4:
        assert world.fits("n1", part(profile))
        taken(world, part(profile))
    assert not world.fits("n1", part("1g"))


def test_a_whole_gpu_is_taken_where_none_is_opened() -> None:
    world = partitioned(2)
    taken(world, part("1g"))
    assert taken(world, part("7g")) == [["gpu-1-7g-0"]]
    assert not world.fits("n1", part("7g"))


MEMORY = ((f"{DRIVER}/memory", Capacity(80_000, RequestPolicy(80_000, least_milli=1000, step_milli=1000))),)


def test_a_share_goes_to_the_device_that_has_least_left() -> None:
    world = wired(*(device(f"gpu-{i}", shareable=True, capacity=MEMORY) for i in range(3)), layout=None)

    def share(amount: int) -> ClaimSpec:
        return claim(ask(1, amounts=((f"{DRIVER}/memory", amount),)))

    assert [of(world, share(amount)) for amount in (50_000, 40_000, 30_000, 40_000, 1000)] == [{0}, {1}, {0}, {1}, {2}]


def test_partitions_are_worth_what_the_card_s_own_table_states() -> None:
    """The same as for a geometry of these profiles: where an instance goes on a card that nobody uses yet."""
    profiles = tuple(
        MigProfile(name, i, compute, memory, tuple(starts), len(starts), 1)
        for i, (name, (compute, memory, starts)) in enumerate(PROFILES.items())
    )
    card = Geometry("test", (), 8, 7, NO_ENGINES, profiles)
    for profile in PROFILES:
        start = best_start(card, 0, card.index(profile)).start
        assert taken(partitioned(1), part(profile)) == [[f"gpu-0-{profile}-{start}"]]


def test_of_opened_gpus_the_one_that_loses_least_takes_a_partition() -> None:
    world = partitioned(2)
    # 4g leaves room for 3g and for nothing larger; 3g leaves room for 4g.
    assert taken(world, part("4g")) == [["gpu-0-4g-0"]]
    [[large]] = taken(world, claim(ask(1, f"{DRIVER}/profile=3g", f"{DRIVER}/gpu=1")))
    assert large == "gpu-1-3g-4"
    assert taken(world, part("3g")) == [["gpu-0-3g-4"]]


def test_nodes_are_compared_by_what_a_partition_takes_from_their_cards() -> None:
    world = partitioned(2)
    idle = world.answer("n1", part("1g")).spare
    taken(world, part("1g"))
    begun = world.answer("n1", part("1g")).spare
    assert 0 < begun < idle <= world.answer("n1", part("7g")).spare <= 100


def test_without_a_counter_that_all_partitions_take_of_the_largest_ones_are_spared() -> None:
    world = World()
    world.node("n1")
    world.claims.put_class(DeviceClass("gpu"))
    places = {"a": (2,), "b": (0,), "pair": (0, 1), "triple": (1, 2, 3)}
    devices = [
        device(name, wide=len(own) > 1, consumes=(CounterUse("gpu-0", tuple((f"memory-{i}", 1000) for i in own)),))
        for name, own in places.items()
    ]
    world.claims.put_slice(pool("n1", *devices, pool_slices=2))
    sets = (CounterSet("gpu-0", tuple((f"memory-{i}", 1000) for i in range(4))),)
    world.claims.put_slice(replace(pool("n1", pool_slices=2, counter_sets=sets), name="n1-counters"))
    assert taken(world, claim(ask(1, f"{DRIVER}/wide=False"))) == [["b"]]
