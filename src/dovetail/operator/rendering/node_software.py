# SPDX-License-Identifier: Apache-2.0
"""What agents need beside themselves: the RuntimeClass, the DeviceClasses of claims, and where the spec asks for them,
driver and container toolkit. Classes that somebody else has made stay as they are."""

from __future__ import annotations

from typing import Any

from dovetail.core.model import Problem
from dovetail.kube.api.resources import DEVICE_CLASSES
from dovetail.kube.objects.stack import DRA, DRIVER_CONTAINER, StackSpec
from dovetail.operator.found import Found
from dovetail.operator.rendering.agent_objects import DRIVER_FOLDER
from dovetail.operator.rendering.kustomize import containers, pod_spec
from dovetail.operator.rendering.pool_affinity import gpu_node_terms, required
from dovetail.operator.rendering.sources import set_images, tree

Document = dict[str, Any]


def node_software(spec: StackSpec, found: Found) -> list[Document]:
    """The objects."""
    objects = []
    if _claims(spec) and found.served.has(DEVICE_CLASSES):
        classes = tree("device-classes")
        objects += [one for one in classes if one["metadata"]["name"] not in found.device_classes]
    name = spec.runtime.class_name
    if spec.runtime.create_class and name not in found.runtime_classes:
        objects.append(
            {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        )
    if spec.driver.mode == DRIVER_CONTAINER:
        objects.append(_daemon_set("driver", spec, spec.driver.image))
    if spec.runtime.configure:
        toolkit = _daemon_set("toolkit", spec, spec.runtime.configure)
        (container,) = containers(toolkit)
        settings = {"NVIDIA_RUNTIME_NAME": name or "nvidia", "RUNTIME_ENABLE_CDI": str(spec.runtime.cdi).lower()}
        for variable in container["env"]:
            variable["value"] = settings.get(variable["name"], variable["value"])
        if spec.driver.mode == DRIVER_CONTAINER:
            container["env"] += [
                {"name": "NVIDIA_DRIVER_ROOT", "value": DRIVER_FOLDER},
                {"name": "DRIVER_ROOT_CTR_PATH", "value": f"/host{DRIVER_FOLDER}"},
            ]
        objects.append(toolkit)
    return objects


def unmet(spec: StackSpec, found: Found) -> list[Problem]:
    """What the spec asks for and this cluster cannot have."""
    problems = []
    if spec.driver.mode == DRIVER_CONTAINER and found.driver_containers:
        pools = ", ".join(sorted(found.driver_containers))
        rule = f"must be Preinstalled while NVIDIA's driver container runs (pools {pools}): a node has one driver"
        problems.append(Problem("spec.driver.mode", DRIVER_CONTAINER, rule))
    if _claims(spec) and not found.served.has(DEVICE_CLASSES):
        rule = f"the cluster has no kind DeviceClass ({DEVICE_CLASSES.api_version})"
        problems.append(Problem("spec.agent.pools", DRA, rule))
    return problems


def _claims(spec: StackSpec) -> bool:
    return spec.agent.enabled and any(pool.allocation == DRA for pool in spec.agent.pools)


def _daemon_set(name: str, spec: StackSpec, image: str) -> Document:
    (daemon_set,) = tree(name)
    pods = pod_spec(daemon_set)
    assert pods is not None
    pods["affinity"] = {"nodeAffinity": required(gpu_node_terms())}
    for container in containers(daemon_set):
        container["image"] = image
    set_images(daemon_set, spec.image, image)
    return daemon_set
