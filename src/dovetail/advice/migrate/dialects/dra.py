# SPDX-License-Identifier: Apache-2.0
"""GPU resources as DRA claims, only with the target DRA.

A ResourceClaimTemplate is named after its request, so all pods of a namespace with the same request share one.
Source of the classes and attributes: https://github.com/NVIDIA/k8s-dra-driver-gpu: deployments/helm, demo/specs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dovetail.advice.lint.edits import Edit, append
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count, gpus_of
from dovetail.advice.migrate.dialects.pods import without
from dovetail.advice.migrate.step import MigrationStep, MigrationTarget, SourceDialect, World, left
from dovetail.core.model import GPU
from dovetail.kube.translate.annotations import FRACTION, ISOLATION, MEMORY, PREFIX

_MIG = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb)")
_PROMISES = tuple(PREFIX + name for name in (MEMORY, FRACTION, ISOLATION, "nvlink"))
_VERSION = "resource.k8s.io/v1"


def _template(pod: Template, world: World) -> Iterator[MigrationStep]:
    if MigrationTarget.DRA not in world.targets:
        return
    promises = [pod.meta.at("annotations", name) for name in _PROMISES if pod.meta.at("annotations", name)]
    initial = [amount for one in pod.init_containers for _, amount in gpus_of(one)]
    for container in pod.containers:
        asked = list(gpus_of(container))
        if not asked:
            continue
        field = asked[0][1]
        if promises:
            yield left(field, f"stays a resource: no claim has the guarantees of {promises[0].name}")
        elif initial:
            yield left(field, "stays a resource: the init containers use the same GPUs, and claims would add up")
        elif not all(_request(resource, amount) for resource, amount in asked):
            yield left(field, "stays a resource: no known device class is equivalent")
        else:
            yield _claimed(pod, container, asked)


def _claimed(pod: Template, container: Field, asked: list[tuple[str, Field]]) -> MigrationStep:
    requests = [request for resource, amount in asked if (request := _request(resource, amount))]
    made = "-".join(f"{request['name']}-{request['exactly']['count']}" for request in requests)
    namespace = pod.whole.at("metadata", "namespace").text
    document = {
        "apiVersion": _VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": made} | ({"namespace": namespace} if namespace else {}),
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    taken = {claim.at("name").text for claim in pod.spec.at("resourceClaims").each()}
    name = made if made not in taken else f"{made}-{container.path[-1]}"
    edits: tuple[Edit, ...] = (
        append(pod.spec.at("resourceClaims"), {"name": name, "resourceClaimTemplateName": made}),
        append(container.at("resources", "claims"), {"name": name}),
    )
    for side in ("limits", "requests"):
        edits += without(container.at("resources", side), *(resource for resource, _ in asked))
    field = asked[0][1]
    return MigrationStep(
        field, f"{field.name}: {field.value} is a claim by ResourceClaimTemplate {made}", edits, (document,)
    )


def _request(resource: str, amount: Field) -> dict[str, Any] | None:
    number = count(amount)
    if not number or number < 1:
        return None
    exactly: dict[str, Any] = {"allocationMode": "ExactCount", "count": number}
    mig = _MIG.fullmatch(resource)
    if resource == GPU:
        return {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", **exactly}}
    if mig is None:
        return None
    expression = f"device.attributes['gpu.nvidia.com'].profile == '{mig[1]}'"
    selectors = [{"cel": {"expression": expression}}]
    name = f"mig-{mig[1].replace('.', '-')}"
    return {"name": name, "exactly": {"deviceClassName": "mig.nvidia.com", "selectors": selectors, **exactly}}


DRA = SourceDialect("claims", None, _template)
