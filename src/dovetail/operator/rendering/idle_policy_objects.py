# SPDX-License-Identifier: Apache-2.0
"""The objects of the policy about idle workloads: those of `deploy/idle-policy/`, with what the spec asks for. Without
it nothing of Dovetail has a right to change a workload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import IdleSpec, StackSpec
from dovetail.operator.rendering.kustomize import containers, select
from dovetail.operator.rendering.scheduler_objects import resource_problems
from dovetail.operator.rendering.sources import image_name, set_images, set_resources, tree

Document = dict[str, Any]

NAME = "dovetail-idle-policy"
_DEFAULTS = IdleSpec()


def idle_policy_objects(spec: StackSpec, operator_image: str) -> tuple[list[Document], list[Problem]]:
    """The objects, and what cannot be as the spec asks."""
    if not spec.idle.enabled:
        return [], []
    objects = tree("idle-policy")
    stateful_set = select(objects, "StatefulSet", NAME)
    set_images(stateful_set, spec.image, image_name(spec.image, operator_image))
    (container,) = containers(stateful_set)
    container["args"] += _options(spec.idle)
    set_resources(container, spec.idle.resources)
    return objects, list(resource_problems(container, "spec.idle.resources"))


def _options(idle: IdleSpec) -> Iterator[str]:
    """What is not the command's own default."""
    for name in ("notify_after", "act_after", "grace", "acts_per_hour"):
        value = getattr(idle, name)
        if value != getattr(_DEFAULTS, name):
            yield f"--{name.replace('_', '-')}={value}"
    for namespace in idle.exempt_namespaces:
        yield f"--exempt-namespace={namespace}"
