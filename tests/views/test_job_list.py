# SPDX-License-Identifier: Apache-2.0
"""The jobs of a cluster as a list: states, times, and which jobs are done."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.model import Gang, Pod
from dovetail.core.reasons import Sure
from dovetail.core.state import State
from dovetail.kube.translate.ended import EndedPod
from dovetail.views.job_list import job_list
from dovetail.views.job_states import COMPLETED, ENDING, FAILED, RUNNING, WAITING
from dovetail.views.job_types import JobFilter, JobRow
from dovetail.views.names import JobNotFound
from tests.views.queued import HOUR, MINUTE, NOW, node, pod, queue, state_of


def rows(state: State, *ended: EndedPod, **wanted: Any) -> dict[str, JobRow]:
    found = job_list(state, NOW, JobFilter(**wanted), ended, most_ahead=100)
    return {row.job: row for row in found.jobs}


def over(one: Pod, workload: str = "", *, succeeded: bool = True, ended_ms: int = NOW - HOUR) -> EndedPod:
    job = workload.removeprefix("gang/") or one.key
    return EndedPod(one, workload, job, succeeded, NOW - 2 * HOUR, ended_ms, "" if succeeded else "Error")


def seconds(row: JobRow) -> tuple[float | None, float | None]:
    """From now to the start and to the end."""
    times = (row.start, row.end)
    start, end = (
        time.at.timestamp() - NOW // 1000 if time is not None and time.at is not None else None for time in times
    )
    return start, end


def test_a_gang_runs_as_soon_as_one_of_its_pods_does() -> None:
    """A gang that may grow: two of its three pods have a node, and the third waits for room."""
    gang = Gang("gang/ns/g", "ns", "g", min_count=2)
    pods = [
        pod("g-0", 4, "n", 2 * HOUR, HOUR, gang=gang.id), pod("g-1", 4, "n", 2 * HOUR, HOUR, gang=gang.id),
        pod("g-2", 4, runs_ms=2 * HOUR, waits_ms=HOUR, gang=gang.id),
    ]  # fmt: skip
    row = rows(state_of(node("n"), gang, *pods))["ns/g"]
    assert (row.state, row.pods, row.placed, row.gpus, row.gpus_milli) == (RUNNING, 3, 2, "12", 12_000)
    assert (row.reason, row.when) == ("NoNodeFits", "NotYet")
    assert seconds(row) == (-3600, 3600)


def test_a_job_whose_pods_are_being_deleted_ends() -> None:
    one = replace(pod("p", 4, "n", 2 * HOUR, HOUR), deleting=True)
    assert rows(state_of(node("n"), one))["ns/p"].state == ENDING


@pytest.mark.parametrize(
    ("runs", "end", "sure"),
    [((2, 5), 4 * 3600, Sure.KNOWN), ((2, 0), None, Sure.UNKNOWN), ((0, 0), None, Sure.UNKNOWN)],
)
def test_a_job_ends_with_the_last_of_its_pods(runs: tuple[int, int], end: float | None, sure: Sure) -> None:
    gang = Gang("gang/ns/g", "ns", "g", min_count=2)
    pods = [pod(f"g-{i}", 4, "n", hours * HOUR, HOUR, gang=gang.id) for i, hours in enumerate(runs)]
    row = rows(state_of(node("n"), gang, *pods))["ns/g"]
    assert row.end is not None and (seconds(row)[1], row.end.sure) == (end, sure)


def test_waiting_jobs_are_in_queue_order_and_running_ones_by_their_start() -> None:
    state = state_of(
        node("n"), pod("late", 2, "n", 5 * HOUR, MINUTE), pod("early", 2, "n", 5 * HOUR, HOUR),
        pod("second", 8, waits_ms=MINUTE), pod("first", 8, waits_ms=HOUR), pod("urgent", 8, priority=1),
    )  # fmt: skip
    assert list(rows(state)) == ["ns/early", "ns/late", "ns/urgent", "ns/first", "ns/second"]


def test_a_queue_stands_for_those_below_it_and_may_not_exist() -> None:
    state = state_of(
        node("n"), queue("top"), queue("low", parent="top"), queue("other"), pod("a", 1, queue="low"),
        pod("b", 1, queue="other"), pod("c", 1, queue="lost"),
    )  # fmt: skip
    assert list(rows(state, queue="top")) == ["ns/a"]
    assert list(rows(state, queue="lost")) == ["ns/c"]
    with pytest.raises(JobNotFound, match="queue tpo does not exist; did you mean top"):
        rows(state, queue="tpo")


def test_jobs_are_done_when_no_pod_of_them_is_left() -> None:
    gang, parts = Gang("gang/ns/g", "ns", "g"), Gang("gang/ns/set/workers", "ns", "set/workers")
    nested, above = Gang("gang/ns/in", "ns", "in", parent="gang/ns/all"), Gang("gang/ns/all", "ns", "all")
    running = [
        pod("g-1", 1, "n", gang=gang.id), pod("set-1", 1, "n", gang=parts.id), pod("in-1", 1, "n", gang=nested.id),
    ]  # fmt: skip
    state = state_of(node("n"), gang, parts, above, nested, *running)
    ended = [
        over(pod("g-0", 1, "n"), gang.id), over(pod("set-0", 1, "n"), "gang/ns/set"),
        over(pod("all-0", 1, "n"), above.id), over(pod("alone", 1, "n")), over(pod("h-0", 1, "n"), "gang/ns/h"),
        over(replace(pod("h-1", 1, "n"), uid="h-1"), "gang/ns/h", succeeded=False, ended_ms=NOW - MINUTE),
    ]  # fmt: skip
    found = rows(state, *ended)
    assert {job: row.state for job, row in found.items() if row.state in (COMPLETED, FAILED)} == {
        "ns/alone": COMPLETED, "ns/h": FAILED,
    }  # fmt: skip
    assert seconds(found["ns/h"]) == (-7200, -60)
    assert (found["ns/h"].pods, found["ns/h"].reason, found["ns/h"].message) == (2, "Error", "pod h-1")


def test_pods_of_other_schedulers_are_no_jobs() -> None:
    state = state_of(node("n"), replace(pod("theirs", 1, "n"), managed=False), pod("ours", 1, waits_ms=MINUTE))
    assert {job: row.state for job, row in rows(state).items()} == {"ns/ours": WAITING}


def test_a_look_ahead_is_for_so_many_waiting_jobs() -> None:
    state = state_of(node("n"), pod("a", 1, waits_ms=MINUTE), pod("b", 16, waits_ms=MINUTE))
    for most, looked in ((2, True), (1, False)):
        found = job_list(state, NOW, JobFilter(), most_ahead=most)
        assert found.looked_ahead is looked
        assert {(row.job, row.when) for row in found.jobs} == {("ns/a", "Placed"), ("ns/b", "Never")}
        assert all((row.start is not None) is looked for row in found.jobs)


def made(name: str, what: str, on: str = "", **more: Any) -> Pod:
    return pod(name, 1, on, HOUR if on else 0, HOUR if on else 0, made_for=what, **more)


def test_pods_on_their_own_of_one_object_are_one_job_by_its_name() -> None:
    state = state_of(node("n"), *(made(f"sweep-{i}", "Job/sweep", "n" if i < 2 else "") for i in range(5)))
    [row] = rows(state).values()
    assert (row.job, row.kind, row.state, row.pods, row.placed, row.gpus_milli) == (
        "ns/sweep", "Job", RUNNING, 5, 2, 5000,
    )  # fmt: skip
    for name in ("sweep", "ns/sweep", "sweep-3", "ns/sweep-0"):
        assert list(rows(state, names=(name,))) == ["ns/sweep"]


def test_a_job_waits_for_the_reason_of_its_first_pod_in_queue_order() -> None:
    big = [replace(made(f"big-{i}", "Job/big", waits_ms=HOUR - i), request=pod("x", 4 + i).request) for i in range(3)]
    row = rows(state_of(node("n"), *big))["ns/big"]
    assert (row.state, row.when, row.pods) == (WAITING, "Placed", 3)


def test_objects_of_one_name_are_several_jobs() -> None:
    """A Job, a JobSet whose gang is known by name, a bare pod, and a Job of another namespace."""
    gang = Gang("jobset.jobset.x-k8s.io/ns/train", "ns", "train")
    state = state_of(
        node("n"), gang, made("train-x", "Job/train"), made("train-w-0", "JobSet/train", gang=gang.id), pod("train", 1),
        made("train-y", "Job/train", namespace="other"),
    )  # fmt: skip
    found = job_list(state, NOW, JobFilter(), most_ahead=100).jobs
    assert sorted((row.job, row.kind) for row in found) == [
        ("ns/train", "Job"), ("ns/train", "JobSet"), ("ns/train", "Pod"), ("other/train", "Job"),
    ]  # fmt: skip


def test_a_gang_of_pods_of_several_objects_is_called_by_its_own_name() -> None:
    """As pods are whose group another controller has named for the user's object: that object counts."""
    both, one = Gang("gang/ns/both", "ns", "both"), Gang("podgroup/ns/podgroup-7f3a", "ns", "podgroup-7f3a")
    state = state_of(
        node("n"), both, one, made("a-0", "Job/a", gang=both.id), made("b-0", "Job/b", gang=both.id),
        *(made(f"c-{i}", "Job/c", gang=one.id) for i in range(2)),
    )  # fmt: skip
    assert {name: row.kind for name, row in rows(state).items()} == {"ns/both": "Gang", "ns/c": "Job"}


def test_a_job_whose_first_pod_failed_and_whose_second_runs_is_not_done() -> None:
    failed = over(made("sweep-0", "Job/sweep", "n"), succeeded=False)
    state = state_of(node("n"), made("sweep-1", "Job/sweep", "n"))
    assert {job: row.state for job, row in rows(state, failed).items()} == {"ns/sweep": RUNNING}
    assert {row.kind for row in rows(state_of(node("n")), failed).values()} == {"Job"}
