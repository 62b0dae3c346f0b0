# SPDX-License-Identifier: Apache-2.0
"""Which resources are served, and what is particular about each: one table, extended by custom resource definitions.

Versions of one group share their storage, and nothing is converted between them: an object is served as it was written,
under the requested version. The two event APIs store the same object under other field names;
`ServedResource.renames` maps them.

Traits, as read in the strategies of k8s.io/kubernetes/pkg/registry:
status, scale, binding, eviction
    the subresources served.
generation
    metadata.generation starts at 1 and counts changes of everything but metadata and status.
versioned
    an update without metadata.resourceVersion is refused (AllowUnconditionalUpdate is false).
born-with-status
    a status sent at creation is kept; every other resource with a status subresource starts without.
isolated
    a status update leaves labels, annotations and finalizers as they are, as the status does in younger APIs.
returned
    a deletion replies with the object, not with a Status.
upsert
    PUT creates what is not there (AllowCreateOnUpdate).
all
    `kubectl get all` shows it.
custom
    no strategic merge patch.

Dovetail's own Queue is served without a definition; one that is stored takes its place.

Not known here: schemas. Custom resources are neither pruned, defaulted nor validated against their schema.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from msgspec import Struct, field

from dovetail.apiserver.failures import qualified
from dovetail.apiserver.objects import Object, object_at, objects_at, text_at

_TYPE = ("kind", "apiVersion")
SUBRESOURCES = ("status", "scale", "binding", "eviction")


class PrintColumn(Struct, frozen=True):
    """A printed column of a custom resource: `path` is its JSONPath without the leading dot."""

    name: str
    kind: str
    path: str
    priority: int


class ServedResource(Struct, frozen=True, eq=False):
    """One kind in one version of one group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    traits: frozenset[str] = frozenset()
    short_names: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    """Served field name -> stored field name."""
    columns: tuple[PrintColumn, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> str:
        """Where its objects are stored, shared by all versions: `pods`, `podgroups.scheduling.k8s.io`."""
        return qualified("" if self.group == "events.k8s.io" else self.group, self.plural)

    @property
    def base_path(self) -> str:
        """Path of the group and version, without slashes at the ends."""
        return f"apis/{self.api_version}" if self.group else f"api/{self.version}"

    def served(self, stored: Object) -> Object:
        """A stored object as this version shows it."""
        names = {stored_name: name for name, stored_name in self.renames.items()}
        body = {names.get(name, name): value for name, value in stored.items() if name not in _TYPE}
        return {"kind": self.kind, "apiVersion": self.api_version} | body

    def stored(self, served: Object) -> Object:
        """An object of this version as it is stored: without its type, which depends on the requested version."""
        return {self.renames.get(name, name): value for name, value in served.items() if name not in _TYPE}


_NEW_EVENT_FIELDS = {
    "regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent",
    "deprecatedSource": "source", "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp", "deprecatedLastTimestamp": "lastTimestamp",
}  # fmt: skip

# Under each API version: plural, kind, scope, short names, traits. The first version of a group is the preferred one.
_BUILT_IN = """
v1
  namespaces                Namespace                cluster    ns       status,returned
  nodes                     Node                     cluster    no       status,born-with-status
  pods                      Pod                      namespaced po       status,binding,eviction,generation,returned,all
  services                  Service                  namespaced svc      status,returned,upsert,all
  configmaps                ConfigMap                namespaced cm       -
  events                    Event                    namespaced ev       upsert
  persistentvolumeclaims    PersistentVolumeClaim    namespaced pvc      status,returned
  persistentvolumes         PersistentVolume         cluster    pv       status,returned
  serviceaccounts           ServiceAccount           namespaced sa       returned
  secrets                   Secret                   namespaced -        -
  resourcequotas            ResourceQuota            namespaced quota    status,returned
rbac.authorization.k8s.io/v1
  clusterroles              ClusterRole              cluster    -        returned,upsert
  clusterrolebindings       ClusterRoleBinding       cluster    -        returned,upsert
  roles                     Role                     namespaced -        returned,upsert
  rolebindings              RoleBinding              namespaced -        returned,upsert
networking.k8s.io/v1
  networkpolicies           NetworkPolicy            namespaced netpol   generation
discovery.k8s.io/v1
  endpointslices            EndpointSlice            namespaced -        generation
apiregistration.k8s.io/v1
  apiservices               APIService               cluster    -        status,versioned,isolated
node.k8s.io/v1
  runtimeclasses            RuntimeClass             cluster    -        -
admissionregistration.k8s.io/v1
  validatingadmissionpolicies       ValidatingAdmissionPolicy        cluster - status,generation,isolated
  validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding cluster - generation
apps/v1
  controllerrevisions       ControllerRevision       namespaced -        -
  deployments               Deployment               namespaced deploy   status,scale,generation,all
  replicasets               ReplicaSet               namespaced rs       status,scale,generation,all
  statefulsets              StatefulSet              namespaced sts      status,scale,generation,all
  daemonsets                DaemonSet                namespaced ds       status,generation,all
batch/v1
  jobs                      Job                      namespaced -        status,generation,all
coordination.k8s.io/v1
  leases                    Lease                    namespaced -        versioned,upsert
events.k8s.io/v1
  events                    Event                    namespaced ev       upsert
storage.k8s.io/v1
  storageclasses            StorageClass             cluster    sc       returned
  csinodes                  CSINode                  cluster    -        versioned,returned
  csidrivers                CSIDriver                cluster    -        versioned,returned
  volumeattachments         VolumeAttachment         cluster    -        status,versioned,isolated,returned
  csistoragecapacities      CSIStorageCapacity       namespaced -        versioned
policy/v1
  poddisruptionbudgets      PodDisruptionBudget      namespaced pdb      status,generation,versioned
scheduling.k8s.io/v1
  priorityclasses           PriorityClass            cluster    pc       generation
scheduling.k8s.io/v1beta1
  workloads                 Workload                 namespaced -        versioned
  podgroups                 PodGroup                 namespaced -        status,versioned,isolated
scheduling.k8s.io/v1alpha3
  workloads                 Workload                 namespaced -        versioned
  podgroups                 PodGroup                 namespaced -        status,versioned,isolated
  compositepodgroups        CompositePodGroup        namespaced -        status,versioned,isolated
resource.k8s.io/v1
  resourceclaims            ResourceClaim            namespaced -        status,isolated,returned
  resourceclaimtemplates    ResourceClaimTemplate    namespaced -        returned
  resourceslices            ResourceSlice            cluster    -        generation,returned
  deviceclasses             DeviceClass              cluster    -        generation,returned
  devicetaintrules          DeviceTaintRule          cluster    -        status,generation,isolated
resource.k8s.io/v1beta2
  devicetaintrules          DeviceTaintRule          cluster    -        status,generation,isolated
resource.k8s.io/v1alpha3
  devicetaintrules          DeviceTaintRule          cluster    -        status,generation,isolated
dovetail.dev/v1alpha1
  queues                    Queue                    cluster    dq       status,generation,versioned,isolated,custom
apiextensions.k8s.io/v1
  customresourcedefinitions CustomResourceDefinition cluster    crd,crds status,generation,versioned
"""


def _words(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))


def _built_in() -> list[ServedResource]:
    found = []
    for line in _BUILT_IN.strip().splitlines():
        if not line.startswith(" "):
            group, _, version = line.rpartition("/")
            renames = _NEW_EVENT_FIELDS if group == "events.k8s.io" else {}
            continue
        plural, kind, scope, short, traits = line.split()
        found.append(
            ServedResource(
                group, version, plural, kind, scope == "namespaced", frozenset(_words(traits)), _words(short), renames
            )
        )
    return found


BUILT_IN = tuple(_built_in())
PODS = next(resource for resource in BUILT_IN if resource.plural == "pods")


def defined_by(definition: Object) -> list[ServedResource]:
    """The resources of a CustomResourceDefinition: one for each served version, the storage version first."""
    spec = object_at(definition, "spec")
    short = object_at(spec, "names").get("shortNames") or []
    versions = sorted(objects_at(spec, "versions"), key=lambda version: not version.get("storage"))
    return [
        ServedResource(
            text_at(spec, "group"), text_at(version, "name"), text_at(spec, "names.plural"),
            text_at(spec, "names.kind"), spec.get("scope") == "Namespaced",
            frozenset({"custom", "generation", "versioned", "isolated"} | object_at(version, "subresources").keys()),
            tuple(name for name in short if isinstance(name, str)), {},
            tuple(
                PrintColumn(text_at(c, "name"), text_at(c, "type"), text_at(c, "jsonPath")[1:],
                int(bool(c.get("priority")))) for c in objects_at(version, "additionalPrinterColumns")
            ),
        )
        for version in versions
        if version.get("served")
    ]  # fmt: skip


class Catalogue:
    """The resources served now.

    `without` names groups ("resource.k8s.io") or versions ("scheduling.k8s.io/v1beta1") of the table to leave out,
    `only` the collections that are served; None: all of them.
    """

    def __init__(self, without: Iterable[str] = (), *, only: Container[str] | None = None) -> None:
        left_out = set(without)
        self._served = {
            _path(r): r
            for r in BUILT_IN
            if not left_out & {r.group, r.api_version} and (only is None or r.collection in only)
        }

    @property
    def resources(self) -> list[ServedResource]:
        return list(self._served.values())

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        return self._served.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> ServedResource | None:
        return next((r for r in self.resources if (r.api_version, r.kind) == (api_version, kind)), None)

    def of_collection(self, collection: str) -> ServedResource | None:
        """The preferred resource of a collection."""
        return next((r for r in self.resources if r.collection == collection), None)

    def define(self, definition: Object) -> None:
        """Serve the resources of a CustomResourceDefinition, in place of its earlier ones."""
        self.undefine(definition)
        self._served |= {_path(r): r for r in defined_by(definition)}

    def undefine(self, definition: Object) -> None:
        collection = text_at(definition, "metadata.name")
        self._served = {
            path: r for path, r in self._served.items() if "custom" not in r.traits or r.collection != collection
        }


def _path(resource: ServedResource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural
