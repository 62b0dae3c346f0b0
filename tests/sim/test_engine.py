# SPDX-License-Identifier: Apache-2.0
"""The virtual clock: when jobs start and end, and the numbers of the report."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core.dra.types import Device, DeviceClass, Slice
from dovetail.core.events import DeviceClassChanged, Event, NodeChanged, PodChanged, SliceChanged
from dovetail.core.model import GPU, Container, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason
from dovetail.sim.engine import Simulation
from dovetail.sim.report import QueueReport, SimulationRun, of_queue, of_snapshot
from dovetail.sim.workload import Outage, SimJob, Workload, snapshot
from tests.sim.streams import cluster, job, times

NO_HOLD = Policy(reserve=False, preempt=False)


def simulated(nodes: tuple[Event, ...], *jobs: SimJob, policy: Policy = NO_HOLD) -> Simulation:
    simulation = Simulation(Workload("w", nodes, jobs), policy)
    simulation.run()
    assert simulation.state.cluster.check() == []
    return simulation


def report(nodes: tuple[NodeChanged, ...], *jobs: SimJob) -> QueueReport:
    workload = Workload("w", nodes, jobs)
    return of_queue(SimulationRun(workload, "dovetail", 1, Simulation(workload, Policy()).run(), 0.0))


def test_devices_that_stand_in_for_a_resource_are_free_when_their_pod_leaves() -> None:
    own = Slice("s", "d", "n0", 1, 1, node="n0", devices=(Device("a"), Device("b")))
    reported = (DeviceClassChanged(DeviceClass("c", extended_resource=GPU)), *cluster(0), SliceChanged(own))
    jobs = [job(name, at_s, gpus, 5) for name, at_s, gpus in (("a", 0, 2), ("b", 1, 1), ("c", 2, 1))]
    jobs = [
        replace(j, pods=tuple(replace(p, containers=(Container("m", p.request.resources),)) for p in j.pods))
        for j in jobs
    ]
    assert times(simulated(reported, *jobs)) == [(0, 5), (5, 10), (5, 10)]


def test_a_job_that_does_not_fit_waits_until_others_leave() -> None:
    done = simulated(cluster(8), job("a", 0, 8, 10), job("b", 1, 4, 5), job("c", 2, 4, 5))
    assert times(done) == [(0, 10), (10, 15), (10, 15)]


def test_a_job_that_ends_at_an_arrival_makes_room_for_it() -> None:
    assert times(simulated(cluster(8), job("a", 0, 8, 10), job("b", 10, 8, 1))) == [(0, 10), (10, 11)]


def test_a_gang_starts_and_leaves_as_one() -> None:
    jobs = [job("a", 0, 4, 10), job("g", 1, 4, 20, pods=2), job("b", 2, 4, 3)]
    assert times(simulated(cluster(4, 4), *jobs)) == [(0, 10), (10, 30), (2, 5)]


def test_room_is_held_for_the_first_that_does_not_fit_as_far_as_run_times_are_declared() -> None:
    held = Policy(preempt=False)
    jobs = [job("a", 0, 4, 10, limit_s=10), job("g", 1, 4, 20, pods=2, limit_s=20)]
    short, long = job("b", 2, 4, 3, limit_s=8), job("c", 2, 4, 3, limit_s=9)
    assert times(simulated(cluster(4, 4), *jobs, short, policy=held)) == [(0, 10), (10, 30), (2, 5)]
    assert times(simulated(cluster(4, 4), *jobs, long, policy=held)) == [(0, 10), (10, 30), (30, 33)]


def test_a_job_that_never_fits_waits_to_the_end_with_a_reason() -> None:
    done = simulated(cluster(8), job("a", 0, 9, 10), job("b", 1, 1, 1))
    assert times(done) == [(None, None), (1, 2)]
    refusal = done.result.fates[0].refusal
    assert refusal is not None
    assert refusal.reason is Reason.NO_NODE_FITS


def test_an_impatient_simulation_drops_jobs_that_do_not_fit_at_once() -> None:
    jobs = (job("a", 0, 8, 10), job("b", 1, 4, 5), job("c", 20, 4, 5))
    done = Simulation(Workload("w", cluster(8), jobs), Policy(), patient=False)
    done.run()
    assert [fate.dropped for fate in done.result.fates] == [False, True, False]
    assert "b-0" not in done.state.workloads.pods


@pytest.mark.parametrize(("grace_s", "expected"), [(0, [(0, 14), (5, 7)]), (2, [(0, 16), (7, 9)])])
def test_an_evicted_job_holds_its_gpus_for_its_grace_and_comes_back_later(
    grace_s: int, expected: list[tuple[int, int]]
) -> None:
    low, high = job("a", 0, 4, 10, checkpoint_s=4, startup_s=1), job("b", 5, 4, 2)
    [pod], [first] = low.pods, high.pods
    low = replace(low, pods=(replace(pod, work=replace(pod.work, grace_ms=1000 * grace_s)),))
    high = replace(high, pods=(replace(first, priority=10),))
    done = simulated(cluster(4), low, high, policy=Policy())
    assert times(done) == expected
    fate = done.result.fates[0]
    assert (done.result.evicted, fate.lost_ms, fate.runs, fate.saved_ms) == (1, 1000, 2, 10_000)
    assert fate.waited_ms == 2000 + 1000 * grace_s
    assert not done.state.workloads.pods


def test_a_gang_is_evicted_as_a_whole() -> None:
    gang, high = job("g", 0, 2, 10, pods=2), job("b", 5, 2, 2)
    high = replace(high, pods=(replace(high.pods[0], priority=10),))
    done = simulated(cluster(2, 2), gang, high, policy=Policy())
    assert times(done) == [(0, 17), (5, 7)]


def test_the_core_learns_from_those_that_ended_and_only_from_those() -> None:
    jobs = [job("a", 0, 4, 10), *(job(f"b{i}", 20 + 10 * i, 4, 3) for i in range(3))]
    done = Simulation(Workload("w", cluster(4), tuple(jobs), outages=(Outage("n0", 5000, 6000),)), Policy())
    done.run()
    learned = {kind: runs for kind, _, runs in done.state.run_times.records()}
    assert learned["family"] == (10_000, 3000, 3000, 3000)


def test_a_simulation_can_end_before_all_jobs_did() -> None:
    jobs = (job("a", 0, 4, 10), job("b", 1, 4, 10))
    done = Simulation(Workload("w", cluster(4), jobs), Policy())
    done.run(until_ms=10_000)
    assert times(done) == [(0, 10), (10, None)]


@pytest.mark.slow
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
    reported = report(cluster(8), job("a", 0, 8, 10), job("b", 0, 4, 10), job("c", 4, 9, 1))
    assert (reported.jobs, reported.started_jobs, reported.ended_jobs, reported.placed_pods) == (3, 2, 2, 2)
    assert reported.refused == {"NoNodeFits": 1}
    assert (reported.makespan_s, reported.allocated_gpu_percent) == (20.0, 75.0)
    assert (reported.wait_s.mean, reported.wait_s.p50, reported.wait_s.max) == (5.0, 0.0, 10.0)
    assert (reported.completion_s.mean, reported.completion_s.p95) == (15.0, 20.0)


def test_the_report_of_nothing_has_no_numbers_but_does_not_fail() -> None:
    reported = report(cluster(8))
    assert (reported.arrived_pods, reported.wait_s.mean, reported.allocated_gpu_percent) == (0, None, None)


def test_a_snapshot_places_pending_pods_beside_running_ones() -> None:
    running = Pod("r", "ns", "r", Request(((GPU, 6),)), node="n0", managed=False)
    waiting = [
        Pod(uid, "ns", uid, Request(((GPU, n),)), created_ms=i) for i, (uid, n) in enumerate([("a", 2), ("b", 1)])
    ]
    workload = snapshot("now", [*cluster(8), *(PodChanged(pod) for pod in (running, *waiting))])
    reported = of_snapshot(SimulationRun(workload, "dovetail", 1, Simulation(workload, Policy()).run(), 0.0), ("x",))
    assert [(placed.pod, placed.node) for placed in reported.placed] == [("ns/a", "n0")]
    assert [(waits.pod, waits.code, waits.when) for waits in reported.waiting] == [("ns/b", "NoNodeFits", "NotYet")]
    assert (reported.running_pods, reported.arrived_pods, reported.problems) == (1, 2, ("x",))
