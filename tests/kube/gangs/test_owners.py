# SPDX-License-Identifier: Apache-2.0
"""From workload objects and the labels that their controllers put on pods to gangs. Every kind has an example."""

from typing import Any

import pytest
import yaml

from dovetail.core.model import Gang
from dovetail.kube.gangs import declared as gangs
from dovetail.kube.gangs import owners
from dovetail.kube.gangs.declared import Declared, Membership
from tests.kube.yaml_objects import pod

JOB_OF_JOBSET = "{apiVersion: batch/v1, kind: Job, name: train-worker-0, controller: true}"
JOBSET_LABELS = "{jobset.sigs.k8s.io/jobset-name: train, jobset.sigs.k8s.io/replicatedjob-name: %s}"
STATEFUL_SET = "{apiVersion: apps/v1, kind: StatefulSet, name: serve-0, controller: true}"
LWS_LABELS = (
    "{leaderworkerset.sigs.k8s.io/name: serve, leaderworkerset.sigs.k8s.io/group-index: '3',"
    " leaderworkerset.sigs.k8s.io/worker-index: '%d'}"
)
RAY = "{apiVersion: ray.io/v1, kind: RayCluster, name: ray, controller: true}"
JOB = "{apiVersion: batch/v1, kind: Job, name: sweep, controller: true}"
INDEX = "{batch.kubernetes.io/job-completion-index: '0'}"


def kubeflow(kind: str, version: str = "v1") -> str:
    return f"{{apiVersion: kubeflow.org/{version}, kind: {kind}, name: fit, controller: true}}"


def kubeflow_labels(replica_type: str, key: str = "replica-type") -> str:
    return f"{{training.kubeflow.org/job-name: fit, training.kubeflow.org/{key}: {replica_type}}}"


def member_of(controller: str, labels: str) -> Membership | None:
    return owners.owned_by(
        pod(f"metadata: {{name: p, namespace: ml, ownerReferences: [{controller}], labels: {labels}}}")
    )


def declared_by(member: Membership, document: str) -> Declared:
    assert member.owner is not None
    return owners.declare(member, owners.read(member.owner, yaml.safe_load(document)))


def minimums_of(found: list[Gang]) -> dict[str, int]:
    """The minimum of each gang, by what is left of its id after the root's."""
    assert all(gang.problem is None for gang in found), found[0].problem
    return {gang.id.removeprefix(found[0].id): gang.min_count for gang in found}


# (kind, controller of the pod, its labels, the owner's document, the expected gang of the pod, all gangs' minimums)
EXAMPLES = [
    ("JobSet", JOB_OF_JOBSET, JOBSET_LABELS % "worker",
     "{spec: {replicatedJobs: ["
     "{name: driver, template: {spec: {parallelism: 1, completions: 1}}},"
     "{name: worker, replicas: 2, template: {spec: {parallelism: 4, completions: 4}}}]}}",
     "jobset.jobset.x-k8s.io/ml/train/worker", {"": 0, "/driver": 1, "/worker": 8}),
    ("JobSet", JOB_OF_JOBSET, JOBSET_LABELS % "node",
     "{spec: {replicatedJobs: [{name: node, replicas: 1, template: {spec: {parallelism: 8, completions: 4}}}]}}",
     "jobset.jobset.x-k8s.io/ml/train", {"": 4}),
    ("MPIJob", kubeflow("MPIJob", "v2beta1"), kubeflow_labels("worker", "job-role"),
     "{spec: {mpiReplicaSpecs: {Launcher: {replicas: 1}, Worker: {replicas: 4}}}}",
     "mpijob.kubeflow.org/ml/fit/worker", {"": 0, "/launcher": 1, "/worker": 4}),
    ("MPIJob", "{apiVersion: batch/v1, kind: Job, name: fit-launcher, controller: true}",
     kubeflow_labels("launcher", "job-role"),
     "{spec: {mpiReplicaSpecs: {Launcher: {}, Worker: {replicas: 4}}}}",
     "mpijob.kubeflow.org/ml/fit/launcher", {"": 0, "/launcher": 1, "/worker": 4}),
    ("PyTorchJob", kubeflow("PyTorchJob"), kubeflow_labels("master"),
     "{spec: {pytorchReplicaSpecs: {Master: {replicas: 1}, Worker: {replicas: 7}}}}",
     "pytorchjob.kubeflow.org/ml/fit/master", {"": 0, "/master": 1, "/worker": 7}),
    ("PyTorchJob", kubeflow("PyTorchJob"), kubeflow_labels("worker"),
     "{spec: {pytorchReplicaSpecs: {Worker: {replicas: 8}}, elasticPolicy: {minReplicas: 2, maxReplicas: 8}}}",
     "pytorchjob.kubeflow.org/ml/fit", {"": 2}),
    ("PyTorchJob", kubeflow("PyTorchJob"), kubeflow_labels("worker"),
     "{spec: {pytorchReplicaSpecs: {Master: {}, Worker: {replicas: 7}},"
     " runPolicy: {schedulingPolicy: {minAvailable: 5}}}}",
     "pytorchjob.kubeflow.org/ml/fit", {"": 5}),
    ("TFJob", kubeflow("TFJob"), kubeflow_labels("ps"),
     "{spec: {tfReplicaSpecs: {PS: {replicas: 2}, Worker: {replicas: 4}, Chief: {}}}}",
     "tfjob.kubeflow.org/ml/fit/ps", {"": 0, "/chief": 1, "/ps": 2, "/worker": 4}),
    ("XGBoostJob", kubeflow("XGBoostJob"), kubeflow_labels("worker"),
     "{spec: {xgbReplicaSpecs: {Master: {}, Worker: {replicas: 2}}}}",
     "xgboostjob.kubeflow.org/ml/fit/worker", {"": 0, "/master": 1, "/worker": 2}),
    ("PaddleJob", kubeflow("PaddleJob"), kubeflow_labels("worker"),
     "{spec: {paddleReplicaSpecs: {Worker: {replicas: 2}}}}", "paddlejob.kubeflow.org/ml/fit", {"": 2}),
    ("JAXJob", kubeflow("JAXJob"), kubeflow_labels("worker"),
     "{spec: {jaxReplicaSpecs: {Worker: {replicas: 16}}}}", "jaxjob.kubeflow.org/ml/fit", {"": 16}),
    ("Job", JOB, INDEX, "{spec: {completionMode: Indexed, parallelism: 4, completions: 4}}",
     "job.batch/ml/sweep", {"": 4}),
    ("LeaderWorkerSet", STATEFUL_SET, LWS_LABELS % 1, "{spec: {replicas: 9, leaderWorkerTemplate: {size: 4}}}",
     "leaderworkerset.leaderworkerset.x-k8s.io/ml/serve/3", {"": 4}),
    ("RayCluster", RAY, "{ray.io/cluster: ray, ray.io/group: GPU-workers, ray.io/node-type: worker}",
     "{spec: {workerGroupSpecs: ["
     "{groupName: GPU-workers, replicas: 6, minReplicas: 2, numOfHosts: 2},"
     "{groupName: fixed, replicas: 3}, {groupName: later, replicas: 0},"
     "{groupName: stopped, replicas: 5, suspend: true}]}}",
     "raycluster.ray.io/ml/ray/GPU-workers", {"": 0, "/headgroup": 1, "/GPU-workers": 4, "/fixed": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "controller", "labels", "document", "gang", "minimums"), EXAMPLES)
def test_a_workload_starts_together(
    kind: str, controller: str, labels: str, document: str, gang: str, minimums: dict[str, int]
) -> None:
    member = member_of(controller, labels)
    assert member is not None
    assert member.owner is not None
    assert member.owner.resource.kind == kind
    declared = declared_by(member, document)
    assert declared.gang_of(member.part) == gang
    root, *below = gangs.records(declared, ())
    assert minimums_of([root, *below]) == minimums
    assert all(sub_gang.parent == root.id for sub_gang in below)


@pytest.mark.parametrize(("more", "survives"), [("", False), (", backoffLimitPerIndex: 0", True)])
def test_a_job_that_counts_failures_by_index_goes_on_with_those_that_are_left(more: str, survives: bool) -> None:
    member = member_of(JOB, INDEX)
    assert member is not None
    document = f"{{spec: {{completionMode: Indexed, parallelism: 4, completions: 4{more}}}}}"
    (gang,) = gangs.records(declared_by(member, document), ())
    assert gang.survives == survives


IN_TEST_SERVING = {"DisaggregatedSet", "RoleSet", "PodSet"}


def test_every_kind_has_an_example() -> None:
    kinds = {kind.resource.kind for kind in owners.OWNER_KINDS}
    assert {example[0] for example in EXAMPLES} == kinds - IN_TEST_SERVING


@pytest.mark.parametrize(
    ("controller", "labels"),
    [
        ("{apiVersion: apps/v1, kind: ReplicaSet, name: r, controller: true}", "{}"),
        (STATEFUL_SET, "{}"),
        ("{apiVersion: batch/v1, kind: Job, name: j}", INDEX),
        ("{apiVersion: example.com/v1, kind: PyTorchJob, name: x, controller: true}", kubeflow_labels("worker")),
    ],
)
def test_pods_of_other_controllers_are_on_their_own(controller: str, labels: str) -> None:
    assert member_of(controller, labels) is None


@pytest.mark.parametrize(
    "spec",
    [
        "{completionMode: Indexed, parallelism: 4, completions: 100}",
        "{completionMode: Indexed, parallelism: 1, completions: 1}",
        "{parallelism: 4, completions: 4}",
    ],
)
def test_a_job_that_is_a_work_queue_is_no_gang(spec: str) -> None:
    member = member_of(JOB, INDEX)
    assert member is not None
    declared = declared_by(member, f"{{spec: {spec}}}")
    assert (declared.gang_of(""), gangs.records(declared, ())) == ("", [])


@pytest.mark.parametrize("document", ["{spec: {parallelism: 4, completions: 4}}", "null"])
def test_pods_of_a_job_that_is_not_indexed_are_on_their_own_whatever_it_states(document: str) -> None:
    member = member_of(JOB, "{}")
    assert member is not None
    assert member.alone
    declared = declared_by(member, document)
    assert (declared.gang_of(""), gangs.records(declared, ())) == ("", [])


def test_the_owner_is_read_in_the_version_that_the_pod_names() -> None:
    old = member_of(
        "{apiVersion: ray.io/v1alpha1, kind: RayCluster, name: ray, controller: true}", "{ray.io/cluster: ray}"
    )
    new = member_of(JOB_OF_JOBSET, JOBSET_LABELS % "worker")
    assert old is not None and old.owner is not None
    assert new is not None and new.owner is not None
    assert old.owner.resource.path("ml", "ray") == "/apis/ray.io/v1alpha1/namespaces/ml/rayclusters/ray"
    assert new.owner.resource.path("ml", "train") == "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/train"


TWO_JOBS = (
    "{name: a, template: {spec: {parallelism: 2, completions: 2}}},"
    " {name: b, template: {spec: {parallelism: 3, completions: 3}}%s}"
)
EXCLUSIVE = "annotations: {alpha.jobset.sigs.k8s.io/exclusive-topology: rack%s}"
NODE_SELECTOR = ", alpha.jobset.sigs.k8s.io/node-selector: 'true'"
MPI = "mpiReplicaSpecs: {Launcher: {}, Worker: {replicas: 4}}"


@pytest.mark.parametrize(
    ("controller", "labels", "document", "expected"),
    [
        # The next replicated job is made when the one before is ready.
        (JOB_OF_JOBSET, JOBSET_LABELS % "a",
         "{spec: {startupPolicy: {startupPolicyOrder: InOrder}, replicatedJobs: [%s]}}" % (TWO_JOBS % ""),
         {"": 0, "/a": 2, "/b": 3}),
        (JOB_OF_JOBSET, JOBSET_LABELS % "a",
         "{spec: {replicatedJobs: [%s]}}" % (TWO_JOBS % ", dependsOn: [{name: a, status: Ready}]"),
         {"": 0, "/a": 2, "/b": 3}),
        # A Job's pods are made when its first one is bound.
        (JOB_OF_JOBSET, JOBSET_LABELS % "a",
         f"{{metadata: {{{EXCLUSIVE % ''}}}, spec: {{replicatedJobs: [{TWO_JOBS % ''}]}}}}",
         {"": 0, "/a": 1, "/b": 1}),
        (kubeflow("MPIJob", "v2beta1"), kubeflow_labels("worker"),
         f"{{spec: {{launcherCreationPolicy: WaitForWorkersReady, {MPI}}}}}", {"": 0, "/launcher": 1, "/worker": 4}),
        (kubeflow("MPIJob", "v2beta1"), kubeflow_labels("worker"),
         f"{{spec: {{waitForWorkers: true, runPolicy: {{schedulingPolicy: {{minAvailable: 5}}}}, {MPI}}}}}",
         {"": 0, "/launcher": 1, "/worker": 4}),
        (STATEFUL_SET, LWS_LABELS % 0, "{spec: {startupPolicy: LeaderReady, leaderWorkerTemplate: {size: 4}}}",
         {"": 0, "/leader": 1, "/workers": 3}),
    ],
)  # fmt: skip
def test_pods_that_are_made_one_after_another_do_not_wait_for_each_other(
    controller: str, labels: str, document: str, expected: dict[str, int]
) -> None:
    member = member_of(controller, labels)
    assert member is not None
    declared = declared_by(member, document)
    assert declared is not None
    found = gangs.records(declared, ())
    assert minimums_of(found) == expected
    assert all(gang.parent == "" for gang in found)


def test_exclusive_placement_by_node_selectors_makes_all_pods_at_once() -> None:
    member = member_of(JOB_OF_JOBSET, JOBSET_LABELS % "a")
    assert member is not None
    text = f"{{metadata: {{{EXCLUSIVE % NODE_SELECTOR}}}, spec: {{replicatedJobs: [{TWO_JOBS % ''}]}}}}"
    declared = declared_by(member, text)
    assert declared is not None
    assert [gang.min_count for gang in gangs.records(declared, ())] == [0, 2, 3]


def problem_of(controller: str, labels: str, document: str) -> Any:
    member = member_of(controller, labels)
    assert member is not None
    assert member.owner is not None
    declared = owners.declare(member, owners.read(member.owner, yaml.safe_load(document)))
    assert declared is not None
    problem = gangs.records(declared, ())[0].problem
    assert problem is not None
    return problem


def test_more_pods_at_once_than_there_are() -> None:
    problem = problem_of(
        kubeflow("TFJob"), kubeflow_labels("ps"),
        "{spec: {tfReplicaSpecs: {PS: {replicas: 2}}, runPolicy: {schedulingPolicy: {minAvailable: 3}}}}",
    )  # fmt: skip
    assert problem.field == "TFJob ml/fit spec.runPolicy.schedulingPolicy.minAvailable"
    assert (problem.value, problem.rule) == ("3", "is more than the 2 pods that there will be; nearest valid value: 2")
    elastic = "{spec: {pytorchReplicaSpecs: {Master: {}, Worker: {replicas: 2}}, elasticPolicy: {minReplicas: 4}}}"
    assert problem_of(kubeflow("PyTorchJob"), kubeflow_labels("worker"), elastic).value == "4"


def test_a_negative_number_of_pods() -> None:
    problem = problem_of(STATEFUL_SET, LWS_LABELS % 0, "{spec: {leaderWorkerTemplate: {size: -1}}}")
    assert (problem.field, problem.value) == ("LeaderWorkerSet ml/serve spec.leaderWorkerTemplate.size", "-1")


def test_an_owner_that_cannot_be_read_states_where() -> None:
    problem = problem_of(JOB, INDEX, "{spec: {parallelism: four}}")
    assert problem.field == "Job ml/sweep"
    assert "$.spec.parallelism" in problem.rule


def test_an_owner_that_is_gone() -> None:
    member = member_of(JOB, INDEX)
    assert member is not None and member.owner is not None
    assert owners.declare(member, owners.read(member.owner, None)) is None


def test_annotations_of_the_owner_hold_for_the_whole_gang() -> None:
    member = member_of(JOB, INDEX)
    assert member is not None
    declared = declared_by(
        member,
        "{metadata: {creationTimestamp: '2026-01-01T00:00:00Z', annotations:"
        " {dovetail.dev/topology-required: rack, dovetail.dev/gang-min: '2', dovetail.dev/gang-max: '3'}},"
        " spec: {completionMode: Indexed, parallelism: 4, completions: 4}}",
    )
    assert declared is not None
    assert gangs.records(declared, ()) == [
        Gang("job.batch/ml/sweep", "ml", "sweep", 2, 3, required=("dovetail.dev/rack",), created_ms=1767225600000)
    ]


@pytest.mark.parametrize(
    "reference",
    [
        {"apiVersion": "batch/v1 HTTP/1.1\r\nHost: x\r\n\r\nDELETE /api/v1/namespaces/ml/pods"},
        {"apiVersion": "batch/.."},
        {"apiVersion": "batch/v1?x="},
        {"apiVersion": "batch/v1#"},
        {"apiVersion": "batch/%2e%2e"},
        {"apiVersion": "batch/"},
        {"name": ".."},
        {"name": "."},
        {"name": "../../secrets/token"},
        {"name": "sweep?watch=true"},
        {"name": "sweep\r\nX: y"},
        {"name": "x" * 254},
    ],
)
def test_an_owner_that_cannot_exist_is_never_requested(reference: dict[str, str]) -> None:
    """The API server takes anything for these two: they must not become a request."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "sweep", "controller": True} | reference
    assert member_of(yaml.safe_dump(owner, default_flow_style=True, width=10_000), INDEX) is None


@pytest.mark.parametrize("version", ["v1", "v2", "v1beta1", "v2alpha12"])
def test_an_owner_is_read_in_the_version_that_it_is_referred_to_by(version: str) -> None:
    member = member_of(JOB.replace("v1", version), INDEX)
    assert member is not None and member.owner is not None
    assert member.owner.resource.path("ml", "sweep") == f"/apis/batch/{version}/namespaces/ml/jobs/sweep"
