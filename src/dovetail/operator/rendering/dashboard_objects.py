# SPDX-License-Identifier: Apache-2.0
"""The objects of the web pages: those of `deploy/dashboard/`, with what the spec asks for."""

from __future__ import annotations

from typing import Any

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import StackSpec
from dovetail.operator.rendering.kustomize import containers, select
from dovetail.operator.rendering.scheduler_objects import resource_problems, scheduler_name
from dovetail.operator.rendering.sources import image_name, set_images, set_resources, tree

Document = dict[str, Any]

NAME = "dovetail-dashboard"


def dashboard_objects(spec: StackSpec, operator_image: str) -> tuple[list[Document], list[Problem]]:
    """The objects, and what cannot be as the spec asks."""
    dashboard = spec.dashboard
    if not dashboard.enabled:
        return [], []
    objects = tree("dashboard")
    deployment = select(objects, "Deployment", NAME)
    set_images(deployment, spec.image, image_name(spec.image, operator_image))
    deployment["spec"]["replicas"] = dashboard.replicas
    (container,) = containers(deployment)
    container["args"] += scheduler_name(spec.scheduler)
    if spec.scheduler.fabric:
        container["args"].append(f"--fabric={','.join(spec.scheduler.fabric)}")
    if dashboard.actions:
        container["args"].append("--actions")
    set_resources(container, dashboard.resources)
    return objects, list(resource_problems(container, "spec.dashboard.resources"))
