# SPDX-License-Identifier: Apache-2.0
"""Names, labels, annotations and API versions that Kubernetes has removed or deprecated.

Sources: https://kubernetes.io/docs/reference/using-api/deprecation-guide/ (versions),
https://kubernetes.io/docs/reference/labels-annotations-taints/ (labels), kubernetes#57384 and #61498 (the resource).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dovetail.advice.lint.edits import Edit, drop, put, rename
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.migrate.dialects.pods import without
from dovetail.advice.migrate.step import Left, MigrationStep, SourceDialect, World, left
from dovetail.core.model import GPU

_GPU = "alpha.kubernetes.io/nvidia-gpu"
_GPU_NAME = "alpha.kubernetes.io/nvidia-gpu-name"
_SEE_NODES = "`kubectl get nodes -L nvidia.com/gpu.product` shows the current values"
_LABELS = {
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "node-role.kubernetes.io/master": "node-role.kubernetes.io/control-plane",
}
_NO_LABELS = {_GPU_NAME: f"no software sets this label any more: select nvidia.com/gpu.product; {_SEE_NODES}"}
_NAMING = ("key", "topologyKey")
"""Fields with the key of a node label or of a taint as value."""

_V1_SAME = {
    ("batch", "CronJob"): ("v1beta1", "v2alpha1"),
    ("policy", "PodDisruptionBudget"): ("v1beta1",),
    ("scheduling.k8s.io", "PriorityClass"): ("v1alpha1", "v1beta1"),
    ("coordination.k8s.io", "Lease"): ("v1beta1",),
    ("node.k8s.io", "RuntimeClass"): ("v1beta1",),
    ("storage.k8s.io", "StorageClass"): ("v1beta1",),
    ("storage.k8s.io", "CSIDriver"): ("v1beta1",),
    ("storage.k8s.io", "CSIStorageCapacity"): ("v1beta1",),
    ("networking.k8s.io", "IngressClass"): ("v1beta1",),
    ("resource.k8s.io", "DeviceClass"): ("v1beta1", "v1beta2"),
    ("resource.k8s.io", "ResourceClaim"): ("v1beta2",),
    ("resource.k8s.io", "ResourceClaimTemplate"): ("v1beta2",),
    **{
        ("rbac.authorization.k8s.io", kind): ("v1alpha1", "v1beta1")
        for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    },
}
_VERSIONS = {
    (f"{group}/{version}", kind): f"{group}/v1" for (group, kind), old in _V1_SAME.items() for version in old
} | {
    ("autoscaling/v2beta2", "HorizontalPodAutoscaler"): "autoscaling/v2",
    ("extensions/v1beta1", "NetworkPolicy"): "networking.k8s.io/v1",
}
"""The current API version of kinds that changed nothing but the version."""
_APPS = ("extensions/v1beta1", "apps/v1beta1", "apps/v1beta2")
_APPS_KINDS = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet")
_APPS_GONE = ("rollbackTo", "templateGeneration")
_FLAT_REQUESTS = ("resource.k8s.io/v1alpha3", "resource.k8s.io/v1beta1")
_CLAIM_KINDS = {"ResourceClaim": ("spec",), "ResourceClaimTemplate": ("spec", "spec")}
_NO_VERSIONS = {
    ("autoscaling/v2beta1", "HorizontalPodAutoscaler"): "metrics are written differently in autoscaling/v2",
    ("extensions/v1beta1", "Ingress"): "backends are written differently in networking.k8s.io/v1",
    ("networking.k8s.io/v1beta1", "Ingress"): "backends are written differently in networking.k8s.io/v1",
    ("policy/v1beta1", "PodSecurityPolicy"): "use the labels of Pod Security admission on the namespace",
    ("extensions/v1beta1", "PodSecurityPolicy"): "use the labels of Pod Security admission on the namespace",
    ("apiextensions.k8s.io/v1beta1", "CustomResourceDefinition"): "v1 requires a schema for each version",
    ("node.k8s.io/v1alpha1", "RuntimeClass"): "its handler is no longer under spec in node.k8s.io/v1",
    ("scheduling.k8s.io/v1alpha1", "Workload"): "write a PodGroup of scheduling.k8s.io/v1beta1 for each of its groups, "
    "and name that in spec.schedulingGroup.podGroupName of the pods",
    ("resource.k8s.io/v1alpha3", "DeviceClass"): "write it as resource.k8s.io/v1; suitableNodes was removed",
    **{
        ("resource.k8s.io/v1alpha2", kind): "devices were claimed differently: write a claim of resource.k8s.io/v1"
        for kind in ("ResourceClass", "ResourceClaim", "ResourceClaimTemplate", "PodSchedulingContext")
    },
}

_ALPHA_GROUP = ("scheduling.k8s.io/v1alpha2", "PodGroup")
"""The PodGroup of Kubernetes 1.36."""
_BETA_GROUP = "scheduling.k8s.io/v1beta1"
_SAME_IN_GROUPS = {"schedulingPolicy"}

_AFFINITY = "scheduler.alpha.kubernetes.io/affinity"
_TOLERATIONS = "scheduler.alpha.kubernetes.io/tolerations"
_AS_JSON = {_AFFINITY: ("affinity", dict), _TOLERATIONS: ("tolerations", list)}
"""Annotations (until 1.5) that are fields of the pod's spec today, with the field and the type."""
_NAME = "scheduler.alpha.kubernetes.io/name"
_SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
_PROFILES: dict[str, dict[str, str]] = {
    "runtime/default": {"type": "RuntimeDefault"},
    "docker/default": {"type": "RuntimeDefault"},
    "unconfined": {"type": "Unconfined"},
}
_NO_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": "has no effect since 1.16: set priorityClassName to "
    "system-cluster-critical, or to a PriorityClass of your own",
}


def _whole(whole: Field, _: World) -> Iterator[MigrationStep]:
    yield from _version(whole)
    yield from _labels(whole, whole)


def _version(whole: Field) -> Iterator[MigrationStep]:
    version, kind = whole.at("apiVersion"), whole.at("kind").text
    same = _VERSIONS.get((version.text, kind))
    gone = _NO_VERSIONS.get((version.text, kind))
    if same is not None:
        yield MigrationStep(
            version, f"{version.text} {kind} is {same}", (put(version, same),), left=tuple(_changed(whole))
        )
    elif gone is not None:
        yield left(version, f"{version.text} has no {kind} any more: {gone}")
    elif (version.text, kind) == _ALPHA_GROUP:
        if {name for name, _ in whole.at("spec").entries()} <= _SAME_IN_GROUPS:
            yield MigrationStep(version, f"{version.text} PodGroup is {_BETA_GROUP}", (put(version, _BETA_GROUP),))
        else:
            yield left(version, f"existed only in Kubernetes 1.36: write it as {_BETA_GROUP}, with its fields")
    elif version.text in _APPS and kind in _APPS_KINDS:
        yield MigrationStep(
            version, f"{version.text} {kind} is apps/v1", (*_selector(whole), *_gone(whole), put(version, "apps/v1"))
        )
    elif version.text in _FLAT_REQUESTS and kind in _CLAIM_KINDS:
        requests = whole.at(*_CLAIM_KINDS[kind], "devices", "requests")
        edits = tuple(edit for request in requests.each() for edit in _nested(request))
        yield MigrationStep(
            version, f"{version.text} {kind} is resource.k8s.io/v1", (*edits, put(version, "resource.k8s.io/v1"))
        )


def _changed(whole: Field) -> Iterator[Left]:
    """Fields with another meaning in the new version."""
    selector = whole.at("spec", "selector")
    if whole.at("kind").text == "PodDisruptionBudget" and selector.value == {}:
        yield Left(selector, "selected no pod, and selects all pods of the namespace in policy/v1: write a selector")


def _selector(whole: Field) -> Iterator[Edit]:
    """The edit that adds the selector: it defaulted to the template's labels, and is required today."""
    selector, labels = whole.at("spec", "selector"), whole.at("spec", "template", "metadata", "labels")
    if not selector and labels:
        yield put(selector, {"matchLabels": labels.value})


def _gone(whole: Field) -> Iterator[Edit]:
    for name in _APPS_GONE:
        if whole.at("spec", name):
            yield drop(whole.at("spec", name))


def _nested(request: Field) -> Iterator[Edit]:
    """The edits that move the fields of a request to `exactly`."""
    inner = {name: each.value for name, each in request.entries() if name not in ("name", "firstAvailable", "exactly")}
    if inner:
        yield put(request.at("exactly"), inner)
        yield from (drop(request.at(name)) for name in inner)


def _labels(field: Field, whole: Field) -> Iterator[MigrationStep]:
    """The steps for all references to node labels, in objects of any kind."""
    for name, inner in field.entries():
        if name == "nodeSelector":
            yield from _selected(inner)
        elif name in _NAMING and inner.text in _LABELS:
            new = _LABELS[inner.text]
            yield MigrationStep(inner, f"the label {inner.text} is {new}", (put(inner, new),))
        elif name in _NAMING and inner.text in _NO_LABELS:
            yield left(inner, f"{inner.text}: {_NO_LABELS[inner.text]}")
        else:
            yield from _labels(inner, whole)
    for inner in field.each():
        yield from _labels(inner, whole)


def _selected(selector: Field) -> Iterator[MigrationStep]:
    for name, value in selector.entries():
        new = _LABELS.get(name)
        if name in _NO_LABELS:
            yield left(value, f"{name}: {_NO_LABELS[name]}")
        elif new is not None and not selector.at(new):
            yield MigrationStep(value, f"the label {name} is {new}", (rename(value, new),))
        elif new is not None and selector.at(new).value == value.value:
            yield MigrationStep(value, f"the label {name} is now {new}, which exists already", (drop(value),))
        elif new is not None:
            yield left(value, f"{name} and {new} differ, and no node has both: drop one of them")


def _template(pod: Template, _: World) -> Iterator[MigrationStep]:
    for container in pod.all_containers:
        yield from _resource(container)
    yield from _annotations(pod)


def _resource(container: Field) -> Iterator[MigrationStep]:
    sides = [container.at("resources", side) for side in ("limits", "requests")]
    for side in sides:
        old = side.at(_GPU)
        if old and side.at(GPU):
            yield left(old, f"both {_GPU} and {GPU} are requested, and no plugin offers the first: drop it")
        elif old:
            edits: tuple[Edit, ...] = (rename(old, GPU),)
            if not sides[0].at(_GPU) and not sides[0].at(GPU):
                # Resources of a device plugin require a limit.
                edits += (put(sides[0].at(GPU), old.value),)
            yield MigrationStep(old, f"{_GPU} is {GPU}", edits)


def _annotations(pod: Template) -> Iterator[MigrationStep]:
    for name, value in pod.meta.at("annotations").entries():
        if name in _NO_ANNOTATIONS:
            yield left(value, f"{name} {_NO_ANNOTATIONS[name]}")
        elif name in _AS_JSON:
            yield _from_json(pod, name, value)
        elif name == _NAME:
            yield _moved(pod.meta.at("annotations"), value, pod.spec.at("schedulerName"), value.value)
        elif name == _SECCOMP:
            profile = _PROFILES.get(value.text)
            if value.text.startswith("localhost/"):
                profile = {"type": "Localhost", "localhostProfile": value.text.removeprefix("localhost/")}
            place = pod.spec.at("securityContext", "seccompProfile")
            yield (
                _moved(pod.meta.at("annotations"), value, place, profile)
                if profile
                else left(value, f"{value.text} is not a known profile")
            )


def _from_json(pod: Template, name: str, value: Field) -> MigrationStep:
    field, kind = _AS_JSON[name]
    try:
        meant = json.loads(value.text)
    except ValueError:
        return left(value, f"is not JSON: write the value in spec.{field}")
    if not isinstance(meant, kind):
        return left(value, f"has not the type of spec.{field}: write the value there")
    return _moved(pod.meta.at("annotations"), value, pod.spec.at(field), meant)


def _moved(annotations: Field, annotation: Field, place: Field, value: Any) -> MigrationStep:
    if place and place.value != value:
        return left(annotation, f"has no effect, and {place} has another value: drop it, or change that")
    return MigrationStep(
        annotation,
        f"the annotation {annotation.name} is {place}",
        (put(place, value), *without(annotations, annotation.name)),
    )


RETIRED = SourceDialect("retired names", _whole, _template)
