# SPDX-License-Identifier: Apache-2.0
"""Whether only the scheduler may write its annotations: the check of the policy in deploy/annotations.yaml.  Rules: the
record of a bound pod decides what the pod is charged (see `bound`). A running scheduler remembers the record; one that
starts reads it from the pod, and trusts it only if no other client could write it. That is so where the policy exists,
fails closed, and a binding enforces it in all namespaces. The policy's expressions are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import field

from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import KubeError, NotFound
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.base import LabelSelector, ObjectMeta, Wire

T = TypeVar("T")

NAME = "dovetail-scheduler-annotations"
_GROUP = "admissionregistration.k8s.io"
POLICIES = Resource(_GROUP, "v1", "validatingadmissionpolicies", False, "ValidatingAdmissionPolicy")
BINDINGS = Resource(_GROUP, "v1", "validatingadmissionpolicybindings", False, "ValidatingAdmissionPolicyBinding")


class PolicySpec(Wire, frozen=True):
    failure_policy: str = "Fail"


class ProtectionPolicy(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PolicySpec = PolicySpec()


class MatchResources(Wire, frozen=True):
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    resource_rules: tuple[object, ...] = ()
    exclude_resource_rules: tuple[object, ...] = ()


class BindingSpec(Wire, frozen=True):
    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()
    match_resources: MatchResources = field(default_factory=MatchResources)


class Binding(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: BindingSpec = BindingSpec()


def fault(policies: Iterable[ProtectionPolicy], bindings: Iterable[Binding]) -> str:
    """Why others can write the scheduler's annotations, in words; "" where they cannot."""
    policy = next((one for one in policies if one.metadata.name == NAME), None)
    if policy is None:
        return f"there is no ValidatingAdmissionPolicy {NAME}"
    if policy.spec.failure_policy != "Fail":
        return f"ValidatingAdmissionPolicy {NAME}: failurePolicy is {policy.spec.failure_policy}, not Fail"
    enforcing = [one.spec for one in bindings if one.spec.policy_name == NAME and "Deny" in one.spec.validation_actions]
    if not enforcing:
        return f"no ValidatingAdmissionPolicyBinding enforces {NAME} (validationActions: [Deny])"
    if all(one.match_resources != MatchResources() for one in enforcing):
        return f"each ValidatingAdmissionPolicyBinding of {NAME} leaves something out by its matchResources"
    return ""


async def lacking(client: Client) -> str:
    """The same for the cluster as it is now, or why it is not known. Raises no error."""
    try:
        policies = await _read(client, POLICIES, ProtectionPolicy)
        return fault(policies, await _read(client, BINDINGS, Binding))
    except KubeError as error:
        return f"it is not known whether the policy {NAME} is there: {error}"


async def _read(client: Client, resource: Resource, kind: type[T]) -> list[T]:
    """The object of our name, if it is there."""
    try:
        found = await client.request("GET", resource.path(name=NAME), decode=kind)
    except NotFound:
        return []
    return [found] if found is not None else []
