# SPDX-License-Identifier: Apache-2.0
"""Why a pod is not ready, from statuses, events and a log as kubelets and runtimes write them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from dovetail.operator.nodes.blockers import BLOCKERS
from dovetail.operator.nodes.evidence import (
    LONGEST_TEXT,
    is_ready,
    newest,
    one_line,
    shown_by,
    trouble_of,
    wants_events,
    wants_log,
)
from dovetail.operator.nodes.outlines import WalkedEvent
from dovetail.operator.watched.pods import WatchedPod, node_of
from tests.operator.nodes.facts_made import pod

READY = [{"type": "Ready", "status": "True"}]
RUNNING = {"running": {"startedAt": "2026-11-26T12:00:00Z"}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 2m40s restarting failed container"}}
ENDED = {"terminated": {"exitCode": 1, "reason": "Error"}}


def container(state: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "agent", "image": "dovetail:1", "state": state, **fields}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return container({"waiting": {"reason": reason, "message": message}})


def agent(*containers: dict[str, Any], phase: str = "Pending", **fields: Any) -> WatchedPod:
    return pod(phase=phase, containerStatuses=list(containers), **fields)


def event(reason: str, note: str, at: str = "2026-11-26T12:00:00Z", kind: str = "Warning") -> WalkedEvent:
    document = {"type": kind, "reason": reason, "note": note, "deprecatedLastTimestamp": at}
    return msgspec.convert(document, WalkedEvent)


class Case(Struct, frozen=True):
    reason: str
    shown: WatchedPod
    line: str = ""
    step: str = ""
    events: tuple[WalkedEvent, ...] = ()
    log: str = ""


def refused(reason: str, message: str) -> WatchedPod:
    return agent(waiting(reason, message))


def crashing(state: dict[str, Any], last: dict[str, Any] = ENDED) -> WatchedPod:
    return agent(container(state, restartCount=3, lastState=last), phase="Running")


def of_event(reason: str, note: str, became: str, step: str = "", shown: WatchedPod | None = None) -> Case:
    return Case(became, shown or agent(waiting("ContainerCreating")), note, step, (event(reason, note),))


PULL = 'failed to pull and unpack image "docker.io/library/dovetail:9": not found'
NO_LIBRARY = (
    "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object"
)
MISMATCH = "nvmlInit: Driver/library version mismatch"
NO_RUNTIME = 'Failed to create pod sandbox: no runtime for "nvidia" is configured'
PROBE = "Readiness probe failed: HTTP probe failed with statuscode: 503"
EVICTED = "The node was low on resource: memory."
UNREADY = agent(container(RUNNING, ready=False), phase="Running")
UNBOUND = [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: cpu"}]
CASES = [
    Case("ImagePullFailed", refused("ErrImagePull", PULL), PULL),
    Case("ImagePullFailed", refused("ImagePullBackOff", "Back-off pulling image"), "Back-off pulling image"),
    Case("ImagePullFailed", refused("InvalidImageName", "no reference"), "no reference"),
    Case("ContainerConfigError", refused("CreateContainerConfigError", "no configmap"), "no configmap"),
    Case("ContainerFails", refused("RunContainerError", "exec: no such file"), "exec: no such file"),
    Case("ContainerFails", crashing(BACK_OFF), "Error: no such option", log="Error: no such option"),
    # Between two crashes it runs, and is not ready.
    Case("ContainerFails", crashing(RUNNING), "Error: no such option", log="Error: no such option"),
    Case("ContainerFails", crashing(ENDED, {})),
    Case("DriverMissing", refused("RunContainerError", NO_LIBRARY), NO_LIBRARY, "driver"),
    Case("DriverMismatch", crashing(BACK_OFF), MISMATCH, "driver", log=MISMATCH),
    Case(
        "CdiNotEnabled",
        refused("CreateContainerError", "unresolvable CDI devices x"),
        "unresolvable CDI devices x",
        "runtime",
    ),
    of_event("FailedCreatePodSandBox", NO_RUNTIME, "RuntimeNotConfigured", "runtime", agent()),
    of_event("FailedCreatePodSandBox", "cni plugin not initialized", "SandboxFailed"),
    of_event("FailedMount", "hostPath type check failed: /dev/null", "VolumeNotMounted"),
    of_event("Unhealthy", PROBE, "PodNotReady", shown=UNREADY),
    Case("PodNotReady", UNREADY),
    Case("ContainerCreating", refused("ContainerCreating", ""), events=(event("Pulling", "x", kind="Normal"),)),
    Case("ContainerCreating", agent()),
    Case("PodEvicted", agent(phase="Failed", reason="Evicted", message=EVICTED), f"Evicted: {EVICTED}"),
    Case("PodUnschedulable", agent(spec={"nodeName": ""}, conditions=UNBOUND), "0/1 nodes: cpu"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.reason)
def test_each_trouble(case: Case) -> None:
    found = trouble_of(case.shown, "agent", case.events, case.log)
    assert found is not None
    assert (found.reason, found.step, found.evidence.line) == (case.reason, case.step, case.line)
    assert found.reason in BLOCKERS
    evidence = found.evidence
    assert (evidence.kind, evidence.namespace, evidence.name) == ("Pod", "dovetail-agent", "agent-x")
    assert not any(word in found.message for word in ("back-off", "2m40s"))
    # What is asked for is what was used.
    assert not case.events or wants_events(case.shown)
    assert not case.log or wants_log(case.shown) is not None


def test_a_pod_that_is_ready_has_no_trouble_whatever_its_past() -> None:
    well = agent(container(RUNNING, ready=True, restartCount=9, lastState=ENDED), phase="Running", conditions=READY)
    assert is_ready(well) and trouble_of(well, "agent") is None
    assert not wants_events(well) and wants_log(well) is None
    leaving = agent(phase="Running", conditions=READY, metadata={"deletionTimestamp": "2026-11-26T12:00:00Z"})
    assert not is_ready(leaving)


def test_the_failing_container_is_named_also_among_init_containers_and_sidecars() -> None:
    init = {"name": "wait", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED, "restartCount": 1}
    found = trouble_of(agent(waiting("PodInitializing"), initContainerStatuses=[init]), "agent", (), "no driver")
    assert found is not None and (found.reason, found.evidence.container) == ("ContainerFails", "wait")
    done = {"name": "wait", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    found = trouble_of(agent(waiting("ErrImagePull", "x"), initContainerStatuses=[done]), "agent")
    assert found is not None and (found.reason, found.evidence.container) == ("ImagePullFailed", "agent")


def test_the_last_event_counts() -> None:
    events = (
        event("FailedCreatePodSandBox", "first", "2026-11-26T12:00:00Z"),
        event("FailedMount", "then", "2026-11-26T12:05:00Z"),
    )
    for order in (events, events[::-1]):
        found = trouble_of(agent(), "agent", order)
        assert found is not None and (found.reason, found.evidence.line) == ("VolumeNotMounted", "then")


def test_a_container_with_a_message_of_its_own_needs_no_log() -> None:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "bad option"}}
    assert wants_log(agent(container(BACK_OFF, lastState=ended), phase="Running")) is None
    assert wants_log(agent(waiting("RunContainerError", "x"))) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("first\nlast \x1b[31mred\n\n---\n", "last  [31mred"),
        ("", ""),
        ("ä" * 2000, "ä" * ((LONGEST_TEXT - 4) // 2) + " ..."),
    ],
)
def test_a_line_of_a_log(text: str, line: str) -> None:
    assert one_line(text) == line
    assert len(one_line(text).encode()) <= LONGEST_TEXT


def test_every_text_that_is_known_has_a_reason_of_the_table() -> None:
    texts = {
        "RuntimeNotConfigured": "failed to find runtime handler nvidia from runtime list",
        "RuntimeClassMissing": 'pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
        "CdiNotEnabled": "unresolvable CDI devices dovetail.dev/gpu=0",
        "DriverMismatch": "Failed to initialize NVML: Driver/library version mismatch",
        "DriverMissing": "nvml error: driver not loaded",
        "DriverNotAnswering": "nvmlInit: Unknown Error",
    }
    for reason, text in texts.items():
        step, found = shown_by(text)
        assert found == reason and step in BLOCKERS[reason].steps
    assert shown_by("no such file") == ("", "")


def test_of_several_pods_the_new_one_counts() -> None:
    old = pod("old", metadata={"creationTimestamp": "2026-11-26T12:00:00Z", "uid": "a"})
    new = pod("new", metadata={"creationTimestamp": "2026-11-26T12:01:00Z", "uid": "b"})
    leaving = pod(
        "gone",
        metadata={"creationTimestamp": "2026-11-26T12:02:00Z", "deletionTimestamp": "2026-11-26T12:03:00Z", "uid": "c"},
    )
    assert newest([leaving, old, new]) is new
    assert newest([leaving]) is leaving and newest([]) is None


def test_the_node_of_a_daemon_sets_pod_is_known_before_it_is_bound() -> None:
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-9"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [fields]}}
    assert node_of(pod(spec={"nodeName": "", "affinity": {"nodeAffinity": required}})) == "gpu-9"
    assert node_of(pod(spec={"nodeName": ""})) == ""
