# SPDX-License-Identifier: Apache-2.0
"""By which object a pod's job is called: a pod of each kind as its controllers make it, and pods that lie."""

import pytest
import yaml

from dovetail.jobs.kinds import JOB_KINDS
from dovetail.kube.gangs.made_for import object_of
from tests.kube.yaml_objects import pod

JOB_NAME, SET_NAME = "batch.kubernetes.io/job-name", "jobset.sigs.k8s.io/jobset-name"
# (kind of the controller, its name, labels of the pod, the object)
MADE = [
    ("batch/v1", "Job", "sweep", {JOB_NAME: "sweep"}, "Job/sweep"),
    ("batch/v1", "Job", "train-w-0", {SET_NAME: "train", JOB_NAME: "train-w-0"}, "JobSet/train"),
    ("batch/v1", "Job", "fit-launcher", {"training.kubeflow.org/job-name": "fit"}, "MPIJob/fit"),
    ("kubeflow.org/v1", "PyTorchJob", "fit", {"training.kubeflow.org/job-name": "fit"}, "PyTorchJob/fit"),
    ("apps/v1", "ReplicaSet", "web-5d8f", {"pod-template-hash": "5d8f"}, "Deployment/web"),
    ("apps/v1", "ReplicaSet", "bare-5d8f", {}, "ReplicaSet/bare-5d8f"),
    ("apps/v1", "ReplicaSet", "web", {"pod-template-hash": "other"}, "ReplicaSet/web"),
    ("apps/v1", "StatefulSet", "db", {}, "StatefulSet/db"),
    ("apps/v1", "StatefulSet", "serve-0", {"leaderworkerset.sigs.k8s.io/name": "serve"}, "LeaderWorkerSet/serve"),
    ("ray.io/v1", "RayCluster", "ray", {"ray.io/cluster": "ray"}, "RayCluster/ray"),
    (
        "ray.io/v1", "RayCluster", "tune-x7k2p",
        {
            "ray.io/cluster": "tune-x7k2p", "ray.io/originated-from-crd": "RayJob",
            "ray.io/originated-from-cr-name": "tune",
        },
        "RayJob/tune",
    ),
    # Kinds that no job is of: the pod stands for itself.
    ("apps/v1", "DaemonSet", "exporter", {}, ""),
    ("argoproj.io/v1alpha1", "Workflow", "steps", {}, ""),
    ("v1", "Node", "gpu-1", {}, ""),
    # What no object can be called.
    ("batch/v1", "Job", "../../x", {}, ""),
    ("batch/v1", "Job", "a/b", {}, ""),
    ("apps/v1", "StatefulSet", "evil\x1b[31m\n", {}, ""),
    ("apps/v1", "StatefulSet", "x" * 300, {}, ""),
    ("apps/v1", "ReplicaSet", "-5d8f", {"pod-template-hash": "5d8f"}, ""),
    ("ray.io/v1", "RayCluster", "ray", {"ray.io/cluster": "ray", "ray.io/originated-from-crd": "RayJob"}, ""),
    ("", "", "", {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("version", "kind", "name", "labels", "expected"), MADE)
def test_the_object_that_a_pod_was_made_for(
    version: str, kind: str, name: str, labels: dict[str, str], expected: str
) -> None:
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": "u", "controller": True}
    found = pod(yaml.safe_dump({"metadata": {"ownerReferences": [owner], "labels": labels}}))
    assert object_of(found) == expected
    if expected:
        assert expected.partition("/")[0] in {one.resource.kind for one in JOB_KINDS}


def test_an_owner_that_is_no_controller_made_nothing() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "sweep", "uid": "u"}
    assert object_of(pod(yaml.safe_dump({"metadata": {"ownerReferences": [owner]}}))) == ""
    assert object_of(pod()) == ""
