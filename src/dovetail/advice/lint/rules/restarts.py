# SPDX-License-Identifier: Apache-2.0
"""The rule about restart policies that the kind of object does not take.

A template without one has Always. Containers without an image are a patch, whose policy may be elsewhere; a JobSet and
the operators of other kinds set the policy themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity

_ALWAYS = "Always"
_TO_AN_END = ("OnFailure", "Never")
_TAKEN = {
    **{("batch", kind): _TO_AN_END for kind in ("Job", "CronJob")},
    **{("apps", kind): (_ALWAYS,) for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")},
}
"""By kind. Source: pkg/apis/batch/validation, pkg/apis/apps/validation of https://github.com/kubernetes/kubernetes."""


def _not_taken(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    taken = _TAKEN.get(pod.group_kind)
    if taken is None or not pod.uses_gpu:
        return
    field = pod.spec.at("restartPolicy")
    patch = not all(container.at("image") for container in pod.all_containers)
    if (field.text or _ALWAYS) not in taken and (field or not patch):
        kind = pod.group_kind[1]
        what = f"{field.value} is none" if field else f"the default {_ALWAYS} is none"
        yield RuleMatch(field, f"{what} that a {kind} takes: write {' or '.join(reversed(taken))}")


_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  backoffLimit: 4
  template:
    spec:
      priorityClassName: batch
{0}      containers:
      - name: train
        image: registry.example.com/train:1.4
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G59",
        level=Severity.ERROR,
        title="The kind of object does not take the restart policy of its pods",
        effect=(
            "The API server refuses the object: `spec.template.spec.restartPolicy: Unsupported value: \"Always\": "
            "supported values: \"OnFailure\", \"Never\"`."
        ),
        bad=_JOB.format(""),
        good=_JOB.format("      restartPolicy: Never\n"),
        template=_not_taken,
        source="https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-template",
    ),
)  # fmt: skip
