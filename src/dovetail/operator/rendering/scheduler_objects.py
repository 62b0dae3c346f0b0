# SPDX-License-Identifier: Apache-2.0
"""The objects of the scheduler: those of `deploy/`, with what the spec asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import SchedulerSpec, StackSpec
from dovetail.operator.rendering.contradictions import over_limits
from dovetail.operator.rendering.kustomize import containers, select
from dovetail.operator.rendering.sources import image_name, set_images, set_resources, tree

Document = dict[str, Any]

NAME = "dovetail-scheduler"
_DEFAULTS = SchedulerSpec()


def scheduler_objects(spec: StackSpec, operator_image: str) -> tuple[list[Document], list[Problem]]:
    """The objects, without the namespace, which is the operator's own, and what cannot be as the spec asks."""
    if not spec.scheduler.enabled:
        return [], []
    functions = ["views"] if spec.scheduler.views else []
    objects = [document for document in tree("", functions) if document["kind"] != "Namespace"]
    deployment = select(objects, "Deployment", NAME)
    set_images(deployment, spec.image, image_name(spec.image, operator_image))
    deployment["spec"]["replicas"] = spec.scheduler.replicas
    (container,) = containers(deployment)
    container["args"] += [*_options(spec.scheduler), *spec.scheduler.extra_args]
    set_resources(container, spec.scheduler.resources)
    return objects, list(resource_problems(container, "spec.scheduler.resources"))


def _options(scheduler: SchedulerSpec) -> Iterator[str]:
    """What is not the command's own default."""
    yield from scheduler_name(scheduler)
    if scheduler.fabric:
        yield f"--fabric={','.join(scheduler.fabric)}"
    if scheduler.consolidate != _DEFAULTS.consolidate:
        yield f"--consolidate={scheduler.consolidate}"
    if scheduler.quarantine_budget != _DEFAULTS.quarantine_budget:
        yield f"--quarantine-budget={scheduler.quarantine_budget}"
    if scheduler.divide_mig:
        yield "--divide-mig"


def scheduler_name(scheduler: SchedulerSpec) -> Iterator[str]:
    """The option with the name of the scheduler, where it is not the default."""
    if scheduler.scheduler_name != _DEFAULTS.scheduler_name:
        yield f"--scheduler-name={scheduler.scheduler_name}"


def resource_problems(container: Document, path: str) -> Iterator[Problem]:
    """Requests of the spec above a limit of the manifest, or the other way round, which the API server refuses."""
    resources = container.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name in over_limits(requests, limits):
        rule = f"must not be above the limit, {limits[name]} unless {path}.limits names another one"
        yield Problem(f"{path}.requests", str(requests[name]), rule)
