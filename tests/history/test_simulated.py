# SPDX-License-Identifier: Apache-2.0
"""The history of a simulated run against what the simulation counts itself."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from dovetail.core.events import NodeChanged
from dovetail.core.model import GPU, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.history.ledger import GpuTime, divide
from dovetail.history.simulated import SimulatedHistory
from dovetail.sim.engine import Simulation
from dovetail.sim.workload import Outage, SimJob, Workload
from tests.history.kept import Kept
from tests.history.worlds import whole_node


def workload() -> Workload:
    """Jobs of whole GPUs, and of parts of one; half of the jobs may be preempted, and a node fails."""
    chance = Random(5)
    jobs, at_ms = [], 0
    for number in range(70):
        at_ms += chance.randrange(60_000)
        request = Request(resources=((GPU, chance.choice([1, 2, 4, 8])),))
        if chance.random() < 0.3:
            request = Request(gpu_milli=chance.choice([250, 500]))
        pod = Pod(
            f"p{number}", "team", f"p{number}", request, created_ms=at_ms + 1, priority=chance.choice([0, 0, 100]),
            work=Work(grace_ms=2000, preemptible=True),
        )  # fmt: skip
        jobs.append(SimJob(at_ms, (pod,), None, chance.randrange(1000, 600_000)))
    nodes = [replace(whole_node(f"n{number}", 8), gpu_memory_mib=80_000) for number in range(3)]
    return Workload("w", tuple(map(NodeChanged, nodes)), tuple(jobs), outages=(Outage("n1", 500_000, 900_000),))


@pytest.mark.slow
def test_the_time_that_is_held_is_what_the_simulation_allocated() -> None:
    kept = Kept()
    history = SimulatedHistory(kept.write)
    simulation = Simulation(workload(), Policy(), observer=history)
    result = simulation.run()
    history.finish()
    period = kept.known()
    times = Counter[str]()
    for part in divide(kept.spans(period), kept.holds(period), period):
        assert isinstance(part, GpuTime)
        times[part.state] += part.amount
    allocated = sum(one.allocated_milli * (next_.at_ms - one.at_ms) for one, next_ in pairwise(result.moments))
    up = sum(one.up_milli * (next_.at_ms - one.at_ms) for one, next_ in pairwise(result.moments))
    assert times["allocated"] == allocated
    assert times.total() == up
    assert result.failed
    assert result.evicted
    outcomes = Counter(one.outcome for one in kept.pods(period))
    assert outcomes["Completed"] == 70 == len(result.fates)
    assert outcomes["Preempted"] == result.evicted
    assert outcomes["Failed"] == result.failed
    assert set(outcomes) == {"Completed", "Preempted", "Failed"}
    waited = {one.uid: one.bound_ms - one.submitted_ms for one in kept.pods(period)}
    assert all(waited[fate.job.pods[0].uid] >= 0 for fate in result.fates)
