# SPDX-License-Identifier: Apache-2.0
"""The rule about names in claims of devices: of claims in the pod, and of device classes.

Drivers install classes that are in no file, so a class is reported only if its name is nearly that of a class of
NVIDIA's driver, or of one among the objects.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.kube.translate.problems import nearest

_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")
_CLASSES = frozenset(
    f"{name}.nvidia.com"
    for name in ("gpu", "mig", "vfio.gpu", "compute-domain-daemon", "compute-domain-default-channel")
)
"""Of https://github.com/NVIDIA/k8s-dra-driver-gpu."""
_SIMILARITY, _MISSPELT = 0.6, 0.95


def _unknown_claim(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    known = [claim.at("name").text for claim in pod.spec.at("resourceClaims").each()]
    for container in () if pod.partial else pod.all_containers:
        for claim in container.at("resources", "claims").each():
            name = claim.at("name")
            if name.text and name.text not in known:
                near = nearest(name.text, known, _SIMILARITY)
                meant = f"did you mean {near}?" if near else "add it to resourceClaims of the pod"
                yield RuleMatch(name, f"the pod has no claim {name.text}: {meant}")


def _unknown_class(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    if whole.at("kind").text not in _CLAIMS:
        return
    known = sorted({*_CLASSES, *(one.at("metadata", "name").text for one in facts.of_kind("DeviceClass"))})
    spec = whole.at("spec", "spec") if whole.at("kind").text == _CLAIMS[1] else whole.at("spec")
    for request in spec.at("devices", "requests").each():
        alternatives = tuple(request.at("firstAvailable").each())
        for one in (request, request.at("exactly"), *alternatives):
            name = one.at("deviceClassName")
            near = nearest(name.text, known, _MISSPELT) if name.text not in known else ""
            if near:
                yield RuleMatch(name, f"no DeviceClass {name.text} is known: did you mean {near}?", guess=True)


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  resourceClaims:
  - {{name: gpu, resourceClaimTemplateName: one-gpu}}
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {{claims: [{{name: {0}}}]}}
"""

RULES = (
    Rule(
        id="G47",
        level=Severity.ERROR,
        title="A container names a claim that the pod does not have, or a claim a device class that does not exist",
        effect=(
            "The API server refuses such a container: `spec.containers[0].resources.claims[0]: Not found`. A claim of "
            "an unknown class is never allocated, and its pods stay Pending."
        ),
        bad=_POD.format("gpus"),
        good=_POD.format("gpu"),
        template=_unknown_claim,
        whole=_unknown_class,
        source="https://github.com/kubernetes/kubernetes: pkg/apis/core/validation, validateResourceClaimNames",
    ),
)
