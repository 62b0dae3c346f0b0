# SPDX-License-Identifier: Apache-2.0
"""The scheduling constraints of a pod template, and the nodes of an inventory that meet them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count, gpus_of, is_gpu
from dovetail.advice.lint.rule import Facts, KnownNode
from dovetail.core.labels import holds, tolerates
from dovetail.core.model import Effect, Operator, Requirement, Taint, Toleration
from dovetail.kube.translate.selectors import FIELD_OPERATORS, NODE_OPERATORS

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
EFFECTS: dict[str, Effect] = {"NoSchedule": "NoSchedule", "NoExecute": "NoExecute"}
"""The taint effects that keep pods away."""
SYSTEM_NAMESPACES = ("kube-system", "gpu-operator", "nvidia-gpu-operator", "gke-managed-system")
"""Namespaces of the software that nodes with GPUs need."""
_KARPENTER = "karpenter.sh/nodepool"


def node_terms(pod: Template) -> Iterator[tuple[Field, bool]]:
    """(term, whether it is required) of the pod's node affinity."""
    if not pod.affinity:
        return
    affinity = pod.affinity.at("nodeAffinity")
    for term in affinity.at(REQUIRED, "nodeSelectorTerms").each():
        yield term, True
    for weighted in affinity.at(PREFERRED).each():
        yield weighted.at("preference"), False


def peer_terms(pod: Template, kind: str) -> Iterator[tuple[Field, bool]]:
    """(term, whether it is required) of the pod's `podAffinity` or `podAntiAffinity`."""
    if not pod.affinity:
        return
    affinity = pod.affinity.at(kind)
    for term in affinity.at(REQUIRED).each():
        yield term, True
    for weighted in affinity.at(PREFERRED).each():
        yield weighted.at("podAffinityTerm"), False


def spreads(pod: Template) -> Iterator[Field]:
    """The pod's topologySpreadConstraints."""
    return pod.spec.at("topologySpreadConstraints").each()


def text(value: Any) -> str:
    """A value as a string in YAML's notation."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def requirement(expression: Field, operators: Mapping[str, Operator] = NODE_OPERATORS) -> Requirement | None:
    """The requirement of an entry of `matchExpressions` or `matchFields`; None if its operator does not exist."""
    operator = operators.get(expression.at("operator").text)
    values = tuple(text(value.value) for value in expression.at("values").each())
    return Requirement(expression.at("key").text, operator, values) if operator else None


def label_of(node: KnownNode, key: str) -> str | None:
    """A label of the node. A missing host name label defaults to the name of the node."""
    return node.labels.get(key, node.name if key == HOSTNAME else None)


def allows(pod: Template, node: KnownNode) -> bool:
    """Whether the pod's nodeName, nodeSelector and required node affinity allow the node."""
    selected = pod.spec.at("nodeSelector").entries()
    terms = [term for term, required in node_terms(pod) if required]
    if pod.spec.at("nodeName").text not in ("", node.name):
        return False
    return all(label_of(node, key) == text(value.value) for key, value in selected) and (
        not pod.spec.at("affinity", "nodeAffinity", REQUIRED) or any(fulfils_term(term, node) for term in terms)
    )


def fulfils_term(term: Field, node: KnownNode) -> bool:
    """Whether the node matches a node selector term. An empty term matches no node."""
    expressions, fields = list(term.at("matchExpressions").each()), list(term.at("matchFields").each())
    return bool(expressions or fields) and all(
        fulfils(node, entry, entry in fields) for entry in (*expressions, *fields)
    )


def fulfils(node: KnownNode, entry: Field, of_fields: bool = False) -> bool:
    """Whether the node matches an entry of `matchExpressions`, or of `matchFields` with `of_fields`."""
    if of_fields:
        one = requirement(entry, FIELD_OPERATORS)
        return one is not None and one.key == "metadata.name" and holds(one, node.name)
    one = requirement(entry)
    return one is not None and holds(one, label_of(node, one.key))


def offers(node: KnownNode, resource: str) -> int:
    """The allocatable number of a device on the node, used or not."""
    return count(Field(node.allocatable.get(resource))) or 0


def gpu_nodes(facts: Facts) -> tuple[KnownNode, ...]:
    """The nodes that offer a GPU in any form."""
    return tuple(
        node for node in facts.nodes or () if any(is_gpu(name) and offers(node, name) for name in node.allocatable)
    )


def asked(pod: Template) -> Mapping[str, tuple[int, Field]]:
    """For each GPU resource, the number that the pod needs at the same time, and the field that requests the most."""
    return pod.asked


def suited(pod: Template, facts: Facts) -> tuple[KnownNode, ...]:
    """The nodes that the pod's selectors allow and that have the requested GPUs, used or not."""
    return tuple(
        node
        for node in gpu_nodes(facts)
        if allows(pod, node) and all(offers(node, name) >= gpus for name, (gpus, _) in asked(pod).items())
    )


def grows(facts: Facts) -> bool:
    """Whether Karpenter may add nodes of other kinds."""
    return any(_KARPENTER in node.labels for node in facts.nodes or ())


def hard_taints(node: KnownNode) -> Iterator[Taint]:
    """The taints of the node that keep pods away."""
    for taint in node.taints:
        effect = EFFECTS.get(taint.get("effect", ""))
        if effect:
            yield Taint(taint.get("key", ""), taint.get("value", ""), effect)


def tolerations(pod: Template) -> Iterator[Toleration]:
    """The pod's tolerations, in order."""
    for one in pod.spec.at("tolerations").each():
        key, value, effect = (text(one.at(name).value or "") for name in ("key", "value", "effect"))
        # Another rule reports invalid tolerations; here they match everything that they could mean.
        equal = one.at("operator").text in ("", "Equal")
        yield Toleration(key, "Equal" if equal else "Exists", value, EFFECTS.get(effect, ""))


def may_run(pod: Template, node: KnownNode) -> bool:
    """Whether the pod's selectors and tolerations allow the node and the node offers its GPU resources, used or not.
    For a node without allocatable amounts, the GPU resources are not checked."""
    resources = {name for container in pod.containers for name, _ in gpus_of(container)}
    tolerated = list(tolerations(pod))
    return (
        allows(pod, node)
        and all(any(tolerates(one, taint) for one in tolerated) for taint in hard_taints(node))
        and (not node.allocatable or all(offers(node, name) for name in resources))
    )


def gpu_nodes_for(pod: Template, facts: Facts) -> tuple[KnownNode, ...]:
    """The nodes of the inventory that may run the pod; none if it requests no GPU resource."""
    return tuple(node for node in facts.nodes or () if pod.gpu_containers and may_run(pod, node))
