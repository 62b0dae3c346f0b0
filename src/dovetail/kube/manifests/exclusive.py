# SPDX-License-Identifier: Apache-2.0
"""The affinity of pods whose Job is alone in a domain of a topology, as JobSet's `exclusive-topology` asks for.

JobSet's webhook gives it to the first pod of each Job, and to the others the node selector of that pod's domain once it
is bound. Here these have the affinity to their own Job, which leads to the same domain.
Source: kubernetes-sigs/jobset pkg/webhooks/pod_mutating_webhook.go.
"""

from __future__ import annotations

from typing import Any

from dovetail.kube.gangs.owners import EXCLUSIVE, NODE_SELECTOR_STRATEGY
from dovetail.kube.manifests.parts import ManifestPart

JOB_KEY = "jobset.sigs.k8s.io/job-key"
"""A label whose value each Job has for itself."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def domain_of(*annotated: ManifestPart) -> str:
    """The node label whose domains the Jobs have for themselves, of the first object that names one; "" for none."""
    marks = [_inner(_inner(one, "metadata"), "annotations") for one in annotated]
    if any(mark.has(NODE_SELECTOR_STRATEGY) for mark in marks):
        return ""
    return next((mark.text(EXCLUSIVE) for mark in marks if mark.has(EXCLUSIVE)), "")


def alone_in(domain: str, job_key: str, spec: ManifestPart, *, first: bool) -> dict[str, Any]:
    """The affinity of a pod of the Job with that key, with what the pod template has."""
    mine = {"key": JOB_KEY, "operator": "In", "values": [job_key]}
    others = [{"key": JOB_KEY, "operator": "Exists"}, {**mine, "operator": "NotIn"}]
    added = {"podAffinity": [mine], "podAntiAffinity": others if first else []}
    affinity = spec.inner("affinity", {})
    made = dict(affinity.value)
    for kind, expressions in added.items():
        if expressions:
            of_kind = affinity.inner(kind, {})
            term = {
                "labelSelector": {"matchExpressions": expressions}, "topologyKey": domain, "namespaceSelector": {},
            }  # fmt: skip
            terms = [one.value for one in of_kind.items(_REQUIRED)]
            made[kind] = {**of_kind.value, _REQUIRED: [*terms, term]}
    return made


def _inner(part: ManifestPart, field: str) -> ManifestPart:
    """The field, empty where it is null or missing."""
    return part.inner(field) if part.value.get(field) is not None else ManifestPart({}, part.at(field))
