# SPDX-License-Identifier: Apache-2.0
"""What rules may know of a cluster, out of its objects: nodes, and which schedulers run."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import templates_of
from dovetail.advice.lint.rule import Facts, KnownNode

DEFAULT_SCHEDULER = "default-scheduler"
_SCHEDULER_IMAGES = {
    "dovetail": "dovetail",
    "volcanosh/vc-scheduler": "volcano",
    "kai-scheduler/scheduler": "kai-scheduler",
    "kai-scheduler/kai-scheduler/scheduler": "kai-scheduler",
    "scheduler-plugins/kube-scheduler": "scheduler-plugins-scheduler",
    "apache/yunikorn": "yunikorn",
    "projecthami/hami": "hami-scheduler",
}
"""A part of an image's name, and the schedulerName that pods give unless it was configured otherwise."""


def facts_of(objects: Iterable[Field]) -> Facts:
    """Out of Nodes, and of the Deployments and Pods of schedulers. `schedulers` stays None where nothing but Nodes is
    there to look at."""
    nodes, images, workloads = [], set(), 0
    for whole in objects:
        if whole.at("kind").text == "Node":
            nodes.append(_node(whole))
            continue
        for pod in templates_of(whole):
            workloads += 1
            images |= {container.at("image").text for container in pod.containers}
    found = {name for image in images for part, name in _SCHEDULER_IMAGES.items() if part in image}
    return Facts(tuple(nodes), frozenset({DEFAULT_SCHEDULER, *found}) if workloads else None)


def _node(whole: Field) -> KnownNode:
    labels = {key: str(label.value) for key, label in whole.at("metadata", "labels").entries()}
    allocatable = {key: str(amount.value) for key, amount in whole.at("status", "allocatable").entries()}
    taints = tuple(
        {key: str(inner.value) for key, inner in taint.entries()} for taint in whole.at("spec", "taints").each()
    )
    return KnownNode(whole.at("metadata", "name").text, labels, allocatable, taints)
