# SPDX-License-Identifier: Apache-2.0
"""All ways of looking at one state give one answer: the verdict, the reason, the start, the position in the queue.

Random clusters with queues, gangs, pods that run with and without limits, pods that never fit: what `why`, `queue`,
`jobs`, `whatif`, `share`, `priority`, `free`, `doctor` and `simulate` print of each job is compared.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from dovetail.cli import cli
from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.model import CPU, GPU, MEMORY, Gang, Node, Pod, Problem, Request
from dovetail.core.queues.types import Queue
from dovetail.core.reasons import When
from dovetail.core.state import State
from dovetail.sim.once import Once
from dovetail.sim.report import SimulationRun, of_snapshot
from dovetail.sim.workload import snapshot
from dovetail.views.forecast_types import PLACED
from dovetail.views.free_types import Beside
from dovetail.views.job_list import job_list
from dovetail.views.job_states import WAITING
from dovetail.views.job_types import JobFilter
from dovetail.views.jobs import waiting_jobs
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_shares import share
from dovetail.views.queue_types import QueuePosition, WaitingWorkload
from dovetail.views.rank import rank
from dovetail.views.shape import largest
from dovetail.views.shape_types import ShapeView
from dovetail.views.whatif import Hypothesis, submit, whatif
from dovetail.views.why import refused_pods, why
from dovetail.views.why_queue import why_queue
from dovetail.views.why_types import Why
from tests.breadth import seeds
from tests.views.queued import HOUR, MINUTE, NOW, node, pod, queue, state_of

CPU_EACH, MEMORY_EACH = 2_000, 4 << 30
Reported = Node | Pod | Gang | Queue
"""What a cluster is made of."""
KINDS: dict[type, Any] = {Node: ev.NodeChanged, Pod: ev.PodChanged, Gang: ev.GangChanged, Queue: ev.QueueChanged}


def world(seed: int) -> list[Reported]:
    """Up to four nodes of 8 GPUs; pods ask for CPU and memory beside GPUs, as users write them."""
    dice = random.Random(seed)
    nodes = [node(f"n{i}", unschedulable=dice.random() < 0.1) for i in range(dice.randint(1, 4))]
    queues = [
        queue(name, guarantee=dice.choice((0, 4, 8, 16)), limit=dice.choice((0, 0, 8, 24)), weight=dice.randint(1, 3))
        for name in ("a", "b")[: dice.randint(0, 2)]
    ]
    names = ["", *(one.name for one in queues)]
    reported: list[Reported] = [*nodes, *queues]
    for one in nodes:
        free = 8
        for i in range(dice.randint(0, 4)):
            gpus = dice.choice((1, 2, 4, 8))
            if gpus <= free:
                free -= gpus
                reported.append(running(dice, f"runs-{one.name}-{i}", gpus, one.name, dice.choice(names)))
    for i in range(dice.randint(1, 6)):
        reported += waiting(dice, f"w{i}", dice.choice(names))
    return reported


def running(dice: random.Random, name: str, gpus: int, on: str, of: str) -> Pod:
    since_ms = dice.randint(1, 90) * MINUTE
    runs_ms = dice.choice((0, 2 * HOUR, 5 * HOUR))
    more: dict[str, Any] = {"owner": name} if dice.random() < 0.7 else {}
    found = pod(name, gpus, on, runs_ms, since_ms, queue=of, priority=dice.choice((0, 0, 100)), **more)
    return asking(replace(found, deleting=dice.random() < 0.05), gpus)


def waiting(dice: random.Random, name: str, of: str) -> list[Reported]:
    priority, gpus = dice.choice((0, 0, 0, 100)), dice.choice((1, 2, 4, 8, 8, 16))
    runs_ms, waits_ms = dice.choice((0, HOUR, 4 * HOUR)), dice.randint(1, 300) * MINUTE
    kind = dice.random()
    if kind < 0.55:
        one = asking(pod(name, gpus, runs_ms=runs_ms, waits_ms=waits_ms, queue=of, priority=priority), gpus)
        if dice.random() < 0.1:
            one = replace(one, problem=Problem("spec.x", "y", "must be z"))
        return [replace(one, gated=dice.random() < 0.1)]
    count, least = dice.randint(1, 5), dice.randint(1, 5)
    gang = Gang(f"gang/ns/{name}", "ns", name, min_count=least, created_ms=NOW - waits_ms)
    pods = [
        asking(pod(f"{name}-{i}", gpus, runs_ms=runs_ms, waits_ms=waits_ms, queue=of, priority=priority), gpus)
        for i in range(count)
    ]
    members = [replace(one, gang=gang.id) for one in pods]
    return [*([gang] if dice.random() < 0.9 else []), *members]


def asking(one: Pod, gpus: int) -> Pod:
    """With CPU and memory for each of its GPUs."""
    resources = ((CPU, CPU_EACH * gpus), (MEMORY, MEMORY_EACH * gpus), (GPU, gpus))
    return replace(one, request=Request(resources))


def copy(state: State) -> State:
    return restore(state.policy, take(state))


def of_job(state: State, one: WaitingWorkload) -> Why:
    return why(copy(state), one.job, NOW)


def check(reported: list[Reported]) -> None:
    state = state_of(*reported)
    found = queue_positions(copy(state), NOW)
    by_job = {one.job: one for one in found.jobs}
    assert len(by_job) == len(found.jobs)
    for one in found.jobs:
        _agrees_with_why(state, one)
        place = rank(copy(state), one.job, NOW)
        assert (place.position, place.waiting) == (one.position, len(found.jobs))
    _agrees_with_jobs(state, found)
    _agrees_with_whatif(state, by_job)
    _agrees_with_the_queues(state, found)
    _agrees_with_the_doctor(state, by_job)
    _is_simulated(state, reported, by_job)
    _first_fits_where_free_reports_it(state, found)


def _agrees_with_jobs(state: State, found: QueuePosition) -> None:
    """The list of jobs has each waiting job with its reason, also without a look-ahead, and in queue order."""
    listed = job_list(copy(state), NOW, JobFilter(), most_ahead=len(found.jobs))
    assert listed.looked_ahead
    rows = {row.job: row for row in listed.jobs}
    waits = [(row.job, row.when, row.reason, row.message) for row in listed.jobs if row.when]
    assert sorted(waits) == sorted((one.job, one.state, one.code, one.message) for one in found.jobs)
    waiting = {row.job for row in listed.jobs if row.state == WAITING}
    assert [row.job for row in listed.jobs if row.state == WAITING] == [
        one.job for one in found.jobs if one.job in waiting
    ]
    for one in found.jobs:
        start = rows[one.job].start
        if one.job in waiting and one.state != When.NEVER:
            assert start is not None and start.sure is one.expected.sure and start.basis == one.expected.basis
            assert (start.at.timestamp() if start.at is not None else 0) == one.expected.start_ms // 1000
    near = job_list(copy(state), NOW, JobFilter(), most_ahead=-1)
    assert [(row.job, row.when, row.reason, row.message) for row in near.jobs if row.when] == waits


def _agrees_with_why(state: State, one: WaitingWorkload) -> None:
    stated = of_job(state, one)
    assert (stated.state, stated.code or PLACED) == (one.state, one.code), one.job
    if one.state == PLACED:
        assert (stated.pod, stated.node) in {(place.pod, place.node) for place in one.places}
        return
    assert stated.message == one.message
    if one.state == When.NEVER:
        assert stated.expected is None and not one.expected.start_ms and stated.ahead == 0
        assert not stated.holders and {rule.when for rule in stated.rules} <= {When.NEVER}
        return
    assert stated.expected == one.expected and stated.ahead == one.position - 1
    on_nodes = {pod.key for pod in state.workloads.pods.values() if pod.node}
    assert {holder.pod for holder in stated.holders if not holder.next} <= on_nodes
    assert {holder.pod for holder in stated.holders if holder.next}.isdisjoint(on_nodes)


def _agrees_with_whatif(state: State, by_job: dict[str, WaitingWorkload]) -> None:
    """Of a change that changes nothing."""
    roots = frozenset(job.workload for job in waiting_jobs(state))
    answer = whatif(copy(state), Hypothesis((), roots), NOW)
    assert {one.job for one in answer.jobs} == by_job.keys()
    for one in answer.jobs:
        stated = by_job[one.job]
        assert one.before == one.after == stated.expected, one.job
        assert one.before_state == one.state == stated.state
        assert (one.effect, one.code or PLACED) == ("as before", stated.code)


def _agrees_with_the_queues(state: State, found: QueuePosition) -> None:
    for one in share(copy(state), NOW):
        own = [job for job in found.jobs if job.queue == one.queue]
        if one.leaf:
            assert one.pending_jobs == len(own)
            assert one.head == (own[0].job if own else "")
            reported = why_queue(copy(state), one.queue, NOW)
            assert Counter(dict(reported.reasons)) == Counter(job.code for job in own)
            if reported.head is not None:
                assert (reported.head.job, reported.head.state) == (own[0].job, own[0].state)


def _agrees_with_the_doctor(state: State, by_job: dict[str, WaitingWorkload]) -> None:
    for key, refusal in refused_pods(copy(state), NOW).items():
        stated = next(one for one in by_job.values() if one.job == key or key.startswith(f"{one.job}-"))
        if stated.state != PLACED:
            assert (refusal.reason.code, refusal.when, str(refusal)) == (stated.code, stated.state, stated.message)


def _is_simulated(state: State, reported: list[Reported], by_job: dict[str, WaitingWorkload]) -> None:
    workload = snapshot("now", [KINDS[type(one)](one) for one in reported])
    report = of_snapshot(SimulationRun(workload, "dovetail", 0, Once(workload, state.policy, NOW).run(), 0.0), ())
    placed = {(one.pod, one.node) for one in report.placed}
    for one in by_job.values():
        assert {(place.pod, place.node) for place in one.places if one.state == PLACED} <= placed
    for pod_ in report.waiting:
        stated = next(one for one in by_job.values() if one.job == pod_.pod or pod_.pod.startswith(f"{one.job}-"))
        if stated.state != PLACED:
            assert (pod_.code, pod_.when, pod_.message) == (stated.code, stated.state, stated.message)


def _first_fits_where_free_reports_it(state: State, found: QueuePosition) -> None:
    """Of a lone pod that nobody is before, and that neither its queue nor room that is held keeps waiting."""
    first = found.jobs[0] if found.jobs else None
    if first is None or first.pods != 1 or first.code not in (PLACED, "NoNodeFits"):
        return
    if any(gang.name == first.job.partition("/")[2] for gang in state.workloads.gangs.values()):
        return
    answer = largest(copy(state), ShapeView(first.gpus_milli // 1000), Beside(CPU_EACH, MEMORY_EACH))
    assert answer.starts == (first.state == PLACED)


def check_submitted(reported: list[Reported], seed: int) -> None:
    """What `whatif submit` predicts is what `queue` prints once it is submitted."""
    state, dice = state_of(*reported), random.Random(-seed)
    new = waiting(dice, "new", dice.choice(["", "a"]))
    change = submit(copy(state), [KINDS[type(one)](one) for one in new], NOW)
    foretold = whatif(copy(state), change, NOW)
    (mine,) = [one for one in foretold.jobs if one.job.startswith("ns/new")]
    after = state_of(*reported, *(replace(one, created_ms=NOW) for one in new if isinstance(one, Pod | Gang)))
    (stated,) = [one for one in queue_positions(after, NOW).jobs if one.job == mine.job]
    assert (mine.state, mine.after, mine.code or PLACED) == (stated.state, stated.expected, stated.code)
    assert mine.places == stated.places


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_all_views_give_one_answer(block: int) -> None:
    for seed in seeds(60)[block::10]:
        try:
            check(world(seed))
            check_submitted(world(seed), seed)
        except AssertionError as error:
            raise AssertionError(f"of seed {seed}") from error


def test_what_never_starts_is_printed_as_never_everywhere(tmp_path: Path) -> None:
    """A gang that is larger than the cluster, of which each pod alone waits for another one to leave."""
    limits = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    of_gang = {"scheduling.x-k8s.io/pod-group": "big"}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
         "status": {"allocatable": {"cpu": "64", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}}},
        {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "big"},
         "spec": {"minMember": 2}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy"},
         "spec": {"schedulerName": "dovetail", "nodeName": "n1", "containers": [container]}},
        *({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"big-{i}", "labels": of_gang},
           "spec": {"schedulerName": "dovetail", "containers": [container]}} for i in range(2)),
    ]  # fmt: skip
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    quota = ["whatif", "quota", "default", "--weight", "2"]
    stated = {command[0]: CliRunner().invoke(cli, [*command, "-f", str(file)]).stdout for command in
            (["why", "big"], ["queue"], quota)}  # fmt: skip
    simulated = CliRunner().invoke(cli, ["simulate", str(file)]).stdout
    assert "cannot start unless" in stated["why"] and "GangTooLarge" in stated["why"]
    assert "NotYet" not in stated["why"] + simulated and "held by" not in stated["why"]
    assert stated["queue"].splitlines()[1].endswith("never")
    assert "no difference" in stated["whatif"]
    again = {**documents[1], "metadata": {"name": "new"}}
    pods = [{**one, "metadata": {"name": f"new-{i}", "labels": {"scheduling.x-k8s.io/pod-group": "new"}}}
            for i, one in enumerate(documents[-2:])]  # fmt: skip
    more = tmp_path / "more.yaml"
    more.write_text(yaml.safe_dump_all([again, *pods]))
    shown = CliRunner().invoke(cli, ["whatif", "submit", str(more), "-f", str(file)]).stdout
    assert "never starts" in shown and "not known" not in shown
