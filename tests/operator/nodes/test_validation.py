# SPDX-License-Identifier: Apache-2.0
"""The validation pod: what it asks for, and what its course means."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import astuple, replace

from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.stack import GPUStack, PoolSharing, SharedResource, StackMeta
from dovetail.kube.objects.topology import DeviceDifference, Validation
from dovetail.kube.translate.annotations import options_of
from dovetail.operator.nodes.blockers import BLOCKERS
from dovetail.operator.nodes.facts import ValidationProgress, WalkFacts, validation_key
from dovetail.operator.nodes.validation import (
    SETTLE_MS,
    VISIBLE,
    by_running,
    course_of,
    own_image,
    pod_name,
    request_of,
    validation_pod,
)
from dovetail.operator.watched.pods import WatchedPod
from tests.operator.nodes.facts_made import AGENT_POD, DONE, POOL, REPORT, pod, spec

STACK = GPUStack(StackMeta(name="gpus", uid="u-1"))
FACTS = replace(DONE, validation=ValidationProgress())
CREATED = "2026-11-26T12:00:00Z"
CREATED_MS = round(datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp() * 1000)
DEVICES = "dovetail.dev/devices"
KEY = validation_key(FACTS)


def made(facts: WalkFacts = FACTS, taints: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return validation_pod(STACK, facts, taints or [])


def test_the_pod_goes_to_its_node_alone_and_through_the_scheduler() -> None:
    found = made(replace(FACTS, spec=spec(scheduler={"schedulerName": "other"}, validation={"timeoutSeconds": 60})))
    body = found["spec"]
    assert body["schedulerName"] == "other" and "nodeName" not in body
    (term,) = body["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}
    assert (body["priorityClassName"], body["activeDeadlineSeconds"]) == ("dovetail-validation", 60)
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("GPUStack", "gpus", "u-1", True)


def test_the_pod_meets_pod_security_restricted() -> None:
    """Source: the Pod Security Standards, restricted."""
    body = made()["spec"]
    (container,) = body["containers"]
    assert body["securityContext"]["runAsNonRoot"] and body["securityContext"]["runAsUser"]
    assert body["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "volumes" not in body and not {"hostNetwork", "hostPID", "hostIPC"} & body.keys()
    assert body["automountServiceAccountToken"] is False


def test_the_scheduler_takes_its_labels_and_annotations() -> None:
    found = msgspec.convert(made(), Pod)
    options = options_of(found.metadata)
    assert options.problems == () and options.preemptible is True
    assert len(pod_name("n" * 253)) <= 63 and pod_name("a") != pod_name("b")


def test_it_tolerates_the_taints_of_its_node_but_those_of_kubernetes() -> None:
    taints = [
        {"key": "dovetail.dev/not-ready", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "example.com/x", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
    ]
    assert made(taints=taints)["spec"]["tolerations"] == [
        {"key": "dovetail.dev/not-ready", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "dovetail.dev/spare", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "example.com/x", "operator": "Exists", "effect": "NoExecute"},
    ]


MIG = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb")
SHARED = replace(POOL, sharing=PoolSharing("time-slicing", (SharedResource(),)))


@pytest.mark.parametrize(
    ("facts", "request_"),
    [
        (FACTS, ("nvidia.com/gpu", 1)),
        (replace(FACTS, spec=spec(validation={"gpus": 8})), ("nvidia.com/gpu", 2)),
        (replace(FACTS, spec=spec(validation={"gpus": 8}), pool=SHARED), ("nvidia.com/gpu", 1)),
        (replace(FACTS, allocatable={"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 8}), ("nvidia.com/gpu.shared", 1)),
        (replace(FACTS, allocatable={MIG[1]: 3, MIG[0]: 2}), (MIG[0], 1)),
        (replace(FACTS, pool=replace(POOL, allocation="DRA"), spec=spec(validation={"gpus": 2})), ("", 2)),
        (replace(FACTS, allocatable={}), ("", 0)),
    ],
)  # fmt: skip
def test_what_it_requests(facts: WalkFacts, request_: tuple[str, int]) -> None:
    assert request_of(facts) == request_
    limits = made(facts)["spec"]["containers"][0]["resources"]["limits"]
    resource, number = request_
    assert limits.get(resource, "0") == (str(number) if resource else "0")
    assert len(limits) == (3 if resource else 2)


def test_the_image_is_the_one_of_the_agent_on_the_node_unless_the_user_names_one() -> None:
    named = spec(image={"repository": "r/d", "digest": "sha256:0"})
    assert own_image(replace(FACTS, spec=named)) == "r/d@sha256:0"
    assert own_image(replace(FACTS, spec=spec(image={"repository": "r/d", "tag": "2"}))) == "r/d:2"
    with_pod = replace(FACTS, spec=named, agent_pod=replace(AGENT_POD, image="r/d:1"))
    container = made(with_pod)["spec"]["containers"][0]
    assert container["image"] == "r/d:1"
    assert container["args"] == ["agent", "check", "--gpus=1", "--report=/dev/termination-log"]
    user = replace(with_pod, spec=spec(validation={"image": "cuda:13", "command": ["vectorAdd", "-x"]}))
    container = made(user)["spec"]["containers"][0]
    assert (container["image"], container["command"]) == ("cuda:13", ["vectorAdd", "-x"]) and "args" not in container
    entrypoint = made(replace(with_pod, spec=spec(validation={"image": "nccl:2"})))["spec"]["containers"][0]
    assert not {"command", "args"} & entrypoint.keys()


def trial(phase: str = "Pending", *, chosen: str = "0", node: str = "gpu-1", **status: Any) -> WatchedPod:
    annotations = {"operator.dovetail.dev/key": KEY} | ({DEVICES: chosen} if chosen else {})
    metadata = {"creationTimestamp": CREATED, "annotations": annotations, "namespace": "dovetail-system"}
    return pod("validate", phase, metadata=metadata, spec={"nodeName": node}, **status)


def ended(code: int = 0, message: str = "", at: str = "2026-11-26T12:00:30Z") -> list[dict[str, Any]]:
    state = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message, "finishedAt": at}
    return [{"name": "check", "state": {"terminated": state}}]


def devices(passed: Validation) -> tuple[str, str, str]:
    """Its key, the chosen devices and those that were allocated."""
    key, _, chosen, allocated = astuple(passed)
    return key, chosen, allocated


SEEN = f"{VISIBLE}GPU-a\n"
LATER_MS = CREATED_MS + 60_000
TIMEOUT_MS = CREATED_MS + 301_000
UNPLACED = [{"type": "PodScheduled", "status": "False", "message": "no node\nhas room"}]
PULL = [{"name": "check", "image": "x", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]


@pytest.mark.parametrize(
    ("shown", "now_ms", "reason", "line", "over"),
    [
        (trial(node=""), CREATED_MS + 1, "ValidationPending", "", False),
        (trial(node=""), LATER_MS, "NoScheduler", "", False),
        (trial(node="", conditions=UNPLACED), LATER_MS, "ValidationPending", "no node has room", False),
        (trial(node="", conditions=UNPLACED), TIMEOUT_MS, "ValidationTimedOut", "no node has room", True),
        (trial(), LATER_MS, "ContainerCreating", "", False),
        (trial(), TIMEOUT_MS, "ValidationTimedOut", "", True),
        (trial(containerStatuses=PULL), LATER_MS, "ImagePullFailed", "not found", False),
        (trial(containerStatuses=PULL), TIMEOUT_MS, "ImagePullFailed", "not found", True),
        (trial("Running"), LATER_MS, "ValidationRunning", "", False),
        (trial("Running"), TIMEOUT_MS, "ValidationTimedOut", "", True),
        (trial("Failed", containerStatuses=ended(1, "a\nb 2\n")), LATER_MS, "ValidationFailed", "b 2", True),
        (trial("Failed", reason="DeadlineExceeded"), LATER_MS, "ValidationTimedOut", "", True),
        (trial("Failed", reason="OutOfcpu", message="no cpu"), LATER_MS, "ValidationFailed", "no cpu", True),
        (trial("Failed"), LATER_MS, "ValidationFailed", "", True),
        (trial("Succeeded", chosen="1", containerStatuses=ended(0, SEEN)), LATER_MS, "DevicesDiffer", "", True),
    ],
)  # fmt: skip
def test_each_course(shown: WatchedPod, now_ms: int, reason: str, line: str, over: bool) -> None:
    course = course_of(shown, FACTS, now_ms)
    assert (course.progress.reason, course.over, course.retry) == (reason, over, over)
    assert course.progress.evidence is not None and course.progress.evidence.line == line
    assert "validated" in BLOCKERS[reason].steps
    # What only time decides is asked again.
    assert over or course.again_ms > now_ms


def test_the_chosen_devices_are_those_that_the_check_saw() -> None:
    course = course_of(trial("Succeeded", containerStatuses=ended(0, SEEN)), FACTS, LATER_MS)
    passed = course.progress.passed
    assert passed is not None and course.over and not course.retry
    assert devices(passed) == (KEY, "0", "0")
    assert passed.time == datetime(2026, 11, 26, 12, 0, 30, tzinfo=UTC)


def test_the_agent_may_still_report_a_difference_for_a_moment() -> None:
    shown = trial("Succeeded", containerStatuses=ended())
    finished_ms = CREATED_MS + 30_000
    early = course_of(shown, FACTS, finished_ms + SETTLE_MS - 1)
    assert (early.progress.reason, early.again_ms, early.over) == ("ValidationRunning", finished_ms + SETTLE_MS, False)
    differs = DeviceDifference("dovetail-system", "validate", shown.metadata.uid, "nvidia.com/gpu", "0", "1")
    found = course_of(shown, replace(FACTS, agent=replace(REPORT, differences=(differs,))), LATER_MS)
    assert found.progress.reason == "DevicesDiffer" and "chosen were 0, and the pod had 1" in found.progress.message
    # A clock of the node that is ahead delays nothing.
    assert course_of(shown, FACTS, CREATED_MS).progress.passed is not None


@pytest.mark.parametrize(
    ("chosen", "report", "facts", "had"),
    [
        # A user's own image reports nothing: the agent's report counts.
        ("0", "all fine", FACTS, "0"),
        # Another component allocates, and chooses by itself.
        ("1", SEEN, replace(FACTS, pool=replace(POOL, allocation="None")), "0"),
        ("1", SEEN, replace(FACTS, agent=replace(REPORT, plugin=("", "", ""))), "0"),
        # The wiring is not known, so none were chosen.
        ("", SEEN, FACTS, "0"),
        # MIG instances are not compared by name.
        ("0/1g.5gb@0", f"{VISIBLE}MIG-x", FACTS, "MIG-x"),
    ],
)
def test_what_is_not_compared(chosen: str, report: str, facts: WalkFacts, had: str) -> None:
    course = course_of(trial("Succeeded", chosen=chosen, containerStatuses=ended(0, report)), facts, LATER_MS)
    passed = course.progress.passed
    assert passed is not None and devices(passed)[1:] == (chosen, had)


def test_a_pod_that_is_preempted_has_not_failed() -> None:
    leaving = replace(trial("Running"), metadata=ObjectMeta(name="v", deletion_timestamp=datetime.now(UTC)))
    course = course_of(leaving, FACTS, LATER_MS)
    assert (course.progress.reason, course.retry) == ("ValidationQueued", False)


def job(name: str, started: str = "2026-11-26T12:00:10Z", chosen: str = "0,1", phase: str = "Running") -> WatchedPod:
    return pod(name, phase, metadata={"annotations": {DEVICES: chosen}, "uid": name}, startTime=started)


def test_a_job_on_its_chosen_devices_validates_the_node() -> None:
    began = replace(FACTS, agent_pod=replace(AGENT_POD, started_ms=CREATED_MS))
    found = by_running([job("a")], began, LATER_MS)
    assert found is not None and devices(found) == (KEY, "0,1", "0,1")
    differs = DeviceDifference(uid="a", chosen="0,1", given="2,3")
    nothing = {
        "before the agent": ([job("a", "2026-11-26T11:59:00Z")], began),
        "just started": ([job("a", "2026-11-26T12:00:59Z")], began),
        "not chosen": ([job("a", chosen="")], began),
        "not running": ([job("a", phase="Pending")], began),
        "other devices": ([job("a")], replace(began, agent=replace(REPORT, differences=(differs,)))),
        "agent silent": ([job("a")], replace(began, agent=replace(REPORT, fresh=False))),
        "agent not in a pod": ([job("a")], replace(FACTS, agent_pod=replace(AGENT_POD, started_ms=0))),
        "no allocation": ([job("a")], replace(began, pool=replace(POOL, allocation="None"))),
        "another plugin": ([job("a")], replace(began, agent=replace(REPORT, plugin=("", "", "")))),
    }
    assert {why for why, (pods, facts) in nothing.items() if by_running(pods, facts, LATER_MS)} == set()


def test_lists_of_devices_are_as_long_as_the_definition_allows() -> None:
    many = ",".join(f"0/1g.5gb@{i}" for i in range(400))
    passed = course_of(trial("Succeeded", chosen=many, containerStatuses=ended()), FACTS, LATER_MS).progress.passed
    assert passed is not None and len(passed.chosen) == len(passed.given) == 1024
