# SPDX-License-Identifier: Apache-2.0
"""What a job's manifest lacks to survive an interruption, and what to write.

Looked at in each pod template, and for containers with GPUs alone where there are any: a place for checkpoints that
outlives the pod, something that saves when the pod is told to end, and the time for that; and in the object, whether
an interruption counts as a failure of the job.

Not known here: what the program itself does. Whether it saves, and reads what it saved, cannot be seen in a manifest.
Restart rules of JobSet, Kubeflow, LeaderWorkerSet, KubeRay and Volcano are as their documentation says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import ceil

from msgspec import Struct

from dovetail.advice.lint.edits import Edit, append, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import templates_of
from dovetail.kube.manifests.templates import group_kind

_DEFAULT_GRACE_S = 30
_SPARE_S = 30
"""Grace beyond the saving itself: a checkpoint that takes a little longer is still one."""
_RESTARTS = 10
_VOLUME = "checkpoints"
_MOUNTED = "/checkpoints"
# Volumes that are gone with the pod, or whose content nobody writes.
_LOST = {"emptyDir", "hostPath", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image", "name"}
_OBJECT_STORE = re.compile(r"\b(s3|gs|gcs|az|abfss?|wasbs|hdfs|oci)://")
_GPU = re.compile(r"gpu|nvidia\.com/mig-")


class Means(Struct, frozen=True):
    """What only its owner can say: how long a checkpoint takes; the PersistentVolumeClaim that keeps checkpoints, and
    the command that saves one, "" where they are not told."""

    save_s: float
    claim: str = ""
    command: str = ""


class Lack(Struct, frozen=True):
    """`field` is where it would stand, or stands; `what` is missing or wrong, and what to do; `edits` do it, where what
    to write is known."""

    field: Field
    what: str
    edits: tuple[Edit, ...] = ()


def lacks(whole: Field, means: Means) -> Iterator[Lack]:
    """What is missing, the object's own first; of a kind that is not in `RULES`, only what its pods lack."""
    rule = RULES.get(group_kind(whole.value))
    if rule is not None:
        yield from rule(whole)
    for pod in templates_of(whole):
        yield from pod_lacks(pod.spec, means)


def pod_lacks(spec: Field, means: Means) -> Iterator[Lack]:
    """What the spec of a pod lacks, whatever makes the pod."""
    everything = [one for one in spec.at("containers").each() if isinstance(one.value, dict)]
    volumes = {volume.at("name").text: volume.value for volume in spec.at("volumes").each()}
    kept = {name for name, volume in volumes.items() if isinstance(volume, dict) and not volume.keys() <= _LOST}
    for container in [one for one in everything if _GPU.search(str(one.at("resources").value))] or everything:
        mounts = container.at("volumeMounts").each()
        stored = any(mount.at("name").text in kept and not mount.at("readOnly").value for mount in mounts)
        words = [container.at(side).value for side in ("command", "args", "env")]
        if not stored and not _OBJECT_STORE.search(str(words)):
            what = "no place for checkpoints outlives the pod: mount a PersistentVolumeClaim, or name an object store"
            yield Lack(container.at("volumeMounts"), what, _mounted(spec, container, means.claim, _VOLUME in volumes))
        hook = container.at("lifecycle", "preStop")
        if not hook.value:
            what = "no preStop hook: have one save, unless the program itself saves on SIGTERM as process 1"
            run = {"exec": {"command": ["/bin/sh", "-c", means.command]}}
            yield Lack(hook, what, (put(hook, run),) if means.command else ())
    grace = spec.at("terminationGracePeriodSeconds")
    seconds = _DEFAULT_GRACE_S if not grace else grace.whole
    if seconds is not None and seconds < means.save_s:
        default = "" if grace else ", the default,"
        what = f"{seconds} s{default} to end, and a checkpoint takes {means.save_s:g} s: the last one is cut short"
        yield Lack(grace, what, (put(grace, ceil(means.save_s) + _SPARE_S),))


def _mounted(spec: Field, container: Field, claim: str, named: bool) -> tuple[Edit, ...]:
    """A claim mounted in the container; nothing where no claim is told, or another volume has the name."""
    if not claim:
        return ()
    volume = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}
    ours = any(one.value == volume for one in spec.at("volumes").each())
    if named and not ours:
        return ()
    mount = append(container.at("volumeMounts"), {"name": _VOLUME, "mountPath": _MOUNTED})
    return (mount,) if ours else (mount, append(spec.at("volumes"), volume))


def _alone(pod: Field) -> Iterator[Lack]:
    yield Lack(pod.at("kind"), "nothing makes a Pod again that was interrupted: have a Job make it")


def _job(job: Field) -> Iterator[Lack]:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy, stable since 1.31."""
    spec = job.at("spec")
    policy = spec.at("podFailurePolicy")
    for rule in policy.at("rules").each():
        conditions = rule.at("onPodConditions").each()
        if rule.at("action").text == "Ignore" and any(one.at("type").text == "DisruptionTarget" for one in conditions):
            return
    limit = spec.at("backoffLimit").value
    counted = 6 if limit is None else limit
    what = f"each interruption counts as a failure, of which backoffLimit allows {counted}: "
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    # The API server takes such a policy only of pods that are never restarted in their place.
    never = spec.at("template", "spec", "restartPolicy").text == "Never"
    edits = (append(policy.at("rules"), ignore),) if never else ()
    yield Lack(policy, what + "ignore the condition DisruptionTarget (needs restartPolicy: Never)", edits)


def _cron_job(whole: Field) -> Iterator[Lack]:
    yield from _job(whole.at("spec", "jobTemplate"))


def _job_set(whole: Field) -> Iterator[Lack]:
    restarts = whole.at("spec", "failurePolicy", "maxRestarts")
    if not restarts.value:
        what = "the first Job that fails ends the JobSet: say how often all of it starts again"
        yield Lack(restarts, what, (put(restarts, _RESTARTS),))
    for replicated in whole.at("spec", "replicatedJobs").each():
        yield from _job(replicated.at("template"))


def _training(whole: Field) -> Iterator[Lack]:
    for key, replicas in whole.at("spec").entries():
        for _, replica in replicas.entries() if key.endswith("ReplicaSpecs") else ():
            policy = replica.at("restartPolicy")
            if policy.value in (None, "Never"):
                said = "Never ends the job" if policy else "is not said, and the default depends on the kind"
                yield Lack(policy, f"{said}: write OnFailure, or ExitCode", (put(policy, "OnFailure"),))


def _leader_worker_set(whole: Field) -> Iterator[Lack]:
    policy = whole.at("spec", "leaderWorkerTemplate", "restartPolicy")
    if policy.text == "None":
        what = "the others of a group go on without the pod that was interrupted: RecreateGroupOnPodRestart"
        yield Lack(policy, what, (put(policy, "RecreateGroupOnPodRestart"),))


def _ray_cluster(whole: Field) -> Iterator[Lack]:
    options = whole.at("spec", "gcsFaultToleranceOptions")
    if not options.value:
        yield Lack(options, "when the head is interrupted all is lost: keep it off spot, or have its state in Redis")


def _ray_job(whole: Field) -> Iterator[Lack]:
    limit = whole.at("spec", "backoffLimit")
    if not limit.value:
        what = "the first interruption of the head or of the submitter ends the job: say how often it starts again"
        yield Lack(limit, what, (put(limit, _RESTARTS),))


def _volcano_job(whole: Field) -> Iterator[Lack]:
    """https://volcano.sh/en/docs/vcjob/: policies of the job and of its tasks, by event."""
    spec = whole.at("spec")
    places = (spec.at("policies"), *(task.at("policies") for task in spec.at("tasks").each()))
    for policy in (one for policies in places for one in policies.each()):
        events = [policy.at("event").text, *(event.text for event in policy.at("events").each())]
        if policy.at("action").text.startswith("Restart") and {"PodEvicted", "PodFailed", "*"} & set(events):
            return
    what = "no policy restarts it when a pod is evicted: on PodEvicted, RestartJob"
    policies = spec.at("policies")
    yield Lack(policies, what, (append(policies, {"event": "PodEvicted", "action": "RestartJob"}),))


RULES: dict[tuple[str, str], Callable[[Field], Iterator[Lack]]] = {
    ("", "Pod"): _alone,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    **{("kubeflow.org", f"{kind}Job"): _training for kind in ("MPI", "PyTorch", "TF", "XGBoost", "Paddle", "JAX")},
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("ray.io", "RayCluster"): _ray_cluster,
    ("ray.io", "RayJob"): _ray_job,
    ("batch.volcano.sh", "Job"): _volcano_job,
}
"""Pods on their own, and the kinds that run to an end."""
