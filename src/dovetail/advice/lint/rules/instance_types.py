# SPDX-License-Identifier: Apache-2.0
"""The rule about GPUs of the selected instance type: more than one instance has.

The types and their GPUs are those of the built-in table of clouds. A type that is not in it is not judged. With nodes
the rules about nodes know better. It is a guess, as a device plugin may offer a GPU several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import REQUIRED, asked
from dovetail.core.model import GPU

_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_COUNTS = ("cloud.google.com/gke-accelerator-count", "karpenter.k8s.aws/instance-gpu-count")
_SHARING = "gke-gpu-sharing-strategy"


def _more_than_one_has(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    wanted, field = asked(pod).get(GPU, (0, None))
    if field is None or facts.nodes:
        return
    selected = dict(_selected(pod))
    if any(key.endswith(_SHARING) for key in selected):
        return
    for key, values in selected.items():
        has = [_gpus(key, value.text) for value in values]
        most = max((one for one in has if one is not None), default=0)
        if not has or None in has or wanted <= most:
            continue
        names = " and ".join(value.text for value in values)
        what = f"the nodes with {key} {names} have" if key in _COUNTS else f"{names} has"
        larger = _larger(values[0].text, wanted)
        advice = f"select {larger}, or use more pods" if larger else "use more pods"
        message = f"the pod requests {wanted} GPUs, and {what} {most}: {advice}"
        yield RuleMatch(field, message, guess=True)


def _selected(pod: Template) -> Iterator[tuple[str, list[Field]]]:
    """(label, its allowed values) of each label that the pod requires; of affinity only a single term, as several are
    alternatives."""
    for key, value in pod.spec.at("nodeSelector").entries():
        yield key, [value]
    terms = list(pod.spec.at("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms").each())
    for entry in terms[0].at("matchExpressions").each() if len(terms) == 1 else ():
        if entry.at("operator").text == "In":
            yield entry.at("key").text, list(entry.at("values").each())


def _gpus(key: str, value: str) -> int | None:
    """The GPUs of one node; None if the label does not show them, or the type is unknown."""
    if key in _TYPES:
        return _table().get(value)
    return int(value) if key in _COUNTS and value.isdecimal() else None


def _larger(instance_type: str, gpus: int) -> str:
    """The smallest type of the same family with this many GPUs; "" if there is none."""
    family = instance_type.partition(".")[0] if "." in instance_type else instance_type.rpartition("-")[0]
    fitting = [
        (has, name) for name, has in _table().items() if family and name.startswith(family + name[len(family) :][:1])
        and name[len(family) :][:1] in (".", "-") and has >= gpus
    ]  # fmt: skip
    return min(fitting, default=(0, ""))[1]


@cache
def _table() -> Mapping[str, int]:
    """The GPUs of each instance type; a part of a GPU counts as one."""
    # Imported here: most manifests select no instance type.
    from dovetail.advice.prices import built_in

    return {one.instance_type: max(1, one.gpu_milli // 1000) for one in built_in()}


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  nodeSelector: {{node.kubernetes.io/instance-type: {0}}}
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {{limits: {{nvidia.com/gpu: 4}}}}
    volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
  volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 8Gi}}}}]
"""

RULES = (
    Rule(
        id="G51",
        level=Severity.ERROR,
        title="The pod requests more GPUs than the selected instance type has",
        effect=(
            "The pod stays Pending: `Insufficient nvidia.com/gpu`, and an autoscaler adds no node: `pod didn't trigger "
            "scale-up`."
        ),
        bad=_POD.format("g5.xlarge"),
        good=_POD.format("g5.12xlarge"),
        template=_more_than_one_has,
        source="docs/reference/instances.md",
    ),
)
