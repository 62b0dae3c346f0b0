# SPDX-License-Identifier: Apache-2.0
"""The settings that a job's manifest lacks to survive an interruption, and the edits that add them.

Checked in each pod template (only for containers with GPUs, if there are any): storage for checkpoints that outlives
the pod, a hook that saves a checkpoint at termination, and enough grace period for that. Checked in the object: whether
an interruption counts as a failure of the job.

Not checked: whether the program saves and restores checkpoints, as a manifest does not show that. The restart rules of
JobSet, Kubeflow, LeaderWorkerSet, KubeRay and Volcano follow their documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import ceil

from msgspec import Struct

from dovetail.advice.lint.edits import Edit, append, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import templates_of
from dovetail.advice.spot_nodes import spot_nodes
from dovetail.kube.manifests.templates import group_kind

_DEFAULT_GRACE_S = 30
_SPARE_S = 30
"""Grace period beyond the time to save, for checkpoints that take a little longer."""
_RESTARTS = 10
_VOLUME = "checkpoints"
_MOUNTED = "/checkpoints"
# Volumes that are deleted with the pod, stay on its node, or are read-only.
_LOST = {"emptyDir", "hostPath", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image", "name"}
_OBJECT_STORE = re.compile(r"\b(s3|gs|gcs|az|abfss?|wasbs|hdfs|oci)://")
_GPU = re.compile(r"gpu|nvidia\.com/mig-")


class Means(Struct, frozen=True):
    """Input from the owner of the job: `save_s` is the time to save a checkpoint, `claim` the PersistentVolumeClaim for
    checkpoints, `command` the command that saves one. "" means not specified."""

    save_s: float
    claim: str = ""
    command: str = ""


class Lack(Struct, frozen=True):
    """A missing or wrong setting. `field` is its place, `what` describes the problem and the fix; `edits` make the fix
    if it is known."""

    field: Field
    what: str
    edits: tuple[Edit, ...] = ()


def lacks(whole: Field, means: Means) -> Iterator[Lack]:
    """The missing settings, those of the object first. For a kind that is not in `RULES`, only those of its pods."""
    rule = RULES.get(group_kind(whole.value))
    if rule is not None:
        yield from rule(whole)
    for pod in templates_of(whole):
        yield from pod_lacks(pod.spec, means)


def pod_lacks(spec: Field, means: Means) -> Iterator[Lack]:
    """The settings that the spec of a pod lacks, independent of the kind of its owner."""
    everything = [one for one in spec.at("containers").each() if isinstance(one.value, dict)]
    volumes = {volume.at("name").text: volume.value for volume in spec.at("volumes").each()}
    kept = {name for name, volume in volumes.items() if isinstance(volume, dict) and not volume.keys() <= _LOST}
    for container in [one for one in everything if _GPU.search(str(one.at("resources").value))] or everything:
        mounts = container.at("volumeMounts").each()
        stored = any(mount.at("name").text in kept and not mount.at("readOnly").value for mount in mounts)
        words = [container.at(side).value for side in ("command", "args", "env")]
        if not stored and not _OBJECT_STORE.search(str(words)):
            what = "checkpoints would be lost with the pod: mount a PersistentVolumeClaim, or name an object store"
            yield Lack(container.at("volumeMounts"), what, _mounted(spec, container, means.claim, _VOLUME in volumes))
        hook = container.at("lifecycle", "preStop")
        if not hook.value:
            what = "no preStop hook saves a checkpoint: add one, unless the program saves on SIGTERM as process 1"
            run = {"exec": {"command": ["/bin/sh", "-c", means.command]}}
            yield Lack(hook, what, (put(hook, run),) if means.command else ())
    grace = spec.at("terminationGracePeriodSeconds")
    seconds = _DEFAULT_GRACE_S if not grace else grace.whole
    wanted_s, spot = ceil(means.save_s) + _SPARE_S, spot_nodes(spec)
    if spot is not None:
        nodes, field = spot
        wanted_s = min(wanted_s, nodes.notice_s)
        if nodes.notice_s < means.save_s:
            what = (
                f"{nodes.cloud} takes a spot node {nodes.notice_s} s after its notice, and a checkpoint takes "
                f"{means.save_s:g} s: no grace period saves it; count on the last periodic checkpoint"
            )
            yield Lack(field, what)
            return
    if seconds is not None and seconds < means.save_s:
        default = "" if grace else ", the default,"
        what = f"{seconds} s{default} to end, and a checkpoint takes {means.save_s:g} s: the last one is incomplete"
        yield Lack(grace, what, (put(grace, wanted_s),))


def _mounted(spec: Field, container: Field, claim: str, named: bool) -> tuple[Edit, ...]:
    """The edits that mount the claim in the container; none without a claim, or if another volume has the name."""
    if not claim:
        return ()
    volume = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}
    ours = any(one.value == volume for one in spec.at("volumes").each())
    if named and not ours:
        return ()
    mount = append(container.at("volumeMounts"), {"name": _VOLUME, "mountPath": _MOUNTED})
    return (mount,) if ours else (mount, append(spec.at("volumes"), volume))


def _alone(pod: Field) -> Iterator[Lack]:
    yield Lack(pod.at("kind"), "nothing creates an interrupted Pod again: use a Job")


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
    # The API server accepts such a policy only with restartPolicy: Never.
    never = spec.at("template", "spec", "restartPolicy").text == "Never"
    edits = (append(policy.at("rules"), ignore),) if never else ()
    yield Lack(policy, what + "ignore the condition DisruptionTarget (needs restartPolicy: Never)", edits)


def _cron_job(whole: Field) -> Iterator[Lack]:
    yield from _job(whole.at("spec", "jobTemplate"))


def _job_set(whole: Field) -> Iterator[Lack]:
    restarts = whole.at("spec", "failurePolicy", "maxRestarts")
    if not restarts.value:
        what = "the first failed Job ends the JobSet: set how often it restarts"
        yield Lack(restarts, what, (put(restarts, _RESTARTS),))
    for replicated in whole.at("spec", "replicatedJobs").each():
        yield from _job(replicated.at("template"))


def _training(whole: Field) -> Iterator[Lack]:
    for key, replicas in whole.at("spec").entries():
        for _, replica in replicas.entries() if key.endswith("ReplicaSpecs") else ():
            policy = replica.at("restartPolicy")
            if policy.value in (None, "Never"):
                value = "Never ends the job" if policy else "is not set, and the default depends on the kind"
                yield Lack(policy, f"{value}: write OnFailure, or ExitCode", (put(policy, "OnFailure"),))


def _leader_worker_set(whole: Field) -> Iterator[Lack]:
    policy = whole.at("spec", "leaderWorkerTemplate", "restartPolicy")
    if policy.text == "None":
        what = "the other pods of a group run on without the interrupted pod: write RecreateGroupOnPodRestart"
        yield Lack(policy, what, (put(policy, "RecreateGroupOnPodRestart"),))


def _ray_cluster(whole: Field) -> Iterator[Lack]:
    options = whole.at("spec", "gcsFaultToleranceOptions")
    if not options.value:
        yield Lack(
            options, "an interruption of the head loses all state: keep it off spot, or store its state in Redis"
        )


def _ray_job(whole: Field) -> Iterator[Lack]:
    limit = whole.at("spec", "backoffLimit")
    if not limit.value:
        what = "the first interruption of the head or of the submitter ends the job: set how often it restarts"
        yield Lack(limit, what, (put(limit, _RESTARTS),))


def _volcano_job(whole: Field) -> Iterator[Lack]:
    """https://volcano.sh/en/docs/vcjob/: policies of the job and of its tasks, by event."""
    spec = whole.at("spec")
    places = (spec.at("policies"), *(task.at("policies") for task in spec.at("tasks").each()))
    for policy in (one for policies in places for one in policies.each()):
        events = [policy.at("event").text, *(event.text for event in policy.at("events").each())]
        if policy.at("action").text.startswith("Restart") and {"PodEvicted", "PodFailed", "*"} & set(events):
            return
    what = "no policy restarts the job when a pod is evicted: on PodEvicted, RestartJob"
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
"""The check of each kind: bare Pods, and kinds that run to completion."""
