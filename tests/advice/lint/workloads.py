# SPDX-License-Identifier: Apache-2.0
"""Objects of many kinds around one pod template: several pods where the kind can have several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
PODS = 4
_OF_ARGO = (
    "nodeSelector", "tolerations", "affinity", "volumes", "initContainers", "schedulerName", "priorityClassName",
    "securityContext",
)  # fmt: skip
_OF_TEKTON = (
    "nodeSelector", "tolerations", "affinity", "schedulerName", "priorityClassName", "hostNetwork", "dnsPolicy",
    "runtimeClassName", "securityContext", "topologySpreadConstraints",
)  # fmt: skip

_OF_TRAIN_JOB = ("nodeSelector", "tolerations", "affinity", "volumes")


def _job_spec(pod: Json) -> Json:
    never = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    wide = {"parallelism": PODS, "completions": PODS, "completionMode": "Indexed"}
    return {**wide, "podFailurePolicy": never, "template": pod}


def _kubeflow(replicas: str, role: str = "Worker") -> Callable[[Json], Json]:
    return lambda pod: {replicas: {role: {"replicas": PODS, "template": pod}}}


def _job_set(pod: Json) -> Json:
    return {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": _job_spec(pod)}}]}


def _ray(pod: Json) -> Json:
    head = {"spec": {"containers": [{"name": "head", "image": "registry.example.com/ray:2"}]}}
    return {
        "headGroupSpec": {"template": head},
        "workerGroupSpecs": [{"groupName": "gpu", "replicas": PODS, "template": pod}],
    }


def _predictor(pod: Json) -> Json:
    return {"predictor": {**pod.get("metadata", {}), **pod["spec"]}}


def _served_model(pod: Json) -> Json:
    container, *others = pod["spec"]["containers"]
    model = {"modelFormat": {"name": "huggingface"}, **container}
    return {"predictor": {**pod.get("metadata", {}), **pod["spec"], "containers": others, "model": model}}


def _some(pod: Json, names: tuple[str, ...]) -> Json:
    return {name: pod["spec"][name] for name in names if name in pod["spec"]}


def _workflow(pod: Json) -> Json:
    container, *sidecars = pod["spec"]["containers"]
    template = {"name": "train", "metadata": pod.get("metadata", {}), "container": container, "sidecars": sidecars}
    return {
        "entrypoint": "train", **_some(pod, ("hostNetwork", "dnsPolicy")),
        "templates": [template | _some(pod, _OF_ARGO)],
    }  # fmt: skip


def _task_run(pod: Json) -> Json:
    steps = [{**one, "computeResources": one.get("resources")} for one in pod["spec"]["containers"]]
    for step in steps:
        step.pop("resources", None)
    return {
        "podTemplate": _some(pod, _OF_TEKTON),
        "taskSpec": {"steps": steps, "volumes": pod["spec"].get("volumes", [])},
    }


def _train_job(pod: Json) -> Json:
    container = pod["spec"]["containers"][0]
    trainer = {key: container[key] for key in ("image", "command", "args", "env") if key in container}
    trainer |= {"numNodes": PODS, "resourcesPerNode": container.get("resources", {})}
    patch = {"targetJobs": [{"name": "node"}], "spec": _some(pod, _OF_TRAIN_JOB)}
    meta = pod.get("metadata", {})
    return {"runtimeRef": {"name": "torch-distributed"}, **meta, "trainer": trainer, "podTemplateOverrides": [patch]}


_SPECS: dict[tuple[str, str], Callable[[Json], Json]] = {
    ("v1", "ReplicationController"): lambda pod: {"replicas": PODS, "template": pod},
    **{
        ("apps/v1", kind): lambda pod: {"replicas": PODS, "template": pod}
        for kind in ("Deployment", "StatefulSet", "ReplicaSet")
    },
    ("apps/v1", "DaemonSet"): lambda pod: {"template": pod},
    ("batch/v1", "Job"): _job_spec,
    ("batch/v1", "CronJob"): lambda pod: {"jobTemplate": {"spec": _job_spec(pod)}},
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _job_set,
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): lambda pod: {
        "leaderWorkerTemplate": {"size": PODS, "workerTemplate": pod}
    },
    ("kubeflow.org/v2beta1", "MPIJob"): _kubeflow("mpiReplicaSpecs"),
    ("kubeflow.org/v1", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs"),
    ("kubeflow.org/v1", "TFJob"): _kubeflow("tfReplicaSpecs"),
    ("kubeflow.org/v1", "XGBoostJob"): _kubeflow("xgbReplicaSpecs"),
    ("kubeflow.org/v1", "PaddleJob"): _kubeflow("paddleReplicaSpecs"),
    ("kubeflow.org/v1", "JAXJob"): _kubeflow("jaxReplicaSpecs"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): lambda pod: {"template": {"spec": _job_set(pod)}},
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): _train_job,
    ("ray.io/v1", "RayCluster"): _ray,
    ("ray.io/v1", "RayJob"): lambda pod: {"rayClusterSpec": _ray(pod)},
    ("ray.io/v1", "RayService"): lambda pod: {"rayClusterConfig": _ray(pod)},
    ("batch.volcano.sh/v1alpha1", "Job"): lambda pod: {"tasks": [{"name": "a", "replicas": PODS, "template": pod}]},
    ("serving.knative.dev/v1", "Service"): lambda pod: {"template": pod},
    ("kubeflow.org/v1", "Notebook"): lambda pod: {"template": pod},
    ("argoproj.io/v1alpha1", "Rollout"): lambda pod: {"replicas": PODS, "template": pod},
    ("argoproj.io/v1alpha1", "Workflow"): _workflow,
    ("argoproj.io/v1alpha1", "CronWorkflow"): lambda pod: {"workflowSpec": _workflow(pod)},
    ("serving.kserve.io/v1beta1", "InferenceService"): _predictor,
}


def _task(pod: Json) -> Json:
    task = _object("tekton.dev/v1", "TaskRun", _task_run(pod))
    return task | {"metadata": {"name": "planted", **pod.get("metadata", {})}}


def _object(api: str, kind: str, spec: Json) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "planted"}, "spec": spec}


def _pod(pod: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "planted", **pod.get("metadata", {})}}


def _pod_template(pod: Json) -> Json:
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "planted"}, "template": pod}


def _wrapped(pod: Json) -> Json:
    job = _object("batch/v1", "Job", _job_spec(pod))
    return _object("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": job}]})


def _of(api: str, kind: str, spec: Callable[[Json], Json]) -> Callable[[Json], Json]:
    return lambda pod: _object(api, kind, spec(pod))


WORKLOADS: Mapping[str, Callable[[Json], Json]] = {
    "Pod": _pod,
    "PodTemplate": _pod_template,
    **{f"Volcano{kind}" if "volcano" in api else kind: _of(api, kind, of) for (api, kind), of in _SPECS.items()},
    "InferenceService of a model": _of("serving.kserve.io/v1beta1", "InferenceService", _served_model),
    "TaskRun": _task,
    "AppWrapper": _wrapped,
    "an unknown kind": _of("example.com/v1", "Robot", lambda pod: {"roles": [pod]}),
}
"""By name of the kind, an object with pods of the template."""
