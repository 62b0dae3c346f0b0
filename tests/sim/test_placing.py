# SPDX-License-Identifier: Apache-2.0
"""Placing at once is what the impatient simulation does, and it refuses the rest."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core.events import NodeChanged, PodChanged
from dovetail.core.model import CPU, GPU, PODS, Gang, HostPort, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.sim import sample
from dovetail.sim.arrivals import inflated
from dovetail.sim.engine import Simulation
from dovetail.sim.placing import PlacedAtOnce
from dovetail.sim.policies import POLICIES
from dovetail.sim.traces import openb
from dovetail.sim.workload import Outage, SimJob, Workload
from tests.sim.test_policies import MODEL, request_of, scene


def workload(seed: int) -> Workload:
    machines, tasks = scene(seed)
    nodes = [
        Node(m.name, ((CPU, m.cpu_milli), (GPU, len(m.gpus)), (PODS, 1000)), ((MODEL, m.model),)) for m in machines
    ]
    jobs = [SimJob(i, (Pod(f"p{i}", "ns", f"p{i}", request_of(task)),)) for i, task in enumerate(tasks)]
    listed = Workload("scene", tuple(map(NodeChanged, nodes)), tuple(jobs))
    return inflated(listed, 150, seed) if any(task.milli for task in tasks) else listed


def compared(trace: Workload, policy: str, seed: int) -> int:
    """How many were refused, by both."""
    requests = [job.pods[0].request for job in trace.jobs]
    at_once = PlacedAtOnce(trace, Policy(scoring=POLICIES[policy](seed, requests)))
    simulation = Simulation(trace, Policy(scoring=POLICIES[policy](seed, requests)), patient=False)
    found, expected = at_once.run(), simulation.run()
    assert found.placed == expected.placed
    assert found.moments == expected.moments
    dropped = [fate.number for fate in found.fates if fate.dropped]
    assert dropped == [fate.number for fate in expected.fates if fate.dropped]
    mine, theirs = at_once.cluster.placements, simulation.state.cluster.placements
    assert {uid: p.devices for uid, p in mine.items()} == {uid: p.devices for uid, p in theirs.items()}
    assert at_once.cluster.check() == []
    return len(dropped)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_the_impatient_simulation(policy: str) -> None:
    assert sum(compared(workload(seed), policy, seed) for seed in range(10)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fgd", "expected-fill"])
def test_it_is_the_impatient_simulation_of_the_sample(policy: str) -> None:
    """A third of its nodes and pods: all its models, and hundreds of pods that no longer fit."""
    nodes, pods = openb.read_nodes(sample.NODES)[::3], openb.read_pods(sample.PODS)[::3]
    assert compared(inflated(Workload("sample", tuple(map(NodeChanged, nodes)), pods), 130, 42), policy, 42) > 333


POD = Pod("p", "ns", "p", Request(((GPU, 1),)))
NODE = NodeChanged(Node("n", ((CPU, 8000), (GPU, 4), (PODS, 10))))
PLAIN = Workload("w", (NODE,), (SimJob(0, (POD,)),))


def test_one_pod_is_placed() -> None:
    assert PlacedAtOnce(PLAIN, Policy()).run().placed == {"p": "n"}


@pytest.mark.parametrize(
    "more",
    [
        replace(PLAIN, jobs=(SimJob(0, (POD,), Gang("g", "ns", "g")),)),
        replace(PLAIN, jobs=(SimJob(0, (POD,), duration_ms=5),)),
        replace(
            PLAIN, jobs=(SimJob(0, (replace(POD, request=replace(POD.request, ports=(HostPort("", "TCP", 80),))),)),)
        ),
        replace(PLAIN, outages=(Outage("n", 1, 2),)),
        replace(PLAIN, queues=(Queue("q"),)),
        replace(PLAIN, cluster=(NODE, PodChanged(replace(POD, uid="there", node="n")))),
    ],
)
def test_what_is_more_than_placing_is_refused(more: Workload) -> None:
    with pytest.raises(ValueError, match=r"^w: "):
        PlacedAtOnce(more, Policy())
