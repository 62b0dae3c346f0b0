# SPDX-License-Identifier: Apache-2.0
"""The objects that ought to exist for a GPUStack in a cluster, in the order in which they are applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from dovetail.core.model import Problem
from dovetail.kube.namespaces import AGENT_NAMESPACE as AGENT_NAMESPACE
from dovetail.kube.namespaces import SYSTEM_NAMESPACE as SYSTEM_NAMESPACE
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.found import Found
from dovetail.operator.rendering import metrics_objects as metrics
from dovetail.operator.rendering import node_software as nodes
from dovetail.operator.rendering.agent_objects import agent_objects
from dovetail.operator.rendering.agent_planes_objects import agent_planes_objects
from dovetail.operator.rendering.contradictions import contradictions
from dovetail.operator.rendering.dashboard_objects import dashboard_objects
from dovetail.operator.rendering.history_objects import history_objects
from dovetail.operator.rendering.idle_policy_objects import idle_policy_objects
from dovetail.operator.rendering.scheduler_objects import scheduler_objects

Document = dict[str, Any]

MANAGED_BY = ("app.kubernetes.io/managed-by", "dovetail-operator")
PART_OF = ("app.kubernetes.io/part-of", "dovetail")
STACK_LABEL = "dovetail.dev/stack"
ORDER = (
    *("RuntimeClass", "DeviceClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap", "Service"),
    *(
        "EndpointSlice",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Deployment",
        "DaemonSet",
        "StatefulSet",
        "ServiceMonitor",
        "PodMonitor",
        "PrometheusRule",
        "APIService",
    ),
)
"""By kind: what others need is applied before them. Removal has an order of its own (`kinds`)."""


class Desired(Struct, frozen=True):
    """`objects` as documents, each with the labels and the owner reference of the operator's own, in the order in which
    they are applied. With `problems`, contradictions in the spec,
    there are no objects, and nothing is to be applied or pruned. `unmet` is what the spec asks for and this cluster
    cannot have; the objects are without it."""

    objects: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()
    unmet: tuple[Problem, ...] = ()


def desired(stack: GPUStack, found: Found, operator_image: str) -> Desired:
    """The objects for this stack. `operator_image`: the image that the operator runs, `repository:tag` or
    `repository@sha256:...`; scheduler and agents run it unless the spec names another one.

    The two namespaces and the definitions of kinds are not among them: they are installed with the operator, and what
    is deleted with the stack must take along neither the operator nor any Queue.
    """
    spec = stack.spec
    if problems := contradictions(spec):
        return Desired(problems=tuple(problems))
    scheduler, of_scheduler = scheduler_objects(spec, operator_image)
    agents, of_agents = agent_objects(spec, found, operator_image)
    planes, of_planes = agent_planes_objects(spec, operator_image)
    history, of_history = history_objects(spec, operator_image)
    idle, of_idle = idle_policy_objects(spec, operator_image)
    dashboard, of_dashboard = dashboard_objects(spec, operator_image)
    objects = [*scheduler, *agents, *planes, *history, *idle, *dashboard]
    objects += [*nodes.node_software(spec, found), *metrics.metrics_objects(spec, found)]
    problems = [*of_scheduler, *of_agents, *of_planes, *of_history, *of_idle, *of_dashboard]
    problems += _same_names(objects)
    if problems:
        return Desired(problems=tuple(problems))
    metrics.annotate(objects, spec.metrics, found)
    for document in objects:
        _own(document, stack)
    objects.sort(key=_place)
    return Desired(tuple(objects), unmet=(*metrics.unmet(spec.metrics, found), *nodes.unmet(spec, found)))


def _same_names(objects: Sequence[Document]) -> Iterator[Problem]:
    """Names of pools that make two DaemonSets of one name, such as `no-devices` beside `default`."""
    counts = Counter((one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in objects)
    for (kind, _, name), count in counts.items():
        if count > 1:
            yield Problem("spec.agent.pools", name, f"must have other names: two of them make a {kind} of this name")


def _own(document: Document, stack: GPUStack) -> None:
    metadata = document["metadata"]
    metadata["labels"] = {
        **metadata.get("labels", {}),
        **dict((MANAGED_BY, PART_OF)),
        STACK_LABEL: stack.metadata.name,
    }
    if stack.metadata.uid:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "dovetail.dev/v1alpha1",
                "kind": "GPUStack",
                "name": stack.metadata.name,
                "uid": stack.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def _place(document: Document) -> tuple[int, str, str]:
    metadata = document["metadata"]
    return ORDER.index(document["kind"]), metadata.get("namespace", ""), metadata["name"]
