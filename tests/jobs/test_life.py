# SPDX-License-Identifier: Apache-2.0
"""The life of a job, from its objects and from Events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.jobs.life import JobEvent, life
from tests.jobs.builders import indexed, job, pod


def at(minute: int, second: int = 0) -> str:
    return f"2026-11-22T12:{minute:02}:{second:02}Z"


def event(reason: str, note: str, minute: int, about: str = "a", last: int | None = None, **more: Any) -> JobEvent:
    document = {
        "metadata": {"name": f"{about}.{reason}.{minute}"}, "eventTime": at(minute), "reason": reason, "note": note,
        "regarding": {"kind": "Pod", "name": about, "uid": f"uid-{about}"}, **more,
    }  # fmt: skip
    if last is not None:
        document["series"] = {"count": 2, "lastObservedTime": at(last)}
    return msgspec.convert(document, JobEvent)


def bound(minute: int) -> dict[str, str]:
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(minute)}


def ran(begin: int, end: int, code: int = 0) -> dict[str, Any]:
    return {"main": {"terminated": {"exitCode": code, "startedAt": at(begin), "finishedAt": at(end)}}}


def test_the_steps_of_a_job_that_waited_ran_and_ended() -> None:
    one = job(
        "job", "train",
        pod("a", "Succeeded", "n1", created=at(0, 1), conditions=[bound(20)], containers=ran(21, 50)),
        pod("b", "Succeeded", "n2", created=at(0, 3), conditions=[bound(20)], containers=ran(22, 51)),
        spec=indexed(2), status={"conditions": [{"type": "Complete", "status": "True"}]},
    )  # fmt: skip
    refused = "NoNodeFits (NotYet): 0/4 nodes are available: 4 Insufficient nvidia.com/gpu. It starts by then."
    found = life(one, [event("FailedScheduling", refused, 1, "a", 19), event("FailedScheduling", refused, 1, "b")])
    assert [(step.step, step.at_ms // 60_000 % 60, step.pods, step.after_ms // 1000) for step in found.steps] == [
        ("created", 0, 0, 0), ("pods created", 0, 2, 1), ("refused", 1, 2, 59), ("bound", 20, 2, 1140),
        ("started", 21, 2, 60), ("ended", 50, 2, 1740),
    ]  # fmt: skip
    steps = {step.step: step for step in found.steps}
    assert steps["refused"].detail.startswith("NoNodeFits: 0/4 nodes are available")
    assert steps["refused"].last_ms - steps["refused"].at_ms == 18 * 60_000
    assert steps["pods created"].last_ms - steps["pods created"].at_ms == 2000
    assert (steps["bound"].detail, steps["ended"].detail) == ("to n1, n2", "succeeded")
    assert (found.state, found.unknown) == ("succeeded", ())


def test_what_the_scheduler_did_to_it_is_in_between() -> None:
    one = job("job", "train", pod("a", "Running", "n1", conditions=[bound(5)]), spec=indexed(2))
    found = life(one, [event("Preempted", "queue x takes back what is due to it", 9, "gone")])
    last = found.steps[-1]
    assert (last.step, last.pods, last.detail) == ("preempted", 1, "queue x takes back what is due to it")


@pytest.mark.parametrize(("node", "steps"), [("n1", ["bound"]), ("", ["refused"])])
def test_that_its_object_is_not_read_yet_counts_only_while_it_lasts(node: str, steps: list[str]) -> None:
    missing = "GangMissing (NotYet): the gang that the pod names does not exist yet: 'job.batch/team-a/train'"
    one = job("job", "train", pod("a", "Pending", node, conditions=[bound(5)] if node else []), spec=indexed(2))
    found = life(one, [event("FailedScheduling", missing, 4)])
    assert [step.step for step in found.steps if "created" not in step.step] == steps


def test_a_job_that_failed_has_the_exit_code() -> None:
    one = job(
        "job", "train", pod("a", "Failed", "n1", conditions=[bound(1)], containers=ran(1, 2, 3)),
        status={"conditions": [{"type": "Failed", "status": "True"}]},
    )  # fmt: skip
    found = life(one, [])
    assert found.steps[-1].detail == "pod a: exit code 3" and found.state == "failed"


def test_without_events_the_last_reason_is_that_of_the_condition_and_the_rest_is_not_known() -> None:
    why = {
        "type": "PodScheduled",
        "status": "False",
        "lastTransitionTime": at(4),
        "message": "Held (NotYet): it is held",
    }
    one = job("job", "train", pod("a", conditions=[why], annotations={"dovetail.dev/hold": "true"}), spec=indexed(1))
    found = life(one, [])
    assert [(step.step, step.detail) for step in found.steps][-1] == ("refused", "Held: it is held")
    assert found.state == "held"
    assert found.unknown[0].startswith("no Event is left")


def test_a_job_that_no_scheduler_has_tried() -> None:
    found = life(job("job", "train", pod("a"), spec=indexed(1)), [])
    assert [step.step for step in found.steps] == ["created", "pods created"]
    assert (found.state, found.unknown) == ("waits", ("why it waits, as no scheduler has tried it yet",))


def test_of_a_suspended_job_only_its_creation_is_known() -> None:
    found = life(job("job", "train", spec={"suspend": True}), [])
    assert [step.step for step in found.steps] == ["created"]
    assert found.state == "suspended" and "it is suspended: it has no pods" in found.unknown


def test_steps_within_one_second_come_in_the_order_in_which_jobs_take_them() -> None:
    """Objects have times in whole seconds, Events in microseconds."""
    refused = event("FailedScheduling", "NoNodeFits (NotYet): none", 0, "a")
    one = job("job", "train", pod("a", "Running", "n", conditions=[bound(0)]), spec=indexed(1))
    assert [step.step for step in life(one, [refused]).steps] == ["created", "pods created", "refused", "bound"]


def test_what_the_agent_set_for_the_network_is_one_step_for_all_pods_that_got_the_same() -> None:
    one = job("job", "train", pod("a", "Running", "n1"), pod("b", "Running", "n2"), spec=indexed(2))
    note, wrong = "set NCCL_SOCKET_IFNAME==eth0 (the pod network)", "NCCL_IB_HCA=mlx4 names no RDMA NIC of the node"
    lacks = "no variables for its network were set"
    events = [event("NetworkEnvironmentSet", note, 3, "a"), event("NetworkEnvironmentSet", note, 4, "b")]
    events += [event("NetworkEnvironmentWrong", wrong, 5, "b"), event("NetworkEnvironmentLacking", lacks, 6, "a")]
    steps = life(one, events).steps
    shown = [(step.step, step.pods, step.detail) for step in steps if step.step.startswith("network")]
    assert shown == [("network set", 2, note), ("network variables", 1, wrong), ("network lacks", 1, lacks)]
