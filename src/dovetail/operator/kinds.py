# SPDX-License-Identifier: Apache-2.0
"""The kinds of object that the operator makes: where they live in the API, and in which order they are removed.

A kind that is not in the table cannot be applied, so that nothing is made that is not followed and removed again.
Definitions of kinds, Queues and GPUNodes are not in it: they belong to the user and to the nodes. Nor are the
namespaces and the priority class: they are installed with the operator, and stay with it.
"""

from __future__ import annotations

from dovetail.kube.api.resources import (
    API_SERVICES,
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    ENDPOINT_SLICES,
    NAMESPACES,
    PDBS,
    STATEFUL_SETS,
    Resource,
)

WORKLOADS = (DEPLOYMENTS, DAEMON_SETS, STATEFUL_SETS)
"""What runs pods. The volume of a StatefulSet stays."""
OWNED = (
    Resource("", "v1", "serviceaccounts", True, "ServiceAccount"),
    Resource("", "v1", "services", True, "Service"),
    ENDPOINT_SLICES,
    CONFIG_MAPS,
    *WORKLOADS,
    PDBS,
    DEVICE_CLASSES,
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", False, "ClusterRole"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", False, "ClusterRoleBinding"),
    Resource("rbac.authorization.k8s.io", "v1", "roles", True, "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", True, "RoleBinding"),
    Resource("networking.k8s.io", "v1", "networkpolicies", True, "NetworkPolicy"),
    Resource("node.k8s.io", "v1", "runtimeclasses", False, "RuntimeClass"),
    Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", False, "ValidatingAdmissionPolicy"),
    Resource(
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", False,
        "ValidatingAdmissionPolicyBinding",
    ),
    Resource("monitoring.coreos.com", "v1", "servicemonitors", True, "ServiceMonitor"),
    Resource("monitoring.coreos.com", "v1", "podmonitors", True, "PodMonitor"),
    Resource("monitoring.coreos.com", "v1", "prometheusrules", True, "PrometheusRule"),
    API_SERVICES,
)  # fmt: skip
"""What others refer to comes before them; objects are removed in the reverse order."""
REMOVED_IN_TURN = ((API_SERVICES,), WORKLOADS, OWNED)
"""What is removed when a stack goes, each when the one before is gone. While an API is registered that nobody answers,
the API server ends no namespace: so the registration goes before the pods that answer."""
_INSTALLED = (NAMESPACES, Resource("scheduling.k8s.io", "v1", "priorityclasses", False, "PriorityClass"))
"""What is installed with the operator, besides kinds that it makes itself."""
_BY_KIND = {(resource.api_version, resource.kind): resource for resource in OWNED}
_BY_INSTALLED_KIND = _BY_KIND | {(resource.api_version, resource.kind): resource for resource in _INSTALLED}


def resource_of(document: dict[str, object]) -> Resource:
    """Where a document's kind lives. Raises KeyError for a kind that the operator does not make."""
    return _BY_KIND[str(document.get("apiVersion")), str(document.get("kind"))]


def installed_resource_of(document: dict[str, object]) -> Resource:
    """Where the kind of an installation's document lives. Raises KeyError for another."""
    return _BY_INSTALLED_KIND[str(document.get("apiVersion")), str(document.get("kind"))]
