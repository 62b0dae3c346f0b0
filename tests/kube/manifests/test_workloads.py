# SPDX-License-Identifier: Apache-2.0
"""Workloads in manifests, and the pods that their controllers would make of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.cluster import submitted
from dovetail.core.events import Event, GangChanged, PodChanged
from dovetail.core.model import GPU, Pod
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from dovetail.kube.manifests.workloads import MOST_PODS, expanded
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

LEFT = "are left of the 100000 that all workloads of an input may make"
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"dovetail.dev/max-runtime": "1h"}},
    "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {GPU: "4"}}}]},
}


def _object(api_version: str, kind: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": "work", "namespace": "ns"}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}


def _pods(*objects: dict[str, Any]) -> list[dict[str, Any]]:
    found = [one.value for one in expanded(Document("f.yaml", value) for value in objects).documents]
    return [value for value in found if value["kind"] == "Pod"]


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        (_object("batch/v1", "Job", template=TEMPLATE), ["work-0"]),
        (_object("batch/v1", "Job", parallelism=3, completions=2, template=TEMPLATE), ["work-0", "work-1"]),
        (_object("apps/v1", "Deployment", replicas=2, template=TEMPLATE), ["work-new-0", "work-new-1"]),
        (_object("apps/v1", "StatefulSet", replicas=2, template=TEMPLATE), ["work-0", "work-1"]),
        (_object("apps/v1", "StatefulSet", ordinals={"start": 5}, template=TEMPLATE), ["work-5"]),
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
            ["work-0", "work-1", "work-0-1", "work-1-1"],
        ),
        (
            _object(
                "ray.io/v1", "RayCluster", headGroupSpec={"template": TEMPLATE},
                workerGroupSpecs=[
                    {"groupName": "g", "replicas": 1, "numOfHosts": 2, "template": TEMPLATE},
                    {"groupName": "h", "replicas": 1, "suspend": True, "template": TEMPLATE},
                ],
            ),
            ["work-head-0", "work-g-worker-0", "work-g-worker-1"],
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
    meta = {"name": "work-abc", "namespace": "ns", "ownerReferences": [owner]}
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}}
    assert [pod["metadata"]["name"] for pod in _pods(job, own)] == ["work-abc"]


@pytest.mark.parametrize(
    ("workload", "fault"),
    [
        (
            _object("batch/v1", "Job", parallelism="many", template=TEMPLATE),
            "spec.parallelism: 'many' must be a whole number from 0 to 100000",
        ),
        (
            _object("apps/v1", "Deployment", replicas=10**9, template=TEMPLATE),
            "spec.replicas: 1000000000 must be a whole number from 0 to 100000",
        ),
        (_object("batch/v1", "Job"), "spec.template: is missing"),
        (_object("apps/v1", "StatefulSet", template={"spec": []}), "spec.template.spec: must be an object"),
        (
            _object(
                "jobset.x-k8s.io/v1alpha2", "JobSet",
                replicatedJobs=[
                    {
                        "name": "w", "replicas": MOST_PODS,
                        "template": {"spec": {"parallelism": MOST_PODS, "template": TEMPLATE}},
                    }
                ],
            ),
            f"spec.replicatedJobs[0].replicas: makes 10000000000 pods, and {MOST_PODS} {LEFT}",
        ),
        (
            _object(
                "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", replicas=MOST_PODS,
                leaderWorkerTemplate={"size": MOST_PODS, "workerTemplate": TEMPLATE},
            ),
            f"spec.leaderWorkerTemplate.size: makes 10000000000 pods, and {MOST_PODS} {LEFT}",
        ),
        (_object("batch.volcano.sh/v1alpha1", "Job", tasks={}), "spec.tasks: must be a list of objects"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)  # fmt: skip
def test_a_workload_without_usable_numbers_makes_no_pods_and_the_field_is_named(
    workload: dict[str, Any], fault: str
) -> None:
    found = expanded([Document("f.yaml", workload)])
    assert [str(one) for one in found.faults] == [f"f.yaml: {workload['kind']} ns/work: {fault}"]
    assert [one.value for one in found.documents] == [workload]


def test_all_workloads_of_an_input_share_one_bound() -> None:
    first = _object("apps/v1", "ReplicaSet", replicas=2, template=TEMPLATE)
    second = _object("apps/v1", "Deployment", replicas=MOST_PODS - 1, template=TEMPLATE)
    found = expanded([Document("f.yaml", one) for one in (first, second)])
    assert len(found.documents) == 3
    (fault,) = found.faults
    assert (fault.field, fault.message) == (
        "spec.replicas", f"makes {MOST_PODS - 1} pods, and {MOST_PODS - 2} {LEFT}",
    )  # fmt: skip


def _metadata_of(pod: dict[str, Any]) -> tuple[str, dict[str, str], dict[str, str], str]:
    """(name, labels and annotations that its controller wrote, controller) of a pod."""
    meta, (owner,) = pod["metadata"], pod["metadata"]["ownerReferences"]
    assert owner["controller"] and owner["blockOwnerDeletion"] and owner["uid"]
    labels = {key: value for key, value in meta["labels"].items() if key != "app"}
    annotations = {key: value for key, value in meta["annotations"].items() if not key.startswith("dovetail.dev/")}
    return meta["name"], labels, annotations, f"{owner['apiVersion']} {owner['kind']} {owner['name']}"


def test_a_jobset_numbers_its_jobs_and_their_pods() -> None:
    """The labels that JobSet writes, by its table of labels."""
    job = {"parallelism": 2, "completions": 2, "template": TEMPLATE}
    replicated = [{"name": name, "replicas": 2, "template": {"spec": job}} for name in ("driver", "workers")]
    *_, last = _pods(_object("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=replicated))
    name, labels, annotations, owner = _metadata_of(last)
    marks = {
        "jobset.sigs.k8s.io/jobset-name": "work",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
        "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
        "jobset.sigs.k8s.io/global-replicas": "4",
        "jobset.sigs.k8s.io/job-index": "1",
        "jobset.sigs.k8s.io/job-global-index": "3",
        "jobset.sigs.k8s.io/restart-attempt": "0",
    }
    index = {"batch.kubernetes.io/job-completion-index": "1"}
    assert (name, owner) == ("work-workers-1-1", "batch/v1 Job work-workers-1")
    own = {"batch.kubernetes.io/job-name": "work-workers-1", "job-name": "work-workers-1"}
    assert labels == {**own, **index, **marks}
    assert annotations == {**index, **marks}


def test_a_leader_worker_set_has_a_stateful_set_of_leaders_and_one_of_each_groups_workers() -> None:
    """The labels and annotations that LeaderWorkerSet writes."""
    leader = {"spec": {"containers": [{"name": "leader"}]}}
    both = {"size": 3, "leaderTemplate": leader, "workerTemplate": TEMPLATE}
    pods = _pods(_object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", replicas=2, leaderWorkerTemplate=both))
    found = [_metadata_of(pod) for pod in pods]
    assert [(name, owner) for name, _, _, owner in found] == [
        ("work-0", "apps/v1 StatefulSet work"), ("work-1", "apps/v1 StatefulSet work"),
        ("work-0-1", "apps/v1 StatefulSet work-0"), ("work-0-2", "apps/v1 StatefulSet work-0"),
        ("work-1-1", "apps/v1 StatefulSet work-1"), ("work-1-2", "apps/v1 StatefulSet work-1"),
    ]  # fmt: skip
    assert [pod["spec"]["containers"][0]["name"] for pod in pods] == ["leader"] * 2 + ["main"] * 4
    _, labels, annotations, _ = found[-1]
    assert labels == {
        "leaderworkerset.sigs.k8s.io/name": "work",
        "leaderworkerset.sigs.k8s.io/group-index": "1",
        "leaderworkerset.sigs.k8s.io/worker-index": "2",
        "statefulset.kubernetes.io/pod-name": "work-1-2",
        "apps.kubernetes.io/pod-index": "2",
    }
    assert annotations == {
        "leaderworkerset.sigs.k8s.io/size": "3", "leaderworkerset.sigs.k8s.io/leader-name": "work-1"
    }  # fmt: skip


def test_the_mpi_operator_starts_its_launcher_by_a_job() -> None:
    specs = {"Launcher": {"template": TEMPLATE}, "Worker": {"replicas": 2, "template": TEMPLATE}}
    newer = [_metadata_of(pod) for pod in _pods(_object("kubeflow.org/v2beta1", "MPIJob", mpiReplicaSpecs=specs))]
    assert [(name, labels["training.kubeflow.org/job-role"], owner) for name, labels, _, owner in newer] == [
        ("work-launcher-0", "launcher", "batch/v1 Job work-launcher"),
        ("work-worker-0", "worker", "kubeflow.org/v2beta1 MPIJob work"),
        ("work-worker-1", "worker", "kubeflow.org/v2beta1 MPIJob work"),
    ]
    older = [_metadata_of(pod) for pod in _pods(_object("kubeflow.org/v1", "MPIJob", mpiReplicaSpecs=specs))]
    assert {owner for *_, owner in older} == {"kubeflow.org/v1 MPIJob work"}


def test_a_volcano_job_is_a_gang_by_its_own_pod_group(tmp_path: Path) -> None:
    """A Volcano Job as in its documents: a task of one master, one of two workers, all at once."""
    own = {"metadata": TEMPLATE["metadata"], "spec": TEMPLATE["spec"] | {"priorityClassName": "low"}}
    tasks = [{"name": "master", "template": own}, {"replicas": 2, "template": TEMPLATE}]
    job = _object("batch.volcano.sh/v1alpha1", "Job", tasks=tasks, priorityClassName="high", schedulerName="volcano")
    pods = _pods(job)
    assert [pod["metadata"]["name"] for pod in pods] == ["work-master-0", "work-default1-0", "work-default1-1"]
    assert [pod["spec"]["priorityClassName"] for pod in pods] == ["low", "high", "high"]
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"volcano"}
    gangs = [event.gang for event in _reported(tmp_path, job) if isinstance(event, GangChanged)]
    assert {gang.name: gang.min_count for gang in gangs} == {"work": 0, "work/master": 1, "work/default1": 2}
    elastic = job | {"spec": job["spec"] | {"minAvailable": 2}}
    gangs = [event.gang for event in _reported(tmp_path, elastic) if isinstance(event, GangChanged)]
    assert {gang.name: gang.min_count for gang in gangs} == {"work": 2}


@pytest.mark.parametrize("field", ["suspend", "paused", "runPolicy"])
def test_a_workload_that_is_held_makes_no_pods(field: str) -> None:
    held = {field: {"suspend": True} if field == "runPolicy" else True}
    kinds = {
        "suspend": ("batch/v1", "Job"),
        "paused": ("apps/v1", "Deployment"),
        "runPolicy": ("kubeflow.org/v1", "TFJob"),
    }
    specs = {"Worker": {"template": TEMPLATE}}
    assert _pods(_object(*kinds[field], template=TEMPLATE, tfReplicaSpecs=specs)) != []
    assert _pods(_object(*kinds[field], template=TEMPLATE, tfReplicaSpecs=specs, **held)) == []


def test_pods_of_a_deployment_or_a_jobset_are_known_without_the_objects_between() -> None:
    deployment = _object("apps/v1", "Deployment", replicas=3, template=TEMPLATE)
    replicated = [{"name": "w", "template": {"spec": {"template": TEMPLATE}}}]
    jobset = _object("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=replicated)
    labels = {"jobset.sigs.k8s.io/jobset-name": "work"}
    for workload, own in (
        (deployment, {"ownerReferences": [{"kind": "ReplicaSet", "name": "work-5d9c"}]}), (jobset, {"labels": labels})
    ):  # fmt: skip
        meta = {"name": "work-x", "namespace": "ns", **own}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}}
        assert _pods(workload, pod) == [pod]
        elsewhere = pod | {"metadata": meta | {"namespace": "other"}}
        assert len(_pods(workload, elsewhere)) > 1


def test_in_a_cluster_a_workload_with_a_uid_has_its_pods_already() -> None:
    job = _object("batch/v1", "Job", template=TEMPLATE)
    there = job | {"metadata": job["metadata"] | {"uid": "1", "name": "there"}}
    documents = [Document("f.yaml", one) for one in (job, there)]
    assert len(expanded(documents, of_cluster=True).documents) == 3
    assert len(expanded(documents).documents) == 4


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


def _created(api_version: str, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    once = {"restartPolicy": "Never"} if kind == "Job" else {}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "x"}], **once}}
    selector = {"selector": {"matchLabels": {"app": name}}} if api_version == "apps/v1" else {}
    meta = {"name": name, "namespace": "workloads"}
    return {
        "apiVersion": api_version, "kind": kind, "metadata": meta, "spec": {"template": template, **selector, **spec}
    }  # fmt: skip


WORKLOADS = (
    _created("batch/v1", "Job", "once"),
    _created("batch/v1", "Job", "few", parallelism=3, completions=2),
    _created("batch/v1", "Job", "indexed", parallelism=2, completions=3, completionMode="Indexed"),
    _created("batch/v1", "Job", "held", suspend=True),
    _created("apps/v1", "Deployment", "web", replicas=2),
    _created("apps/v1", "Deployment", "paused", paused=True),
    _created("apps/v1", "ReplicaSet", "set"),
    _created("v1", "ReplicationController", "old", replicas=2),
    _created(
        "apps/v1", "StatefulSet", "ordered",
        replicas=2, podManagementPolicy="Parallel", ordinals={"start": 3}, serviceName="x",
    ),
)  # fmt: skip
UNKNOWN = ("controller-uid", "batch.kubernetes.io/controller-uid", "controller-revision-hash")
"""Labels with a uid or a hash, which are not made."""


def _known(pod: dict[str, Any], *, real: bool) -> Any:
    """What is equal in pods of the controllers and in pods that are made here."""
    meta, (owner,) = pod["metadata"], pod["metadata"]["ownerReferences"]
    labels, name = meta["labels"], meta["name"]
    if "statefulset.kubernetes.io/pod-name" not in labels and (real or "hostname" not in pod["spec"]):
        name = name.rpartition("-")[0]
    text = json.dumps(
        [
            name, {key: value for key, value in labels.items() if key not in UNKNOWN}, meta.get("annotations", {}),
            {key: value for key, value in owner.items() if key != "uid"}, pod["spec"].get("hostname"),
        ],
        sort_keys=True,
    )  # fmt: skip
    return json.loads(text.replace(labels.get("pod-template-hash", "new"), "new"))


@pytest.mark.plane
def test_the_real_controllers_make_the_same_pods(plane: Plane) -> None:
    made = [_known(pod, real=False) for pod in _pods(*WORKLOADS)]
    plane.kubectl("create", "namespace", "workloads")
    plane.kubectl("wait", "--namespace=workloads", "--for=create", "serviceaccount/default", "--timeout=60s")
    plane.kubectl("create", "--filename=-", input=yaml.safe_dump_all(WORKLOADS))
    until = time.monotonic() + PATIENCE_S
    pods: list[dict[str, Any]] = []
    while len(pods) < len(made) and time.monotonic() < until:
        pods = json.loads(plane.kubectl("get", "pods", "--namespace=workloads", "--output=json"))["items"]
        time.sleep(0.1)
    found = [_known(pod, real=True) for pod in pods]
    plane.kubectl("delete", "namespace", "workloads", "--wait=false")
    assert sorted(found, key=str) == sorted(made, key=str)
