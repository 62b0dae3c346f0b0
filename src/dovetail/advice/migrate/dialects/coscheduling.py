# SPDX-License-Identifier: Apache-2.0
"""Coscheduling and capacity scheduling of the scheduler-plugins.

Source: https://github.com/kubernetes-sigs/scheduler-plugins: apis/scheduling/v1alpha1/types.go.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.edits import drop
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.migrate.dialects import queues
from dovetail.advice.migrate.dialects.pods import READ, native, native_member, scheduled
from dovetail.advice.migrate.step import (
    Left,
    MigrationStep,
    MigrationTarget,
    SourceDialect,
    World,
    group_of,
    left,
    namespace_of,
    unknown,
)
from dovetail.core.queues.types import QUEUE_LABEL

_GROUP = "scheduling.x-k8s.io"
_GROUP_NAMES = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_NOT_NEEDED = {
    "minResources": "the requests of the pods count",
    "scheduleTimeoutSeconds": "a waiting gang holds no resources",
}
_OLD_PREFIX = "pod-group.scheduling.sigs.k8s.io/"


def _whole(whole: Field, world: World) -> Iterator[MigrationStep]:
    group, kind = group_of(whole), whole.at("kind").text
    if (group, kind) == (_GROUP, "ElasticQuota"):
        yield _quota(whole)
    elif (group, kind) == (_GROUP, "PodGroup") or (group, kind) == ("scheduling.sigs.k8s.io", "PodGroup"):
        spec = whole.at("spec")
        for name, why in _NOT_NEEDED.items():
            if spec.at(name):
                yield MigrationStep(spec.at(name), f"{name} is not needed: {why}", (drop(spec.at(name)),))
        if MigrationTarget.NATIVE in world.targets or group != _GROUP:
            yield native(whole, spec.at("minMember"), unknown(spec, "minMember", *_NOT_NEEDED))
        else:
            yield MigrationStep(whole.at("apiVersion"), READ, understood=True)


def _template(pod: Template, world: World) -> Iterator[MigrationStep]:
    labels = pod.meta.at("labels")
    named = [labels.at(name) for name in _GROUP_NAMES if labels.at(name)]
    yield from scheduled(pod, COSCHEDULING.schedulers, marked=bool(named))
    for old in named:
        if MigrationTarget.NATIVE in world.targets:
            found = world.named(_GROUP, "PodGroup", old.text, namespace_of(pod.whole))
            yield native_member(pod, labels, old, bool(found.at("spec", "minMember").whole))
        else:
            yield MigrationStep(old, "Dovetail reads this name of the PodGroup", understood=True)
    for name, old in labels.entries():
        if name.startswith(_OLD_PREFIX):
            message = f"is from before the PodGroups of coscheduling: {old.value}; write dovetail.dev/gang and "
            yield left(old, message + "dovetail.dev/gang-min, annotations of the pods")


def _quota(whole: Field) -> MigrationStep:
    spec, namespace = whole.at("spec"), namespace_of(whole)
    lost = [Left(whole.at("metadata", "namespace"), "a label assigns pods to the queue, also on the namespace: "
                 f"kubectl label namespace {namespace} {QUEUE_LABEL}={whole.at('metadata', 'name').text}")]  # fmt: skip
    lost += unknown(spec, "min", "max")
    made = {
        "guarantee": queues.amounts(spec.at("min"), lost),
        "limit": queues.amounts(spec.at("max"), lost),
        "namespaces": {"names": [namespace]},
    }
    step = queues.became(whole, made, lost)
    own = whole.at("metadata", "namespace")
    # A Queue is cluster-scoped.
    return MigrationStep(step.field, step.message, (drop(own), *step.edits) if own else step.edits, (), step.left)


COSCHEDULING = SourceDialect(
    "scheduler-plugins", _whole, _template, ("scheduler-plugins-scheduler",),
    ("scheduling.x-k8s.io", "scheduling.sigs.k8s.io"),
)  # fmt: skip
