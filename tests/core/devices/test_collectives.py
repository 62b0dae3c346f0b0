# SPDX-License-Identifier: Apache-2.0
"""The model of an all-reduce: what is known of it from measurements, and what must hold for every job."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core.devices.collectives import NET_NS, NVLS, NVLS_TREE, RING, TREE, Span, all_reduce, network_mbps

HOPPER = 18 * 20_600
NDR = network_mbps(8 * 50_000)
NODE = Span(8, 1, HOPPER, True, nvls_milli=850)


def nodes(count: int, **more: int) -> Span:
    network = {"between_mbps": NDR, "hops_ns": (count - 1) * NET_NS, "widest_ns": NET_NS}
    return replace(NODE, gpus=8 * count, islands=count, **{**network, **more})


def test_eight_hoppers_reach_what_nccl_tests_measure() -> None:
    # nccl-tests on DGX H100: some 480 GB/s with NVLS, some 370 GB/s without.
    found, ring = all_reduce(NODE), all_reduce(replace(NODE, nvls_milli=0))
    assert found is not None
    assert ring is not None
    assert (found.algorithm, ring.algorithm) == (NVLS, RING)
    assert 440_000 < found.mbps < 490_000
    assert 360_000 < ring.mbps <= HOPPER


def test_a_few_nodes_run_a_ring_and_many_a_tree() -> None:
    algorithms = [getattr(all_reduce(nodes(count)), "algorithm", "") for count in (2, 4, 16, 64, 256, 1024)]
    assert algorithms[1] == RING
    assert set(algorithms[-2:]) <= {TREE, NVLS_TREE}
    assert algorithms == sorted(algorithms, key=lambda one: one in (TREE, NVLS_TREE)) or algorithms[0] == NVLS_TREE


def test_small_messages_take_the_latency_of_the_shortest_way() -> None:
    small = all_reduce(nodes(64), size=1024)
    assert small is not None
    assert small.algorithm in (TREE, NVLS_TREE)
    assert small.ns >= 2 * 6 * NET_NS


def test_no_algorithm_beats_the_slowest_link_of_a_ring_over_many_nodes() -> None:
    for count in (3, 5, 17, 200):
        found = all_reduce(nodes(count))
        assert found is not None
        assert 0 < found.mbps <= min(HOPPER, NDR)


def test_less_bandwidth_and_longer_hops_never_make_it_faster() -> None:
    for count in (2, 3, 8, 100):
        base = all_reduce(nodes(count))
        assert base is not None
        for worse in (
            replace(nodes(count), between_mbps=NDR // 2),
            replace(nodes(count), inside_mbps=HOPPER // 3),
            replace(nodes(count), hops_ns=10 * count * NET_NS, widest_ns=2 * NET_NS),
            replace(nodes(count), nvls_milli=0),
        ):
            found = all_reduce(worse)
            assert found is not None
            assert found.ns >= base.ns


def test_nothing_is_expected_where_a_link_that_counts_is_not_known() -> None:
    assert all_reduce(Span(1, 1)) is None
    assert all_reduce(replace(NODE, inside_mbps=0)) is None
    assert all_reduce(nodes(2, between_mbps=0)) is None
    lone = all_reduce(Span(2, 2, between_mbps=network_mbps(50_000), hops_ns=NET_NS, widest_ns=NET_NS))
    assert lone is not None
    assert 45_000 < lone.mbps <= 48_000


def test_a_network_of_next_to_nothing_takes_long() -> None:
    found = all_reduce(nodes(3, between_mbps=1))
    assert found is not None and found.ns > 1000 * 10**9


def test_its_text() -> None:
    assert str(all_reduce(replace(NODE, nvls_milli=0))) == "all-reduce at 366.7 GB/s at most (ring)"
