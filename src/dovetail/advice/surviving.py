# SPDX-License-Identifier: Apache-2.0
"""What a job's manifest lacks to survive an interruption.

Looked at in each pod template, wherever it stands inside of the object, and for containers with GPUs alone where there
are any: a place for checkpoints that outlives the pod, something that saves when the pod is told to end, and the time
for that; and in the object, whether an interruption counts as a failure of the job.

Not known here: what the program itself does. Whether it saves, and reads what it saved, cannot be seen in a manifest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_DEFAULT_GRACE_S = 30
# Volumes that are gone with the pod, or whose content nobody writes.
_LOST = {"emptyDir", "hostPath", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image", "name"}
_OBJECT_STORE = re.compile(r"\b(s3|gs|gcs|az|abfss?|wasbs|hdfs|oci)://")
_GPU = re.compile(r"gpu|nvidia\.com/mig-")


@dataclass(frozen=True, slots=True)
class Lack:
    """`field` is where it would stand, or stands; `what` is missing or wrong, and what to do."""

    field: str
    what: str


def lacks(document: Mapping[str, Any], save_s: float) -> Iterator[Lack]:
    """What is missing, the object's own first. `save_s` is how long a checkpoint takes."""
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    rule = RULES.get((group, str(document.get("kind"))))
    if rule is not None:
        yield from rule(document)
    for path, template in templates(document):
        yield from _pod(f"{path}.spec" if path else "spec", template["spec"], save_s)


def templates(value: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, template) of each pod that the object makes; of a Pod itself the path is empty."""
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from templates(inner, f"{path}[{at}]")
    elif isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield path, value
            return
        for key, inner in value.items():
            yield from templates(inner, f"{path}.{key}" if path else str(key))


def _pod(path: str, spec: Mapping[str, Any], save_s: float) -> Iterator[Lack]:
    everything = [(at, c) for at, c in enumerate(spec["containers"]) if isinstance(c, dict)]
    containers = [(at, c) for at, c in everything if _GPU.search(str(c.get("resources", "")))] or everything
    volumes = {v.get("name"): v for v in _list(spec.get("volumes")) if isinstance(v, dict)}
    kept = {name for name, volume in volumes.items() if not volume.keys() <= _LOST}
    for at, container in containers:
        here = f"{path}.containers[{at}]"
        mounts = [m for m in _list(container.get("volumeMounts")) if isinstance(m, dict)]
        stored = any(m.get("name") in kept and not m.get("readOnly") for m in mounts)
        if not stored and not _OBJECT_STORE.search(str([container.get(k) for k in ("command", "args", "env")])):
            what = "no place for checkpoints outlives the pod: mount a PersistentVolumeClaim, or name an object store"
            yield Lack(f"{here}.volumeMounts", what)
        if not _dict(container.get("lifecycle")).get("preStop"):
            what = "no preStop hook: have one save, unless the program itself saves on SIGTERM as process 1"
            yield Lack(f"{here}.lifecycle.preStop", what)
    grace = spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S)
    if isinstance(grace, int) and grace < save_s:
        default = "" if "terminationGracePeriodSeconds" in spec else ", the default,"
        what = f"{grace} s{default} to end, and a checkpoint takes {save_s:g} s: the last one is cut short"
        yield Lack(f"{path}.terminationGracePeriodSeconds", what)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _alone(_: Mapping[str, Any]) -> Iterator[Lack]:
    yield Lack("kind", "nothing makes a Pod again that was interrupted: have a Job make it")


def _job(job: Mapping[str, Any], path: str = "spec") -> Iterator[Lack]:
    """Since Kubernetes 1.31 stable: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy."""
    spec = job
    for step in path.split("."):
        spec = _dict(spec.get(step))
    rules = [r for r in _list(_dict(spec.get("podFailurePolicy")).get("rules")) if isinstance(r, dict)]
    for rule in rules:
        conditions = [c for c in _list(rule.get("onPodConditions")) if isinstance(c, dict)]
        if rule.get("action") == "Ignore" and any(c.get("type") == "DisruptionTarget" for c in conditions):
            return
    limit = spec.get("backoffLimit", 6)
    what = f"each interruption counts as a failure, of which backoffLimit allows {limit}: "
    yield Lack(f"{path}.podFailurePolicy", what + "ignore the condition DisruptionTarget (needs restartPolicy: Never)")


def _jobset(jobset: Mapping[str, Any]) -> Iterator[Lack]:
    spec = _dict(jobset.get("spec"))
    restarts = _dict(spec.get("failurePolicy")).get("maxRestarts", 0)
    if not restarts:
        what = "the first Job that fails ends the JobSet: say how often all of it starts again"
        yield Lack("spec.failurePolicy.maxRestarts", what)
    for at, replicated in enumerate(_list(spec.get("replicatedJobs"))):
        for lack in _job(_dict(replicated), "template.spec"):
            yield Lack(f"spec.replicatedJobs[{at}].{lack.field}", lack.what)


def _training(job: Mapping[str, Any]) -> Iterator[Lack]:
    spec = _dict(job.get("spec"))
    for key, replicas in spec.items():
        for role, replica in _dict(replicas).items() if key.endswith("ReplicaSpecs") else ():
            policy = _dict(replica).get("restartPolicy")
            if policy in (None, "Never"):
                said = "is not said, and the default depends on the kind" if policy is None else "Never ends the job"
                yield Lack(f"spec.{key}.{role}.restartPolicy", f"{said}: write OnFailure, or ExitCode")


def _leader_worker_set(lws: Mapping[str, Any]) -> Iterator[Lack]:
    policy = _dict(_dict(lws.get("spec")).get("leaderWorkerTemplate")).get("restartPolicy")
    if policy == "None":
        what = "the others of a group go on without the pod that was interrupted: RecreateGroupOnPodRestart"
        yield Lack("spec.leaderWorkerTemplate.restartPolicy", what)


def _ray_cluster(cluster: Mapping[str, Any]) -> Iterator[Lack]:
    if not _dict(cluster.get("spec")).get("gcsFaultToleranceOptions"):
        what = "when the head is interrupted all is lost: keep it off spot, or have its state in Redis"
        yield Lack("spec.gcsFaultToleranceOptions", what)


RULES: dict[tuple[str, str], Callable[[Mapping[str, Any]], Iterator[Lack]]] = {
    ("", "Pod"): _alone,
    ("batch", "Job"): _job,
    ("jobset.x-k8s.io", "JobSet"): _jobset,
    **{("kubeflow.org", f"{kind}Job"): _training for kind in ("MPI", "PyTorch", "TF", "XGBoost", "Paddle", "JAX")},
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("ray.io", "RayCluster"): _ray_cluster,
}
"""Pods on their own, and the kinds of `kube.owners`."""
