# SPDX-License-Identifier: Apache-2.0
"""The pods that controllers make of a workload, by its kind.

Rules
- A pod has the name, labels, annotations and owner that its controller gives it, as far as no uid and no hash is in
  them. Where an API server would add five random characters to a name, the number of the pod is in their place; a pod
  with a completion index has nothing there, so that its name is its host name. The template hash of a Deployment is
  `new`.
- Kinds that make pods later or on each node (CronJob, DaemonSet, autoscalers) make none here. Volume claim templates
  are left out. The affinity of `exclusive-topology` is in `exclusive`; kinds of serving stacks are in
  `serving_workloads`.
Sources: kubernetes/kubernetes pkg/controller/{job,replicaset,deployment,statefulset}; kubernetes-sigs/jobset
pkg/controllers/jobset_controller.go and its defaults in pkg/webhooks; kubeflow/trainer, branch release-1.9,
pkg/controller.v1; kubeflow/mpi-operator pkg/controller/mpi_job_controller.go; ray-project/kuberay
ray-operator/controllers/ray/common/pod.go; volcano-sh/volcano pkg/controllers/job/job_controller_{util,actions}.go and
pkg/webhooks/admission/jobs/mutate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from dovetail.kube.gangs.made_for import TEMPLATE_HASH
from dovetail.kube.gangs.owners import (
    COMPLETION_INDEX,
    JOB_LABEL,
    JOBSET_LABEL,
    OLD_JOB_LABEL,
    RAY_LABEL,
    TRAINING_LABEL,
)
from dovetail.kube.manifests.exclusive import JOB_KEY, alone_in, domain_of
from dovetail.kube.manifests.made import MadePod, MadePods, Maker, Manifest, WorkloadObject
from dovetail.kube.manifests.parts import ManifestPart
from dovetail.kube.manifests.serving_workloads import SERVING_MAKERS

_POD_GROUP = "scheduling.volcano.sh/v1beta1", "PodGroup"
_HASH = "new"


def _pods_of_job(job: ManifestPart) -> tuple[str, int]:
    """The path of the field that limits the pods of a Job, and their number."""
    parallelism = job.number("parallelism", 1)
    completions = job.number("completions", parallelism)
    return f"{job.path}.{'completions' if completions < parallelism else 'parallelism'}", min(parallelism, completions)


def _pod_of_job(name: str, job: ManifestPart, i: int, indexed: bool) -> MadePod:
    index = {COMPLETION_INDEX: str(i)} if indexed else {}
    labels = {JOB_LABEL: name, OLD_JOB_LABEL: name, **index}
    return MadePod(
        f"{name}-{i}", ("batch/v1", "Job", name), labels, index, {"hostname": f"{name}-{i}"} if indexed else {}
    )


def _job(workload: WorkloadObject) -> Iterator[MadePods]:
    job, name = workload.spec, workload.name
    field, count = _pods_of_job(job)
    indexed = job.value.get("completionMode") == "Indexed"
    yield MadePods(field, count, job.inner("template"), lambda i: _pod_of_job(name, job, i, indexed))


def _jobset(workload: WorkloadObject) -> Iterator[MadePods]:
    replicated = list(workload.spec.items("replicatedJobs"))
    jobs = sum(one.number("replicas", 1) for one in replicated)
    first = 0
    for one in replicated:
        yield _replicated_job(workload, one, first, jobs)
        first += one.number("replicas", 1)


def _replicated_job(workload: WorkloadObject, replicated: ManifestPart, first: int, jobs: int) -> MadePods:
    """The pods of the Jobs of one entry, the first of which has the index `first` among all `jobs`."""
    jobset, part, replicas = workload.name, replicated.text("name"), replicated.number("replicas", 1)
    template = replicated.inner("template")
    job = template.inner("spec")
    _, count = _pods_of_job(job)
    # The webhook of JobSet makes Jobs indexed where they have no completion mode.
    indexed = job.text("completionMode", "Indexed") == "Indexed"
    domain = domain_of(workload.whole, template)
    pod_spec = job.inner("template").inner("spec")

    def pod(i: int) -> MadePod:
        k, index = divmod(i, count)
        one = _pod_of_job(f"{jobset}-{part}-{k}", job, index, indexed)
        marks = {
            JOBSET_LABEL: jobset,
            "jobset.sigs.k8s.io/replicatedjob-name": part,
            "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicas),
            "jobset.sigs.k8s.io/global-replicas": str(jobs),
            "jobset.sigs.k8s.io/job-index": str(k),
            "jobset.sigs.k8s.io/job-global-index": str(first + k),
            "jobset.sigs.k8s.io/restart-attempt": "0",
        }
        one = replace(one, labels={**one.labels, **marks}, annotations={**one.annotations, **marks})
        if not domain:
            return one
        # JobSet writes a hash of it.
        job_key = f"{workload.namespace}.{jobset}-{part}-{k}"
        affinity = alone_in(domain, JOB_KEY, job_key, pod_spec, first=index == 0, namespaceSelector={})
        return replace(one, labels={**one.labels, JOB_KEY: job_key}, spec={**one.spec, "affinity": affinity})

    return MadePods(f"{replicated.path}.replicas", replicas * count, job.inner("template"), pod)


def _replica_set(
    workload: WorkloadObject, name: str = "", labels: Mapping[str, str] | None = None
) -> Iterator[MadePods]:
    """The pods of a ReplicaSet of this name, or of the ReplicaSet or ReplicationController that the workload is."""
    spec = workload.spec
    owner = ("apps/v1", "ReplicaSet", name) if name else workload.itself

    def pod(i: int) -> MadePod:
        return MadePod(f"{owner[2]}-{i}", owner, labels or {})

    yield MadePods("spec.replicas", spec.number("replicas", 1), spec.inner("template"), pod)


def _deployment(workload: WorkloadObject) -> Iterator[MadePods]:
    return _replica_set(workload, f"{workload.name}-{_HASH}", {TEMPLATE_HASH: _HASH})


def _stateful_set(workload: WorkloadObject) -> Iterator[MadePods]:
    spec, name = workload.spec, workload.name
    start = spec.inner("ordinals", {}).number("start", 0)

    def pod(i: int) -> MadePod:
        own = f"{name}-{start + i}"
        labels = {"statefulset.kubernetes.io/pod-name": own, "apps.kubernetes.io/pod-index": str(start + i)}
        return MadePod(own, workload.itself, labels, spec={"hostname": own})

    yield MadePods("spec.replicas", spec.number("replicas", 1), spec.inner("template"), pod)


def _training(field: str) -> Maker:
    def make(workload: WorkloadObject) -> Iterator[MadePods]:
        specs = workload.spec.inner(field)
        for role in specs.value:
            replica = specs.inner(role)
            yield _replica(workload, replica, role.lower())

    return make


def _replica(workload: WorkloadObject, replica: ManifestPart, role: str) -> MadePods:
    """The pods of one role, by the training operator."""
    name = workload.name

    def pod(i: int) -> MadePod:
        labels = {
            TRAINING_LABEL: name,
            "training.kubeflow.org/operator-name": f"{workload.kind.lower()}-controller",
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": str(i),
            **({"training.kubeflow.org/job-role": "master"} if role == "master" else {}),
        }
        return MadePod(f"{name}-{role}-{i}", workload.itself, labels)

    return MadePods(f"{replica.path}.replicas", replica.number("replicas", 1), replica.inner("template"), pod)


def _mpi_job(workload: WorkloadObject) -> Iterator[MadePods | Manifest]:
    """By the mpi-operator from v2 on, before by the training operator."""
    if not workload.api_version.startswith("kubeflow.org/v2"):
        yield from _training("mpiReplicaSpecs")(workload)
        return
    specs, name = workload.spec.inner("mpiReplicaSpecs"), workload.name
    launcher, worker = specs.inner("Launcher"), specs.inner("Worker", {})
    marks = {TRAINING_LABEL: name, "training.kubeflow.org/operator-name": "mpi-operator"}
    role = "training.kubeflow.org/job-role"

    def launched(i: int) -> MadePod:
        pod = _pod_of_job(f"{name}-launcher", launcher, i, indexed=False)
        return replace(pod, labels={**pod.labels, **marks, role: "launcher"})

    def worked(i: int) -> MadePod:
        labels = {**marks, role: "worker", "training.kubeflow.org/replica-index": str(i)}
        return MadePod(f"{name}-worker-{i}", workload.itself, labels)

    yield MadePods(f"{launcher.path}.replicas", 1, launcher.inner("template"), launched)
    workers = worker.number("replicas", 0)
    if workers:
        yield MadePods(f"{worker.path}.replicas", workers, worker.inner("template"), worked)


def _ray_cluster(workload: WorkloadObject) -> Iterator[MadePods]:
    name = workload.name

    def pods(part: ManifestPart, count: int, group: str, stem: str, node_type: str) -> MadePods:
        labels = {
            RAY_LABEL: name, "ray.io/group": group, "ray.io/node-type": node_type, "ray.io/is-ray-node": "yes",
            "ray.io/identifier": f"{name}-{node_type}",
        }  # fmt: skip
        field = f"{part.path}.replicas"
        return MadePods(field, count, part.inner("template"), lambda i: MadePod(f"{stem}-{i}", workload.itself, labels))

    yield pods(workload.spec.inner("headGroupSpec"), 1, "headgroup", f"{name}-head", "head")
    for one in workload.spec.items("workerGroupSpecs"):
        group = one.text("groupName")
        count = one.number("replicas", 0) * one.number("numOfHosts", 1)
        if one.value.get("suspend") is not True:
            yield pods(one, count, group, f"{name}-{group}-worker", "worker")


def _tasks(workload: WorkloadObject) -> Iterator[tuple[ManifestPart, str, int]]:
    """(task, name, replicas) with the defaults of Volcano's webhook."""
    for i, task in enumerate(workload.spec.items("tasks")):
        yield task, task.text("name") or f"default{i}", task.number("replicas", 1)


def _volcano_job(workload: WorkloadObject) -> Iterator[MadePods | Manifest]:
    yield _pod_group(workload)
    queue = workload.spec.text("queue") or "default"
    inherited = {
        field: workload.spec.text(field) for field in ("schedulerName", "priorityClassName") if workload.spec.has(field)
    }
    for task, task_name, replicas in _tasks(workload):
        yield _volcano_task(workload, task, task_name, replicas, queue, inherited)


def _volcano_task(
    workload: WorkloadObject,
    task: ManifestPart,
    task_name: str,
    replicas: int,
    queue: str,
    inherited: Mapping[str, str],
) -> MadePods:
    name, template = workload.name, task.inner("template")
    own = template.inner("spec").value
    spec = {field: value for field, value in inherited.items() if not own.get(field)}

    def pod(i: int) -> MadePod:
        marks = {
            "volcano.sh/job-name": name, "volcano.sh/queue-name": queue, "volcano.sh/task-spec": task_name,
            "volcano.sh/task-index": str(i),
        }  # fmt: skip
        labels = {**marks, "volcano.sh/job-namespace": workload.namespace}
        annotations = {**marks, "scheduling.k8s.io/group-name": name, "volcano.sh/template-uid": f"{name}-{task_name}"}
        return MadePod(f"{name}-{task_name}-{i}", workload.itself, labels, annotations, spec)

    return MadePods(f"{task.path}.replicas", replicas, template, pod)


def _pod_group(workload: WorkloadObject) -> Manifest:
    """Volcano's PodGroup of a Job. Its name ends in the uid of the Job, which does not exist yet: it is left out."""
    least = {name: task.number("minAvailable", replicas) for task, name, replicas in _tasks(workload)}
    spec = {
        "minMember": workload.spec.number("minAvailable", 0) or sum(least.values()),
        "minTaskMember": least,
        "queue": workload.spec.text("queue") or "default",
        "priorityClassName": workload.spec.text("priorityClassName"),
    }
    return workload.made(*_POD_GROUP, workload.name, spec)


MAKERS: dict[tuple[str, str], Maker] = {
    ("", "ReplicationController"): _replica_set,
    ("apps", "ReplicaSet"): _replica_set,
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("batch", "Job"): _job,
    ("jobset.x-k8s.io", "JobSet"): _jobset,
    ("ray.io", "RayCluster"): _ray_cluster,
    ("batch.volcano.sh", "Job"): _volcano_job,
    ("kubeflow.org", "MPIJob"): _mpi_job,
    ("kubeflow.org", "PyTorchJob"): _training("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _training("tfReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _training("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _training("paddleReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _training("jaxReplicaSpecs"),
    **SERVING_MAKERS,
}
