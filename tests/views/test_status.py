# SPDX-License-Identifier: Apache-2.0
"""What the status of an installation reports: each fault with its next step, and nothing where nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.kube.objects.installed import HeldLease, InstalledDefinition, InstalledPod, InstalledWorkload
from dovetail.kube.objects.stack import GPUStack
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.reading.lists import ListReply
from dovetail.views.install_progress import missing, refused
from dovetail.views.installation import InstallationFacts, facts_of, requests
from dovetail.views.status import WAITS_FOR, SkewProblem, StatusView, status

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
SYSTEM, AGENT = "dovetail-system", "dovetail-agent"
Document = dict[str, Any]


def deployment(name: str, ready: int = 2, **status: Any) -> InstalledWorkload:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": SYSTEM, "generation": 1},
            "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "r.example:5000/dovetail:0.1.0"}]}}},
            "status": {"readyReplicas": ready, "observedGeneration": 1, **status},
        },
        InstalledWorkload,
    )


def agents(ready: int = 1) -> InstalledWorkload:
    return msgspec.convert(
        {
            "metadata": {"name": AGENT, "namespace": AGENT, "labels": {"dovetail.dev/pool": "default"}},
            "spec": {"template": {"spec": {"containers": [{"image": f"dovetail@sha256:{'0' * 64}"}]}}},
            "status": {"desiredNumberScheduled": 1, "numberReady": ready},
        },
        InstalledWorkload,
    )


def lease(name: str, holder: str = "a", renewed: str = "2026-11-26T11:59:58Z") -> HeldLease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, HeldLease)


KINDS = ("agentcontrolplanes", "fabrics", "gpuleases", "gpunodes", "gpustacks", "leaserequests", "queues")


def waiting(text: str) -> HeldLease:
    """The lease of an operator of which no replica may lead."""
    return msgspec.convert(
        {"metadata": {"name": "dovetail-operator", "annotations": {WAITS_FOR: text}}, "spec": {}}, HeldLease
    )


def definition(plural: str, release: str = "0.1.0") -> InstalledDefinition:
    return msgspec.convert(
        {
            "metadata": {"name": f"{plural}.dovetail.dev", "annotations": {"dovetail.dev/release": release}},
            "spec": {"names": {"plural": plural}},
        },
        InstalledDefinition,
    )


def stack(name: str = "dovetail", created: str = "2026-11-26T10:00:00Z", **status: Any) -> GPUStack:
    conditions = [{"type": kind, "status": "True", "reason": reason, "lastTransitionTime": created}
                  for kind, reason in (("Accepted", "Valid"), ("Applied", "Applied"), ("Ready", "Ready"))]  # fmt: skip
    return msgspec.convert(
        {
            "metadata": {"name": name, "generation": 2, "creationTimestamp": created},
            "status": {"observedGeneration": 2, "version": "0.1.0", "conditions": conditions, **status},
        },
        GPUStack,
    )


def condition(kind: str, reason: str, message: str = "") -> list[Document]:
    return [{"type": kind, "status": "False", "reason": reason, "message": message}]


def gpu_node(name: str, step: str = "ready", reason: str = "", version: str = "0.1.0", line: str = "") -> GPUNode:
    readiness: Document = {"step": step, "reason": reason, "message": "why", "action": "do", "pool": "default"}
    if line:
        readiness["evidence"] = {"kind": "Pod", "name": "a", "line": line}
    gpus = [{"index": 0, "healthy": True}, {"index": 1, "healthy": step == "ready"}]
    return msgspec.convert(
        {
            "metadata": {"name": name},
            "status": {
                "readiness": readiness,
                "driverVersion": "550.54",
                "gpus": gpus,
                "agent": {"version": version},
            },
        },
        GPUNode,
    )


HEALTHY = InstallationFacts(
    stacks=(stack(nodes={"nodes": 1, "ready": 1, "gpus": 2, "gpusReady": 2}),),
    deployments=(deployment("dovetail-operator"), deployment("dovetail-scheduler")),
    daemon_sets=(agents(),),
    leases=(lease("dovetail-operator"), lease("dovetail-scheduler", "b")),
    gpu_nodes=(gpu_node("n0"),),
    definitions=tuple(map(definition, KINDS)),
)


def no_skew(versions: Mapping[str, Iterable[str]]) -> Iterable[SkewProblem]:
    return ()


def view(facts: InstallationFacts) -> StatusView:
    return status(facts, NOW_MS, no_skew)


def problems(facts: InstallationFacts) -> list[tuple[str, str]]:
    found = view(facts).problems
    assert all(one.next for one in found)
    return [(one.object, one.wrong) for one in found]


@pytest.mark.parametrize("name", ["dovetail-agent-planes", "dovetail-collector"])
def test_a_process_with_a_volume_is_a_component_that_can_be_broken(name: str) -> None:
    facts = replace(HEALTHY, stateful_sets=(deployment(name),))
    assert problems(facts) == []
    (shown,) = [one for one in view(facts).components if one.name == name]
    assert (shown.kind, shown.desired, shown.ready) == ("StatefulSet", 2, 2)
    waiting = {"type": "PodScheduled", "status": "False", "message": "pod has unbound immediate PersistentVolumeClaims"}
    pod = {"metadata": {"name": f"{name}-0", "labels": {"app.kubernetes.io/name": name}},
           "status": {"conditions": [waiting]}}  # fmt: skip
    facts = replace(facts, stateful_sets=(deployment(name, ready=1),), pods=(msgspec.convert(pod, InstalledPod),))
    assert problems(facts) == [
        (f"StatefulSet dovetail-system/{name}", f"pod {name}-0: pod has unbound immediate PersistentVolumeClaims")
    ]


def test_a_healthy_installation_has_no_problem() -> None:
    made = view(HEALTHY)
    assert made.problems == ()
    assert [(one.name, one.version, one.ready) for one in made.components] == [
        ("dovetail-operator", "0.1.0", 2),
        ("dovetail-scheduler", "0.1.0", 2),
        (AGENT, "", 1),
    ]
    assert [(one.lease, one.holder) for one in made.leaders] == [
        ("dovetail-operator", "a"),
        ("dovetail-scheduler", "b"),
    ]
    assert made.versions == {
        "definitions": {"0.1.0": 7},
        "operator": {"0.1.0": 1},
        "scheduler": {"0.1.0": 1},
        "agent": {"0.1.0": 1},
    }
    assert made.drivers == {"550.54": 1}
    assert missing(made) == ()


def test_nothing_installed_is_one_problem() -> None:
    assert problems(InstallationFacts()) == [("Dovetail", "neither operator nor scheduler is installed")]


def test_an_installation_without_an_operator_is_healthy() -> None:
    facts = replace(
        HEALTHY,
        stacks=(),
        deployments=HEALTHY.deployments[1:],
        leases=HEALTHY.leases[1:],
        definitions=tuple(definition(one) for one in KINDS if one != "gpustacks"),
    )
    made = view(facts)
    assert made.problems == ()
    assert (made.nodes.nodes, made.nodes.ready, made.nodes.gpus, made.nodes.gpus_ready) == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"stacks": ()}, ("GPUStack", "there is none")),
        ({"deployments": HEALTHY.deployments[1:]}, ("GPUStack dovetail", "no operator is installed")),
        ({"definitions": HEALTHY.definitions[:-1]}, ("definitions", "queues")),
        (
            {"stacks": (HEALTHY.stacks[0], stack("b", "2026-11-26T11:00:00Z"))},
            ("GPUStack b", "GPUStack dovetail is older"),
        ),
        ({"daemon_sets": (agents(ready=0),)}, (f"DaemonSet {AGENT}/{AGENT}", "1 of 1 pods are not ready")),
        ({"leases": HEALTHY.leases[:1]}, ("Lease dovetail-scheduler", "no replica leads")),
        (
            {"leases": (waiting("not permitted to read GPUStacks: 403"), *HEALTHY.leases[1:])},
            ("Lease dovetail-operator", "no replica leads: not permitted to read GPUStacks: 403"),
        ),
        (
            {"leases": (*HEALTHY.leases[:1], lease("dovetail-scheduler", "b", "2026-11-26T11:50:00Z"))},
            ("Lease dovetail-scheduler", "no replica leads"),
        ),
        (
            {"stacks": (stack(conditions=condition("Applied", "Forbidden", "no right")),)},
            ("GPUStack dovetail", "Forbidden: no right"),
        ),
        (
            {"stacks": (stack(conditions=condition("ViewsAvailable", "NotAnswered", "nothing answered")),)},
            ("GPUStack dovetail", "NotAnswered: nothing answered"),
        ),
        (
            {"stacks": (stack(conditions=condition("HistoryAvailable", "NotAnswered", "no collector")),)},
            ("GPUStack dovetail", "NotAnswered: no collector"),
        ),
        (
            {"stacks": (stack(conditions=condition("Accepted", "Contradiction")),)},
            ("GPUStack dovetail", "Contradiction"),
        ),
        (
            {"stacks": (stack(rollout={"revision": "r2", "phase": "Failed", "reason": "slow", "failed": ["n3"]}),)},
            ("GPUStack dovetail", "the rollout of r2 has failed on n3: slow"),
        ),
        ({"gpu_nodes": (gpu_node("n7", "driver", "DriverMissing"),)}, ("Node n7", "driver: DriverMissing: why")),
    ],
)
def test_each_fault_is_a_problem_with_its_object(change: dict[str, Any], wanted: tuple[str, str]) -> None:
    ((object, wrong),) = problems(replace(HEALTHY, **change))
    assert object == wanted[0] and wanted[1] in wrong


def test_a_blocked_node_is_shown_with_the_line_that_shows_why() -> None:
    node = gpu_node("n7", "validated", "ValidationFailed", line="no driver")
    facts = replace(HEALTHY, gpu_nodes=(node,))
    assert problems(facts) == [("Node n7", "validated: ValidationFailed: why (no driver)")]
    # The GPUStack lists what was before: that line shows something else.
    blocked = [{"name": "n7", "step": "agent", "reason": "PodMissing", "message": "none", "action": "do"}]
    older = replace(facts, stacks=(stack(nodes={"nodes": 1}, blocked=blocked),))
    assert ("Node n7", "agent: PodMissing: none") in problems(older)
    assert (view(facts).evidence, view(older).evidence) == ({"n7": "no driver"}, {})


def test_why_a_pod_does_not_start_is_reported() -> None:
    pod: Document = {
        "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": "dovetail-scheduler"}},
        "status": {
            "containerStatuses": [
                {"name": "scheduler", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
            ]
        },
    }
    facts = replace(
        HEALTHY,
        deployments=(HEALTHY.deployments[0], deployment("dovetail-scheduler", ready=1)),
        pods=(msgspec.convert(pod, InstalledPod),),
    )
    ((_, wrong),) = problems(facts)
    assert wrong == "pod p, container scheduler: ImagePullBackOff: no such image"
    quota = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    facts = replace(
        HEALTHY, deployments=(HEALTHY.deployments[0], deployment("dovetail-scheduler", 0, conditions=[quota]))
    )
    assert ("Deployment dovetail-system/dovetail-scheduler", "exceeded quota") in problems(facts)


def test_versions_that_do_not_work_together_are_asked_of_the_table() -> None:
    asked: list[Mapping[str, Iterable[str]]] = []

    def skew(versions: Mapping[str, Iterable[str]]) -> Iterable[SkewProblem]:
        asked.append(versions)
        return [SkewProblem("agent 0.9.0 is too new", "upgrade")]

    facts = replace(HEALTHY, gpu_nodes=(gpu_node("n0"), gpu_node("n1", version="0.9.0")))
    (found,) = status(facts, NOW_MS, skew).problems
    assert (found.object, found.wrong, found.next) == ("versions", "agent 0.9.0 is too new", "upgrade")
    assert asked[0]["agent"] == {"0.1.0": 1, "0.9.0": 1}


def test_what_could_not_be_listed_is_unread_and_no_fault_is_made_of_it() -> None:
    replies = [ListReply(None, unread="leases: forbidden") if request.resource.plural == "leases" else ListReply(())
               for request in requests()]  # fmt: skip
    facts = facts_of(replies)
    assert facts.unread == ("leases: forbidden",)
    assert facts.absent == {"leases"}
    made = view(replace(HEALTHY, leases=(), unread=facts.unread, absent=facts.absent))
    assert made.problems == () and made.unread == facts.unread


def test_a_daemon_set_that_two_lists_have_is_one_component() -> None:
    replies = [ListReply((agents(),)) if request.resource.plural == "daemonsets" else ListReply(())
               for request in requests()]  # fmt: skip
    assert len(facts_of(replies).daemon_sets) == 1


def test_progress_names_the_most_basic_thing_that_is_missing() -> None:
    def left(**change: Any) -> tuple[str, ...]:
        return missing(view(replace(HEALTHY, **change)))

    assert left(deployments=()) == ("operator: it is not installed",)
    assert left(deployments=(deployment("dovetail-operator", 0),)) == ("operator: 2 of 2 pods are not ready",)
    assert left(stacks=()) == ("GPUStack: there is none",)
    assert left(stacks=(stack(observedGeneration=1),)) == ("GPUStack dovetail: the operator has not read it yet",)
    forbidden = stack(conditions=condition("Applied", "Forbidden", "no right"))
    assert left(stacks=(forbidden,)) == ("GPUStack dovetail: Forbidden: no right",)
    assert left(stacks=(stack(),), gpu_nodes=())[0].startswith("nodes: no GPU node is found")
    waiting = stack(
        nodes={"nodes": 2, "steps": {"driver": 2}},
        blocked=[{"name": "n0", "step": "driver", "reason": "NoDriver", "message": "m", "action": "install one"}],
    )
    assert left(stacks=(waiting,)) == (
        "nodes: none of 2 is ready (driver 2)",
        "node n0: driver: NoDriver: m; install one",
    )


def test_waiting_for_a_spec_that_contradicts_itself_is_in_vain() -> None:
    assert refused(view(HEALTHY)) == ""
    facts = replace(HEALTHY, stacks=(stack(conditions=condition("Accepted", "Contradiction", "a and b")),))
    assert refused(view(facts)) == "GPUStack dovetail: Contradiction: a and b"
