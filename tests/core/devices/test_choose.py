# SPDX-License-Identifier: Apache-2.0
"""The tables of sets and choices against brute force, and on the wirings that exist."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, permutations

import pytest

from dovetail.core.devices.bandwidth import Sets
from dovetail.core.devices.choose import choices
from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, SYS, UNKNOWN, Layout, LayoutError, Nic

CUBE_MESH = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
]
"""NVLinks of a DGX-1 V100 (its user guide; `nvidia-smi topo -m`)."""


def layout(numa: list[int], links: list[list[int]], near: int = NODE, far: int = SYS, **more: object) -> Layout:
    count = len(numa)
    pcie = tuple(
        tuple(BOARD if i == j else near if numa[i] == numa[j] else far for j in range(count)) for i in range(count)
    )
    return Layout(tuple(numa), pcie, tuple(map(tuple, links)), **more)  # type: ignore[arg-type]


def no_links(count: int) -> list[list[int]]:
    return [[0] * count for _ in range(count)]


def full(count: int, links: int) -> list[list[int]]:
    return [[links * (i != j) for j in range(count)] for i in range(count)]


def halves(links: int) -> list[list[int]]:
    return [[links * (i != j and i // 4 == j // 4) for j in range(8)] for i in range(8)]


def drawn(seed: int, most: int) -> Layout:
    chance = random.Random(seed)
    count = chance.randint(1, most)
    links = no_links(count)
    for i, j in combinations(range(count), 2):
        links[i][j] = links[j][i] = chance.choice([0, 0, 1, 2, 4])
    numa = [chance.choice([0, 0, 1]) for _ in range(count)]
    nics = tuple(
        Nic(tuple(chance.choice([PIX, NODE, SYS]) for _ in range(count))) for _ in range(chance.choice([0, 2]))
    )
    return layout(numa, links, near=chance.choice([PIX, PHB, NODE]), nics=nics)


def bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def ring_mbps(wired: Layout, gpus: list[int]) -> int:
    """The slowest hop of the best ring, by trying all of them."""
    if len(gpus) < 2:
        return 0
    first, *rest = gpus
    rings = ([first, *order, first] for order in permutations(rest))
    return max(min(wired.pair_mbps(a, b) for a, b in pairwise(ring)) for ring in rings)


def rank(wired: Layout, gpus: list[int]) -> tuple[int, ...]:
    """Bandwidth, then NUMA nodes, then PCIe, then NICs; more is better."""
    apart = sum(wired.pcie[i][j] for i, j in combinations(gpus, 2))
    to_nics = sum(min(nic.levels[gpu] for nic in wired.nics) for gpu in gpus if wired.nics)
    return ring_mbps(wired, gpus), -len({wired.numa[gpu] for gpu in gpus}), -apart, -to_nics


@pytest.mark.parametrize("seed", range(40))
def test_every_set_has_the_bandwidth_of_its_best_ring(seed: int) -> None:
    wired = drawn(seed, 6)
    sets = Sets(wired)
    for mask in range(1 << wired.gpus):
        gpus = bits(mask)
        assert sets.mbps[mask] == ring_mbps(wired, gpus)
        bare = Layout(wired.numa, wired.pcie, wired.nvlinks, nvlink_mbps=10**5)
        assert sets.nvlinked[mask] == (len(gpus) < 2 or ring_mbps(bare, gpus) >= 10**5)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_the_chosen_set_is_the_best_of_all_and_leaves_the_best_behind(seed: int) -> None:
    wired = drawn(seed, 6)
    table = choices(wired)
    every = {mask: rank(wired, bits(mask)) for mask in range(1 << wired.gpus)}
    order = {found: place for place, found in enumerate(sorted(set(every.values())))}

    def best(free: int, size: int) -> int:
        return max(order[every[m]] for m in every if m & ~free == 0 and m.bit_count() == size)

    for free in every:
        for size in range(1, free.bit_count() + 1):
            chosen = table.choose(free, size)
            assert chosen & ~free == 0
            assert chosen.bit_count() == size
            assert order[every[chosen]] == best(free, size)
            ideal, got = best(max(every), size), best(free, size)
            here, there = sorted(set(every.values()))[got][0], sorted(set(every.values()))[ideal][0]
            assert table.closeness[size, free] == (1000 if size == 1 else 1000 * here // there)
            equals = [
                m for m in every if m & ~free == 0 and m.bit_count() == size and order[every[m]] == best(free, size)
            ]
            assert chosen in equals
            kept = {m: sum(int(q) for q in _left(table.sets, free ^ m)) for m in equals}
            assert kept[chosen] == max(kept.values())
            assert chosen == min(m for m in equals if kept[m] == kept[chosen])


def _left(sets: Sets, free: int) -> list[int]:
    """The qualities of the best 1, 2, 4, 8 ... of what is free, by looking at all of them."""
    quality = sets.quality
    sizes = (1 << power for power in range(free.bit_length() + 1))
    found = ([int(quality[m]) for m in range(len(quality)) if m & ~free == 0 and m.bit_count() == k] for k in sizes)
    return [max(qualities) for qualities in found if qualities]


def test_where_too_few_are_free_nothing_is_chosen_and_nothing_is_close() -> None:
    table = choices(drawn(1, 6))
    assert table.choose(0b1, 2) == table.choose(0b1, 0) == table.choose(0b1, 99) == 0
    assert table.closeness[2, 0b1] == -1


@pytest.mark.parametrize("seed", range(20))
def test_a_pod_that_needs_nvlinks_gets_the_best_linked_set_or_nothing(seed: int) -> None:
    wired = drawn(seed, 6)
    plain, linked = choices(wired), choices(wired, nvlinked=True)
    sets = plain.sets
    for free in range(1 << wired.gpus):
        for size in range(1, wired.gpus + 1):
            every = [m for m in range(free + 1) if m & ~free == 0 and m.bit_count() == size and sets.nvlinked[m]]
            chosen = linked.choose(free, size)
            assert (chosen in every) == bool(every)
            assert (linked.closeness[size, free] >= 0) == bool(every)
            if every:
                assert sets.quality[chosen] == max(sets.quality[m] for m in every)


def test_how_often_gpus_can_be_chosen() -> None:
    islands = layout([0] * 4 + [1] * 4, halves(4))
    assert choices(islands, nvlinked=True).times(0b01110111, 2) == 2
    assert choices(islands).times(0b01110111, 2) == 3


def test_a_pod_that_speaks_to_other_nodes_takes_gpus_near_nics_before_those_of_one_numa_node() -> None:
    wired = layout([0, 0, 1, 1], full(4, 18), nics=(Nic((PIX, SYS, SYS, SYS)), Nic((SYS, SYS, SYS, PIX))))
    assert choices(wired, near_nics=True).choose(0b1111, 2) == 0b1001
    assert choices(wired).choose(0b1111, 2) in (0b0011, 0b1100)


def test_a_cube_mesh_gives_pairs_with_two_links_and_a_ring_of_eight() -> None:
    table = choices(layout([0] * 4 + [1] * 4, CUBE_MESH))
    pair = bits(table.choose(0xFF, 2))
    assert CUBE_MESH[pair[0]][pair[1]] == 2
    assert table.sets.mbps[0xFF] == 2 * 20_000
    four = table.choose(0xFF, 4)
    assert four in (0x0F, 0xF0)
    assert table.choose(0xFF ^ four, 4) == 0xFF ^ four


def test_a_job_of_four_is_close_in_an_island_of_four_and_far_across_islands() -> None:
    table = choices(layout([0] * 4 + [1] * 4, halves(4)))
    assert table.closeness[4, 0xF0] == 1000
    assert choices(table.sets.layout, nvlinked=True).choose(0xF1, 4) == 0xF0
    assert choices(table.sets.layout, nvlinked=True).choose(0b00110011, 4) == 0
    assert table.closeness[4, 0b00110011] < 200


def test_a_single_gpu_is_taken_where_it_breaks_the_least() -> None:
    table = choices(layout([0] * 4 + [1] * 4, halves(4)))
    assert bits(table.choose(0b11110001, 1)) == [0]
    bridged = [[0, 4, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert bits(choices(layout([0] * 4, bridged)).choose(0b1111, 1)) == [2]


def test_behind_switches_all_sets_are_equal_and_numa_nodes_decide() -> None:
    table = choices(layout([0] * 4 + [1] * 4, full(8, 18)))
    assert set(table.closeness[4][table.closeness[4] >= 0]) == {1000}
    assert table.choose(0b11101110, 3) == 0b1110
    assert table.choose(0b11101100, 2) == 0b1100


def test_gpus_near_their_nics_come_first_where_all_else_is_equal() -> None:
    wired = layout([0] * 4, full(4, 4), nics=(Nic((SYS, SYS, PIX, PIX)),))
    assert choices(wired).choose(0b1111, 2) == 0b1100


@pytest.mark.slow
def test_sixteen_gpus_are_worked_out_and_more_are_not() -> None:
    table = choices(layout([0] * 8 + [1] * 8, full(16, 6)))
    assert table.choose(0xFFFF, 8) in (0x00FF, 0xFF00)
    with pytest.raises(ValueError, match="17 GPUs"):
        choices(layout([0] * 17, no_links(17)))


def test_equal_layouts_share_one_table() -> None:
    assert choices(layout([0, 0], full(2, 4))) is choices(layout([0, 0], full(2, 4)))


def test_unknown_levels_are_taken_from_the_numa_nodes() -> None:
    wired = layout([0, 0, 1, UNKNOWN], no_links(4), near=UNKNOWN, far=UNKNOWN)
    assert wired.pair_mbps(0, 1) == 10_000
    assert wired.pair_mbps(0, 2) == wired.pair_mbps(0, 3) == 10_000
    assert choices(wired).choose(0b1111, 2) == 0b0011


WRONG = [
    ({"pcie": ((0, 5), (4, 0))}, "pcie[0][1]: is 5 one way and 4 the other"),
    ({"pcie": ((0, 5, 5), (5, 0, 5))}, "pcie: must have a row and a column for each of 2 GPUs"),
    ({"pcie": ((0, 9), (9, 0))}, "pcie[0][1]: 9 is not from -1 to 5"),
    ({"pcie": ((1, 5), (5, 0))}, "pcie[0][0]"),
    ({"nvlinks": ((0, 2), (3, 0))}, "nvlinks[0][1]: is 2 one way and 3 the other"),
    ({"nvlinks": ((1, 2), (2, 0))}, "has no link to itself"),
    ({"numa": (0, 64)}, "numa[1]: 64 is not from -1 to 63"),
    ({"nics": (Nic((1,)),)}, "nics[0].levels: names 1 GPUs of 2"),
    ({"nics": (Nic((1, 7)),)}, "nics[0].levels[1]"),
    ({"nvlink_mbps": 0}, "nvlink_mbps: 0 is not from 1"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_layout_that_contradicts_itself_cannot_be_made(change: dict[str, object], message: str) -> None:
    parts: dict[str, object] = {"numa": (0, 0), "pcie": ((0, 5), (5, 0)), "nvlinks": ((0, 2), (2, 0))}
    with pytest.raises(LayoutError) as error:
        Layout(**(parts | change))  # type: ignore[arg-type]
    assert message in str(error.value)
