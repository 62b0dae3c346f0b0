# SPDX-License-Identifier: Apache-2.0
"""The objects of the process that serves software agents' own endpoints: those of `deploy/agent-planes/`, with what the
spec asks for. What it needs in the namespaces of agents is an admin's (`deploy/agent-namespaces/`)."""

from __future__ import annotations

from typing import Any

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import StackSpec
from dovetail.operator.rendering.kustomize import containers, select
from dovetail.operator.rendering.scheduler_objects import resource_problems, scheduler_name
from dovetail.operator.rendering.sources import image_name, set_images, set_resources, tree

Document = dict[str, Any]

NAME = "dovetail-agent-planes"


def agent_planes_objects(spec: StackSpec, operator_image: str) -> tuple[list[Document], list[Problem]]:
    """The objects, and what cannot be as the spec asks."""
    if not spec.agent_planes.enabled:
        return [], []
    objects = tree("agent-planes")
    stateful_set = select(objects, "StatefulSet", NAME)
    set_images(stateful_set, spec.image, image_name(spec.image, operator_image))
    (container,) = containers(stateful_set)
    container["args"] += [*scheduler_name(spec.scheduler), *spec.agent_planes.extra_args]
    set_resources(container, spec.agent_planes.resources)
    return objects, list(resource_problems(container, "spec.agentPlanes.resources"))
