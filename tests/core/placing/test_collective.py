# SPDX-License-Identifier: Apache-2.0
"""The all-reduce that is expected of a job where its GPUs are."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from dovetail.core.cluster import Cluster
from dovetail.core.devices.collectives import NVLS, AllReduce, network_mbps
from dovetail.core.devices.layout import PXB, SYS, Layout, Nic
from dovetail.core.devices.products import assumed_layout
from dovetail.core.fabric import FABRIC_NAME, FabricSpeeds, LevelSpeed
from dovetail.core.model import GPU, PODS, Node
from dovetail.core.placing.collective import of_gpus
from dovetail.core.placing.scores import Tightest

CLIQUE, RACK, BLOCK = "nvidia.com/gpu.clique", "rack", "block"
ALL = 0xFF


def hgx(speed_mbps: int = 50_000, product: str = "H100-SXM5", gpus: int = 8) -> Layout:
    """A NIC beside each GPU."""
    found = assumed_layout(product, gpus)
    assert found is not None
    nics = tuple(Nic(tuple(PXB if i == j else SYS for j in range(gpus)), -1, speed_mbps) for i in range(gpus))
    return replace(found, nics=nics)


def cluster(layouts: Sequence[Layout | None], *labels: dict[str, str]) -> Cluster:
    """Slot by slot."""
    found = Cluster(Tightest(), (BLOCK, RACK, CLIQUE))
    for i, layout in enumerate(layouts):
        own = labels[i] if i < len(labels) else {}
        amounts = ((GPU, layout.gpus if layout is not None else 8), (PODS, 99))
        found.put_node(Node(f"n{i}", amounts, tuple(own.items()), layout=layout))
    return found


def sure(found: AllReduce | None) -> AllReduce:
    assert found is not None
    return found


def test_one_node_is_as_fast_as_its_switches_and_several_as_their_network() -> None:
    four = cluster([hgx()] * 4)
    one = sure(of_gpus(four, {0: ALL}))
    assert one.algorithm == NVLS
    assert one.mbps > 440_000
    every = sure(of_gpus(four, dict.fromkeys(range(4), ALL)))
    assert 0.8 * network_mbps(400_000) < every.mbps <= network_mbps(400_000)


def test_a_pod_has_the_nics_beside_its_gpus_alone() -> None:
    four = cluster([hgx()] * 4)
    quarter, whole = (sure(of_gpus(four, dict.fromkeys(range(4), bits))) for bits in (0b11, ALL))
    assert quarter.mbps <= network_mbps(100_000)
    assert 3 < whole.mbps / quarter.mbps < 4.5


def test_the_slowest_node_counts() -> None:
    mixed = cluster([hgx(), hgx(25_000), hgx()])
    assert sure(of_gpus(mixed, {0: ALL, 2: ALL})).mbps > 1.7 * sure(of_gpus(mixed, {0: ALL, 1: ALL, 2: ALL})).mbps


def test_a_clique_is_one_island() -> None:
    tray = hgx(50_000, "GB200", 4)
    racks = cluster([tray] * 4, *[{CLIQUE: clique} for clique in ("a", "a", "b", "b")])
    inside, across = sure(of_gpus(racks, {0: 15, 1: 15})), sure(of_gpus(racks, {1: 15, 2: 15}))
    assert inside.level == CLIQUE
    assert inside.mbps > 600_000 > across.mbps
    # One GPU on each node is still joined by NVLink; over two racks it is not, and its NICs count.
    assert sure(of_gpus(racks, {0: 1, 1: 1})).mbps > 300_000 > sure(of_gpus(racks, {1: 1, 2: 1})).mbps


def test_what_a_level_leaves_of_the_bandwidth_is_for_jobs_that_it_is_the_narrowest_of() -> None:
    labels = [
        {BLOCK: "b0", RACK: "r0"},
        {BLOCK: "b0", RACK: "r0"},
        {BLOCK: "b0", RACK: "r1"},
        {BLOCK: "b1", RACK: "r2"},
    ]
    four, percent = cluster([hgx()] * 4, *labels), {RACK: 100, BLOCK: 50, "": 10}
    near, block, far = (sure(of_gpus(four, {0: ALL, other: ALL}, percent)) for other in (1, 2, 3))
    assert (near.level, block.level, far.level) == (RACK, BLOCK, "")
    assert near.mbps > 1.5 * block.mbps > 1.5 * 4.5 * far.mbps
    even = [sure(of_gpus(four, {0: ALL, other: ALL})) for other in (1, 2, 3)]
    # Without it only the way is longer.
    assert even[0].ns < even[1].ns < even[2].ns < 1.01 * even[0].ns


def test_nothing_is_expected_where_something_that_counts_is_not_known() -> None:
    unknown = cluster([hgx(), None, replace(hgx(), nics=()), hgx(0)])
    assert of_gpus(unknown, {}) is None
    assert of_gpus(unknown, {0: 1}) is None
    assert of_gpus(unknown, {1: ALL}) is None
    assert [of_gpus(unknown, {0: ALL, other: ALL}) for other in (1, 2, 3)] == [None] * 3
    # Inside one node its NICs do not count.
    assert of_gpus(unknown, {2: ALL}) == of_gpus(unknown, {0: ALL})


def test_it_depends_on_the_places_and_not_on_the_order_in_which_they_are_named() -> None:
    dice = random.Random(1)
    labels = [{BLOCK: f"b{i // 8}", RACK: f"r{i // 4}"} for i in range(16)]
    many = cluster([hgx()] * 16, *labels)
    for _ in range(20):
        slots = dice.sample(range(16), dice.randint(2, 9))
        found = of_gpus(many, dict.fromkeys(slots, ALL))
        assert found == of_gpus(many, dict.fromkeys(sorted(slots), ALL))


def test_the_fabric_of_the_cluster_bounds_a_job_and_has_the_latency_of_its_hops() -> None:
    labels = [{BLOCK: "b0", RACK: "r0"}, {BLOCK: "b0", RACK: "r0"}, {BLOCK: "b0", RACK: "r1"}]
    plain, stated = cluster([hgx()] * 3, *labels), cluster([hgx()] * 3, *labels)
    stated.link_speeds.put(FabricSpeeds(FABRIC_NAME, (LevelSpeed(BLOCK, 40_000), LevelSpeed(RACK, 0, 1_000_000))))
    near, far = {0: ALL, 1: ALL}, {0: ALL, 2: ALL}
    assert sure(of_gpus(stated, far)).mbps <= network_mbps(2 * 40_000)
    assert sure(of_gpus(plain, far)).mbps > 4 * network_mbps(40_000)
    later, sooner = sure(of_gpus(stated, near)), sure(of_gpus(plain, near))
    assert 1_900_000 < later.ns - sooner.ns < 2_100_000
