# SPDX-License-Identifier: Apache-2.0
"""The benchmark of GPU choices: the rivals choose as described, the books are right, and the floor is a floor."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from benchmarks import topology
from benchmarks.topology import (
    CONTESTANTS,
    NOBODY,
    PRODUCTS,
    SAMPLES,
    Job,
    Oracle,
    Placed,
    arrivals,
    best_effort,
    layouts,
    pair_score,
    partitions,
    ring_mbps,
    simulate,
)
from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.layout import BOARD, NODE, Layout

KNOWN = layouts()
DGX1, H100, BRIDGED = (KNOWN[k] for k in ("dgx1-v100", "dgx-h100-h200-8gpu-12nic", "a100-pcie-4gpu-one-bridge"))
EIGHT = 0b11111111


def wired(*links: tuple[int, int, int], gpus: int = 4) -> Layout:
    """(GPU, GPU, NVLinks), all in one NUMA node."""
    matrix = [[0] * gpus for _ in range(gpus)]
    for i, j, count in links:
        matrix[i][j] = matrix[j][i] = count
    pcie = tuple(tuple(BOARD if i == j else NODE for j in range(gpus)) for i in range(gpus))
    return Layout((0,) * gpus, pcie, tuple(map(tuple, matrix)))


def test_every_sample_that_can_be_read_takes_part() -> None:
    assert {path.stem for path in SAMPLES.glob("*.txt")} - set(PRODUCTS) == {"truncated-xeon-8gpu-pix-phb-1nic"}


class TestBestEffort:
    def test_pairs_score_by_pcie_and_by_links_that_lead_straight_there(self) -> None:
        # GPU0 and GPU1 are PIX from one NIC, GPU3 is PHB from it, GPU4 on the other socket.
        assert [pair_score(DGX1, 0, j) for j in (1, 3, 4, 5)] == [150, 230, 210, 10]
        assert [pair_score(H100, 0, j) for j in (1, 4)] == [20, 10]
        assert [pair_score(BRIDGED, i, j) for i, j in ((0, 1), (2, 3), (1, 2))] == [1220, 20, 10]

    def test_the_whole_node_is_parted_well_and_not_this_job_alone(self) -> None:
        # 1-2 is the best pair, and leaves 0 and 3 without a link: 320 + 20 is less than 220 + 220.
        assert best_effort(wired((0, 1, 2), (1, 2, 3), (2, 3, 2)), 0b1111, 2) == 0b0011
        assert best_effort(wired((0, 1, 1), (1, 2, 3), (2, 3, 1)), 0b1111, 2) == 0b0110

    @pytest.mark.parametrize(
        ("layout", "free", "size", "chosen"),
        [
            # Twice 920: 03 12 47 56, and 04 15 23 67 later.
            pytest.param(DGX1, EIGHT, 2, 0b1001, id="the first of equals"),
            pytest.param(DGX1, EIGHT, 4, 0b1111, id="a quad"),
            pytest.param(DGX1, 0b11110110, 4, 0b11110000, id="the whole quad of six"),
            pytest.param(BRIDGED, 0b1110, 2, 0b1100, id="one is left over"),
            pytest.param(BRIDGED, 0b0111, 2, 0b0011, id="the bridge"),
            pytest.param(BRIDGED, 0b1111, 1, 0b0001, id="a lone GPU breaks the bridge"),
            pytest.param(H100, 0b00111000, 2, 0b00110000, id="behind switches PCIe decides"),
            pytest.param(H100, EIGHT, 8, EIGHT, id="all"),
        ],
    )
    def test_by_hand(self, layout: Layout, free: int, size: int, chosen: int) -> None:
        assert best_effort(layout, free, size) == chosen

    @pytest.mark.parametrize(("gpus", "size", "ways"), [(8, 2, 105), (8, 4, 35), (7, 4, 35), (6, 4, 15), (5, 4, 5)])
    def test_all_partitions_are_examined_once_and_one_group_is_short(self, gpus: int, size: int, ways: int) -> None:
        found = list(partitions((*range(gpus), *[NOBODY] * (-gpus % size)), size))
        assert len(found) == len({frozenset(map(frozenset, parts)) for parts in found}) == ways
        for parts in found:
            assert sorted(gpu for group in parts for gpu in group if gpu != NOBODY) == list(range(gpus))
            assert sum(NOBODY in group for group in parts) == (gpus % size > 0)


def free_on(*nodes: tuple[str, int], sizes: list[int]) -> list[tuple[int, int]]:
    """What the oracle gives to jobs of these sizes, on nodes with these GPUs free: (node, GPUs)."""
    machines = [(name, KNOWN[name]) for name, _ in nodes]
    free = [gpus for _, gpus in nodes]
    placements = []
    for placed in Oracle(machines).decide(0, free, [], [Job(i, 0, size, 1) for i, size in enumerate(sizes)]):
        free[placed.node] ^= placed.gpus
        placements.append((placed.node, placed.gpus))
    return placements


class TestOracle:
    @pytest.mark.parametrize("name", PRODUCTS)
    def test_its_rings_are_those_of_the_tables(self, name: str) -> None:
        layout = KNOWN[name]
        masks = [sum(1 << gpu for gpu in gpus) for k in (1, 2, 3, 4) for gpus in combinations(range(layout.gpus), k)]
        for mask in [*masks, (1 << layout.gpus) - 1]:
            assert ring_mbps(layout, mask) == sets_of(layout).mbps[mask]

    def test_the_best_ratio_comes_before_the_tightest_node(self) -> None:
        bridged = "a100-pcie-4gpu-one-bridge"
        assert free_on((bridged, 0b1100), (bridged, 0b1111), ("h100-4gpu-vm-phb", 0b0000), sizes=[2]) == [(1, 0b0011)]
        assert free_on((bridged, 0b1111), ("h100-4gpu-vm-phb", 0b0110), sizes=[2, 2]) == [(1, 0b0110), (0, 0b0011)]

    def test_a_lone_gpu_leaves_the_bridge_and_the_quad_to_others(self) -> None:
        assert free_on(("a100-pcie-4gpu-one-bridge", 0b1111), sizes=[1, 2]) == [(0, 0b0100), (0, 0b0011)]
        assert free_on(("dgx1-v100", 0b11110001), sizes=[1, 4]) == [(0, 0b0001), (0, 0b11110000)]

    def test_a_job_that_does_not_fit_lets_others_pass(self) -> None:
        assert free_on(("h100-4gpu-vm-phb", 0b0111), sizes=[4, 8, 2, 1, 1]) == [(0, 0b0011), (0, 0b0100)]


def test_the_offered_load_is_what_was_asked_for() -> None:
    jobs = arrivals(20_000, 100, 0.5, random.Random(1))
    assert [job.at_ms for job in jobs] == sorted(job.at_ms for job in jobs)
    asked = sum(job.gpus * job.run_ms for job in jobs) / (100 * jobs[-1].at_ms)
    assert asked == pytest.approx(0.5, rel=0.05)


L40S = [("l40s", KNOWN["l40s-4gpu-two-numa"])]
"""GPUs 0 and 1 on one NUMA node, 2 and 3 on the other."""


@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_job_that_does_not_fit_waits_and_gpu_time_counts_until_the_last_arrival(name: str) -> None:
    jobs = [Job(0, 0, 2, 100), Job(1, 10, 2, 500), Job(2, 20, 2, 300)]
    starts = simulate(CONTESTANTS[name](L40S, random.Random(3)), L40S, jobs)
    assert [start.waited_ms for start in starts] == [0, 0, 80]
    assert [start.held_ms for start in starts] == [40, 20, 0]
    if name != "blind":
        assert [(start.mbps, start.missed, start.split) for start in starts] == [(20_000, False, False)] * 3


class Answers(Oracle):
    """Gives each job that comes the next of these GPUs."""

    def __init__(self, *gpus: int) -> None:
        self._next = iter(gpus)

    def decide(self, now_ms: int, free: list[int], gone: list[Placed], come: list[Job]) -> Iterator[Placed]:
        yield from (Placed(job, 0, next(self._next)) for job in come)


def test_a_job_misses_what_was_free_when_it_started_and_is_split_either_way() -> None:
    jobs = [Job(0, 0, 1, 100), Job(1, 10, 2, 100), Job(2, 20, 1, 300), Job(3, 500, 4, 1)]
    starts = simulate(Answers(0b1000, 0b0101, 0b0010, 0b1111), L40S, jobs)
    assert [(start.mbps, start.ideal_mbps) for start in starts] == [(0, 0), (10_000, 20_000), (0, 0), (10_000, 10_000)]
    assert [(start.missed, start.split) for start in starts] == [(False, False), (True, True), *[(False, False)] * 2]
    # When the second pair comes no better one is left.
    second = simulate(Answers(0b0101, 0b1010), L40S, [Job(0, 0, 2, 100), Job(1, 10, 2, 100)])[1]
    assert (second.missed, second.split) == (False, True)


def test_a_gpu_allocated_twice_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="1100 are free"):
        simulate(Answers(0b11, 0b11), L40S, [Job(0, 0, 2, 100), Job(1, 10, 2, 100)])


def test_a_job_that_never_starts_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="1 of 2 jobs never started"):
        simulate(Oracle(L40S), L40S, [Job(0, 0, 8, 100), Job(1, 10, 2, 100)])


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["topology.py", "--nodes", "1", "--jobs", "120", "--seeds", "1", "2", *options])
    return topology.main(), capsys.readouterr().out


@pytest.mark.slow
def test_a_small_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(monkeypatch, capsys, "--by", "layout", "-o", "json")
    answer: dict[str, Any] = json.loads(out)
    assert (status, answer["kept"]) == (0, True)
    groups = {name: [each for each in answer["lines"] if each["group"] == name] for name in ("all", *PRODUCTS)}
    assert all([each["gpus_by"] for each in lines] == list(CONTESTANTS) for lines in groups.values())
    for number, name in enumerate(CONTESTANTS):
        total, *parts = (lines[number] for lines in groups.values())
        assert total["jobs"] == sum(part["jobs"] for part in parts) == 240
        assert total["wide"] == sum(part["wide"] for part in parts) == groups["all"][0]["wide"]
        assert 0 < total["worst"] <= total["mean"] <= 1
        assert 0 < total["utilisation"] < 1
        assert (total["missed"] == 0) == (name in ("dovetail", "tightest", "oracle"))
    means = {each["gpus_by"]: each["mean"] for each in groups["all"]}
    assert means["blind"] < means["best-effort"] < means["dovetail"]
    assert answer["of_oracle"] == means["dovetail"] / means["oracle"]
    assert run(monkeypatch, capsys, "--by", "layout", "-o", "json") == (0, out)


@pytest.mark.slow
def test_lines_by_size_are_parts_of_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = json.loads(run(monkeypatch, capsys, "--by", "size", "-o", "json")[1])["lines"]
    for name in CONTESTANTS:
        total, *parts = (each for each in lines if each["gpus_by"] == name)
        assert [part["group"] for part in parts] == ["1 GPU", "2 GPUs", "4 GPUs", "8 GPUs"]
        assert [part["wide"] for part in parts] == [0, *(part["jobs"] for part in parts[1:])]
        assert sum(part["jobs"] for part in parts) == total["jobs"] == 240
        assert sum(part["utilisation"] for part in parts) == pytest.approx(total["utilisation"])


@pytest.mark.slow
def test_the_table_is_markdown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(monkeypatch, capsys)
    rows = [row for row in out.splitlines() if row.startswith("|")]
    assert (status, len(rows), len({row.count("|") for row in rows})) == (0, 2 + len(CONTESTANTS), 1)
    assert "floor 0.99: kept" in out


@pytest.mark.slow
def test_below_the_floor_the_exit_status_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(topology.CONTESTANTS, "dovetail", CONTESTANTS["blind"])
    status, out = run(monkeypatch, capsys)
    assert status == 1
    assert "BROKEN" in out


@pytest.mark.parametrize("wrong", [("--nodes", "0"), ("--jobs", "-1"), ("--load", "0")])
def test_a_run_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str]) -> None:
    monkeypatch.setattr("sys.argv", ["topology.py", *wrong])
    with pytest.raises(SystemExit, match="2"):
        topology.main()
