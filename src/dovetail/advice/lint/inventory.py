# SPDX-License-Identifier: Apache-2.0
"""The facts of a cluster for rules, from its objects: the nodes and the schedulers that run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import templates_of, words_of
from dovetail.advice.lint.rule import Facts, KnownNode

DEFAULT_SCHEDULER = "default-scheduler"
_SCHEDULER_ARGUMENT = re.compile(r"--scheduler-?name[= ]+([\w.-]+)")
_SCHEDULER_IMAGES = {
    "dovetail": "dovetail",
    "volcanosh/vc-scheduler": "volcano",
    "kai-scheduler/scheduler": "kai-scheduler",
    "kai-scheduler/kai-scheduler/scheduler": "kai-scheduler",
    "scheduler-plugins/kube-scheduler": "scheduler-plugins-scheduler",
    "apache/yunikorn": "yunikorn",
    "projecthami/hami": "hami-scheduler",
}
"""A part of the image name of each scheduler, and its default schedulerName."""


def facts_of(objects: Iterable[Field]) -> Facts:
    """The facts from Nodes and from the Deployments of schedulers. `schedulers` is None without any Deployment. All
    objects are kept for rules that look up other objects."""
    everything = tuple(objects)
    nodes = tuple(_node(whole) for whole in everything if whole.at("kind").text == "Node")
    containers = [
        container
        for whole in everything
        if whole.at("kind").text == "Deployment"
        for pod in templates_of(whole)
        for container in pod.containers
    ]
    schedulers = frozenset({DEFAULT_SCHEDULER, *(name for one in containers for name in _schedules_for(one))})
    return Facts(nodes, schedulers if containers else None, everything)


def _schedules_for(container: Field) -> Iterator[str]:
    """The schedulerNames that a container serves, by its arguments or its image."""
    words = words_of(container)
    named = _SCHEDULER_ARGUMENT.findall(words)
    if named:
        yield from named
        return
    image = container.at("image").text
    yield from (name for part, name in _SCHEDULER_IMAGES.items() if part in image)


def _node(whole: Field) -> KnownNode:
    labels = {key: str(label.value) for key, label in whole.at("metadata", "labels").entries()}
    allocatable = {key: str(amount.value) for key, amount in whole.at("status", "allocatable").entries()}
    taints = tuple(
        {key: str(inner.value) for key, inner in taint.entries()} for taint in whole.at("spec", "taints").each()
    )
    return KnownNode(whole.at("metadata", "name").text, labels, allocatable, taints)
