# SPDX-License-Identifier: Apache-2.0
"""What manifests lack to survive an interruption."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.advice.fault_tolerance import RULES, Means, lacks
from dovetail.advice.lint.edits import edited
from dovetail.advice.lint.field import Field
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.manifests.templates import HOLDERS

Document = dict[str, Any]
GPU = {"limits": {"nvidia.com/gpu": "8"}}
KEPT = {"name": "kept", "persistentVolumeClaim": {"claimName": "checkpoints"}}
DISAGGREGATED, AIBRIX = "disaggregatedset.x-k8s.io", "orchestration.aibrix.ai"


def pod(**more: Any) -> Document:
    """A pod that lacks nothing."""
    stop = {"preStop": {"exec": {"command": ["save"]}}}
    mounts = [{"name": "kept", "mountPath": "/kept"}]
    container = {"name": "main", "resources": GPU, "lifecycle": stop, "volumeMounts": mounts}
    spec = {"containers": [container | more.pop("container", {})], "volumes": [KEPT]}
    return {"spec": spec | {"terminationGracePeriodSeconds": 300} | more}


def job(template: Document, **spec: Any) -> Document:
    ignore = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"podFailurePolicy": ignore, "template": template} | spec}


def fields(document: Document, save_s: float = 120) -> list[str]:
    return [str(lack.field) for lack in lacks(Field(document), Means(save_s))]


def test_every_gang_s_kind_has_a_rule_and_every_rule_s_kind_is_known() -> None:
    known = {(holder.resource.group, holder.resource.kind) for holder in HOLDERS}
    # They serve, and run to no end.
    serving = {(DISAGGREGATED, "DisaggregatedSet"), (AIBRIX, "RoleSet"), (AIBRIX, "PodSet")}
    assert {(kind.resource.group, kind.resource.kind) for kind in OWNER_KINDS} - serving <= RULES.keys() <= known


def test_a_job_that_lacks_nothing() -> None:
    assert fields(job(pod())) == []


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"container": {"lifecycle": {}}}, "containers[0].lifecycle.preStop"),
        ({"container": {"volumeMounts": []}}, "containers[0].volumeMounts"),
        ({"container": {"volumeMounts": [{"name": "kept", "readOnly": True}]}}, "containers[0].volumeMounts"),
        ({"volumes": [{"name": "kept", "emptyDir": {}}]}, "containers[0].volumeMounts"),
        ({"terminationGracePeriodSeconds": 119}, "terminationGracePeriodSeconds"),
    ],
)
def test_what_a_pod_lacks(more: Document, field: str) -> None:
    assert fields(job(pod(**more))) == [f"spec.template.spec.{field}"]


def test_an_object_store_keeps_checkpoints() -> None:
    assert fields(job(pod(container={"volumeMounts": [], "args": ["--save", "s3://bucket/run"]}))) == []


def test_the_default_grace_is_30_s() -> None:
    without = pod()
    del without["spec"]["terminationGracePeriodSeconds"]
    assert fields(job(without), 30) == []
    assert fields(job(without), 31) == ["spec.template.spec.terminationGracePeriodSeconds"]


def test_containers_beside_those_with_gpus_need_nothing() -> None:
    beside = pod()
    beside["spec"]["containers"].append({"name": "logs"})
    assert fields(job(beside)) == []


REPLICAS = {"Worker": {"template": pod()}}


@pytest.mark.parametrize(
    ("version", "kind", "spec", "field", "mended"),
    [
        ("batch/v1", "Job", {"template": pod()}, "spec.podFailurePolicy", job(pod())["spec"]),
        (
            "jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"template": job(pod())}]},
            "spec.failurePolicy.maxRestarts",
            {"failurePolicy": {"maxRestarts": 9}, "replicatedJobs": [{"template": job(pod())}]},
        ),
        (
            "jobset.x-k8s.io/v1alpha2", "JobSet",
            {"failurePolicy": {"maxRestarts": 9}, "replicatedJobs": [{"template": {"spec": {"template": pod()}}}]},
            "spec.replicatedJobs[0].template.spec.podFailurePolicy",
            {"failurePolicy": {"maxRestarts": 9}, "replicatedJobs": [{"template": job(pod())}]},
        ),
        (
            "kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": REPLICAS},
            "spec.pytorchReplicaSpecs.Worker.restartPolicy",
            {"pytorchReplicaSpecs": {"Worker": REPLICAS["Worker"] | {"restartPolicy": "ExitCode"}}},
        ),
        (
            "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"restartPolicy": "None", "workerTemplate": pod()}},
            "spec.leaderWorkerTemplate.restartPolicy", {"leaderWorkerTemplate": {"workerTemplate": pod()}},
        ),
        (
            "ray.io/v1", "RayCluster", {"headGroupSpec": {"template": pod()}}, "spec.gcsFaultToleranceOptions",
            {"headGroupSpec": {"template": pod()}, "gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}},
        ),
    ],
)  # fmt: skip
def test_what_counts_as_a_failure(version: str, kind: str, spec: Document, field: str, mended: Document) -> None:
    made = {"apiVersion": version, "kind": kind}
    assert fields(made | {"spec": spec}) == [field]
    assert fields(made | {"spec": mended}) == []


@pytest.mark.parametrize("kind", RULES)
def test_what_can_be_written_is_written(kind: tuple[str, str]) -> None:
    """With all values, every kind but a lone Pod and a RayCluster has no lack left."""
    bare = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}}
    specs: dict[str, Document] = {
        "CronJob": {"jobTemplate": {"spec": {"template": bare}}},
        "JobSet": {"replicatedJobs": [{"template": {"spec": {"template": bare}}}]},
        "LeaderWorkerSet": {"leaderWorkerTemplate": {"restartPolicy": "None", "workerTemplate": bare}},
        "RayCluster": {"headGroupSpec": {"template": bare}},
        "RayJob": {"rayClusterSpec": {"headGroupSpec": {"template": bare}}},
        "Pod": bare["spec"],
        "Job": {"template": bare, "tasks": [{"template": bare}]},
    }
    training = {"pytorchReplicaSpecs": {"Worker": {"template": bare}}}
    document = {"apiVersion": f"{kind[0]}/v1".strip("/"), "kind": kind[1], "spec": specs.get(kind[1], training)}
    means = Means(100, "kept", "save --now")
    for _ in range(9):
        lack = next((one for one in lacks(Field(document), means) if one.edits), None)
        if lack is None:
            break
        document = edited(document, lack.edits)
    left = {"Pod": ["kind"], "RayCluster": ["spec.gcsFaultToleranceOptions"]}.get(kind[1], [])
    assert [str(one.field) for one in lacks(Field(document), means)] == left


def test_without_known_values_there_are_no_edits() -> None:
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"template": {"spec": {"containers": [{"name": "a"}]}}},
    }
    assert {str(one.field): bool(one.edits) for one in lacks(Field(document), Means(100))} == {
        "spec.podFailurePolicy": False,
        "spec.template.spec.containers[0].volumeMounts": False,
        "spec.template.spec.containers[0].lifecycle.preStop": False,
        "spec.template.spec.terminationGracePeriodSeconds": True,
    }


def test_nothing_makes_a_pod_again() -> None:
    assert fields({"apiVersion": "v1", "kind": "Pod"} | pod()) == ["kind"]


@pytest.mark.parametrize(
    ("label", "value", "save_s", "grace"),
    [
        ("karpenter.sh/capacity-type", "spot", 60, 90),
        ("eks.amazonaws.com/capacityType", "SPOT", 110, 120),
        ("kubernetes.azure.com/scalesetpriority", "spot", 25, None),
        ("kubernetes.azure.com/scalesetpriority", "spot", 60, "Azure takes a spot node 30 s after its notice"),
        ("cloud.google.com/gke-spot", "true", 10, None),
        ("cloud.google.com/gke-spot", "true", 20, "GKE takes a spot node 15 s after its notice"),
        ("cloud.google.com/gke-spot", "false", 40, 70),
        ("rack", "spot", 40, 70),
    ],
)
def test_the_grace_period_is_not_longer_than_the_notice(
    label: str, value: str, save_s: int, grace: int | str | None
) -> None:
    whole = job(pod(nodeSelector={label: value}))
    del whole["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    found = list(lacks(Field(whole), Means(save_s)))
    if grace is None:
        assert not found
    elif isinstance(grace, int):
        assert [[edit.value for edit in one.edits] for one in found] == [[grace]]
    else:
        assert [(one.what[: len(grace)], one.edits) for one in found] == [(grace, ())]
        assert found[0].field.path == ("spec", "template", "spec", "nodeSelector", label)
