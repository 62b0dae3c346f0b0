# SPDX-License-Identifier: Apache-2.0
"""The rule about a job on several nodes whose pods do not start together.

A job spans nodes if its command has `--nnodes` of two or more, or if it is one of Kubeflow's with several GPU pods. It
has a gang if its scheduler makes one of the object, if a label, an annotation or a field names one, or if Kueue holds
it until all of it fits; an elastic job starts with some. An operator that is configured for gangs is not seen in a
manifest, so this is no more than a hint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.inventory import DEFAULT_SCHEDULER
from dovetail.advice.lint.peers import peers_of
from dovetail.advice.lint.pods import Template, templates_of, words_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.rules.gangs import GROUPS, declared_by

_NODES = re.compile(r"--nnodes[= ]+(\d{1,5})\b(?!:)")
_DOVETAIL = "dovetail"
_GANG = "dovetail.dev/gang"
_HOLDS = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name")
_MADE = ("ray.io", "trainer.kubeflow.org")
"""Groups whose other kinds make a RayCluster or a JobSet, which are gangs."""
_WRAPPED = ("spec", "components")


def _one_by_one(whole: Field, _: Facts) -> Iterator[RuleMatch]:
    pods = [pod for pod in templates_of(whole) if pod.gpu_containers and not pod.partial]
    nodes = max((_nodes(pod) for pod in pods), default=1)
    if pods and pods[0].group_kind[0] == "kubeflow.org":
        nodes = max(nodes, sum(peers_of(pod) for pod in pods))
    if nodes > 1 and not _has_gang(whole, pods):
        message = (
            f"the pods on {nodes} nodes are bound one by one, and the first hold GPUs until the last has its own: "
            "name a scheduler with gangs, such as dovetail, or a PodGroup; not if the job's operator does"
        )
        yield RuleMatch(pods[0].spec.at("schedulerName"), message)


def _nodes(pod: Template) -> int:
    found = (_NODES.search(words_of(container)) for container in pod.gpu_containers)
    return max((int(one[1]) for one in found if one is not None), default=1)


def _has_gang(whole: Field, pods: list[Template]) -> bool:
    named = {pod.spec.at("schedulerName").text for pod in pods}
    if not named <= {"", DEFAULT_SCHEDULER, _DOVETAIL} or pods[0].group_kind[0] == "batch.volcano.sh":
        return True
    policy = whole.at("spec", "runPolicy")
    metas = [whole.at("metadata"), *(pod.meta for pod in pods)]
    return (
        (named == {_DOVETAIL} and _is_gang(whole, pods))
        or whole.path[:2] == _WRAPPED
        or bool(whole.at("spec", "elasticPolicy"))
        or bool(policy.at("schedulingPolicy") or policy.at("managedBy") or whole.at("spec", "podGroupPolicy"))
        or any(meta.at("labels", key) for meta in metas for key in _HOLDS)
        or any(meta.at("annotations", _GANG) for meta in metas)
        or any(pod.spec.at("schedulingGates") or group.joined(pod) for pod in pods for group in GROUPS.values())
    )


def _is_gang(whole: Field, pods: list[Template]) -> bool:
    """Whether the scheduler makes a gang of the object, or of the one that it makes."""
    group, kind = pods[0].group_kind
    declared = declared_by(whole)
    indexed = kind == "CronJob" and peers_of(pods[0]) > 1
    return (declared is not None and not declared.alone) or indexed or group in _MADE


_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  backoffLimit: 4
  template:
    spec:
      restartPolicy: Never
      priorityClassName: batch
{0}      containers:
      - name: train
        image: registry.example.com/train:1.4
        command: [torchrun, --nnodes=4, --nproc-per-node=1, train.py]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G52",
        level=Severity.INFO,
        title="The pods of a job on several nodes do not start together",
        effect=(
            "Two such jobs can each hold half of the GPUs and wait for the other half; a job that does not fit holds "
            "GPUs without working."
        ),
        bad=_JOB.format(""),
        good=_JOB.format("      schedulerName: dovetail\n"),
        whole=_one_by_one,
        source="docs/reference/gangs.md",
    ),
)
