# SPDX-License-Identifier: Apache-2.0
"""The kinds of object that Dovetail reads or writes, and where each lives in the API.

A kind that exists in several dialects (PodGroup) is a tuple in order of preference; `Served.first` picks what
a server has. Nothing here knows what is inside an object, and no version number of a server decides anything.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

VERSION = re.compile(r"v[1-9][0-9]*(?:(?:alpha|beta)[1-9][0-9]*)?")
"""A version of an API (https://kubernetes.io/docs/reference/using-api/#api-versioning)."""
NAME = re.compile(r"[0-9A-Za-z](?:[-_.0-9A-Za-z]{0,251}[0-9A-Za-z])?")
"""What objects are called, be it a DNS subdomain or the value of a label that names one; never a step in a path."""


class Resource(Struct, frozen=True, cache_hash=True):
    """One kind in one API version. `group` is "" for the core group, `plural` is the name used in paths. Where
    `namespace` is set, its collection is that of this namespace alone (`inside`)."""

    group: str
    version: str
    plural: str
    namespaced: bool
    kind: str
    namespace: str = ""

    def inside(self, namespace: str) -> "Resource":
        """The objects of this kind in one namespace, for identities that may read no other."""
        return replace(self, namespace=namespace)

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of a collection, an object or its subresource.

        Without a namespace, a namespaced kind means all namespaces; to name an object of such a kind raises ValueError.
        """
        namespace = namespace or self.namespace
        path = _collection(self, namespace)
        if name:
            if self.namespaced and not namespace:
                raise ValueError(f"{self.plural} {name!r}: a namespace is needed to name an object of this kind")
            # Four times as fast as to quote what has nothing to quote.
            path = f"{path}/{name if NAME.fullmatch(name) else quote(name, safe=':')}"
        return f"{path}/{subresource}" if subresource else path

    def __str__(self) -> str:
        name = f"{self.plural}.{self.group}/{self.version}" if self.group else f"{self.plural}/{self.version}"
        return f"{name} in {self.namespace}" if self.namespace else name


class Served(Struct, frozen=True):
    """The kinds a server has, as (group/version, plural). `failed` names the group/versions that did not answer."""

    kinds: frozenset[tuple[str, str]]
    failed: tuple[str, ...] = ()

    def has(self, resource: Resource) -> bool:
        """Whether this kind is served in exactly this version."""
        return (resource.api_version, resource.plural) in self.kinds

    def first(self, resources: Iterable[Resource]) -> Resource | None:
        """The first that is served, or None."""
        return next((resource for resource in resources if self.has(resource)), None)


@lru_cache(maxsize=1024)
def _collection(resource: Resource, namespace: str | None) -> str:
    path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if resource.namespaced and namespace:
        path += f"/namespaces/{quote(namespace, safe='')}"
    return f"{path}/{resource.plural}"


PODS = Resource("", "v1", "pods", True, "Pod")
NODES = Resource("", "v1", "nodes", False, "Node")
QUOTAS = Resource("", "v1", "resourcequotas", True, "ResourceQuota")
NAMESPACES = Resource("", "v1", "namespaces", False, "Namespace")
SECRETS = Resource("", "v1", "secrets", True, "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", True, "ConfigMap")
PVCS = Resource("", "v1", "persistentvolumeclaims", True, "PersistentVolumeClaim")
PVS = Resource("", "v1", "persistentvolumes", False, "PersistentVolume")
EVENTS = Resource("events.k8s.io", "v1", "events", True, "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", True, "Lease")
PDBS = Resource("policy", "v1", "poddisruptionbudgets", True, "PodDisruptionBudget")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", True, "EndpointSlice")
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", False, "APIService")
JOBS = Resource("batch", "v1", "jobs", True, "Job")
DEPLOYMENTS = Resource("apps", "v1", "deployments", True, "Deployment")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", True, "DaemonSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", True, "StatefulSet")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", True, "ControllerRevision")

SERVICE_MONITORS = Resource("monitoring.coreos.com", "v1", "servicemonitors", True, "ServiceMonitor")
POD_MONITORS = Resource("monitoring.coreos.com", "v1", "podmonitors", True, "PodMonitor")
PROMETHEUS_RULES = Resource("monitoring.coreos.com", "v1", "prometheusrules", True, "PrometheusRule")

STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", False, "StorageClass")
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", False, "CSINode")

RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", False, "ResourceSlice")
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", True, "ResourceClaim")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", True, "ResourceClaimTemplate")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", False, "DeviceClass")
TAINT_RULES = Resource("resource.k8s.io", "v1", "devicetaintrules", False, "DeviceTaintRule")

WORKLOADS = (
    Resource("scheduling.k8s.io", "v1beta1", "workloads", True, "Workload"),
    Resource("scheduling.k8s.io", "v1alpha3", "workloads", True, "Workload"),
    Resource("scheduling.k8s.io", "v1alpha2", "workloads", True, "Workload"),
)
POD_GROUPS = (
    Resource("scheduling.k8s.io", "v1beta1", "podgroups", True, "PodGroup"),
    Resource("scheduling.k8s.io", "v1alpha3", "podgroups", True, "PodGroup"),
    Resource("scheduling.k8s.io", "v1alpha2", "podgroups", True, "PodGroup"),
)
COMPOSITE_POD_GROUPS = (Resource("scheduling.k8s.io", "v1alpha3", "compositepodgroups", True, "CompositePodGroup"),)
COSCHEDULING_POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", True, "PodGroup")
GROVE_POD_GANGS = Resource("scheduler.grove.io", "v1alpha1", "podgangs", True, "PodGang")
VOLCANO_POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", True, "PodGroup")

NODE_TOPOLOGIES = Resource("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies", False, "NodeResourceTopology")

QUEUES = Resource("dovetail.dev", "v1alpha1", "queues", False, "Queue")
GPU_NODES = Resource("dovetail.dev", "v1alpha1", "gpunodes", False, "GPUNode")
FABRICS = Resource("dovetail.dev", "v1alpha1", "fabrics", False, "Fabric")
GPU_STACKS = Resource("dovetail.dev", "v1alpha1", "gpustacks", False, "GPUStack")
CONTROL_PLANES = Resource("dovetail.dev", "v1alpha1", "agentcontrolplanes", True, "AgentControlPlane")
LEASE_REQUESTS = Resource("dovetail.dev", "v1alpha1", "leaserequests", True, "LeaseRequest")
GPU_LEASES = Resource("dovetail.dev", "v1alpha1", "gpuleases", True, "GPULease")
