# SPDX-License-Identifier: Apache-2.0
"""Pod, as the agent of its node reads it: with the variables of its containers. Rules of the structs: see `objects`."""

from __future__ import annotations

from dovetail.kube.objects.base import Wire
from dovetail.kube.objects.pods import Container, Pod, PodSpec, ResourceRequirements


class VariableSource(Wire, frozen=True):
    """Where a value comes from; only that there is one is read."""


class ContainerVariable(Wire, frozen=True):
    name: str = ""
    value: str = ""
    value_from: VariableSource | None = None


class VariablesOfObject(Wire, frozen=True):
    """All values of a ConfigMap or Secret as variables; only how their names begin is read."""

    prefix: str = ""


class ContainerSecurity(Wire, frozen=True):
    privileged: bool = False


class ContainerClaim(Wire, frozen=True):
    """A claim of the pod that the container uses, by its name in the pod; with a `request` the devices of that one."""

    name: str = ""
    request: str = ""


class ResourcesOnNode(ResourceRequirements, frozen=True):
    claims: tuple[ContainerClaim, ...] = ()


class ContainerOnNode(Container, frozen=True):
    resources: ResourcesOnNode = ResourcesOnNode()
    env: tuple[ContainerVariable, ...] = ()
    env_from: tuple[VariablesOfObject, ...] = ()
    security_context: ContainerSecurity | None = None


class PodSpecOnNode(PodSpec, frozen=True):
    containers: tuple[ContainerOnNode, ...] = ()
    init_containers: tuple[ContainerOnNode, ...] = ()


class PodOnNode(Pod, frozen=True):
    spec: PodSpecOnNode = PodSpecOnNode()
