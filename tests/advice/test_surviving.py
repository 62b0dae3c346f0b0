# SPDX-License-Identifier: Apache-2.0
"""What manifests lack to survive an interruption."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.advice.surviving import RULES, lacks, templates
from dovetail.kube.owners import OWNER_KINDS

Document = dict[str, Any]
GPU = {"limits": {"nvidia.com/gpu": "8"}}
KEPT = {"name": "kept", "persistentVolumeClaim": {"claimName": "checkpoints"}}


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
    return [lack.field for lack in lacks(document, save_s)]


def test_every_kind_that_makes_pods_has_a_rule() -> None:
    assert {(kind.resource.group, kind.resource.kind) for kind in OWNER_KINDS} | {("", "Pod")} == RULES.keys()


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


def test_the_grace_that_is_not_said_is_30_s() -> None:
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
    assert len(list(templates(made | {"spec": spec}))) == 1


def test_nothing_makes_a_pod_again() -> None:
    assert fields({"apiVersion": "v1", "kind": "Pod"} | pod()) == ["kind"]
