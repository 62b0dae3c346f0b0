# SPDX-License-Identifier: Apache-2.0
"""The virtual clock: who starts when, who leaves when, and what the numbers say of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dovetail.core.dra.records import Device, DeviceClass, Slice
from dovetail.core.events import DeviceClassChanged, Event, NodeChanged, PodChanged, SliceChanged
from dovetail.core.model import CPU, GPU, PODS, Container, Gang, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason
from dovetail.sim.engine import Simulation
from dovetail.sim.report import QueueReport, Run, of_queue, of_snapshot
from dovetail.sim.workload import Job, Workload, snapshot


def cluster(*gpus: int) -> tuple[NodeChanged, ...]:
    return tuple(NodeChanged(Node(f"n{i}", ((CPU, 64_000), (GPU, n), (PODS, 100)))) for i, n in enumerate(gpus))


def job(name: str, at_s: int, gpus: int, seconds: int | None, pods: int = 1) -> Job:
    gang = Gang(name, "ns", name, pods, created_ms=1000 * at_s) if pods > 1 else None
    members = tuple(
        Pod(
            f"{name}-{i}",
            "ns",
            f"{name}-{i}",
            Request(((GPU, gpus),)),
            created_ms=1000 * at_s,
            gang=name if gang else "",
        )
        for i in range(pods)
    )
    return Job(1000 * at_s, members, gang, None if seconds is None else 1000 * seconds)


def simulated(nodes: tuple[Event, ...], *jobs: Job) -> Simulation:
    simulation = Simulation(Workload("w", nodes, jobs), Policy())
    simulation.run()
    assert simulation.state.cluster.check() == []
    return simulation


def report(nodes: tuple[NodeChanged, ...], *jobs: Job) -> QueueReport:
    workload = Workload("w", nodes, jobs)
    return of_queue(Run(workload, "dovetail", 1, Simulation(workload, Policy()).run(), 0.0))


def times(simulation: Simulation) -> list[tuple[int | None, int | None]]:
    return [
        (fate.started_ms and fate.started_ms // 1000, fate.ended_ms and fate.ended_ms // 1000)
        for fate in simulation.result.fates
    ]


def test_devices_that_stand_in_for_a_resource_are_free_when_their_pod_leaves() -> None:
    own = Slice("s", "d", "n0", 1, 1, node="n0", devices=(Device("a"), Device("b")))
    told = (DeviceClassChanged(DeviceClass("c", extended_resource=GPU)), *cluster(0), SliceChanged(own))
    jobs = [job(name, at_s, gpus, 5) for name, at_s, gpus in (("a", 0, 2), ("b", 1, 1), ("c", 2, 1))]
    jobs = [
        replace(j, pods=tuple(replace(p, containers=(Container("m", p.request.resources),)) for p in j.pods))
        for j in jobs
    ]
    assert times(simulated(told, *jobs)) == [(0, 5), (5, 10), (5, 10)]


def test_who_does_not_fit_waits_until_others_leave() -> None:
    done = simulated(cluster(8), job("a", 0, 8, 10), job("b", 1, 4, 5), job("c", 2, 4, 5))
    assert times(done) == [(0, 10), (10, 15), (10, 15)]


def test_who_leaves_at_the_time_of_an_arrival_makes_room_for_it() -> None:
    assert times(simulated(cluster(8), job("a", 0, 8, 10), job("b", 10, 8, 1))) == [(0, 10), (10, 11)]


def test_a_gang_starts_and_leaves_as_one() -> None:
    done = simulated(cluster(4, 4), job("a", 0, 4, 10), job("g", 1, 4, 20, pods=2), job("b", 2, 4, 3))
    assert times(done) == [(0, 10), (10, 30), (2, 5)]


def test_who_never_fits_waits_to_the_end_with_a_reason() -> None:
    done = simulated(cluster(8), job("a", 0, 9, 10), job("b", 1, 1, 1))
    assert times(done) == [(None, None), (1, 2)]
    refusal = done.result.fates[0].refusal
    assert refusal is not None
    assert refusal.reason is Reason.NO_NODE_FITS


def test_an_impatient_simulation_drops_who_does_not_fit_at_once() -> None:
    jobs = (job("a", 0, 8, 10), job("b", 1, 4, 5), job("c", 20, 4, 5))
    done = Simulation(Workload("w", cluster(8), jobs), Policy(), patient=False)
    done.run()
    assert [fate.dropped for fate in done.result.fates] == [False, True, False]
    assert "b-0" not in done.state.roster.pods


@pytest.mark.parametrize("seed", range(30))
def test_starts_are_those_of_a_list_that_is_walked_in_order_of_age_at_each_event(seed: int) -> None:
    chance = random.Random(seed)
    gpus = chance.choice([4, 8])
    jobs = [
        job(f"j{i}", at, chance.choice([1, 1, 2, 3, 4]), chance.randint(1, 20))
        for i, at in enumerate(sorted(chance.randint(0, 60) for _ in range(40)))
    ]
    asked = [dict(each.pods[0].request.resources)[GPU] for each in jobs]
    starts: dict[int, int] = {}
    for second in range(2000):
        free = gpus
        for i, started in starts.items():
            if second < started + (jobs[i].duration_ms or 0) // 1000:
                free -= asked[i]
        for i, each in enumerate(jobs):
            if i not in starts and each.at_ms <= 1000 * second and asked[i] <= free:
                starts[i] = second
                free -= asked[i]
    assert [start for start, _ in times(simulated(cluster(gpus), *jobs))] == [starts[i] for i in range(len(jobs))]


def test_the_queue_s_report() -> None:
    told = report(cluster(8), job("a", 0, 8, 10), job("b", 0, 4, 10), job("c", 4, 9, 1))
    assert (told.jobs, told.started_jobs, told.ended_jobs, told.placed_pods) == (3, 2, 2, 2)
    assert told.refused == {"NoNodeFits": 1}
    assert (told.makespan_s, told.allocated_gpu_percent) == (20.0, 75.0)
    assert (told.wait_s.mean, told.wait_s.p50, told.wait_s.max) == (5.0, 0.0, 10.0)
    assert (told.completion_s.mean, told.completion_s.p95) == (15.0, 20.0)


def test_the_report_of_nothing_has_no_numbers_but_does_not_fail() -> None:
    told = report(cluster(8))
    assert (told.arrived_pods, told.wait_s.mean, told.allocated_gpu_percent) == (0, None, None)


def test_a_snapshot_places_who_waits_beside_who_runs() -> None:
    running = Pod("r", "ns", "r", Request(((GPU, 6),)), node="n0", managed=False)
    waiting = [
        Pod(uid, "ns", uid, Request(((GPU, n),)), created_ms=i) for i, (uid, n) in enumerate([("a", 2), ("b", 1)])
    ]
    workload = snapshot("now", [*cluster(8), *(PodChanged(pod) for pod in (running, *waiting))])
    told = of_snapshot(Run(workload, "dovetail", 1, Simulation(workload, Policy()).run(), 0.0), ("x",))
    assert [(placed.pod, placed.node) for placed in told.placed] == [("ns/a", "n0")]
    assert [(waits.pod, waits.code, waits.when) for waits in told.waiting] == [("ns/b", "NoNodeFits", "NotYet")]
    assert (told.running_pods, told.arrived_pods, told.problems) == (1, 2, ("x",))
