# SPDX-License-Identifier: Apache-2.0
"""Jobs take longer where they communicate more slowly."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core.events import NodeChanged
from dovetail.core.fabric import DEFAULT_FABRIC
from dovetail.core.model import WHOLE_GPU_MILLI
from dovetail.core.policy import Policy
from dovetail.sim.engine import Simulation
from dovetail.sim.network import Network
from dovetail.sim.orders import ORDERS
from dovetail.sim.plain import Plain
from dovetail.sim.traces.nodes import LEVELS, uniform_nodes
from dovetail.sim.wiring import wired
from dovetail.sim.workload import SimJob, Workload
from tests.sim.streams import job, times

PERCENT = {LEVELS[0]: 100, LEVELS[1]: 50, "": 25}
NODES = wired(uniform_nodes(2, 2, 2, 8), "H100-SXM5", 400)


def network(**percent: int) -> Network:
    return Network(NODES, DEFAULT_FABRIC, PERCENT | percent)


def on(*numbers: int, gpus: int = 8) -> dict[str, int]:
    return {f"node-{number}": gpus * WHOLE_GPU_MILLI for number in numbers}


def communicating(one: SimJob, percent: int = 50) -> SimJob:
    return replace(one, communication_percent=percent)


def test_the_best_place_is_the_narrowest_that_holds_the_job() -> None:
    here = network()
    assert here.pace(on(0, 1), 2, 50) == 1000
    assert here.pace(on(0, 1, 2, 3), 4, 50) == 1000
    assert here.pace(on(*range(8)), 8, 50) == 1000
    assert 1250 < here.pace(on(0, 2), 2, 50) < 1500
    assert 1800 < here.pace(on(0, 4), 2, 50) < 2500


def test_pods_that_would_fit_on_one_node_are_slow_on_two() -> None:
    here = network()
    assert here.pace(on(0), 2, 50) == 1000
    assert here.pace(on(0, 1, gpus=4), 2, 50) > 1250


def test_only_communication_takes_longer() -> None:
    here = network()
    paces = [here.pace(on(0, 4), 2, percent) for percent in (0, 1, 20, 80)]
    assert paces[0] == 1000
    assert paces == sorted(set(paces))
    assert abs(4 * (paces[2] - 1000) - (paces[3] - 1000)) <= 4


def test_no_place_is_better_than_the_best() -> None:
    dice, here = random.Random(3), network()
    for _ in range(40):
        count = dice.randint(1, 8)
        assert here.pace(on(*dice.sample(range(8), count)), count, 99) >= 1000


def test_without_wiring_nothing_takes_longer() -> None:
    plain = Network(uniform_nodes(2, 2, 2, 8), DEFAULT_FABRIC, PERCENT)
    assert plain.pace(on(0, 4), 2, 50) == 1000


@pytest.mark.parametrize("order", [None, "fifo"])
def test_a_job_ends_by_the_pace_of_its_place(order: str | None) -> None:
    first, second = (job(name, 0, 8, 100, pods=2) for name in ("a", "b"))
    # One job holds the first of each pair of nodes, so the second one is spread.
    held = [job(f"h{i}", 0, 8, 1000) for i in range(2)]
    jobs = (communicating(first), communicating(second), *held)
    workload = Workload("w", tuple(map(NodeChanged, NODES)), jobs)
    simulation = (
        Plain(workload, ORDERS[order], network=network())
        if order
        else Simulation(workload, Policy(), network=network())
    )
    fates = simulation.run().fates
    for fate in fates[:2]:
        assert fate.ended_ms == 100 * fate.pace
    assert [fate.pace for fate in fates[2:]] == [1000, 1000]


def test_a_job_that_is_stopped_keeps_the_work_that_its_pace_allowed() -> None:
    slow = communicating(job("a", 0, 8, 100, pods=2, checkpoint_s=10))
    simulation = Simulation(Workload("w", tuple(map(NodeChanged, NODES)), (slow,)), Policy(), network=network())
    simulation.run(until_ms=0)
    [fate] = simulation.result.fates
    fate.pace = 2000
    assert fate.worked_ms(50_000) == 25_000
    assert fate.left_ms(50_000) == 150_000
    simulation.now_ms = 55_000
    simulation.evict(fate, 0)
    # Five checkpoints of 10 s, at half the pace.
    assert fate.saved_ms == 25_000
    assert times(simulation)[0][0] == 0
