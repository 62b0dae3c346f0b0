# SPDX-License-Identifier: Apache-2.0
"""Workloads in manifests, and the pods that their controllers would make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.cluster import submitted
from dovetail.core.events import Event, GangChanged, PodChanged
from dovetail.core.model import GPU, Pod
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from dovetail.views.workloads import WorkloadError, with_pods

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"dovetail.dev/max-runtime": "1h"}},
    "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {GPU: "4"}}}]},
}


def _object(api_version: str, kind: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": "work", "namespace": "ns"}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}


def _pods(*objects: dict[str, Any]) -> list[dict[str, Any]]:
    found = [document.value for document in with_pods(Document("f.yaml", value) for value in objects)]
    return [value for value in found if value["kind"] == "Pod"]


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        (_object("batch/v1", "Job", template=TEMPLATE), ["work-0"]),
        (_object("batch/v1", "Job", parallelism=3, completions=2, template=TEMPLATE), ["work-0", "work-1"]),
        (_object("apps/v1", "Deployment", replicas=2, template=TEMPLATE), ["work-new-0", "work-new-1"]),
        (_object("apps/v1", "StatefulSet", replicas=2, template=TEMPLATE), ["work-0", "work-1"]),
        (_object("apps/v1", "ReplicaSet", template=TEMPLATE), ["work-0"]),
        (
            _object(
                "jobset.x-k8s.io/v1alpha2", "JobSet",
                replicatedJobs=[{"name": "w", "replicas": 2, "template": {"spec": {"template": TEMPLATE}}}],
            ),
            ["work-w-0-0", "work-w-1-0"],
        ),
        (
            _object(
                "kubeflow.org/v1", "PyTorchJob",
                pytorchReplicaSpecs={"Master": {"template": TEMPLATE}, "Worker": {"replicas": 2, "template": TEMPLATE}},
            ),
            ["work-master-0", "work-worker-0", "work-worker-1"],
        ),
        (
            _object(
                "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", replicas=2,
                leaderWorkerTemplate={"size": 2, "workerTemplate": TEMPLATE},
            ),
            ["work-0", "work-0-1", "work-1", "work-1-1"],
        ),
        (
            _object(
                "ray.io/v1", "RayCluster", headGroupSpec={"template": TEMPLATE},
                workerGroupSpecs=[{"groupName": "g", "replicas": 2, "template": TEMPLATE}],
            ),
            ["work-head", "work-g-worker-0", "work-g-worker-1"],
        ),
        (_object("batch/v1", "Job", suspend=True, template=TEMPLATE), []),
        (_object("batch/v1", "CronJob", schedule="* * * * *"), []),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)  # fmt: skip
def test_a_workload_makes_these_pods(workload: dict[str, Any], names: list[str]) -> None:
    assert [pod["metadata"]["name"] for pod in _pods(workload)] == names


def test_a_workload_whose_pods_are_there_makes_no_others() -> None:
    job = _object("batch/v1", "Job", parallelism=4, template=TEMPLATE)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "work", "controller": True}
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "work-abc", "ownerReferences": [owner]}, "spec": {}}
    assert [pod["metadata"]["name"] for pod in _pods(job, own)] == ["work-abc"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"parallelism": "many", "template": TEMPLATE}, "parallelism is 'many'"),
        ({"parallelism": 10**9, "template": TEMPLATE}, "from 0 to 100000"),
        ({}, "template is missing"),
    ],
)
def test_a_workload_that_cannot_be_read_is_reported_with_its_place(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=r"f.yaml: Job work: its pods cannot be made: ") as reported:
        _pods(_object("batch/v1", "Job", **spec))
    assert message in str(reported.value)


def _reported(folder: Path, *objects: dict[str, Any]) -> tuple[Event, ...]:
    file = folder / "work.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    made = submitted((str(file),), "default")
    return of_documents([Document(str(file), one) for one in made], whole=False).events


def _of_pods(events: tuple[Event, ...]) -> list[Pod]:
    return [event.pod for event in events if isinstance(event, PodChanged)]


def test_pods_are_ours_with_what_the_template_states(tmp_path: Path) -> None:
    (pod,) = _of_pods(_reported(tmp_path, _object("batch/v1", "Job", template=TEMPLATE)))
    assert (pod.key, pod.managed, dict(pod.request.resources)[GPU]) == ("ns/work-0", True, 4)
    assert pod.work.max_runtime_ms == 3_600_000
    assert dict(pod.labels)["app"] == "x" and dict(pod.labels)["batch.kubernetes.io/job-name"] == "work"


@pytest.mark.parametrize(
    ("workload", "size"),
    [
        (_object("batch/v1", "Job", parallelism=2, completions=2, completionMode="Indexed", template=TEMPLATE), 2),
        (
            _object(
                "kubeflow.org/v1", "PyTorchJob",
                pytorchReplicaSpecs={"Worker": {"replicas": 3, "template": TEMPLATE}},
            ),
            3,
        ),
        (
            _object(
                "jobset.x-k8s.io/v1alpha2", "JobSet",
                replicatedJobs=[
                    {"name": "w", "template": {"spec": {"parallelism": 2, "completions": 2, "template": TEMPLATE}}}
                ],
            ),
            2,
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)  # fmt: skip
def test_workloads_whose_pods_start_together_are_gangs(tmp_path: Path, workload: dict[str, Any], size: int) -> None:
    events = _reported(tmp_path, workload)
    gangs = {event.gang.id: event.gang for event in events if isinstance(event, GangChanged)}
    assert [gang.min_count for gang in gangs.values()] == [size]
    last = {pod.uid: pod for pod in _of_pods(events)}
    assert {pod.gang for pod in last.values()} == set(gangs)
    assert len(last) == size
