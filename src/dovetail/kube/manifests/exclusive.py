# SPDX-License-Identifier: Apache-2.0
"""The affinity of pods that are alone in a domain of a topology, as `exclusive-topology` of JobSet and LeaderWorkerSet
asks for.

Their webhooks give it to the first pod of each group, and to the others the node selector of that pod's domain once it
is bound. Here these have the affinity to their own group, which leads to the same domain.
Sources: kubernetes-sigs/jobset pkg/webhooks/pod_mutating_webhook.go; kubernetes-sigs/lws pkg/webhooks/pod_webhook.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.kube.gangs.sizes import EXCLUSIVE, NODE_SELECTOR_STRATEGY
from dovetail.kube.manifests.parts import ManifestPart

JOB_KEY = "jobset.sigs.k8s.io/job-key"
"""A label whose value each Job has for itself."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_Expressions = Sequence[dict[str, Any]]


def domain_of(*annotated: ManifestPart) -> str:
    """The node label whose domains the Jobs have for themselves, of the first object that names one; "" for none."""
    marks = [_inner(_inner(one, "metadata"), "annotations") for one in annotated]
    if any(mark.has(NODE_SELECTOR_STRATEGY) for mark in marks):
        return ""
    return next((mark.text(EXCLUSIVE) for mark in marks if mark.has(EXCLUSIVE)), "")


def alone_in(
    domain: str, label: str, value: str, spec: ManifestPart, *, first: bool, **more: Any
) -> dict[str, Any]:  # fmt: skip
    """The affinity of a pod of the group that has this value of the label for itself, with what the pod's spec has.
    `more` are fields of each term."""
    mine = {"key": label, "operator": "In", "values": [value]}
    others: list[_Expressions] = (
        [[{"key": label, "operator": "Exists"}, {**mine, "operator": "NotIn"}]] if first else []
    )
    return added_to(spec, kept_near(domain, [mine], others, **more))


def added_to(spec: ManifestPart, added: Mapping[str, Any]) -> dict[str, Any]:
    """The affinity of a pod's spec with more required terms."""
    affinity = spec.inner("affinity", {})
    made = dict(affinity.value)
    for kind, terms in added.items():
        of_kind = affinity.inner(kind, {})
        made[kind] = {**of_kind.value, _REQUIRED: [*[one.value for one in of_kind.items(_REQUIRED)], *terms[_REQUIRED]]}
    return made


def kept_near(domain: str, mine: _Expressions, others: Sequence[_Expressions], **more: Any) -> dict[str, Any]:
    """The affinity to pods that match the first, and the anti-affinity to those that match one of the others, by
    domain. `more` are fields of each term."""
    near, far = [
        [{"labelSelector": {"matchExpressions": list(one)}, "topologyKey": domain, **more} for one in terms]
        for terms in ([mine], others)
    ]
    return {"podAffinity": {_REQUIRED: near}, **({"podAntiAffinity": {_REQUIRED: far}} if far else {})}


def _inner(part: ManifestPart, field: str) -> ManifestPart:
    """The field, empty where it is null or missing."""
    return part.inner(field) if part.value.get(field) is not None else ManifestPart({}, part.at(field))
