# SPDX-License-Identifier: Apache-2.0
"""The pods that do one piece of work together: without one of them the others cannot go on."""

from __future__ import annotations

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, templates_of

_JOB, _CRON_JOB = ("batch", "Job"), ("batch", "CronJob")
_LEADER_WORKER_SET = "LeaderWorkerSet"
_OF_JOB_SETS = "replicatedJobs"
_OF_DYNAMO = (("spec", "services"), ("spec", "components"))


def job_pods(spec: Field) -> int:
    """How many pods a Job with this spec has at a time."""
    width, wanted = _number(spec.at("parallelism")), spec.at("completions").whole
    return width if wanted is None else min(width, wanted)


def peers_of(pod: Template) -> int:
    """How many pods of this template work together, itself included; 1 also where that is unknown. Those of a plain
    Job do if each has an index and all run at once."""
    whole, path = pod.whole, pod.field.path
    group, kind = pod.group_kind
    if pod.peers:
        return pod.peers
    if (group, kind) in (_JOB, _CRON_JOB):
        return _indexed(whole.at("spec") if kind == "Job" else whole.at("spec", "jobTemplate", "spec"))
    if _OF_JOB_SETS in path:
        replicated = whole.at(*path[: path.index(_OF_JOB_SETS) + 2])
        return _number(replicated.at("replicas")) * _number(replicated.at("template", "spec", "parallelism"))
    if group == "kubeflow.org" and kind.endswith("Job"):
        return _number(whole.at(*path[:-1], "replicas"))
    if (group, kind) == ("batch.volcano.sh", "Job"):
        return _number(whole.at(*path[:-1], "replicas"))
    if kind == "TrainJob":
        return _number(pod.field.at("spec", "containers", 0, "numNodes"))
    if kind.startswith("Dynamo"):
        service = path[:3] if path[:2] in _OF_DYNAMO else path[:1]
        return _number(whole.at(*service, "multinode", "nodeCount"))
    if kind == _LEADER_WORKER_SET:
        workers = whole.at("spec", "leaderWorkerTemplate")
        size = _number(workers.at("size"))
        apart = bool(workers.at("leaderTemplate"))
        return 1 if path[-1] == "leaderTemplate" else max(1, size - apart)
    return 1


def sharing_ranks(pod: Template) -> int:
    """Among how many pods the ranks of a server may be divided: by Dynamo's operator, or by a launcher in the pods of a
    group with a leader; 1 for other pods."""
    kind = pod.group_kind[1]
    if kind == _LEADER_WORKER_SET:
        return _number(pod.whole.at("spec", "leaderWorkerTemplate", "size"))
    return peers_of(pod) if kind.startswith("Dynamo") else max(pod.peers, 1)


def work_together(whole: Field) -> bool:
    """Whether the loss of one pod of the object ends the work of others."""
    pods = list(templates_of(whole))
    several = len(pods) > 1 and pods[0].group_kind[0] == "kubeflow.org"
    return several or any(peers_of(pod) > 1 for pod in pods)


def _indexed(spec: Field) -> int:
    width = _number(spec.at("parallelism"))
    return width if spec.at("completionMode").text == "Indexed" and width == spec.at("completions").whole else 1


def _number(field: Field) -> int:
    return 1 if field.whole is None else field.whole
